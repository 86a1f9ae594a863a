import datetime
import io
import logging
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.core import clock
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions import to_tree, tree_mask
from kartothek_cube.core.pandas_conversion import as_table, to_pandas, with_pandas_metadata
from kartothek_cube.core.store import open_blobs
from kartothek_cube.serialization import (
    ParquetReadError,
    ParquetSerializer,
    filter_df_from_predicates,
    parquet,
)
from kartothek_cube.serialization.parquet import read_footer, read_parquet
from kartothek_cube.serialization.testing import get_dataframe_not_nested
from tests.support.cubes import parquet_bytes
from tests.support.predicates import KINDS, brute_force, predicates_of, rows_of, tables
from tests.support.stores import WrapperStore


@pytest.fixture
def blobs():
    return open_blobs("hmemory://")


def content_of(table, serializer=None):
    sink = pa.BufferOutputStream()
    (serializer or ParquetSerializer()).write_table(table, sink)
    return sink.getvalue().to_pybytes()


def test_attributes():
    serializer = ParquetSerializer("ZSTD", chunk_size=7)
    assert (serializer.compression, serializer.chunk_size) == ("ZSTD", 7)
    assert serializer == pickle.loads(pickle.dumps(serializer))
    assert repr(serializer) == "ParquetSerializer(compression='ZSTD', chunk_size=7)"
    others = {ParquetSerializer("ZSTD", 7), ParquetSerializer("ZSTD"), ParquetSerializer()}
    assert len({serializer} | others) == 3
    assert ParquetSerializer() != "SNAPPY"
    assert ParquetSerializer.type_stable


@pytest.mark.parametrize(
    "kwargs, error",
    [
        ({"chunk_size": "7"}, TypeError),
        ({"chunk_size": 7.0}, TypeError),
        ({"chunk_size": 0}, ValueError),
        ({"compression": "FOO"}, ValueError),
    ],
)
def test_wrong_settings(kwargs, error):
    with pytest.raises(error, match=str(next(iter(kwargs.values())))):
        ParquetSerializer(**kwargs)


@pytest.mark.parametrize(
    "compression, rows",
    [("SNAPPY", 0), ("SNAPPY", 1), ("ZSTD", 2000), ("GZIP", 10), ("NONE", 10), ("snappy", 10), (None, 10)],
)
def test_round_trip(blobs, compression, rows):
    df = get_dataframe_not_nested(rows)
    key = ParquetSerializer(compression).store(blobs, "dir/key", df)
    assert key == "dir/key.parquet"
    restored = ParquetSerializer.restore_dataframe(blobs, key, date_as_object=rows > 0)
    pd.testing.assert_frame_equal(restored, df)
    metadata = pq.read_metadata(io.BytesIO(blobs.get(key)))
    assert metadata.num_row_groups == 1
    assert metadata.row_group(0).column(0).compression in (str(compression).upper(), "UNCOMPRESSED")
    if compression is None:
        assert ParquetSerializer(compression) == ParquetSerializer("NONE")


@pytest.mark.parametrize("rows, chunk_size, groups", [(7, 3, 3), (6, 3, 2), (0, 3, 1), (600_000, None, 2)])
def test_row_groups(rows, chunk_size, groups):
    content = content_of(pa.table({"x": range(rows)}), ParquetSerializer(chunk_size=chunk_size))
    assert pq.read_metadata(io.BytesIO(content)).num_row_groups == groups
    assert read_parquet(content, "a file")["x"].to_pylist() == list(range(rows))


def test_file_types():
    times = {"t": pa.array([0], pa.timestamp("ns")), "z": pa.array([0], pa.timestamp("ms", "Europe/Berlin"))}
    columns = {"i": pa.array([1], pa.int8()), "s": pa.array(["a"], pa.large_string())}
    columns |= {"c": pa.array(["a"]).dictionary_encode(), **times}
    content = content_of(pa.table({**columns, "l": pa.array([["a"]], pa.large_list(pa.large_string()))}))
    in_file = pq.read_schema(io.BytesIO(content))
    times = [pa.timestamp("us"), pa.timestamp("us", "Europe/Berlin")]
    assert in_file.types == [pa.int8(), pa.string(), pa.string(), *times, pa.list_(pa.string())]
    assert in_file.field("l").type.value_field.name == "item"
    assert in_file.pandas_metadata["index_columns"] == []
    in_memory = read_parquet(content, "a file").schema
    assert in_memory.field("t").type == pa.timestamp("ns")
    assert in_memory.field("z").type == pa.timestamp("ns", "Europe/Berlin")
    assert in_memory.metadata is None


