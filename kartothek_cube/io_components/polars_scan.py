"""Lazy datasets as LazyFrames of polars: its expressions as those of Arrow, batches as frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import permutations
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.io_components.arrow_dataset import LazyDataset

if TYPE_CHECKING:
    import polars

__all__ = ("scan_lazily",)


def scan_lazily(dataset: LazyDataset) -> polars.LazyFrame:
    """LazyFrame that scans a dataset each time it is collected."""
    import polars
    from polars.io.plugins import register_io_source

    schema: pa.Schema = dataset.schema
    empty = polars.DataFrame(schema.empty_table())

    def scan(
        columns: list[str] | None, predicate: polars.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[polars.DataFrame]:
        selected = schema.names if columns is None else columns
        # the predicate decides about rows, not its translation: NaN is the greatest value for polars
        needed = selected if predicate is None else [*selected, *predicate.meta.root_names()]
        # a limit counts rows before the predicate: polars gives both for head(n).filter(...)
        is_filter = predicate is not None and n_rows is None
        scanner = dataset.scanner(
            columns=list(dict.fromkeys(needed)) or schema.names[:1],
            filter=implied_expression(predicate, schema) if predicate is not None and is_filter else None,
            **({} if batch_size is None else {"batch_size": max(1, batch_size)}),
        )
        yield empty.select(selected)
        missing = n_rows
        for batch in scanner.to_batches(sequential=True) if missing is not None else scanner.to_batches():
            frame = polars.DataFrame(batch)
            if missing is not None:
                frame = frame.head(missing)
                missing -= frame.height
            frame = frame if predicate is None else frame.filter(predicate)
            # without columns, a frame has no rows: those of the first column are counted
            yield frame.select(selected or schema.names[:1])
            if missing == 0:
                return

    return register_io_source(scan, schema=empty.schema)


def implied_expression(predicate: polars.Expr, schema: pa.Schema) -> pc.Expression | None:
    """Expression of Arrow that is true wherever a predicate of polars is; None if nothing is known.

    >>> import polars as pl
    >>> predicate = (pl.col("CITY") == "Rom") & (pl.col("DAY") % 7 == 0)
    >>> print(implied_expression(predicate, pa.schema([("CITY", pa.string()), ("DAY", pa.int64())])))
    (CITY == "Rom")
    """
    try:
        operands = _operands(predicate, and_)
        known = [implied_expression(operand, schema) for operand in operands or ()]
        if operands is not None:
            parts = [expression for expression in known if expression is not None]
            return reduce(and_, parts) if parts else None
        return _translate(predicate, schema)
    # polars documents no way to inspect an expression: without a translation, all rows are read
    except Exception:
        return None


_COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (eq, ne, lt, le, gt, ge)
#: comparisons of floats that NaN meets for neither polars nor Arrow
_WITHOUT_NAN = (eq, lt, le)


def _operands(expr: polars.Expr, function: Callable[..., Any], **options: Any) -> list[polars.Expr] | None:
    """Operands of an expression if it calls the function."""
    # public methods only: an expression equals what the function makes of its operands, or it does not
    operands: list[polars.Expr] = expr.meta.pop()
    for order in permutations(operands) if 1 <= len(operands) <= 3 else ():
        try:
            if function(*order, **options).meta.eq(expr):
                return list(order)
        except TypeError:  # another number of operands
            return None
    return None


def _translate(expr: polars.Expr, schema: pa.Schema) -> pc.Expression | None:
    """The same expression of Arrow; None if there is none with the same result."""
    if expr.meta.is_column():
        field = schema.field(expr.meta.output_name())
        return pc.field(field.name) if pat.is_boolean(field.type) else None
    if expr.meta.is_literal():
        value = _scalar(expr)
        return pc.scalar(value) if pat.is_boolean(value.type) else None
    for combine in (and_, or_):
        if (operands := _operands(expr, combine)) is not None:
            left, right = (_translate(operand, schema) for operand in operands)
            return None if left is None or right is None else combine(left, right)
    if (operands := _operands(expr, lambda operand: ~operand)) is not None:
        operand = _translate(operands[0], schema)
        return None if operand is None else ~operand
    for test in ("is_null", "is_not_null"):
        if (operands := _operands(expr, lambda e, test=test: getattr(e, test)())) is not None:
            column = _column(operands[0], schema)
            arrow = None if column is None else pc.field(column.name)
            return None if arrow is None else arrow.is_null() if test == "is_null" else arrow.is_valid()
    for compare in _COMPARISONS:
        if (operands := _operands(expr, compare)) is not None:
            return _comparison(operands, compare, schema)
    return _function(expr, schema)


def _comparison(
    operands: list[polars.Expr], compare: Callable[[Any, Any], Any], schema: pa.Schema
) -> pc.Expression | None:
    left, right = operands
    column = _column(left, schema)
    if column is None or not right.meta.is_literal():
        return None
    if pat.is_floating(column.type) and compare not in _WITHOUT_NAN:
        return None
    expression: pc.Expression = compare(pc.field(column.name), pc.scalar(_scalar(right)))
    return expression


def _function(expr: polars.Expr, schema: pa.Schema) -> pc.Expression | None:
    """Translate ``is_in``, ``is_between`` and ``starts_with``."""
    if (operands := _operands(expr, lambda e, listed: e.is_in(listed))) is not None:
        column, listed = _column(operands[0], schema), operands[1]
        if column is None or not listed.meta.is_literal():
            return None
        values = _scalar(listed).values
        return None if values.null_count else pc.field(column.name).isin(values)
    for closed in ("both", "left", "right", "none"):
        operands = _operands(expr, lambda e, low, high, c=closed: e.is_between(low, high, closed=c))
        if operands is not None:
            subject, low, high = operands
            lower = _comparison([subject, low], ge if closed in ("both", "left") else gt, schema)
            upper = _comparison([subject, high], le if closed in ("both", "right") else lt, schema)
            return None if lower is None or upper is None else lower & upper
    if (operands := _operands(expr, lambda e, prefix: e.str.starts_with(prefix))) is not None:
        column = _column(operands[0], schema)
        if column is not None and operands[1].meta.is_literal():
            return pc.starts_with(pc.field(column.name), _scalar(operands[1]).as_py())
    return None


def _column(expr: polars.Expr, schema: pa.Schema) -> pa.Field | None:
    return schema.field(expr.meta.output_name()) if expr.meta.is_column() else None


def _scalar(expr: polars.Expr) -> pa.Scalar:
    """Value of a literal."""
    import polars

    return polars.select(expr).to_series().to_arrow()[0]
