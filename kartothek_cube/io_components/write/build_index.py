"""Add indices or column statistics: plan (columns by table), run (some partitions), finish (one commit)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic

import attrs
import pyarrow as pa

from kartothek_cube.core import arguments, errors, expressions, history, index
from kartothek_cube.core.commit import optimistic
from kartothek_cube.core.commit.change import IndexUpdate
from kartothek_cube.core.cube import consistency, discover
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.pruning import STATISTICS, collect_statistics, statistics_columns
from kartothek_cube.core.schema import long_types, read_schema_metadata
from kartothek_cube.core.store import BlobStore, StoreFactory, StoreInput, open_blobs
from kartothek_cube.io_components import runtime
from kartothek_cube.io_components.dataset_arguments import check_new_indices, dataset_factory, normalize_arg
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.publication.published_table import publish_committed
from kartothek_cube.io_components.write.stored_rows import StoredRows
from kartothek_cube.io_components.write.write_plan import (
    WriteResult,
    WriteSpec,
    Written,
    merge_results,
    merge_writes,
)


def _plan_tables(dataset: DatasetMetadata, store: StoreFactory, columns: Sequence[str]) -> list[StoredRows]:
    """The tables of a dataset, each with the columns to index that it has."""
    check_new_indices(dataset.uuid, columns, dataset.partition_keys)
    blobs = open_blobs(store)
    if dataset.schema is not None:
        schemas = {dataset.table_name: dataset.schema}
    else:
        schemas = {table: read_schema_metadata(dataset.uuid, blobs, table) for table in dataset.tables}
    stored = {name for schema in schemas.values() for name in schema.names}
    where = f"Column(s) to index could not be found in dataset {dataset.uuid!r}: "
    errors.check_names(where, "column", columns, stored, error=RuntimeError)
    tables = []
    for table, schema in schemas.items():
        own = tuple(column for column in columns if column in set(schema.names))
        for column in own:
            dtype = schema.field(column).type
            if pa.types.is_nested(dtype) or pa.types.is_null(dtype):
                reason = "nested values have no order" if pa.types.is_nested(dtype) else "all values are null"
                raise NotImplementedError(
                    f"Cannot index dataset {dataset.uuid} by column {column} of type {dtype}: {reason}"
                )
        spec = WriteSpec(store, dataset.uuid, table, tuple(dataset.partition_keys), own)
        tables.append(StoredRows(spec, schema.internal(), dataset.column_mapping))
    return tables


def _file_types(dataset: DatasetMetadata, columns: Sequence[str], blobs: BlobStore) -> dict[str, pa.DataType]:
    """Long types of values in index files, which the replaced index or the schema file has."""
    # Either was written by a library that refuses to update an index of another type.
    types = {}
    for table in dataset.tables:
        # a header of this library has its schema, and the commit writes a lost or damaged file again
        with suppress(KeyError, errors.CorruptDatasetError):
            types.update(long_types(dataset.uuid, blobs, table))
    for column in set(columns) & set(dataset.secondary_indices):
        # that it is lost or damaged may be why it is rebuilt
        with suppress(KeyError, errors.CorruptDatasetError):
            data = dataset.secondary_indices[column].load(blobs).columns_data
            if data is not None and data.file_type is not None:
                types[column] = data.file_type
    return {column: types[column] for column in columns if column in types}


def run_index_build(tables: Sequence[StoredRows], partitions: PartitionTable) -> WriteResult:
    """Collect the index entries of some partitions; only the columns to index are read."""
    return tables[0].spec.merge(
        WriteResult(spec.uuid, spec.table, indices=stored.read_indices(partitions, spec.indices))
        for stored in tables
        if (spec := stored.spec).indices
    )


def finish_index_build(
    tables: Sequence[StoredRows], file_types: Mapping[str, pa.DataType], results: Iterable[WriteResult]
) -> DatasetMetadata:
    """Commit the indices; with the types of their values in index files, where these differ."""
    types = {c: stored.schema.field(c).type for stored in tables for c in stored.spec.indices}
    nothing = {c: IndexUpdate.empty(dtype, file_types.get(c)) for c, dtype in types.items()}
    first = tables[0].spec
    merged = merge_results([WriteResult(first.uuid, first.table, indices=nothing), *results])
    change = merged.change_set(new_indices=frozenset(types), info=history.describe_operation("build_index"))
    dataset, _ = optimistic.commit(open_blobs(first.store), change, partial(_read_back, tables))
    return dataset


def _read_back(tables: Sequence[StoredRows], column: str, labels: Sequence[str]) -> IndexUpdate:
    """Entries of partitions that were added after the indices were planned."""
    specs = [stored.spec for stored in tables]
    added = [PartitionTable.from_labels(spec.uuid, spec.table, labels) for spec in specs]
    files = {table: keys for partitions in added for table, keys in partitions.files.items()}
    indexed = [
        attrs.evolve(stored, spec=attrs.evolve(spec, indices=(column,) if column in spec.indices else ()))
        for stored, spec in zip(tables, specs, strict=True)
    ]
    return run_index_build(indexed, PartitionTable(added[0].labels, files)).indices[column]


@attrs.frozen
class BuildDatasetIndices:
    """Add secondary indices to a dataset, or rebuild existing ones. Only these columns are read.

    Parameters
    ----------
    store, dataset_uuid, factory
        As in :func:`read_dataset_as_dataframes`.
    columns
        Columns to index.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    KeyError
        There is no such dataset.
    RuntimeError
        A column does not exist, or is a partition key.
    ValueError
        A column is named twice.
    ConcurrentWriteError
        Another writer renamed or dropped a column meanwhile: repeat the call.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import build_dataset_indices
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Bonn", "Rom"]})])
    >>> sorted(build_dataset_indices(store, "geodata", ["CITY"]).indices)
    ['CITY']
    """

    store: StoreInput | None
    dataset_uuid: str | None
    columns: str | Sequence[str]
    factory: DatasetFactory | None = None

    def job(self, blocksize: int | None = None) -> Job[DatasetMetadata]:
        """Collect the index entries of all partitions, `blocksize` per task, then commit the indices."""
        if self.columns is None:
            raise TypeError("columns is one or several names (str), got None")
        columns = arguments.parse_names("columns", normalize_arg("columns", self.columns))
        factory = dataset_factory(self.dataset_uuid, self.store, self.factory)
        dataset, store = factory.dataset_metadata, factory.store_factory
        tables, partitions = _plan_tables(dataset, store, columns), dataset.partition_table
        size = blocksize or max(len(partitions), 1)
        return Job(
            name="build_indices",
            description=f"index dataset {dataset.uuid}",
            context=tables,
            tasks=[partitions.take(rows) for rows in runtime.batched(range(len(partitions)), size)],
            run=run_index_build,
            finish=partial(finish_index_build, tables, _file_types(dataset, columns, open_blobs(store))),
            merge=merge_results,
            steps=("prepare", "read", "commit"),
        )


# -- column statistics ---------------------------------------------------------------------------------------

_OPERATION = "build_column_statistics"
_FILES_PER_TASK = 256


@attrs.frozen
class BuildColumnStatistics(Generic[StoreT]):
    """Keep statistics of columns, so that conditions on them open fewer files without an index.

    The statistics are the minimum, the maximum and the number of nulls of a column in each file. They are
    computed from the stored columns now, and by all later writes. A query does not open a file if none of its
    rows can meet the conditions. That helps where a file has a small range of the values of a column: where
    these increase with time, or with a partition column.

    Parameters
    ----------
    columns
        Columns to keep statistics of, in the datasets that have them, beside those so far. ``[]``: the
        datasets keep no statistics any more.
    datasets
        Ids; by default all datasets of the cube.

    Returns
    -------
    dict
        Dataset id to metadata of the datasets that have the columns; for ``[]``, of those that had
        statistics.

    Raises
    ------
    ValueError
        There is no such cube or dataset, no dataset has a column, or it is a partition column.
    NotImplementedError
        Values of the type of a column cannot be compared.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import C, Cube, build_cube, explain_query
    >>> from kartothek_cube.io.eager_cube import build_column_statistics
    >>> cube, store = Cube(["HOUR"], ["DAY"], "energy"), f"hfs://{tempfile.mkdtemp()}"
    >>> hours = pd.DataFrame({"HOUR": [1, 2, 3, 4], "DAY": [1, 1, 2, 2], "KWH": [5.0, 6.0, 7.0, 8.0]})
    >>> _ = build_cube(hours, cube, store)
    >>> _ = build_column_statistics(cube, store, "KWH")
    >>> explain_query(cube, store, conditions=C("KWH") > 6.5).datasets[0].conditions
    (ConditionPruning(condition='KWH > 6.5', by='statistics', kept=1, pruned=1),)
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    columns: str | Iterable[str]
    datasets: str | Iterable[str] | None = None

    def job(self, blocksize: int | None = None) -> Job[dict[str, DatasetMetadata]]:
        """Read the columns of all files, `blocksize` per task, then commit dataset by dataset."""
        if self.columns is None:
            raise TypeError("columns is one or several names (str), or [] to keep no statistics, got None")
        columns = arguments.parse_names("columns", self.columns)
        existing = discover.discover_datasets(self.cube, self.store)
        names = sorted(discover.choose_datasets(self.cube, self.datasets, existing))
        columns_of = {name: {*consistency.arrow_schema(existing[name]).names} for name in names}
        available = set[str]().union(*columns_of.values())
        errors.check_names("Column statistics: ", "column", columns, available)
        chosen = {name: [c for c in columns if c in own] for name, own in columns_of.items()}
        for name, selected in chosen.items():
            _check_statistics(existing[name], selected)
        concerned = {n: s if columns else statistics_columns(existing[n].metadata) for n, s in chosen.items()}
        datasets = {name: existing[name] for name, of_dataset in concerned.items() if of_dataset}
        return statistics_job(self.cube.uuid_prefix, self.store, datasets, chosen, blocksize)


