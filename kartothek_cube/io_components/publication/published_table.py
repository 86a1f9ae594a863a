"""Publish a state of a dataset: what a table can show, facts of its files, the next version of the log."""
# A log version shows one state of the dataset. A publisher reads the log, then the header, and adds a version
# by put-if-absent. The log first: then no publisher goes back to an older state than that of the version on
# which it builds.

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core import arrow, clock, dataset_files, errors, naming, old_parquet, partition, tuning
from kartothek_cube.core.commit import header_store, operation
from kartothek_cube.core.cube import consistency, constants
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.evolution import ColumnMapping
from kartothek_cube.core.header import parse_record
from kartothek_cube.core.store import BlobStore, PreconditionFailed
from kartothek_cube.core.uuid import gen_uuid_object
from kartothek_cube.io_components import kernels, runtime, scan
from kartothek_cube.io_components.publication import delta_log
from kartothek_cube.serialization.parquet import read_footer

#: Table feature that no writer supports. Readers need not know features of writers.
WRITER_FEATURE = "kartothekCube"
#: configuration entry with the schema of the files
_FILE_SCHEMA = "kartothek_cube.schema"
#: For writers that ignore table features in VACUUM (delta-spark before 3.1): all of our files are young.
_RETENTION = "interval 36500 days"
#: to be raised when tables of older versions of this library have to be published again
_LAYOUT = 2
_MAX_LONG = (1 << 63) - 1


@attrs.frozen
class FileFacts:
    """Rows, size and statistics of a file, from its footer."""

    size: int
    stats: str
    #: columns of the table with their types in the table
    schema: pa.Schema
    #: why it has to be rewritten before a table can show it
    problem: str | None


#: keys of files of one physical partition, in the order of commit; of one file where cells do not matter
FileGroup: TypeAlias = tuple[str, ...]


class GroupFacts(NamedTuple):
    """Entries of a group of files, and reasons against their publication."""

    files: Mapping[str, FileFacts]
    #: why they have to be rewritten before a table can show them
    problem: str | None


@attrs.frozen
class ShownState:
    """A state of a dataset to publish."""

    state: DatasetMetadata
    schema: pa.Schema
    #: columns that identify a cell within a physical partition; None if all rows of all files are visible
    cell: tuple[str, ...] | None
    #: how to read files that were written before a change of the schema
    mapping: ColumnMapping | None
    #: of all that a table shows (``state``), and of its columns only (``columns``)
    digests: Mapping[str, str]


def check_format(format: str) -> None:
    """Raise ValueError for an unknown format, ImportError without its package."""
    errors.check_choice("format", format, naming.TABLE_FORMATS)
    if format == naming.ICEBERG and find_spec("pyiceberg") is None:
        raise ImportError("Iceberg tables need pyiceberg: pip install 'kartothek_cube[iceberg]'")


# -- the state -------------------------------------------------------------------------------------------


def load_shown(blobs: BlobStore, uuid: str) -> DatasetMetadata:
    """The state of a dataset that readers see; it has no rows if a rollback has hidden the dataset."""
    state = operation.resolve_pending(blobs, DatasetMetadata.load_from_store(uuid, blobs))
    if state is None:
        raise errors.DatasetNotFoundError(uuid)
    return state


