"""Storage keys of data files: derived from labels, compared with them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX

__all__ = ("common_prefix", "derived_keys", "needs_escapes")

_PLAIN_IN_JSON = bytes(set(range(0x20, 0x7F)) - set(b'"\\'))


def derived_keys(prefix: str, labels: pa.StringArray) -> pa.StringArray:
    """Storage keys by the specification: ``<uuid>/<table>/<label>.parquet``."""
    return pc.binary_join_element_wise(prefix, labels, PARQUET_FILE_SUFFIX, "").cast(pa.string())


def common_prefix(labels: pa.StringArray, keys: pa.StringArray) -> str | None:
    """Common prefix of all keys before ``<label>.parquet``; None if they have another form."""
    if not len(labels):
        return ""
    tail, first = labels[0].as_py() + PARQUET_FILE_SUFFIX, keys[0].as_py()
    if not first.endswith(tail):
        return None
    prefix: str = first[: len(first) - len(tail)]
    return prefix if derived_keys(prefix, labels).equals(keys) else None


def needs_escapes(texts: pa.StringArray) -> bool:
    """Whether a text has a character that JSON may escape."""
    data = texts.buffers()[2]
    return data is not None and bool(data.to_pybytes().translate(None, _PLAIN_IN_JSON))
