"""Add indices or column statistics: plan (columns by table), run (some partitions), finish (one commit)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic

import attrs
import pyarrow as pa

from kartothek_cube.core import arguments, errors, evolution, expressions, history, index
from kartothek_cube.core.commit import optimistic
from kartothek_cube.core.commit.change import IndexUpdate
from kartothek_cube.core.cube import consistency, discover
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.pruning import STATISTICS, statistics_columns
from kartothek_cube.core.schema import long_types, read_schema_metadata
from kartothek_cube.core.store import BlobStore, StoreFactory, StoreInput, open_blobs
from kartothek_cube.io_components import runtime, scan
from kartothek_cube.io_components.arguments import check_new_indices, dataset_factory, normalize_arg
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.publication.table import publish_committed
from kartothek_cube.io_components.write.table_writer import index_entries_of, statistics_of_files
from kartothek_cube.io_components.write.write_plan import WriteResult, Written, merge_results, merge_writes


@attrs.frozen
class IndexContext:
    """State shared by all tasks that build indices."""

    store: StoreFactory
    uuid: str
    #: per table those of the columns to index that it has
    columns: Mapping[str, tuple[str, ...]]
    types: Mapping[str, pa.DataType]
    #: types of their values in index files, where these differ
    file_types: Mapping[str, pa.DataType] = attrs.field(factory=dict)
    #: how to read files that were written before a change of the schema
    mapping: evolution.ColumnMapping | None = attrs.field(default=None, eq=False, repr=False)


def plan_index_build(
    dataset: DatasetFactory, columns: Sequence[str], partitions_per_task: int | None = None
) -> tuple[IndexContext, list[PartitionTable]]:
    """Plan to add indices, or to rebuild existing ones; each task reads some partitions."""
    current = dataset.dataset_metadata
    check_new_indices(current.uuid, columns, current.partition_keys)
    blobs = open_blobs(dataset.store_factory)
    if current.schema is not None:
        schemas = {current.table_name: current.schema}
    else:
        schemas = {table: read_schema_metadata(current.uuid, blobs, table) for table in current.tables}
    stored = {name for schema in schemas.values() for name in schema.names}
    where = f"Column(s) to index could not be found in dataset {current.uuid!r}: "
    errors.check_names(where, "column", columns, stored, error=RuntimeError)
    by_table = {
        table: tuple(column for column in columns if column in set(schema.names))
        for table, schema in schemas.items()
    }
    types = {c: schemas[table].field(c).type for table, own in by_table.items() for c in own}
    for column, dtype in types.items():
        if pa.types.is_nested(dtype) or pa.types.is_null(dtype):
            reason = "nested values have no order" if pa.types.is_nested(dtype) else "all values are null"
            raise NotImplementedError(
                f"Cannot index dataset {current.uuid} by column {column} of type {dtype}: {reason}"
            )
    file_types, mapping = _file_types(current, columns, blobs), current.column_mapping
    context = IndexContext(dataset.store_factory, current.uuid, by_table, types, file_types, mapping)
    partitions = current.partition_table
    size = partitions_per_task or max(len(partitions), 1)
    return context, [partitions.take(rows) for rows in runtime.batched(range(len(partitions)), size)]


def _file_types(dataset: DatasetMetadata, columns: Sequence[str], blobs: BlobStore) -> dict[str, pa.DataType]:
    """Long types of values in index files, which the replaced index or the schema file has."""
    # Either was written by a library that refuses to update an index of another type.
    types = {}
    for table in dataset.tables:
        types.update(long_types(dataset.uuid, blobs, table))
    for column in set(columns) & set(dataset.secondary_indices):
        try:
            data = dataset.secondary_indices[column].load(blobs).columns_data
        except (KeyError, errors.CorruptDatasetError):
            # that may be why it is rebuilt
            continue
        if data is not None and data.file_type is not None:
            types[column] = data.file_type
    return {column: types[column] for column in columns if column in types}


def run_index_build(context: IndexContext, partitions: PartitionTable) -> WriteResult:
    """Collect the index entries of some partitions; only the columns to index are read."""
    blobs, labels = open_blobs(context.store), partitions.labels.to_pylist()
    parts: list[dict[str, IndexUpdate]] = [{}]
    for table, columns in context.columns.items():
        if columns:
            files = partitions.files[table].to_pylist()
            tables = list(scan.read_files(blobs, files, columns, mapping=context.mapping))
            parts.append({c: index_entries_of(c, labels, tables, context.types[c]) for c in columns})
    return merge_results([_result(context, part) for part in parts])


def _result(context: IndexContext, indices: Mapping[str, IndexUpdate]) -> WriteResult:
    return WriteResult(context.uuid, next(iter(context.columns)), indices=indices)


def finish_index_build(context: IndexContext, results: Iterable[WriteResult]) -> DatasetMetadata:
    """Commit the indices."""
    columns = {c for names in context.columns.values() for c in names}
    nothing = {c: IndexUpdate.empty(context.types[c], context.file_types.get(c)) for c in columns}
    merged = merge_results([_result(context, nothing), *results])
    change = merged.change_set(new_indices=frozenset(columns), info=history.describe_operation("build_index"))
    dataset, _ = optimistic.commit(open_blobs(context.store), change, partial(_read_back, context))
    return dataset


def _read_back(context: IndexContext, column: str, labels: Sequence[str]) -> IndexUpdate:
    """Entries of partitions that were added after the indices were planned."""
    indexed = {table: (column,) if column in columns else () for table, columns in context.columns.items()}
    added = [PartitionTable.from_labels(context.uuid, table, labels) for table in indexed]
    files = {table: keys for partitions in added for table, keys in partitions.files.items()}
    result = run_index_build(attrs.evolve(context, columns=indexed), PartitionTable(added[0].labels, files))
    return result.indices[column]


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
        dataset = dataset_factory(self.dataset_uuid, self.store, self.factory)
        context, tasks = plan_index_build(dataset, columns, blocksize)
        return Job(
            name="build_indices",
            description=f"index dataset {context.uuid}",
            context=context,
            tasks=tasks,
            run=run_index_build,
            finish=partial(finish_index_build, context),
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
    contexts = {
        name: IndexContext(
            runtime.store_factory(store),
            dataset.uuid,
            {dataset.table_name: tuple(columns[name])},
            {column: consistency.arrow_schema(dataset).field(column).type for column in columns[name]},
            mapping=dataset.column_mapping,
        )
        for name, dataset in datasets.items()
    }
    tables = {name: datasets[name].partition_table for name, context in contexts.items() if context.types}
    return Job(
        name=_OPERATION,
        description=f"column statistics of {title}",
        context=contexts,
        tasks=[
            (name, table.take(rows))
            for name, table in tables.items()
            for rows in runtime.batched(range(len(table)), blocksize or _FILES_PER_TASK)
        ],
        run=_collect_statistics,
        finish=partial(_finish_statistics, contexts),
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


def _collect_statistics(contexts: Mapping[str, IndexContext], task: tuple[str, PartitionTable]) -> Written:
    """Read the statistics of some partitions of a dataset; only the columns that have them are read."""
    name, partitions = task
    context = contexts[name]
    ((table, columns),) = context.columns.items()
    keys, schema = partitions.files[table].to_pylist(), pa.schema(list(context.types.items()))
    tables = list(scan.read_files(open_blobs(context.store), keys, columns, mapping=context.mapping))
    statistics = statistics_of_files(tables, partitions.labels, schema)
    return {name: attrs.evolve(_result(context, {}), statistics=statistics)}


def _finish_statistics(
    contexts: Mapping[str, IndexContext], results: Iterable[Written]
) -> dict[str, DatasetMetadata]:
    """Commit the statistics dataset by dataset; right ones of some datasets do no harm without the others."""
    nothing = pa.table({index.PARTITION: pa.array([], pa.string())})
    empty = {name: attrs.evolve(_result(c, {}), statistics=nothing) for name, c in contexts.items()}
    states = {}
    for name, result in merge_writes([empty, *results]).items():
        metadata, info = {STATISTICS: sorted(contexts[name].types)}, history.describe_operation(_OPERATION)
        change = result.change_set(metadata=metadata, merge_metadata=_add_columns, info=info)
        blobs = open_blobs(contexts[name].store)
        states[name] = publish_committed(blobs, optimistic.commit(blobs, change)[0])
    return states


def _add_columns(dicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Stored metadata with the columns of a change beside those so far; without any, none."""
    stored, given = dicts
    columns = {*statistics_columns(stored), *given[STATISTICS]} if given[STATISTICS] else ()
    return {**stored, STATISTICS: sorted(columns)}