def shown_state(state: DatasetMetadata) -> ShownState:
    """Content of the table of a state; raises ValueError if no Delta table can show it."""
    if len(state.tables) > 1 or state.schema is None:
        raise _refused(state.uuid, f"it has several tables ({', '.join(state.tables)}), a Delta table is one")
    if not state.explicit_partitions:
        # all Parquet files below it are its partitions, and those of a log would be, too
        raise _refused(state.uuid, "its header does not list its files, as only kartothek 3 wrote it")
    schema = state.schema.internal().remove_metadata()
    try:
        naming.check_column_names(schema.names)
    except ValueError as error:
        raise _refused(state.uuid, str(error)) from error
    folded: dict[str, str] = {}
    for field in schema:
        _table_type(state.uuid, field)
        other = folded.setdefault(field.name.lower(), field.name)
        if other != field.name:
            text = f"columns {other} and {field.name} differ in case only, which Delta tables do not allow"
            raise _refused(state.uuid, text)
    for name, values in state.key_columns().items():
        if (problem := _key_problem(values)) is not None:
            raise _refused(state.uuid, f"partition key {name} {problem}")
    others = [key for key in dataset_files.data_keys(state) if not key.endswith(naming.PARQUET_FILE_SUFFIX)]
    if others:
        raise _refused(state.uuid, f"{others[0]} is no Parquet file, and a Delta table has no others")
    dimensions = _names(state, constants.KTK_CUBE_METADATA_DIMENSION_COLUMNS)
    cell = None if dimensions is None else tuple(c for c in dimensions if c in schema.names)
    return ShownState(state, schema, cell, state.column_mapping, _digests(state))


def _refused(uuid: str, problem: str) -> ValueError:
    return ValueError(f"Dataset {uuid!r} cannot be published: {problem}")


def _key_problem(values: pa.Array) -> str | None:
    """Why a Delta table cannot have the values of a partition key; None if it can."""
    if pat.is_binary(values.type):
        return "is binary, for which paths of Delta tables have no common form"
    if pat.is_string(values.type) and pc.any(pc.equal(values, "")).as_py():
        return "has an empty text, which readers of Delta tables take for null"
    if pat.is_uint64(values.type) and (pc.max(values).as_py() or 0) > _MAX_LONG:
        return f"has numbers above {_MAX_LONG:,}, which Delta tables do not have"
    return None


def _table_type(uuid: str, field: pa.Field, *, is_key: bool = False) -> pa.DataType:
    dtype = field.type
    if is_key and pat.is_uint64(dtype):
        return pa.int64()
    # nanoseconds in memory, where a file has microseconds
    return delta_log.table_type(arrow.with_far_times(dtype), str(_refused(uuid, f"column {field.name}")))


def _names(state: DatasetMetadata, key: str) -> list[str] | None:
    names = consistency.read_specification(state.metadata, key)
    return names if isinstance(names, list) else None


def _digests(state: DatasetMetadata) -> dict[str, str]:
    """Digests of what a table shows: all of it, and its columns only."""
    schema = None if state.schema is None else str(state.schema.internal().remove_metadata())
    fields = [_LAYOUT, schema, state.partition_keys, state.metadata.get(naming.EVOLUTION)]
    columns, prefix = _digest(json.dumps(fields, default=str)), f"{state.uuid}/"
    # without the prefix: a table may be moved with its log
    keys = sorted(key.removeprefix(prefix) for key in dataset_files.data_keys(state))
    return {"state": _digest("\n".join([columns, *keys])), "columns": columns}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Publication(NamedTuple):
    """The newest log version of a published dataset."""

    key: str
    version: int
    #: whether it shows the state that was asked for
    is_current: bool


def find_publication(blobs: BlobStore, state: DatasetMetadata) -> Publication | None:
    """The published table of a dataset, compared with a state; None if it is not published."""
    names, digest = delta_log.list_log(blobs, state.uuid), _digests(state)["state"]
    log = delta_log.read_newest(blobs, state.uuid, names)
    if log.version < 0:
        return None
    iceberg = delta_log.read_iceberg_state(blobs, state.uuid, delta_log.newest_iceberg(names))
    is_current = log.record.get("state") == digest and iceberg in (None, digest)
    return Publication(delta_log.version_key(state.uuid, log.version), log.version, is_current)


# -- new files -------------------------------------------------------------------------------------------


