"""Deleting the datasets of a cube: what headers name goes, nothing else."""

import re
from contextlib import suppress

import pandas as pd
import pytest

from kartothek_cube.api.cube import delete_cube, discover_datasets, query_cube_df
from tests.support import cubes
from tests.support.crash import stores_after_faults
from tests.support.cubes import CUBE, ENRICH, HEADER, SEED, build, dataset_ids, keys, memory, snapshot


@pytest.fixture
def built(store_factory):
    """A store with a cube of three datasets."""
    cube, extra = CUBE.copy(index_columns=["v2"]), ENRICH.rename(columns={"v2": "v3"})
    build(store_factory, cube, seed=SEED, enrich=ENRICH, extra=extra)
    return store_factory


@pytest.mark.parametrize(
    "datasets, left",
    [
        ("enrich", {"seed", "extra"}),
        (["enrich", "extra"], {"seed"}),
        ({"seed"}, {"enrich", "extra"}),
        ([], {"seed", "enrich", "extra"}),
        ("as loaded", {"seed", "extra"}),
    ],
)
def test_delete_some_datasets(driver, built, datasets, left):
    before = snapshot(built)
    if datasets == "as loaded":
        datasets = {"enrich": discover_datasets(CUBE, built)["enrich"]}
    driver.delete_cube(cube=CUBE, store=built, datasets=datasets)
    assert dataset_ids(built) == left
    kept = {key: data for key, data in before.items() if re.split(r"\+\+|[./]", key)[1] in left}
    # the seed forgets in which operation the others were written
    assert cubes.without_commit_ids(snapshot(built)) == cubes.without_commit_ids(kept)


@pytest.mark.parametrize("lost", [None, "cube++enrich/table/_common_metadata"])
def test_what_no_header_names_stays_and_all_else_goes(driver, built, lost):
    """Also a dataset without schema; other cubes stay as well."""
    own = keys(built)
    for prefix in ("cube2", "cub", "cube+seed", "Xcube"):
        build(built, CUBE.copy(uuid_prefix=prefix), seed=SEED)
    for key in ("++seed/table/p=0/abc.parquet", "++seed/x", ".txt", "/x", "++other/table/x"):
        built().put(f"cube{key}", b"data")
    others = keys(built) - own
    if lost:
        built().delete(lost)
    driver.delete_cube(cube=CUBE, store=built)
    assert keys(built) == others


def test_files_without_a_header_are_left_to_a_cleanup(driver, built):
    built().delete(f"cube++enrich{HEADER}json")
    expected = {key for key in keys(built) if "enrich" in key}
    driver.delete_cube(cube=CUBE, store=built)
    assert keys(built) == expected


def test_repetitions_end_a_deletion_that_died():
    """At each request, also of a repetition: what has no header any more is found by lists of files."""
    store = memory()
    build(lambda: store, CUBE, seed=SEED, enrich=ENRICH)
    died = stores_after_faults(snapshot(lambda: store), lambda dying: delete_cube(CUBE, dying))
    assert len(died) >= 10
    whole = query_cube_df(CUBE, store)
    for left in died:
        # there is all of the cube, or none
        with suppress(ValueError):
            pd.testing.assert_frame_equal(query_cube_df(CUBE, left), whole)
    without_headers = next(store for store in died if not any(HEADER in key for key in store.keys()))
    again = stores_after_faults(snapshot(lambda: without_headers), lambda dying: delete_cube(CUBE, dying))
    for left in [*died, *again]:
        delete_cube(CUBE, left)
        assert list(left.keys()) == []
