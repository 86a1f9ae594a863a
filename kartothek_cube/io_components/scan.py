"""Scan of data files, which no other module reads: rows of many files as one Arrow table, filtered."""

from __future__ import annotations

import base64
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial, reduce
from operator import eq, ge, gt, le, lt, ne, xor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core import arrow, caching, expressions, naming, old_parquet, pandas_conversion, tuning
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.evolution import ColumnMapping, column_widths, widest
from kartothek_cube.core.store import BlobStore, get_required
from kartothek_cube.io_components import runtime
from kartothek_cube.serialization import CsvSerializer, DataFrameSerializer, parquet

if TYPE_CHECKING:
    import polars

#: any value: each page that is read is compared with its checksum, which takes pyarrow, and its time
CHECK_PAGES = "KARTOTHEK_CUBE_CHECK_PAGES"
#: name of the column of file numbers; no column of a dataset contains a NUL
_FILE = "\0file"
#: name of the column of numbers of rows
ROW_NUMBER = "\0row"
_COMPARE = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
#: files that Polars reads at once; it looks them up in each scan
_CONCURRENT_FILES = ("POLARS_MAX_CONCURRENT_SCANS", "POLARS_NUM_READERS_PRE_INIT")
#: 2 x 2,500 local files take 0.48 s; with the default 0.54; with 128 twice as long, and 500 threads
_LOCAL_FILES = "16"
#: the default hides little of the latency of an object store
_REMOTE_FILES = "128"
#: bytes of a number or a time, and of the position of a text
BYTES_PER_VALUE = 8
#: size of a type in the cache of schemas
_BYTES_OF_TYPE = 200


class _FileSchema(NamedTuple):
    """The footer of a Parquet file."""

    columns: pa.Schema
    #: whether Polars reads such a file at all, whichever columns
    is_for_polars: bool
    #: whether statistics of row groups, by which Polars skips these, are by a writer that is known
    has_reliable_statistics: bool
    #: bytes of the file
    size: int
    n_rows: int


class FileRows(NamedTuple):
    """Rows of several files, in the order of the files, and the number of rows of each."""

    table: pa.Table
    lengths: arrow.Ints


#: not empty in a forked process: the threads of Polars do not survive a fork, and it would wait for them
_FORKS: list[None] = []
os.register_at_fork(after_in_child=partial(_FORKS.append, None))


class Scan(NamedTuple):
    """Rows to read from some files of a dataset."""

    keys: Sequence[str]
    #: None for those of the first file; its types of pandas are in the metadata of the table
    columns: Sequence[str] | None
    #: that of the dataset; it types columns that are null in all files
    schema: pa.Schema
    #: predicate on the rows of each file; None for all rows of all files
    filters: Sequence[expressions.Tree | None] | None = None
    #: how to read files that were written before a change of the schema
    mapping: ColumnMapping | None = None
    #: tables of some of the columns; rows whose values are not in one of them may be missing
    cells: Sequence[pa.Table] = ()
    #: rows in each file, to number the rows of all files, one after the other, in a column ROW_NUMBER
    n_rows: arrow.Ints | None = None
    #: numbers of the only rows to read
    rows: arrow.Ints | None = None

    @property
    def row_offsets(self) -> list[int]:
        """The number of the first row of each file."""
        return [] if self.n_rows is None else (np.cumsum(self.n_rows) - self.n_rows).tolist()

    def split_by_filter(self) -> list[list[int]]:
        """Numbers of the files with the same filter."""
        filters = self.filters or [None] * len(self.keys)
        distinct = {id(where): where for where in filters}
        identities = {number: expressions.identify(where) for number, where in distinct.items()}
        members: dict[object, list[int]] = {}
        for number, where in enumerate(filters):
            members.setdefault(identities[id(where)], []).append(number)
        return list(members.values())


def run_scans(blobs: BlobStore, scans: Sequence[Scan]) -> list[FileRows]:
    """Rows of each scan with types of memory; numbers have the widest type of the files."""
    parts = [scan.split_by_filter() for scan in scans]
    one_filter = [
        scan._replace(keys=[scan.keys[i] for i in part], filters=scan.filters and [scan.filters[part[0]]])
        for scan, members in zip(scans, parts, strict=True)
        for part in members
    ]
    found = iter(_run_all(blobs, one_filter))
    pairs = zip(scans, parts, strict=True)
    return [_merge_parts(scan, members, [next(found) for _ in members]) for scan, members in pairs]


