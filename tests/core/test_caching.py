"""What was parsed before: remembered by its bytes, within bounds."""

import json

import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.api.dataset import DatasetMetadata, ExplicitSecondaryIndex
from kartothek_cube.core.caching import CACHE, ParseCache, clear
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema import make_meta, schema_to_bytes
from kartothek_cube.core.store import open_blobs

LABELS = [f"p={i}/{i:032x}" for i in range(2_000)]


class Parser:
    """Parses numbers and counts how often."""

    def __init__(self) -> None:
        self.calls = 0
        self.cache: ParseCache = ParseCache(capacity=100)

    def __call__(self, key: str, content: bytes, size: int = 0) -> int:
        return self.cache.parse(key, content, self._parse, lambda parsed: size)

    def _parse(self, content: bytes) -> int:
        self.calls += 1
        return int(content)


def test_the_same_bytes_are_parsed_once():
    parse = Parser()
    assert [parse("a", b"1"), parse("a", b"1"), parse("b", b"1"), parse.calls] == [1, 1, 1, 2]
    parse = Parser()
    assert [parse("a", b"1"), parse("a", b"2"), parse("a", b"1"), parse.calls] == [1, 2, 1, 3]


def test_what_was_used_last_stays_if_it_fits():
    parse = Parser()
    for key in "abacab":  # each takes 40 of 100 bytes
        parse(key, b"1", size=39)
    assert parse.calls == 4  # a, b, c instead of b, b
    parse = Parser()
    for _ in range(2):
        parse("long", b"11", size=99)
        parse("right", b"11", size=98)
    assert parse.calls == 3


def test_clearing():
    parse = Parser()
    parse("a", b"1")
    parse.cache.clear()
    assert [parse("a", b"1"), parse.calls] == [1, 2]
    CACHE.put("key", b"1", 1, 28)
    clear()
    assert CACHE.parse("key", b"1", lambda content: 2, lambda parsed: 28) == 2


def test_indices_are_known_by_their_bytes():
    """One key in two stores, or an index that was written anew."""
    stores = [open_blobs("hmemory://") for _ in range(2)]
    loaded = []
    for number, blobs in enumerate(stores):
        index = ExplicitSecondaryIndex("x", {number: LABELS}, "u/indices/x/a.parquet", pa.int64())
        index.store(blobs, "u")
        loaded.append(index.unload().load(blobs).index_dct)
    assert [list(dct) for dct in loaded] == [[0], [1]]
    again = ExplicitSecondaryIndex("x", {7: LABELS[:1_000]}, dtype=pa.int64())
    again.index_storage_key = "u/indices/x/a.parquet"
    again.store(stores[0], "u")
    assert again.unload().load(stores[0]).index_dct == {7: LABELS[:1_000]}


# headers: by their bytes, never by their name alone

KEY = "u.by-dataset-metadata.json"


@pytest.fixture
def blobs():
    blobs = open_blobs("hmemory://")
    schema = make_meta(pd.DataFrame({"p": [1], "v": [1]}), origin="test", partition_keys=["p"])
    blobs.put("u/table/_common_metadata", schema_to_bytes(schema))
    return blobs


def store(blobs, labels, metadata):
    table = PartitionTable.from_labels("u", "table", labels)
    header = DatasetMetadata("u", partitions=table, metadata=metadata, partition_keys=["p"])
    blobs.put(KEY, header.to_json())


def test_a_changed_header_is_read_anew(blobs):
    store(blobs, LABELS, {"v": 1})
    assert DatasetMetadata.load_from_store("u", blobs).metadata["v"] == 1
    store(blobs, LABELS, {"v": 2})
    assert DatasetMetadata.load_from_store("u", blobs).metadata["v"] == 2
    store(blobs, LABELS[1:], {"v": 2})
    assert len(DatasetMetadata.load_from_store("u", blobs).partitions) == 1_999
    store(blobs, LABELS, {"v": {"w": [1]}})
    DatasetMetadata.load_from_store("u", blobs).metadata["v"]["w"].append(2)
    assert DatasetMetadata.load_from_store("u", blobs).metadata["v"] == {"w": [1]}


@pytest.mark.parametrize("n", [20, 2_000])
def test_what_callers_do_to_partitions_stays_with_them(blobs, n):
    store(blobs, LABELS[:n], {})
    dataset = DatasetMetadata.load_from_store("u", blobs)
    dataset.partitions.clear()
    dataset.partition_table.files.clear()
    again = DatasetMetadata.load_from_store("u", blobs)
    assert list(again.partitions) == LABELS[:n]
    assert again.key_columns()["p"] is dataset.key_columns()["p"]


def test_a_header_that_became_corrupt_is_refused(blobs):
    store(blobs, LABELS, {})
    DatasetMetadata.load_from_store("u", blobs)
    content = json.loads(blobs.get(KEY))
    content["partitions"][LABELS[0]]["files"]["table"] = "other/table/f.parquet"
    blobs.put(KEY, json.dumps(content).encode())
    with pytest.raises(CorruptDatasetError, match="other/table"):
        DatasetMetadata.load_from_store("u", blobs)
    blobs.delete([KEY])
    with pytest.raises(KeyError):
        DatasetMetadata.load_from_store("u", blobs)
