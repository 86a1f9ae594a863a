"""Processes that write at the same time: what they were told is stored is stored, and nothing else."""

import importlib
import os
from datetime import timedelta

import pandas as pd
import pytest

from kartothek_cube.api.cube import Cube, query_cube
from kartothek_cube.api.dataset import read_dataset_as_dataframes__iterator, read_table
from kartothek_cube.core.utils import lazy_store
from tests.support import race
from tests.support.cubes import check_integrity

pytestmark = pytest.mark.slow("processes that write at the same time")

#: commits of each process; ``make soak`` asks for more
TIMES = int(os.environ.get("KARTOTHEK_CUBE_COMMITS", "12"))
PLAIN = Cube(dimension_columns=["x"], partition_columns=["p"], uuid_prefix="plain")
YOUNG = timedelta(hours=1)


@pytest.fixture
def store(tmp_path):
    return f"hfs://{tmp_path}/store?create_if_missing=true"


def test_appends_to_one_dataset(store):
    assert race.at_once((race.append_rows, (store, 1000 * n, TIMES)) for n in range(8)) == [0] * 8
    assert _rows(store) == _numbers(8)
    check_integrity(lazy_store(store), PLAIN)


def test_appends_to_one_cube(store):
    race.build((store, 900_000))
    race.extend(store)
    assert race.at_once((race.append_cells, (store, 1000 * n, TIMES)) for n in range(8)) == [0] * 8
    [df] = query_cube(race.CUBE, store)
    assert sorted(df.x[df.x < 900_000]) == _numbers(8)
    assert (df.v1 == df.v2)[df.x < 900_000].all()
    check_integrity(lazy_store(store), race.CUBE)


def test_appends_while_others_remove_index_and_clean(store):
    race.append_rows((store, 0, 3))
    jobs = [(race.append_rows, (store, 1000 * n, TIMES // 2)) for n in range(1, 5)]
    jobs += [(race.build_indices, (store, TIMES // 5)), (race.collect_garbage, (store, TIMES // 5, YOUNG))]
    assert race.at_once(jobs) == [0] * 6
    assert len(_rows(store)) == 3 + 4 * (TIMES // 2)
    check_integrity(lazy_store(store), PLAIN)


def test_no_commit_names_a_file_that_a_collection_deleted(store):
    race.append_rows((store, 0, 3))
    jobs = [(race.append_rows, (store, 1000 * n, TIMES // 2)) for n in range(1, 4)]
    refused = race.at_once([*jobs, (race.collect_garbage, (store, TIMES, None))])
    assert len(_rows(store)) == 3 + 3 * (TIMES // 2) - sum(refused)
    check_integrity(lazy_store(store), PLAIN)


def test_updates_lose_nothing_of_other_partitions(store):
    race.build((store, 900_000))
    race.extend(store)
    jobs = [(race.append_cells, (store, 1000 * n, TIMES // 2)) for n in range(3)]
    jobs += [(race.remove_and_refill, (store, 7, TIMES // 5)), (race.clean_up, (store, TIMES // 5, YOUNG))]
    assert race.at_once(jobs)[:3] == [0] * 3
    [df] = query_cube(race.CUBE, store)
    assert sorted(df.x[df.x < 900_000]) == sorted(1000 * n + i for n in range(3) for i in range(TIMES // 2))
    check_integrity(lazy_store(store), race.CUBE)


@pytest.mark.parametrize("attempt", range(5))
def test_one_of_two_builds_wins(store, attempt):
    errors = race.at_once((race.build, (store, 1000 * n)) for n in range(2))
    assert sorted(errors) in (["", "DatasetExistsError"], ["", "MultiTableCommitAborted"])
    [df] = query_cube(race.CUBE, store)
    winner = errors.index("")
    assert df.x.tolist() == list(range(1000 * winner, 1000 * winner + 50))


def test_a_slow_reader_finishes_on_what_it_planned(store):
    race.append_rows((store, 0, 6))
    reader = read_dataset_as_dataframes__iterator(race.DATASET, store)
    seen = [next(reader)]
    race.at_once([(race.empty, store)])
    assert _rows(store) == []
    seen += reader
    assert sorted(pd.concat(seen).x) == list(range(6))


def _rows(store):
    return sorted(read_table(race.DATASET, store).x)


def _numbers(writers):
    return sorted(1000 * n + i for n in range(writers) for i in range(TIMES))


@pytest.mark.parametrize("engine", ["iter", "delayed", "bag_bs3", "dataframe", "spark"])
def test_engines_append_to_one_cube(store, engine):
    race.build((store, 900_000))
    race.extend(store)
    driver = importlib.import_module("tests.support.cube_facades").open_facade(engine)

    def append(number):
        seed = race.rows(number, number % 3)
        data = {"seed": seed, "extra": seed[["x", "p"]].assign(v2=number)}
        driver.append_to_cube(data=data, cube=race.CUBE, store=lazy_store(store))

    append(0)  # the first one waits until its engine runs
    with race.meanwhile(race.append_cells, (store, 1000, 20)) as refused:
        for number in range(1, 5):
            append(number)
    assert refused.get() == 0
    [df] = query_cube(race.CUBE, store)
    assert sorted(df.x[df.x < 900_000]) == [*range(5), *range(1000, 1020)]
    assert (df.v1 == df.v2)[df.x < 900_000].all()
    check_integrity(lazy_store(store), race.CUBE)
