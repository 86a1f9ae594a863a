"""Cubes as Arrow tables: the queries of ``io.eager_cube`` without pandas."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from kartothek_cube.core.arguments import parse_name, parse_names
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput, find_cube
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io_components import arrow_dataset
from kartothek_cube.io_components.arrow_dataset import CubeSource, LazyDataset, TimestampUnit
from kartothek_cube.io_components.facade import Example, define_facade
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.executor import announce_query, query_table, run_task
from kartothek_cube.io_components.query.logical_plan import QueryCube, QueryTable
from kartothek_cube.io_components.query.physical_plan import plan_query, plan_table
from kartothek_cube.io_components.runtime import store_factory

if TYPE_CHECKING:
    import polars

__all__ = ["cube_dataset", "scan_cube"]
__all__ += ["query_cube_arrow", "query_cube_as_record_batches", "query_cube_polars", "query_cube_table"]


def query_cube_as_record_batches(
    cube: Cube | str,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    *,
    columns: str | Iterable[str] | None = None,
    as_of: CubeAsOf | None = None,
) -> pa.RecordBatchReader:
    """Query a cube as a stream for other engines, in bounded memory; see :func:`query_cube_table`.

    Batches come partition by partition: rows are in order of the dimensions within a partition only.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    conditions, datasets, as_of
        As in :func:`kartothek_cube.io.eager_cube.query_cube`.
    columns
        Columns of the stream, in this order; by default all.

    Returns
    -------
    pyarrow.RecordBatchReader

    Raises
    ------
    ValueError
        There is no such cube, dataset, column or version.
    TypeError
        A condition does not fit the type of its column.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> query_cube_as_record_batches(cube, store, columns="CITY").read_all()["CITY"].to_pylist()
    ['Bonn', 'Rom']
    """
    cube = find_cube(cube, store)
    source = CubeSource(cube, store_factory(store), conditions, datasets, as_of)
    dataset = LazyDataset(source, schema=source.read_schema())
    names = None if columns is None else list(parse_names("columns", columns))
    return dataset.scanner(columns=names).to_reader()


def cube_dataset(
    cube: Cube | str,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    *,
    dataset_id: str | None = None,
    timestamp_unit: TimestampUnit = "us",
    as_of: CubeAsOf | None = None,
) -> LazyDataset:
    """Open a cube as a ``pyarrow.dataset.Dataset``, for DuckDB, Polars and other engines.

    Nothing but headers is read before a scan. Each scan sees the newest snapshot, opens only the files and
    the columns that it needs, and reads partition by partition: memory is bounded by the largest partitions,
    not by the cube. Filters prune partitions, indices and row groups as far as they imply conditions on
    single columns; they are evaluated on the rows, with the logic of the engine.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    conditions
        What all rows have to meet, for conditions that an engine does not push down.
    datasets
        Ids of the datasets; or loaded datasets, so that all scans see the same snapshot.
    dataset_id
        Open one dataset of the cube: its own rows, whether the seed has their cells or not.
    timestamp_unit
        Unit of all timestamps: files hold microseconds, and DuckDB pushes filters down for "us" only. A scan
        raises TypeError for a timestamp that the unit cannot hold.
    as_of
        Version or point in time of the cube; as in :func:`kartothek_cube.io.eager_cube.query_cube`.

    Returns
    -------
    LazyDataset

    Raises
    ------
    ValueError
        There is no such cube, dataset, column or version.
    TypeError
        A condition does not fit the type of its column.

    Examples
    --------
    >>> import duckdb
    >>> import pyarrow.compute as pc
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pa.table({"CITY": ["Ulm", "Bonn"], "COUNTRY_CODE": ["DE", "DE"], "LATITUDE": [48.4, 50.7]})
    >>> _ = build_cube(cities, cube, store)
    >>> geodata = cube_dataset(cube, store)
    >>> geodata.to_table(columns=["CITY"], filter=pc.field("LATITUDE") > 50).to_pylist()
    [{'CITY': 'Bonn'}]
    >>> duckdb.sql("SELECT max(LATITUDE) FROM geodata").fetchall()
    [(50.7,)]
    """
    cube = find_cube(cube, store)
    if isinstance(conditions, str) and re.fullmatch(r"[\w-]+", conditions):
        raise ValueError(
            f"{conditions!r} is no condition: compare a column with a value, as in 'TEMP > 10'; "
            f"a dataset is named by dataset_id={conditions!r}"
        )
    if dataset_id is None:
        source = CubeSource(cube, store_factory(store), conditions, datasets, as_of)
    elif conditions is None and datasets is None:
        name = parse_name("dataset_id", dataset_id)
        source = CubeSource(cube, store_factory(store), as_of=as_of, dataset_id=name)
    else:
        raise ValueError("Pass either dataset_id, or conditions and datasets, which are those of the cube")
    return LazyDataset(source, schema=arrow_dataset.in_unit(source.read_schema(), timestamp_unit))


def scan_cube(
    cube: Cube | str,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    *,
    dataset_id: str | None = None,
    as_of: CubeAsOf | None = None,
) -> polars.LazyFrame:
    """Open a cube as a polars LazyFrame.

    Columns, filters and limits are pushed down as for :func:`cube_dataset`. Filters
    are evaluated by polars, so that NaN and null mean the same as for any other LazyFrame; that is why this
    is not ``polars.scan_pyarrow_dataset``, which leaves them to Arrow.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    conditions, datasets, dataset_id, as_of
        As in :func:`cube_dataset`.

    Returns
    -------
    polars.LazyFrame

    Raises
    ------
    ValueError, TypeError
        As :func:`cube_dataset`.

    Examples
    --------
    >>> import polars as pl
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pa.table({"CITY": ["Ulm", "Bonn"], "COUNTRY_CODE": ["DE", "DE"], "LATITUDE": [48.4, 50.7]})
    >>> _ = build_cube(cities, cube, store)
    >>> scan_cube(cube, store).filter(pl.col("LATITUDE") > 50).select("CITY").collect().rows()
    [('Bonn',)]
    """
    dataset = cube_dataset(cube, store, conditions, datasets, dataset_id=dataset_id, as_of=as_of)
    return arrow_dataset.scan_lazily(dataset)


_TYPES = {"StoreT": "StoreInput"}


_COLUMNS = "Columns in the order that is asked for, also without rows."
_EXAMPLE = """>>> import tempfile
>>> import pandas as pd
>>> from kartothek_cube import Cube, build_cube
>>> from kartothek_cube.io.arrow_cube import {0}
>>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), "hfs://" + tempfile.mkdtemp()
>>> cities = pd.DataFrame([["Bonn", "DE"], ["Rom", "IT"]], columns=["CITY", "COUNTRY_CODE"])
>>> _ = build_cube(cities, cube, store)
>>> {0}(cube, store, "COUNTRY_CODE == IT"){1}
[{{'CITY': 'Rom', 'COUNTRY_CODE': 'IT'}}]"""


@define_facade(
    QueryCube[StoreInput],
    _TYPES,
    example=Example(value="[table.to_pandas() for table in {}]"),
    returns="One table per group with rows, sorted by the values of ``partition_by``; without it one, or "
    "none if nothing matches.",
)
def query_cube_arrow(query: QueryCube[StoreInput]) -> list[pa.Table]:
    """Query a cube into Arrow tables, one per group.

    Timestamps are in ns, or in us (:ref:`types`), dates stay dates, and missing values change no type. The
    write functions of :mod:`kartothek_cube.io.eager_cube` take Arrow tables as well, so that a pipeline need
    not use pandas.
    """
    plan = plan_query(query)
    task = plan.single_task()
    tables = [] if task is None else run_task(plan.context, task)
    announce_query(plan, sum(map(len, tables)))
    return tables


_TABLE = _EXAMPLE.format("query_cube_table", ".to_pylist()")
_POLARS = _EXAMPLE.format("query_cube_polars", ".to_dicts()")


@define_facade(QueryTable[StoreInput], _TYPES, example=_TABLE, returns=_COLUMNS)
def query_cube_table(query: QueryTable[StoreInput]) -> pa.Table:
    """Query a cube into one Arrow table.

    Types are those of the schema, with and without rows.
    """
    return query_table(plan_table(query), query.limit)


@define_facade(QueryTable[StoreInput], _TYPES, example=_POLARS, returns=_COLUMNS)
def query_cube_polars(query: QueryTable[StoreInput]) -> polars.DataFrame:
    """Query a cube into one polars frame.

    The table is that of :func:`~kartothek_cube.io.arrow_cube.query_cube_table`.
    """
    import polars

    return polars.DataFrame(query_table(plan_table(query), query.limit))
