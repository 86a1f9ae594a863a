"""Changing a dataset: a change as data, its application to a state, its publication by compare-and-swap."""

from __future__ import annotations

from kartothek_cube.core.commit.base_state import BaseState, CommitReceipt, read_base, read_replaced_base
from kartothek_cube.core.commit.change import (
    ChangeSet,
    IndexUpdate,
    MissingIndexEntries,
    NoUnseenPartitions,
    Requirement,
    WriteMode,
    apply,
    last_batch,
    merged_schema,
)
from kartothek_cube.core.commit.header_store import delete_headers
from kartothek_cube.core.commit.operation import Decision, Role, commit_operation, settle
from kartothek_cube.core.commit.publish import commit, publish, publish_copy
from kartothek_cube.core.commit.undo import rollback, undo_all

__all__ = (
    "BaseState",
    "ChangeSet",
    "CommitReceipt",
    "Decision",
    "IndexUpdate",
    "MissingIndexEntries",
    "NoUnseenPartitions",
    "Requirement",
    "Role",
    "WriteMode",
    "apply",
    "commit",
    "commit_operation",
    "delete_headers",
    "last_batch",
    "merged_schema",
    "publish",
    "publish_copy",
    "read_base",
    "read_replaced_base",
    "rollback",
    "settle",
    "undo_all",
)
