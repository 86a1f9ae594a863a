"""Headers read as columns: the same as json reads, or nothing where the text has another form."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.core.header import fast_parse
from kartothek_cube.core.header.commit_record import COMMIT_RECORD, CommitRecord, Participation
from kartothek_cube.core.header.fast_parse import split_header
from kartothek_cube.core.partition import PartitionTable

PARTITIONS = {f"p={i}/a": {"files": {"table": f"u/table/p={i}/a.parquet"}} for i in range(3)}
KEY = {"files": {"table": "u/table/a.parquet"}}
REST = {
    "dataset_metadata_version": 4,
    "metadata": {"x": "é", "y": {"z": [1]}},
    "partition_keys": ["p"],
}


@pytest.fixture(autouse=True)
def _short_texts_count(monkeypatch):
    monkeypatch.setattr(fast_parse, "_MIN_BYTES", 0)


def text(partitions, before=REST, after=None, **kwargs):
    return json.dumps({**before, "partitions": partitions, **(after or {})}, **kwargs).encode()


def as_dict(found):
    header, labels, files = found
    return {**header, "partitions": PartitionTable(labels, files).to_header()}


def test_headers_of_operations_on_several_datasets():
    """Their records hold objects, of which the last one must not look like the end of the partitions."""
    participation = Participation("o", "u++seed", "l", before="", creates=True)
    for fields in ({"participants": {"u": "o"}}, {"participation": participation}, {"aborted": ("o",)}):
        record = CommitRecord("c", lineage="l", **fields).to_field()
        content = text(PARTITIONS, after={COMMIT_RECORD: record})
        assert as_dict(split_header(content)) == json.loads(content)


def test_long_labels_that_end_alike():
    content = text({f"p={i}/{'a' * 32}": KEY for i in range(3)})
    assert as_dict(split_header(content)) == json.loads(content)


@given(st.lists(st.text("ab", min_size=14, max_size=18)), st.integers(0, 3))
def test_ends_that_differ(labels, start):
    array = pa.array(["", "", "", *labels]).slice(start)
    assert not fast_parse._have_unique_suffixes(array) or len(set(array.to_pylist())) == len(array)
    assert fast_parse._have_unique_suffixes(pa.array([f"{i:016}" for i in range(100)]))


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("after", [None, {"partition_keys": ["q"], "z": {"a": {"b": {"c": 1}}}}])
def test_usual_form(n, after):
    content = text(dict(list(PARTITIONS.items())[:n]), after=after)
    assert as_dict(split_header(content)) == json.loads(content)
    assert list(split_header(content)[1].to_pylist()) == list(PARTITIONS)[:n]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        text({}),
        json.dumps(REST).encode(),
        text(PARTITIONS, indent=1),
        text(PARTITIONS, separators=(",", ":")),
        text({"é": KEY}),
        text({"é": KEY}, ensure_ascii=False),
        text({'"': KEY}),
        text({"\\": KEY}),
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
        text({"a": KEY}, after={"z": {"a": {"b": {"c": "d"}}}}),
        text({"a\n": KEY}).replace(b"\\n", b"\n"),
    ],
)
def test_any_other_form_is_left_to_json(content):
    assert split_header(content) is None


def test_partitions_come_from_the_header_itself():
    """The text that stands for them cannot be known in advance, so nobody can put it elsewhere."""
    content = (
        b'{"metadata": {"partitions": {"a": {"files": {"table": "k"}}}}, "partitions": "' + b"0" * 32 + b'"}'
    )
    assert split_header(content) is None


NAMES = st.text('ab="\\{}:, /é\n', max_size=6)


@given(
    st.dictionaries(
        NAMES, st.fixed_dictionaries({"files": st.dictionaries(NAMES, NAMES, max_size=2)}), max_size=3
    ),
    st.dictionaries(NAMES, st.one_of(NAMES, st.dictionaries(NAMES, NAMES, max_size=2)), max_size=2),
    st.booleans(),
)
def test_either_nothing_or_what_json_reads(partitions, rest, ascii_only):
    content = text(partitions, rest, rest, ensure_ascii=ascii_only)
    found = split_header(content)
    assert found is None or as_dict(found) == json.loads(content)


def test_columns_are_plain_arrays():
    _, labels, files = split_header(text(PARTITIONS))
    for column in (labels, files["table"]):
        column.validate(full=True)
        assert column.type == pa.string()


def test_short_headers_are_left_to_json(monkeypatch):
    monkeypatch.setattr(fast_parse, "_MIN_BYTES", 1_000)
    assert split_header(text(PARTITIONS)) is None
