"""Plans of queries whose results are DataFrames or one table."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arguments import converter_str_tupleset
from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend, check_dtype_backend
from kartothek_cube.core.copying import replace_fields
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.maintenance.history import CubeAsOf
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan
from kartothek_cube.io_components.query.planner import plan_query


def plan_frames(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
    dtype_backend: DtypeBackend | None = None,
) -> PhysicalPlan:
    """Plan a query whose results are DataFrames; as :func:`plan_query`, with their types."""
    backend = check_dtype_backend(dtype_backend)
    plan = plan_query(
        cube, store, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of=as_of
    )
    if backend is None:
        return plan
    return replace_fields(plan, context=replace_fields(plan.context, dtype_backend=backend))


def plan_table(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    columns: str | Iterable[str] | None = None,
    limit: int | None = None,
    as_of: CubeAsOf | None = None,
    dtype_backend: DtypeBackend | None = None,
) -> PhysicalPlan:
    """Plan a query for one frame or table; columns in the order asked for, dimensions first by default."""
    if columns is not None and payload_columns is not None:
        raise ValueError("Pass columns or payload_columns, not both: they are two names of one parameter")
    _check_limit(limit)
    names = columns if payload_columns is None else payload_columns
    requested = None if names is None else converter_str_tupleset(names)
    plan = plan_frames(
        cube,
        store,
        conditions,
        datasets,
        dimension_columns,
        None,
        requested,
        as_of=as_of,
        dtype_backend=dtype_backend,
    )
    output = plan.context.output
    # the rows are sorted by dimensions, then partition columns
    keys = [name for name in plan.context.sort_columns if name not in (requested or ())]
    ordered = dict.fromkeys([*keys, *(requested or output.names)])
    fields = {field.name: field for field in output}
    schema = pa.schema([fields[name] for name in ordered if name in fields])
    return attrs.evolve(plan, context=attrs.evolve(plan.context, output=schema))


def _check_limit(limit: object) -> None:
    is_number = isinstance(limit, int | np.integer) and not isinstance(limit, bool)
    if limit is not None and not (is_number and limit >= 0):  # type: ignore[operator]
        raise ValueError(f"limit is a number of rows, 0 or more, got {limit!r}")