def statistics_job(
    title: str,
    store: StoreInput,
    datasets: Mapping[str, DatasetMetadata],
    columns: Mapping[str, Sequence[str]],
    blocksize: int | None = None,
) -> Job[dict[str, DatasetMetadata]]:
    """Read columns of datasets, then commit their statistics."""
    stored, tasks = {}, []
    for name, dataset in datasets.items():
        keys, own = tuple(dataset.partition_keys), tuple(columns[name])
        factory, table = runtime.store_factory(store), dataset.partition_table
        spec = WriteSpec(factory, dataset.uuid, dataset.table_name, keys, statistics=own)
        stored[name] = StoredRows.of(spec, dataset)
        batches = runtime.batched(range(len(table)), blocksize or _FILES_PER_TASK) if own else []
        tasks += [(name, table.take(rows)) for rows in batches]
    return Job(
        name=_OPERATION,
        description=f"column statistics of {title}",
        context=stored,
        tasks=tasks,
        run=_collect_statistics,
        finish=partial(_finish_statistics, stored),
        merge=merge_writes,
        steps=("prepare", "read", "commit"),
        is_parallel=True,
    )


def _check_statistics(dataset: DatasetMetadata, columns: Sequence[str]) -> None:
    """Raise for columns that cannot have statistics."""
    for column in columns:
        dtype = consistency.arrow_schema(dataset).field(column).type
        where = f"Dataset {dataset.uuid!r} has no statistics of column {column!r}: "
        if column == index.PARTITION:
            raise ValueError(f"{where}the labels of partitions have this name")
        if column in dataset.partition_keys:
            raise ValueError(f"{where}it is a partition key")
        if not (expressions.is_comparable(dtype) or pa.types.is_null(dtype)):
            raise NotImplementedError(f"{where}values of type {dtype} cannot be compared")