def _list_new_groups(table: ShownState, log: delta_log.LogState) -> list[FileGroup]:
    """Groups with files whose footers are needed, because the log does not show them."""
    state = table.state
    keys = dataset_files.data_keys(state)
    # after a change of the schema those of all files: which of them it concerns is not known
    same = _schema_of_log(table, log) is not None
    shown = {delta_log.data_key(state.uuid, path) for path in log.files} if same else set()
    new = {key for key in keys if key not in shown}
    if table.cell is None or len(state.partition_table) < 2:
        return [(key,) for key in keys if key in new]
    physical = _names(state, constants.KTK_CUBE_METADATA_PARTITION_COLUMNS)
    known = set(table.cell) | set(state.partition_keys if physical is None else physical)
    values = [array for column, array in state.key_columns().items() if column in known]
    groups = partition.group_positions(kernels.group_codes(values, len(state.partition_table)))
    return [group for part in groups if not new.isdisjoint(group := tuple(keys[i] for i in part))]


def read_new_groups(blobs: BlobStore, uuid: str, format: str) -> dict[FileGroup, GroupFacts]:
    """Facts of the files that a publication of the newest state adds; ValueError if no table can show it."""
    log, state = delta_log.read_log(blobs, uuid), load_shown(blobs, uuid)
    table = shown_state(state)
    if format == naming.ICEBERG:
        check_iceberg(blobs, table)
    return _read_groups(blobs, table, _list_new_groups(table, log))


def _read_groups(
    blobs: BlobStore, table: ShownState, groups: Sequence[FileGroup]
) -> dict[FileGroup, GroupFacts]:
    threads = runtime.available_cores() if blobs.is_local else tuning.REMOTE_REQUESTS
    runtime.progress_add_total(sum(map(len, groups)))
    facts = runtime.ordered_map(partial(_read_group, blobs, table), groups, threads)
    return dict(zip(groups, facts, strict=True))


def _read_group(blobs: BlobStore, table: ShownState, keys: FileGroup) -> GroupFacts:
    """Entries of some files by their footers, and reasons why a table cannot show these."""
    facts = {}
    for key in keys:
        footer, size = read_footer(blobs, key)
        facts[key] = _file_facts(table, key, footer, size)
        runtime.progress_advance(size)
    problem = next((fact.problem for fact in facts.values() if fact.problem is not None), None)
    if problem is None and table.cell is not None and len(keys) > 1:
        hidden, example = _count_hidden_rows(blobs, table, facts)
        if hidden:
            verb, place = "has" if hidden == 1 else "have", keys[0].rpartition("/")[0]
            text = (
                f"{errors.format_count(hidden, 'row')} of partition {place} {verb} a newer version in "
                f"another file{example}, and readers of the table would see both; compact the cube first "
                "(compact_cube, or compact=True)"
            )
            problem = str(_refused(table.state.uuid, text))
    return GroupFacts(facts, problem)


def _file_facts(table: ShownState, key: str, footer: pq.FileMetaData, size: int) -> FileFacts:
    """Entry of a file by its footer."""
    stored = footer.schema.to_arrow_schema().remove_metadata()
    where = str(_refused(table.state.uuid, f"in {key}, column"))
    types = {field.name: field.type for field in stored}
    fields, problem = [], None
    # only cubes are compacted
    remedy = "rewrite older files first (compact=True, or compact_cube with min_files=1)"
    if table.cell is None:
        remedy = "read its rows, and store the dataset again with overwrite=True"
    if old_parquet.is_misread_by_others(footer):
        text = (
            f"{key} was written by pyarrow before 0.14: other readers take its times for those of UTC, or "
            f"cannot read its columns without values; {remedy}"
        )
        problem = str(_refused(table.state.uuid, text))
    for name in table.schema.names:
        if name in table.state.partition_keys:
            continue
        reason = None if table.mapping is None else _evolution_problem(table.mapping, name, types)
        if problem is None and reason is not None:
            problem = f"{where} {name} {reason}; {remedy}"
        if name in types:
            fields.append((name, delta_log.table_type(types[name], f"{where} {name}")))
    first = (*(table.cell or ()), *sorted(table.state.secondary_indices))
    stats = delta_log.file_stats(footer, stored, first)
    return FileFacts(size, stats, pa.schema(fields), problem)


