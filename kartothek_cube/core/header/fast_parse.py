"""The ``partitions`` of a JSON header, read as columns without a Python object per partition."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ("split_header",)

_START, _END, _NEXT = b'"partitions": {"', b'"}}}', '"}}, "'
_TABLE = re.compile(rb'[^"\\]*": \{"files": \{"([^"\\]*)": "')
#: smaller headers are parsed in no time
_SMALLEST = 1 << 14
#: what fits into one Arrow array of strings
_LARGEST = (1 << 31) - 1
#: bytes to compare at once: few enough to need little memory
_CHUNK = 1 << 22

Files = dict[str, pa.StringArray]


def split_header(content: bytes) -> tuple[dict[str, Any], pa.StringArray, Files] | None:
    """
    Parse a JSON header whose ``partitions`` have the form in which they are usually written.

    That they have it is not assumed: nothing but the labels and the keys may differ from that form.

    Parameters
    ----------
    content
        The header.

    Returns
    -------
    header : dict
        Without ``partitions``.
    labels : pyarrow.StringArray
    files : dict of str to pyarrow.StringArray
        Table to storage keys.
    None
        Instead of all that if it is short, or has another form, or is no JSON.

    Examples
    --------
    >>> entries = [f'"a{i}": {{"files": {{"table": "sales/table/a{i}.parquet"}}}}' for i in range(500)]
    >>> header, labels, _ = split_header(f'{{"x": 1, "partitions": {{{", ".join(entries)}}}}}'.encode())
    >>> header, labels[499].as_py()
    ({'x': 1}, 'a499')
    """
    start = content.find(_START) + len(_START)
    stop = content.rfind(_END)  # if this is the end of something else, the form is not the usual one
    if stop - start < _SMALLEST or len(content) > _LARGEST or not content.isascii():
        return None
    columns = _columns(content, start, stop)
    if columns is None:
        return None
    header = _rest(content[: start - len('{"')], content[stop + len(_END) :])
    return None if header is None else (header, *columns)


def _columns(content: bytes, start: int, stop: int) -> tuple[pa.StringArray, Files] | None:
    """Labels and storage keys out of a part of the text, if it holds nothing else and no label twice."""
    table = _TABLE.match(content, start, stop)
    if table is None or content.find(b"\\", start, stop) >= 0:
        return None
    if np.frombuffer(content, np.uint8, stop - start, start).min() < ord(" "):
        return None  # JSON spells control characters as escapes
    offsets = pa.array([start, stop], pa.int32()).buffers()[1]
    text = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(content))
    entries = pc.split_pattern(text, _NEXT).flatten()
    pairs = pc.split_pattern(entries, f'": {{"files": {{"{table.group(1).decode()}": "')
    texts = pairs.flatten()
    lengths = pc.min_max(pc.list_value_length(pairs)).as_py()
    if lengths != {"min": 2, "max": 2} or _has_quotes(texts):
        return None
    del entries, pairs
    places = np.arange(0, len(texts), 2)
    labels, keys = texts.take(pa.array(places)), texts.take(pa.array(places + 1))
    if not _differ_at_the_end(labels) and len(labels.unique()) < len(labels):
        return None
    return labels, {table.group(1).decode(): keys}


def _has_quotes(texts: pa.StringArray) -> bool:
    data = np.frombuffer(texts.buffers()[2], np.uint8)
    return any((data[first : first + _CHUNK] == ord('"')).any() for first in range(0, len(data), _CHUNK))


def _differ_at_the_end(labels: pa.StringArray) -> bool:
    """Whether labels are certainly different, as their last bytes are, which are random in most of them."""
    ends = np.frombuffer(labels.buffers()[1], np.int32, len(labels) + 1, 4 * labels.offset)
    if labels.null_count or not len(labels) or int(np.diff(ends).min()) < 16:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(labels.buffers()[2], np.uint8), 16)
    words = windows[ends[1:] - 16].view(np.uint64)
    # different numbers come from different words; equal ones may come from any
    mixed = words[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ words[:, 1]
    mixed.sort()
    return bool((mixed[1:] != mixed[:-1]).all())


def _rest(before: bytes, after: bytes) -> dict[str, Any] | None:
    """The header without its partitions, if that is what was cut out, and not a part of something else."""
    mark = secrets.token_hex(16)  # nobody can write it elsewhere in advance
    try:
        header = json.loads(b'%s"%s"%s' % (before, mark.encode(), after))
    except (ValueError, RecursionError):
        return None
    if type(header) is not dict or header.pop("partitions", None) != mark:
        return None
    return header
