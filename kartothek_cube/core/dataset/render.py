"""Serialisation of headers: dict, JSON, compressed msgpack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kartothek_cube.core.header import codec
from kartothek_cube.core.header.parse import render_header
from kartothek_cube.core.index import IndexBase
from kartothek_cube.core.index.conversion import inline_dict
from kartothek_cube.core.naming import METADATA_VERSION_KEY, UUID_KEY, check_metadata_version
from kartothek_cube.core.partition import PartitionTable

__all__ = ("HeaderDocument",)


@dataclass(frozen=True)
class HeaderDocument:
    """Content of a header; None for `partitions` or `partition_keys` that it does not list."""

    uuid: str
    version: int
    indices: Mapping[str, IndexBase | str]
    metadata: Mapping[str, Any]
    partitions: PartitionTable | None
    partition_keys: list[str] | None
    #: unknown fields, written last
    extra: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The header as Python objects; loaded indices with their typed values."""
        return self._with_partitions(IndexBase.to_dict)

    def to_json(self) -> bytes:
        """The header as JSON; raises NotImplementedError unless its version is 4."""
        check_metadata_version(self.version)
        partitions = None if self.partitions is None else self.partitions.to_json()
        return render_header(self._fields(_inline), partitions).encode("ascii")

    def to_msgpack(self) -> bytes:
        """The header as compressed msgpack; raises NotImplementedError unless its version is 4."""
        check_metadata_version(self.version)
        return codec.packb(self._with_partitions(_inline))

    def _with_partitions(self, inline: Callable[[IndexBase], dict[Any, list[str]]]) -> dict[str, Any]:
        parts = self._fields(inline)
        if self.partitions is not None:
            parts["partitions"] = self.partitions.to_header()
        return parts

    def _fields(self, inline: Callable[[IndexBase], dict[Any, list[str]]]) -> dict[str, Any]:
        """All fields in order; ``partitions`` is a placeholder."""
        parts: dict[str, Any] = {METADATA_VERSION_KEY: self.version, UUID_KEY: self.uuid}
        if self.indices:
            parts["indices"] = {
                column: _render_index(index, inline) for column, index in self.indices.items()
            }
        if self.metadata:
            parts["metadata"] = dict(self.metadata)
        if self.partitions is not None:
            parts["partitions"] = {}
        if self.partition_keys is not None:
            parts["partition_keys"] = list(self.partition_keys)
        return {**parts, **self.extra}


def _render_index(
    index: IndexBase | str, inline: Callable[[IndexBase], dict[Any, list[str]]]
) -> str | dict[Any, list[str]]:
    if isinstance(index, str):
        return index
    key: str | None = getattr(index, "index_storage_key", None)
    return key if key is not None and not index.loaded else inline(index)


def _inline(index: IndexBase) -> dict[Any, list[str]]:
    return {} if index.columns_data is None else inline_dict(index.columns_data)
