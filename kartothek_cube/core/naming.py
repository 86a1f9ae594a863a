"""Names and storage keys: constants, rules, percent-encoding, and the only builders of storage keys."""
# The layout is that of docs/format.rst.

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from typing import Any
from urllib.parse import quote as _quote
from urllib.parse import unquote as _unquote

DEFAULT_METADATA_VERSION = 4
MIN_METADATA_VERSION = 4
MAX_METADATA_VERSION = 4

DEFAULT_METADATA_STORAGE_FORMAT = "json"
METADATA_FORMAT_JSON = ".json"
METADATA_FORMAT_MSGPACK = ".msgpack.zstd"
METADATA_BASE_SUFFIX = ".by-dataset-metadata"

PARQUET_FILE_SUFFIX = ".parquet"
EXTERNAL_INDEX_SUFFIX = ".by-dataset-index.parquet"
INDICES_DIRECTORY = "indices"
HISTORY_DIRECTORY = "_history"
#: readers of Delta tables look for it
DELTA_LOG_DIRECTORY = "_delta_log"
ICEBERG = "iceberg"
#: formats of published tables
TABLE_FORMATS = ("delta", ICEBERG)
#: metadata key of the format in which each commit publishes the dataset
PUBLISH = "kartothek_cube_publish"
#: metadata key of the rules that rows of the dataset have to meet
CONTRACT = "kartothek_cube_contract"
#: metadata key of how columns in data files differ from the schema
EVOLUTION = "kartothek_cube_columns"
TABLE_METADATA_FILE = "_common_metadata"
SINGLE_TABLE = "table"
#: bytes of a component of a path, in all usual file systems
MAX_FILE_NAME = 255

METADATA_VERSION_KEY = "dataset_metadata_version"
UUID_KEY = "dataset_uuid"
#: metadata key of the files under deletion, by garbage collection
TOMBSTONES_KEY = "kartothek_cube_going"

_UUID = re.compile(r"[A-Za-z0-9+\-_]+")
_TABLE = re.compile(rf"(?!(\.|\.\.|{INDICES_DIRECTORY})$)[^/\\]+")
#: columns that pyarrow.dataset adds to those of files
_VIRTUAL_COLUMNS = {"__filename", "__fragment_index", "__batch_index", "__last_in_fragment"}
_FORMAT_SUFFIXES = {"json": METADATA_FORMAT_JSON, "msgpack": METADATA_FORMAT_MSGPACK}
_HEADER_SUFFIXES = tuple(METADATA_BASE_SUFFIX + suffix for suffix in _FORMAT_SUFFIXES.values())


@cache
def library_version() -> str:
    """Version of this library."""
    try:
        return version("kartothek_cube")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"


def validate_uuid(uuid: object) -> bool:
    """Whether a text can be the uuid of a dataset: one or more of ``a-z A-Z 0-9 + - _``."""
    return isinstance(uuid, str) and _UUID.fullmatch(uuid) is not None


def check_uuid(uuid: object) -> None:
    """Raise ValueError unless a text can be the uuid of a dataset."""
    if not isinstance(uuid, str) or _UUID.fullmatch(uuid) is None:
        raise ValueError(f"{uuid!r} cannot be a dataset uuid: one or more of a-z A-Z 0-9 + - _ are allowed")


def check_table_name(table: object) -> None:
    """Raise ValueError unless a table name is one legal component of a storage key."""
    if not isinstance(table, str) or _TABLE.fullmatch(table) is None or not table.isprintable():
        raise ValueError(f"{table!r} cannot be the name of a table: it is no component of a storage key")


def check_column_names(names: Iterable[str]) -> None:
    """Raise ValueError for columns that other engines could not read."""
    for name in names:
        if name in _VIRTUAL_COLUMNS:
            raise ValueError(
                f"Column {name!r} has a name that pyarrow.dataset reserves for a virtual column; rename it"
            )
        if "\0" in name:
            raise ValueError(f"Column {name!r} has a NUL in its name, where other engines end it; rename it")


def name_too_long(name: str) -> ValueError:
    """Error about a component of a key that is too long for a file or directory."""
    size = f"{len(name)} bytes, too many for the name of a file or directory ({MAX_FILE_NAME})"
    remedy = "shorten the name of the column or dataset, or the value of the partition"
    return ValueError(f"{name[:60]}… has {size}: {remedy}")


def check_metadata_version(metadata_version: object) -> None:
    """Raise NotImplementedError for versions of the dataset format other than 4."""
    is_number = isinstance(metadata_version, Real) and not isinstance(metadata_version, bool)
    if not is_number or metadata_version != DEFAULT_METADATA_VERSION:
        problem = f"Dataset metadata version {metadata_version!r} is not supported, only version 4 is"
        raise NotImplementedError(problem)


def verify_metadata_version(*args: Any, **kwargs: Any) -> None:
    """Raise NotImplementedError unless ``metadata_version`` is 4; the signature is kartothek's.

    >>> verify_metadata_version(4)
    >>> verify_metadata_version(3)
    Traceback (most recent call last):
    NotImplementedError: Dataset metadata version 3 is not supported, only version 4 is
    """
    check_metadata_version(*args, **kwargs)


