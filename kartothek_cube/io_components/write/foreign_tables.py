"""Tables of other systems as sources of a copy: Hive-partitioned directories, Delta and Iceberg tables."""

from __future__ import annotations

import copy
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from kartothek_cube.core import arrow, errors, naming, old_parquet, tuning
from kartothek_cube.core.store.resolve import redact_url
from kartothek_cube.io_components.publication.delta_log import parse_actions, to_actions
from kartothek_cube.io_components.runtime import available_cores, ordered_map

#: a directory or URL, the metadata file of an Iceberg table, or a table of deltalake or pyiceberg
TableSource: TypeAlias = str | os.PathLike[str] | Any
#: types by column
_Types: TypeAlias = Mapping[str, pa.DataType]

#: name of the directory of null
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
#: columns with the index of a frame, which pandas adds
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
#: features of Delta tables that change nothing for a reader of the newest Parquet files
_FEATURES = {"timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"}
#: files of a log: the last number is the version
_DELTA_COMMIT = re.compile(r"(?:\d{20}\.)?(\d{20})(?:\.compacted)?\.json")
_DELTA_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[^.]+)?\.(?:parquet|json)")


@attrs.frozen
class ForeignFile:
    """One Parquet file."""

    location: str
    size_bytes: int
    #: path, if the file is a local one
    path: str | None
    #: values of the columns of directories and partitions, as arrays of length 1
    values: Mapping[str, pa.Array] = attrs.field(factory=dict)
    #: of pyiceberg, which reads the file
    task: Any = None


