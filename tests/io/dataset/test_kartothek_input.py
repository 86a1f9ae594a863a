"""Input as kartothek 5.3 takes it: frames with the name of their table, labels and indices."""

import pandas as pd
import pytest

from kartothek_cube.api import dataset as api
from tests.support.cubes import unchanged
from tests.support.dataset_facades import as_arrow
from tests.support.stored_files import all_rows, check_integrity, frame, header, index, keys, rows

XY = frame(x=[1, 2], y=["a", "b"])

FORMS = {
    "dict": {"core": XY},
    "list of pairs": [("core", XY)],
    "pair": ("core", XY),
    "partition": {"data": {"core": XY}},
    "partition of pairs": {"label": "cluster_1", "data": [("core", XY)]},
    "several frames": [("core", XY[:1]), ("core", XY[1:])],
    "nested": [[{"core": XY[:1]}, None], [[{"label": "a", "data": [("core", XY[1:])]}]]],
    "Arrow": {"core": as_arrow(XY)},
}
CORE = {"table_name": "core"}
deprecated = pytest.mark.filterwarnings("ignore:Input with the name of its table:DeprecationWarning")


def tables(store, uuid="u"):
    return {table for part in header(store, uuid)["partitions"].values() for table in part["files"]}


@deprecated
@pytest.mark.parametrize("form", list(FORMS))
def test_a_table_with_its_name_is_taken_with_a_warning_that_says_what_to_pass(io, memory, form):
    with pytest.warns(DeprecationWarning, match="pass DataFrames, and names as table_name"):
        assert io.store(memory, [FORMS[form]]).table_name == "core"
    io.update(memory, [FORMS[form], None])
    assert tables(memory) == {"core"}
    assert sorted(row for df in io.read(memory) for row in df["x"]) == [1, 1, 2, 2]
    check_integrity(memory, "u")


@deprecated
def test_an_update_creates_the_table_that_its_input_names(io, memory):
    io.update(memory, [None, {"core": XY}, {"core": XY}], partition_on="x")
    assert tables(memory) == {"core"}
    assert sorted(row for df in io.read(memory) for row in df["x"]) == [1, 1, 2, 2]


@deprecated
@pytest.mark.parametrize("data", [{"core": XY}, ("core", XY), {"label": "a", "data": {"core": XY}}])
def test_a_single_one_need_not_be_in_a_list(memory, data):
    api.store_dataframes_as_dataset(memory, "u", data)
    assert all_rows(api.read_dataset_as_dataframes("u", memory)) == [rows(XY)]
    assert tables(memory) == {"core"}
    with pytest.warns(DeprecationWarning, match="table_name"):
        api.commit_dataset(memory, "u", api.write_single_partition(memory, "u", data))
    assert len(header(memory)["partitions"]) == 2


@deprecated
def test_indices_in_the_input(io, memory):
    indices = {"x": {1: ["a"]}}
    io.store(memory, [{"data": [("core", frame(x=[x]))], "indices": indices} for x in (1, 2)])
    assert index(memory, "x") == {1: [0], 2: [1]}
    io.update(memory, [{"label": "a", "data": [("core", frame(x=[1]))], "indices": indices}])
    assert index(memory, "x") == {1: [0, 2], 2: [1]}
    with pytest.raises(ValueError, match="unknown index y; available: x"):
        io.update(memory, [{"data": {"core": frame(x=[1], y=[1])}, "indices": {"y": {1: ["a"]}}}])


@deprecated
@pytest.mark.parametrize(
    "several",
    [
        [{"core": XY, "helper": XY}],
        [{"label": "a", "data": [("core", XY), ("helper", XY)]}],
        [[{"core": XY}, {"helper": XY}]],
        [{"core": XY}, {"helper": XY}],
        [{"core": XY}, XY],
        [[{"core": XY}, XY]],
    ],
)
def test_several_tables_are_refused(io, memory, several):
    with pytest.raises(ValueError, match=r"'u' has several tables: core, .*one table"):
        io.store(memory, several)
    assert not api.DatasetMetadata.exists("u", memory)


@deprecated
@pytest.mark.parametrize(
    "options, update, available", [(CORE, {}, "core"), (CORE, CORE, "core"), ({}, {}, "table")]
)
def test_another_table_than_that_of_the_dataset(io, memory, options, update, available):
    io.store(memory, [XY], **options)
    before = keys(memory)
    with pytest.raises(RuntimeError, match=f"unknown table other; available: {available}"):
        io.update(memory, [{"other": XY}], **update)
    assert keys(memory) == before
    with pytest.raises(RuntimeError, match="unknown table other; available: core"):
        io.store(memory, [{"other": XY}], uuid="v", table_name="core")
    assert keys(memory) == before


def test_a_removal_needs_no_name(io, memory):
    io.store(memory, [frame(p=[1, 2], x=[1, 2])], partition_on="p", table_name="core")
    io.update(memory, [[]], delete_scope=[{"p": 1}])
    assert all_rows(io.read(memory)) == [{"p": [2], "x": [2]}]


@deprecated
@pytest.mark.parametrize(
    "part",
    [
        {"table": 1},
        {"label": "a"},
        {"data": ["table", XY]},
        {"data": {"a/b": XY}},
        {"data": {1: XY}},
        {"data": {"table": XY}, "metadata": {}},
    ],
)
def test_what_is_no_partition(io, memory, part):
    with unchanged(memory), pytest.raises((ValueError, RuntimeError)):
        io.store(memory, [part])


def test_an_empty_frame_with_its_name(io, memory):
    with pytest.warns(DeprecationWarning, match="table_name"):
        io.store(memory, [{"core": XY[:0]}, {"core": XY}], partition_on="x")
    assert isinstance(io.read(memory)[0], pd.DataFrame)
    assert tables(memory) == {"core"}


@deprecated
def test_columns_by_table(io, memory):
    io.store(memory, [{"core": XY}])
    with pytest.warns(DeprecationWarning, match="columns by table is deprecated: pass a list"):
        [df] = io.read(memory, columns={"core": ["y"]})
    assert list(df.columns) == ["y"]
    with pytest.warns(DeprecationWarning, match="categoricals by table"):
        [df] = api.read_dataset_as_dataframes("u", memory, categoricals={"core": ["y"]})
    assert df["y"].dtype == "category"
    with (
        pytest.warns(DeprecationWarning, match="columns by table"),
        pytest.raises(ValueError, match="columns: unknown table helper; available: core"),
    ):
        io.read(memory, columns={"helper": ["y"]})
