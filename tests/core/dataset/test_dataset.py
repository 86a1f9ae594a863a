import datetime
import itertools
import json
import pickle
from functools import partial
from typing import Any

import pandas as pd
import pandas.testing as pdt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.api import dataset as api
from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBuilder
from kartothek_cube.core.errors import CorruptDatasetError, DatasetNotFoundError
from kartothek_cube.core.header import unpackb
from kartothek_cube.core.index import ExplicitSecondaryIndex, PartitionIndex
from kartothek_cube.core.partition import Partition, PartitionTable
from kartothek_cube.core.schema import make_meta, store_schema_metadata
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.testing import TIME_TO_FREEZE, TIME_TO_FREEZE_ISO, cm_frozen_time
from tests.support.paths import DATA

GOLDEN = sorted((DATA / "golden" / "stores").glob("*/*.by-dataset-metadata.*"))
assert len(GOLDEN) > 100
DAY, NEXT_DAY = datetime.date(2020, 1, 31), datetime.date(2020, 2, 1)

LABELS = A, B, D = ["p=1/q=x/a", "p=2/q=x/a", "p=2/q=y/b"]
FILES = {label: {"files": {"table": f"u/table/{label}.parquet"}} for label in LABELS}
SCHEMA = make_meta(
    pa.schema([("p", pa.int64()), ("q", pa.string()), ("d", pa.date32()), ("v", pa.float64())]), origin="test"
)
HEADER = {
    "dataset_metadata_version": 4,
    "dataset_uuid": "u",
    "indices": {"v": "u/indices/v/1.by-dataset-index.parquet"},
    "metadata": {"creation_time": "2020-01-31T00:00:00", "ä": [1, None]},
    "partitions": FILES,
    "partition_keys": ["p", "q"],
}
CONTENT = json.dumps(HEADER).encode()
HEADER_KEY = "u.by-dataset-metadata.json"


def header(**parts: Any) -> dict[str, Any]:
    return {**HEADER, **parts}


def without(*parts: str) -> dict[str, Any]:
    return {part: value for part, value in HEADER.items() if part not in parts}


def v_index(**kwargs: Any) -> ExplicitSecondaryIndex:
    return ExplicitSecondaryIndex("v", {1.0: LABELS[:2], 2.0: [LABELS[2], LABELS[0]]}, **kwargs)


def dataset(**kwargs: Any) -> DatasetMetadata:
    arguments = {"partition_keys": ["p", "q"], "schema": SCHEMA, "indices": {"v": v_index()}, **kwargs}
    return DatasetMetadata("u", PartitionTable.from_labels("u", "table", LABELS), **arguments)


def stored(content: Any = HEADER, key: str = HEADER_KEY) -> BlobStore:
    """A store with a header, a schema and an index."""
    blobs = open_blobs("hmemory://")
    blobs.put(key, content if isinstance(content, bytes) else json.dumps(content).encode())
    store_schema_metadata(SCHEMA, "u", blobs)
    v_index(index_storage_key=HEADER["indices"]["v"]).store(blobs, "u")
    return blobs


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name.partition(".")[0])
def test_headers_of_kartothek_are_written_byte_by_byte(path):
    kind = "json" if path.suffix == ".json" else "msgpack"
    content = path.read_bytes()
    raw = json.loads(content) if kind == "json" else unpackb(content)
    ds = DatasetMetadata.from_buffer(content, kind, explicit_partitions="partitions" in raw)
    builder = DatasetMetadataBuilder.from_dataset(ds)
    if kind == "json":
        assert ds.to_json() == builder.to_json()[1] == content
    else:
        assert ds.to_msgpack() == builder.to_msgpack()[1] == content
    assert ds.to_dict() == raw and list(ds.to_dict()) == list(raw)


@pytest.mark.parametrize(
    "parts, left_out",
    [
        ({"indices": {}}, {"indices"}),
        ({"explicit_partitions": False, "partitions": {}, "indices": {}}, {"indices", "partitions"}),
        ({"partitions": {}}, set()),
        ({"extra": {"newer": {"deep": [1]}, "another": None}}, set()),
    ],
)
def test_parts_have_their_order_and_may_be_absent(parts, left_out):
    ds = DatasetMetadata.from_dict(HEADER).copy(**parts)
    order = [*HEADER, *parts.get("extra", {})]
    assert list(ds.to_dict()) == [part for part in order if part not in left_out]
    assert ds.to_json() == json.dumps(ds.to_dict()).encode("ascii")
    assert DatasetMetadataBuilder.from_dataset(ds).to_json()[1] == ds.to_json()
    assert unpackb(ds.to_msgpack()) == ds.to_dict()
    if "indices" not in parts:
        assert DatasetMetadata.from_buffer(ds.to_json()).to_dict() == ds.to_dict()


