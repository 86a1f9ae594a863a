"""Copying of keys: what is copied, in which order, and what is refused."""

import pytest
from storefact import get_store_from_url

from kartothek_cube.testing import ILLEGAL_KEYS
from kartothek_cube.utils.store import copy_keys, copy_rename_keys
from tests.support.stores import CountingStore, FaultyStore, InjectedError, ReadOnlyStore

KEYS = ["d++s.by-dataset-metadata.json", "d++s/table/_common_metadata", "d++s/table/x=1/f.parquet"]


@pytest.fixture
def source():
    store = get_store_from_url("hmemory://")
    for key in KEYS:
        store.put(key, key.encode())
    return ReadOnlyStore(store)


@pytest.fixture
def target():
    return CountingStore(get_store_from_url("hmemory://"))


@pytest.mark.parametrize("wrap", [lambda store: store, lambda store: lambda: store], ids=["store", "factory"])
@pytest.mark.parametrize("collect", [list, set, iter], ids=lambda kind: kind.__name__)
def test_copy(source, target, wrap, collect):
    target.put(KEYS[1], b"old")
    copy_keys(collect(KEYS), wrap(source), wrap(target))
    assert sorted(target.keys()) == KEYS
    assert all(target.get(key) == key.encode() for key in KEYS)


def test_copy_between_urls(tmp_path):
    urls = [f"hfs://{tmp_path}/{name}?create_if_missing=true" for name in "ab"]
    get_store_from_url(urls[0]).put("d/f", b"1")
    copy_keys(["d/f"], *urls)
    assert (tmp_path / "b/d/f").read_bytes() == b"1"


def test_what_is_not_copied(source, target):
    copy_keys([], source, target)
    assert not target.counts
    with pytest.raises(KeyError, match="nothing"):
        copy_keys(["nothing"], source, target)
    assert target.keys() == []
    with pytest.raises(TypeError, match=r"d\+\+s"):
        copy_keys(KEYS[0], source, target)


@pytest.mark.parametrize("key", [*ILLEGAL_KEYS, None])
def test_illegal_key(source, target, key):
    for mapping in ({KEYS[0]: KEYS[0], key: "a"}, {KEYS[0]: key}):
        with pytest.raises(ValueError, match="illegal key"):
            copy_rename_keys(mapping, source, target, {})
    with pytest.raises(ValueError, match="illegal key"):
        copy_keys([*KEYS, key], source, target)
    assert not target.counts


def test_headers_come_last_in_the_order_given(target):
    store = get_store_from_url("hmemory://")
    headers = ["d++s.by-dataset-metadata.json", "d++a.by-dataset-metadata.msgpack.zstd"]
    keys = [*headers, "d++s/table/y=.by-dataset-metadata.json/f.parquet"]
    for key in keys:
        store.put(key, b"1")
    copy_keys(keys, store, target)
    assert [key for method, key in target.log if method == "put"] == [keys[2], *headers]


def test_failure_leaves_no_header(source, target):
    faulty = FaultyStore(target).fail("put", at=2)
    with pytest.raises(InjectedError):
        copy_keys(KEYS, source, faulty)
    assert KEYS[0] not in target


class Header:
    def to_json(self) -> bytes:
        return b"json"

    def to_msgpack(self) -> bytes:
        return b"msgpack"


@pytest.mark.parametrize("suffix, expected", [("json", b"json"), ("msgpack.zstd", b"msgpack")])
def test_rename(source, target, suffix, expected):
    new = f"e.by-dataset-metadata.{suffix}"
    mapping = {KEYS[0]: new, KEYS[2]: "e/table/f.parquet"}
    copy_rename_keys(mapping, source, target, {new: Header(), "other": Header()})
    assert target.get(new) == expected
    assert target.get("e/table/f.parquet") == KEYS[2].encode()
    assert len(target.keys()) == 2
