"""Which keys are legal, and which ones a dataset owns; keys out of files are never trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from simplekv.contrib import VALID_NON_NUM_EXTENDED

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.naming import EXTERNAL_INDEX_SUFFIX

__all__ = ("check_key", "check_keys", "check_owned", "check_owned_keys", "check_prefix", "is_key")

Keys: TypeAlias = list[str]

_CHARACTERS = re.escape(VALID_NON_NUM_EXTENDED.replace("/", "").replace(".", "")) + "0-9a-zA-Z"
# without look-ahead, so that Arrow (RE2) understands it: no component is empty, '.' or '..'
_COMPONENT = rf"(?:\.?[{_CHARACTERS}][{_CHARACTERS}.]*|\.\.[{_CHARACTERS}.]+)"
_KEY = rf"{_COMPONENT}(?:/{_COMPONENT})*"
_IS_KEY = re.compile(_KEY).fullmatch


def is_key(key: object) -> bool:
    """Tell whether this is a legal key.

    Parameters
    ----------
    key
        Anything.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_key("sales++seed/table/COUNTRY_CODE=DE/0d34.parquet"), is_key("sales++seed/../other")
    (True, False)
    """
    return isinstance(key, str) and _IS_KEY(key) is not None


def check_key(key: str) -> str:
    """Check a key: simplekv's extended alphabet, no leading ``/``, no empty, ``.`` or ``..`` component.

    Parameters
    ----------
    key
        Key of a blob.

    Returns
    -------
    str
        The key.

    Raises
    ------
    ValueError
        It is illegal.

    Examples
    --------
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


def check_keys(keys: Iterable[str]) -> Keys:
    """Check several keys.

    Parameters
    ----------
    keys
        Keys of blobs, but not one string.

    Returns
    -------
    list of str
        The keys.

    Raises
    ------
    TypeError
        It is one string.
    ValueError
        A key is illegal.

    Examples
    --------
    >>> check_keys("sales++seed")
    Traceback (most recent call last):
    TypeError: expected several keys, got one string: 'sales++seed'
    """
    if isinstance(keys, str | bytes):
        raise TypeError(f"expected several keys, got one string: {keys!r}")
    return [check_key(key) for key in keys]


def check_prefix(prefix: str) -> str:
    """Check the start of a key: empty, a legal key, or one that ends in the middle of a component.

    Parameters
    ----------
    prefix
        Start of keys.

    Returns
    -------
    str
        The prefix.

    Raises
    ------
    ValueError
        No legal key starts like that.

    Examples
    --------
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
    """Check a key that comes out of a dataset's metadata: it must not lead out of the dataset.

    Legal are ``<uuid>/...`` and the legacy index form ``<uuid>.<column>.by-dataset-index.parquet``.

    Parameters
    ----------
    key
        Whatever the metadata holds.
    uuid
        The dataset's uuid.

    Returns
    -------
    str
        The key.

    Raises
    ------
    CorruptDatasetError
        It is no key, or that of something else.

    Examples
    --------
    >>> check_owned("sales++seed/table/0d34.parquet", "sales++seed")
    'sales++seed/table/0d34.parquet'
    >>> check_owned("other/table/0d34.parquet", "sales++seed")
    Traceback (most recent call last):
    kartothek_cube.core.errors.CorruptDatasetError: Corrupt object 'other/table/0d34.parquet': ...
    """
    if is_key(key) and (key.startswith(f"{uuid}/") or _is_legacy_index(key, uuid)):
        return str(key)
    raise _foreign(key, uuid)


def check_owned_keys(keys: pa.StringArray | pa.ChunkedArray, uuid: str) -> None:
    """Check keys of data files out of a dataset's metadata, all at once: each one must be ``<uuid>/...``.

    Parameters
    ----------
    keys
        Arrow array of strings.
    uuid
        The dataset's uuid.

    Raises
    ------
    CorruptDatasetError
        A key is null, illegal, or that of something else; it is named.

    Examples
    --------
    >>> check_owned_keys(pa.array(["sales++seed/table/0d34.parquet"]), "sales++seed")
    >>> check_owned_keys(pa.array(["sales++seed/table/../../x"]), "sales++seed")
    Traceback (most recent call last):
    kartothek_cube.core.errors.CorruptDatasetError: Corrupt object 'sales++seed/table/../../x': ...
    """
    good = pc.and_(pc.starts_with(keys, f"{uuid}/"), pc.match_substring_regex(keys, rf"\A{_KEY}\z"))
    good = pc.fill_null(good, False)
    if not pc.all(good, min_count=0).as_py():
        raise _foreign(keys[pc.index(good, False).as_py()].as_py(), uuid)


def _is_legacy_index(key: str, uuid: str) -> bool:
    column = key.removeprefix(f"{uuid}.").removesuffix(EXTERNAL_INDEX_SUFFIX)
    return key == f"{uuid}.{column}{EXTERNAL_INDEX_SUFFIX}" and column != "" and "/" not in column


def _foreign(key: object, uuid: str) -> CorruptDatasetError:
    return CorruptDatasetError(
        key if isinstance(key, str) else repr(key),
        f"dataset {uuid!r} refers to it, but owns only what starts with '{uuid}/'; its metadata is damaged",
    )
