"""Partition columns of cubes: cubes without any."""

from __future__ import annotations

import pandas as pd
import pytest

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import discover_cube
from kartothek_cube.io.eager_cube import (
    append_to_cube,
    build_cube,
    compact_cube,
    merge_into_cube,
    query_cube,
    remove_partitions,
    verify_cube,
)
from kartothek_cube.io.opened_cube import open_cube
from tests.support.cubes import file_keys, frame, refuses, rows

PLAIN = Cube(["x"], [], "cube", index_columns=["v2"])


DATA = {"seed": frame(x=[2, 0, 1], v1=[12, 10, 11]), "enrich": frame(x=[2, 0], v2=[22, 20])}


@pytest.fixture
def plain(driver, store_factory):
    """A store with a cube of two datasets without partition columns."""
    driver.build_cube(data=DATA, cube=PLAIN, store=store_factory)
    return store_factory


def test_a_cube_without_partition_columns_is_written_and_queried(driver, plain):
    assert discover_cube("cube", plain)[0] == PLAIN
    assert all("/" not in label for label in file_keys(plain, "cube++seed"))
    driver.append_to_cube(data=frame(x=[3, 2], v1=[13, -2]), cube=PLAIN, store=plain)
    expected = {"v1": [10, 11, -2, 13], "v2": [20, None, 22, None], "x": [0, 1, 2, 3]}
    assert rows(driver.query_cube(cube=PLAIN, store=plain)) == expected
    assert rows(driver.query_cube(cube=PLAIN, store=plain, conditions=C("v2") > 20)) == {
        "v1": [-2],
        "v2": [22],
        "x": [2],
    }
    driver.extend_cube(data={"other": frame(x=[1], v3=[31])}, cube=PLAIN, store=plain)
    frames = driver.query_cube(cube=PLAIN, store=plain, partition_by="x", payload_columns=["v3"])
    assert sorted(frame.iloc[0]["x"] for frame in frames) == [0, 1, 2, 3]
    assert driver.collect_stats(cube=PLAIN, store=plain)["seed"]["partitions"] == 1
    assert not verify_cube(PLAIN, plain).problems


def test_an_update_of_a_cube_without_partition_columns_replaces_all_rows(driver, plain):
    driver.update_cube(
        data={"seed": frame(x=[7], v1=[17])},
        cube=PLAIN,
        store=plain,
        remove_conditions="all",
        ktk_cube_dataset_ids=["seed"],
    )
    assert rows(driver.query_cube(cube=PLAIN, store=plain)) == {"v1": [17], "v2": [None], "x": [7]}
    driver.remove_partitions(cube=PLAIN, store=plain, conditions="all")
    assert not driver.query_cube(cube=PLAIN, store=plain)


def test_files_of_a_cube_without_partition_columns_are_merged_and_compacted(store_factory):
    build_cube(DATA, PLAIN, store_factory)
    append_to_cube(frame(x=[2, 3], v1=[-2, 13]), PLAIN, store_factory)
    expected = query_cube(PLAIN, store_factory)
    counts = compact_cube(PLAIN, store_factory)["seed"]
    assert (counts["partitions"], counts["files_before"], counts["files_after"]) == (1, 2, 1)
    pd.testing.assert_frame_equal(*expected, *query_cube(PLAIN, store_factory))
    result = merge_into_cube(frame(x=[3, 4], v1=[-3, 14]), PLAIN, store_factory)
    assert (result.rows_updated, result.rows_inserted, len(file_keys(store_factory, "cube++seed"))) == (
        1,
        1,
        1,
    )
    assert rows(query_cube(PLAIN, store_factory, C("x") > 1)) == {
        "v1": [-2, -3, 14],
        "v2": [22, None, None],
        "x": [2, 3, 4],
    }


def test_single_rows_of_a_cube_without_partition_columns_cannot_be_removed(store_factory):
    build_cube(DATA, PLAIN, store_factory)
    assert "partitioned by nothing" in repr(open_cube("cube", store_factory))
    with refuses(store_factory, ValueError, "none: all rows are one partition", ": x"):
        remove_partitions(PLAIN, store_factory, C("x") == 1)