@pytest.mark.parametrize(
    "content, problem",
    [
        *((text, "no JSON") for text in (b"", b"\xff\xfe", b"[" * 100_000, CONTENT[:-1], CONTENT + b"}")),
        (b"[]", "a list, not an object"),
        (without("dataset_metadata_version"), "'dataset_metadata_version' is null"),
        (header(dataset_metadata_version=True), "'dataset_metadata_version' is a bool"),
        (header(dataset_metadata_version="4"), "'dataset_metadata_version' is a text"),
        (without("dataset_uuid"), "'dataset_uuid' is null"),
        (header(dataset_uuid=1), "'dataset_uuid' is an integer"),
        (header(dataset_uuid="u/v"), "cannot be a dataset uuid"),
        (header(dataset_uuid="other"), "'dataset_uuid' is 'other', not 'u'"),
        (header(metadata=[]), "'metadata' is a list, not an object"),
        (header(metadata=None), "'metadata' is null"),
        (header(partition_keys="p"), "'partition_keys' is a text, not a list"),
        (header(partition_keys=["p", 1]), "'partition_keys' holds 1"),
        (header(partition_keys=["p", "p"]), "'partition_keys' has duplicates"),
        (header(indices=[]), "'indices' is a list"),
        (header(indices={"v": 1}), "index of 'v' is an integer"),
        (header(indices={"v": {"1.0": "label"}}), "list of labels is str"),
        (header(indices={"v": {"1.0": [1]}}), "label is int"),
        (header(partitions=[]), "'partitions' is list"),
        (header(partitions={"a": {"files": {"table": 1}}}), "storage key is int"),
    ],
)
def test_damaged_headers_are_refused(content, problem):
    with pytest.raises(CorruptDatasetError, match=problem) as caught:
        DatasetMetadata.load_from_store("u", stored(content))
    assert caught.value.key == HEADER_KEY


@pytest.mark.parametrize("version", [0, 3, 5])
def test_other_versions_are_not_read_and_not_written(version):
    with pytest.raises(NotImplementedError, match=f"version {version} is not supported"):
        DatasetMetadata.load_from_store("u", stored(header(dataset_metadata_version=version)))
    ds = DatasetMetadata("u", metadata_version=version)
    for write in (ds.to_json, ds.to_msgpack):
        with pytest.raises(NotImplementedError, match=f"version {version} is not supported"):
            write()
    with pytest.raises(NotImplementedError, match=f"version {version} is not supported"):
        DatasetMetadataBuilder("u", metadata_version=version)


@pytest.mark.parametrize(
    "key", ["other/table/a.parquet", "u/table/../../a", "/etc/passwd", "other.v.by-dataset-index.parquet"]
)
def test_foreign_files_are_refused(key):
    for bad in (header(partitions={"a": {"files": {"table": key}}}), header(indices={"v": key})):
        for load in (
            lambda content: DatasetMetadata.load_from_store("u", stored(content)),
            lambda content: DatasetMetadata.load_from_dict(content, stored()),
            lambda content: DatasetMetadata.load_from_buffer(json.dumps(content), stored()),
        ):
            with pytest.raises(CorruptDatasetError, match="damaged") as caught:
                load(bad)
            assert caught.value.key == key


@pytest.mark.parametrize(
    "load", [DatasetMetadata.from_buffer, lambda b, f: DatasetMetadata.load_from_buffer(b, stored(), f)]
)
def test_unknown_formats_are_refused(load):
    with pytest.raises(ValueError, match="'xml'"):
        load(b"{}", "xml")


def test_illegal_uuids_are_refused():
    load = partial(DatasetMetadata.load_from_store, store="hmemory://")
    for make in (DatasetMetadata, DatasetMetadataBuilder, load):
        with pytest.raises(ValueError, match="cannot be a dataset uuid"):
            make("u/v")


def test_datasets_know_when_they_were_created():
    given_metadata = {"k": 1}
    with cm_frozen_time(TIME_TO_FREEZE):
        ds = DatasetMetadata("u", metadata=given_metadata)
        builder = DatasetMetadataBuilder("u")
    assert ds.metadata == {"k": 1, "creation_time": TIME_TO_FREEZE_ISO}
    assert builder.metadata == {"creation_time": TIME_TO_FREEZE_ISO}
    assert given_metadata == {"k": 1}
    assert ds.copy(metadata={"creation_time": "then"}).metadata == {"creation_time": "then"}


