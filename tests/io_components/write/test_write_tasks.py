"""Writing a dataset of a cube out of a stream of tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.errors import DuplicateCellsError
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager_cube import query_cube
from kartothek_cube.io_components.write.cube_writes import BuildCube
from kartothek_cube.io_components.write.write_commit import finish_write
from kartothek_cube.io_components.write.write_plan import merge_writes
from kartothek_cube.io_components.write.write_tasks import check_duplicate_cells, write_stream

CUBE = Cube(["x", "y"], ["p"], "cube")


def table(p, x, y=None, **more) -> pa.Table:
    return pa.table({"p": p, "x": x, "y": y or [0] * len(x), "v1": list(range(len(x))), **more})


def stored(store_factory) -> list[str]:
    return [blob.key for blob in open_blobs(store_factory).list("")]


@pytest.fixture
def plan(store_factory):
    return BuildCube(None, CUBE, store_factory).plan(["seed"])


def test_tables_become_files(plan, store_factory):
    results = write_stream(plan, "seed", iter([table([0, 0], [2, 1]), table([1], [3]), table([], [])]))
    assert results["seed"].rows == 3 and len(results["seed"].labels) == 2
    finish_write(plan, [results])
    assert query_cube(CUBE, store_factory)[0]["x"].tolist() == [1, 2, 3]


def test_no_rows_no_files(plan, store_factory):
    results = write_stream(plan, "seed", [])
    assert len(results["seed"].labels) == 0
    assert stored(store_factory) == []


@pytest.mark.parametrize(
    "bad, error",
    [
        (table([2, 2], [1, 1]), DuplicateCellsError),
        (table([2], pa.array([None], pa.int64()), y=[0]), ValueError),
        (table([2], [1]).drop_columns(["x"]), ValueError),
    ],
)
def test_what_was_written_before_a_bad_table_is_deleted(plan, store_factory, bad, error):
    with pytest.raises(error):
        write_stream(plan, "seed", [table([0, 1], [1, 2]), bad])
    assert stored(store_factory) == []


def test_a_consumer_that_stops_leaves_nothing(plan, store_factory):
    def source():
        yield table([0], [1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_stream(plan, "seed", source())
    assert stored(store_factory) == []


def test_a_cell_that_goes_on_in_the_next_table_is_noticed(plan):
    with pytest.raises(DuplicateCellsError, match="p=0, x=2"):
        write_stream(plan, "seed", [table([0, 0], [1, 2]), table([0, 1], [2, 2])], ordered=True)


def test_a_partition_may_go_on_in_the_next_table(plan):
    parts = [table([0, 0], [1, 2]), table([0, 1], [3, 2]), table([2], [2])]
    results = write_stream(plan, "seed", parts, ordered=True)
    assert len(results["seed"].labels) == 4
    check_duplicate_cells(plan, results)


def test_cells_in_files_of_several_tasks_are_noticed(plan):
    first = write_stream(plan, "seed", [table([0, 1], [1, 2])])
    other = write_stream(plan, "seed", [table([0, 1], [2, 2])])
    check_duplicate_cells(plan, first)
    with pytest.raises(DuplicateCellsError, match=r"p=1, x=2, y=0"):
        check_duplicate_cells(plan, merge_writes([first, other]))


def test_cells_of_datasets_without_partitions_are_compared_as_well(store_factory):
    plan = BuildCube(None, CUBE, store_factory, partition_on={"other": []}).plan(["seed", "other"])
    parts = [write_stream(plan, "other", [pa.table({"y": [y], "v2": [1]})]) for y in (1, 2, 1)]
    check_duplicate_cells(plan, merge_writes(parts[:2]))
    with pytest.raises(DuplicateCellsError, match="y=1"):
        check_duplicate_cells(plan, merge_writes(parts))
