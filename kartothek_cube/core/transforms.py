"""Partition transforms: partition columns whose values follow from those of a dimension."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core import arguments, arrow, errors
from kartothek_cube.core.expressions import AllOf, BoundLiteral, LiteralType, Node, bind_literal

__all__ = ("PartitionTransform", "bucket", "day", "hour", "month", "truncate", "year")

#: entry in the metadata of datasets: by partition column the function, its source, and ``n``
METADATA_KEY = "ktk_cube_partition_transforms"

#: functions of times, with the unit of NumPy whose text in ISO 8601 is the value
_UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}
_SIZED = ("bucket", "truncate")
#: years of four digits, whose texts sort as the times do
_YEARS = (0, 9999)


def _check_function(transform: PartitionTransform, _attribute: object, function: str) -> None:
    if function not in (*_UNITS, *_SIZED):
        known = ", ".join((*_UNITS, *_SIZED))
        raise ValueError(f"{function!r} is no partition transform; one of {known} is")


def _check_size(transform: PartitionTransform, _attribute: object, n: Any) -> None:
    if transform.function not in _SIZED:
        if n:
            raise ValueError(f"Partition transform {transform.function} has no n")
    elif isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"n of {transform.function} must be an integer but is {type(n).__name__}")
    elif not 0 < n < 2**31:
        raise ValueError(f"n of {transform.function} must be from 1 to 2**31 - 1 but is {n}")


def _to_column(name: str) -> str:
    return arguments.parse_name("column", name)


def _to_name(name: str) -> str:
    return arguments.parse_name("name", name)


@attrs.frozen(repr=False)
class PartitionTransform:
    """A partition column that follows from a dimension; see :func:`month`, :func:`bucket` and the others.

    Parameters
    ----------
    function
        ``year``, ``month``, ``day``, ``hour``, ``bucket`` or ``truncate``.
    column
        The dimension.
    n
        Number of buckets; number of characters, or width of the intervals, of ``truncate``; else 0.
    name
        Name of the partition column; by default ``<column>_<function>``.

    Raises
    ------
    TypeError, ValueError
        For wrong types, unknown functions, and ``n`` that is not positive.
    """

    function: str = attrs.field(validator=_check_function)
    column: str = attrs.field(converter=_to_column)
    n: int = attrs.field(default=0, validator=_check_size)
    name: str = attrs.field(default=None, converter=attrs.converters.optional(_to_name))

    def __attrs_post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", f"{self.column}_{self.function}")

    def __repr__(self) -> str:
        size = f"{self.n}, " if self.n else ""
        name = "" if self.name == f"{self.column}_{self.function}" else f", name={self.name!r}"
        return f"{self.function}({size}{self.column!r}{name})"

    def apply(self, values: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Values of the partition column, of those of the dimension, which are not null.

        Parameters
        ----------
        values
            Values of the dimension.

        Returns
        -------
        pyarrow.Array

        Raises
        ------
        TypeError
            The function has no values of this type.
        ValueError
            A value is out of the range of the function.

        Examples
        --------
        >>> month("DAY").apply(pa.array([0, 31], pa.date32())).to_pylist()
        ['1970-01', '1970-02']
        """
        array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        dtype = array.type
        if pat.is_null(dtype):
            return array
        is_time = pat.is_timestamp(dtype) or pat.is_date32(dtype)
        if self.function in _UNITS and (pat.is_timestamp(dtype) if self.function == "hour" else is_time):
            return _format_units(_as_times(array).astype(f"M8[{_UNITS[self.function]}]"), self)
        if self.function == "truncate" and arrow.is_text(dtype):
            return pc.utf8_slice_codeunits(array, 0, self.n)
        if self.function == "truncate" and pat.is_integer(dtype):
            return _truncate_integers(array, self)
        is_hashed = is_time or arrow.is_text(dtype) or pat.is_integer(dtype) or pat.is_binary(dtype)
        if self.function == "bucket" and is_hashed:
            return pa.array((hash_values(array) & 0x7FFFFFFF).astype(np.int64) % self.n)
        remedy = "; convert it by pd.to_datetime" if self.function in _UNITS and arrow.is_text(dtype) else ""
        raise TypeError(f"Partition transform {self!r} is not defined for columns of type {dtype}{remedy}")

    def imply(self, literal: LiteralType, dtype: pa.DataType) -> LiteralType | None:
        """Literal on the partition column that one on the dimension, of this type, implies."""
        column, op, value = literal
        bound = bind_literal(dtype, op, value, column)
        try:
            return self._imply_bound(bound)
        except ValueError:
            # the function has no value for that of the condition, which no row can have
            return None

    def _imply_bound(self, bound: BoundLiteral) -> LiteralType | None:
        if bound.kind == "in":
            return self.name, "in", self.apply(bound.operand).unique()
        if bound.kind != "compare" or bound.op == "!=":
            return None
        operand = pa.repeat(bound.operand, 1)
        result = self.apply(operand)[0].as_py()
        if bound.op == "==":
            return self.name, "==", result
        if self.function == "bucket":
            return None
        # a value less than the first one of a month is in an earlier month
        is_strict = bound.op == "<" and self._is_first(operand)
        return self.name, "<" if is_strict else bound.op[0] + "=", result

    def _is_first(self, operand: pa.Array) -> bool:
        """Whether a value is the least of those with the same value of the partition column."""
        if self.function == "truncate":
            return bool(self.apply(operand).equals(operand.cast(self.apply(operand).type)))
        times = _as_times(operand)
        return bool((times.astype(f"M8[{_UNITS[self.function]}]").astype(times.dtype) == times).all())

    def to_dict(self) -> dict[str, Any]:
        """The form in the metadata of datasets, without the name."""
        size = {"n": self.n} if self.n else {}
        return {"function": self.function, **size, "column": self.column}


