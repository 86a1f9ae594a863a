"""What was parsed before: remembered by its bytes, within bounds."""

import pyarrow as pa

from kartothek_cube.core.caching import CACHE, ParseCache, clear
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.store import open_blobs


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
    labels = [f"p={i}/{i:032x}" for i in range(2_000)]
    stores = [open_blobs("hmemory://") for _ in range(2)]
    loaded = []
    for number, blobs in enumerate(stores):
        index = ExplicitSecondaryIndex("x", {number: labels}, "u/indices/x/a.parquet", pa.int64())
        index.store(blobs, "u")
        loaded.append(index.unload().load(blobs).index_dct)
    assert [list(dct) for dct in loaded] == [[0], [1]]
    again = ExplicitSecondaryIndex("x", {7: labels[:1_000]}, dtype=pa.int64())
    again.index_storage_key = "u/indices/x/a.parquet"
    again.store(stores[0], "u")
    assert again.unload().load(stores[0]).index_dct == {7: labels[:1_000]}
