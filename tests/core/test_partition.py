import json
import pickle
from urllib.parse import unquote

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kartothek_cube.core import partition
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.naming import quote, quote_indices
from kartothek_cube.core.partition import Partition, PartitionTable

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def table_of(*labels: str) -> PartitionTable:
    return PartitionTable.from_labels("u", "table", labels)


def test_partition_knows_its_form_in_the_header():
    part = Partition("a", {"table": "u/table/a.parquet"}, metadata={"ignored": 1})
    assert part.to_dict() == {"files": {"table": "u/table/a.parquet"}}
    assert Partition.from_dict("a", part.to_dict()) == part
    assert Partition("a") == Partition("a", {}) != part
    assert part != "a"
    with pytest.raises(CorruptDatasetError, match="str, not dict"):
        Partition.from_dict("a", "u/table/a.parquet")


@pytest.mark.parametrize(
    "header, problem",
    [
        ([], "'partitions' is list, not dict"),
        (None, "'partitions' is NoneType"),
        ({1: {"files": {}}}, "label is int"),
        ({"a": "u/table/a.parquet"}, "entry is str"),
        ({"a": {}}, "no 'files'"),
        ({"a": {"files": ["u/table/a.parquet"]}}, "'files' is list"),
        ({"a": {"files": {"table": 1}}}, "storage key is int"),
        ({"a": {"files": {"table": None}}}, "storage key is NoneType"),
        ({"a": {"files": {1: "u/table/a.parquet"}}}, "table is int"),
        ({"a": {"files": {"table": "\ud800"}}}, "not Unicode"),
        ({"\ud800": {"files": {}}}, "not Unicode"),
        ({"a": {"files": {"x": "u/a"}}, "b": {"files": {"y": "u/b"}}}, r"different tables: \['x'\], \['y'\]"),
        ({"a": {"files": {"x": "u/x/a"}}, "b": {"files": {}}}, "different tables"),
    ],
)
def test_header_of_another_structure_is_refused(header, problem):
    with pytest.raises(CorruptDatasetError, match=problem) as caught:
        PartitionTable.from_header(header, "the key")
    assert caught.value.key == "the key"


@given(labels=st.lists(TEXTS, unique=True, max_size=4), tables=st.lists(TEXTS, unique=True, max_size=2))
@example(labels=['"', "\\", "\x7f", "ä", "\n"], tables=["table"])
@example(labels=["p=1/a", "b"], tables=["x", "y"])
def test_header_survives(labels, tables):
    header = {label: {"files": {table: f"u/{table}/{label}" for table in tables}} for label in labels}
    table = PartitionTable.from_header(header)
    assert table.to_header() == header
    assert list(table.to_header()) == list(header)
    assert table.to_json() == json.dumps(header)
    assert table == PartitionTable.from_partitions(table.to_partitions())
    assert [p.to_dict() for p in table.to_partitions().values()] == list(header.values())


def test_files_follow_from_labels():
    assert table_of("p=1/a").files["table"].to_pylist() == ["u/table/p=1/a.parquet"]
    for uuid, table in (("u/v", "table"), ("u", "..")):
        with pytest.raises(ValueError, match="cannot be"):
            PartitionTable.from_labels(uuid, table, ["a"])
    partitions = {"a": Partition("a", {"x": "u/x/a"}), "b": Partition("b", {"y": "u/y/b"})}
    with pytest.raises(ValueError, match="same tables"):
        PartitionTable.from_partitions(partitions)
    with pytest.raises(ValueError, match="exactly one file"):
        PartitionTable(["a", "b"], {"table": ["u/table/a.parquet"]})


@pytest.mark.parametrize("labels", [[1], [None], pa.array([None], pa.string())])
def test_labels_are_texts(labels):
    with pytest.raises(TypeError, match="have to be str"):
        PartitionTable(labels)


def test_equality_looks_at_everything():
    table = table_of("a", "b")
    assert table == table_of("a", "b")
    assert table != table_of("b", "a")
    assert table != PartitionTable(table.labels, {"table": ["u/table/a.parquet", "u/table/c.parquet"]})
    assert table != PartitionTable(table.labels)
    assert table != "table"
    assert PartitionTable.empty() == PartitionTable.empty(["table"])
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        table_of("a").labels = pa.array(["b"])


def test_pickles_hold_each_label_once():
    table = PartitionTable.from_labels("u", "table", [f"{i:032x}" for i in range(1000)])
    odd = PartitionTable(table.labels, {"table": [f"u/table/{i}" for i in range(1000)]})
    for original in (table, odd, table.take([3]), PartitionTable.empty(["table"])):
        assert pickle.loads(pickle.dumps(original)) == original
    assert len(pickle.dumps(table)) < 40_000
    assert len(pickle.dumps(PartitionTable(table.labels.slice(5, 1)))) < 1_000


def test_partitions_are_found_and_taken():
    table = table_of("a", "b", "c")
    assert table.positions(["c", "x", "a"]).tolist() == [2, -1, 0]
    assert table.positions(pa.chunked_array([["b"], []], pa.large_string())).tolist() == [1]
    assert table.positions(table.labels).tolist() == [0, 1, 2]
    assert table.take([2, 0]) == table_of("c", "a")
    assert table.take(np.array([1])) == table_of("b")
    assert table.filter(np.array([True, False, True])) == table_of("a", "c")
    assert table.filter(np.zeros(3, dtype=bool)) == PartitionTable.empty(["table"])


