from __future__ import annotations

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.core.header import codec
from kartothek_cube.core.header.codec import packb, unpackb
from kartothek_cube.core.uuid import gen_uuid

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.binary()
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]))
OBJECTS = st.recursive(
    SCALARS | KEYS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20
)


@given(OBJECTS)
def test_round_trip(obj):
    packed = packb(obj)
    assert unpackb(packed) == obj
    assert zstandard.frame_content_size(packed) == len(msgpack.packb(obj))


@pytest.mark.parametrize(
    "obj, error", [({"a": object()}, TypeError), (2**64, OverflowError), ("\ud800", ValueError)]
)
def test_what_has_no_form_is_refused(obj, error):
    with pytest.raises(error):
        packb(obj)


def _compressed(content: bytes, **kwargs: bool) -> bytes:
    return zstandard.ZstdCompressor(**kwargs).compress(content)


GOOD = packb({"x": 1})


@pytest.mark.parametrize(
    "data, problem",
    [
        (b"", "zstd"),
        (b"{}", "zstd"),
        (GOOD[:-1], "zstd"),
        (GOOD + b"x", "unused data"),
        (GOOD + GOOD, "unused data"),
        (_compressed(b"\x01", write_content_size=False), "content size"),
        (_compressed(b""), "msgpack"),
        (_compressed(b"\x81\xa1"), "msgpack"),
        (_compressed(b"\x01\x02"), "msgpack"),
        (_compressed(b"\xc1"), "msgpack"),
        (_compressed(b"\xa1\xff"), "msgpack"),
        (_compressed(msgpack.packb({1: 2})), "msgpack"),
        (_compressed(b"\xdf\xff\xff\xff\xff"), "msgpack"),
        (_compressed(b"\x91" * 100_000), "msgpack"),
    ],
)
def test_everything_else_is_a_value_error(data, problem):
    with pytest.raises(ValueError, match=problem):
        unpackb(data)


def test_bomb_is_refused_before_it_is_decompressed(monkeypatch: pytest.MonkeyPatch):
    bomb = _compressed(msgpack.packb(b"\0" * (codec._ALWAYS_ALLOWED + 100)))
    monkeypatch.delattr(zstandard, "ZstdDecompressor")
    with pytest.raises(ValueError, match=f"{len(bomb)} compressed bytes stand for 167773"):
        unpackb(bomb)


def test_bomb_that_lies_about_its_size_is_refused():
    content = b"\0" * 5_000_000
    lying = bytearray(_compressed(msgpack.packb(content)))
    size = len(msgpack.packb(content)).to_bytes(4, "little")
    assert lying.count(size) == 1
    position = lying.index(size)
    lying[position : position + 4] = (1000).to_bytes(4, "little")
    with pytest.raises(ValueError, match="zstd"):
        unpackb(bytes(lying))


def test_nothing_is_packed_that_cannot_be_unpacked():
    with pytest.raises(ValueError, match="are allowed"):
        packb(b"\0" * (codec._ALWAYS_ALLOWED + 100))


def test_large_headers_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(codec, "_ALWAYS_ALLOWED", 1000)
    labels = [f"p={i}/{gen_uuid()}" for i in range(2000)]
    header = {"partitions": {label: {"files": {"table": f"u/table/{label}.parquet"}} for label in labels}}
    assert unpackb(packb(header)) == header
