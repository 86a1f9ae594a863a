"""Percent-encoding of partition columns and values, decoding of storage keys."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote as _quote
from urllib.parse import unquote as _unquote

__all__ = ("decode_key", "quote", "quote_indices", "unquote", "unquote_indices")


def quote(value: object) -> str:
    """Percent-encode a column name or a value, so that it can be one component of a storage key.

    Everything but letters, digits and ``_ . - ~`` is encoded as UTF-8 with upper-case digits, ``/`` included.

    Parameters
    ----------
    value
        Text, bytes, or anything whose ``str()`` is meant.

    Returns
    -------
    str

    Raises
    ------
    UnicodeEncodeError
        The text holds a lone surrogate.

    Examples
    --------
    >>> quote("Köln/Süd")
    'K%C3%B6ln%2FS%C3%BCd'
    >>> quote(17)
    '17'
    """
    return _quote(value if isinstance(value, str | bytes) else str(value), safe="")


def unquote(value: object) -> str:
    """Reverse :func:`quote`.

    Parameters
    ----------
    value
        Encoded text (or its bytes).

    Returns
    -------
    str

    Raises
    ------
    UnicodeDecodeError
        The encoded bytes are not UTF-8 (a ``ValueError``).

    Examples
    --------
    >>> unquote("K%C3%B6ln%2FS%C3%BCd")
    'Köln/Süd'
    """
    text = value.decode("utf-8") if isinstance(value, bytes) else str(value)
    return _unquote(text, errors="strict")


def quote_indices(indices: Iterable[tuple[str, object]]) -> list[str]:
    """Encode partition columns and their values as components of a storage key.

    Parameters
    ----------
    indices
        Pairs of column and value.

    Returns
    -------
    list of str

    Examples
    --------
    >>> quote_indices([("COUNTRY_CODE", "DE"), ("CITY", "Bad Homburg")])
    ['COUNTRY_CODE=DE', 'CITY=Bad%20Homburg']
    """
    return [f"{quote(column)}={quote(value)}" for column, value in indices]


def unquote_indices(index_strings: Iterable[str]) -> list[tuple[str, str]]:
    """Reverse :func:`quote_indices`; values stay text.

    Parameters
    ----------
    index_strings
        Components of a storage key. Those without exactly one ``=`` are no partition value and are left out.

    Returns
    -------
    list of (str, str)

    Examples
    --------
    >>> unquote_indices(["COUNTRY_CODE=DE", "other", "CITY=Bad%20Homburg"])
    [('COUNTRY_CODE', 'DE'), ('CITY', 'Bad Homburg')]
    """
    pairs = (component.split("=") for component in index_strings)
    return [(unquote(pair[0]), unquote(pair[1])) for pair in pairs if len(pair) == 2]


def decode_key(key: str) -> tuple[str, str | None, list[tuple[str, str]], str | None]:
    """Take the key of a data file apart.

    Parameters
    ----------
    key
        Storage key, ``<uuid>/<table>/<column>=<value>/.../<file>``.

    Returns
    -------
    tuple
        Dataset uuid, table, pairs of partition column and text of the value, file name. A key with fewer than
        three components is returned whole, as ``(key, None, [], None)``.

    Examples
    --------
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
