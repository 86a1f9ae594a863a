"""The write plan of one dataset; a cube has one for each of its datasets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Protocol, Self, TypeVar

import attrs
import pyarrow as pa

from kartothek_cube.core.commit import ChangeSet, CommitReceipt, NoUnseenPartitions, Role, WriteMode, commit
from kartothek_cube.core.commit.change import MetadataMerger, Predicates
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.history import OperationInfo, describe_operation
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT
from kartothek_cube.core.store import BlobStore
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.arguments import user_metadata
from kartothek_cube.io_components.write.index_entries import read_index_entries
from kartothek_cube.io_components.write.table_writer import WriteContext, WriteResult

__all__ = (
    "DatasetWritePlan",
    "MetadataMerger",
    "SchemaMode",
    "commit_change",
    "is_merge_mode",
    "with_write_id",
)


#: whether input has the columns of the dataset, or may lack some and add others
SchemaMode = Literal["strict", "merge"]


def is_merge_mode(schema_mode: SchemaMode) -> bool:
    """The ``schema_mode`` argument; raises ValueError."""
    if schema_mode not in ("strict", "merge"):
        raise ValueError(f"schema_mode is 'strict' or 'merge', got {schema_mode!r}")
    return schema_mode == "merge"


@attrs.frozen
class DatasetWritePlan:
    """How files of a dataset are written, and what their commit changes."""

    context: WriteContext
    mode: WriteMode
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    merge_metadata: MetadataMerger | None = None
    #: partitions to remove, as in `ChangeSet`
    remove_where: Predicates | None = None
    #: labels that `remove_where` selects at planning; None if the commit may also remove newer ones
    assumed_labels: pa.StringArray | None = None
    #: format of a new header
    storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT
    #: whether input may have other columns than the dataset
    merge_schema: bool = False
    #: stream and number of its batch
    batch: tuple[str, int] | None = None
    #: what the history tells of the operation
    info: OperationInfo = attrs.field(factory=partial(describe_operation, "write"))

    def change_set(self, result: WriteResult, info: OperationInfo | None = None) -> ChangeSet:
        """The change that commits what tasks wrote."""
        merger = self.merge_metadata
        return result.change_set(
            mode=self.mode,
            metadata=self.metadata,
            merge_metadata=None if merger is None else partial(_merge_metadata, merger),
            partition_keys=self.context.partition_on,
            remove_where=self.remove_where,
            storage_format=self.storage_format,
            merge_schema=self.merge_schema,
            batch=self.batch,
            info=info or self.info,
            write_id=self.context.write_id,
            requires=() if self.assumed_labels is None else (NoUnseenPartitions(self.assumed_labels),),
        )

    def with_write_id(self, write_id: str) -> Self:
        """The plan with an id that is part of all file names."""
        return attrs.evolve(self, context=attrs.evolve(self.context, write_id=write_id))


def _merge_metadata(merger: MetadataMerger, dicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge stored and given metadata; the user's function has the last word on both."""
    stored, given = dicts
    return {**stored, **given, **user_metadata(merger([dict(stored), dict(given)]))}


class _WritePlan(Protocol):
    def with_write_id(self, write_id: str) -> Self: ...


P = TypeVar("P", bound=_WritePlan)


def with_write_id(plan: P) -> P:
    """The plan of an idempotent write, for engines that may run tasks again, even committed ones."""
    # the commit finds the id in the labels of the state, and changes nothing then
    return plan.with_write_id(gen_uuid()[:16])


def commit_change(
    blobs: BlobStore, change: ChangeSet, role: Role = None
) -> tuple[DatasetMetadata, CommitReceipt]:
    """Commit a change; entries of indices that its tasks did not know of are read back from the files."""
    read = partial(read_index_entries, blobs, change.uuid, change.table, change.added)
    return commit(blobs, change, read, role)