@pytest.mark.parametrize("unit", ["ns", "us"])
def test_pandas_types_and_dates(blobs, unit):
    df = pd.DataFrame({"t": ["2020-01-01 12:00:00.000001", None], "d": [datetime.date(2020, 1, 1), None]})
    df = df.assign(ns=["a", None], ni=[1, None]).set_axis([7, 8])
    df = df.astype({"t": f"datetime64[{unit}]", "d": object, "ns": "string", "ni": "Int8"})
    key = ParquetSerializer().store(blobs, "key", df)
    result = ParquetSerializer.restore_dataframe(blobs, key)
    assert result.dtypes.map(str).tolist() == ["datetime64[ns]", "datetime64[ns]", "string", "Int8"]
    assert result.index.tolist() == [7, 8]
    assert result["t"][7] == df["t"][7]
    chosen = ParquetSerializer.restore_dataframe(blobs, key, columns=["ni", "d"], date_as_object=True)
    assert chosen.dtypes.map(str).tolist() == ["Int8", "object"]
    assert chosen["d"][7] == datetime.date(2020, 1, 1)


@pytest.mark.parametrize("index", [pd.Index(["a", "b", "c"], name="idx"), pd.RangeIndex(1, 7, 2)])
@pytest.mark.parametrize(
    "arguments", [{"predicates": [[("x", ">", 1)]]}, {"filter_query": "x > 1"}], ids=["predicates", "query"]
)
def test_frames_are_restored_with_their_index(blobs, index, arguments):
    df = pd.DataFrame({"x": [1, 2, 3], "y": [4, 5, 6]}, index=index)
    key = ParquetSerializer().store(blobs, "key", df)
    pd.testing.assert_frame_equal(ParquetSerializer.restore_dataframe(blobs, key), df, check_index_type=False)
    rows = ParquetSerializer.restore_dataframe(blobs, key, columns=["y"], **arguments)
    pd.testing.assert_frame_equal(rows, df[["y"]][1:], check_index_type=False)


def test_a_file_is_opened_once_for_rows_and_index(blobs, monkeypatch):
    key = ParquetSerializer().store(blobs, "f", pd.DataFrame({"x": [1, 2]}, index=["a", "b"]))
    opened, original = [], pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda *args, **kw: opened.append(1) or original(*args, **kw))
    found = ParquetSerializer.restore_dataframe(blobs, key, predicates=[[("x", "==", 2)]])
    assert (found.index.tolist(), len(opened)) == (["b"], 1)


def test_nanoseconds_name_the_column(blobs):
    df = pd.DataFrame({"x": [0], "t": [1]}).astype("datetime64[ns]")
    with pytest.raises(ValueError, match=r"'t' .*floor"):
        ParquetSerializer().store(blobs, "key", df)
    assert blobs.list("") == []


@pytest.mark.parametrize("kind", ["path", "bytes", "buffer", "file", "memoryview"])
def test_sources_and_sinks(tmp_path, kind):
    path = str(tmp_path / "file.parquet")
    ParquetSerializer().write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), path)
    content = (tmp_path / "file.parquet").read_bytes()
    kinds = {"buffer": pa.py_buffer, "file": io.BytesIO, "memoryview": memoryview, "bytes": bytes}
    source = path if kind == "path" else kinds[kind](content)
    table = read_parquet(source, "a file", ["y"], [[("x", "==", 2)]])
    assert table.to_pydict() == {"y": ["b"]}
    file = io.BytesIO()
    ParquetSerializer().write_table(table, file)
    assert read_parquet(file.getvalue(), "a file").equals(table)


def test_index_of_a_frame_is_no_column():
    unnamed = pd.DataFrame({"x": [1, 2]}, index=[7, 9])
    for df in (unnamed, unnamed.rename_axis("idx")):
        content = parquet_bytes(pa.Table.from_pandas(df))
        assert read_parquet(content, "a file").column_names == ["x"]
        assert read_parquet(content, "a file", predicates=[[("x", ">", 1)]]).to_pydict() == {"x": [2]}
    content = content_of(pa.table({"x": [1], "y": [2], "z": [3]}))
    assert read_parquet(content, "a file", ["z", "x"]).column_names == ["z", "x"]
    assert read_parquet(content, "a file", ("y",)).column_names == ["y"]
    assert read_parquet(content, "a file", []).num_rows == 1
    with pytest.raises(ValueError, match=r"zz; .*available: x, y, z"):
        read_parquet(content, "a file", ["x", "zz"])


def test_dictionaries_are_decoded_unless_asked_for(blobs):
    blobs.put("key.parquet", parquet_bytes(pa.table({"c": pa.array(["b", "a", "b"]).dictionary_encode()})))
    assert read_parquet(blobs.get("key.parquet"), "a file").schema.types == [pa.string()]
    options = {"categories": ["c"], "predicates": [[("c", ">", "a")]]}
    df = ParquetSerializer.restore_dataframe(blobs, "key.parquet", **options)
    assert df["c"].cat.categories.tolist() == ["b"]