def _merge_parts(scan: Scan, members: list[list[int]], parts: list[FileRows]) -> FileRows:
    """The rows of parts of the files in the order of the files."""
    if not parts:
        names = scan.schema.names if scan.columns is None else scan.columns
        table = pa.schema([scan.schema.field(name) for name in names]).empty_table()
        return FileRows(table, np.empty(0, np.int64))
    if len(parts) == 1:
        return parts[0]
    numbers = np.concatenate(members)
    lengths = np.empty(len(numbers), np.int64)
    lengths[numbers] = np.concatenate([part.lengths for part in parts])
    names = parts[0].table.column_names
    tables = [part.table.select(names) if names else part.table for part in parts]
    table = concat_tables(tables, scan.keys[0])
    if not names:  # rows without columns have no order, and Arrow forgets how many a slice has
        return FileRows(table, lengths)
    starts = np.cumsum(lengths[numbers]) - lengths[numbers]
    slices = [table.slice(int(starts[i]), int(lengths[numbers[i]])) for i in np.argsort(numbers)]
    table = pa.concat_tables(slices)
    metadata = parts[0].table.schema.metadata
    return FileRows(table.replace_schema_metadata(metadata), lengths)


def _run_all(blobs: BlobStore, scans: Sequence[Scan]) -> list[FileRows]:
    """Rows of scans with one filter each."""
    prepared = [_prepare(blobs, scan) for scan in scans]
    found = _scan_with_polars(blobs, prepared) if any(prepared) else [None] * len(scans)
    pairs = zip(scans, found, strict=True)
    return [_scan_with_pyarrow(blobs, scan) if rows is None else rows for scan, rows in pairs]


def _scan_with_pyarrow(blobs: BlobStore, scan: Scan) -> FileRows:
    where = scan.filters[0] if scan.filters else None
    if scan.n_rows is not None:
        return _scan_numbered(blobs, scan, where)
    tables = list(read_files(blobs, scan.keys, scan.columns, where, schema=scan.schema, mapping=scan.mapping))
    metadata, names = tables[0].schema.metadata, tables[0].column_names
    if scan.columns is None:
        names = _select_known(names, scan.schema)
    # without columns, the number of rows would be lost
    selected = [table.select(names) if names else table for table in tables]
    table = concat_tables(selected, scan.keys[0])
    table = table.replace_schema_metadata(metadata) if names else table
    return FileRows(table, np.array([len(table) for table in tables]))


def _scan_numbered(blobs: BlobStore, scan: Scan, where: expressions.Tree | None) -> FileRows:
    """Rows with their numbers."""
    names = sorted({*(scan.columns or ()), *expressions.columns_of(where)})
    table, lengths = _scan_with_pyarrow(blobs, scan._replace(columns=names, filters=None, n_rows=None))
    first = np.array(scan.row_offsets) - np.cumsum(lengths) + lengths
    numbers = np.arange(len(table)) + np.repeat(first, lengths)
    keep = np.ones(len(numbers), bool) if scan.rows is None else np.isin(numbers, scan.rows)
    if where is not None:
        keep &= expressions.tree_mask(table, where).to_numpy(zero_copy_only=False)
    files = np.repeat(np.arange(len(lengths)), lengths)[keep]
    table = _append_numbers(table, numbers).filter(pa.array(keep))
    lengths = np.bincount(files, minlength=len(lengths))
    return FileRows(table.select([*(scan.columns or ()), ROW_NUMBER]), lengths)


def _append_numbers(table: pa.Table, numbers: arrow.Ints) -> pa.Table:
    return table.append_column(ROW_NUMBER, pa.array(numbers, pa.int64()))


def _select_known(names: Sequence[str], schema: pa.Schema) -> list[str]:
    known = {*schema.names}
    return [name for name in names if name in known]


def can_use_polars(keys: Sequence[str]) -> bool:
    """Whether Polars can read the files in this process."""
    return not (
        _FORKS
        # this module may be imported after the fork
        or (multiprocessing.parent_process() and multiprocessing.get_start_method(allow_none=True) == "fork")
        or os.environ.get(CHECK_PAGES)
        # rows are assigned to files by path; damaged headers may name one twice
        or len({key for key in keys if key.endswith(naming.PARQUET_FILE_SUFFIX)}) < len(keys)
    )


#: of the client of an object store
_ClientOptions: TypeAlias = Mapping[str, str | int] | None


class _PolarsScan(NamedTuple):
    """Scan by Polars, of files that have all columns, in types that it has."""

    scan: Scan
    sources: list[str] | list[bytes]
    options: _ClientOptions
    columns: Sequence[str]
    where: expressions.Tree | None
    #: of the columns, and of those of the filter, in all files
    types: pa.Schema
    #: of the first file
    metadata: Mapping[bytes, bytes] | None
    use_statistics: bool


