"""The header (metadata file) of a dataset: strict parsing, rendering, compression, and the commit record."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import attrs
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from kartothek_cube.core import caching
from kartothek_cube.core.errors import CorruptDatasetError, list_names
from kartothek_cube.core.naming import METADATA_VERSION_KEY, UUID_KEY, check_metadata_version, validate_uuid
from kartothek_cube.core.schema import COLUMN_BYTES, SchemaWrapper

#: Key of the commit record in the header: a field beside those of the specification. Other readers ignore it,
#: and other writers of the format (kartothek 5.3, plateau) drop it, so that a record always belongs to the
#: header that holds it.
COMMIT_RECORD = "kartothek_cube"


@attrs.frozen
class Participation:
    """The participation of a dataset in an operation on several datasets; another header decides about it."""

    #: id of the operation
    operation: str
    #: uuid of the dataset whose header decides, the seed of a cube
    coordinator: str
    #: lineage of that header: after a break nothing can be said about operations before it
    lineage: str
    #: key of the snapshot of the state before; "" if the dataset did not exist. None once the operation is
    #: known to be committed
    before: str | None = None
    #: id of the operation in which the state before took part
    previous: str | None = None
    #: whether the operation creates the coordinator, so that it is pending while there is none
    creates: bool = False

    def settle(self) -> Participation:
        """The same, of an operation that is known to be committed."""
        return attrs.evolve(self, before=None, previous=None, creates=False)


@attrs.frozen
class CommitRecord:
    """Identity and status of the commit that wrote a header."""

    #: Id that no other header has. Stores that compare contents (S3 by the ETag, dictionaries) would take a
    #: header for an earlier one of the same content, and a compare-and-swap would succeed although other
    #: writers had committed in between (the ABA problem).
    commit: str
    #: the schema: the schema file may be that of another commit, or missing
    schema: str | None = None
    #: Id of the commit that created the dataset, until another commit is on top of it: a garbage collection
    #: that saw no header may be deleting its files.
    unconfirmed: str | None = None
    #: Id of the chain of commits without one of other software, which drops the record
    lineage: str = ""
    #: whether other software wrote the dataset before this chain began: what it replaced is unknown
    interrupted: bool = False
    #: the last operation on several datasets that wrote this one
    participation: Participation | None = None
    #: of a coordinator: uuid of a dataset to id of the last committed operation that wrote it
    participants: Mapping[str, str] = attrs.field(factory=dict)
    #: of a coordinator: ids of operations that were aborted and must not commit any more
    aborted: tuple[str, ...] = ()
    #: whether the header only has aborted operations, and no dataset exists
    reserved: bool = False
    #: of the state: number, time, id, and the operation that made it (`kartothek_cube.core.history`)
    version: Mapping[str, Any] | None = None
    #: whether a rollback went back to a time before the dataset existed: it is absent, but for its history
    hidden: bool = False

    def to_field(self) -> dict[str, Any]:
        """The field of the header, without defaults."""
        values = {name: value for name, value in attrs.asdict(self).items() if value}
        if self.participation is not None:
            # an empty `before` says that the dataset did not exist
            pairs = attrs.asdict(self.participation).items()
            values["participation"] = {n: v for n, v in pairs if v is not None and v is not False}
        if self.aborted:
            values["aborted"] = list(self.aborted)
        return values


def embed_schema(schema: SchemaWrapper | None) -> str | None:
    """A schema as text for a record."""
    if schema is None:
        return None
    content = schema.internal().serialize().to_pybytes()
    return base64.b64encode(zstandard.ZstdCompressor().compress(content)).decode()


def embedded_schema(text: str, origin: str) -> SchemaWrapper:
    """The schema in a record: one object for all callers; raises CorruptDatasetError if it is damaged."""

    def parse(content: bytes) -> SchemaWrapper:
        schema = pa.ipc.read_schema(pa.py_buffer(_decompress(base64.b64decode(content, validate=True))))
        return SchemaWrapper(schema, origin)

    key, content = ("embedded schema", origin), text.encode()
    try:
        return caching.CACHE.parse(key, content, parse, lambda schema: COLUMN_BYTES * (1 + len(schema)))
    except (pa.ArrowException, OSError, ValueError) as error:
        damage = f"the copy of the schema in the header is damaged ({error}), and there is no schema file"
        remedy = "restore the header from a backup, or write the dataset again"
        raise CorruptDatasetError(origin, f"{damage}. Roll back to an earlier state, {remedy}") from error


def parse_record(header: Mapping[str, Any]) -> CommitRecord | None:
    """Record of a checked header; None if another library wrote it."""
    part = header.get(COMMIT_RECORD)
    if part is None:
        return None
    own = {name: value for name, value in part.items() if name in _TYPES}
    if "participation" in own:
        fields = {k: v for k, v in own["participation"].items() if k in _PARTICIPATION_TYPES}
        own["participation"] = Participation(**fields)
    return CommitRecord(**{**own, "aborted": tuple(own.get("aborted", ()))})


def participation_of(header: Mapping[str, Any]) -> Participation | None:
    """Participation in the record of a checked header; None if there is none."""
    record = parse_record(header)
    return None if record is None else record.participation


#: types in JSON
_JSON_TYPES: dict[str, type] = {
    "str": str,
    "bool": bool,
    "Participation": dict,
    "Mapping[str, str]": dict,
    "Mapping[str, Any]": dict,
    "tuple[str, ...]": list,
}
_TYPES, _PARTICIPATION_TYPES = (
    {field.name: _JSON_TYPES[str(field.type).removesuffix(" | None")] for field in attrs.fields(cls)}
    for cls in (CommitRecord, Participation)
)
_REQUIRED = {"operation", "coordinator", "lineage"}


def _is_record(part: Any) -> bool:
    if type(part) is not dict or "commit" not in part or not _has_types(part, _TYPES):
        return False
    participation = part.get("participation")
    if participation is not None:
        is_complete = _has_types(participation, _PARTICIPATION_TYPES) and participation.keys() >= _REQUIRED
        if not (is_complete and validate_uuid(participation["coordinator"])):
            return False
    texts = [*part.get("participants", {}).items(), *((text, text) for text in part.get("aborted", ()))]
    return all(type(text) is str for pair in texts for text in pair)


def _has_types(values: Mapping[str, Any], types: Mapping[str, type]) -> bool:
    return all(type(value) is types[name] for name, value in values.items() if name in types)


#: keys of a header that this version knows, in the order in which they are written
HEADER_KEYS = (METADATA_VERSION_KEY, UUID_KEY, "indices", "metadata", "partitions", "partition_keys")

_TYPE_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "an integer",
    bool: "a bool",
    type(None): "null",
}


def parse_header(buf: bytes, format: str, key: str) -> dict[str, Any]:
    """Decode the bytes of a header; raises CorruptDatasetError unless they are an object."""
    try:
        header = json.loads(buf) if format == "json" else unpackb(bytes(buf))
    except (ValueError, RecursionError) as error:
        problem = f"it is no {'JSON' if format == 'json' else format} ({error})"
        raise CorruptDatasetError(key, problem) from error
    if type(header) is not dict:
        raise CorruptDatasetError(key, f"it holds {_type_name(header)}, not an object")
    return header


def check_header(header: Mapping[str, Any], key: str, uuid: str | None = None) -> None:
    """Check the types of a header's fields; raises CorruptDatasetError or NotImplementedError (version)."""
    # ``partitions`` are checked when they are converted to columns (`partition_texts`).
    version = header.get(METADATA_VERSION_KEY)
    if type(version) is not int:
        raise CorruptDatasetError(key, f"{METADATA_VERSION_KEY!r} is {_type_name(version)}, not an integer")
    check_metadata_version(version)
    header_uuid = _get_typed(header, UUID_KEY, str, key)
    if not validate_uuid(header_uuid):
        raise CorruptDatasetError(key, f"{UUID_KEY!r} is {header_uuid!r}, which cannot be a dataset uuid")
    if uuid is not None and header_uuid != uuid:
        raise CorruptDatasetError(key, f"{UUID_KEY!r} is {header_uuid!r}, not {uuid!r}")
    _check_texts(_get_typed(header, "metadata", dict, key, {}), "metadata", key)
    keys = header.get("partition_keys")
    keys = [] if keys is None else _get_typed(header, "partition_keys", list, key)
    _check_texts(keys, "partition_keys", key)
    if len(set(keys)) < len(keys):
        raise CorruptDatasetError(key, f"'partition_keys' has duplicates: {list_names(keys)}")
    _check_indices(_get_typed(header, "indices", dict, key, {}), key)
    part = header.get(COMMIT_RECORD)
    if part is not None and not _is_record(part):
        raise CorruptDatasetError(key, f"{COMMIT_RECORD!r} is no record of a commit")