def test_schema_of_the_dataset_completes_null_columns():
    content = content_of(pa.table({"x": pa.nulls(2), "y": pa.nulls(2), "z": pa.array([1, 2], pa.int8())}))
    schema = pa.schema([("x", pa.string()), ("z", pa.int64())])
    table = read_parquet(content, "a file", schema=schema)
    assert table.schema.types == [pa.string(), pa.null(), pa.int8()]
    nulls = read_parquet(content, "a file", predicates=[[("x", "==", None)]], schema=schema)
    assert nulls.num_rows == 2
    with pytest.raises(TypeError, match="'x'"):
        read_parquet(content, "a file", predicates=[[("x", "==", 1)]], schema=schema)


@pytest.mark.parametrize("rows", [0, 3])
def test_types_of_predicates_are_checked(rows):
    content = content_of(pa.table({"x": pa.array(range(rows), pa.int64())}))
    with pytest.raises(TypeError, match="'x' of type int64"):
        read_parquet(content, "a file", None, [[("x", "<", "a")]])


def test_only_needed_columns_are_decoded():
    table = pa.table({"x": [1, 2], "y": ["a" * 50, "b" * 50]})
    content = bytearray(content_of(table, ParquetSerializer("NONE")))
    position = content.index(b"a" * 50)
    content[position - 30 : position] = b"\xff" * 30  # the page header of y
    assert read_parquet(bytes(content), "a file", ["x"]).to_pydict() == {"x": [1, 2]}
    with pytest.raises(CorruptDatasetError):
        read_parquet(bytes(content), "a file", ["y"])


GOOD = content_of(pa.table({"x": [1] * 100, "y": ["a"] * 100}))


@pytest.mark.parametrize("damaged", [b"", b"PAR1", GOOD[:-1], GOOD[:99], GOOD[:4] + b"\0" * 50 + GOOD[54:]])
def test_corrupt_files(tmp_path, damaged):
    with pytest.raises(CorruptDatasetError, match="a file"):
        read_parquet(damaged, "a file")
    path = tmp_path / "key.parquet"
    path.write_bytes(damaged)
    with pytest.raises(CorruptDatasetError, match=str(path)):
        read_parquet(str(path), str(path))
    with pytest.raises(CorruptDatasetError, match=r"'key\.parquet'"):
        ParquetSerializer.restore_dataframe(f"hfs://{tmp_path}", "key.parquet")


def test_names_in_footers_that_are_no_text(blobs):
    blobs.put("key.parquet", parquet_bytes(pa.table({"city": [1]})).replace(b"city", b"cit\xfe"))
    with pytest.raises(CorruptDatasetError, match=r"'key\.parquet'.* decode byte 0xfe"):
        read_footer(blobs, "key.parquet")


@pytest.mark.parametrize("columns", [None, ["x"]])
def test_double_columns(columns):
    content = parquet_bytes(pa.table([[1], [2]], names=["x", "x"]))
    with pytest.raises(CorruptDatasetError, match="more than once"):
        read_parquet(content, "a file", columns)


def test_times_that_nanoseconds_do_not_hold_are_read_as_microseconds():
    table = pa.table({"t": [datetime.datetime(9999, 1, 1)], "near": [datetime.datetime(2020, 1, 1)]})
    read = read_parquet(parquet_bytes(table), "a file")
    assert read.schema.types == [pa.timestamp("us"), pa.timestamp("ns")]
    assert read.to_pylist() == table.to_pylist()


def test_missing_files_keep_their_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_parquet(str(tmp_path / "zz.parquet"), "a file")


class Flaky(WrapperStore):
    """Fails some times before it answers."""

    def __init__(self, store, failures, error):
        super().__init__(store)
        self.failures, self.error, self.attempts = failures, error, 0

    def call(self, method, *args):
        if method in ("get", "open"):
            self.attempts += 1
            if self.attempts <= self.failures:
                raise self.error
        return super().call(method, *args)


@pytest.fixture
def pauses(monkeypatch):
    slept = []
    monkeypatch.setattr(clock, "sleep", slept.append)
    return slept


def test_failures_of_the_store_are_retried_until_they_last(blobs, pauses, caplog):
    key = ParquetSerializer().store(blobs, "key", pd.DataFrame({"x": [1]}))
    store = Flaky(blobs.store, 5, OSError("shaky line"))
    with caplog.at_level(logging.WARNING):
        assert ParquetSerializer.restore_dataframe(store, key)["x"].tolist() == [1]
    assert store.attempts == 6
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16])
    assert len([record for record in caplog.records if "shaky line" in record.getMessage()]) == 5
    pauses.clear()
    error = OSError("shaky line")
    with pytest.raises(ParquetReadError, match=r"'key\.parquet'.*6 attempts.*shaky line") as raised:
        ParquetSerializer.restore_dataframe(Flaky(blobs.store, 100, error), key)
    assert isinstance(raised.value, IOError)
    assert raised.value.__cause__ is error
    assert len(pauses) == parquet.MAX_NB_RETRIES - 1


