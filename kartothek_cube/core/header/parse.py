"""The header of a dataset as it is stored: strict checks of what is read, and the text that is written."""

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
    """
    Decode the bytes of a header; what the parts are is checked by :func:`check_header`.

    Parameters
    ----------
    buf
        Content of the header.
    format
        ``"json"`` or ``"msgpack"``.
    key
        Its storage key, for messages.

    Returns
    -------
    dict

    Raises
    ------
    CorruptDatasetError
        The content is truncated, or no object in that format.

    Examples
    --------
    >>> parse_header(b'{"dataset_uuid": "sales', "json", "sales.by-dataset-metadata.json")
    Traceback (most recent call last):
    ...
    kartothek_cube.core.errors.CorruptDatasetError: Corrupt object 'sales.by-dataset-metadata.json':
    it is no JSON (Unterminated string starting at: line 1 column 18 (char 17))
    """
    try:
        header = json.loads(buf) if format == "json" else codec.unpackb(bytes(buf))
    except (ValueError, RecursionError) as error:
        raise CorruptDatasetError(
            key, f"it is no {'JSON' if format == 'json' else format} ({error})"
        ) from error
    if type(header) is not dict:
        raise CorruptDatasetError(key, f"it holds {_name(header)}, not an object")
    return header


def check_header(header: Mapping[str, Any], key: str, uuid: str | None = None) -> None:
    """
    Check the parts of a header; nothing is converted (specification, "Attributes").

    The ``partitions`` are checked when they are turned into columns, :func:`partition_texts`.

    Parameters
    ----------
    header
        The decoded header.
    key
        Its storage key, for messages.
    uuid
        The dataset that was asked for; None if any will do.

    Raises
    ------
    CorruptDatasetError
        A part is missing or has another type, or the header is that of another dataset.
    NotImplementedError
        The dataset has another version of the format than 4.
    """
    _check_version(header, key)
    found = _typed(header, UUID_KEY, str, key)
    if not validate_uuid(found):
        raise CorruptDatasetError(key, f"{UUID_KEY!r} is {found!r}, which cannot be a dataset uuid")
    if uuid is not None and found != uuid:
        raise CorruptDatasetError(key, f"{UUID_KEY!r} is {found!r}, not {uuid!r}")
    _check_texts(_typed(header, "metadata", dict, key, {}), "metadata", key)
    keys = _typed(header, "partition_keys", list, key, []) if header.get("partition_keys") is not None else []
    _check_texts(keys, "partition_keys", key)
    if len(set(keys)) < len(keys):
        raise CorruptDatasetError(key, f"'partition_keys' has duplicates: {abbreviate(keys)}")
    _check_indices(_typed(header, "indices", dict, key, {}), key)
    check_record(header, key)


def partition_texts(partitions: Any, key: str) -> tuple[pa.StringArray, dict[str, pa.StringArray]]:
    """
    Labels and, per table, storage keys out of the ``partitions`` of a header.

    Parameters
    ----------
    partitions
        ``{<label>: {"files": {<table>: <storage key>}}}``.
    key
        Storage key of the header, for messages.

    Returns
    -------
    labels
        In the order of the header.
    files
        Table to storage keys.

    Raises
    ------
    CorruptDatasetError
        The structure is another one, or the partitions have different tables.
    """
    _demand(key, "'partitions'", [partitions], dict)
    entries = list(partitions.values())
    _demand(key, "in 'partitions', a label", partitions, str)
    _demand(key, "in 'partitions', an entry", entries, dict)
    if not all(map(_has_files, entries)):
        raise CorruptDatasetError(key, "in 'partitions', an entry has no 'files'")
    files = list(map(itemgetter("files"), entries))
    _demand(key, "in 'partitions', 'files'", files, dict)
    tables = common_tables(files)
    if tables is None:
        raise CorruptDatasetError(key, f"partitions have different tables: {abbreviate(table_sets(files))}")
    _demand(key, "in 'partitions', a table", tables, str)
    columns = {table: list(map(itemgetter(table), files)) for table in tables}
    return _array(list(partitions), key), {table: _array(texts, key) for table, texts in columns.items()}