def partition_texts(partitions: Any, key: str) -> tuple[pa.StringArray, dict[str, pa.StringArray]]:
    """Labels and, per table, storage keys of the ``partitions`` of a header, validated."""
    _check_types(key, "'partitions'", [partitions], dict)
    entries = list(partitions.values())
    _check_types(key, "in 'partitions', a label", partitions, str)
    _check_types(key, "in 'partitions', an entry", entries, dict)
    try:
        files = list(map(itemgetter("files"), entries))
    except KeyError as error:
        raise CorruptDatasetError(key, "in 'partitions', an entry has no 'files'") from error
    _check_types(key, "in 'partitions', 'files'", files, dict)
    tables = common_tables(files)
    if tables is None:
        raise CorruptDatasetError(key, f"partitions have different tables: {list_names(table_sets(files))}")
    _check_types(key, "in 'partitions', a table", tables, str)
    columns = {table: list(map(itemgetter(table), files)) for table in tables}
    return _array(list(partitions), key), {table: _array(texts, key) for table, texts in columns.items()}


def render_header(header: Mapping[str, Any]) -> str:
    """JSON header as kartothek writes it: default separators, non-ASCII escaped; `partitions` are JSON."""
    if "partitions" not in header:
        return json.dumps(header)
    # most of the text, rendered from columns, replaces a text that the header cannot contain elsewhere
    placeholder = secrets.token_hex(16)
    text = json.dumps({**header, "partitions": placeholder})
    return text.replace(f'"{placeholder}"', header["partitions"], 1)