def test_tables_are_joined_in_order():
    table = table_of("a", "b")
    assert table.concat(table_of("c")) == table_of("a", "b", "c")
    assert table.concat(PartitionTable.empty()) is table
    assert PartitionTable.empty().concat(table) == table
    for other in (table_of("c", "b"), table_of("c", "c")):
        with pytest.raises(ValueError, match="unique"):
            table.concat(other)
    with pytest.raises(ValueError, match="different tables"):
        table.concat(PartitionTable.from_labels("u", "other", ["c"]))
    with pytest.raises(ValueError, match="occur twice: c"):
        PartitionTable.empty(["table"]).concat(table_of("c", "c"))


@pytest.mark.parametrize("key", ["v/table/a.parquet", "u/table/../../a", "u//a", "uv/t/a", "/u/t/a", "u.x"])
def test_files_outside_of_the_dataset_are_refused(key):
    table_of("a").check_owned("u")
    with pytest.raises(CorruptDatasetError) as caught:
        PartitionTable(["a", "b"], {"table": ["u/table/a.parquet", key]}).check_owned("u")
    assert caught.value.key == key


RANGE_OF_NANOSECONDS = (pd.Timestamp.min.ceil("D"), pd.Timestamp.max.floor("D"))
VALUES = {
    pa.string(): TEXTS,
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.binary(): st.binary(max_size=4),
    pa.date32(): st.dates(),
}
VALUES[pa.timestamp("ns")] = st.datetimes(*RANGE_OF_NANOSECONDS).map(pd.Timestamp)
ZONED = st.datetimes(*RANGE_OF_NANOSECONDS).map(lambda time: pd.Timestamp(time, tz="UTC"))
VALUES[pa.timestamp("ns", "Europe/Berlin")] = ZONED.map(lambda stamp: stamp.tz_convert("Europe/Berlin"))


@pytest.mark.parametrize("dtype", VALUES, ids=str)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_keys_survive_the_label(dtype, data):
    values = data.draw(st.lists(VALUES[dtype], max_size=5))
    labels = ["/".join([*quote_indices([("p ä", v), ("q", 1)]), f"{i}"]) for i, v in enumerate(values)]
    keys = table_of(*labels).keys(["p ä", "q"], pa.schema([("q", pa.int8()), ("p ä", dtype)]))
    assert keys["p ä"].equals(pa.array(values, dtype))
    encoded = partition.encode_component("p ä", pa.array(values, dtype)).to_pylist()
    assert encoded == [label.partition("/")[0] for label in labels]
    assert keys["q"].equals(pa.array([1] * len(values), pa.int64()))


@given(st.lists(st.text("%2057AaFcC3Bb+:/é\n ", max_size=8), max_size=6))
@example(["%20", "%2520", "%%2020", "%3a", "%C3%A4", "%", "%0A", "100%"])
def test_texts_are_unquoted_as_by_urllib(texts):
    try:
        expected = [unquote(text, errors="strict") for text in texts]
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):
            partition.unquote_texts(pa.array(texts, pa.string()))
    else:
        assert partition.unquote_texts(pa.array(texts, pa.string())).to_pylist() == expected


@given(st.lists(TEXTS, max_size=6))
@example(["", "a-b_c.d~e", "%41", "a b", "/"])
def test_texts_are_quoted_as_by_urllib(texts):
    column = pa.array(texts, pa.string())
    assert partition.quote_texts(column).to_pylist() == [quote(text) for text in texts]
    assert partition.unquote_texts(partition.quote_texts(column)).equals(column)


SCHEMA = pa.schema([("p", pa.int64()), ("q", pa.string())])


def test_keys_that_there_are_not():
    assert table_of("a", "x/y").keys([], None) == {}
    keys = PartitionTable.empty().keys(["q", "p"], SCHEMA)
    assert {column: values.type for column, values in keys.items()} == {"q": pa.string(), "p": pa.int64()}


@pytest.mark.parametrize("schema", [None, pa.schema([("q", pa.string())])])
def test_keys_need_a_type(schema):
    with pytest.raises(ValueError, match=r"type information .* unknown column p"):
        table_of("p=1/a").keys(["p"], schema)


def test_keys_are_found_in_another_order_and_in_paths_where_labels_do_not_tell_them():
    keys = table_of("q=x/p=1/a", "q=y/p=2/a").keys(["p", "q"], SCHEMA)
    assert {column: values.to_pylist() for column, values in keys.items()} == {"p": [1, 2], "q": ["x", "y"]}
    files = {"table": ["u/table/p=1/a.parquet", "u/table/p=2/b.parquet"]}
    assert PartitionTable(["a", "b"], files).keys(["p"], SCHEMA)["p"].to_pylist() == [1, 2]
    with pytest.raises(CorruptDatasetError, match="no value of type null"):
        table_of("p=1/a").keys(["p"], pa.schema([("p", pa.null())]))


@pytest.mark.parametrize(
    "bad",
    ["a", "p=1/a", "p=1/q=x/r=2/a", "p=1/q=x=y/a", "p=1/x/a", "q=x/p=1/a", "p=1/p=1/a", "p=1/r=x/a",
     "p=x/q=x/a", "p=1.5/q=x/a", "p=/q=x/a", "p=1/q=%ff/a", "%ff=1/q=x/a"],
)  # fmt: skip
def test_label_of_another_structure_is_named(bad):
    with pytest.raises(CorruptDatasetError) as caught:
        table_of("p=1/q=x/a", bad, "p=2/q=x/a").keys(["p", "q"], SCHEMA)
    assert caught.value.key == bad


@pytest.mark.parametrize("value", ["a/b", "d/e f", "/", "a//b"])
def test_slashes_that_kartothek_did_not_quote(value):
    table = PartitionTable.from_labels("u", "table", [f"p={value.replace(' ', '%20')}/q=1/f", "p=c/q=2/f"])
    keys = table.keys(["p", "q"], pa.schema([("p", pa.string()), ("q", pa.int64())]))
    assert keys["p"].to_pylist() == [value, "c"]
    assert keys["q"].to_pylist() == [1, 2]