def test_attributes_and_copies():
    ds = dataset()
    assert list(ds.partitions) == LABELS
    assert ds.partitions[LABELS[0]] == Partition(LABELS[0], FILES[LABELS[0]]["files"])
    assert ds.partitions is ds.partitions
    assert ds.index_columns == {"p", "q", "v"}
    assert ds.secondary_indices == {"v": v_index()}
    assert (ds.tables, ds.table_name) == (["table"], "table")
    assert not ds.primary_indices_loaded and ds.load_partition_indices().primary_indices_loaded
    assert not DatasetMetadata("u").primary_indices_loaded
    assert repr(ds) == (
        "DatasetMetadata(uuid=u, tables=['table'], partition_keys=['p', 'q'], metadata_version=4, "
        "indices=['v'], explicit_partitions=True)"
    )
    assert DatasetMetadata("u").tables == []
    assert DatasetMetadata("u", schema=SCHEMA, table_name="t").tables == ["t"]
    assert DatasetMetadata("u", {"a": Partition("a", {"y": "u/y/a", "x": "u/x/a"})}).tables == ["x", "y"]
    assert DatasetMetadata("u", {"a": Partition("a", {"core": "u/core/a"})}).table_name == "core"
    ds = dataset(extra={"newer": 1}, table_schemas={"table": SCHEMA})
    assert ds.copy(schema=None).key_columns()["p"].to_pylist() == [1, 2, 2]
    assert ds.copy().extra == {"newer": 1}
    assert ds.copy().partition_table is ds.partition_table


@pytest.mark.parametrize(
    "dataset, expected",
    [(DatasetMetadata("u", schema=SCHEMA, table_name="t"), {"t": SCHEMA}), (DatasetMetadata("u"), {})],
)
def test_table_meta_is_deprecated(dataset, expected):
    with pytest.warns(DeprecationWarning, match="use schema") as caught:
        assert dataset.table_meta == expected
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "change, equal",
    [
        ({}, True),
        ({"metadata_version": 3}, True),
        ({"uuid": "w"}, False),
        ({"schema": None}, False),
        *(({part: {}}, False) for part in ("partitions", "metadata", "indices")),
        ({"explicit_partitions": False}, False),
        ({"partition_keys": ["q", "p"]}, False),
    ],
)
def test_equality_leaves_out_the_version(change, equal):
    ds = dataset(metadata={"k": 1, "creation_time": "then"})
    assert (ds == ds.copy(**change)) is equal
    assert ds != "u"


def test_datasets_are_small_when_pickled():
    labels = [f"KLEE_TS=2020-01-01%2000%3A00%3A00/p={i}/{i:032x}" for i in range(1000)]
    table = PartitionTable.from_labels("u", "table", labels)
    index = ExplicitSecondaryIndex("v", {float(i): [label] for i, label in enumerate(labels)})
    ds = dataset(indices={"v": index}).copy(partitions=table, partition_keys=["KLEE_TS", "p"], schema=None)
    assert pickle.loads(pickle.dumps(ds)) == ds
    assert len(pickle.dumps(ds)) < 200_000


def test_datasets_are_loaded():
    ds = DatasetMetadata.load_from_store("u", stored())
    assert ds.schema == SCHEMA and ds.schema.origin == {"u/table/_common_metadata"}
    assert ds.to_dict() == HEADER
    assert not ds.indices["v"].loaded and ds.indices["v"].dtype == pa.float64()
    assert ds == DatasetMetadata.load_from_dict(HEADER, stored())
    assert ds == DatasetMetadata.load_from_buffer(CONTENT, stored())
    plain = DatasetMetadata.load_from_store("u", stored(), load_schema=False)
    assert plain == DatasetMetadata.from_dict(HEADER)
    loaded = DatasetMetadata.load_from_store("u", stored(), load_all_indices=True)
    assert all(index.loaded for index in loaded.indices.values()) and set(loaded.indices) == {"p", "q", "v"}


def test_json_comes_before_msgpack_and_there_is_no_dataset_without_both(store):
    blobs = open_blobs(store)
    assert not DatasetMetadata.exists("u", store)
    with pytest.raises(DatasetNotFoundError, match=r"u.by-dataset-metadata.json.*u.*metadata.msgpack.zstd"):
        DatasetMetadata.load_from_store("u", store)
    msgpack_key = "u.by-dataset-metadata.msgpack.zstd"
    blobs.put(msgpack_key, DatasetMetadata("u", metadata={"format": "msgpack"}).to_msgpack())
    load = DatasetMetadata.load_from_store
    assert load("u", store, load_schema=False).metadata["format"] == "msgpack"
    assert DatasetMetadata.exists("u", store)
    blobs.put(HEADER_KEY, DatasetMetadata("u", metadata={"format": "json"}).to_json())
    assert load("u", store, load_schema=False).metadata["format"] == "json"