def _collect_statistics(stored: Mapping[str, StoredRows], task: tuple[str, PartitionTable]) -> Written:
    """Read the statistics of some partitions of a dataset; only the columns that have them are read."""
    name, files = task
    spec = stored[name].spec
    columns, starts = stored[name].read_columns(files, spec.statistics)
    statistics = collect_statistics(columns, starts, files.labels)
    return {name: WriteResult(spec.uuid, spec.table, statistics=statistics)}


def _finish_statistics(
    stored: Mapping[str, StoredRows], results: Iterable[Written]
) -> dict[str, DatasetMetadata]:
    """Commit the statistics dataset by dataset; right ones of some datasets do no harm without the others."""
    nothing, states = pa.table({index.PARTITION: pa.array([], pa.string())}), {}
    specs = {name: each.spec for name, each in stored.items()}
    empty = {name: WriteResult(spec.uuid, spec.table, statistics=nothing) for name, spec in specs.items()}
    for name, result in merge_writes([empty, *results]).items():
        metadata, info = {STATISTICS: sorted(specs[name].statistics)}, history.describe_operation(_OPERATION)
        change = result.change_set(metadata=metadata, merge_metadata=_add_columns, info=info)
        blobs = open_blobs(specs[name].store)
        states[name] = publish_committed(blobs, optimistic.commit(blobs, change)[0])
    return states


def _add_columns(dicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Stored metadata with the columns of a change beside those so far; without any, none."""
    stored, given = dicts
    columns = {*statistics_columns(stored), *given[STATISTICS]} if given[STATISTICS] else ()
    return {**stored, STATISTICS: sorted(columns)}
