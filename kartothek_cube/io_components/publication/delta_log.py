"""The Delta log of a published dataset: replay it, add a version, keep its files; types and statistics."""
# Not by `deltalake`: it commits to no table with our writer feature, which keeps others from our files, and
# has no staged versions, which keep files from a concurrent garbage collection.

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias, cast
from urllib.parse import quote, unquote

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow import rebuild_nested
from kartothek_cube.core.commit.header_store import retry_request
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.naming import DELTA_LOG_DIRECTORY, check_uuid
from kartothek_cube.core.store import BlobStore, PreconditionFailed, get_required
from kartothek_cube.core.uuid import gen_uuid

#: an action of the protocol, as its JSON
Action: TypeAlias = dict[str, Any]

#: name of a publication in a ``commitInfo``
OPERATION = "PUBLISH"
#: versions from one checkpoint to the next: readers open at most so many JSON files
_CHECKPOINT_INTERVAL = 20
_VERSION = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_ICEBERG = re.compile(r"_iceberg/metadata/v(\d+)\.metadata\.json")
#: property of Iceberg tables
ICEBERG_STATE = "kartothek_cube.state"
_STAGES = "_staged/"
_STAGE = re.compile(_STAGES + r"(\d{20})\.[0-9a-f]+\.json")
_REMEDY = "unpublish the dataset (unpublish_dataset), and publish it again"
#: characters of a path that stay as they are; ``%`` of our labels becomes ``%25``
_SAFE = "/=_.-~"


@attrs.define
class LogState:
    """The newest version of a log."""

    #: -1 if there is none
    version: int = -1
    #: path to the ``add`` action of each file
    files: dict[str, Action] = attrs.field(factory=dict)
    metadata: Action = attrs.field(factory=dict)
    protocol: Action = attrs.field(factory=dict)
    #: record of the dataset in the newest version; empty if this library has not written it
    record: Mapping[str, Any] = attrs.field(factory=dict)
    #: files left of a log whose deletion was killed
    remains: Sequence[str] = ()

    def apply(self, version: int, actions: Iterable[Action]) -> None:
        """Replay a version, or a checkpoint."""
        self.version, self.record = version, {}
        for action in actions:
            if "add" in action:
                self.files[action["add"]["path"]] = action["add"]
            elif "remove" in action:
                self.files.pop(action["remove"]["path"], None)
            elif "metaData" in action:
                self.metadata = action["metaData"]
            elif "protocol" in action:
                self.protocol = action["protocol"]
            elif "commitInfo" in action:
                info = action["commitInfo"]
                parameters = info.get("operationParameters")
                if info.get("operation") == OPERATION and isinstance(parameters, dict):
                    self.record = parameters


def log_folder(uuid: str) -> str:
    """Prefix of the keys of the log of a dataset."""
    check_uuid(uuid)
    return f"{uuid}/{DELTA_LOG_DIRECTORY}/"


def table_path(uuid: str, key: str) -> str:
    """Path of a data file in actions: relative to the table, URL-encoded, also ``%`` of labels."""
    return quote(key.removeprefix(f"{uuid}/"), safe=_SAFE)


def data_key(uuid: str, path: str) -> str:
    """Reverse :func:`table_path`."""
    return f"{uuid}/{unquote(path)}"


def list_log(blobs: BlobStore, uuid: str) -> list[str]:
    """Names of the files of a log, without the directory; empty if the dataset is not published."""
    folder = log_folder(uuid)
    return [blob.key.removeprefix(folder) for blob in blobs.list(folder)]


def _versions(names: Sequence[str], pattern: re.Pattern[str]) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def _list_versions(names: Sequence[str]) -> list[int]:
    """Versions of the table; none if the first ones are gone, as after a deletion that was killed."""
    versions = _versions(names, _VERSION)
    return versions if 0 in versions or _versions(names, _CHECKPOINT) else []


def read_log(blobs: BlobStore, uuid: str, names: Sequence[str] | None = None) -> LogState:
    """Replay a log; raises CorruptDatasetError if a version is missing or malformed."""
    listed = list_log(blobs, uuid) if names is None else names
    versions = _list_versions(listed)
    if not versions:
        return LogState(remains=[version_key(uuid, number) for number in _versions(listed, _VERSION)])
    newest = versions[-1]
    # one of a version that is listed: its writer has put the version first
    start = max((number for number in _versions(listed, _CHECKPOINT) if number <= newest), default=-1)
    state = LogState()
    if start >= 0:
        state.apply(start, _read_checkpoint(blobs, version_key(uuid, start, "checkpoint.parquet")))
    # also that of a checkpoint if it is the newest: checkpoints have no records
    needed = range(min(start + 1, newest), newest + 1)
    if missing := sorted(set(needed) - set(versions)):
        raise CorruptDatasetError(version_key(uuid, missing[0]), f"this version is missing; {_REMEDY}")
    for number in needed:
        state.apply(number, _read_version(blobs, version_key(uuid, number)))
    return state