def _prepare(blobs: BlobStore, scan: Scan) -> _PolarsScan | None:
    """Locate the files of a scan; None if pyarrow reads them."""
    is_empty = scan.columns == [] and scan.n_rows is None
    if scan.mapping is not None or is_empty or not can_use_polars(scan.keys):
        return None
    sources, options = _locate(blobs, scan.keys)
    first, key = sources[0], scan.keys[0]
    if isinstance(first, bytes):
        file = _schema_of_footer(parquet.parse_footer(pa.BufferReader(first), key), len(first))
    else:
        file = _read_schema(blobs, key)
    stored = file.columns
    if not file.is_for_polars:
        return None
    columns = _select_known(stored.names, scan.schema) if scan.columns is None else scan.columns
    where = scan.filters[0] if scan.filters else None
    names = tuple(dict.fromkeys([*columns, *sorted(expressions.columns_of(where))]))
    types = _select_types(stored, names, scan.schema)
    if types is None or not (columns or names):
        return None
    # of a file among many, few row groups are skipped; to know their writers, each footer would be read
    use_statistics = len(sources) == 1 and file.has_reliable_statistics
    prepared = _PolarsScan(scan, sources, options, columns, where, types, stored.metadata, use_statistics)
    is_uniform = len(sources) == 1 or not _is_false_by_type(where, types, scan.schema)
    return prepared if is_uniform else _widen(blobs, prepared)


def _is_false_by_type(where: expressions.Tree | None, types: pa.Schema, dataset: pa.Schema) -> bool:
    """Whether a literal is false for the type that a column has in the first file, but not in the dataset.

    Without a look at the column, Polars would not notice that other files have another type.
    """
    for column, op, value in expressions.literals_of(where):
        number = dataset.get_field_index(column)
        own, wide = types.field(column).type, None if number < 0 else dataset.field(number).type
        if wide is None or own.equals(wide):
            continue
        of_file, of_dataset = (expressions.bind_literal(t, op, value, column).kind for t in (own, wide))
        if of_file == "never" != of_dataset:
            return True
    return False


def _scan_with_polars(blobs: BlobStore, scans: Sequence[_PolarsScan | None]) -> list[FileRows | None]:
    """Rows of scans; None for those that are none, or whose files turn out to have other types."""
    errors = _import_polars().exceptions
    try:
        found = _collect_uniform(scans)
        if found is None:
            scans = [scan and _widen(blobs, scan) for scan in scans]
            try:
                found = _collect_all(scans)
            except errors.SchemaError:
                # of objects, kartothek wrote integers beside floats, and decimals of other scales
                return [None] * len(scans)
    except FileNotFoundError as error:
        raise MissingFileError(_find_missing(blobs, scans)) from error
    except (errors.PolarsError, errors.PanicException, OSError) as error:
        if any(scan and scan.options is not None for scan in scans):
            # the client of Polars may have failed, which retries less and may find other credentials: pyarrow
            # reads the files by that of the store, or raises an error that shows no secrets
            return [None] * len(scans)
        raise _explain(blobs, scans, error) from error
    runtime.progress_advance_files(blobs, _keys(scans))
    return found


def _collect_uniform(scans: Sequence[_PolarsScan | None]) -> list[FileRows | None] | None:
    """Rows of all scans; None if a file may have other types than the first one, perhaps one Polars lacks."""
    errors = _import_polars().exceptions
    with suppress(errors.SchemaError, errors.PanicException, errors.ComputeError):
        return _collect_all(scans)
    return None


def _keys(scans: Sequence[_PolarsScan | None]) -> list[str]:
    return [key for scan in scans if scan for key in scan.scan.keys]


def _collect_all(scans: Sequence[_PolarsScan | None]) -> list[FileRows | None]:
    """Rows of all scans at once: for small files half of the time of one after the other."""
    plans = [[] if scan is None else _plan(scan) for scan in scans]
    lazy = [frame for plan in plans for frame in plan]
    # two tiny files take 0.9 ms, with the default 1.2; rows stay in the order of the files
    frames = iter(_import_polars().collect_all(lazy, engine="streaming"))
    parts = [[next(frames) for _ in plan] for plan in plans]
    return [scan and _to_rows(scan, part) for scan, part in zip(scans, parts, strict=True)]


