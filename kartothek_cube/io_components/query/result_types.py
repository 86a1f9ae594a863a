"""Plans of queries whose results are DataFrames or one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arguments import converter_str_tupleset
from kartothek_cube.core.arrow.pandas_conversion import check_dtype_backend
from kartothek_cube.core.copying import replace_fields
from kartothek_cube.io_components.facade import StoreT
from kartothek_cube.io_components.query.cube_query import QueryFrames, QueryTable
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan
from kartothek_cube.io_components.query.planner import plan_query


def plan_frames(query: QueryFrames[StoreT]) -> PhysicalPlan:
    """Plan a query whose results are DataFrames; as :func:`plan_query`, with their types."""
    backend = check_dtype_backend(query.dtype_backend)
    plan = plan_query(query)
    if backend is None:
        return plan
    return replace_fields(plan, context=replace_fields(plan.context, dtype_backend=backend))


def plan_table(query: QueryTable[StoreT]) -> PhysicalPlan:
    """Plan a query for one frame or table; columns in the order asked for, dimensions first by default."""
    if query.columns is not None and query.payload_columns is not None:
        raise ValueError("Pass columns or payload_columns, not both: they are two names of one parameter")
    _check_limit(query.limit)
    names = query.columns if query.payload_columns is None else query.payload_columns
    requested = None if names is None else converter_str_tupleset(names)
    frames = QueryFrames(
        query.cube,
        query.store,
        query.conditions,
        query.datasets,
        query.dimension_columns,
        payload_columns=requested,
        as_of=query.as_of,
        changed_since=query.changed_since,
        dtype_backend=query.dtype_backend,
    )
    plan = plan_frames(frames)
    output = plan.context.output
    # the rows are sorted by dimensions, then partition columns
    ordered = order_columns(plan.context.sort_columns, requested, output.names)
    schema = pa.schema([output.field(name) for name in ordered])
    return attrs.evolve(plan, context=attrs.evolve(plan.context, output=schema))


def order_columns(
    keys: Iterable[str], requested: str | Iterable[str] | None, available: Sequence[str]
) -> list[str]:
    """
    Order the columns of a result as they are asked for, the keys first unless they are named as well.

    >>> order_columns(["CITY", "DAY"], ["TEMP", "DAY"], ["CITY", "DAY", "RAIN", "TEMP"])
    ['CITY', 'TEMP', 'DAY']
    """
    names = None if requested is None else converter_str_tupleset(requested)
    unnamed = [name for name in keys if name not in (names or ())]
    return [
        name
        for name in dict.fromkeys([*unnamed, *(available if names is None else names)])
        if name in available
    ]


def _check_limit(limit: object) -> None:
    is_number = isinstance(limit, int | np.integer) and not isinstance(limit, bool)
    if limit is not None and not (is_number and limit >= 0):  # type: ignore[operator]
        raise ValueError(f"limit is a number of rows, 0 or more, got {limit!r}")
