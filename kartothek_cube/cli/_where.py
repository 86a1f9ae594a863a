"""Conditions as people write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from kartothek_cube.cli._errors import one_line, usage_error

if TYPE_CHECKING:
    from kartothek_cube.core.cube.conditions import Conjunction

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
    from kartothek_cube.core.cube import conditions

    try:
        return conditions.parse_conditions(text, types)
    except ValueError as error:
        usage_error(one_line(error))
