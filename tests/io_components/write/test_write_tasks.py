"""Tasks of writes: streams of tables, checks before there are rows, and files of writes that failed."""

import pyarrow as pa
import pytest

from kartothek_cube.api.cube import Cube, query_cube
from kartothek_cube.core.commit.change import WriteMode
from kartothek_cube.core.commit.optimistic import commit
from kartothek_cube.core.errors import DuplicateCellsError, SchemaConflictError
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager import read_table
from kartothek_cube.io_components.write import write_tasks
from kartothek_cube.io_components.write.cube_writes import BuildCube
from kartothek_cube.io_components.write.dataset_writes import UpdateDataset
from kartothek_cube.io_components.write.table_writer import delete_attempts, delete_uncommitted, write_table
from kartothek_cube.io_components.write.write_commit import finish_dataset_write, finish_write
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteResult, WriteSpec, merge_writes

CUBE = Cube(["x", "y"], ["p"], "cube")


def table(p, x, y=None) -> pa.Table:
    return pa.table({"p": p, "x": x, "y": y or [0] * len(x), "v1": list(range(len(x)))})


def rows(x, p) -> pa.Table:
    return pa.table({"x": pa.array(x, pa.int64()), "p": pa.array(p, pa.int64())})


def stored(store_factory) -> set[str]:
    return {blob.key for blob in open_blobs(store_factory).list("")}


@pytest.fixture
def plan(store_factory):
    """The plan of a cube."""
    return BuildCube(None, CUBE, store_factory).plan(["seed"])


@pytest.fixture
def dataset_plan(store_factory):
    options = {"partition_on": "p", "secondary_indices": "x", "sort_partitions_by": "x"}
    return UpdateDataset(store_factory, "uuid", **options).plan()


def test_tables_become_files(plan, store_factory):
    assert len(write_tasks.write_stream(plan, "seed", [])["seed"].labels) == 0
    assert stored(store_factory) == set()
    tables = iter([table([0, 0], [2, 1]), table([1], [3]), table([], [])])
    results = write_tasks.write_stream(plan, "seed", tables)
    assert results["seed"].rows == 3 and len(results["seed"].labels) == 2
    finish_write(plan, [results])
    assert query_cube(CUBE, store_factory)[0]["x"].tolist() == [1, 2, 3]


def test_tables_become_partitions_of_a_dataset(dataset_plan, store_factory):
    tables = [rows([2, 1], [0, 0]), rows([3], [1]), rows([], [])]
    result = write_tasks.write_stream(dataset_plan, "uuid", tables)
    finish_dataset_write(dataset_plan, [result])
    assert read_table("uuid", store_factory)["x"].tolist() == [1, 2, 3]


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
        write_tasks.write_stream(plan, "seed", [table([0, 1], [1, 2]), bad])
    assert stored(store_factory) == set()


def test_files_of_a_dataset_before_a_bad_table_are_deleted(dataset_plan, store_factory):
    with pytest.raises(ValueError, match="Partition column p"):
        write_tasks.write_stream(dataset_plan, "uuid", [rows([1], [0]), rows([1], [None])])
    assert stored(store_factory) == set()