def test_what_is_missing_or_damaged_is_named():
    blobs = stored()
    blobs.delete(["u/table/_common_metadata"])
    with pytest.raises(KeyError, match="u/table/_common_metadata"):
        DatasetMetadata.load_from_store("u", blobs)
    blobs = open_blobs("hmemory://")
    blobs.put("u.by-dataset-metadata.msgpack.zstd", DatasetMetadata("u").to_msgpack()[:-1])
    with pytest.raises(CorruptDatasetError, match="no msgpack"):
        DatasetMetadata.load_from_store("u", blobs)


def test_storage_keys_are_those_of_this_dataset_only(store):
    blobs = open_blobs(store)
    ours = [HEADER_KEY, "u/indices/v/1", "u/table/_common_metadata", "u/table/p=1/a.parquet"]
    others = ["u2.by-dataset-metadata.json", "u2/table/a", "u+/table/a", "u++x/table/a", "v/table/a"]
    for key in ours + others:
        blobs.put(key, b"")
    assert DatasetMetadata.storage_keys("u", store) == sorted(ours)
    with pytest.raises(ValueError, match="cannot be a dataset uuid"):
        DatasetMetadata.storage_keys("", store)


def put_schemas(blobs: BlobStore, *tables: str) -> BlobStore:
    for table in tables:
        store_schema_metadata(SCHEMA, "u", blobs, table)
    return blobs


TWO_TABLES = header(
    indices={}, partitions={"p=1/q=x/a": {"files": {t: f"u/{t}/p=1/q=x/a.parquet" for t in ("one", "two")}}}
)


def test_one_of_several_tables_may_be_chosen():
    blobs = put_schemas(stored(TWO_TABLES), "one", "two")
    ds = DatasetMetadata.load_from_store("u", blobs)
    assert (ds.tables, ds.schema) == (["one", "two"], None)
    assert ds.load_all_indices(blobs).query(p=1) == ["p=1/q=x/a"]
    chosen = DatasetMetadata.load_from_store("u", blobs, table_name="two")
    assert (chosen.table_name, chosen.schema) == ("two", SCHEMA)
    assert DatasetMetadata.load_from_store("u", blobs, load_schema=False, table_name="two").schema is None
    with pytest.raises(ValueError, match="unknown table three"):
        DatasetMetadata.load_from_store("u", blobs, table_name="three")


@pytest.mark.parametrize("listed", [True, False])
def test_tables_of_datasets_without_partitions_are_found(listed, store):
    content = header(partitions={}, indices={}) if listed else without("partitions", "indices")
    blobs = open_blobs(store)
    blobs.put(HEADER_KEY, json.dumps(content).encode())
    blobs.put("u/notes.txt", b"")
    blobs.put("u/indices/v/1", b"")
    with pytest.raises(KeyError, match="u/table/_common_metadata"):
        DatasetMetadata.load_from_store("u", blobs)
    put_schemas(blobs, "one")
    ds = DatasetMetadata.load_from_store("u", blobs)
    assert (ds.tables, ds.table_name, ds.explicit_partitions) == (["one"], "one", listed)
    put_schemas(blobs, "two")
    assert DatasetMetadata.load_from_store("u", blobs).schema is None
    put_schemas(blobs, "table")
    assert DatasetMetadata.load_from_store("u", blobs).table_name == "table"


def implicit(*keys: str, **parts: Any) -> BlobStore:
    blobs = stored({**without("partitions", "indices"), **parts})
    for key in keys:
        blobs.put(key, b"")
    return blobs


def test_files_tell_the_partitions_where_the_header_does_not():
    others = ["u/table/p=1/q=x/notes.txt", "u/table/_SUCCESS", "u/file.parquet", "u2/table/p=1/q=x/z.parquet"]
    others.append("u/indices/v/2.by-dataset-index.parquet")
    blobs = implicit("u/table/p=2/q=b%20c/a.parquet", "u/table/p=1/q=x/a.parquet", *others)
    ds = DatasetMetadata.load_from_store("u", blobs)
    assert not ds.explicit_partitions
    files = {label: {"table": f"u/table/{label}.parquet"} for label in ("p=1/q=x/a", "p=2/q=b%20c/a")}
    assert ds.partitions == {label: Partition(label, keys) for label, keys in files.items()}
    assert ds.load_partition_indices().query(q="b c") == ["p=2/q=b%20c/a"]
    assert list(ds.to_dict()["partitions"]) == list(ds.partitions)
    blobs = implicit("u/x/p=1/q=x/b.parquet", "u/x/p=1/q=x/a.parquet", "u/y/p=1/q=x/a.parquet")
    ds = DatasetMetadata.load_from_store("u", put_schemas(blobs, "x"))
    files = {table: f"u/{table}/p=1/q=x/a.parquet" for table in "xy"}
    assert ds.partitions == {"p=1/q=x/a": Partition("p=1/q=x/a", files)}


