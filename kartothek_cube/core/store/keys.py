"""Legal keys of blobs, and the keys a dataset owns; keys read from files are never trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from simplekv.contrib import VALID_NON_NUM_EXTENDED

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.naming import EXTERNAL_INDEX_SUFFIX

__all__ = ("check_key", "check_keys", "check_owned", "check_owned_keys", "check_prefix", "is_key")

_CHARACTERS = re.escape(VALID_NON_NUM_EXTENDED.replace("/", "").replace(".", "")) + "0-9a-zA-Z"
# without look-ahead, so that Arrow (RE2) understands it: no component is empty, '.' or '..'
_COMPONENT = rf"(?:\.?[{_CHARACTERS}][{_CHARACTERS}.]*|\.\.[{_CHARACTERS}.]+)"
_KEY = rf"{_COMPONENT}(?:/{_COMPONENT})*"
_IS_KEY = re.compile(_KEY).fullmatch


def is_key(key: object) -> bool:
    """Whether this is a legal key.

    >>> is_key("sales++seed/table/COUNTRY_CODE=DE/0d34.parquet"), is_key("sales++seed/../other")
    (True, False)
    """
    return isinstance(key, str) and _IS_KEY(key) is not None


def check_key(key: str) -> str:
    """Check a key: simplekv's extended alphabet, no empty, ``.`` or ``..`` component (ValueError).

    >>> check_key("sales++seed/../../etc/passwd")
    Traceback (most recent call last):
    ValueError: illegal key 'sales++seed/../../etc/passwd': ...
    """
    if is_key(key):
        return key
    raise ValueError(
        f"illegal key {key!r}: a key is made of letters, digits, spaces and the characters "
        f"{VALID_NON_NUM_EXTENDED.strip()}, with no empty, '.' or '..' component"
    )


def check_keys(keys: Iterable[str]) -> list[str]:
    """Check several keys (ValueError); a single string is a TypeError."""
    if isinstance(keys, str | bytes):
        raise TypeError(f"expected several keys, got one string: {keys!r}")
    return [check_key(key) for key in keys]


def check_prefix(prefix: str) -> str:
    """Check the start of a key, which may end inside a component (ValueError).

    >>> check_prefix("sales++")
    'sales++'
    >>> check_prefix("../")
    Traceback (most recent call last):
    ValueError: illegal prefix of keys: '../'
    """
    # a letter completes any open component
    if is_key(prefix + "a"):
        return prefix
    raise ValueError(f"illegal prefix of keys: {prefix!r}")


def check_owned(key: Any, uuid: str) -> str:
    """Check a key read from a dataset's metadata: a file in ``<uuid>/``, or a legacy index file.

    >>> check_owned("other/table/0d34.parquet", "sales++seed")
    Traceback (most recent call last):
    kartothek_cube.core.errors.CorruptDatasetError: Corrupt object 'other/table/0d34.parquet': ...
    """
    if is_key(key) and (key.startswith(f"{uuid}/") or _is_legacy_index(key, uuid)):
        return str(key)
    raise _foreign_key_error(key, uuid)


def check_owned_keys(keys: pa.StringArray | pa.ChunkedArray, uuid: str) -> None:
    """Check keys of data files read from a dataset's metadata in one vector: each must be ``<uuid>/...``.

    >>> check_owned_keys(pa.array(["sales++seed/table/../../x"]), "sales++seed")
    Traceback (most recent call last):
    kartothek_cube.core.errors.CorruptDatasetError: Corrupt object 'sales++seed/table/../../x': ...
    """
    is_owned = pc.and_(pc.starts_with(keys, f"{uuid}/"), pc.match_substring_regex(keys, rf"\A{_KEY}\z"))
    is_owned = pc.fill_null(is_owned, False)
    if not pc.all(is_owned, min_count=0).as_py():
        raise _foreign_key_error(keys[pc.index(is_owned, False).as_py()].as_py(), uuid)


def _is_legacy_index(key: str, uuid: str) -> bool:
    column = key.removeprefix(f"{uuid}.").removesuffix(EXTERNAL_INDEX_SUFFIX)
    return key == f"{uuid}.{column}{EXTERNAL_INDEX_SUFFIX}" and column != "" and "/" not in column


def _foreign_key_error(key: object, uuid: str) -> CorruptDatasetError:
    return CorruptDatasetError(
        key if isinstance(key, str) else repr(key),
        f"dataset {uuid!r} refers to it, but owns only what starts with '{uuid}/'; its metadata is damaged",
    )