def version_key(uuid: str, version: int, suffix: str = "json") -> str:
    """Key of a version of the log."""
    return f"{log_folder(uuid)}{version:020d}.{suffix}"


def _read_version(blobs: BlobStore, key: str) -> list[Action]:
    content = get_required(blobs, key)
    try:
        return parse_actions(content)
    except ValueError as error:
        raise CorruptDatasetError(key, f"it is no version of a Delta log; {_REMEDY}") from error


def parse_actions(content: bytes) -> list[Action]:
    """Actions of a version; raises ValueError."""
    try:
        return to_actions([json.loads(line) for line in content.splitlines() if line.strip()])
    except RecursionError as error:
        raise ValueError("its values are nested too deep") from error


def to_actions(rows: Iterable[Any]) -> list[Action]:
    """Actions of lines of a version, or of rows of a checkpoint; raises ValueError."""
    # some writers have nulls in place of the other actions
    actions = [
        {name: part for name, part in row.items() if part is not None} if isinstance(row, dict) else row
        for row in rows
    ]
    if not all(map(_is_action, actions)):
        raise ValueError("a line or row is no action")
    return actions


def _is_action(action: Any) -> bool:
    if not isinstance(action, dict) or not all(isinstance(part, dict) for part in action.values()):
        return False
    if not isinstance(action.get("metaData", {}).get("configuration") or {}, dict):
        return False
    parts = [action[name] for name in ("add", "remove", "sidecar") if name in action]
    return all(isinstance(part.get("path"), str) for part in parts)


def read_newest(blobs: BlobStore, uuid: str, names: Sequence[str]) -> LogState:
    """The newest version alone, without the files of those before."""
    state = LogState()
    for version in _list_versions(names)[-1:]:
        state.apply(version, _read_version(blobs, version_key(uuid, version)))
    return state


# -- Iceberg ---------------------------------------------------------------------------------------------


def iceberg_folder(uuid: str) -> str:
    """Prefix of the keys of the Iceberg table; in the log, as collections and deletions keep or take both."""
    return f"{log_folder(uuid)}_iceberg/"


def iceberg_key(uuid: str, version: int) -> str:
    """Key of a version of the metadata of Iceberg."""
    return f"{iceberg_folder(uuid)}metadata/v{version}.metadata.json"


def newest_iceberg(names: Sequence[str]) -> int:
    """Version of the newest metadata of Iceberg among the files of a log; 0 if there are none."""
    return max(_versions(names, _ICEBERG), default=0)


def read_iceberg_state(blobs: BlobStore, uuid: str, version: int) -> str | None:
    """Record of the dataset in metadata of Iceberg; None without a version."""
    if not version:
        return None
    key = iceberg_key(uuid, version)
    try:
        return cast(str, json.loads(get_required(blobs, key))["properties"][ICEBERG_STATE])
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptDatasetError(key, f"these are no metadata of this library; {_REMEDY}") from error


def store_location(blobs: BlobStore, uuid: str) -> str:
    """The location of the root of a store, with a slash at its end; ValueError for a store without one."""
    key = version_key(uuid, 0)
    remote = blobs.remote_url(key)
    location = blobs.local_path(key) or (remote and remote[0])
    if location is None:
        reason = "Iceberg tables name their files by absolute paths, and this store has none"
        raise ValueError(f"Dataset {uuid!r} cannot be published: {reason}")
    return location.removesuffix(key)


# -- garbage collection ----------------------------------------------------------------------------------


def published_keys(blobs: BlobStore, uuid: str) -> set[str]:
    """Data files that a published table shows, or is about to show: garbage collection keeps them."""
    # Order matters: a publisher stages its files, then reads the header, then puts the version. A collection
    # writes tombstones into the header, then calls this. So either the files are seen here, or the
    # publisher has read a header of which no file has a tombstone.
    if not (names := list_log(blobs, uuid)):
        return set()
    paths, newest = set(read_log(blobs, uuid, names).files), max(_list_versions(names), default=-1)
    for name in names:
        match = _STAGE.fullmatch(name)
        if match is not None and int(match[1]) > newest:
            # Removed since: its version is listed next time, or was given up. Unreadable: its publisher died,
            # or has not read the header yet.
            with suppress(KeyError, CorruptDatasetError):
                actions = _read_version(blobs, log_folder(uuid) + name)
                paths.update(action["add"]["path"] for action in actions if "add" in action)
    if _list_versions(list_log(blobs, uuid))[-1:] != ([newest] if newest >= 0 else []):
        # another version since: a staged file may have become it between the two requests
        return published_keys(blobs, uuid)
    return {data_key(uuid, path) for path in paths}