def test_partition_keys_that_the_header_lacks_are_told_by_files_and_labels():
    blobs = stored(without("partitions", "indices", "partition_keys"))
    assert DatasetMetadata.load_from_store("u", blobs).partition_keys == []
    blobs.put("u/table/q%20=x/p=1/a.parquet", b"")
    assert DatasetMetadata.load_from_store("u", blobs).partition_keys == ["q ", "p"]
    ds = DatasetMetadata.load_from_store("u", stored(without("partition_keys")))
    assert ds.partition_keys == ["p", "q"]
    assert ds.load_partition_indices().query(p=2, q="y") == [LABELS[2]]
    empty = stored({**without("partition_keys", "indices"), "partitions": {}})
    assert DatasetMetadata.load_from_store("u", empty).partition_keys == []
    with pytest.raises(RuntimeError, match=r"'u'.*: p=1/b, p=1/q=x/a"):
        DatasetMetadata.load_from_store("u", implicit("u/table/p=1/q=x/a.parquet", "u/table/p=1/b.parquet"))


def test_indices_forget_partitions_that_are_gone():
    blobs = implicit(f"u/table/{LABELS[0]}.parquet", indices=HEADER["indices"])
    index = DatasetMetadata.load_from_store("u", blobs).load_index("v", blobs).indices["v"]
    assert index.index_dct == {1.0: LABELS[:1], 2.0: LABELS[:1]}
    assert index.index_storage_key == HEADER["indices"]["v"]


def test_partition_indices_come_from_the_labels():
    ds = dataset().load_partition_indices()
    assert ds.indices["p"] == PartitionIndex("p", {1: LABELS[:1], 2: LABELS[1:]}, dtype=pa.int64())
    assert ds.indices["q"] == PartitionIndex("q", {"x": LABELS[:2], "y": LABELS[2:]}, dtype=pa.string())
    assert ds.load_partition_indices() is ds
    assert set(dataset().indices) == {"v"}
    unpartitioned = DatasetMetadata("u")
    assert unpartitioned.load_partition_indices() is unpartitioned
    indices = dataset().copy(partitions={}).load_partition_indices().indices
    assert (indices["p"].dtype, indices["p"].index_dct) == (pa.int64(), {})
    with pytest.raises(ValueError, match="unknown column p"):
        dataset(schema=None).load_partition_indices()


def test_indices_are_loaded_one_by_one():
    blobs = stored()
    ds = DatasetMetadata.load_from_store("u", blobs)
    loaded = ds.load_index("v", blobs)
    assert loaded.indices["v"].index_dct == v_index().index_dct
    assert not ds.indices["v"].loaded
    assert loaded.load_index("v", "hmemory://") is loaded
    assert set(ds.load_index("p", "hmemory://").indices) == {"p", "q", "v"}
    with pytest.raises(KeyError, match=r"unknown index column zz.*available: p, q, v"):
        ds.load_index("zz", blobs)
    with pytest.raises(KeyError, match="u/indices/v/1"):
        ds.load_index("v", "hmemory://")
    ds = dataset(indices={"v": ExplicitSecondaryIndex("v", index_storage_key="other/indices/v/1")})
    with pytest.raises(CorruptDatasetError):
        ds.load_index("v", stored())


def test_indices_of_early_versions_are_read_and_inline_ones_are_text_without_schema():
    key = "u.v.by-dataset-index.parquet"
    blobs = stored(header(indices={"v": key}))
    v_index(index_storage_key=HEADER["indices"]["v"]).store(blobs, "u")
    blobs.put(key, blobs.get(HEADER["indices"]["v"]))
    ds = DatasetMetadata.load_from_store("u", blobs).load_index("v", blobs)
    assert ds.query(v=2.0) == [LABELS[0], LABELS[2]]
    index = DatasetMetadata.from_dict(header(indices={"v": {"1": ["a"]}})).indices["v"]
    assert index == ExplicitSecondaryIndex("v", {"1": ["a"]}, dtype=pa.string())