def test_a_consumer_that_stops_leaves_nothing(plan, store_factory):
    def source():
        yield table([0], [1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tasks.write_stream(plan, "seed", source())
    assert stored(store_factory) == set()


def test_the_schema_of_no_rows_makes_a_dataset(dataset_plan, store_factory):
    nothing = write_tasks.check_dataset_input(dataset_plan.spec, rows([], []))
    finish_dataset_write(dataset_plan, [{"uuid": nothing}])
    assert list(read_table("uuid", store_factory).columns) == ["p", "x"]


@pytest.mark.parametrize(
    "table, error, fragment",
    [
        (rows([], []).drop_columns(["p"]), ValueError, "p"),
        (rows([], []).drop_columns(["x"]), ValueError, "x"),
        (rows([], []).set_column(0, "x", pa.array([], pa.string())), SchemaConflictError, "x"),
    ],
)
def test_columns_are_checked_without_rows(dataset_plan, store_factory, table, error, fragment):
    finish_dataset_write(dataset_plan, [write_tasks.write_stream(dataset_plan, "uuid", [rows([1], [1])])])
    again = UpdateDataset(store_factory, "uuid", sort_partitions_by="x").plan()
    with pytest.raises(error, match=fragment):
        write_tasks.check_dataset_input(again.spec, table)


def test_cells_of_several_tables_are_compared(plan):
    with pytest.raises(DuplicateCellsError, match="p=0, x=2"):
        write_tasks.write_stream(plan, "seed", [table([0, 0], [1, 2]), table([0, 1], [2, 2])], ordered=True)
    parts = [table([0, 0], [1, 2]), table([0, 1], [3, 2]), table([2], [2])]
    results = write_tasks.write_stream(plan, "seed", parts, ordered=True)
    assert len(results["seed"].labels) == 4
    write_tasks.check_duplicate_cells(plan, results)


def test_cells_in_files_of_several_tasks_are_noticed(plan):
    first = write_tasks.write_stream(plan, "seed", [table([0, 1], [1, 2])])
    other = write_tasks.write_stream(plan, "seed", [table([0, 1], [2, 2])])
    write_tasks.check_duplicate_cells(plan, first)
    with pytest.raises(DuplicateCellsError, match=r"p=1, x=2, y=0"):
        write_tasks.check_duplicate_cells(plan, merge_writes([first, other]))


def test_cells_of_datasets_without_partitions_are_compared_as_well(store_factory):
    plan = BuildCube(None, CUBE, store_factory, partition_on={"other": []}).plan(["seed", "other"])
    parts = [write_tasks.write_stream(plan, "other", [pa.table({"y": [y], "v2": [1]})]) for y in (1, 2, 1)]
    write_tasks.check_duplicate_cells(plan, merge_writes(parts[:2]))
    with pytest.raises(DuplicateCellsError, match="y=1"):
        write_tasks.check_duplicate_cells(plan, merge_writes(parts))


ROWS = pa.table({"x": [1, 2], "p": [1, 2]})


def test_files_that_no_dataset_refers_to_go(store_factory):
    delete_uncommitted(store_factory, [write_table(WriteSpec(store_factory, "uuid"), ROWS)])
    assert stored(store_factory) == set()
    spec = WriteSpec(store_factory, "uuid", partition_on=("p",))
    kept, lost = (write_table(spec, ROWS) for _ in range(2))
    commit(open_blobs(store_factory), kept.change_set(mode=WriteMode.CREATE, partition_keys=("p",)))
    before = stored(store_factory)
    delete_uncommitted(store_factory, [kept, lost, WriteResult("uuid", "table")])
    gone = before - stored(store_factory)
    assert gone == {f"uuid/table/{label}.parquet" for label in lost.labels.to_pylist()}


def test_files_of_all_attempts_go(store_factory):
    spec, other = (WriteSpec(store_factory, "uuid", partition_on=("p",)) for _ in range(2))
    write_table(other, ROWS)
    kept = write_table(spec, ROWS)
    commit(open_blobs(store_factory), kept.change_set(mode=WriteMode.CREATE, partition_keys=("p",)))
    before = stored(store_factory)
    for _ in range(2):
        write_table(spec, ROWS)
    delete_attempts(WritePlan(store=store_factory, specs={"uuid": spec}))
    assert stored(store_factory) == before


NAMES = list("fbdeca")


def prepared(frames):
    return lambda plan: write_tasks.prepare(plan, {"seed": frames()})


@pytest.mark.parametrize(
    "check, text",
    [
        (lambda plan: write_tasks.check_announced(plan, NAMES), "not announced: a, b, c, d, e, f. Specified"),
        (prepared(lambda: [table([0], [1]), with_columns(NAMES)]), "columns: a, b, c, d, e, f only in some"),
        (prepared(lambda: [with_columns(f"__{n}" for n in NAMES)]), "'seed': __a, __b, __c, __d, __e, __f."),
        (prepared(lambda: [with_columns(NAMES * 2)]), "more than once: a, b, c, d, e, f"),
        (prepared(lambda: [with_columns(NAMES), with_columns(NAMES, 2)]), "a +b +c +d +e +f\n"),
    ],
)
def test_names_in_messages_are_sorted(plan, check, text):
    with pytest.raises(ValueError, match=text):
        check(plan)


def with_columns(names, value=1) -> pa.Table:
    base = table([0], [1])
    names = list(names)
    columns = [*base.columns, *[pa.array([value])] * len(names)]
    return pa.Table.from_arrays(columns, [*base.column_names, *names])
