"""Names of files that a collection deletes: as long as a header holds them, no commit may refer to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from kartothek_cube.core import _time

__all__ = ("GOING", "file_name", "going", "mark", "unmark")

#: metadata key under which a header holds the files that are being deleted, by collection
GOING = "kartothek_cube_going"
#: no collection takes longer; what one that died left behind is dropped
_LIFETIME = timedelta(days=1)


def file_name(key: str) -> str:
    """The last part of a key, which is unique in a dataset: it holds a UUID or a time stamp."""
    return key.rpartition("/")[2]


def going(metadata: Mapping[str, Any]) -> set[str]:
    """
    Names of the files that are being deleted.

    Parameters
    ----------
    metadata
        Metadata of the newest state.

    Returns
    -------
    set of str

    Examples
    --------
    >>> marked = mark({}, "2f1d", ["sales/table/2b7c.parquet"])
    >>> going(marked)
    {'2b7c.parquet'}
    >>> unmark(marked, "2f1d")
    {}
    """
    return {name for entry in _entries(metadata).values() for name in _names(entry)}


def mark(metadata: Mapping[str, Any], collection: str, keys: Iterable[str]) -> dict[str, Any]:
    """
    Metadata that says that a collection is about to delete these files.

    Parameters
    ----------
    metadata
        Metadata of the newest state.
    collection
        Name of the collection, used once.
    keys
        The files.
    """
    now = _time.datetime_utcnow()
    entry = {"since": now.isoformat(), "files": [file_name(key) for key in keys]}
    alive = {name: given for name, given in _entries(metadata).items() if _is_alive(given, now)}
    return {**metadata, GOING: {**alive, collection: entry}}


def unmark(metadata: Mapping[str, Any], collection: str) -> dict[str, Any]:
    """
    Metadata that says that the files of a collection are gone.

    Parameters
    ----------
    metadata
        Metadata of the newest state.
    collection
        Name of the collection.
    """
    rest = {name: given for name, given in _entries(metadata).items() if name != collection}
    others = {key: value for key, value in metadata.items() if key != GOING}
    return {**others, GOING: rest} if rest else others


def _entries(metadata: Mapping[str, Any]) -> dict[str, Any]:
    entries = metadata.get(GOING)
    return entries if isinstance(entries, dict) else {}


def _names(entry: Any) -> list[str]:
    names = entry.get("files") if isinstance(entry, dict) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _is_alive(entry: Any, now: datetime) -> bool:
    try:
        return abs(now - datetime.fromisoformat(entry["since"])) < _LIFETIME
    except (TypeError, KeyError, ValueError):
        return False
