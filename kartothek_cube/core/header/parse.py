"""Parsing and strict validation of headers, and rendering of their JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from kartothek_cube.core.arrow.arrays import abbreviate
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.header import codec
from kartothek_cube.core.header.commit_record import check_record
from kartothek_cube.core.naming import METADATA_VERSION_KEY, UUID_KEY, check_metadata_version, validate_uuid

__all__ = (
    "HEADER_KEYS",
    "check_header",
    "common_tables",
    "parse_header",
    "partition_texts",
    "render_header",
    "table_sets",
)

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
        header = json.loads(buf) if format == "json" else codec.unpackb(bytes(buf))
    except (ValueError, RecursionError) as error:
        raise CorruptDatasetError(
            key, f"it is no {'JSON' if format == 'json' else format} ({error})"
        ) from error
    if type(header) is not dict:
        raise CorruptDatasetError(key, f"it holds {_type_name(header)}, not an object")
    return header


def check_header(header: Mapping[str, Any], key: str, uuid: str | None = None) -> None:
    """Check the types of a header's fields; raises CorruptDatasetError or NotImplementedError (version)."""
    # ``partitions`` are checked when they are converted to columns (`partition_texts`).
    _check_version(header, key)
    header_uuid = _get_typed(header, UUID_KEY, str, key)
    if not validate_uuid(header_uuid):
        raise CorruptDatasetError(key, f"{UUID_KEY!r} is {header_uuid!r}, which cannot be a dataset uuid")
    if uuid is not None and header_uuid != uuid:
        raise CorruptDatasetError(key, f"{UUID_KEY!r} is {header_uuid!r}, not {uuid!r}")
    _check_texts(_get_typed(header, "metadata", dict, key, {}), "metadata", key)
    keys = (
        _get_typed(header, "partition_keys", list, key, [])
        if header.get("partition_keys") is not None
        else []
    )
    _check_texts(keys, "partition_keys", key)
    if len(set(keys)) < len(keys):
        raise CorruptDatasetError(key, f"'partition_keys' has duplicates: {abbreviate(keys)}")
    _check_indices(_get_typed(header, "indices", dict, key, {}), key)
    check_record(header, key)


def partition_texts(partitions: Any, key: str) -> tuple[pa.StringArray, dict[str, pa.StringArray]]:
    """Labels and, per table, storage keys of the ``partitions`` of a header, validated."""
    _check_types(key, "'partitions'", [partitions], dict)
    entries = list(partitions.values())
    _check_types(key, "in 'partitions', a label", partitions, str)
    _check_types(key, "in 'partitions', an entry", entries, dict)
    if not all(map(_has_files, entries)):
        raise CorruptDatasetError(key, "in 'partitions', an entry has no 'files'")
    files = list(map(itemgetter("files"), entries))
    _check_types(key, "in 'partitions', 'files'", files, dict)
    tables = common_tables(files)
    if tables is None:
        raise CorruptDatasetError(key, f"partitions have different tables: {abbreviate(table_sets(files))}")
    _check_types(key, "in 'partitions', a table", tables, str)
    columns = {table: list(map(itemgetter(table), files)) for table in tables}
    return _array(list(partitions), key), {table: _array(texts, key) for table, texts in columns.items()}


def render_header(header: Mapping[str, Any], partitions: str | None) -> str:
    """JSON header as kartothek writes it: default separators, non-ASCII escaped."""
    # `partitions`, most of the text, are rendered from columns; their entry in `header` is a placeholder.
    if partitions is None:
        return json.dumps(header)
    names = list(header)
    index = names.index("partitions")
    before = json.dumps({name: header[name] for name in names[:index]})[:-1]
    after = json.dumps({name: header[name] for name in names[index + 1 :]})[1:]
    separator_before = ", " if index else ""
    separator_after = ", " if index + 1 < len(names) else ""
    return f'{before}{separator_before}"partitions": {partitions}{separator_after}{after}'


def common_tables(files: Sequence[Mapping[Any, Any]]) -> tuple[Any, ...] | None:
    """Tables that all partitions have, in order of the first partition; None if partitions differ."""
    first = tuple(files[0]) if files else ()
    distinct = set(map(tuple, files))
    return first if all(set(tables) == set(first) for tables in distinct) else None


def table_sets(files: Iterable[Mapping[Any, Any]]) -> list[list[str]]:
    """Distinct sets of tables among partitions, for a message."""
    return [sorted(map(str, tables)) for tables in dict.fromkeys(map(frozenset, files))]


def _check_version(header: Mapping[str, Any], key: str) -> None:
    version = header.get(METADATA_VERSION_KEY)
    if type(version) is not int:
        raise CorruptDatasetError(key, f"{METADATA_VERSION_KEY!r} is {_type_name(version)}, not an integer")
    check_metadata_version(version)


def _get_typed(header: Mapping[str, Any], part: str, expected: type, key: str, default: Any = None) -> Any:
    if part not in header and default is not None:
        return default
    if type(header.get(part)) is not expected:
        raise CorruptDatasetError(
            key, f"{part!r} is {_type_name(header.get(part))}, not {_TYPE_NAMES[expected]}"
        )
    return header[part]


def _check_texts(texts: Iterable[Any], part: str, key: str) -> None:
    others = [text for text in texts if type(text) is not str]
    if others:
        raise CorruptDatasetError(key, f"{part!r} holds {others[0]!r}, which is no text")


def _check_indices(indices: Mapping[Any, Any], key: str) -> None:
    _check_texts(indices, "indices", key)
    for column, index in indices.items():
        if type(index) not in (str, dict):
            raise CorruptDatasetError(
                key, f"the index of {column!r} is {_type_name(index)}, not a storage key or an object"
            )
        if type(index) is dict:
            _check_types(key, f"in the index of {column!r}, a list of labels", index.values(), list)
            _check_types(
                key,
                f"in the index of {column!r}, a label",
                (label for ls in index.values() for label in ls),
                str,
            )


def _has_files(entry: Mapping[Any, Any]) -> bool:
    return "files" in entry


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
