"""Widths of numbers: headers record the widest type of each column, and all results have it."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io import eager
from kartothek_cube.serialization import CsvSerializer
from tests.support.cubes import edit_header
from tests.support.stored_files import header

NARROW = pd.DataFrame({"p": [1, 2], "i": np.array([1, 2], "int8"), "f": np.array([1, 2], "float32")})
WIDE = NARROW.astype({"i": "int64", "f": "float64"})
CUBE = api.Cube(["x"], ["p"], "cube")


def record(store, uuid="u"):
    return header(store, uuid).get("kartothek_cube_widths")


def types(df):
    return {column: str(dtype) for column, dtype in df.dtypes.items() if column in "if"}


def drop_record(store, uuid="u"):
    """Make the header of a dataset one of another library, which drops what it does not know."""
    edit_header(store, uuid, lambda content: [content.pop(f"kartothek_cube{end}") for end in ("", "_widths")])


def test_a_commit_records_the_widest_type_of_each_column(io, memory):
    io.store(memory, [NARROW])
    assert record(memory) == {"i": 8, "f": 32}
    io.update(memory, [NARROW.astype({"i": "int16"}), NARROW])
    assert record(memory) == {"i": 16, "f": 32}
    frames = io.read(memory)
    assert len(frames) == 3
    assert [types(df) for df in frames] == [{"i": "int16", "f": "float32"}] * 3
    io.update(memory, [WIDE[["p", "i", "f"]]])
    assert record(memory) == {}
    assert [types(df) for df in io.read(memory)] == [{"i": "int64", "f": "float64"}] * 4


@pytest.mark.parametrize("how", ["overwrite", "remove"])
def test_files_that_are_replaced_do_not_count(memory, how):
    eager.store_dataframes_as_dataset(memory, "u", [WIDE], partition_on="p")
    if how == "overwrite":
        eager.store_dataframes_as_dataset(memory, "u", [NARROW], partition_on="p", overwrite=True)
    else:
        eager.update_dataset_from_dataframes([NARROW], memory, "u", delete_scope=[{}])
    assert record(memory) == {"i": 8, "f": 32}


def test_null_and_absent_columns_and_lists(memory):
    lists = pa.table({"i": [1], "l": pa.array([[1.5]], pa.list_(pa.float32())), "n": pa.nulls(1)})
    eager.store_dataframes_as_dataset(memory, "u", [lists])
    assert record(memory) == {"l": 32}
    nothing = pa.table({"i": pa.nulls(1), "l": pa.nulls(1), "n": pa.array([3], pa.int8())})
    eager.update_dataset_from_dataframes([nothing], memory, "u")
    assert record(memory) == {"l": 32, "n": 8}
    more = pa.table({"i": [1], "new": pa.array([3], pa.int16())})
    eager.update_dataset_from_dataframes([more], memory, "u", schema_mode="merge")
    assert record(memory) == {"l": 32, "n": 8, "new": 16}


def test_files_without_types_are_as_wide_as_the_schema(memory):
    eager.store_dataframes_as_dataset(memory, "u", [NARROW])
    eager.update_dataset_from_dataframes([NARROW], memory, "u", df_serializer=CsvSerializer())
    assert record(memory) == {}
    frames = eager.read_dataset_as_dataframes("u", memory)
    assert [types(df) for df in frames] == [{"i": "int64", "f": "float64"}] * 2


def test_other_writers_leave_no_record(memory):
    eager.store_dataframes_as_dataset(memory, "u", [NARROW])
    drop_record(memory)
    # what older files hold is not known
    eager.update_dataset_from_dataframes([NARROW], memory, "u")
    assert record(memory) is None
    frames = eager.read_dataset_as_dataframes("u", memory)
    assert [types(df) for df in frames] == [{"i": "int8", "f": "float32"}] * 2
    eager.update_dataset_from_dataframes([NARROW], memory, "u", delete_scope=[{}])
    assert record(memory) == {"i": 8, "f": 32}


@pytest.mark.parametrize("value", [None, [], {"i": 7}, {"i": "8"}, {"i": True}])
def test_a_record_of_another_form_is_none(memory, value):
    eager.store_dataframes_as_dataset(memory, "u", [NARROW])
    edit_header(memory, "u", lambda content: content.update(kartothek_cube_widths=value))
    assert DatasetMetadata.load_from_store("u", memory).widths is None
    assert types(eager.read_table("u", memory)) == {"i": "int8", "f": "float32"}


def test_a_header_without_partitions_has_no_record(memory):
    eager.create_empty_dataset_header(memory, "u", NARROW)
    assert record(memory) is None
    eager.write_single_partition(memory, "u", NARROW)
    assert types(eager.read_table("u", memory)) == {"i": "int8", "f": "float32"}


def build(store, frame=NARROW):
    return api.build_cube(frame.assign(x=[0, 1]), CUBE, store)


def widths_of_query(store, **kwargs):
    schema = api.query_cube_table(CUBE, store, **kwargs).schema
    return {name: schema.field(name).type.bit_width for name in schema.names if name in "ifj"}


def test_changes_of_the_schema(memory):
    build(memory)
    api.update_schema(CUBE, memory, "seed", rename={"i": "j"}, widen={}, add={"n": pa.int64()})
    assert record(memory, "cube++seed") == {"j": 8, "f": 32}
    assert widths_of_query(memory) == {"j": 8, "f": 32}
    api.update_schema(CUBE, memory, "seed", widen={"j": "float64"}, drop=["f"])
    assert record(memory, "cube++seed") == {}
    assert widths_of_query(memory) == {"j": 64}


def test_history_and_copies(memory):
    build(memory)
    api.keep_cube_history(CUBE, memory, 5)
    api.append_to_cube(WIDE.assign(x=[2, 3]), CUBE, memory)
    assert widths_of_query(memory) == {"i": 64, "f": 64}
    assert widths_of_query(memory, as_of=1) == {"i": 8, "f": 32}
    api.rollback_cube(CUBE, memory, as_of=1)
    assert record(memory, "cube++seed") == {"i": 8, "f": 32}
    eager.copy_dataset("cube++seed", memory, "copy", memory)
    assert record(memory, "copy") == {"i": 8, "f": 32}


def test_compaction_of_all_files_begins_a_record(memory):
    build(memory)
    api.append_to_cube(NARROW.assign(x=[2, 3], i=np.array([3, 4], "int16")), CUBE, memory)
    drop_record(memory, "cube++seed")
    assert widths_of_query(memory) == {"i": 16, "f": 32}
    api.compact_cube(CUBE, memory)
    assert record(memory, "cube++seed") == {"i": 16, "f": 32}


def test_a_merge_of_rows(memory):
    build(memory)
    api.merge_into_cube(pd.DataFrame({"x": [0], "p": [1], "i": np.array([300], "int16")}), CUBE, memory)
    assert record(memory, "cube++seed") == {"i": 16, "f": 32}


def test_a_query_reads_no_more_files_for_their_types(memory):
    build(memory)
    drop_record(memory, "cube++seed")
    edit_header(memory, "cube++seed", lambda content: content["partitions"].popitem())
    assert widths_of_query(memory) == {"i": 8, "f": 32}


def test_files_keep_the_types_that_were_written(memory):
    build(memory)
    api.append_to_cube(WIDE.assign(x=[2, 3]), CUBE, memory)
    key = next(iter(header(memory, "cube++seed")["partitions"].values()))["files"]["table"]
    assert str(pq.read_schema(pa.BufferReader(memory().get(key))).field("i").type) == "int8"