def _plan(scan: _PolarsScan) -> list[polars.LazyFrame]:
    """One frame with the numbers of the files, or one for each content."""
    polars = _import_polars()
    is_far = any(map(arrow.has_far_times, scan.scan.schema.types))
    casts = ["upcast", "convert-timezone", *(["nanosecond-downcast"] if is_far else [])]
    read = partial(
        polars.scan_parquet,
        schema=_polars_schema(scan.types),
        # narrower types of some files
        cast_options=polars.ScanCastOptions(
            integer_cast="upcast", float_cast="upcast", datetime_cast=casts, categorical_to_string="allow"
        ),
        extra_columns="ignore",
        use_statistics=scan.use_statistics,
        glob=False,
        hive_partitioning=False,
        cache=False,
        # those of the options and variables, as in obstore; by default, Polars asks boto3 and others
        credential_provider=None,
    )
    types, numbers = scan.types, scan.scan.rows
    conditions = [_is_among(types, cells) for cells in scan.scan.cells]
    if scan.where is not None:
        conditions.insert(0, _translate(types, scan.where))
    if numbers is not None:
        conditions.append(polars.col(ROW_NUMBER).is_in(polars.Series(numbers, dtype=polars.UInt32).implode()))
    names, offsets = list(scan.columns), scan.scan.row_offsets
    if scan.scan.n_rows is not None:
        read = partial(read, row_index_name=ROW_NUMBER)
        names.append(ROW_NUMBER)
    columns = _select_columns(tuple(names))
    if isinstance(scan.sources[0], bytes):
        return [
            read(content, row_index_offset=offset).filter(*conditions).select(columns)
            for content, offset in zip(scan.sources, offsets or [0] * len(scan.sources), strict=True)
        ]
    if len(scan.sources) == 1:
        return [read(scan.sources, storage_options=scan.options).filter(*conditions).select(columns)]
    # of URLs with quoted characters Polars gives the path
    paths = [
        unquote(urlsplit(source).path) if source.startswith("file:") and "%" in source else source
        for source in map(str, scan.sources)
    ]
    # paths take 16 bytes per row, numbers of files one or two
    number = polars.col(_FILE).cast(polars.Enum(paths)).to_physical()
    rows = read(scan.sources, storage_options=scan.options, include_file_paths=_FILE)
    return [rows.filter(*conditions).select(columns, number)]


def _to_rows(scan: _PolarsScan, frames: list[polars.DataFrame]) -> FileRows:
    polars = _import_polars()
    if len(frames) == len(scan.sources):
        rows, lengths = polars.concat(frames), np.array([len(frame) for frame in frames])
    else:
        rows = frames[0]
        numbers = rows.drop_in_place(_FILE).to_numpy()
        # ascending, as the rows are in the order of the files
        ends = np.searchsorted(numbers, np.arange(len(scan.sources), dtype=numbers.dtype), side="right")
        lengths = np.diff(ends, prepend=0)
    numbers_of_rows = None
    if scan.scan.n_rows is not None:
        numbers_of_rows = rows.drop_in_place(ROW_NUMBER).to_numpy().astype(np.int64)
    # texts of a file share their memory: few rows would keep all of it
    if scan.where is not None or scan.scan.cells or scan.scan.rows is not None:
        rows = rows.rechunk()
    table = rows.to_arrow(compat_level=polars.CompatLevel.oldest())
    types = [scan.types.field(column).type for column in scan.columns]
    others = {i: table.column(i).cast(t) for i, t in enumerate(types) if not table.field(i).type.equals(t)}
    table = arrow.replace_columns(table, others)
    table = pandas_conversion.from_file(table.replace_schema_metadata(scan.metadata), scan.scan.schema)
    return FileRows(table if numbers_of_rows is None else _append_numbers(table, numbers_of_rows), lengths)


def _widen(blobs: BlobStore, scan: _PolarsScan) -> _PolarsScan | None:
    """The scan with types that hold the values of all files; None unless Polars has all of them."""
    names, threads = tuple(scan.types.names), 1 if blobs.is_local else tuning.REMOTE_REQUESTS

    def types_of(key: str) -> pa.Schema | None:
        file = _read_schema(blobs, key)
        return _select_types(file.columns, names, scan.scan.schema) if file.is_for_polars else None

    schemas = list(runtime.ordered_map(types_of, scan.scan.keys, threads))
    if None in schemas:
        return None
    try:
        return scan._replace(types=pa.unify_schemas(schemas, promote_options="permissive"))
    except pa.ArrowException as error:
        problem = f"its files have types that do not fit together: {error}"
        raise CorruptDatasetError(scan.scan.keys[0], problem) from error