def _evolution_problem(mapping: ColumnMapping, column: str, stored: Mapping[str, pa.DataType]) -> str | None:
    """Why other readers cannot read a column of a file like that of the newest files; None if they can."""
    evolved = mapping.columns.get(column)
    if evolved is None:
        return None
    name = mapping.stored_name(column, stored)
    if name is None:
        return None if evolved.default is None else "is missing, and its default is not null"
    if name != column:
        return f"has its former name {name}"
    return "has integers" if evolved.widened and pat.is_integer(stored[name]) else None


def _count_hidden_rows(
    blobs: BlobStore, table: ShownState, facts: Mapping[str, FileFacts]
) -> tuple[int, str]:
    """Number of rows with a newer version of their cell, and one of these cells, for messages."""
    columns = [column for column in table.cell or () if column not in table.state.partition_keys]
    stats = [json.loads(fact.stats) for fact in facts.values()]
    if not columns:
        # the partition is the cell
        return max(sum(own["numRecords"] for own in stats) - 1, 0), ""
    if any(_are_disjoint(column, stats) for column in columns):
        return 0, ""
    tables = scan.read_files(blobs, list(facts), columns, schema=table.schema, mapping=table.mapping)
    rows = arrow.concat_promoted(list(tables))
    last = kernels.last_rows_mask([rows.column(column) for column in columns], len(rows))
    if last is None:
        return 0, ""
    cell = rows.slice(int(np.argmin(last)), 1).to_pylist()[0]
    return int((~last).sum()), f", such as that of {cell}"