@attrs.frozen(kw_only=True)
class ForeignTable:
    """Snapshot of a table: its columns in storage types, and access to its files."""

    #: for messages
    description: str
    schema: pa.Schema
    #: whether files are never written again once they are part of the table
    is_immutable: bool
    filesystem: fs.FileSystem | None = None

    def open(self, file: ForeignFile) -> pa.NativeFile:
        """Open a file of the table."""
        assert self.filesystem is not None
        return self.filesystem.open_input_file(file.path or file.location)

    def has_columns(self, file: ForeignFile, schema: pa.Schema) -> bool:
        """Whether the columns of the file are those of the table, and all of its rows are visible."""
        names = [*schema.names, *file.values]
        return len(names) == len(self.schema) and set(names) == set(self.schema.names)

    def read(
        self, file: ForeignFile, parquet: pq.ParquetFile, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Read rows, with columns and types of the table."""
        names = self.schema.names if columns is None else columns
        present = set(parquet.schema_arrow.names)
        rows = parquet.read([name for name in names if name in present])
        return self._complete(file, old_parquet.cast_times(rows, parquet.metadata), names)

    def _complete(self, file: ForeignFile, rows: pa.Table, names: Iterable[str]) -> pa.Table:
        columns = {name: self._column(file, rows, self.schema.field(name)) for name in names}
        return pa.table(columns)

    def _column(self, file: ForeignFile, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        """A column with the type of the table; times that nanoseconds do not hold in microseconds."""
        if field.name in rows.column_names:
            column = rows.column(field.name)
        elif field.name in file.values:
            column = pa.chunked_array([pa.repeat(file.values[field.name][0], len(rows))])
        else:
            return pa.chunked_array([pa.nulls(len(rows), field.type)])
        try:
            # files of Delta tables may have times without the zone of the table, as those of 96 bits
            column = column.cast(arrow.with_zone_of(column.type, field.type))
            cast = partial(arrow.cast_column, column, column=field.name)
            column = arrow.convert_first(cast, field.type, arrow.with_far_times(field.type))
        except (TypeError, ValueError) as error:
            raise errors.SchemaConflictError(
                f"Column {field.name!r} of {file.location} cannot be converted from {column.type} to "
                f"{field.type}: {error}"
            ) from error
        given = file.values.get(field.name) if field.name in rows.column_names else None
        if given is not None and not column.unique().equals(given.cast(column.type)):
            # which of the two a reader shows depends on its engine
            text = f"has other values than {given[0].as_py()!r}, the one of its directory"
            raise ValueError(f"Column {field.name!r} of {file.location} {text}")
        return column


def open_table(
    source: TableSource, snapshot: int | None, types: _Types, known: _Types
) -> tuple[ForeignTable, list[ForeignFile]]:
    """Open a table and list its files; types of directories are given by the user, or known of the cube."""
    is_number = isinstance(snapshot, int) and not isinstance(snapshot, bool) and snapshot >= 0
    if snapshot is not None and not is_number:
        raise ValueError(f"snapshot is the number of a version or snapshot, got {snapshot!r}")
    if not isinstance(source, str | os.PathLike):
        return _open_object(source, snapshot)
    location = os.fspath(source)
    if not location:
        raise ValueError("source is an empty path")
    if location.endswith(".metadata.json"):
        return _open_iceberg(_load_iceberg(location), snapshot)
    filesystem, root = _resolve(location)
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    # URLs of pyarrow may have credentials
    shown = redact_url(location) if "://" in location else location
    kind = filesystem.get_file_info(root).type
    is_folder = kind == fs.FileType.Directory
    if kind == fs.FileType.NotFound:
        raise FileNotFoundError(f"There is no table in {shown}")
    if is_folder and filesystem.get_file_info(f"{root}/_delta_log").type == fs.FileType.Directory:
        _check_delta_log(filesystem, root)
        # deltalake decodes what it takes for a path, too
        return _open_delta(_load_delta(Path(root).as_uri() if is_local else location, snapshot))
    folder = fs.FileSelector(f"{root}/metadata", allow_not_found=True)
    if is_folder and any(i.path.endswith(".metadata.json") for i in filesystem.get_file_info(folder)):
        raise ValueError(
            f"{shown} is an Iceberg table: pass the path of its current metadata file "
            "(metadata/….metadata.json), or a table of pyiceberg"
        )
    if snapshot is not None:
        raise ValueError(f"{shown} is a directory of Parquet files, which has no snapshots")
    return _open_directory(shown, filesystem, root, types, known)


def _open_object(source: Any, snapshot: int | None) -> tuple[ForeignTable, list[ForeignFile]]:
    library = type(source).__module__.partition(".")[0]
    if library == "deltalake":
        if snapshot is not None and snapshot != source.version():
            raise ValueError(f"The Delta table is open at version {source.version()}, not {snapshot}")
        return _open_delta(source)
    if library == "pyiceberg" and hasattr(source, "scan"):
        return _open_iceberg(source, snapshot)
    raise TypeError(
        "source is a directory or URL, a metadata file of Iceberg, a deltalake.DeltaTable or a "
        f"pyiceberg.table.Table, got {type(source).__name__}"
    )


def _resolve(location: str) -> tuple[fs.FileSystem, str]:
    """File system and path of a directory or URL."""
    if "://" not in location:
        return fs.LocalFileSystem(), os.path.realpath(os.path.expanduser(location))
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowException, ValueError) as error:
        scheme = location.partition("://")[0]
        raise ValueError(f"{scheme}://… cannot be opened by pyarrow.fs: {error}") from error
    if not path.strip("/"):
        raise ValueError(f"{redact_url(location)} has no path")
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    return filesystem, os.path.realpath(path) if is_local else path.rstrip("/")


def _outside(name: str, root: str) -> ValueError:
    return ValueError(
        f"{name!r} is not in the directory of the table, {root}, and no other files are read: copy all files "
        "of the table to one directory"
    )


def _real_path(path: str, root: str) -> str:
    """Path without links, which is below a directory without links."""
    real = "" if "\0" in path else os.path.realpath(path)
    if not real.startswith(f"{root.rstrip('/')}/"):
        raise _outside(path, root)
    return real


def _list_folder(filesystem: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """Everything below a directory; links to directories are not followed."""
    selected: Any = fs.FileSelector(folder, recursive=True)
    if isinstance(filesystem, fs.LocalFileSystem):

        def fail(error: OSError) -> None:
            raise error

        walk = os.walk(folder, onerror=fail)
        selected = [os.path.join(parent, name) for parent, *names in walk for name in chain(*names)]
    infos: list[fs.FileInfo] = filesystem.get_file_info(selected)
    return infos


# -- directories -------------------------------------------------------------------------------------
# Not by `pyarrow.dataset`: it follows links out of the directory, takes dates for texts, and gives nulls to
# files in other directories.


def _open_directory(
    location: str, filesystem: fs.FileSystem, root: str, types: _Types, known: _Types
) -> tuple[ForeignTable, list[ForeignFile]]:
    listed = _list_files(filesystem, root)
    if not listed:
        raise ValueError(f"{location} has no Parquet files")
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    paths, texts = [info.path for info, _ in listed], [texts for _, texts in listed]
    keys = list(texts[0])
    for path, other in zip(paths, texts, strict=True):
        if list(other) != keys:
            one, two = (", ".join(names) or "no column" for names in (keys, other))
            raise ValueError(f"{paths[0]} is in directories of {one}, but {path} in those of {two}")
    unknown = sorted(set(types) - set(keys))
    if unknown:
        raise ValueError(f"No directory of {location} has a value of column {', '.join(unknown)}")
    threads = available_cores() if is_local else tuning.REMOTE_REQUESTS
    read = list(ordered_map(partial(_read_schema, filesystem), paths, threads))
    # files without rows, whose writers often know no types, come last
    order = sorted(range(len(paths)), key=lambda i: not read[i][1])
    schema = _unite_schemas([(paths[i], *read[i]) for i in order])
    stored = {field.name: field.type for field in schema}
    parsed = {}
    for key in keys:
        dtype = types.get(key, stored.get(key, known.get(key)))
        parsed[key] = _parse_directories(key, [own[key] for own in texts], dtype)
    schema = pa.schema([*schema, *(pa.field(key, parsed[key].type) for key in keys if key not in stored)])
    files = []
    for i, (info, _) in enumerate(listed):
        values = {key: parsed[key].slice(i, 1) for key in keys}
        files.append(ForeignFile(info.path, info.size, info.path if is_local else None, values))
    table = ForeignTable(description=location, schema=schema, is_immutable=False, filesystem=filesystem)
    return table, files


def _list_files(filesystem: fs.FileSystem, root: str) -> list[tuple[fs.FileInfo, dict[str, str | None]]]:
    """Files below a directory, without hidden ones, with the texts of their directories; None for null."""
    if filesystem.get_file_info(root).type == fs.FileType.File:
        return [(filesystem.get_file_info(root), {})]
    listed, is_local = [], isinstance(filesystem, fs.LocalFileSystem)
    for info in _list_folder(filesystem, root):
        *folders, name = info.path[len(root) :].lstrip("/").split("/")
        if _is_hidden(name) or any(map(_is_hidden, folders)):
            continue
        if is_local and os.path.islink(info.path):
            info = filesystem.get_file_info(_real_path(info.path, root))
            if info.type != fs.FileType.File:
                raise ValueError(f"{'/'.join((root, *folders, name))} is a link, but not to a file")
        if info.type != fs.FileType.File:
            continue
        pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
        try:
            texts = {naming.unquote(k): None if v == _HIVE_NULL else naming.unquote(v) for k, v in pairs}
        except UnicodeDecodeError as error:
            raise ValueError(f"The directories of {info.path} are not percent-encoded UTF-8") from error
        for column in texts if len(texts) < len(pairs) else ():
            if sum(naming.unquote(k) == column for k, _ in pairs) > 1:
                raise ValueError(f"Column {column!r} is twice in the directories of {info.path}")
        listed.append((info, texts))
    return sorted(listed, key=lambda file: str(file[0].path))


def _is_hidden(name: str) -> bool:
    """Whether a name is that of a file or directory of engines, as for Spark; ``_year=2024`` is not."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _read_schema(filesystem: fs.FileSystem, path: str) -> tuple[pa.Schema, bool]:
    """Schema of a file, and whether it has rows."""
    with filesystem.open_input_file(path) as file:
        parquet = open_parquet(file, path)
        return schema_of_file(parquet), parquet.metadata.num_rows > 0


def open_parquet(file: pa.NativeFile, location: str, **options: bool) -> pq.ParquetFile:
    """Open a Parquet file; the error names one that is none, or damaged."""
    try:
        return pq.ParquetFile(file, **options)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        ignored = "of a directory, only files whose names begin with . or _ are ignored"
        raise ValueError(f"{location} is no Parquet file ({error}); {ignored}") from error


def schema_of_file(parquet: pq.ParquetFile) -> pa.Schema:
    """Schema of a file, with the zones of times that old libraries left out."""
    return old_parquet.restore_zones(parquet.schema_arrow, parquet.metadata)


def _unite_schemas(files: Iterable[tuple[str, pa.Schema, bool]]) -> pa.Schema:
    """Columns of all files, each with the widest of its types; of files: path, schema, if they have rows."""
    fields: dict[str, tuple[pa.Field, str]] = {}
    for path, schema, has_rows in files:
        if len(set(schema.names)) < len(schema):
            twice = next(name for name in schema.names if schema.names.count(name) > 1)
            raise errors.SchemaConflictError(f"Column {twice!r} is twice in {path}")
        for field in schema:
            dtype = arrow.storage_type(field.type)
            if _PANDAS_INDEX.fullmatch(field.name) or (field.name in fields and not has_rows):
                continue
            united, first = fields.get(field.name, (pa.field(field.name, dtype), path))
            if arrow.has_zone(dtype) and arrow.has_zone(united.type) and dtype.tz != united.type.tz:
                # files hold instants
                united = united.with_type(pa.timestamp(united.type.unit, "UTC"))
                dtype = pa.timestamp(dtype.unit, "UTC")
            pair = united.type, dtype
            if any(map(pa.types.is_integer, pair)) and any(map(pa.types.is_floating, pair)):
                # pandas has floats for integers beside gaps; the cast of each file is exact
                united, dtype = united.with_type(pa.float64()), pa.float64()
            if arrow.same_but_nulls(united.type, dtype):
                options = [pa.schema([pa.field(field.name, t)]) for t in (united.type, dtype)]
                united = pa.unify_schemas(options, promote_options="permissive").field(0)
                fields[field.name] = united, first
                continue
            raise errors.SchemaConflictError(
                f"Column {field.name!r} is {united.type} in {first} but {dtype} in {path}"
            )
    return pa.schema([field for field, _ in fields.values()])


_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?")


def _parse_directories(column: str, texts: Sequence[str | None], dtype: pa.DataType | None) -> pa.Array:
    """Values of directories; without a type: integers, dates and times if all are, else text."""
    encoded = pa.array(texts, pa.string()).dictionary_encode()
    if dtype is None or pa.types.is_null(dtype):
        dtype = _infer_type(encoded.dictionary)
    try:
        parse = partial(arrow.parse_texts, encoded.dictionary)
        parsed = arrow.convert_first(parse, arrow.storage_type(dtype), arrow.with_far_times(dtype))
    except ValueError as error:
        raise ValueError(f"A directory of column {column!r} has no value of type {dtype}: {error}") from error
    return parsed.take(encoded.indices)


def _infer_type(texts: pa.StringArray) -> pa.DataType:
    """Type of directories of a column: that of the values which all of them are, else text."""
    times = [(_TIMESTAMP, pa.timestamp(unit)) for unit in ("ns", "us")]
    for pattern, dtype in ((_INTEGER, pa.int64()), (_DATE, pa.date32()), *times):
        if len(texts) and all(map(pattern.fullmatch, texts.to_pylist())):
            with suppress(ValueError):  # such as 2024-02-30
                arrow.parse_texts(texts, dtype)
                return dtype
    return pa.string()


# -- Delta -------------------------------------------------------------------------------------------
# deltalake reads the log. It follows paths of sidecars and deletion vectors out of the table, and reports
# deletion vectors only when it reads them, so both are looked for here.


def _load_delta(location: str, version: int | None) -> Any:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise ImportError("Delta tables need deltalake: pip install 'kartothek_cube[delta]'") from error
    try:
        return DeltaTable(location, version=version)
    except DeltaError as error:
        raise ValueError(f"The Delta table {redact_url(location)} cannot be opened: {error}") from error


def _open_delta(table: Any) -> tuple[ForeignTable, list[ForeignFile]]:
    description = f"Delta table {table.table_uri} at version {table.version()}"
    _check_delta_features(table, description)
    schema = pa.schema(table.schema().to_arrow())
    adds = pa.table(table.get_add_actions(flatten=True))
    values = {}
    for column in table.metadata().partition_columns:
        dtype = arrow.storage_type(schema.field(column).type)
        values[column] = arrow.cast_times(adds.column(f"partition.{column}").combine_chunks(), dtype)
    uri = urllib.parse.urlsplit(table.table_uri)
    root = os.path.realpath(urllib.parse.unquote(uri.path)) if uri.scheme in ("file", "") else None
    filesystem: fs.FileSystem = fs.LocalFileSystem()
    if root is None:
        from deltalake.fs import DeltaStorageHandler

        filesystem = fs.PyFileSystem(DeltaStorageHandler.from_table(table._table, table._storage_options))
    if _has_deletions(filesystem, root or "", table.version()):
        raise ValueError(
            f"The {description} has deletion vectors: its files have rows that were deleted; "
            "run REORG TABLE … APPLY (PURGE) first"
        )
    files = []
    for i, add in enumerate(adds.select(["path", "size_bytes"]).to_pylist()):
        relative = _delta_path(add["path"], table.table_uri)
        real = None if root is None else _real_path(f"{root}/{relative}", root)
        own = {column: array.slice(i, 1) for column, array in values.items()}
        files.append(ForeignFile(relative, add["size_bytes"], real, own))
    stored = pa.schema([(field.name, arrow.storage_type(field.type)) for field in schema])
    snapshot = ForeignTable(description=description, schema=stored, is_immutable=True, filesystem=filesystem)
    return snapshot, sorted(files, key=lambda file: file.location)


def _delta_path(path: str, root: str) -> str:
    """Decoded path of a file of a table, which is relative to its directory."""
    # decoded once: values of partitions are encoded in names of directories
    relative = urllib.parse.unquote(path)
    segments = re.split(r"[/\\]", relative)
    # shallow clones refer to files of other tables by URL
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", relative) or ".." in segments or not segments[0]:
        raise _outside(path, root)
    return relative


def _check_delta_log(filesystem: fs.FileSystem, root: str) -> None:
    """Refuse logs with files elsewhere, which deltalake would read."""
    log = f"{root}/_delta_log"
    infos = _list_folder(filesystem, log)
    if isinstance(filesystem, fs.LocalFileSystem):
        for path in (log, *(info.path for info in infos)):
            _real_path(path, root)
    for info in infos:
        if _DELTA_CHECKPOINT.fullmatch(info.base_name):
            _sidecars(_read_actions(filesystem, info.path, ["sidecar.path"]), log)


def _sidecars(actions: Iterable[Mapping[str, Any]], log: str) -> list[str]:
    """Paths of the files that a checkpoint refers to."""
    names = [action["sidecar"]["path"] for action in actions if action.get("sidecar")]
    for name in names:
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise _outside(name, f"{log}/_sidecars")
    return [f"{log}/_sidecars/{name}" for name in names]


def _read_actions(
    filesystem: fs.FileSystem, path: str, columns: Sequence[str]
) -> Sequence[Mapping[str, Any]]:
    """Actions in a file of a log."""
    with filesystem.open_input_file(path) as file:
        content = file.read() if path.endswith(".json") else open_parquet(file, path).read(columns)
    try:
        return parse_actions(content) if isinstance(content, bytes) else to_actions(content.to_pylist())
    except ValueError as error:
        raise ValueError(f"{path} is no part of a Delta log: {error}") from error


def _has_deletions(filesystem: fs.FileSystem, root: str, version: int) -> bool:
    """Whether a file has deleted rows, whatever the protocol says; deletion vectors are not read."""
    log = f"{root}/_delta_log"
    commits: list[tuple[int, str]] = []
    checkpoints: dict[tuple[int, int], list[str]] = {}
    for info in filesystem.get_file_info(fs.FileSelector(log)):
        if match := _DELTA_COMMIT.fullmatch(info.base_name):
            commits.append((int(match[1]), info.path))
        elif match := _DELTA_CHECKPOINT.fullmatch(info.base_name):
            checkpoints.setdefault((int(match[1]), int(match[2] or 1)), []).append(info.path)
    complete = [key for key, paths in checkpoints.items() if key[0] <= version and len(paths) >= key[1]]
    start = max(complete, default=(-1, 0))[0]
    columns = ["add.path", "add.deletionVector", "sidecar.path"]
    read = partial(_read_actions, filesystem, columns=columns)
    state = [read(path) for key in complete if key[0] == start for path in checkpoints[key]]
    paths = _sidecars(chain(*state), log)
    paths += [path for number, path in sorted(commits) if start < number <= version]
    deleted: set[str] = set()
    for actions in chain(state, ordered_map(read, paths, tuning.REMOTE_REQUESTS)):
        deleted.difference_update(action["remove"]["path"] for action in actions if action.get("remove"))
        for add in (action["add"] for action in actions if action.get("add")):
            (deleted.add if add.get("deletionVector") else deleted.discard)(add["path"])
    return bool(deleted)


def _check_delta_features(table: Any, description: str) -> None:
    """Refuse tables whose Parquet files do not have their rows or names."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    features = set(table.protocol().reader_features or ())
    if mode != "none":
        raise ValueError(
            f"The {description} uses column mapping ({mode}): the columns have other names in its files; "
            "write a copy of the table without it"
        )
    unsupported = features - _FEATURES - {"deletionVectors", "columnMapping"}
    if unsupported:
        raise ValueError(f"The {description} has unsupported features: {', '.join(sorted(unsupported))}")


# -- Iceberg -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _IcebergSnapshot(ForeignTable):
    """Snapshot of an Iceberg table."""

    table: Any
    projection: Any

    def open(self, file: ForeignFile) -> pa.NativeFile:
        if file.path is not None:
            return pa.OSFile(file.path)
        with self.table.io.new_input(file.location).open() as stream:
            return pa.BufferReader(stream.read())

    def has_columns(self, file: ForeignFile, schema: pa.Schema) -> bool:
        # names may have been swapped since the file was written: only the ids identify columns
        ids = {field.name: int((field.metadata or {}).get(b"PARQUET:field_id", -1)) for field in schema}
        expected = {field.name: field.field_id for field in self.projection.fields}
        return not file.task.delete_files and ids == expected

    def read(
        self, file: ForeignFile, parquet: pq.ParquetFile, columns: Sequence[str] | None = None
    ) -> pa.Table:
        if self.has_columns(file, parquet.schema_arrow):
            return super().read(file, parquet, columns)
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        scan = ArrowScan(self.table.metadata, self.table.io, self.projection, AlwaysTrue())
        names = self.schema.names if columns is None else columns
        return self._complete(file, scan.to_table([file.task]), names)


@attrs.frozen
class _ConfinedIO:
    """FileIO of pyiceberg that reads files below a directory only, whatever metadata say."""

    io: Any
    #: real path or URL
    root: str

    @property
    def properties(self) -> Any:
        return self.io.properties

    def new_input(self, location: str) -> Any:
        """Check the location of a file that will be read."""
        return self.io.new_input(self.local_path(location) or location)

    def local_path(self, location: str) -> str | None:
        """Real path of a location in the table; None if it is in another store."""
        if (path := _local_path(location)) is not None:
            return _real_path(path, self.root)
        inside = f"{self.root.rstrip('/')}/"
        if not _store_path(location).startswith(_store_path(inside)) or ".." in re.split(r"[/\\]", location):
            raise _outside(location, self.root)
        return None


def _local_path(location: str) -> str | None:
    match = re.fullmatch(r"(?:file:(?://)?)?(/.*)", location, re.DOTALL | re.IGNORECASE)
    return match[1] if match else None


def _store_path(location: str) -> str:
    """Location with the usual one of the equivalent schemes of a store."""
    return re.sub(r"^(s3|abfs)[ans](?=:)", r"\1", location)


def _load_iceberg(location: str) -> Any:
    try:
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.io import load_file_io
        from pyiceberg.serializers import FromInputFile
        from pyiceberg.table import Table
    except ImportError as error:
        raise ImportError("Iceberg tables need pyiceberg: pip install 'kartothek_cube[iceberg]'") from error
    location = str(Path(location).absolute()) if "://" not in location else location
    # without the properties of the table, which could name any module as the implementation
    io = _confine(load_file_io(location=location), location)
    metadata = FromInputFile.table_metadata(io.new_input(location))
    return Table(("source",), metadata, location, io, NoopCatalog("source"))


def _confine(io: Any, metadata_location: str) -> Any:
    root = metadata_location.rpartition("/")[0].removesuffix("/metadata")
    path = _local_path(root)
    return _ConfinedIO(io, root if path is None else os.path.realpath(path))


def _open_iceberg(table: Any, snapshot_id: int | None) -> tuple[ForeignTable, list[ForeignFile]]:
    table = copy.copy(table)
    table.io = _confine(table.io, table.metadata_location)
    scan = table.scan(snapshot_id=snapshot_id)
    snapshot = scan.snapshot()
    if snapshot_id is not None and snapshot is None:
        raise ValueError(f"The Iceberg table {table.metadata_location} has no snapshot {snapshot_id}")
    number = "without snapshots" if snapshot is None else f"at snapshot {snapshot.snapshot_id}"
    projection = scan.projection()
    files: list[ForeignFile] = []
    for task in scan.plan_files():
        location = task.file.file_path
        if str(task.file.file_format.name) != "PARQUET":
            raise ValueError(f"{location} is no Parquet file, but {task.file.file_format.name}")
        path = table.io.local_path(location)
        files.append(ForeignFile(location, task.file.file_size_in_bytes, path, task=task))
    schema = pa.schema([(field.name, arrow.storage_type(field.type)) for field in projection.as_arrow()])
    description = f"Iceberg table {table.metadata_location} {number}"
    opened = _IcebergSnapshot(
        description=description, schema=schema, is_immutable=True, table=table, projection=projection
    )
    return opened, sorted(files, key=lambda file: file.location)