def list_finished_stages(uuid: str, names: Sequence[str]) -> list[str]:
    """Keys of staged versions whose number is taken: they can become a version no more."""
    newest = max(_list_versions(names), default=-1)
    stages = [(name, _STAGE.fullmatch(name)) for name in names]
    return [log_folder(uuid) + name for name, match in stages if match and int(match[1]) <= newest]


# -- new versions ----------------------------------------------------------------------------------------


def stage_version(blobs: BlobStore, uuid: str, version: int, actions: Sequence[Action]) -> str:
    """Put a version under another name, so that no collection deletes its files; return the key."""
    key = f"{log_folder(uuid)}{_STAGES}{version:020d}.{gen_uuid()}.json"
    blobs.put(key, _to_lines(actions))
    return key


def add_version(blobs: BlobStore, uuid: str, new: LogState, actions: Sequence[Action]) -> None:
    """Put the next version, after which the log is `new`; PreconditionFailed if another one was faster."""
    version, key = new.version, version_key(uuid, new.version)
    blobs.put_if(key, _to_lines(actions), None)
    if version and not blobs.exists(version_key(uuid, version - 1)):
        # the log was deleted since it was read: without the versions before it, this one is damage
        blobs.delete([key])
        raise PreconditionFailed(key)
    if version and version % _CHECKPOINT_INTERVAL == 0:
        # the version is there: readers without the checkpoint open more files
        with suppress(Exception):
            _put_checkpoint(blobs, uuid, new)


def delete_log(blobs: BlobStore, uuid: str) -> int:
    """Delete a log, with versions that others add meanwhile; return the number of its files."""
    # a publisher that is not seen finds its previous version gone
    n_files = 0
    while names := list_log(blobs, uuid):
        delete_log_files(blobs, uuid, names)
        n_files += len(names)
    return n_files


def delete_log_files(blobs: BlobStore, uuid: str, names: Iterable[str]) -> None:
    """Delete files of a log, so that readers find the newest state, then no table, but no older state."""
    names = sorted(names)
    # in the order of their numbers, of which the newest comes last: it is the one that readers look for
    metadata = sorted(filter(_ICEBERG.fullmatch, names), key=lambda name: (len(name), name))
    versions = [name for name in names if _VERSION.fullmatch(name)]
    checkpoints = [name for name in names if name not in metadata and name not in versions]
    for part in (metadata[:-1], metadata[-1:], checkpoints, versions[:1], versions[1:]):
        keys = [log_folder(uuid) + name for name in part]
        retry_request(partial(blobs.delete, keys))
        blobs.flush(keys)


def _to_lines(actions: Sequence[Action]) -> bytes:
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


_TEXT, _LONG, _MAP = pa.string(), pa.int64(), pa.map_(pa.string(), pa.string())
_INT, _FLAG, _TEXTS = pa.int32(), pa.bool_(), pa.list_(_TEXT)
_FORMAT = pa.struct({"provider": _TEXT, "options": _MAP})
_FILE = {
    "path": _TEXT,
    "partitionValues": _MAP,
    "size": _LONG,
    "modificationTime": _LONG,
    "dataChange": _FLAG,
}
_NAMES = {"id": _TEXT, "name": _TEXT, "description": _TEXT, "format": _FORMAT, "schemaString": _TEXT}
_SETTINGS = {"partitionColumns": _TEXTS, "configuration": _MAP, "createdTime": _LONG}
_VERSIONS = {"minReaderVersion": _INT, "minWriterVersion": _INT}
_CHECKPOINT_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": _TEXT, "version": _LONG, "lastUpdated": _LONG}),
        "add": pa.struct({**_FILE, "stats": _TEXT}),
        "remove": pa.struct({"path": _TEXT, "deletionTimestamp": _LONG, "dataChange": _FLAG}),
        "metaData": pa.struct({**_NAMES, **_SETTINGS}),
        "protocol": pa.struct({**_VERSIONS, "readerFeatures": _TEXTS, "writerFeatures": _TEXTS}),
    }
)


