"""Types of the DataFrames of a query, decided when it is planned: the same in all groups, on all façades."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core.arguments import converter_str_tupleset
from kartothek_cube.core.arrow.dtype_backend import DtypeBackend, check_dtype_backend, nullable_dtype
from kartothek_cube.core.cube.argument_types import ConditionsInput, DatasetsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.logical_plan import Role
from kartothek_cube.io_components.query.physical_plan import (
    DatasetScan,
    PartitionSelection,
    PhysicalPlan,
    ResultTypes,
)
from kartothek_cube.io_components.query.planner import plan_query

__all__ = ("plan_frames", "plan_table")

#: days that datetime64[ns] can hold, since 1970
_FIRST_DAY, _LAST_DAY = -106751, 106751


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
    types = ResultTypes(backend) if backend or plan.groups is None else _group_types(plan)
    return attrs.evolve(plan, context=attrs.evolve(plan.context, types=types))


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
    schema = pa.schema([output.field(name) for name in ordered if name in output.names])
    return attrs.evolve(plan, context=attrs.evolve(plan.context, output=schema))


def _check_limit(limit: object) -> None:
    is_number = isinstance(limit, int | np.integer) and not isinstance(limit, bool)
    if limit is not None and not (is_number and limit >= 0):  # type: ignore[operator]
        raise ValueError(f"limit is a number of rows, 0 or more, got {limit!r}")


def _group_types(plan: PhysicalPlan) -> ResultTypes:
    """Types in all groups: nullable where a left join may leave values out."""
    # Groups are read one by one, by several processes, so that their rows cannot tell it. No file is opened
    # for it: nulls that are stored, and dates that nanoseconds cannot hold, only show in their own groups.
    dtypes: dict[str, str] = {}
    seconds: set[str] = set()
    for files in plan.files:
        scan = files.selection.scan
        if scan.role is Role.LEFT:
            dtypes |= _nullable_columns(plan, scan)
        dates = _date_columns(plan, scan) & files.selection.keys.keys()
        seconds.update(column for column in dates if _has_far_days(files.selection, column))
    return ResultTypes(dtypes=dtypes, seconds=frozenset(seconds))


def _nullable_columns(plan: PhysicalPlan, scan: DatasetScan) -> dict[str, str]:
    """Columns of integers and booleans that are not keys, with their nullable pandas type."""
    fields = [plan.context.output.field(c) for c in scan.payload if c in plan.context.output.names]
    types = {field.name: nullable_dtype(field.type) for field in fields}
    keys = {*plan.context.partition_by, *(scan.partition_keys if scan.role is not Role.LEFT else ())}
    return {column: dtype for column, dtype in types.items() if dtype is not None and column not in keys}


def _date_columns(plan: PhysicalPlan, scan: DatasetScan) -> set[str]:
    # dimensions and partition columns of the result come from the seed
    own = (
        {*scan.payload, *scan.dimensions, *scan.partition_keys} if scan.role is Role.SEED else {*scan.payload}
    )
    return {field.name for field in plan.context.output if field.name in own and pat.is_date(field.type)}


def _has_far_days(selection: PartitionSelection, column: str) -> bool:
    days = pc.min_max(selection.keys[column].cast(pa.int32())).as_py()
    return days["min"] is not None and (days["min"] < _FIRST_DAY or days["max"] > _LAST_DAY)