# -- functions for users -------------------------------------------------------------------------------------


def year(column: str, *, name: str | None = None) -> PartitionTransform:
    """Partition by the year of a date or timestamp, an integer: ``2024``.

    Parameters
    ----------
    column
        Dimension with dates or timestamps; those with a time zone are taken in UTC.
    name
        Name of the partition column; by default ``<column>_year``.

    Returns
    -------
    PartitionTransform

    Raises
    ------
    TypeError
        A name is not text.

    Examples
    --------
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> cube = Cube(dimension_columns=["DAY"], partition_columns=[year("DAY")], uuid_prefix="geodata")
    >>> cube.partition_columns
    ('DAY_year',)
    """
    return PartitionTransform("year", column, name=name)


def month(column: str, *, name: str | None = None) -> PartitionTransform:
    """Partition by the month of a date or timestamp, as text: ``2024-03``.

    Parameters
    ----------
    column
        Dimension with dates or timestamps; those with a time zone are taken in UTC.
    name
        Name of the partition column; by default ``<column>_month``.

    Returns
    -------
    PartitionTransform

    Raises
    ------
    TypeError
        A name is not text.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.api.cube import C, Cube, build_cube, explain_query, query_cube_df
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["DAY"], partition_columns=[month("DAY")], uuid_prefix="geodata")
    >>> df = pd.DataFrame({"DAY": pd.to_datetime(["2024-03-31", "2024-04-01"]), "TEMP": [7, 9]})
    >>> _ = build_cube(df, cube, store)
    >>> query_cube_df(cube, store)["DAY_month"].tolist()
    ['2024-03', '2024-04']
    >>> explain_query(cube, store, C("DAY") < "2024-04-01").read_files
    1
    """
    return PartitionTransform("month", column, name=name)


def day(column: str, *, name: str | None = None) -> PartitionTransform:
    """Partition by the day of a timestamp, a date: ``2024-03-31``.

    Parameters
    ----------
    column
        Dimension with dates or timestamps; those with a time zone are taken in UTC.
    name
        Name of the partition column; by default ``<column>_day``.

    Returns
    -------
    PartitionTransform

    Raises
    ------
    TypeError
        A name is not text.

    Examples
    --------
    >>> day("HOUR", name="DAY")
    day('HOUR', name='DAY')
    """
    return PartitionTransform("day", column, name=name)


