"""Conditions as people write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from kartothek_cube.cli._errors import fail, one_line

if TYPE_CHECKING:
    from kartothek_cube.core.cube.conditions import Condition, Conjunction

__all__ = ("ALL", "parse_conditions")

#: stands for all columns
ALL = "__all__"


def parse_conditions(text: str, types: dict[str, pa.DataType]) -> Conjunction:
    """
    Read conditions.

    Parameters
    ----------
    text
        ``column operator value``, joined by ``&``.
    types
        Types of all columns.

    Returns
    -------
    Conjunction

    Raises
    ------
    click.UsageError
        One cannot be read.
    """
    from kartothek_cube.core.cube.conditions import Conjunction

    dates = {name for name, dtype in types.items() if pa.types.is_date(dtype)}
    readable = {name: pa.timestamp("ns") if name in dates else dtype for name, dtype in types.items()}
    try:
        conditions = Conjunction.from_string(text, readable).conditions
    except ValueError as error:
        fail(one_line(error))
    return Conjunction([_with_date(c) if c.column in dates else c for c in conditions])


def _with_date(condition: Any) -> Condition:
    """Compare a column of dates with a date, which was read like a time stamp."""
    stamp = condition.value
    if stamp != stamp.normalize():
        fail(f"Condition '{condition}': column {condition.column} has dates, without a time of day")
    result: Condition = attrs.evolve(condition, value=stamp.date())
    return result