@pytest.mark.parametrize("error", [KeyError("key"), ValueError("x")])
def test_other_failures_are_not_retried(blobs, pauses, error):
    store = Flaky(blobs.store, 1, error)
    with pytest.raises(type(error)):
        ParquetSerializer.restore_dataframe(store, "key.parquet")
    assert (store.attempts, pauses) == (1, [])


def test_int96_time_stamps_of_old_files():
    stamps = pa.array([0, 10**18], pa.timestamp("ns"))
    content = parquet_bytes(pa.table({"t": stamps}), use_deprecated_int96_timestamps=True)
    assert read_parquet(content, "a file")["t"].combine_chunks().equals(stamps)
    found = read_parquet(content, "a file", predicates=[[("t", ">", np.datetime64(0, "s"))]])
    assert found.num_rows == 1


def test_flipped_bits_are_no_data():
    table = pa.table({"x": [1, 2, 3, None], "y": ["a", "b", None, "d"]})
    content = content_of(table, ParquetSerializer(chunk_size=2))
    footer = int.from_bytes(content[-8:-4], "little") + 8
    found = 0
    for position in range(4, len(content) - footer):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        try:
            assert read_parquet(bytes(damaged), "a file").equals(table)
        except CorruptDatasetError:
            found += 1
    assert found > (len(content) - footer) / 2


@pytest.mark.parametrize("predicates", [None, [[("s", "==", "y" * 20)]], [[("s", "==", None)]]])
@pytest.mark.parametrize("columns", [None, ["v", "s"], ["v"]])
def test_files_of_others_may_have_views(predicates, columns):
    text, lists = ["x", "y" * 20, None], [[1], None, [2, 3]]
    views = {"s": pa.array(text, pa.string_view()), "v": lists}
    if int(pa.__version__.partition(".")[0]) >= 24:  # before, Arrow does not write them
        views["v"] = pa.array(lists, pa.list_view(pa.int64()))
    found, expected = (
        read_parquet(parquet_bytes(pa.table(values | {"i": [1, 2, 3]})), "a file", columns, predicates)
        for values in (views, {"s": text, "v": lists})
    )
    assert found.equals(expected)


#: microseconds is all that a file holds
STORABLE = sorted(set(KINDS) - {"timestamp_ns"})
INTEGERS = {"int8": "Int8", "int64": "Int64", "uint8": "UInt8", "uint64": "UInt64"}


@pytest.mark.slow("many random predicates")
@pytest.mark.parametrize("name", STORABLE)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_all_ways_to_filter_agree(name, data):
    names = [name, *data.draw(st.lists(st.sampled_from(STORABLE).filter(name.__ne__), max_size=1))]
    table = data.draw(tables(names))
    table = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    content = content_of(table, ParquetSerializer(chunk_size=2))
    for _ in range(3):
        predicates = data.draw(predicates_of(names))
        expected = brute_force(rows_of(table), predicates)
        found = read_parquet(content, "a file", ["row"], predicates)
        assert found["row"].to_pylist() == expected
        assert table.filter(tree_mask(table, to_tree(predicates)))["row"].to_pylist() == expected
        df = to_pandas(as_table(with_nullable_integers(table)), dates_as_object=True)
        assert filter_df_from_predicates(df, predicates)["row"].tolist() == expected


def with_nullable_integers(table):
    extensions = {name: INTEGERS[name] for name in table.column_names if name in INTEGERS}
    return table.cast(with_pandas_metadata(table.schema, extensions))


def test_nested_columns_beside_the_filter():
    table = pa.table({"x": [1, 2, 3], "l": [["a"], [], None], "x.l": [7, 8, 9]})
    content = content_of(table, ParquetSerializer(chunk_size=1))
    found = read_parquet(content, "a file", ["l", "x.l"], [[("x.l", ">", 7), ("x", "<", 3)]])
    assert found.to_pylist() == [{"l": [], "x.l": 8}]


@pytest.mark.parametrize("columns", [None, ["y", "x"], ["y"], ["x"], []])
@pytest.mark.parametrize("x, rows", [(15_000, 1), (20_000, 0)])
def test_large_files(columns, x, rows):
    df = pd.DataFrame({"y": np.arange(20_000) % 7, "x": np.arange(20_000), "z": "a"})
    content = content_of(as_table(df), ParquetSerializer(chunk_size=6_000))
    found = read_parquet(content, "a file", columns, [[("x", "==", x)]])
    expected = as_table(df).slice(x, rows).select(df.columns if columns is None else columns)
    assert found.num_rows == rows
    assert found.equals(expected)
