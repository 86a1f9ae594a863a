"""Datasets as Arrow tables: the reads of ``io.eager`` and ``io.iter`` without pandas.

The functions that write take Arrow tables, and whatever else has the Arrow C stream interface, as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from kartothek_cube.core.factory import DatasetAsOf, DatasetFactory
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io_components import arrow_dataset, dataset_arguments, dataset_read, facade
from kartothek_cube.io_components.arrow_dataset import DatasetSource, LazyDataset, TimestampUnit

__all__ = ["dataset", "read_table_arrow", "read_dataset_as_arrow", "read_dataset_as_record_batches"]
__all__ += ["read_dataset_as_arrow__iter", "read_dataset_as_arrow__iterator"]


@facade.define_facade(dataset_read.ReadTableArrow)
def read_table_arrow(read: dataset_read.ReadTableArrow) -> pa.Table:
    plan = read.plan()
    if (task := plan.single_task()) is None:
        return dataset_read.empty_table(plan.context)
    return dataset_read.run_read(plan.context, task)


@facade.define_facade(dataset_read.ReadTablesArrow)
def read_dataset_as_arrow(read: dataset_read.ReadTablesArrow) -> list[pa.Table]:
    """Read a dataset, an Arrow table per partition or group."""
    return list(dataset_read.run_each(read.plan()))


@facade.define_facade(dataset_read.ReadTablesArrow)
def read_dataset_as_arrow__iterator(read: dataset_read.ReadTablesArrow) -> Iterator[pa.Table]:
    """Read a dataset, one Arrow table after the other.

    The read is planned when the first table is taken; each table is read when it is taken.
    """
    yield from dataset_read.run_each(read.plan(), threads=1)


# the same name as those of the other functions
read_dataset_as_arrow__iter = read_dataset_as_arrow__iterator


@facade.define_facade(dataset_read.ReadBatches)
def read_dataset_as_record_batches(read: dataset_read.ReadBatches) -> pa.RecordBatchReader:
    """Read a dataset as a stream for other engines (DuckDB, polars, Spark).

    Batches come partition by partition, with the same types in all of them.
    """
    plan = read.plan()
    schema = dataset_read.empty_table(plan.context).schema.remove_metadata()
    return pa.RecordBatchReader.from_batches(schema, _batches(plan, schema))


def _batches(plan: dataset_read.ReadPlan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for table in dataset_read.run_each(plan, threads=1):
        yield from arrow_dataset.cast_table(table, schema).to_batches()


def dataset(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    table_name: str | None = None,
    timestamp_unit: TimestampUnit = "us",
    as_of: DatasetAsOf | None = None,
) -> LazyDataset:
    """Open a dataset as a ``pyarrow.dataset.Dataset``, for DuckDB, Polars and other engines.

    Scans and filters are as in :func:`kartothek_cube.io.arrow_cube.cube_dataset`, which is the function for
    datasets of a cube: it leaves out what has been overwritten.

    Parameters
    ----------
    dataset_uuid, store, factory
        The dataset, as in :func:`kartothek_cube.io.eager.read_table`.
    table_name
        The table, if the dataset has several.
    timestamp_unit
        Unit of all timestamps: files hold microseconds, and DuckDB pushes filters down for "us" only. A scan
        raises TypeError for a timestamp that the unit cannot hold.
    as_of
        Version or point in time; or a staged write.

    Returns
    -------
    LazyDataset

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        There is no such table.

    Examples
    --------
    >>> import duckdb
    >>> import pyarrow as pa
    >>> from kartothek_cube import ensure_store, store_dataframes_as_dataset
    >>> store = ensure_store("hmemory://")
    >>> table = pa.table({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [table], partition_on="COUNTRY_CODE")
    >>> cities = dataset("geodata", store)
    >>> duckdb.sql("SELECT CITY FROM cities WHERE COUNTRY_CODE = 'IT'").fetchall()
    [('Rom',)]
    """
    opened = dataset_arguments.dataset_factory(dataset_uuid, store, factory)
    source = DatasetSource(opened.dataset_uuid, opened.store_factory, table_name, as_of)
    return LazyDataset(source, schema=arrow_dataset.in_unit(source.read_schema(), timestamp_unit))
