"""Adopt a table of another system as a dataset of a cube: files as they are where possible, and a commit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import cast

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core import arguments, arrow, evolution, history, pandas_conversion, tuning, uuid
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.schema import make_meta
from kartothek_cube.core.store import StoreInput, open_blobs
from kartothek_cube.io_components import facade, kernels, runtime
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.write import cube_writes, table_writer, write_commit, write_tasks
from kartothek_cube.io_components.write import foreign_tables as sources
from kartothek_cube.io_components.write.foreign_tables import ForeignFile, ForeignTable, TableSource
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteResult, WriteSpec

#: tasks at once: each may hold the rows of its files, and copies between remote stores wait for requests
ADOPT_THREADS = 8
#: so that threads share many small files
_FILES_PER_TASK = 64
#: encodings of pyarrow 6, with which kartothek 5.3 reads
_CODECS = {"UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "ZSTD"}
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE", "RLE_DICTIONARY", "BIT_PACKED", "DELTA_BINARY_PACKED"}


@attrs.frozen(kw_only=True)
class Adoption:
    """Result of :func:`~kartothek_cube.io.eager_cube.adopt_dataset`.

    Attributes
    ----------
    dataset : DatasetMetadata
        The new dataset.
    n_rows : int
        Rows of the table.
    n_linked : int
        Files that are hard links to files of the table.
    n_copied : int
        Files that were copied as they are.
    n_rewritten : int
        Files of the table whose rows were written again.
    """

    dataset: DatasetMetadata = attrs.field(repr=lambda dataset: repr(dataset.uuid))
    n_rows: int
    n_linked: int
    n_copied: int
    n_rewritten: int


@attrs.frozen
class _Adopted:
    """Result of a task."""

    written: WriteResult
    #: path, key and signature of the files to link in the last step
    links: Sequence[tuple[str, str, tuple[int, ...]]] = ()
    n_copied: int = 0
    n_rewritten: int = 0


@attrs.frozen
class AdoptDataset:
    """Copy a table of another system as a dataset of a cube; the source stays as it is.

    Files that have the form of those of a cube are copied as they are: without the partition columns, rows of
    one partition, sorted by the dimensions. Rows of other files are written again, with Arrow
    (:doc:`/adopt`). The rules are those of :func:`build_cube` for the seed, of :func:`extend_cube` for other
    datasets.

    Parameters
    ----------
    source
        A directory of Parquet files or a URL (``s3://bucket/path``), Hive-partitioned or not; the directory
        of a Delta table, or a ``deltalake.DeltaTable`` (extra ``delta``); the metadata file of an Iceberg
        table, or a ``pyiceberg.table.Table`` (extra ``iceberg``).
    cube, store
        Specification of the cube; store, factory or URL.
    dataset_id
        Id of the new dataset. That of the seed creates the cube.
    snapshot
        Version of the Delta table, or id of the snapshot of the Iceberg table; the newest by default.
    types
        Types of columns that are directories, ``column=value``. By default those of the cube, else integers,
        dates and timestamps if all values are, else text.
    partition_on
        Partition columns; default are those of the cube. The seed can't have others.
    metadata
        Metadata to keep with the dataset.
    overwrite
        Whether an existing dataset is replaced.
    link
        Whether files of a local table become hard links in a store on the same file system. By default, those
        of Delta and Iceberg tables do, which are never written in place, and those of directories do not:
        many programs overwrite them in place, and would change the cube. Those of a staged write are copied.

    Returns
    -------
    Adoption
        The new dataset, the number of rows, and how many files were linked, copied and rewritten.

    Raises
    ------
    ValueError
        The table breaks a rule of the cube: missing columns, nulls in key columns, duplicate cells, types
        that differ from those of the cube or between files. Or it is a Delta table with deletion vectors or
        column mapping, or refers to files outside of its directory. Nothing is left behind.
    TypeError
        A column has a type that cannot be stored, such as durations.
    RuntimeError
        The dataset exists, and ``overwrite`` is not set.
    MultiTableCommitAborted
        The table has no rows, or the datasets do not form the cube.
    ImportError
        deltalake or pyiceberg is missing.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, ensure_store
    >>> from kartothek_cube.io.eager_cube import adopt_dataset, query_cube
    >>> directory = tempfile.mkdtemp()
    >>> cities = pd.DataFrame({"CITY": [53111, 117, 89073], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> cities.to_parquet(directory, partition_cols=["COUNTRY_CODE"])
    >>> store = ensure_store("hmemory://")
    >>> cube = Cube(["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> adopt_dataset(directory, cube, store, "seed")
    Adoption(dataset='geodata++seed', n_rows=3, n_linked=0, n_copied=2, n_rewritten=0)
    >>> query_cube(cube, store)[0]["CITY"].tolist()
    [117, 53111, 89073]
    """

    source: TableSource
    cube: Cube = attrs.field(converter=facade.cube_or_name)
    store: StoreInput
    dataset_id: str
    snapshot: int | None = attrs.field(default=None, kw_only=True)
    types: Mapping[str, pa.DataType | str] | None = attrs.field(default=None, kw_only=True)
    partition_on: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)
    metadata: Mapping[str, object] | None = attrs.field(default=None, kw_only=True)
    overwrite: bool = attrs.field(default=False, kw_only=True)
    link: bool | None = attrs.field(default=None, kw_only=True)
    publish: bool = attrs.field(default=True, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[Adoption]:
        """Check the table and the cube, then copy files in independent tasks, then commit."""
        dataset_id = arguments.parse_name("dataset_id", self.dataset_id)
        user = None if self.metadata is None else {dataset_id: self.metadata}
        keys = None
        if self.partition_on is not None:
            keys = {dataset_id: arguments.parse_names("partition_on", self.partition_on)}
        new = cube_writes.BuildCube if dataset_id == self.cube.seed_dataset else cube_writes.ExtendCube
        write = new(None, self.cube, self.store, user, self.overwrite, keys, publish=self.publish)
        plan = attrs.evolve(write.plan([dataset_id]), info=history.describe_operation("adopt"))
        types = _parse_types(self.types)
        table, files = sources.open_table(self.source, self.snapshot, types, plan.spec.types)
        # only directories may change
        if types and table.is_immutable:
            raise ValueError(f"types are those of directories; the {table.description} has types of its own")
        write_commit.check_schemas(plan, {dataset_id: table.schema.empty_table()})
        # a link has the age of the file, and would be garbage until it is published
        link = self.publish and (table.is_immutable if self.link is None else self.link)
        return Job(
            name="adopt_dataset",
            description=f"adopt {table.description}",
            context=(plan.without_commit_state(), table, link),
            tasks=list(_tasks(files)),
            run=_run_adoption,
            finish=partial(_finish_adoption, plan, table.description),
            discard=partial(table_writer.delete_attempts, plan),
            steps=("prepare", "copy", "commit"),
            files=len(files),
        )


def _parse_types(types: Mapping[str, pa.DataType | str] | None) -> dict[str, pa.DataType]:
    if types is not None and not isinstance(types, Mapping):
        raise TypeError(f"types is a dict of column to type, got {type(types).__name__}")
    parsed = {}
    for column, given in (types or {}).items():
        try:
            parsed[column] = given if isinstance(given, pa.DataType) else pa.type_for_alias(given)
        except (TypeError, ValueError) as error:
            raise ValueError(f"types: {given!r} of column {column!r} is no type of Arrow") from error
    return parsed


def _tasks(files: Sequence[ForeignFile]) -> Iterator[Sequence[ForeignFile]]:
    """Consecutive files, up to a size and a number."""
    limit = tuning.BLOCK_BYTES // 2
    weights = np.maximum([float(file.size_bytes) for file in files], limit / _FILES_PER_TASK)
    for start, stop in pairwise(runtime.split_by_weight(weights, 1, limit).tolist() if files else ()):
        yield files[start:stop]


# -- tasks -------------------------------------------------------------------------------------------


def _run_adoption(context: tuple[WritePlan, ForeignTable, bool], files: Sequence[ForeignFile]) -> _Adopted:
    """Copy or link the files that fit, and write the rows of the others, without a commit."""
    plan, table, is_linked = context
    blobs, write = open_blobs(plan.store), plan.spec
    results: list[WriteResult] = []
    links, tables = [], []
    for file in files:
        before = _signature(file.path)
        opened = table.open(file)
        if file.path is None:
            # read once, so that what is checked is what is written
            opened = pa.BufferReader(arrow.copy_to_arrow_memory(memoryview(opened.read_buffer())))
        with (
            closing(opened),
            sources.open_parquet(opened, file.location, page_checksum_verification=True) as parquet,
        ):
            if not parquet.metadata.num_rows:
                continue
            result = _adopt_as_is(write, table, file, parquet)
            if result is None:
                tables.append(table.read(file, parquet))
            else:
                key = result.partitions().files[write.table][0].as_py()
                results.append(result)
                if file.path is None:
                    opened.seek(0)
                    blobs.put(key, opened.read_buffer())
                elif is_linked and blobs.is_local:
                    links.append((file.path, key, before))
                else:
                    blobs.put_file(key, file.path)
        if _signature(file.path) != before:
            raise ValueError(f"{file.location} was changed while it was read")
        runtime.progress_advance(file.size_bytes)
    n_copied = len(results) - len(links)
    if tables:
        rows = write_tasks.prepare(plan, {write.name: [arrow.concat_promoted(tables)]})
        results += write_tasks.run_write(plan, rows, threads=1).values()
    return _Adopted(write.merge(results), links, n_copied, len(tables))


def _signature(path: str | None) -> tuple[int, ...]:
    """Inode, size and time of change of a local file."""
    if path is None:
        return ()
    info = os.stat(path)
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _adopt_as_is(
    write: WriteSpec, table: ForeignTable, file: ForeignFile, parquet: pq.ParquetFile
) -> WriteResult | None:
    """Name and index entries of a file that fits as it is; None if its rows have to be written again."""
    keys = list(write.partition_on)
    if not _has_stored_form(table, file, parquet, keys):
        return None
    names = table.schema.names
    indices, order = write.index_columns(names), write_tasks.key_columns(write, names)
    columns = (*keys, *order, *indices, *write.statistics, *sorted(write.contract.columns))
    columns = (*columns, *names) if write.contract.has_checks else columns
    rows = table.read(file, parquet, [c for c in dict.fromkeys(columns) if c in names])
    # names and indices of times that nanoseconds do not hold need another schema than that of the table
    if any(map(arrow.has_far_times, rows.schema.types)):
        return None
    if kernels.sort_order([rows.column(c) for c in order], len(rows)) is not None:
        return None
    rows = write_tasks.prepare_table(write, [rows])
    write_tasks.check_contract(write, rows, order)
    starts, prefixes, rows = table_writer.split_by_partition(rows, keys)
    if len(starts) > 1:
        return None
    labels = pa.array([f"{prefixes[0].as_py()}{write.write_id}{uuid.gen_uuid()[len(write.write_id) :]}"])
    empty = write_tasks.derive_columns(write, table.schema.empty_table())
    schema = make_meta(empty, table.description, partition_keys=keys)
    types = {column: schema.field(column).type for column in indices}
    entries = {c: table_writer.index_entries(rows.column(c), starts, labels, types[c]) for c in indices}
    widths = evolution.column_widths(parquet.schema_arrow)
    statistics = table_writer.statistics_of(write, rows, starts, labels, schema)
    return write.result(schema, labels, indices=entries, rows=len(rows), widths=widths, statistics=statistics)


def _has_stored_form(
    table: ForeignTable, file: ForeignFile, parquet: pq.ParquetFile, partition_on: Sequence[str]
) -> bool:
    """Whether a file is one that this library and kartothek could have written, whatever its rows."""
    metadata: pq.FileMetaData = parquet.metadata
    schema = sources.schema_of_file(parquet)
    in_files = [name for name in table.schema.names if name not in partition_on]
    if (
        sorted(schema.names) != sorted(in_files)
        or not table.has_columns(file, schema)
        or pandas_conversion.index_columns(schema)
        or not all(_is_stored_type(f.type) and _has_type(f.type, table.schema.field(f.name)) for f in schema)
        or any(parquet.schema.column(i).physical_type == "INT96" for i in range(len(schema)))
    ):
        return False
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = (group.column(i) for group in groups for i in range(metadata.num_columns))
    # a chunk may be in another file, which some readers open
    return all(
        c.compression in _CODECS and _ENCODINGS.issuperset(c.encodings) and not c.file_path for c in chunks
    )


def _is_stored_type(dtype: pa.DataType) -> bool:
    """Whether files of datasets have a type: timestamps of at most microseconds, and no nested values."""
    # fields of nested values have other names in files of other systems
    is_time = (pat.is_timestamp(dtype) and dtype.unit != "ns") or dtype in (pa.date32(), pa.time64("us"))
    # kartothek 5.3 evaluates no predicates on large_string
    is_text = dtype in (pa.string(), pa.binary())
    is_number = pat.is_integer(dtype) or dtype in (pa.float32(), pa.float64(), pa.bool_())
    return bool(is_time or is_text or is_number or pat.is_decimal128(dtype))


def _has_type(dtype: pa.DataType, field: pa.Field) -> bool:
    """Whether a column of a file has the type of the table, in any width and zone."""
    stored, shown = map(arrow.without_zones, (dtype, field.type))
    return arrow.has_zone(dtype) == arrow.has_zone(field.type) and arrow.same_type(stored, shown)


# -- commit ------------------------------------------------------------------------------------------


def _finish_adoption(plan: WritePlan, description: str, results: Iterable[_Adopted]) -> Adoption:
    """Link files, look for cells in several files, and commit."""
    blobs, parts, dataset_id = open_blobs(plan.store), list(results), plan.spec.name
    links = [link for part in parts for link in part.links]
    n_linked = 0
    for path, key, signature in links:
        # as late as possible: a link has the age of the file, and garbage collections spare young files only
        n_linked += blobs.put_file(key, path, link=True)
        if _signature(path) != signature:
            raise ValueError(f"{path} was changed while it was read")
    written = plan.spec.merge(part.written for part in parts)
    if not len(written.labels):
        problem = ValueError(f"Cannot write empty datasets: {dataset_id} ({description} has no rows)")
        raise plan.abort_error(dataset_id, problem)
    write_tasks.check_duplicate_cells(plan, {dataset_id: written})
    states = write_commit.finish_write(plan, [{dataset_id: written}])
    if plan.staged_id:
        return cast("Adoption", states)
    n_copied, dataset = sum(part.n_copied for part in parts) + len(links) - n_linked, states[dataset_id]
    n_rewritten, n_rows = sum(part.n_rewritten for part in parts), written.rows
    return Adoption(
        dataset=dataset, n_rows=n_rows, n_linked=n_linked, n_copied=n_copied, n_rewritten=n_rewritten
    )