@lru_cache(maxsize=64)
def _polars_schema(types: pa.Schema) -> polars.Schema:
    import polars

    # Polars would number columns without a name
    dtypes = [polars.Series(pa.array([], dtype)).dtype for dtype in types.types]
    return polars.Schema(dict(zip(types.names, dtypes, strict=True)))


@cache
def _import_polars() -> Any:
    for name in _CONCURRENT_FILES:
        os.environ.setdefault(name, _LOCAL_FILES)
    # Polars reads it when it is imported
    threads = _threads_of_worker()
    if threads is not None:
        os.environ.setdefault("POLARS_MAX_THREADS", str(threads))
    import polars

    return polars


def _threads_of_worker() -> int | None:
    """Threads that a task of Spark or a worker of dask may use; None in other processes."""
    # each of these processes would take all cores of the machine; they have imported their library
    if spark := sys.modules.get("pyspark"):
        task = spark.TaskContext.get()
        if task is not None:
            return int(task.cpus())
    if distributed := sys.modules.get("distributed"):
        with suppress(ValueError):  # not in a worker
            return int(distributed.get_worker().state.nthreads)
    return None


def _locate(blobs: BlobStore, keys: Sequence[str]) -> tuple[list[str] | list[bytes], _ClientOptions]:
    """URLs and options of a client, paths of local files, or contents of files."""
    location = blobs.remote_url(keys[0])
    if location is not None:
        for name in _CONCURRENT_FILES:
            # a number that the user has set stays
            if os.environ.get(name, _LOCAL_FILES) == _LOCAL_FILES:
                os.environ[name] = _REMOTE_FILES
        if blobs.is_local:
            # on a network: links are followed, and characters quoted
            return [url for key in keys for url, _ in [blobs.remote_url(key) or location]], location[1]
        # not key by key, as options take time
        root = location[0].removesuffix(keys[0])
        return [root + key for key in keys], location[1]
    if blobs.is_local:
        paths = [path for key in keys if (path := blobs.local_path(key)) is not None]
        if len(paths) == len(keys):
            return paths, None
    return list(runtime.ordered_map(partial(get_required, blobs), keys, tuning.REMOTE_REQUESTS)), None


# Cached: 10 % of the time of a query of two small files.
@lru_cache(maxsize=64)
def _select_types(schema: pa.Schema, columns: tuple[str, ...], dataset: pa.Schema) -> pa.Schema | None:
    """Types of columns; None unless a file has them and Polars has the types."""
    if not set(columns) <= set(schema.names):
        return None
    stored = dict(zip(dataset.names, dataset.types, strict=True))
    fields = [schema.field(column) for column in columns]
    # other software may have written files with times in another zone
    zoned = [arrow.with_zone_of(field.type, stored.get(field.name, field.type)) for field in fields]
    if not all(map(_survives_polars, [*(field.type for field in fields), *zoned])):
        return None
    far = {field.name for field in dataset if arrow.has_far_times(field.type)}
    decoded = [(column, arrow.decoded_type(t)) for column, t in zip(columns, zoned, strict=True)]
    # other files of the column have times that nanoseconds do not reach
    return pa.schema(
        [(c, arrow.with_far_times(t) if c in far and not pat.is_null(t) else t) for c, t in decoded]
    )


def _schema_of_footer(footer: pq.FileMetaData, size: int) -> _FileSchema:
    is_reliable = footer.created_by.startswith("parquet-cpp-arrow")
    is_for_polars = not old_parquet.has_untyped_nulls(footer)
    return _FileSchema(_columns_of_footer(footer), is_for_polars, is_reliable, size, footer.num_rows)


def _columns_of_footer(footer: pq.FileMetaData) -> pa.Schema:
    schema = parquet.columns_of_file(old_parquet.schema_of_footer(footer))
    written = (footer.metadata or {}).get(b"ARROW:schema")
    if written and any(map(pat.is_date32, schema.types)):
        # pyarrow writes date64 as days and reads date32; Polars goes by the type that was written
        try:
            origin = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(written)))
        except (pa.ArrowException, ValueError):
            # damaged: Polars raises when it reads the file
            return schema
        days = {field.name for field in origin if pat.is_date64(field.type)}
        fields = [field.with_type(pa.date64()) if field.name in days else field for field in schema]
        schema = pa.schema(fields, schema.metadata)
    return schema


