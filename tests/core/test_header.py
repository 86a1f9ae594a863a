"""Headers read as columns: the same as json reads, or nothing where the text has another form."""

import json

import msgpack
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.core import header as headers
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.uuid import gen_uuid

PARTITIONS = {f"p={i}/a": {"files": {"table": f"u/table/p={i}/a.parquet"}} for i in range(3)}
KEY = {"files": {"table": "u/table/a.parquet"}}
REST = {"dataset_metadata_version": 4, "metadata": {"x": "é", "y": {"z": [1]}}, "partition_keys": ["p"]}


@pytest.fixture(autouse=True)
def _short_texts_count(monkeypatch):
    monkeypatch.setattr("kartothek_cube.core.header._MIN_BYTES", 0)


def text(partitions, before=REST, after=None, **kwargs):
    return json.dumps({**before, "partitions": partitions, **(after or {})}, **kwargs).encode()


def as_dict(found):
    header, labels, files = found
    for column in (labels, *files.values()):
        column.validate(full=True)
        assert column.type == pa.string()
    return {**header, "partitions": PartitionTable(labels, files).to_header()}


def test_headers_of_which_the_end_is_hard_to_find():
    """Their records hold objects, which may look like the end of the partitions."""
    participation = headers.Participation("o", "u++seed", "l", before="", creates=True)
    for fields in ({"participants": {"u": "o"}}, {"participation": participation}, {"aborted": ("o",)}):
        record = headers.CommitRecord("c", lineage="l", **fields).to_field()
        content = text(PARTITIONS, after={headers.COMMIT_RECORD: record})
        assert as_dict(headers.split_header(content)) == json.loads(content)
    content = text({f"p={i}/{'a' * 32}": KEY for i in range(3)})
    assert as_dict(headers.split_header(content)) == json.loads(content)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("after", [None, {"partition_keys": ["q"], "z": {"a": {"b": {"c": "d"}}}}])
def test_usual_form(n, after):
    content = text(dict(list(PARTITIONS.items())[:n]), after=after)
    assert as_dict(headers.split_header(content)) == json.loads(content)
    assert list(headers.split_header(content)[1].to_pylist()) == list(PARTITIONS)[:n]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", text({}), json.dumps(REST).encode(), text(PARTITIONS, indent=1)),
        text(PARTITIONS, separators=(",", ":")),
        *(text({"é": KEY}), text({"é": KEY}, ensure_ascii=False), text({'"': KEY}), text({"\\": KEY})),
        text({"a": {"files": {"table": "k", "core": "l"}}}),
        text({"a": KEY, "b": {"files": {"core": "l"}}}),
        text({"a": {"files": {"table": "k"}, "x": 1}}),
        text({"a": {"files": {"table": 1}}}),
        text({"a": KEY, "b": {}}),
        text(PARTITIONS)[:-1],
        text(PARTITIONS) + b"}",
        # the same label twice: json takes the last
        text({"a": KEY, "b": KEY}).replace(b'"b"', b'"a"'),
        text({"a" * 20: KEY, "b" * 20: KEY}).replace(b"b" * 20, b"a" * 20),
        # what looks like the partitions is something else
        json.dumps({"metadata": {"partitions": {"a": KEY}}}).encode(),
        json.dumps({"metadata": {"partitions": {"a": KEY}}, "partitions": {"b": KEY}}).encode(),
        text({"a": KEY}).replace(b"}}}", b'}}, "partitions": {"b": 1}}', 1),
        b'{"x": "\\"partitions\\": {\\"a\\": {\\"files\\": {\\"table\\": \\"k\\"}}}"}',
        text({"a\n": KEY}).replace(b"\\n", b"\n"),
        # the text that stands for the partitions cannot be known in advance
        b'{"metadata": ' + text({"a": KEY}, {}) + b', "partitions": "' + b"0" * 32 + b'"}',
    ],
)
def test_any_other_form_is_left_to_json(content):
    assert headers.split_header(content) is None


NAMES = st.text('ab="\\{}:, /é\n', max_size=6)
FILES = st.dictionaries(NAMES, NAMES, max_size=2)


@given(
    st.dictionaries(NAMES, st.fixed_dictionaries({"files": FILES}), max_size=3),
    st.dictionaries(NAMES, st.one_of(NAMES, FILES), max_size=2),
    st.booleans(),
)
def test_either_nothing_or_what_json_reads(partitions, rest, ascii_only):
    content = text(partitions, rest, rest, ensure_ascii=ascii_only)
    found = headers.split_header(content)
    assert found is None or as_dict(found) == json.loads(content)


def test_short_headers_are_left_to_json(monkeypatch):
    monkeypatch.setattr("kartothek_cube.core.header._MIN_BYTES", 1_000)
    assert headers.split_header(text(PARTITIONS)) is None


KEYS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.floats(allow_nan=False) | st.binary() | KEYS
SCALARS |= st.integers(-(2**63), 2**63 - 1)


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20))
def test_round_trip(obj):
    packed = headers.packb(obj)
    assert headers.unpackb(packed) == obj
    assert zstandard.frame_content_size(packed) == len(msgpack.packb(obj))


def test_what_has_no_form_is_refused():
    for obj, error in (({"a": object()}, TypeError), (2**64, OverflowError), ("\ud800", ValueError)):
        with pytest.raises(error):
            headers.packb(obj)


def _compressed(content: bytes, **kwargs: bool) -> bytes:
    return zstandard.ZstdCompressor(**kwargs).compress(content)


GOOD = headers.packb({"x": 1})


@pytest.mark.parametrize(
    "data, problem",
    [
        *((data, "zstd") for data in (b"", b"{}", GOOD[:-1])),
        *((data, "unused data") for data in (GOOD + b"x", GOOD + GOOD)),
        (_compressed(b"\x01", write_content_size=False), "content size"),
        *((_compressed(data), "msgpack") for data in (b"", b"\x81\xa1", b"\x01\x02", b"\xc1", b"\xa1\xff")),
        *((_compressed(data), "msgpack") for data in (b"\x81\1\2", b"\xdf" + b"\xff" * 4, b"\x91" * 100_000)),
    ],
)
def test_everything_else_is_a_value_error(data, problem):
    with pytest.raises(ValueError, match=problem):
        headers.unpackb(data)


def test_bomb_is_refused_before_it_is_decompressed(monkeypatch: pytest.MonkeyPatch):
    bomb = _compressed(msgpack.packb(b"\0" * (headers._ALWAYS_ALLOWED + 100)))
    monkeypatch.delattr(zstandard, "ZstdDecompressor")
    with pytest.raises(ValueError, match=f"{len(bomb)} compressed bytes stand for 167773"):
        headers.unpackb(bomb)


def test_bomb_that_lies_about_its_size_is_refused():
    content = b"\0" * 5_000_000
    lying = bytearray(_compressed(msgpack.packb(content)))
    size = len(msgpack.packb(content)).to_bytes(4, "little")
    assert lying.count(size) == 1
    position = lying.index(size)
    lying[position : position + 4] = (1000).to_bytes(4, "little")
    with pytest.raises(ValueError, match="zstd"):
        headers.unpackb(bytes(lying))
    with pytest.raises(ValueError, match="are allowed"):
        headers.packb(b"\0" * (headers._ALWAYS_ALLOWED + 100))


def test_large_headers_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kartothek_cube.core.header._ALWAYS_ALLOWED", 1000)
    labels = [f"p={i}/{gen_uuid()}" for i in range(2000)]
    header = {"partitions": {label: {"files": {"table": f"u/table/{label}.parquet"}} for label in labels}}
    assert headers.unpackb(headers.packb(header)) == header