def metadata_key_from_uuid(uuid: str, format: str = "json") -> str:
    """Build the key of a dataset's header in the format "json" or "msgpack"; raises ValueError."""
    check_uuid(uuid)
    if format not in _FORMAT_SUFFIXES:
        available = ", ".join(_FORMAT_SUFFIXES)
        raise ValueError(f"Unknown metadata storage format {format!r}, available: {available}")
    return f"{uuid}{METADATA_BASE_SUFFIX}{_FORMAT_SUFFIXES[format]}"


def header_keys(uuid: str) -> list[str]:
    """Possible keys of the header of a dataset; readers look for the first one first."""
    check_uuid(uuid)
    return [f"{uuid}{suffix}" for suffix in _HEADER_SUFFIXES]


def is_header_key(key: str) -> bool:
    """Whether a key is that of the header of any dataset."""
    return key.endswith(_HEADER_SUFFIXES) and "/" not in key


def schema_key(uuid: str, table: str = SINGLE_TABLE) -> str:
    """Storage key of the schema file of a table."""
    check_uuid(uuid)
    check_table_name(table)
    return f"{uuid}/{table}/{TABLE_METADATA_FILE}"


def get_partition_file_prefix(
    dataset_uuid: str, partition_label: str, table: str, metadata_version: int = DEFAULT_METADATA_VERSION
) -> str:
    """Build the key of a data file without its suffix; raises ValueError for illegal names."""
    check_metadata_version(metadata_version)
    check_uuid(dataset_uuid)
    check_table_name(table)
    if not {"", ".", ".."}.isdisjoint(partition_label.split("/")):
        raise ValueError(f"{partition_label!r} cannot be a partition label: a component is empty, . or ..")
    return f"{dataset_uuid}/{table}/{partition_label}"


def index_key(uuid: str, column: str, timestamp: datetime) -> str:
    """Storage key of a secondary index; `timestamp` is naive UTC."""
    check_uuid(uuid)
    if column in ("", ".", ".."):
        raise ValueError(f"A column called {column!r} cannot be indexed: it gives no legal storage key")
    stamp = quote(timestamp.isoformat(timespec="microseconds"))
    return f"{uuid}/{INDICES_DIRECTORY}/{quote(column)}/{stamp}{EXTERNAL_INDEX_SUFFIX}"


def statistics_key(uuid: str, name: str) -> str:
    """Storage key of a file of column statistics, among indices: other software takes it for no data file."""
    check_uuid(uuid)
    return f"{uuid}/{INDICES_DIRECTORY}/kartothek_cube_statistics/{name}{PARQUET_FILE_SUFFIX}"


def legacy_index_key(uuid: str, column: str) -> str:
    """Storage key of a secondary index in early versions of the format."""
    check_uuid(uuid)
    if "/" in column:
        raise ValueError(f"An index on column {column!r} has no key of the old form: the name holds a slash")
    return f"{uuid}.{column}{EXTERNAL_INDEX_SUFFIX}"


def quote(value: object) -> str:
    """Percent-encode a column name or a value, so that it can be one component of a storage key.

    Everything but letters, digits and ``_ . - ~`` is encoded as UTF-8 with upper-case digits, ``/`` included.

    >>> quote("Köln/Süd")
    'K%C3%B6ln%2FS%C3%BCd'
    >>> quote(17)
    '17'
    """
    return _quote(value if isinstance(value, str | bytes) else str(value), safe="")


def unquote(value: object) -> str:
    """Reverse :func:`quote`.

    >>> unquote("K%C3%B6ln%2FS%C3%BCd")
    'Köln/Süd'
    """
    text = value.decode("utf-8") if isinstance(value, bytes) else str(value)
    return _unquote(text, errors="strict")


def quote_indices(indices: Iterable[tuple[str, object]]) -> list[str]:
    """Encode partition columns and their values as components of a storage key.

    >>> quote_indices([("COUNTRY_CODE", "DE"), ("CITY", "Bad Homburg")])
    ['COUNTRY_CODE=DE', 'CITY=Bad%20Homburg']
    """
    return [f"{quote(column)}={quote(value)}" for column, value in indices]


def unquote_indices(index_strings: Iterable[str]) -> list[tuple[str, str]]:
    """Reverse :func:`quote_indices`; values stay text, components of another form are left out.

    >>> unquote_indices(["COUNTRY_CODE=DE", "other", "CITY=Bad%20Homburg"])
    [('COUNTRY_CODE', 'DE'), ('CITY', 'Bad Homburg')]
    """
    pairs = (component.split("=") for component in index_strings)
    return [(unquote(pair[0]), unquote(pair[1])) for pair in pairs if len(pair) == 2]


def decode_key(key: str) -> tuple[str, str | None, list[tuple[str, str]], str | None]:
    """Uuid, table, partition values and file name of the key of a data file; only the key of others.

    >>> decode_key("sales/table/COUNTRY_CODE=DE/part.parquet")
    ('sales', 'table', [('COUNTRY_CODE', 'DE')], 'part.parquet')
    >>> decode_key("sales.by-dataset-metadata.json")
    ('sales.by-dataset-metadata.json', None, [], None)
    """
    components = key.split("/")
    if len(components) < 3:
        return key, None, [], None
    dataset_uuid, table, *middle, file = components
    return dataset_uuid, table, unquote_indices(middle), file
