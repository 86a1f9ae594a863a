"""Changing a dataset: a change as data, its application to a state, its publication by compare-and-swap."""

from __future__ import annotations

from kartothek_cube.core.commit.apply import apply, last_batch, merge_schema
from kartothek_cube.core.commit.change import (
    BaseState,
    ChangeSet,
    CommitReceipt,
    IndexUpdate,
    MissingIndexEntries,
)
from kartothek_cube.core.commit.header_store import delete_headers
from kartothek_cube.core.commit.publish import (
    commit,
    confirm_pending,
    publish,
    publish_copy,
    read_base,
    read_replaced_base,
)
from kartothek_cube.core.commit.undo import rollback, undo_all

__all__ = (
    "BaseState",
    "ChangeSet",
    "IndexUpdate",
    "MissingIndexEntries",
    "CommitReceipt",
    "apply",
    "commit",
    "confirm_pending",
    "delete_headers",
    "last_batch",
    "merge_schema",
    "publish",
    "publish_copy",
    "read_base",
    "read_replaced_base",
    "rollback",
    "undo_all",
)