def hour(column: str, *, name: str | None = None) -> PartitionTransform:
    """Partition by the hour of a timestamp, as text: ``2024-03-31T17``.

    Parameters
    ----------
    column
        Dimension with timestamps; those with a time zone are taken in UTC.
    name
        Name of the partition column; by default ``<column>_hour``.

    Returns
    -------
    PartitionTransform

    Raises
    ------
    TypeError
        A name is not text.

    Examples
    --------
    >>> hour("TIME").name
    'TIME_hour'
    """
    return PartitionTransform("hour", column, name=name)


def bucket(n: int, column: str, *, name: str | None = None) -> PartitionTransform:
    """Partition by a hash, an integer from 0 to ``n - 1``, which spreads many values evenly.

    The hash is that of Iceberg: the lower 31 bits of the 32-bit Murmur3 hash (x86, seed 0) modulo ``n``, of
    the UTF-8 of text, of bytes, and of 8 bytes (little-endian) of integers, days since 1970, and
    microseconds since 1970. It never changes.

    Parameters
    ----------
    n
        Number of buckets.
    column
        Dimension with integers, text, bytes, dates or timestamps.
    name
        Name of the partition column; by default ``<column>_bucket``.

    Returns
    -------
    PartitionTransform

    Raises
    ------
    TypeError
        A name is not text, or ``n`` no integer.
    ValueError
        ``n`` is not positive.

    Examples
    --------
    >>> bucket(16, "METER").apply(pa.array([34, 35])).to_pylist()
    [3, 5]
    """
    return _with_size("bucket", n, column, name)


def truncate(n: int, column: str, *, name: str | None = None) -> PartitionTransform:
    """Partition by the first ``n`` characters of text, or by intervals of integers of the width ``n``.

    Parameters
    ----------
    n
        Number of characters, or width; the value of an interval is its start, a multiple of ``n``.
    column
        Dimension with text or integers.
    name
        Name of the partition column; by default ``<column>_truncate``.

    Returns
    -------
    PartitionTransform

    Raises
    ------
    TypeError
        A name is not text, or ``n`` no integer.
    ValueError
        ``n`` is not positive.

    Examples
    --------
    >>> truncate(100, "SHOP").apply(pa.array([-1, 7, 250])).to_pylist()
    [-100, 0, 200]
    >>> truncate(2, "POSTCODE").apply(pa.array(["80331"])).to_pylist()
    ['80']
    """
    return _with_size("truncate", n, column, name)


def _with_size(function: str, n: Any, column: Any, name: str | None) -> PartitionTransform:
    if isinstance(n, str) and isinstance(column, int) and not isinstance(column, bool):
        raise TypeError(f"{function} takes the number first, as in Spark: {function}({column}, {n!r})")
    return PartitionTransform(function, column, n, name)


# -- metadata and conditions ---------------------------------------------------------------------------------


def parse_transform(text: str) -> PartitionTransform | str:
    """A partition column as text, for command lines and options: a name, or a transform."""
    functions = "|".join((*_UNITS, *_SIZED))
    match = re.fullmatch(rf"({functions})\((?:(\d+),)?\s*([^()]+?)\s*\)", text)
    if match is None:
        return text
    function, n, column = match.groups()
    return PartitionTransform(function, column, int(n or 0))


def read_transforms(metadata: Mapping[str, Any]) -> tuple[PartitionTransform, ...] | None:
    """The transforms in the metadata of a dataset, by their function; None if there is no record of any."""
    record = metadata.get(METADATA_KEY)
    if record is None:
        return None
    try:
        return tuple(PartitionTransform(name=name, **fields) for name, fields in record.items())
    except (AttributeError, TypeError, ValueError) as error:
        raise errors.CorruptDatasetError(METADATA_KEY, f"unknown partition transforms: {error}") from error


def refine(node: Node, transforms: Iterable[PartitionTransform], types: Mapping[str, pa.DataType]) -> Node:
    """The same tree with what it implies about partition columns, by which partitions are pruned."""
    if not isinstance(node, tuple):
        return type(node)(tuple(refine(operand, transforms, types) for operand in node.operands))
    implied = [t.imply(node, types[t.column]) for t in transforms if t.column == node[0] in types]
    return AllOf((node, *literals)) if (literals := [i for i in implied if i is not None]) else node


# -- times and integers --------------------------------------------------------------------------------------