def _read_schema(blobs: BlobStore, key: str) -> _FileSchema:
    """Schema of a Parquet file, with pandas extension types; cached, as files do not change."""
    path = blobs.local_path(key)
    identity: Any = blobs.identity and (blobs.identity, key, "schema")
    if path is not None:
        # other software may replace a file under its name; a missing one is an error when it is read
        with suppress(OSError):
            info = os.stat(path)
            identity = path, info.st_mtime_ns, info.st_size
    cached = identity and caching.FILE_SCHEMAS.get(identity)
    if isinstance(cached, _FileSchema):
        return cached
    schema = _schema_of_footer(*parquet.read_footer(blobs, key))
    if identity:
        caching.FILE_SCHEMAS.put(identity, b"", schema, _BYTES_OF_TYPE * (1 + len(schema.columns)))
    return schema


def read_columns(blobs: BlobStore, key: str) -> pa.Schema:
    """Columns of a Parquet file with the types that it was written with; cached."""
    return _read_schema(blobs, key).columns


def estimate_bytes(blobs: BlobStore, keys: Sequence[str], n_columns: int, share: float) -> float:
    """Mean bytes of some columns, a share of all, in some files: stored, or decoded if these are more."""
    sample = keys[:: len(keys) // tuning.SAMPLE + 1]
    if not keys or not keys[0].endswith(naming.PARQUET_FILE_SUFFIX):
        return runtime.mean_size(blobs, sample) * share
    # encoded, keys take next to nothing; the footer of the first file is read anyway
    first = _read_schema(blobs, keys[0])
    size = runtime.mean_size(blobs, sample) if blobs.is_local else first.size
    return size * max(share, first.n_rows * n_columns * BYTES_PER_VALUE / first.size)


def _survives_polars(dtype: pa.DataType) -> bool:
    """Whether values of a type come back equal from Polars."""
    is_other = pat.is_decimal256(dtype) or pat.is_date64(dtype) or isinstance(dtype, pa.BaseExtensionType)
    # Polars knows zones by name, and offsets of whole hours, but not +05:30
    is_other |= pat.is_timestamp(dtype) and (dtype.tz or "")[:1] in ("+", "-") and dtype.tz[-2:] != "00"
    return not is_other and all(_survives_polars(dtype.field(i).type) for i in range(dtype.num_fields))


# Cached: 300 columns take 0.002 s.
@lru_cache(maxsize=64)
def _select_columns(names: str | tuple[str, ...]) -> polars.Expr:
    """Columns of exactly these names, which may look like the patterns that ``polars.col`` takes."""
    from polars import selectors

    return selectors.by_name(names).as_expr()


def _translate(types: pa.Schema, node: expressions.Node) -> polars.Expr:
    """A filter as an expression of Polars."""
    import polars

    if isinstance(node, tuple):
        return _translate_literal(types, node)
    operands = [_translate(types, operand) for operand in node.operands]
    if len(operands) < 2:
        return operands[0] if operands else polars.lit(isinstance(node, expressions.AllOf))
    # operators would be a chain, for which Polars needs time by the square of its length
    combine = polars.all_horizontal if isinstance(node, expressions.AllOf) else polars.any_horizontal
    return combine(operands)


def _translate_literal(types: pa.Schema, literal: expressions.LiteralType) -> polars.Expr:
    import polars

    column, op, value = literal
    dtype = types.field(column).type
    bound = expressions.bind_literal(dtype, op, value, column)
    values, operand = _select_columns(column), bound.operand
    if bound.kind == "never":
        return polars.lit(False)
    if bound.kind == "compare":
        # Python has no nanoseconds
        assert operand is not None
        number = operand.value if pat.is_timestamp(operand.type) else operand.as_py()
        # Polars compares all other values in the type of the column; to give it one takes 7 times as long
        is_typed = pat.is_temporal(operand.type) or pat.is_decimal(operand.type)
        literal_type = _polars_schema(pa.schema([("", operand.type)]))[""] if is_typed else None
        expression: polars.Expr = _COMPARE[bound.op](values, polars.lit(number, dtype=literal_type))
        if not pat.is_floating(dtype) or bound.op in ("<", "<=", "=="):
            return expression
        # NaN is null here; Polars takes it for greater than all numbers
        return expression & (values.is_not_nan() if bound.op == "!=" else values <= float("inf"))
    is_valid = values.is_not_null()
    if pat.is_floating(dtype):
        is_valid &= values.is_not_nan()
    if bound.kind == "valid":
        return is_valid
    if bound.kind == "null":
        return ~is_valid
    is_in = values.is_in(polars.Series(operand).implode())
    if bound.kind == "not in":
        return is_valid & ~is_in
    return is_in.fill_null(False) | ~is_valid if bound.or_null else is_in


def _is_among(types: pa.Schema, cells: pa.Table) -> polars.Expr:
    """Whether the values of a row are those of a cell; rows of other cells may pass."""
    import polars

    # A hash per row and a set of those of the cells: 0.029 where a semi-join takes 0.046 s, as its payload
    # columns are decoded for all rows
    # of a table, Polars would number columns without a name
    values = polars.DataFrame({name: polars.Series(cells.column(name)) for name in cells.column_names})
    hashes = values.select(_hash_values(cells.schema, cells.column_names)).to_series()
    return _hash_values(types, cells.column_names).is_in(hashes.implode())


def _hash_values(types: pa.Schema, columns: Sequence[str]) -> polars.Expr:
    """Hash of the values of some columns, the same in all widths of numbers and units of times."""
    import polars

    hashes = []
    for number, column in enumerate(columns):
        values, dtype = _select_columns(column), types.field(column).type
        if pat.is_timestamp(dtype):
            values = values.dt.cast_time_unit("us").to_physical()
        elif pat.is_integer(dtype) or pat.is_boolean(dtype):
            values = values.cast(polars.Int64, wrap_numerical=True)
        elif pat.is_floating(dtype):
            values = values.cast(polars.Float64)
        hashes.append(values.hash(number))
    return reduce(xor, hashes)


def _find_missing(blobs: BlobStore, scans: Sequence[_PolarsScan | None]) -> str:
    """The key of the first file that does not exist; messages of Polars cut paths off."""
    keys = _keys(scans)
    return next((key for key in keys if not blobs.exists(key)), keys[0])


def _explain(blobs: BlobStore, scans: Sequence[_PolarsScan | None], error: BaseException) -> BaseException:
    """The error for failed scans: that of the first file that pyarrow does not read either."""
    files = [(key, scan) for scan in scans if scan for key in scan.scan.keys]
    for key, scan in files:
        try:
            read_file(blobs, key, scan.types.names, schema=scan.scan.schema)
        except Exception as problem:
            return problem
    is_schema_error = isinstance(error, _import_polars().exceptions.SchemaError)
    reason = "its files have types that do not fit together" if is_schema_error else "not readable"
    return CorruptDatasetError(files[0][0], f"{reason}: {error}")


def read_file(
    blobs: BlobStore,
    key: str,
    columns: Sequence[str] | None = None,
    where: expressions.Tree | None = None,
    *,
    schema: pa.Schema | None = None,
    mapping: ColumnMapping | None = None,
    row_index: bool = False,
) -> pa.Table:
    """Rows of one file by pyarrow, which checks each page; all columns for None, with pandas metadata."""
    # `row_index` adds the index of the stored frame
    if key.endswith(naming.PARQUET_FILE_SUFFIX):
        path = blobs.local_path(key)
        source = get_required(blobs, key) if path is None else path
        try:
            table = parquet.read_parquet(source, key, columns, where, schema, mapping, row_index=row_index)
        except FileNotFoundError as error:
            # a concurrent garbage collection may have deleted the file since its path was resolved
            raise MissingFileError(key) from error
    else:
        table = _read_untyped(blobs, key, schema, mapping)
        lacking = {*(columns or ()), *expressions.columns_of(where)}.difference(table.column_names)
        if lacking:
            raise CorruptDatasetError(key, f"it lacks columns of the dataset: {', '.join(sorted(lacking))}")
        table = table if where is None else table.filter(expressions.tree_mask(table, where))
        table = table if columns is None else table.select(list(columns))
    runtime.progress_advance_files(blobs, [key])
    return table


def read_files(
    blobs: BlobStore,
    keys: Sequence[str],
    columns: Sequence[str] | None = None,
    where: expressions.Tree | None = None,
    *,
    schema: pa.Schema | None = None,
    mapping: ColumnMapping | None = None,
) -> Iterator[pa.Table]:
    """One table per file, in order, as of `read_file`."""
    read = partial(read_file, blobs, columns=columns, where=where, schema=schema, mapping=mapping)
    threads = runtime.available_cores() if blobs.is_local else tuning.REMOTE_REQUESTS
    return runtime.ordered_map(read, keys, threads)


def count_rows(blobs: BlobStore, keys: Sequence[str]) -> int:
    """Rows in Parquet files, from their footers."""
    threads = 1 if blobs.is_local else tuning.REMOTE_REQUESTS
    footers = runtime.ordered_map(partial(parquet.read_footer, blobs), keys, threads)
    return sum(int(footer.num_rows) for footer, _ in footers)


def _read_untyped(
    blobs: BlobStore, key: str, schema: pa.Schema | None, mapping: ColumnMapping | None
) -> pa.Table:
    """Read a file of a format without types, such as CSV, with those of the schema."""
    types = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
    restore, is_csv = DataFrameSerializer.restore_dataframe, key.endswith((".csv", ".csv.gz"))
    if is_csv:
        restore = partial(CsvSerializer.restore_dataframe, **_csv_options(types))
    try:
        frame = restore(blobs.store, key)
    except KeyError as error:
        raise MissingFileError(key) from error
    except CorruptDatasetError:
        raise
    except (TypeError, ValueError) as error:
        raise CorruptDatasetError(key, f"its values do not fit the types of the dataset: {error}") from error
    table = pandas_conversion.from_pandas(frame)
    if is_csv:  # its integers are `Int64` for this read only
        table = table.replace_schema_metadata()
    if mapping is not None:
        table = mapping.adapt(table, mapping.names_in(table.schema), len(table))
    for position, field in enumerate(table.schema):
        dtype = types.get(field.name, field.type)
        if not pa.types.is_null(dtype) and not dtype.equals(arrow.widen(field.type)):
            table = table.set_column(position, field.name, _cast(table.column(position), dtype, key))
    return table


def _csv_options(types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """Arguments of :func:`pandas.read_csv` for columns of these types."""
    # texts may look like numbers (01), missing values (NA) or empty lines; integers with gaps become floats,
    # and pandas 2 reads a third of all floats as others than were written
    dtypes = {}
    for name, dtype in types.items():
        if pat.is_integer(dtype):
            dtypes[name] = "Int64" if pat.is_signed_integer(dtype) else "UInt64"
        elif not (pat.is_boolean(dtype) or pat.is_null(dtype)):
            dtypes[name] = "str"
    return {"dtype": dtypes, "keep_default_na": False, "na_values": [""], "skip_blank_lines": False}


def _cast(column: pa.ChunkedArray, dtype: pa.DataType, key: str) -> pa.ChunkedArray:
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), dtype)])
    if pat.is_time(dtype) and arrow.is_text(column.type):
        return pa.chunked_array([arrow.parse_texts(column.combine_chunks(), dtype)])
    try:
        return column.cast(dtype)
    except pa.ArrowException as exc:
        raise CorruptDatasetError(key, f"a column of type {column.type} holds no {dtype}: {exc}") from exc


