"""Which row groups of a Parquet file can hold matching rows, by their statistics."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core._literals import Literal, bind_literal
from kartothek_cube.core.predicates import PredicatesType

__all__ = ("matching_row_groups",)


def matching_row_groups(metadata: Any, schema: pa.Schema, predicates: PredicatesType) -> list[int]:
    """
    Numbers of the row groups that cannot be skipped.

    Parameters
    ----------
    metadata
        Footer of the file (:class:`pyarrow.parquet.FileMetaData`).
    schema
        Arrow schema of the file.
    predicates
        The filter, bound to this schema before.

    Returns
    -------
    list of int
        Row groups without statistics, or with statistics that make no sense, are kept.
    """
    if predicates is None:
        return list(range(metadata.num_row_groups))
    paths = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    bound = [
        [
            (
                bind_literal(schema.field(column).type, op, value, column),
                paths.get(column),
                schema.field(column),
            )
            for column, op, value in conjunction
        ]
        for conjunction in predicates
    ]
    return [
        number
        for number in range(metadata.num_row_groups)
        if any(
            all(
                _possible(literal, field.type, metadata.row_group(number), path)
                for literal, path, field in conj
            )
            for conj in bound
        )
    ]


def _possible(literal: Literal, dtype: pa.DataType, row_group: Any, position: int | None) -> bool:
    if literal.kind == "never":
        return False
    statistics = None if position is None else row_group.column(position).statistics
    if statistics is None or literal.kind in ("valid", "not in"):
        return True
    if (literal.kind == "null" or literal.or_null) and _may_hold_null(statistics, dtype):
        return True
    if literal.kind == "null":
        return False
    limits = _limits(statistics, dtype)
    return limits is None or _overlaps(literal, *limits)


def _may_hold_null(statistics: Any, dtype: pa.DataType) -> bool:
    # NaN counts as null, but statistics do not count it.
    return bool(pat.is_floating(dtype) or not statistics.has_null_count or statistics.null_count > 0)


def _limits(statistics: Any, dtype: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Smallest and largest value; None if the file does not say or says nonsense."""
    value_type = dtype.value_type if pat.is_dictionary(dtype) else dtype
    try:
        if not statistics.has_min_max:
            return None
        low, high = pa.scalar(statistics.min, value_type), pa.scalar(statistics.max, value_type)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None
    # False as well if one of them is NaN. Some old writers got the order of unsigned integers wrong.
    return (low, high) if pc.less_equal(low, high).as_py() else None


def _overlaps(literal: Literal, low: pa.Scalar, high: pa.Scalar) -> bool:
    value = literal.operand
    if literal.kind == "in":
        inside = pc.and_(pc.less_equal(low, value), pc.less_equal(value, high))
        return bool(pc.any(inside).as_py())
    if literal.op == "==":
        return bool(pc.less_equal(low, value).as_py() and pc.less_equal(value, high).as_py())
    if literal.op == "!=":
        return not (low.equals(high) and pc.equal(low, value).as_py())
    compare = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}[literal.op]
    return bool(compare(low if literal.op in ("<", "<=") else high, value).as_py())