def common_tables(files: Sequence[Mapping[Any, Any]]) -> tuple[Any, ...] | None:
    """Tables that all partitions have, in order of the first partition; None if partitions differ."""
    first = tuple(files[0]) if files else ()
    return first if all(set(tables) == set(first) for tables in set(map(tuple, files))) else None


def table_sets(files: Iterable[Mapping[Any, Any]]) -> list[list[str]]:
    """Distinct sets of tables among partitions, for a message."""
    return [sorted(map(str, tables)) for tables in dict.fromkeys(map(frozenset, files))]


def _get_typed(header: Mapping[str, Any], part: str, expected: type, key: str, default: Any = None) -> Any:
    if part not in header and default is not None:
        return default
    if type(header.get(part)) is not expected:
        problem = f"{part!r} is {_type_name(header.get(part))}, not {_TYPE_NAMES[expected]}"
        raise CorruptDatasetError(key, problem)
    return header[part]


def _check_texts(texts: Iterable[Any], part: str, key: str) -> None:
    others = [text for text in texts if type(text) is not str]
    if others:
        raise CorruptDatasetError(key, f"{part!r} holds {others[0]!r}, which is no text")


def _check_indices(indices: Mapping[Any, Any], key: str) -> None:
    _check_texts(indices, "indices", key)
    for column, index in indices.items():
        if type(index) not in (str, dict):
            problem = f"the index of {column!r} is {_type_name(index)}, not a storage key or an object"
            raise CorruptDatasetError(key, problem)
        if type(index) is dict:
            where = f"in the index of {column!r}, a"
            _check_types(key, f"{where} list of labels", index.values(), list)
            _check_types(key, f"{where} label", chain.from_iterable(index.values()), str)


def _array(texts: list[Any], key: str) -> pa.StringArray:
    _check_types(key, "in 'partitions', a storage key", texts, str)
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError as error:  # JSON can spell lone surrogates
        raise CorruptDatasetError(key, "in 'partitions', a text is not Unicode") from error


def _check_types(key: str, what: str, values: Iterable[Any], expected: type) -> None:
    """Raise unless all values are exactly of one type; the loop runs in C."""
    other_types = set(map(type, values)) - {expected}
    if other_types:
        names = ", ".join(sorted(t.__name__ for t in other_types))
        raise CorruptDatasetError(key, f"{what} is {names}, not {expected.__name__}")


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), f"a {type(value).__name__}")