@pytest.mark.parametrize(
    "column, dct",
    [
        ("v", {1.0: ["a"], -0.5: ["b"]}),
        ("q", {"ä": ["a"]}),
        ("d", {DAY: ["a"], NEXT_DAY: ["b"]}),
        ("p", {-1: ["a"]}),
        ("t", {pd.Timestamp("2020-01-31 12:00:00.000001"): ["a"]}),
        ("b", {True: ["a"], False: ["b"]}),
        ("y", {b"\xc3\xa4": ["a"]}),
    ],
)
def test_inline_indices_survive(column, dct):
    dtypes = {"t": pa.timestamp("ns"), "b": pa.bool_(), "y": pa.binary()}
    schema = SCHEMA.internal().remove_metadata()
    for name, dtype in dtypes.items():
        schema = schema.append(pa.field(name, dtype))
    blobs = open_blobs("hmemory://")
    store_schema_metadata(make_meta(schema, origin="test"), "u", blobs)
    index = ExplicitSecondaryIndex(column, dct, dtype=schema.field(column).type)
    ds = DatasetMetadata("u", indices={column: index})
    for kind, content in (("json", ds.to_json()), ("msgpack", ds.to_msgpack())):
        assert DatasetMetadata.load_from_buffer(content, blobs, kind).indices == {column: index}
    assert ds.to_dict()["indices"][column] == index.to_dict()


@pytest.mark.parametrize(
    "query, expected",
    [
        ({}, LABELS),
        ({"p": 2}, LABELS[1:]),
        ({"p": "2", "q": "x"}, LABELS[1:2]),
        ({"v": 2}, [LABELS[0], LABELS[2]]),
        ({"v": 2.0, "p": 1}, LABELS[:1]),
        ({"v": 17.0}, []),
        ({"zz": 1}, LABELS),
        ({"zz": 1, "q": "y"}, LABELS[2:]),
    ],
)
def test_query_intersects_in_the_order_of_commit(query, expected):
    assert dataset().load_partition_indices().query(**query) == expected


def test_query_uses_other_indices_too():
    ds = dataset().load_partition_indices()
    w = ExplicitSecondaryIndex("w", {1: [LABELS[2], "unknown", LABELS[0]]})
    assert ds.query([w], w=1) == [LABELS[0], LABELS[2]]
    assert ds.query(indices=[w], w=1, p=2) == [LABELS[2]]
    assert ds.query([ExplicitSecondaryIndex("p", {2: LABELS[:1]})], p=2) == LABELS[:1]
    assert ds.query([ExplicitSecondaryIndex("w", index_storage_key="not loaded")], w=1) == LABELS
    assert dataset().query(p=1) == LABELS  # partition indices are not loaded


def frame(rows: list[tuple[Any, ...]], columns: list[str]) -> pd.DataFrame:
    data = pd.DataFrame([row[1:] for row in rows], columns=columns)
    return data.set_index(pd.Index([row[0] for row in rows], name="partition"))


@pytest.mark.parametrize(
    "columns, predicates, expected",
    [
        (None, None, [(A, 1, "x", 1.0), (A, 1, "x", 2.0), (B, 2, "x", 1.0), (D, 2, "y", 2.0)]),
        (["q", "p"], None, [(A, "x", 1), (B, "x", 2), (D, "y", 2)]),
        (["p", "p"], [[("q", "==", "y")]], [(D, 2)]),
        (["p"], [[("zz", "==", 1)]], [(A, 1), (B, 2), (D, 2)]),
        (["p"], [[("zz", "==", 1), ("p", "==", 1)], [("q", "==", "y")]], [(A, 1), (D, 2)]),
        (["v"], [[("v", "==", 17.0)]], []),
    ],
)
def test_indices_as_frame(columns, predicates, expected):
    names = ["p", "q", "v"] if columns is None else list(dict.fromkeys(columns))
    found = dataset().get_indices_as_dataframe(columns, predicates=predicates)
    typed = dict.fromkeys(("check_dtype", "check_index_type"), bool(expected))
    pdt.assert_frame_equal(found, frame(expected, names), **typed)


def test_frames_without_columns_or_partitions():
    found = dataset().get_indices_as_dataframe([])
    assert (found.index.tolist(), found.index.name, list(found.columns)) == (LABELS, "partition", [])
    found = dataset().get_indices_as_dataframe([], predicates=[[("q", "==", "y")]])
    assert found.index.tolist() == LABELS[2:]
    found = dataset().copy(partitions={}).get_indices_as_dataframe(["p", "v"], predicates=[[("p", "==", 1)]])
    assert found.dtypes.map(str).to_dict() == {"p": "int64", "v": "float64"} and len(found) == 0
    assert len(DatasetMetadata("u").get_indices_as_dataframe([])) == 0


