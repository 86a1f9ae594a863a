"""Partition keys and labels: ``COUNTRY_CODE=DE/DAY=2020-01-01/<hex>`` to typed columns, and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow.casting import parse_texts
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.urlencode import quote, unquote

__all__ = ("decode_labels", "encode_component", "quote_texts", "unquote_texts")

# The escapes of timestamps, texts with blanks and large floats. None of the decoded characters can be part
# of an escape, so replacing them all at once means the same as decoding from left to right.
_COMMON_ESCAPES = (("%20", " "), ("%3A", ":"), ("%2B", "+"))
#: texts that tell whether it pays to look for equal ones
_SAMPLE = 1 << 10


def decode_labels(
    labels: pa.StringArray, partition_keys: Sequence[str], types: Sequence[pa.DataType]
) -> dict[str, pa.Array]:
    """
    Read the values of the partition keys from the labels (specification, "Partition content encoding").

    Parameters
    ----------
    labels
        Partition labels.
    partition_keys
        The columns that every label has to name, each once.
    types
        Their types, in the same order.

    Returns
    -------
    dict of str to pyarrow.Array
        One value per label, in the widened type of the column; in the order of ``partition_keys``.

    Raises
    ------
    CorruptDatasetError
        A label has other columns than the partition keys, or a text that is no value of its column.

    Examples
    --------
    >>> labels = pa.array(["COUNTRY_CODE=DE/a1", "COUNTRY_CODE=CH/a1"])
    >>> decode_labels(labels, ["COUNTRY_CODE"], [pa.string()])["COUNTRY_CODE"].to_pylist()
    ['DE', 'CH']
    """
    wanted = dict(zip(partition_keys, types, strict=True))
    if not len(labels):
        return {column: parse_texts(pa.array([], pa.string()), dtype) for column, dtype in wanted.items()}
    components = _components(labels, partition_keys)
    found: dict[str, pa.Array] = {}
    for position in range(len(wanted)):
        encoded = _encoded(pc.list_element(components, position))
        column, texts = _split_component(encoded, labels, partition_keys)
        if column in found:
            _raise_for(labels[0].as_py(), partition_keys)
        found[column] = _typed(_DictionaryTexts(texts, encoded.codes), wanted[column], column, labels)
    return {column: found[column] for column in wanted}


class _DictionaryTexts(NamedTuple):
    """Texts as codes of distinct ones; without codes, they are the texts themselves."""

    texts: pa.StringArray
    codes: pa.Array | None

    def spread(self, values: pa.Array) -> pa.Array:
        """One value per text, out of one per distinct text."""
        return values if self.codes is None else values.take(self.codes)


def _encoded(texts: pa.StringArray) -> _DictionaryTexts:
    """Encode texts unless those that come first tell that most are different."""
    sample = texts.slice(0, _SAMPLE)
    if 2 * len(sample.unique()) > _SAMPLE:
        return _DictionaryTexts(texts, None)
    encoded = texts.dictionary_encode()
    return _DictionaryTexts(encoded.dictionary, encoded.indices)


def _components(labels: pa.StringArray, partition_keys: Sequence[str]) -> pa.ListArray:
    """Split labels at slashes; they have as many components as there are keys, and one more."""
    components = pc.split_pattern(labels, "/")
    good = pc.equal(pc.list_value_length(components), len(partition_keys) + 1)
    if not pc.all(good).as_py():
        components = pc.split_pattern(_with_quoted_slashes(labels, partition_keys), "/")
        good = pc.equal(pc.list_value_length(components), len(partition_keys) + 1)
        _demand(good, labels, partition_keys)
    return components


def _with_quoted_slashes(labels: pa.StringArray, partition_keys: Sequence[str]) -> pa.StringArray:
    """Quote the slashes within values, which kartothek 5.3 left as they were."""
    odd = pc.greater(pc.count_substring(labels, "/"), len(partition_keys))
    if not pc.any(odd).as_py():
        return labels
    pairs = "/".join(f"(?P<c{i}>{re.escape(quote(column))}=.*)" for i, column in enumerate(partition_keys))
    parts = pc.extract_regex(labels.filter(odd), f"^{pairs}/(?P<file>[^/]+)$")
    texts = [pc.struct_field(parts, i) for i in range(len(partition_keys) + 1)]
    quoted = [pc.replace_substring(text, pattern="/", replacement="%2F") for text in texts]
    joined = pc.coalesce(pc.binary_join_element_wise(*quoted, "/"), labels.filter(odd))
    return pc.replace_with_mask(labels, odd, joined)


def unquote_texts(texts: pa.Array) -> pa.Array:
    """
    Reverse :func:`~kartothek_cube.core.urlencode.quote` for a whole column.

    Parameters
    ----------
    texts
        Encoded texts without nulls.

    Returns
    -------
    pyarrow.StringArray

    Raises
    ------
    UnicodeDecodeError
        Encoded bytes are not UTF-8.

    Examples
    --------
    >>> unquote_texts(pa.array(["DE", "K%C3%B6ln", "2020-01-01%2000%3A00"])).to_pylist()
    ['DE', 'Köln', '2020-01-01 00:00']
    """
    for escape, character in _COMMON_ESCAPES:
        if not _has_percent(texts):
            return texts
        texts = pc.replace_substring(texts, pattern=escape, replacement=character)
    rest = pc.match_substring(texts, "%")
    if not pc.any(rest).as_py():
        return texts
    decoded = pa.array(_unquote_each(texts.filter(rest).to_pylist()), pa.string())
    return pc.replace_with_mask(texts, rest, decoded)


def encode_component(column: str, values: pa.Array) -> pa.StringArray:
    """
    Spell values of a partition key as components of labels (specification, "Partition content encoding").

    Parameters
    ----------
    column
        The partition key.
    values
        Values without nulls.

    Returns
    -------
    pyarrow.StringArray

    Examples
    --------
    >>> encode_component("CITY", pa.array(["Rom", "Köln"])).to_pylist()
    ['CITY=Rom', 'CITY=K%C3%B6ln']
    """
    encoded = values.dictionary_encode()
    texts = pc.binary_join_element_wise(f"{quote(column)}=", _quoted(encoded.dictionary), "")
    return texts.take(encoded.indices)


def _quoted(values: pa.Array) -> pa.StringArray:
    """Values as they are written into labels: like ``str`` of the pandas or Python object, and quoted."""
    if pa.types.is_integer(values.type):
        return values.cast(pa.string())
    if pa.types.is_string(values.type):
        return quote_texts(values)
    objects: list[Any] = values.to_pylist()
    if pa.types.is_timestamp(values.type):
        objects = list(values.cast(pa.timestamp("ns", values.type.tz)).to_pandas())
    return pa.array([quote(item) for item in objects], pa.string())


def quote_texts(texts: pa.StringArray) -> pa.StringArray:
    """
    Apply :func:`~kartothek_cube.core.urlencode.quote` to a whole column.

    Parameters
    ----------
    texts
        Texts without nulls.

    Returns
    -------
    pyarrow.StringArray

    Examples
    --------
    >>> quote_texts(pa.array(["DE", "Köln"])).to_pylist()
    ['DE', 'K%C3%B6ln']
    """
    special = pc.match_substring_regex(texts, "[^A-Za-z0-9_.~-]")
    if not pc.any(special).as_py():
        return texts
    quoted = pa.array([quote(text) for text in texts.filter(special).to_pylist()], pa.string())
    return pc.replace_with_mask(texts, special, quoted)


def _unquote_each(texts: list[str]) -> list[str]:
    """Decode rare escapes; all texts in one call, unless a decoded one contains the separator itself."""
    decoded = unquote("\n".join(texts)).split("\n")
    return decoded if len(decoded) == len(texts) else [unquote(text) for text in texts]


def _has_percent(texts: pa.Array) -> bool:
    data = texts.buffers()[2]
    return data is not None and b"%" in data.to_pybytes()


def _split_component(
    encoded: _DictionaryTexts, labels: pa.StringArray, partition_keys: Sequence[str]
) -> tuple[str, pa.Array]:
    """Column that one component of the labels names, and the distinct texts of its values, still encoded."""
    pairs = pc.split_pattern(encoded.texts, "=")
    well_formed = pc.equal(pc.list_value_length(pairs), 2)
    _demand(encoded.spread(well_formed), labels, partition_keys)
    names = pc.list_element(pairs, 0).dictionary_encode()
    columns = [_column(name) for name in names.dictionary.to_pylist()]
    column = next((c for c in columns if c in partition_keys), None)
    if column is None:
        _raise_for(labels[0].as_py(), partition_keys)
    if any(c != column for c in columns):
        right = pa.array([c == column for c in columns]).take(names.indices)
        _demand(encoded.spread(right), labels, partition_keys)
    return column, pc.list_element(pairs, 1)


def _column(name: str) -> str | None:
    try:
        return unquote(name)
    except UnicodeDecodeError:
        return None


def _typed(encoded: _DictionaryTexts, dtype: pa.DataType, column: str, labels: pa.StringArray) -> pa.Array:
    """Parse the distinct texts and spread them over the labels."""
    try:
        return encoded.spread(_parse_quoted(encoded.texts, dtype))
    except ValueError as error:
        label = labels[_first_unparsable(encoded, dtype)].as_py()
        raise CorruptDatasetError(
            label, f"the partition label has no value of type {dtype} for column {column!r}"
        ) from error


def _parse_quoted(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        # bytes need not be UTF-8, and are quoted as they are
        return pa.array([unquote_to_bytes(text) for text in texts.to_pylist()], pa.binary())
    return parse_texts(unquote_texts(texts), dtype)


def _first_unparsable(encoded: _DictionaryTexts, dtype: pa.DataType) -> int:
    """Position of the label to name in the error; one by one, as this runs only once something is wrong."""
    for code in range(len(encoded.texts)):
        try:
            _parse_quoted(encoded.texts.slice(code, 1), dtype)
        except ValueError:
            codes = encoded.codes
            return code if codes is None else int(pc.index(codes, pa.scalar(code, codes.type)).as_py())
    return 0


def _demand(good: pa.BooleanArray, labels: pa.StringArray, partition_keys: Sequence[str]) -> None:
    mask: npt.NDArray[np.bool_] = good.to_numpy(zero_copy_only=False)
    if not mask.all():
        _raise_for(labels[int(np.argmin(mask))].as_py(), partition_keys)


def _raise_for(label: str, partition_keys: Sequence[str]) -> NoReturn:
    shape = "/".join([f"{column}=…" for column in partition_keys] + ["…"])
    raise CorruptDatasetError(label, f"a partition label of this dataset has the form {shape}")
