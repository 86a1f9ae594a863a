"""Conditions as people write them, in options and on command lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pyarrow as pa

from kartothek_cube.core.cube.conditions import Condition, Conjunction

__all__ = ("parse_conditions",)


def parse_conditions(text: str, types: Mapping[str, pa.DataType]) -> Conjunction:
    """
    Read conditions, on columns of dates as well.

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
    ValueError
        One cannot be read.

    Examples
    --------
    >>> types = {"DAY": pa.date32(), "COUNTRY_CODE": pa.string()}
    >>> parse_conditions("DAY >= 2020-01-31 & COUNTRY_CODE == DE", types).conditions[0].value
    datetime.date(2020, 1, 31)
    """
    dates = {name for name, dtype in types.items() if pa.types.is_date(dtype)}
    readable = {name: pa.timestamp("ns") if name in dates else dtype for name, dtype in types.items()}
    conditions = Conjunction.from_string(text, readable).conditions
    return Conjunction([_with_date(c) if c.column in dates else c for c in conditions])


def _with_date(condition: Any) -> Condition:
    """Compare a column of dates with a date, which was read like a time stamp."""
    stamp = condition.value
    if stamp != stamp.normalize():
        raise ValueError(
            f"Condition '{condition}': column {condition.column} has dates, without a time of day"
        )
    result: Condition = attrs.evolve(condition, value=stamp.date())
    return result
