"""Checks of stores, metadata versions and strings."""

from __future__ import annotations

from typing import Any

from kartothek_cube.core.naming import check_metadata_version
from kartothek_cube.core.store.resolve import ensure_store, lazy_store

__all__ = ("ensure_store", "lazy_store")


def _version(metadata_version: Any) -> Any:
    return metadata_version


def verify_metadata_version(*args: Any, **kwargs: Any) -> None:
    """Check that a dataset has the version of the format that this library reads and writes: 4.

    Parameters
    ----------
    *args, **kwargs
        ``metadata_version``: the version, as given or read. The signature is kartothek's.

    Raises
    ------
    NotImplementedError
        Another version.

    Examples
    --------
    >>> verify_metadata_version(4)
    >>> verify_metadata_version(3)
    Traceback (most recent call last):
    NotImplementedError: Dataset metadata version 3 is not supported, only version 4 is
    """
    check_metadata_version(_version(*args, **kwargs))


def ensure_string_type(obj: object) -> str:
    """Turn bytes (UTF-8) or anything else into a string.

    Parameters
    ----------
    obj
        Any object.

    Returns
    -------
    str

    Raises
    ------
    UnicodeDecodeError
        The bytes are not UTF-8.

    Examples
    --------
    >>> ensure_string_type(b"CITY"), ensure_string_type("CITY"), ensure_string_type(1)
    ('CITY', 'CITY', '1')
    """
    return obj.decode() if isinstance(obj, bytes) else str(obj)
