"""The history of a dataset: retention of its states, their listing, rollback to one."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kartothek_cube.core.commit import (
    BaseState,
    ChangeSet,
    CommitReceipt,
    Role,
    WriteMode,
    commit,
    publish,
    read_base,
    settle,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.references import data_keys, index_keys
from kartothek_cube.core.errors import ConcurrentWriteError, CorruptDatasetError
from kartothek_cube.core.history import (
    KEEP_HISTORY,
    AsOf,
    DatasetState,
    describe_operation,
    list_states,
    snapshot_retention,
    state_as_of,
)
from kartothek_cube.core.schema.file import schema_version_of
from kartothek_cube.core.store import BlobStore, PreconditionFailed, open_blobs
from kartothek_cube.core.typing import StoreInput

__all__ = (
    "RollbackPlan",
    "finish_rollback",
    "keep_history",
    "list_history",
    "missing_files",
    "plan_rollback",
)

#: up to this number of files each is looked up; more are listed
_FEW_FILES = 100


def list_history(uuid: str, store: StoreInput) -> list[DatasetState]:
    """The readable states of a dataset, oldest first."""
    return list_states(uuid, open_blobs(store))


def keep_history(uuid: str, store: StoreInput, number: int) -> DatasetMetadata:
    """Set how many states of a dataset are kept beside the current one; 0 deletes the others."""
    metadata = {KEEP_HISTORY: number}
    snapshot_retention(metadata)
    blobs = open_blobs(store)
    table = DatasetMetadata.load_from_store(uuid, blobs).table_name
    return commit(blobs, ChangeSet(uuid, table, metadata=metadata, info=describe_operation("keep history")))[
        0
    ]


@attrs.frozen
class RollbackPlan:
    """A planned rollback to an older state."""

    #: the state that is replaced
    base: BaseState
    #: the new state
    state: DatasetMetadata


def plan_rollback(uuid: str, blobs: BlobStore, as_of: AsOf) -> RollbackPlan:
    """Plan to make an older state of a dataset the current one."""
    state = state_as_of(uuid, blobs, as_of)
    _check_complete(blobs, state, as_of)
    base = settle(blobs, lambda: read_base(blobs, uuid, state.table_name))
    current = base.state
    kept = {} if current is None else {k: v for k, v in current.metadata.items() if k == KEEP_HISTORY}
    schema = state.schema
    if current is not None and schema_version_of(current.metadata) == schema_version_of(state.metadata):
        # that of later updates, which knows at least as much
        schema = current.schema
    return RollbackPlan(base, state.copy(metadata={**state.metadata, **kept}, schema=schema))


def _check_complete(blobs: BlobStore, state: DatasetMetadata, as_of: AsOf) -> None:
    missing = missing_files(blobs, state)
    if missing:
        raise CorruptDatasetError(
            missing[0],
            f"the state of dataset {state.uuid!r} as of {as_of} needs it and {len(missing) - 1} more files, "
            "but these are gone; a cleanup that knows nothing of histories may have deleted them",
        )


def missing_files(blobs: BlobStore, state: DatasetMetadata) -> list[str]:
    """Files to which a state refers and that do not exist."""
    keys = [*data_keys(state), *index_keys(state)]
    if len(keys) <= _FEW_FILES:
        return [key for key in keys if not blobs.exists(key)]
    stored = {blob.key for blob in blobs.list(f"{state.uuid}/")}
    return [key for key in keys if key not in stored and not blobs.exists(key)]


def finish_rollback(
    blobs: BlobStore, plan: RollbackPlan, role: Role = None
) -> tuple[DatasetMetadata, CommitReceipt]:
    """Publish an older state as a new one; the state that it replaces is archived."""
    files: Iterable[str] = [*data_keys(plan.state), *index_keys(plan.state)]
    try:
        return publish(
            blobs,
            plan.base,
            plan.state,
            list(files),
            mode=WriteMode.REPLACE,
            role=role,
            info=describe_operation("rollback"),
        )
    except PreconditionFailed as error:
        raise ConcurrentWriteError(
            plan.state.uuid, detail="Look at the newest state, and go back again if that is still wanted."
        ) from error