def concat_tables(tables: Sequence[pa.Table], origin: str) -> pa.Table:
    """Concatenate tables of the same columns, with the wider type where types differ."""
    # `origin` names the files in errors
    if not tables[0].num_columns:
        return arrow.zero_column_table(sum(map(len, tables)))
    plain = [table.replace_schema_metadata(None) for table in tables]
    if all(table.schema.equals(plain[0].schema) for table in plain[1:]):
        return pa.concat_tables(plain)
    try:
        return arrow.concat_promoted(plain)
    except pa.ArrowException as exc:
        raise CorruptDatasetError(origin, f"its files have types that do not fit together: {exc}") from exc


def file_widths(
    blobs: BlobStore, keys: Sequence[str], schema: pa.Schema, mapping: ColumnMapping | None = None
) -> dict[str, int]:
    """Bits of the columns of numbers in a schema, in the widest of some files; read from their footers."""
    full, widths = column_widths(schema), dict[str, int]()
    if len(keys) > tuning.MAX_FOOTERS:
        return full
    # a quick check for files whose numbers are as wide as in the schema
    for batch in runtime.batched(keys, 1 if blobs.is_local else tuning.REMOTE_REQUESTS):
        read = partial(_widths, blobs, schema=schema, mapping=mapping)
        widths = widest([widths, *runtime.ordered_map(read, batch, len(batch))])
        if all(widths.get(name) == bits for name, bits in full.items()):
            break
    return {name: bits for name, bits in widths.items() if name in full}


def _widths(blobs: BlobStore, key: str, schema: pa.Schema, mapping: ColumnMapping | None) -> dict[str, int]:
    if not key.endswith(naming.PARQUET_FILE_SUFFIX):
        return column_widths(schema)
    try:
        file_schema = parquet.read_footer(blobs, key)[0].schema.to_arrow_schema()
    except (MissingFileError, CorruptDatasetError):
        # if a query needs rows of this file, that fails, and says why
        return {}
    return column_widths(file_schema if mapping is None else mapping.schema_of(file_schema))