def _as_times(array: pa.Array) -> npt.NDArray[np.datetime64]:
    """Dates and timestamps (in UTC) as those of NumPy."""
    unit = "D" if pat.is_date32(array.type) else array.type.unit
    numbers = array.view(pa.int32() if unit == "D" else pa.int64()).cast(pa.int64())
    times: npt.NDArray[np.datetime64] = numbers.to_numpy(zero_copy_only=False).view(f"M8[{unit}]")
    return times


def _format_units(units: npt.NDArray[np.datetime64], transform: PartitionTransform) -> pa.Array:
    """Years as integers, days as dates, months and hours as text in ISO 8601."""
    if transform.function == "year":
        return pa.array(units.astype(np.int64) + 1970)
    if transform.function == "day":
        return pa.array(units.astype(np.int64).astype(np.int32), pa.int32()).view(pa.date32())
    encoded = pa.array(units.astype(np.int64)).dictionary_encode()
    distinct = encoded.dictionary.to_numpy().view(units.dtype)
    years = distinct.astype("M8[Y]").astype(np.int64) + 1970
    if len(years) and not (_YEARS[0] <= years.min() and years.max() <= _YEARS[1]):
        column = f"Partition transform {transform!r}: column {transform.column!r}"
        raise ValueError(f"{column} has times out of the years 0 to 9999")
    return pa.array(np.datetime_as_string(distinct).tolist(), pa.string()).take(encoded.indices)


def _truncate_integers(array: pa.Array, transform: PartitionTransform) -> pa.Array:
    dtype = np.uint64 if pat.is_unsigned_integer(array.type) else np.int64
    numbers = array.to_numpy(zero_copy_only=False).astype(dtype)
    starts = numbers - np.mod(numbers, dtype(transform.n))
    if (starts > numbers).any():
        column = f"Partition transform {transform!r}: column {transform.column!r}"
        problem = "the start of whose interval is out of the range of integers"
        raise ValueError(f"{column} has {numbers.min()}, {problem}")
    return pa.array(starts)


# -- Murmur3 -------------------------------------------------------------------------------------------------

_Hashes = npt.NDArray[np.uint32]


def hash_values(array: pa.Array) -> _Hashes:
    """32-bit Murmur3 hashes (x86, seed 0) of values, as Iceberg specifies them."""
    if arrow.is_text(array.type) or pat.is_binary(array.type):
        array = array.cast(pa.large_binary())
        _, offsets, data = array.buffers()
        bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        content = np.frombuffer(b"" if data is None else data, np.uint8)
        return _hash_bytes(content, bounds[:-1], np.diff(bounds))
    if pat.is_integer(array.type):
        numbers = array.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        times = _as_times(array)
        numbers = (times if pat.is_date32(array.type) else times.astype("M8[us]")).astype(np.int64)
    content = numbers.astype("<i8").view(np.uint8)
    return _hash_bytes(content, np.arange(len(numbers)) * 8, np.full(len(numbers), 8))


def _hash_bytes(
    content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> _Hashes:
    """Hashes of parts of some bytes; all parts are hashed together, four bytes of each at a time."""
    content = np.append(content, np.zeros(4, np.uint8))
    hashes = np.zeros(len(starts), np.uint32)
    n_words = lengths // 4
    rows = np.arange(len(starts))
    for word in range(int(n_words.max(initial=0))):
        rows = rows[n_words[rows] > word]
        mixed = hashes[rows] ^ _mix(_read_words(content, starts[rows] + 4 * word))
        hashes[rows] = _rotate(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    tails = _read_words(content, starts + 4 * n_words)
    tails &= (np.uint32(1) << (lengths % 4 * 8).astype(np.uint32)) - np.uint32(1)
    hashes ^= _mix(tails) ^ lengths.astype(np.uint32)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _read_words(content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> _Hashes:
    """Four bytes from each start as a little-endian integer."""
    words = np.zeros(len(starts), np.uint32)
    for number in range(4):
        words |= content[starts + number].astype(np.uint32) << np.uint32(8 * number)
    return words


def _mix(words: _Hashes) -> _Hashes:
    return _rotate(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotate(words: _Hashes, bits: int) -> _Hashes:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))