@pytest.mark.parametrize("as_object, kind", [(True, "object"), (False, "datetime64[ns]")])
def test_dates_in_frames(as_object, kind):
    ds = dataset(indices={"d": ExplicitSecondaryIndex("d", {DAY: LABELS[:1]})})
    found = ds.get_indices_as_dataframe(["d"], date_as_object=as_object)["d"]
    assert found.dtype == kind and found.tolist() == [DAY if as_object else pd.Timestamp(DAY)]


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ({"columns": ["p", "zz"]}, ValueError, r"unknown index column zz.*available: p, q, v, w"),
        ({"columns": ["w"]}, RuntimeError, "not loaded: w"),
        ({}, RuntimeError, "not loaded: w"),
        ({"columns": "p"}, TypeError, "list of columns, not 'p'"),
        ({"columns": ["p"], "predicates": []}, ValueError, "Empty predicates"),
        ({"columns": ["p"], "predicates": [[("p", "==", "1")]]}, TypeError, "'p'"),
    ],
)
def test_impossible_frames_are_refused(arguments, error, match):
    w = ExplicitSecondaryIndex("w", index_storage_key="u/indices/w/1")
    with pytest.raises(error, match=match):
        dataset(indices={"v": v_index(), "w": w}).get_indices_as_dataframe(**arguments)


NAMES = st.lists(st.sampled_from(["a", "b", "c", "not a partition"]), min_size=1, unique=True)
DICTS = st.dictionaries(st.integers(0, 3), NAMES, max_size=4)
COLUMNS, OPERATORS = st.sampled_from(["x", "y", "z", "other"]), st.sampled_from(["==", "!=", "<", ">="])
LITERALS = st.tuples(COLUMNS, OPERATORS, st.integers(0, 3))
PREDICATES = st.none() | st.lists(st.lists(LITERALS, min_size=1, max_size=3), min_size=1, max_size=3)
COMPARE = {"==": int.__eq__, "!=": int.__ne__, "<": int.__lt__, ">=": int.__ge__}


@given(st.tuples(DICTS, DICTS, DICTS), st.permutations("xyz"), st.integers(0, 3), PREDICATES)
@settings(max_examples=100, deadline=None)
def test_frames_are_the_join_of_the_indices(dicts, columns, n, predicates):
    held = dict(zip("xyz", dicts))
    indices = {c: ExplicitSecondaryIndex(c, dct, dtype=pa.int64()) for c, dct in held.items()}
    ds = DatasetMetadata("u", {label: Partition(label) for label in "abc"}, indices=indices)
    wanted = columns[:n]

    def met(label: str, row: tuple[int, ...], literal: tuple[str, str, int]) -> bool:
        column, op, value = literal
        if column in wanted:
            return COMPARE[op](row[wanted.index(column)], value)
        if column not in held:
            return True
        return any(label in labels for v, labels in held[column].items() if COMPARE[op](v, value))

    expected = [
        (label, *row)
        for label in "abc"
        for row in itertools.product(*(sorted(v for v, ls in held[c].items() if label in ls) for c in wanted))
        if predicates is None
        or any(all(met(label, row, lit) for lit in conjunction) for conjunction in predicates)
    ]
    found = ds.get_indices_as_dataframe(wanted, predicates=predicates)
    assert list(found.columns) == list(wanted)
    assert list(found.itertuples(name=None)) == expected


def test_builder_builds_headers():
    with cm_frozen_time(TIME_TO_FREEZE):
        builder = DatasetMetadataBuilder("u", partition_keys=["p"], schema=SCHEMA)
    builder.add_partition("p=1/a", Partition("p=1/a", {"table": "u/table/p=1/a.parquet"}))
    builder.add_metadata("k", 1)
    builder.add_embedded_index("v", ExplicitSecondaryIndex("v", {1.0: ["p=1/a"]}))
    assert builder.add_external_index("q") == "u.q.by-dataset-index.parquet"
    assert builder.add_external_index("d", "u/indices/d/1") == "u/indices/d/1"
    expected = {
        "dataset_metadata_version": 4,
        "dataset_uuid": "u",
        "indices": {"v": {1.0: ["p=1/a"]}, "q": "u.q.by-dataset-index.parquet", "d": "u/indices/d/1"},
        "metadata": {"creation_time": TIME_TO_FREEZE_ISO, "k": 1},
        "partitions": {"p=1/a": {"files": {"table": "u/table/p=1/a.parquet"}}},
        "partition_keys": ["p"],
    }
    assert builder.to_dict() == expected and list(builder.to_dict()) == list(expected)
    key, content = builder.to_json()
    assert (key, content) == (HEADER_KEY, json.dumps(expected).encode())
    msgpack_key, packed = builder.to_msgpack()
    assert (msgpack_key, unpackb(packed)) == ("u.by-dataset-metadata.msgpack.zstd", json.loads(content))
    ds = builder.to_dataset()
    assert isinstance(ds, DatasetMetadata) and ds.to_dict() == expected and ds.schema == SCHEMA
    with pytest.raises(RuntimeError, match="'v' as that of column 'w'"):
        builder.add_embedded_index("w", v_index())


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ({}, ["metadata", "partitions"]),
        ({"partition_keys": []}, ["metadata", "partitions", "partition_keys"]),
        ({"explicit_partitions": False, "partition_keys": ["p"]}, ["metadata", "partition_keys"]),
    ],
)
def test_flags_decide_what_a_builder_writes(arguments, parts):
    builder = DatasetMetadataBuilder("u", **arguments)
    assert list(builder.to_dict()) == ["dataset_metadata_version", "dataset_uuid", *parts]
    assert list(json.loads(builder.to_json()[1])) == list(builder.to_dict())


