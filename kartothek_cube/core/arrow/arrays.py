"""Helpers for Arrow arrays: labels, lookup, compact buffers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow.typing import Ints

__all__ = ("label_array", "lookup", "abbreviate", "compact_buffers", "copy_to_arrow_memory")


def label_array(labels: Iterable[str] | pa.Array | pa.ChunkedArray) -> pa.StringArray:
    """Partition labels as one Arrow string array; raises TypeError for anything but text.

    Examples
    --------
    >>> label_array(["COUNTRY_CODE=DE/a1"]).to_pylist()
    ['COUNTRY_CODE=DE/a1']
    """
    if isinstance(labels, str):
        labels = [labels]
    if isinstance(labels, pa.ChunkedArray):
        labels = labels.combine_chunks()
    if not isinstance(labels, pa.Array):
        texts = list(labels)
        invalid_types = set(map(type, texts)) - {str, np.str_}
        if invalid_types:
            raise TypeError(
                f"Partition labels have to be str, not {', '.join(sorted(t.__name__ for t in invalid_types))}"
            )
        labels = pa.array(texts, pa.string())
    if labels.null_count:
        raise TypeError("Partition labels have to be str, not null")
    return labels if labels.type.equals(pa.string()) else labels.cast(pa.string())


def lookup(needles: pa.Array, haystack: pa.Array) -> Ints:
    """Position of the first occurrence of each needle in the haystack, -1 if absent.

    Examples
    --------
    >>> lookup(pa.array(["b", "z"]), pa.array(["a", "b"])).tolist()
    [1, -1]
    """
    if needles is haystack:
        return np.arange(len(needles), dtype=np.int64)
    indices = pc.index_in(needles, value_set=haystack).fill_null(-1).to_numpy(zero_copy_only=False)
    positions: Ints = indices.astype(np.int64)
    return positions


def compact_buffers(array: Any) -> Any:
    """Copy an array whose buffers are larger than its values."""
    # A pickled slice contains the buffers of its whole parent.
    if array.get_total_buffer_size() <= array.nbytes + 1024:
        return array
    return array.take(pa.array(np.arange(len(array))))


def abbreviate(names: Iterable[object], limit: int = 5) -> str:
    """Comma-separated names, cut after `limit` with the total number.

    Examples
    --------
    >>> abbreviate(["a", "b", "c"], limit=2)
    'a, b, … (3 in total)'
    """
    texts = [str(name) for name in names]
    return ", ".join(texts[:limit]) + (f", … ({len(texts)} in total)" if len(texts) > limit else "")


def copy_to_arrow_memory(content: bytes | bytearray | memoryview) -> pa.Buffer:
    """Copy bytes to memory of Arrow, for readers that use Arrow's threads."""
    # A thread that finishes last releases the buffer. For memory of Python, it needs the interpreter's lock,
    # and aborts the process (SIGABRT) if the interpreter exits at this moment.
    buffer = pa.allocate_buffer(memoryview(content).nbytes)
    memoryview(buffer).cast("B")[:] = memoryview(content).cast("B")
    return buffer