def render_header(header: Mapping[str, Any], partitions: str | None) -> str:
    """
    The text of a JSON header, as kartothek writes it: default separators, non-ASCII escaped.

    Parameters
    ----------
    header
        All parts in their order; ``partitions`` only marks the place.
    partitions
        The text of ``partitions``, which is most of the header and quicker made from columns.

    Returns
    -------
    str
    """
    if partitions is None:
        return json.dumps(header)
    names = list(header)
    at = names.index("partitions")
    before = json.dumps({name: header[name] for name in names[:at]})[:-1]
    after = json.dumps({name: header[name] for name in names[at + 1 :]})[1:]
    return (
        f'{before}{", " if at else ""}"partitions": {partitions}{", " if at + 1 < len(names) else ""}{after}'
    )


def common_tables(files: Sequence[Mapping[Any, Any]]) -> tuple[Any, ...] | None:
    """
    The tables that all partitions have.

    Parameters
    ----------
    files
        Per partition the storage keys by table.

    Returns
    -------
    tuple of str or None
        In the order of the first partition; None if the partitions differ.
    """
    first = tuple(files[0]) if files else ()
    distinct = set(map(tuple, files))
    return first if all(set(tables) == set(first) for tables in distinct) else None


def table_sets(files: Iterable[Mapping[Any, Any]]) -> list[list[str]]:
    """
    The different sets of tables among partitions, for a message.

    Parameters
    ----------
    files
        Per partition the storage keys by table.

    Returns
    -------
    list of list of str
    """
    return [sorted(map(str, tables)) for tables in dict.fromkeys(map(frozenset, files))]


def _check_version(header: Mapping[str, Any], key: str) -> None:
    version = header.get(METADATA_VERSION_KEY)
    if type(version) is not int:
        raise CorruptDatasetError(key, f"{METADATA_VERSION_KEY!r} is {_name(version)}, not an integer")
    check_metadata_version(version)


def _typed(header: Mapping[str, Any], part: str, wanted: type, key: str, default: Any = None) -> Any:
    if part not in header and default is not None:
        return default
    if type(header.get(part)) is not wanted:
        raise CorruptDatasetError(key, f"{part!r} is {_name(header.get(part))}, not {_TYPE_NAMES[wanted]}")
    return header[part]


def _check_texts(texts: Iterable[Any], part: str, key: str) -> None:
    wrong = [text for text in texts if type(text) is not str]
    if wrong:
        raise CorruptDatasetError(key, f"{part!r} holds {wrong[0]!r}, which is no text")


def _check_indices(indices: Mapping[Any, Any], key: str) -> None:
    _check_texts(indices, "indices", key)
    for column, index in indices.items():
        if type(index) not in (str, dict):
            raise CorruptDatasetError(
                key, f"the index of {column!r} is {_name(index)}, not a storage key or an object"
            )
        if type(index) is dict:
            _demand(key, f"in the index of {column!r}, a list of labels", index.values(), list)
            _demand(
                key,
                f"in the index of {column!r}, a label",
                (label for ls in index.values() for label in ls),
                str,
            )


def _has_files(entry: Mapping[Any, Any]) -> bool:
    return "files" in entry


def _array(texts: list[Any], key: str) -> pa.StringArray:
    _demand(key, "in 'partitions', a storage key", texts, str)
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError as error:  # JSON can spell lone surrogates
        raise CorruptDatasetError(key, "in 'partitions', a text is not Unicode") from error


def _demand(key: str, what: str, values: Iterable[Any], wanted: type) -> None:
    """Raise unless all values are exactly of one type; the loop is C code."""
    wrong = set(map(type, values)) - {wanted}
    if wrong:
        names = ", ".join(sorted(t.__name__ for t in wrong))
        raise CorruptDatasetError(key, f"{what} is {names}, not {wanted.__name__}")


def _name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), f"a {type(value).__name__}")