def _are_disjoint(column: str, stats: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the bounds of files show that no value of a column is in two of them."""
    # not known: files without bounds, or with different types of the column
    with suppress(KeyError, TypeError):
        ranges = sorted((own["minValues"][column], own["maxValues"][column]) for own in stats)
        return all(before[1] < after[0] for before, after in pairwise(ranges))
    return False


def _schema_of_log(table: ShownState, log: delta_log.LogState) -> pa.Schema | None:
    """Types of the files that a log shows; None if the schema of the dataset, or another library, changed."""
    if log.record.get("columns") != table.digests["columns"]:
        return None
    text = (log.metadata.get("configuration") or {}).get(_FILE_SCHEMA)
    with suppress(ValueError, OSError, TypeError):
        return None if text is None else arrow.decode_schema(text)
    return None


# -- the new version -------------------------------------------------------------------------------------


def publish_committed(blobs: BlobStore, state: DatasetMetadata) -> DatasetMetadata:
    """Publish a state that was committed, if its metadata ask for that; return the state."""
    if state.metadata.get(naming.PUBLISH) is not None:
        try:
            publish_table(blobs, state.uuid, state.metadata[naming.PUBLISH], on_commit=True)
        except Exception as error:
            # The commit is done and cannot be taken back; the next publication catches up.
            warnings.warn(
                f"Dataset {state.uuid!r}: the commit is done, but not published ({error}). The table shows "
                "an older state until the next commit, publish_cube or publish_dataset.",
                errors.PublicationWarning,
                stacklevel=2,
            )
    return state


def publish_table(
    blobs: BlobStore,
    uuid: str,
    format: str,
    facts: Mapping[FileGroup, GroupFacts] | None = None,
    *,
    on_commit: bool = False,
) -> dict[str, int]:
    """Add a log version that shows the newest state, unless the newest one does; with what is known."""
    known = dict(facts or {})
    for _ in header_store.attempts():
        names = delta_log.list_log(blobs, uuid)
        log = delta_log.read_log(blobs, uuid, names)
        state = load_shown(blobs, uuid)
        if on_commit and state.metadata.get(naming.PUBLISH) is None:
            # unpublished since
            return _count(log, 0, 0)
        table = shown_state(state)
        newest = delta_log.newest_iceberg(names)
        has_iceberg = format == naming.ICEBERG or newest > 0
        if has_iceberg:
            check_iceberg(blobs, table)
        digest = table.digests["state"]
        if log.record.get("state") == digest:
            if has_iceberg and delta_log.read_iceberg_state(blobs, uuid, newest) != digest:
                try:
                    _put_iceberg(blobs, table, newest, log)
                except PreconditionFailed:
                    continue
            return _count(log, 0, 0)
        header_store.retry_request(partial(blobs.delete, list(log.remains)))
        groups = _list_new_groups(table, log)
        # of commits since the facts were read
        known |= _read_groups(blobs, table, [group for group in groups if group not in known])
        files: dict[str, FileFacts] = {}
        for group in groups:
            if (problem := known[group].problem) is not None:
                raise ValueError(problem)
            files.update(known[group].files)
        actions = _actions(table, log, files)
        stages = [delta_log.stage_version(blobs, uuid, log.version + 1, actions)]
        try:
            # Since then, collections spare the files. One that began before has changed the header: files
            # that it deletes are not part of the state.
            if _digests(load_shown(blobs, uuid))["state"] != digest:
                continue
            log.apply(log.version + 1, actions)
            if has_iceberg:
                _put_iceberg(blobs, table, newest, log)
            delta_log.add_version(blobs, uuid, log, actions)
            if on_commit and not log.version and load_shown(blobs, uuid).metadata.get(naming.PUBLISH) is None:
                # unpublished before there was a log to delete
                delta_log.delete_log(blobs, uuid)
        except PreconditionFailed:
            # another publisher was faster, or this request was repeated after its answer was lost
            continue
        except BaseException:
            # A version of the log, or metadata of Iceberg, may be there or arrive later. Until there is
            # another version, only the staged one names its files.
            stages.clear()
            raise
        finally:
            header_store.retry_request(partial(blobs.delete, stages))
        return _count(log, *(sum(kind in action for action in actions) for kind in ("add", "remove")))
    raise errors.ConcurrentWriteError(uuid, detail="Other writers commit all the time; publish again.")


def check_iceberg(blobs: BlobStore, table: ShownState) -> None:
    """Raise ValueError for what a Delta table can show, but no Iceberg table; ImportError."""
    check_format(naming.ICEBERG)
    delta_log.store_location(blobs, table.state.uuid)
    for key in table.state.partition_keys:
        if pat.is_floating(table.schema.field(key).type):
            text = f"partition key {key} is a floating point number, which readers of Iceberg tables round"
            raise _refused(table.state.uuid, text)


def _put_iceberg(blobs: BlobStore, table: ShownState, newest: int, log: delta_log.LogState) -> None:
    # pyiceberg is optional
    from kartothek_cube.io_components.publication import iceberg

    files = arrow.decode_schema(log.metadata["configuration"][_FILE_SCHEMA])
    schema = _table_schema(table, files)
    others = set(table.schema.names) - set(schema.names)
    others |= set() if table.mapping is None else table.mapping.dropped
    shown = iceberg.IcebergTable(blobs, table.state.uuid, log, schema, sorted(others))
    shown.put_metadata(newest, table.digests["state"])


def _count(log: delta_log.LogState, added: int, removed: int) -> dict[str, int]:
    return {"version": log.version, "files": len(log.files), "added": added, "removed": removed}


def _actions(
    table: ShownState, log: delta_log.LogState, facts: Mapping[str, FileFacts]
) -> list[delta_log.Action]:
    """Actions from the newest log version to a state."""
    state = table.state
    now = int(clock.datetime_utcnow().replace(tzinfo=UTC).timestamp() * 1000)
    keys = dataset_files.data_keys(state)
    paths = {delta_log.table_path(state.uuid, key): row for row, key in enumerate(keys)}
    texts = {column: delta_log.partition_texts(values) for column, values in state.key_columns().items()}
    adds = [
        {
            "path": path,
            "partitionValues": {column: each[row] for column, each in texts.items()},
            "size": facts[keys[row]].size,
            "modificationTime": now,
            "dataChange": True,
            "stats": facts[keys[row]].stats,
        }
        for path, row in paths.items()
        if path not in log.files
    ]
    removes = [
        {"path": path, "deletionTimestamp": now, "dataChange": True}
        for path in log.files
        if path not in paths
    ]
    shown = [*(add for path, add in log.files.items() if path in paths), *adds]
    stats = [add.get("stats") for add in shown]
    metadata = _metadata(table, log, [facts[key] for key in keys if key in facts], stats, now)
    protocol = _protocol(metadata["schemaString"], log)
    record = parse_record(state.extra)
    commit = {} if record is None else {"commit": record.commit}
    parameters = {"dataset": state.uuid, **commit, **table.digests}
    info = {"timestamp": now, "operation": delta_log.OPERATION, "operationParameters": parameters}
    actions: list[delta_log.Action] = [{"commitInfo": {**info, "engineInfo": "kartothek_cube"}}]
    if protocol != log.protocol:
        actions.append({"protocol": protocol})
    if metadata != log.metadata:
        actions.append({"metaData": metadata})
    return [*actions, *({"remove": remove} for remove in removes), *({"add": add} for add in adds)]


def _metadata(
    table: ShownState,
    log: delta_log.LogState,
    facts: Sequence[FileFacts],
    stats: Iterable[Any],
    now: int,
) -> delta_log.Action:
    """The ``metaData`` action of the table; that of the log if nothing has changed."""
    files = _file_schema(table, log, facts)
    columns = _table_schema(table, files)
    if len(columns) == len(table.state.partition_keys):
        text = "no column in its files has a value so far, and a Delta table needs one with a type"
        raise _refused(table.state.uuid, text)
    # As a dataset of PyArrow, delta-rs leaves out files without bounds of a column, unless it is told that
    # the column has no statistics.
    bounded = delta_log.bounded_columns(columns.names, stats)
    configuration = {
        "delta.deletedFileRetentionDuration": _RETENTION,
        "delta.dataSkippingStatsColumns": delta_log.column_list(bounded),
        _FILE_SCHEMA: arrow.encode_schema(files),
    }
    return {
        "id": log.metadata.get("id") or str(gen_uuid_object()),
        "name": table.state.uuid,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(delta_log.struct_type(columns)),
        "partitionColumns": list(table.state.partition_keys),
        "configuration": configuration,
        "createdTime": log.metadata.get("createdTime") or now,
    }


def _file_schema(table: ShownState, log: delta_log.LogState, facts: Iterable[FileFacts]) -> pa.Schema:
    """Types of the columns in the files of a table: those that are shown already, and new ones."""
    uuid, keys, shown = table.state.uuid, table.state.partition_keys, _schema_of_log(table, log)
    unite = partial(pa.unify_schemas, promote_options="permissive")
    declared = pa.schema([(f.name, _table_type(uuid, f)) for f in table.schema if f.name not in keys])
    try:
        united = unite([pa.schema([]) if shown is None else shown, *(fact.schema for fact in facts)])
        # the types of files are narrower than that of the schema, which is also that of other files
        types = dict(zip(united.names, united.types, strict=True))
        untyped = [f for f in declared if delta_log.has_null_type(types.get(f.name, pa.null()))]
        united = unite([united, pa.schema(untyped)])
    except pa.ArrowException as error:
        raise _refused(uuid, f"files have other types of a column: {error}") from error
    return pa.schema([united.field(name) for name in declared.names])


def _table_schema(table: ShownState, files: pa.Schema) -> pa.Schema:
    """Columns of a table, by those of its files, of which a part without any value so far has no type."""
    keys = [table.schema.field(name) for name in table.state.partition_keys]
    types = {key.name: _table_type(table.state.uuid, key, is_key=True) for key in keys}
    types |= {field.name: delta_log.typed_part(field.type) for field in files}
    return pa.schema([(name, types[name]) for name in table.schema.names if types[name] is not None])


def _protocol(schema: str, log: delta_log.LogState) -> delta_log.Action:
    # once needed, a feature stays: older versions have it
    if '"timestamp_ntz"' not in schema and not log.protocol.get("readerFeatures"):
        return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [WRITER_FEATURE]}
    features = {"readerFeatures": ["timestampNtz"], "writerFeatures": [WRITER_FEATURE, "timestampNtz"]}
    return {"minReaderVersion": 3, "minWriterVersion": 7, **features}
