"""Statistics of the datasets of a cube."""

import pytest

from kartothek_cube.api.cube import discover_datasets, eager_cube
from kartothek_cube.core.header import COMMIT_RECORD
from tests.support.cubes import CUBE, HEADER, build, edit_header, file_keys, frame, refuses

SEED = frame(x=[0, 1, 2], p=[0, 1, 1], v1=[10, 11, 12])
WHOLE = frame(x=[0, 1], v3=[30, 31])
SPLIT = frame(x=[0, 1], p=[0, 1], a=["m", "n"], v4=[1, 2])


@pytest.fixture
def built(store_factory):
    """A store with three datasets; each partition of the seed and the unpartitioned one have two files."""
    build(store_factory, seed=SEED, whole=WHOLE, split=SPLIT, partition_on={"split": ["p", "a"]})
    more = {"seed": SEED.iloc[:2], "whole": WHOLE.iloc[:1]}
    eager_cube.append_to_cube(data=more, cube=CUBE, store=store_factory)
    return store_factory


def blobsize(store, id_):
    return sum(len(store().get(key)) for key in file_keys(store, f"cube++{id_}").values())


EXPECTED = {
    "seed": {"files": 4, "partitions": 2, "rows": 5},
    "split": {"files": 2, "partitions": 2, "rows": 2},
    "whole": {"files": 2, "partitions": 1, "rows": 3},
}


def test_stats_count_files_bytes_partitions_and_rows(driver, built):
    result = driver.collect_stats(cube=CUBE, store=built)
    assert result == {id_: {**numbers, "blobsize": blobsize(built, id_)} for id_, numbers in EXPECTED.items()}
    assert {type(number) for numbers in result.values() for number in numbers.values()} == {int}
    loaded = discover_datasets(CUBE, built)
    del loaded["whole"]
    for datasets, ids in (
        ("seed", ["seed"]),
        (["whole", "seed"], ["seed", "whole"]),
        (loaded, ["seed", "split"]),
    ):
        assert sorted(driver.collect_stats(cube=CUBE, store=built, datasets=datasets)) == ids


@pytest.mark.parametrize("operation", ["collect_stats", "delete_cube"])
@pytest.mark.parametrize(
    "datasets, error, text",
    [(["sead", "whole"], ValueError, "unknown dataset sead; did you mean seed"), (1, TypeError, "int")],
)
def test_wrong_datasets(driver, built, operation, datasets, error, text):
    with refuses(built, error, text):
        getattr(driver, operation)(cube=CUBE, store=built, datasets=datasets)


def test_datasets_that_are_broken_or_have_no_partitions_are_left_out(driver, built):
    driver.remove_partitions(cube=CUBE, store=built, conditions="all", ktk_cube_dataset_ids="split")
    assert sorted(driver.collect_stats(cube=CUBE, store=built)) == ["seed", "whole"]
    built().delete(f"cube++whole{HEADER}json")
    edit_header(built, "cube++split", lambda header: header.pop(COMMIT_RECORD))
    built().delete("cube++split/table/_common_metadata")
    assert sorted(driver.collect_stats(cube=CUBE, store=built)) == ["seed"]
