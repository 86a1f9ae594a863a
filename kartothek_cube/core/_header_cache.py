"""The last headers that this process parsed: what did not change is read again, but not parsed again."""

from __future__ import annotations

import copy
from collections import OrderedDict
from threading import Lock
from typing import Any, NamedTuple

from kartothek_cube.core._dataset_load import StoredHeader
from kartothek_cube.core._header import check_header, parse_header
from kartothek_cube.core.partition import PartitionTable

__all__ = ("parse_stored",)

#: smaller headers are parsed in no time
_SMALLEST = 1 << 16
#: how many bytes of headers are kept
_CAPACITY = 1 << 26


class _Parsed(NamedTuple):
    content: bytes
    rest: dict[str, Any]
    partitions: PartitionTable | None


_CACHE: OrderedDict[str, _Parsed] = OrderedDict()
_LOCK = Lock()


def parse_stored(stored: StoredHeader, uuid: str) -> tuple[dict[str, Any], PartitionTable | None]:
    """
    Parse and check a header.

    Parameters
    ----------
    stored
        The header. What is remembered counts only if it was parsed from the very same bytes.
    uuid
        Dataset that it has to be of.

    Returns
    -------
    header : dict
        Without ``partitions``; the caller's own.
    partitions : PartitionTable or None
        None if the header does not list them.

    Raises
    ------
    CorruptDatasetError, NotImplementedError
        As :func:`~kartothek_cube.core._header.check_header`.
    """
    with _LOCK:
        known = _CACHE.get(stored.key)
        if known is not None:
            _CACHE.move_to_end(stored.key)
    if known is None or known.content != stored.content:
        known = _parse(stored, uuid)
        _remember(stored.key, known)
    return copy.deepcopy(known.rest), known.partitions


def _parse(stored: StoredHeader, uuid: str) -> _Parsed:
    header = parse_header(stored.content, stored.format, stored.key)
    check_header(header, stored.key, uuid)
    explicit = "partitions" in header
    given = header.pop("partitions", None)
    partitions = PartitionTable.from_header(given, stored.key) if explicit else None
    if partitions is not None:
        partitions.check_owned(uuid)
    return _Parsed(stored.content, header, partitions)


def _remember(key: str, parsed: _Parsed) -> None:
    with _LOCK:
        _CACHE.pop(key, None)
        if not _SMALLEST <= len(parsed.content) <= _CAPACITY:
            return
        _CACHE[key] = parsed
        size = sum(len(entry.content) for entry in _CACHE.values())
        while size > _CAPACITY:
            size -= len(_CACHE.popitem(last=False)[1].content)
