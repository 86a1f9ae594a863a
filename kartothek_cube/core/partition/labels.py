"""Partition labels: values of partition keys, and the storage keys that are derived from labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow.arrays import to_numpy
from kartothek_cube.core.arrow.casting import first_failure, parse_texts
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.urlencode import quote, unquote

__all__ = (
    "common_prefix",
    "decode_labels",
    "derived_keys",
    "encode_component",
    "needs_escapes",
    "quote_texts",
    "unquote_texts",
)

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


# Fast path for the escapes of timestamps, blanks and large floats: as no decoded character can be part of an
# escape, replacing them one after the other equals decoding from left to right.
_COMMON_ESCAPES = (("%20", " "), ("%3A", ":"), ("%2B", "+"))
#: texts from which to decide whether dictionary encoding pays
_SAMPLE = 1 << 10


def decode_labels(
    labels: pa.StringArray, partition_keys: Sequence[str], types: Sequence[pa.DataType]
) -> dict[str, pa.Array]:
    """Typed values of the partition keys by column; raises CorruptDatasetError.

    Examples
    --------
    >>> labels = pa.array(["COUNTRY_CODE=DE/a1", "COUNTRY_CODE=CH/a1"])
    >>> decode_labels(labels, ["COUNTRY_CODE"], [pa.string()])["COUNTRY_CODE"].to_pylist()
    ['DE', 'CH']
    """
    column_types = dict(zip(partition_keys, types, strict=True))
    if not len(labels):
        return {
            column: parse_texts(pa.array([], pa.string()), dtype) for column, dtype in column_types.items()
        }
    components = _split_labels(labels, partition_keys)
    values: dict[str, pa.Array] = {}
    for position in range(len(column_types)):
        encoded = _dictionary_encode(pc.list_element(components, position))
        column, texts = _split_component(encoded, labels, partition_keys)
        if column in values:
            _raise_for(labels[0].as_py(), partition_keys)
        distinct = _DictionaryTexts(texts, encoded.codes)
        values[column] = _parse_values(distinct, column_types[column], column, labels)
    return {column: values[column] for column in column_types}


class _DictionaryTexts(NamedTuple):
    """Dictionary-encoded texts; plain ones without codes."""

    texts: pa.StringArray
    codes: pa.Array | None

    def decode(self, values: pa.Array) -> pa.Array:
        """Decode: one value per text out of one per distinct text."""
        return values if self.codes is None else values.take(self.codes)


def _dictionary_encode(texts: pa.StringArray) -> _DictionaryTexts:
    """Dictionary-encode texts unless most of a sample are distinct."""
    sample = texts.slice(0, _SAMPLE)
    if 2 * len(sample.unique()) > _SAMPLE:
        return _DictionaryTexts(texts, None)
    encoded = texts.dictionary_encode()
    return _DictionaryTexts(encoded.dictionary, encoded.indices)


def _split_labels(labels: pa.StringArray, partition_keys: Sequence[str]) -> pa.ListArray:
    """Split labels at slashes into one component per partition key and the file name."""
    components = pc.split_pattern(labels, "/")
    is_valid = pc.equal(pc.list_value_length(components), len(partition_keys) + 1)
    if not pc.all(is_valid).as_py():
        components = pc.split_pattern(_quote_slashes(labels, partition_keys), "/")
        is_valid = pc.equal(pc.list_value_length(components), len(partition_keys) + 1)
        _check_all(is_valid, labels, partition_keys)
    return components


def _quote_slashes(labels: pa.StringArray, partition_keys: Sequence[str]) -> pa.StringArray:
    """Quote the slashes within values, which kartothek 5.3 does not quote."""
    has_slashes = pc.greater(pc.count_substring(labels, "/"), len(partition_keys))
    if not pc.any(has_slashes).as_py():
        return labels
    pairs = "/".join(f"(?P<c{i}>{re.escape(quote(column))}=.*)" for i, column in enumerate(partition_keys))
    parts = pc.extract_regex(labels.filter(has_slashes), f"^{pairs}/(?P<file>[^/]+)$")
    texts = [pc.struct_field(parts, i) for i in range(len(partition_keys) + 1)]
    quoted = [pc.replace_substring(text, pattern="/", replacement="%2F") for text in texts]
    joined = pc.coalesce(pc.binary_join_element_wise(*quoted, "/"), labels.filter(has_slashes))
    return pc.replace_with_mask(labels, has_slashes, joined)


def unquote_texts(texts: pa.Array) -> pa.Array:
    """Apply :func:`~kartothek_cube.core.urlencode.unquote` to a column without nulls."""
    for escape, character in _COMMON_ESCAPES:
        if not _has_percent(texts):
            return texts
        texts = pc.replace_substring(texts, pattern=escape, replacement=character)
    has_escapes = pc.match_substring(texts, "%")
    if not pc.any(has_escapes).as_py():
        return texts
    decoded = pa.array(_unquote_each(texts.filter(has_escapes).to_pylist()), pa.string())
    return pc.replace_with_mask(texts, has_escapes, decoded)


def encode_component(column: str, values: pa.Array) -> pa.StringArray:
    """Label components of the values of a partition key.

    Examples
    --------
    >>> encode_component("CITY", pa.array(["Rom", "Köln"])).to_pylist()
    ['CITY=Rom', 'CITY=K%C3%B6ln']
    """
    encoded = values.dictionary_encode()
    texts = pc.binary_join_element_wise(f"{quote(column)}=", _quote_values(encoded.dictionary), "")
    return texts.take(encoded.indices)


def _quote_values(values: pa.Array) -> pa.StringArray:
    """Quoted values as in labels: ``str`` of the pandas or Python object."""
    if pa.types.is_integer(values.type):
        return values.cast(pa.string())
    if pa.types.is_string(values.type):
        return quote_texts(values)
    objects: list[Any] = values.to_pylist()
    if pa.types.is_timestamp(values.type):
        objects = list(values.cast(pa.timestamp("ns", values.type.tz)).to_pandas())
    return pa.array([quote(item) for item in objects], pa.string())


def quote_texts(texts: pa.StringArray) -> pa.StringArray:
    """Apply :func:`~kartothek_cube.core.urlencode.quote` to a column without nulls."""
    special = pc.match_substring_regex(texts, "[^A-Za-z0-9_.~-]")
    if not pc.any(special).as_py():
        return texts
    quoted = pa.array([quote(text) for text in texts.filter(special).to_pylist()], pa.string())
    return pc.replace_with_mask(texts, special, quoted)


def _unquote_each(texts: list[str]) -> list[str]:
    """Decode rare escapes, all texts in one call."""
    # A decoded text may contain the separator itself; then they are decoded one by one.
    decoded = unquote("\n".join(texts)).split("\n")
    return decoded if len(decoded) == len(texts) else [unquote(text) for text in texts]


def _has_percent(texts: pa.Array) -> bool:
    data = texts.buffers()[2]
    return data is not None and b"%" in data.to_pybytes()


def _split_component(
    encoded: _DictionaryTexts, labels: pa.StringArray, partition_keys: Sequence[str]
) -> tuple[str, pa.Array]:
    """Column named in a component of the labels, and the distinct encoded texts of its values."""
    pairs = pc.split_pattern(encoded.texts, "=")
    well_formed = pc.equal(pc.list_value_length(pairs), 2)
    _check_all(encoded.decode(well_formed), labels, partition_keys)
    names = pc.list_element(pairs, 0).dictionary_encode()
    columns = [_column(name) for name in names.dictionary.to_pylist()]
    column = next((c for c in columns if c in partition_keys), None)
    if column is None:
        _raise_for(labels[0].as_py(), partition_keys)
    if any(c != column for c in columns):
        right = pa.array([c == column for c in columns]).take(names.indices)
        _check_all(encoded.decode(right), labels, partition_keys)
    return column, pc.list_element(pairs, 1)


def _column(name: str) -> str | None:
    try:
        return unquote(name)
    except UnicodeDecodeError:
        return None


def _parse_values(
    encoded: _DictionaryTexts, dtype: pa.DataType, column: str, labels: pa.StringArray
) -> pa.Array:
    """Parse the distinct texts and spread the values over the labels."""
    try:
        return encoded.decode(_parse_quoted(encoded.texts, dtype))
    except ValueError as error:
        code = first_failure(encoded.texts, lambda part: _parse_quoted(part, dtype))
        codes = encoded.codes
        row = code if codes is None else pc.index(codes, pa.scalar(code, codes.type)).as_py()
        label = labels[row].as_py()
        raise CorruptDatasetError(
            label, f"the partition label has no value of type {dtype} for column {column!r}"
        ) from error


def _parse_quoted(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        # bytes need not be UTF-8 and are quoted one by one
        return pa.array([unquote_to_bytes(text) for text in texts.to_pylist()], pa.binary())
    return parse_texts(unquote_texts(texts), dtype)


def _check_all(is_valid: pa.BooleanArray, labels: pa.StringArray, partition_keys: Sequence[str]) -> None:
    mask = to_numpy(is_valid)
    if not mask.all():
        _raise_for(labels[int(np.argmin(mask))].as_py(), partition_keys)


def _raise_for(label: str, partition_keys: Sequence[str]) -> NoReturn:
    form = "/".join([f"{column}=…" for column in partition_keys] + ["…"])
    raise CorruptDatasetError(label, f"a partition label of this dataset has the form {form}")
