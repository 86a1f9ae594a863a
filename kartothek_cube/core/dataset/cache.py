"""The last headers that this process parsed: what did not change is read again, but not parsed again."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from kartothek_cube.core._header import check_header, parse_header
from kartothek_cube.core._parse_cache import ParseCache
from kartothek_cube.core.dataset.load import HeaderBlob
from kartothek_cube.core.dataset.text import split_header
from kartothek_cube.core.partition import PartitionTable

__all__ = ("parse_header_cached",)


class _Parsed(NamedTuple):
    rest: dict[str, Any]
    partitions: PartitionTable | None


_CACHE: ParseCache[_Parsed] = ParseCache(capacity=1 << 27, smallest=0)
#: bytes that a header without its partitions takes, about
_REST = 1 << 12


def parse_header_cached(stored: HeaderBlob, uuid: str) -> tuple[dict[str, Any], PartitionTable | None]:
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
    found = _CACHE.parse(
        (stored.key, uuid), stored.content, lambda content: _parse(content, stored, uuid), _size
    )
    return copy.deepcopy(found.rest), None if found.partitions is None else found.partitions.share()


def _parse(content: bytes, stored: HeaderBlob, uuid: str) -> _Parsed:
    found = split_header(content) if stored.format == "json" else None
    header = parse_header(content, stored.format, stored.key) if found is None else found[0]
    check_header(header, stored.key, uuid)
    partitions = None
    if found is not None:
        partitions = PartitionTable(*found[1:])
    elif "partitions" in header:
        partitions = PartitionTable.from_header(header.pop("partitions"), stored.key)
    if partitions is not None:
        partitions.check_owned(uuid)
    return _Parsed(header, partitions)


def _size(parsed: _Parsed) -> int:
    table = parsed.partitions
    columns = () if table is None else (table.labels, *table.files.values())
    return _REST + sum(int(column.nbytes) for column in columns)
