"""Cubes as Arrow tables: the queries of ``io.eager_cube`` without pandas.

Examples
--------
>>> import pyarrow as pa
>>> from kartothek_cube.core.cube.cube import Cube
>>> from kartothek_cube.io.eager_cube import build_cube
>>> from storefact import get_store_from_url
>>> store = get_store_from_url("hmemory://")
>>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
>>> cities = pa.table({"CITY": ["Ulm", "Bonn"], "COUNTRY_CODE": ["DE", "DE"], "LATITUDE": [48.4, 50.7]})
>>> _ = build_cube(cities, cube, store)
>>> query_cube_arrow(cube, store)[0].to_pylist()[0]
{'CITY': 'Bonn', 'COUNTRY_CODE': 'DE', 'LATITUDE': 50.7}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from kartothek_cube.core.arrow.dtype_backend import cast_to_schema
from kartothek_cube.core.arrow.pandas_conversion import to_memory
from kartothek_cube.core.cube.argument_types import ConditionsInput, DatasetsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io._local_executor import execute
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.executor import query_table_job, run_task
from kartothek_cube.io_components.query.planner import plan_query
from kartothek_cube.io_components.query.result_types import plan_table

if TYPE_CHECKING:
    import polars

__all__ = ("query_cube_arrow", "query_cube_polars", "query_cube_table")


def query_cube_arrow(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
) -> list[pa.Table]:
    """
    Query a cube; the tables that :func:`kartothek_cube.io.eager_cube.query_cube` turns into frames.

    Timestamps are in ns, dates stay dates, and missing values change no type. The write functions of
    :mod:`kartothek_cube.io.eager_cube` take Arrow tables as well, so that a pipeline need not use pandas.
    """
    plan = plan_query(
        cube, store, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of=as_of
    )
    task = plan.single_task()
    return [] if task is None else [to_memory(table) for table in run_task(plan.context, task)]


def query_cube_table(
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
) -> pa.Table:
    """
    Query a cube into one Arrow table; see :func:`kartothek_cube.io.eager_cube.query_cube_df`.

    Types are those of the schema, with and without rows.
    """
    plan = plan_table(
        cube,
        store,
        conditions,
        datasets,
        dimension_columns,
        payload_columns,
        columns=columns,
        limit=limit,
        as_of=as_of,
    )
    return to_memory(cast_to_schema(execute(query_table_job(plan, limit)), plan.context.output))


def query_cube_polars(
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
) -> polars.DataFrame:
    """Query a cube into one polars frame; as :func:`query_cube_table`. Needs polars."""
    import polars

    table = query_cube_table(
        cube,
        store,
        conditions,
        datasets,
        dimension_columns,
        payload_columns,
        columns=columns,
        limit=limit,
        as_of=as_of,
    )
    return polars.DataFrame(table)