def test_builders_leave_their_dataset_alone():
    ds = DatasetMetadata.from_dict(header(metadata={"creation_time": "then", "deep": {"k": 1}}))
    builder = DatasetMetadataBuilder.from_dataset(ds)
    assert builder.to_dataset() == ds
    builder.metadata["deep"]["k"] = 2
    builder.partitions[LABELS[0]].files["table"] = "elsewhere"
    del builder.partitions[LABELS[1]]
    builder.indices.clear()
    assert list(builder.to_dict()["partitions"]) == [LABELS[0], LABELS[2]]
    assert builder.to_dict()["partitions"][LABELS[0]]["files"] == {"table": "elsewhere"}
    assert ds.to_dict() == header(metadata={"creation_time": "then", "deep": {"k": 1}})


def test_builders_rename_the_prefix_only():
    label = "p=u/q=u/u"
    old = header(partitions={label: {"files": {"table": f"u/table/{label}.parquet"}}})
    old["indices"] = {"v": "u/indices/u/1.by-dataset-index.parquet", "u": "u.u.by-dataset-index.parquet"}
    builder = DatasetMetadataBuilder.from_dataset(DatasetMetadata.from_dict(old))
    assert builder.modify_uuid("w") is builder
    new = builder.to_dict()
    assert new["partitions"] == {label: {"files": {"table": f"w/table/{label}.parquet"}}}
    indices = {"v": "w/indices/u/1.by-dataset-index.parquet", "u": "w.u.by-dataset-index.parquet"}
    assert new["indices"] == indices
    assert new == {**old, "partitions": new["partitions"], "indices": indices, "dataset_uuid": "w"}
    with pytest.raises(ValueError, match="cannot be a dataset uuid"):
        builder.modify_uuid("w/")


@pytest.mark.parametrize("table", ["table", "core"])
@pytest.mark.parametrize("emptied", [False, True])
def test_headers_have_the_schema_of_a_file_that_is_gone(table, emptied):
    store = open_blobs("hmemory://")
    df = pd.DataFrame({"p": [1], "x": [1.5]})
    api.store_dataframes_as_dataset(store, "u", [df], partition_on="p", table_name=table)
    if emptied:
        api.update_dataset_from_dataframes([], store, "u", delete_scope=[{}], table_name=table)
    expected = DatasetMetadata.load_from_store("u", store)
    store.delete([f"u/{table}/_common_metadata"])
    found = [DatasetMetadata.load_from_store("u", store, table_name=table)]
    if not emptied or table == "table":
        found += [DatasetMetadata.load_shared("u", store), DatasetMetadata.load_from_store("u", store)]
    for ds in found:
        assert (ds.table_name, ds.schema.origin) == (table, {f"u/{table}/_common_metadata"})
        assert ds.schema.equals(expected.schema)


@pytest.mark.parametrize("emptied", [False, True])
def test_headers_have_a_schema_that_the_file_has_no_more(emptied):
    """Several other commits may replace the file between the reads of the header and of the schema."""
    store = open_blobs("hmemory://")
    api.store_dataframes_as_dataset(store, "u", [pd.DataFrame({"x": [1]})])
    if emptied:
        api.delete_dataset_rows("u", store, predicates="all")
    content = store.get(HEADER_KEY)
    for number in range(12):
        api.update_dataset_schema("u", store, add={f"s{number}": "int64"})
    store.put(HEADER_KEY, content)
    assert DatasetMetadata.load_from_store("u", store).schema.names == ["x"]
    for _ in range(2):
        assert DatasetMetadata.load_shared("u", store).schema.names == ["x"]