_START, _END, _NEXT = b'"partitions": {"', b'"}}}', '"}}, "'
_TABLE = re.compile(rb'[^"\\]*": \{"files": \{"([^"\\]*)": "')
#: quotation marks of an entry of ``partitions``
_QUOTES = 8
#: bytes of partitions from which columnar parsing pays
_MIN_BYTES = 1 << 14
#: limit of one Arrow array of strings
_MAX_BYTES = (1 << 31) - 1

Files = dict[str, pa.StringArray]


# A header of 100,000 partitions takes 0.06 s; with json or orjson 0.20, most of that to create an object per
# text. Planning a query on two of them takes 0.2 to 0.3 s instead of 0.7 to 0.9.
def split_header(content: bytes) -> tuple[dict[str, Any], pa.StringArray, Files] | None:
    """Header without partitions, labels and storage keys; None if the text has not the usual form."""
    # The form is verified: nothing but the labels and the keys may differ from it.
    start = content.find(_START) + len(_START)
    stop = content.find(_END, start)
    if stop - start < _MIN_BYTES or len(content) > _MAX_BYTES or not content.isascii():
        return None
    table = _TABLE.match(content, start, stop)
    if table is None or content.find(b"\\", start, stop) >= 0:
        return None
    if np.frombuffer(content, np.uint8, stop - start, start).min() < ord(" "):
        return None  # JSON spells control characters as escapes
    offsets = pa.array([start, stop], pa.int32()).buffers()[1]
    text = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(content))
    entries = pc.split_pattern(text, _NEXT).flatten()
    name = table.group(1).decode()
    pairs = pc.split_pattern(entries, f'": {{"files": {{"{name}": "')
    del entries, text  # each holds all of the text
    lengths = pc.min_max(pc.list_value_length(pairs)).as_py()
    # neither a label nor a key has a quotation mark
    if lengths != {"min": 2, "max": 2} or content.count(b'"', start, stop) != _QUOTES * len(pairs) - 2:
        return None
    labels, keys = (pc.list_element(pairs, position) for position in (0, 1))
    del pairs
    if len(labels.unique()) < len(labels):
        return None
    header = _parse_other_fields(content[: start - len('{"')], content[stop + len(_END) :])
    return None if header is None else (header, labels, {name: keys})


def _parse_other_fields(before: bytes, after: bytes) -> dict[str, Any] | None:
    """The header without its partitions; None if what was cut out is another element."""
    placeholder = secrets.token_hex(16)  # random, so that the header cannot contain it elsewhere
    try:
        header = json.loads(b'%s"%s"%s' % (before, placeholder.encode(), after))
    except (ValueError, RecursionError):
        return None
    if type(header) is not dict or header.pop("partitions", None) != placeholder:
        return None
    return header


# Zip-bomb guard: refuse compression ratios far above those of headers (about 10).
_ALWAYS_ALLOWED = 16 * 2**20
_MAX_RATIO = 200
_MAX_SIZE = 4 * 2**30


def packb(obj: object) -> bytes:
    """Serialise an object to msgpack and compress it; ValueError if `unpackb` would refuse the result."""
    content = msgpack.packb(obj, use_bin_type=True)
    compressed = zstandard.ZstdCompressor(write_content_size=True).compress(content)
    _check_size(len(content), len(compressed))
    return compressed


def unpackb(bts: bytes) -> Any:
    """Decompress and parse one object; untrusted input, ValueError for anything malformed or oversized."""
    content = _decompress(bts)
    try:
        return msgpack.unpackb(content, raw=False, strict_map_key=True)
    except ValueError as error:  # all errors of msgpack are
        raise ValueError(f"not one msgpack object: {str(error) or type(error).__name__}") from error


def _decompress(bts: bytes) -> bytes:
    try:
        size = zstandard.frame_content_size(bts)
        if size < 0:
            raise ValueError("the zstd frame does not state its content size")
        _check_size(size, len(bts))
        return zstandard.ZstdDecompressor().decompress(bts, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"not a zstd frame: {error}") from error


def _check_size(size: int, compressed_size: int) -> None:
    limit = min(_MAX_SIZE, max(_ALWAYS_ALLOWED, _MAX_RATIO * compressed_size))
    if size > limit:
        raise ValueError(f"{compressed_size} compressed bytes stand for {size}; {limit} are allowed")