def _put_checkpoint(blobs: BlobStore, uuid: str, state: LogState) -> None:
    # Without ``remove`` actions, which only VACUUM needs: this library collects the garbage of the dataset.
    adds = [{"add": {**add, "dataChange": False}} for add in state.files.values()]
    rows = [{"protocol": state.protocol}, {"metaData": state.metadata}, *adds]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, _CHECKPOINT_SCHEMA), sink, compression="snappy")
    # durable: readers prefer it to the versions
    key = version_key(uuid, state.version, "checkpoint.parquet")
    blobs.put(key, sink.getvalue().to_pybytes(), durable=True)
    pointer = {"version": state.version, "size": len(rows)}
    blobs.put(f"{log_folder(uuid)}_last_checkpoint", json.dumps(pointer).encode(), durable=True)


def _read_checkpoint(blobs: BlobStore, key: str) -> list[Action]:
    try:
        content = io.BytesIO(get_required(blobs, key))
        table = pq.read_table(content, columns=["add", "metaData", "protocol"])
        rows = table.to_pylist(maps_as_pydicts="strict")
    except (pa.ArrowException, OSError) as error:
        reason = f"the checkpoint of the Delta log is not readable ({error}); {_REMEDY}"
        raise CorruptDatasetError(key, reason) from error
    parts = [(name, part) for row in rows for name, part in row.items() if part is not None]
    # fields without a value are null there
    actions = [{name: {f: value for f, value in part.items() if value is not None}} for name, part in parts]
    if not all(map(_is_action, actions)):
        raise CorruptDatasetError(key, f"it is no checkpoint of a Delta log; {_REMEDY}")
    return actions


# -- types --------------------------------------------------------------------------------------------------


#: columns with statistics, as other writers of the format do by default
_STATS_COLUMNS = 32
#: characters of a text in statistics; without a bound readers open the file
_STATS_TEXT = 64

_PRIMITIVES: dict[pa.DataType, str] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
}
#: types that readers of Delta tables, Spark among them, take out of Parquet files as another one
_READ_AS: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_MAX_PRECISION = 38


def table_type(dtype: pa.DataType, where: str) -> pa.DataType:
    """The type as which a Delta table has a column of Parquet files; the error begins with `where`.

    >>> table_type(pa.uint16(), "QTY"), table_type(pa.dictionary(pa.int32(), pa.large_string()), "CITY")
    (DataType(int32), DataType(string))
    """

    def translate(t: pa.DataType) -> pa.DataType:
        if pat.is_null(t) or t in _PRIMITIVES:
            return t
        if t in _READ_AS:
            return _READ_AS[t]
        if pat.is_dictionary(t):
            return translate(t.value_type)
        if pat.is_timestamp(t) and t.unit != "ns":
            return pa.timestamp("us", None if t.tz is None else "UTC")
        if pat.is_fixed_size_binary(t):
            return pa.binary()
        if pat.is_decimal(t) and t.precision <= _MAX_PRECISION and 0 <= t.scale <= t.precision:
            return pa.decimal128(t.precision, t.scale)
        if pat.is_nested(t) and t.num_fields and not pat.is_union(t):
            return rebuild_nested(t, translate)
        part = "" if t == dtype else f" with {t}"
        raise ValueError(f"{where} is {dtype}{part}, a type that Delta tables do not have")

    return translate(dtype)


def _delta_type(dtype: pa.DataType) -> str | dict[str, Any]:
    """A type from :func:`table_type` as JSON: the name of a primitive type, or an object."""
    if dtype in _PRIMITIVES:
        return _PRIMITIVES[dtype]
    if pat.is_decimal(dtype):
        return f"decimal({dtype.precision},{dtype.scale})"
    if pat.is_list(dtype):
        return {"type": "array", "elementType": _delta_type(dtype.value_type), "containsNull": True}
    if pat.is_map(dtype):
        types = {"keyType": _delta_type(dtype.key_type), "valueType": _delta_type(dtype.item_type)}
        return {"type": "map", **types, "valueContainsNull": True}
    return struct_type(dtype)


def struct_type(fields: Iterable[pa.Field]) -> dict[str, Any]:
    """A struct as JSON, as which a table has its columns of types from :func:`table_type`."""
    described = [
        {"name": field.name, "type": _delta_type(field.type), "nullable": True, "metadata": {}}
        for field in fields
    ]
    return {"type": "struct", "fields": described}


def has_null_type(dtype: pa.DataType) -> bool:
    """Whether a type, or a part of it, is that of a column without values."""
    return pat.is_null(dtype) or any(has_null_type(dtype.field(n).type) for n in range(dtype.num_fields))


