"""Creating datasets: what is stored, what is refused, and what comes back."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pyarrow as pa
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.core import testing
from kartothek_cube.core.errors import CorruptDatasetError, DatasetExistsError, SchemaConflictError
from kartothek_cube.serialization import CsvSerializer, ParquetSerializer
from tests.support.cubes import refuses, unchanged
from tests.support.dataset_facades import FACADES
from tests.support.stored_files import (
    all_rows,
    check_integrity,
    contents,
    directories,
    frame,
    header,
    index,
    keys,
    labels,
    parquet,
    rows,
    snapshot,
)

XY = frame(x=[1, 2, 3], y=["a", "b", "c"])
PX = frame(p=[1, 1, 2], x=[1, 2, 3])


def test_layout(io, store_factory):
    with testing.cm_frozen_time(testing.TIME_TO_FREEZE):
        options = {"partition_on": ["p"], "secondary_indices": ["x"], "metadata": {"m": 1}}
        dataset = io.store(store_factory, [PX], **options)
    assert dataset == api.DatasetMetadata.load_from_store("u", store_factory)
    assert dataset.explicit_partitions
    assert all_rows(io.read(store_factory)) == [{"p": [1, 1], "x": [1, 2]}, {"p": [2], "x": [3]}]
    ((name,),) = [{label.split("/")[1] for label in labels(store_factory)}]
    index_key = f"u/indices/x/{testing.TIME_TO_FREEZE_ISO_QUOTED}.by-dataset-index.parquet"
    files = {f"p={p}/{name}": {"files": {"table": f"u/table/p={p}/{name}.parquet"}} for p in (1, 2)}
    assert header(store_factory) == {
        "dataset_metadata_version": 4,
        "dataset_uuid": "u",
        "indices": {"x": index_key},
        "metadata": {"creation_time": testing.TIME_TO_FREEZE_ISO, "m": 1},
        "partitions": files,
        "partition_keys": ["p"],
        "kartothek_cube_widths": {},
    }
    assert keys(store_factory) == {
        "u.by-dataset-metadata.json",
        "u/table/_common_metadata",
        index_key,
        *(part["files"]["table"] for part in files.values()),
    }
    assert contents(store_factory) == [{"x": [1, 2]}, {"x": [3]}]
    check_integrity(store_factory)


class Stream:
    """What polars and DuckDB offer."""

    def __arrow_c_stream__(self, requested_schema=None):
        return pa.Table.from_pandas(XY).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "inputs, count",
    [
        ([XY, None, XY], 2),
        ([[XY, [XY, None]], []], 2),
        ([pa.Table.from_pandas(XY)], 1),
        ([pa.RecordBatch.from_pandas(XY)], 1),
        (XY, 1),
        (pa.Table.from_pandas(XY), 1),
        ((df for df in [XY, XY]), 2),
        ((XY, XY), 2),
        ([Stream(), Stream()], 2),
        (Stream(), 1),
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        lambda store, dfs: api.store_dataframes_as_dataset(store, "u", dfs),
        lambda store, dfs: api.store_dataframes_as_dataset__iter(dfs, store, "u"),
    ],
)
def test_inputs(memory, inputs, count, function):
    if hasattr(inputs, "send"):
        inputs = (df for df in [XY, XY])  # one for each façade
    assert len(function(memory, inputs).partitions) == count
    assert contents(memory) == [rows(XY)] * count


@pytest.mark.parametrize("inputs", [[1], ["x"], [(XY,)], [XY.x]])
def test_what_is_no_input(io, memory, inputs):
    with pytest.raises(ValueError, match=type(inputs[0]).__name__):
        io.store(memory, inputs)
    assert not api.DatasetMetadata.exists("u", memory)


@pytest.mark.parametrize("inputs", [1, "x"])
def test_what_is_no_iterable_of_inputs(memory, inputs):
    with pytest.raises(TypeError, match=type(inputs).__name__):
        api.store_dataframes_as_dataset(memory, "u", inputs)


@pytest.mark.parametrize("inputs, options", [([], {}), ([None], {"partition_on": ["p"]})])
def test_no_input(io, memory, inputs, options):
    """Nothing tells no types of partition keys."""
    text = "no input for 'u' has rows. To create one, pass its schema to kartothek_cube.io.eager.create_empty"
    with unchanged(memory), pytest.raises(ValueError, match=text):
        io.store(memory, inputs, **options)


@pytest.mark.parametrize("nothing", [None, []])
def test_only_nothing(io, memory, nothing):
    io.store(memory, [nothing])
    assert io.read(memory) == []
    assert len(api.read_table("u", memory).columns) == 0
    io.update(memory, [XY])
    assert all_rows(io.read(memory)) == [rows(XY)]


@pytest.mark.parametrize("nothing", [None, []])
@pytest.mark.parametrize("options", [{}, {"partition_on": ["p"]}])
def test_nothing_does_not_replace_a_dataset(io, memory, nothing, options):
    io.store(memory, [XY.assign(p=1)], **options)
    with pytest.raises(ValueError, match="no input for 'u'"):
        io.store(memory, [nothing], overwrite=True, **options)
    assert len(api.read_table("u", memory)) == len(XY)


def test_random_uuid(memory):
    first, second = (api.store_dataframes_as_dataset(memory, None, [XY]) for _ in range(2))
    assert first.uuid != second.uuid
    assert api.read_table(first.uuid, memory).equals(XY)


def test_input_is_not_changed(io, memory):
    df = frame(p=pd.Categorical(["b", "a", "b"]), x=[3, 1, 2])
    before = df.copy(deep=True)
    io.store(memory, [df], partition_on=["p"])
    io.update(memory, [df], sort_partitions_by=["x"])
    pdt.assert_frame_equal(df, before)


@pytest.mark.parametrize(
    "df, error, text",
    [
        (XY.set_axis(pd.MultiIndex.from_product([[1], [1, 2, 3]])), NotImplementedError, "MultiIndex"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), ValueError, "x"),
        (frame(x=pd.arrays.SparseArray([1, 0])), TypeError, "'x' is sparse"),
        (frame(x=[1, "a"]), ValueError, "x"),
        (frame(x=pd.to_timedelta([1])), TypeError, "x"),
        (frame(x=pd.Categorical(pd.period_range("2020", periods=1))), TypeError, "'x' of type period"),
        (frame(x=pd.Categorical(pd.to_timedelta([1]))), TypeError, "'x' .* cannot be stored"),
        (frame(x=[{}]), TypeError, "'x' .* cannot be stored"),
        (frame(x=pd.Series([np.datetime64("2020-01-31")], dtype=object)), ValueError, "'x' holds"),
        (frame(x=[datetime.time(1, tzinfo=datetime.UTC)]), ValueError, "'x' holds times of day with a zone"),
        (XY.set_axis(pd.period_range("2020", periods=3)), TypeError, "The index .* period"),
        (XY[[]], ValueError, "rows without columns"),
        (
            XY.set_axis(pd.MultiIndex.from_product([[1], [*"xy"]]), axis=1),
            NotImplementedError,
            "MultiIndex",
        ),
        (frame(x=pd.period_range("2020", periods=1)), TypeError, "'x'"),
        (pd.DataFrame([[1, 2]], columns=["1", 1]), ValueError, "more than once: 1"),
        (frame(x=np.array(["400000-01-01"], "M8[s]")), ValueError, "'x'"),
    ],
)
def test_frames_that_cannot_be_stored(memory, df, error, text):
    with unchanged(memory), pytest.raises(error, match=text):
        api.store_dataframes_as_dataset(memory, "u", [df])


def test_column_names_become_text(io, memory):
    api.store_dataframes_as_dataset(memory, "u", [pd.DataFrame({1: [1], b"b\xc3\xb6": [2]})])
    assert rows(api.read_table("u", memory)) == {"1": [1], "bö": [2]}


PQ = frame(p=[2, 1, 2, 1], q=["b", "a", "b", "c"], x=[1, 2, 3, 4])


@pytest.mark.parametrize(
    "df, partition_on, expected, files",
    [
        (PQ, ["p", "q"], ["p=2/q=b", "p=1/q=a", "p=1/q=c"], [[1, 3], [2], [4]]),
        (PQ[:2], ("q", "p"), ["q=b/p=2", "q=a/p=1"], [[1], [2]]),
        (frame(p=np.array([0.1], "float32"), x=[1]), "p", ["p=0.10000000149011612"], [[1]]),
        (frame(**{"p /=ü": [1], "x": [1]}), "p /=ü", ["p%20%2F%3D%C3%BC=1"], [[1]]),
        (frame(p=pd.Categorical(["a"], categories=["a", "b"]), x=[1]), "p", ["p=a"], [[1]]),
    ],
    ids=["several keys", "their order", "narrow floats", "quoted name", "categories without rows"],
)
def test_rows_are_split_by_partition_keys(io, memory, df, partition_on, expected, files):
    dataset = io.store(memory, [df], partition_on=partition_on)
    names = [partition_on] if isinstance(partition_on, str) else [*partition_on]
    assert dataset.partition_keys == names
    assert directories(memory) == expected
    assert contents(memory) == [{"x": x} for x in files]
    assert len({label.rpartition("/")[2] for label in labels(memory)}) == 1
    assert rows(api.read_table("u", memory).sort_values("x")) == rows(df[[*names, "x"]])


@pytest.mark.parametrize(
    "value, text",
    [
        ("", ""),
        ("a/b=c %ü", "a%2Fb%3Dc%20%25%C3%BC"),
        ("a/", "a%2F"),
        ("/a//b", "%2Fa%2F%2Fb"),
        ("..", ".."),
        (-1, "-1"),
        (1e-7, "1e-07"),
        (True, "True"),
        (b"\xff", "%FF"),
        (datetime.date(2020, 1, 31), "2020-01-31"),
        (pd.Timestamp("2020-01-31"), "2020-01-31%2000%3A00%3A00"),
        (pd.Timestamp("2020-01-31 12:00:00.5", tz="CET"), "2020-01-31%2012%3A00%3A00.500000%2B01%3A00"),
    ],
)
def test_labels(io, memory, value, text):
    io.store(memory, [frame(p=pd.Series([value]), x=[1])], partition_on="p")
    assert directories(memory) == [f"p={text}"]
    (df,) = io.read(memory)
    assert df["p"][0] == value


@pytest.mark.parametrize(
    "df, text",
    [
        (XY, "unknown column p; available: x, y"),
        (frame(p=[1]), "No data left to save outside partition columns"),
        (frame(p=[1, None], x=[1, 2]), "1 of 2 rows would be lost"),
        (frame(p=["a", None], x=[1, 2]), "1 of 2 rows would be lost"),
        (frame(p=[1.0, np.nan], x=[1, 2]), "1 of 2 rows would be lost"),
        (frame(p=[pd.Timestamp(0), pd.NaT], x=[1, 2]), "1 of 2 rows would be lost"),
        (pa.table({"p": [np.nan], "x": [1]}), "1 of 1 row would be lost"),
    ],
)
def test_bad_partition_columns(io, memory, df, text):
    with unchanged(memory), pytest.raises(ValueError, match=text):
        io.store(memory, [df], partition_on=["p"])


def test_no_rows_without_partition_keys(io, memory):
    io.store(memory, [XY[:0], XY])
    assert contents(memory) == [{"x": [], "y": []}, rows(XY)]


def test_no_rows_with_partition_keys(io, memory):
    dataset = io.store(memory, [PX[:0]], partition_on="p", secondary_indices="x")
    assert labels(memory) == []
    assert dataset.schema.names == ["p", "x"]
    assert io.read(memory) == []
    pdt.assert_frame_equal(api.read_table("u", memory), PX[:0])
    io.update(memory, [PX])
    assert index(memory, "x") == {1: [0], 2: [0], 3: [1]}


def test_schema_of_no_rows_is_checked(io, memory):
    with pytest.raises(SchemaConflictError, match="u"):
        io.store(memory, [PX, frame(p=[1], x=[1.5])[:0]], partition_on="p")


@pytest.mark.parametrize(
    "other",
    [frame(x=[1.5], y=["a"]), frame(x=[1]), frame(x=[1], y=["a"], z=[1]), frame(x=["1"], y=["a"])],
    ids=["float", "missing", "more", "str"],
)
def test_schemas_have_to_agree(io, memory, other):
    with pytest.raises(SchemaConflictError, match="'u'") as caught:
        io.store(memory, [XY, other])
    assert isinstance(caught.value, ValueError)
    assert not api.DatasetMetadata.exists("u", memory)
    assert "u/table/_common_metadata" not in keys(memory)


@pytest.mark.parametrize("order", [1, -1])
def test_columns_of_nulls_fit_everything(io, memory, order):
    null = pd.Series([None], dtype=object)
    inputs = [frame(x=null, y=["a"]), frame(x=[1], y=null)]
    dataset = io.store(memory, inputs[::order])
    assert dict(zip(dataset.schema.names, map(str, dataset.schema.types))) == {"x": "int64", "y": "string"}
    assert rows(api.read_table("u", memory)) == {"x": [None, 1][::order], "y": ["a", None][::order]}


def test_indices(io, memory):
    dataset = io.store(
        memory,
        [frame(p=[1, 1, 2], x=[1, 2, 1], y=["a", None, "b"]), frame(p=[1], x=[7], y=[None])],
        partition_on="p",
        secondary_indices=["x", "y"],
    )
    assert index(memory, "x") == {1: [0, 1], 2: [0], 7: [2]}
    assert index(memory, "y") == {"a": [0], "b": [1]}
    assert not any(found.loaded for found in dataset.indices.values())


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"partition_on": "p", "secondary_indices": ["x", "p"]}, RuntimeError, "column.* p of dataset 'u'"),
        ({"secondary_indices": ["x", "z"]}, RuntimeError, "unknown column z"),
        ({"partition_on": ["p", "p"]}, ValueError, "named twice.*p"),
        ({"partition_on": {"p"}}, ValueError, "set"),
        ({"secondary_indices": frozenset("x")}, ValueError, "frozenset"),
        ({"metadata_version": 3}, NotImplementedError, "version 3"),
        ({"metadata_storage_format": "yaml"}, ValueError, "yaml"),
        ({"metadata": {"m": object()}}, TypeError, "'m' is not JSON"),
        ({"metadata": [1]}, TypeError, "list"),
        ({"metadata": {"kartothek_cube_keep_history": -1}}, ValueError, "number of states"),
        ({"metadata": {"kartothek_cube_publish": "hudi"}}, ValueError, "hudi"),
        ({"metadata": {"kartothek_cube_statistics": 5}}, ValueError, "columns with statistics"),
        ({"df_serializer": "parquet"}, TypeError, "str"),
        ({"table_name": "a/b"}, ValueError, "a/b"),
        ({"uuid": "a/b"}, ValueError, "a/b"),
    ],
)
def test_bad_arguments_are_found_before_anything_is_written(io, memory, arguments, error, text):
    with unchanged(memory), pytest.raises(error, match=text):
        io.store(memory, [PX], **arguments)


def test_column_named_partition_cannot_be_indexed(io, memory):
    with pytest.raises(ValueError, match="partition"):
        io.store(memory, [frame(partition=[1])], secondary_indices="partition")


def test_metadata(io, memory):
    dataset = io.store(memory, [XY], metadata=lambda: {"m": [1, {"n": None}], "t": (1, 2)})
    del dataset.metadata["creation_time"]
    assert dataset.metadata == {"m": [1, {"n": None}], "t": [1, 2]}


@pytest.mark.parametrize("name", ["msgpack", "MsgPack"])
def test_msgpack(io, store_factory, name):
    dataset = io.store(store_factory, [PX], secondary_indices="x", metadata_storage_format=name)
    assert {key for key in keys(store_factory) if "/" not in key} == {"u.by-dataset-metadata.msgpack.zstd"}
    assert dataset == api.DatasetMetadata.load_from_store("u", store_factory)
    assert len(io.read(store_factory, predicates=[[("x", "==", 3)]])) == 1


@pytest.mark.parametrize(
    "values",
    [
        ["01067", "NA"],
        ["1.0", None],
        ["true", "False"],
        pd.array([2**53 + 1, None], "Int64"),
        pd.array([2**64 - 1, 1], "uint64"),
        [datetime.time(12, 30), None],
        [decimal.Decimal("0.10000000000000000001"), None],
        [1.5, float("inf")],
        np.array([0.1, 0.5], "float32"),
    ],
    ids=str,
)
def test_csv_files_have_the_values_of_the_frame(io, memory, values):
    df = frame(x=values, n=[1, 2])
    io.store(memory, [df], df_serializer=CsvSerializer())
    assert (
        api.read_table_arrow("u", memory)["x"].to_pylist() == pa.array(df["x"], from_pandas=True).to_pylist()
    )


def test_blank_texts_are_rows_of_a_csv_file(io, memory):
    io.store(memory, [frame(x=[" ", None, "a"])], df_serializer=CsvSerializer())
    assert api.read_table_arrow("u", memory)["x"].to_pylist() == [" ", None, "a"]


@pytest.mark.parametrize("value", [b"a", [1], {"a": 1}, "", "a\rb"], ids=repr)
def test_values_without_a_text_are_no_csv(io, memory, value):
    with unchanged(memory), pytest.raises((TypeError, ValueError), match=r"'x' .* CSV"):
        io.store(memory, [frame(x=[value])], df_serializer=CsvSerializer())


@pytest.mark.parametrize(
    "content, text", [("n;x\na;b\n", "do not fit the types"), ("n\n1\n", "lacks columns .* x"), ("", "n, x")]
)
def test_csv_files_that_do_not_fit_the_dataset_are_corrupt(io, memory, content, text):
    io.store(memory, [frame(n=[1], x=["a"])], df_serializer=CsvSerializer(compress=False))
    memory().put(next(key for key in keys(memory) if key.endswith(".csv")), content.encode())
    with pytest.raises(CorruptDatasetError, match=text):
        api.read_table("u", memory)


@pytest.mark.parametrize("codec", ["SNAPPY", "GZIP", "ZSTD", "NONE"])
def test_serializer(io, memory, codec):
    df = frame(x=range(5))
    io.store(memory, [df], df_serializer=ParquetSerializer(codec, chunk_size=2))
    file = parquet(memory, next(key for key in keys(memory) if key.endswith(".parquet"))).metadata
    assert file.num_row_groups == 3
    assert file.row_group(0).column(0).compression == codec.replace("NONE", "UNCOMPRESSED")
    assert all_rows(io.read(memory)) == [rows(df)]


def test_files_of_another_serializer(io, memory):
    day = datetime.date(2020, 1, 31)
    df = frame(p=[1, 2], x=["1", None], d=[day, None], t=pd.to_datetime(["2020-01-31", "2020-02-01"]))
    io.store(memory, [df], partition_on="p", secondary_indices=["d"], df_serializer=CsvSerializer())
    assert {key.partition(".")[2] for key in keys(memory) if "/table/p=" in key} == {"csv.gz"}
    pdt.assert_frame_equal(api.read_table("u", memory)[df.columns], df, check_dtype=False)
    assert rows(api.read_table("u", memory, predicates=[[("d", "==", day)]], columns=["x"])) == {"x": ["1"]}
    io.update(memory, [df], df_serializer=CsvSerializer(compress=False))
    io.update(memory, [df])
    assert len(api.read_table("u", memory)) == 6


@pytest.mark.parametrize("old, new", [("json", "json"), ("json", "msgpack"), ("msgpack", "json")])
def test_existing_dataset(io, memory, old, new):
    io.store(memory, [XY], metadata_storage_format=old)
    with unchanged(memory), pytest.raises(DatasetExistsError, match="'u'") as caught:
        io.store(memory, [PX], metadata_storage_format=new)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("old, new", [("json", "json"), ("json", "msgpack"), ("msgpack", "json")])
def test_overwrite(io, memory, old, new):
    io.store(memory, [XY], metadata_storage_format=old, metadata={"m": 1}, secondary_indices="x")
    before = keys(memory)
    dataset = io.store(memory, [PX], metadata_storage_format=new, overwrite=True, partition_on="p")
    assert set(dataset.metadata) == {"creation_time"}
    assert dataset == api.DatasetMetadata.load_from_store("u", memory)
    assert all_rows(io.read(memory, columns=["x"])) == [{"x": [1, 2]}, {"x": [3]}]
    [key] = [key for key in keys(memory) if "/" not in key]
    assert key.endswith("json" if new == "json" else "zstd")
    assert {key for key in before if "/" in key} <= keys(memory)  # garbage until it is collected


def test_failed_overwrite_changes_nothing(io, memory):
    io.store(memory, [XY])
    before = snapshot(memory)
    with pytest.raises(SchemaConflictError):
        io.store(memory, [PX, XY], overwrite=True)
    assert before.items() <= snapshot(memory).items()
    assert all_rows(io.read(memory)) == [rows(XY)]


def test_iterator_is_consumed_input_by_input(memory):
    stored = []

    def inputs():
        for number in range(3):
            stored.append(sum(key.endswith(".parquet") for key in keys(memory)))
            yield frame(x=[number])

    api.store_dataframes_as_dataset__iter(inputs(), memory, "u")
    assert stored == [0, 1, 2]


def test_failing_iterator_leaves_no_dataset(memory):
    def inputs():
        yield XY
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        api.store_dataframes_as_dataset__iter(inputs(), memory, "u")
    assert not api.DatasetMetadata.exists("u", memory)


@pytest.mark.parametrize("method", ["store", "update"])
def test_an_index_on_nulls_is_refused_and_leaves_nothing(io, memory, method):
    nulls = XY.assign(n=[None] * len(XY))
    with refuses(memory, NotImplementedError, "Cannot index dataset u by n: all values are null"):
        getattr(io, method)(memory, [nulls, nulls], secondary_indices=["n"])
    io.store(memory, [nulls, XY.assign(n=1.5)], secondary_indices=["n"])
    check_integrity(memory)
    io.store(memory, [nulls], "v")
    with refuses(memory, NotImplementedError, "by column n of type null: all values are null"):
        api.build_dataset_indices(memory, "v", ["n"])


@pytest.mark.parametrize("order", [1, -1])
def test_a_column_of_nulls_that_other_frames_lack_is_stored_but_not_in_the_schema(io, memory, order):
    """As kartothek 5.3 does."""
    frames = [frame(x=[1], z=[None]), frame(x=[2])][::order]
    assert io.store(memory, frames).schema.names == ["x"]
    assert sorted(api.read_table("u", memory)["x"]) == [1, 2]
    assert list(api.read_table("u", memory)) == ["x"]
    assert api.verify_dataset("u", memory).ok


def test_a_dataset_with_a_key_of_unknown_type_has_no_partitions(io, memory):
    empty = pd.DataFrame({"p": [], "x": []}, dtype=object)
    io.store(memory, [empty], partition_on="p")
    assert io.read(memory) == []
    assert io.read(memory, predicates=[[("p", "==", "a")]]) == []
    io.update(memory, [frame(p=["a"], x=[1])])
    assert len(io.read(memory, predicates=[[("p", "==", "a")]])) == 1


# tables of Arrow tell the type of their categories
@pytest.mark.parametrize("io", [name for name in FACADES if name != "arrow"], indirect=True)
def test_categories_of_missing_values_fit_all_types(io, memory):
    io.store(memory, [pd.DataFrame({"x": pd.Series(v, dtype="category")}) for v in ([None], ["a"])])
    io.update(memory, [pd.DataFrame({"x": pd.Series([None, None], dtype="category")})])
    assert [df["x"].dropna().tolist() for df in io.read(memory)] == [[], ["a"], []]