def typed_part(dtype: pa.DataType) -> pa.DataType | None:
    """A type without the fields of structs that have no value so far; None if nothing is left."""
    if pat.is_struct(dtype):
        fields = [(field.name, part) for field in dtype if (part := typed_part(field.type)) is not None]
        return pa.struct(fields) if fields else None
    if pat.is_list(dtype):
        value = typed_part(dtype.value_type)
        return None if value is None else pa.list_(value)
    return None if has_null_type(dtype) else dtype


# -- partition keys --------------------------------------------------------------------------------------


def partition_texts(values: pa.Array) -> list[str | None]:
    """Values of a partition key as the protocol writes them.

    >>> partition_texts(pa.array([True, None])), partition_texts(pa.array([1.5, float("inf")]))
    (['true', None], ['1.5', 'Infinity'])
    """
    dtype = values.type
    if pat.is_timestamp(dtype):
        values = pc.cast(values, pa.timestamp("us", dtype.tz), safe=False)
    return [None if value is None else _partition_text(value) for value in values.to_pylist()]


def _partition_text(value: object) -> str:
    if isinstance(value, bool | float):
        return _NAMES_OF_VALUES.get(str(value), str(value))
    if isinstance(value, datetime):
        # str has a space between date and time, and microseconds if there are any
        return str(value) if value.tzinfo is None else _format_time(value)
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


_NAMES_OF_VALUES = {"True": "true", "False": "false", "nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _format_time(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


# -- footers ---------------------------------------------------------------------------------------------


def file_stats(footer: pq.FileMetaData, schema: pa.Schema, columns: Sequence[str]) -> str:
    """``stats`` of a file, as JSON; `columns` come first where a file has more than have statistics."""
    leaves = [footer.schema.column(position) for position in range(footer.num_columns)]
    # the path of a nested column has more names
    flat = {leaf.name: position for position, leaf in enumerate(leaves) if leaf.path == leaf.name}
    order = [name for name in dict.fromkeys([*columns, *flat]) if name in flat][:_STATS_COLUMNS]
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    stats: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in order:
        chunks, dtype = [group.column(flat[name]).statistics for group in groups], schema.field(name).type
        if not chunks or any(chunk is None for chunk in chunks):
            continue
        if all(chunk.has_null_count for chunk in chunks):
            stats["nullCount"][name] = sum(chunk.null_count for chunk in chunks)
        low, high = map(_stats_value, _bounds(chunks, dtype) or (None, None))
        if low is not None:
            stats["minValues"][name] = low
        # NaN is not part of footers, and larger than all other numbers for most readers
        if high is not None and not pat.is_floating(dtype):
            stats["maxValues"][name] = high
    return json.dumps(stats, separators=(",", ":"))


def bounded_columns(columns: Iterable[str], stats: Iterable[Any]) -> list[str]:
    """Those of some columns that have both bounds, or only nulls, in the ``stats`` of all files."""
    bounded = list(columns)
    for text in stats:
        own = json.loads(text or "{}")
        known = own.get("minValues", {}).keys() & own.get("maxValues", {}).keys()
        n_rows, nulls = own.get("numRecords"), own.get("nullCount", {})
        bounded = [name for name in bounded if name in known or nulls.get(name, -1) == n_rows]
    return bounded


def column_list(columns: Iterable[str]) -> str:
    """Columns as a property of a table has them.

    >>> print(column_list(["SHOP", "a`b"]))
    `SHOP`,`a``b`
    """
    return ",".join(f"`{name.replace('`', '``')}`" for name in columns)


def _bounds(chunks: Sequence[Any], dtype: pa.DataType) -> tuple[Any, Any] | None:
    """Bounds of a column in all row groups; None where the footer has none that other engines share."""
    values = dtype.value_type if pat.is_dictionary(dtype) else dtype
    is_text = pat.is_string(values) or pat.is_large_string(values)
    if not (pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_temporal(dtype) or is_text):
        return None
    # a row group of nulls has no bounds
    filled = [chunk for chunk in chunks if chunk.has_min_max or chunk.num_values]
    if not filled or not all(chunk.has_min_max for chunk in filled):
        return None
    try:
        return min(chunk.min for chunk in filled), max(chunk.max for chunk in filled)
    except (OverflowError, ValueError, TypeError):
        # times beyond those of Python, texts that are no UTF-8
        return None


def _stats_value(value: Any) -> int | float | str | None:
    if isinstance(value, date):
        return _format_time(value) if isinstance(value, datetime) else value.isoformat()
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    is_long = isinstance(value, str) and len(value) > _STATS_TEXT
    return value if isinstance(value, int | float | str) and not is_infinite and not is_long else None
