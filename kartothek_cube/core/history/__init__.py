"""Snapshots of datasets: archived on demand, listed, loaded as of a version or time."""
# The current state is the header and nothing else, as the format demands. A dataset whose metadata say so
# (`KEEP_HISTORY`) numbers its states; before a commit replaces a header, it archives it with its schema under
# ``<uuid>/_history/``. Only published headers are archived, and whatever dies between archiving, publication
# and expiry leaves a readable history: a snapshot of the current state is no second state.

from __future__ import annotations

from kartothek_cube.core.history.archive import (
    DatasetState,
    archive_before,
    archive_snapshot,
    expire_snapshots,
    expired_snapshots,
    history_folder,
    is_before_key,
    is_snapshot_key,
    list_snapshots,
    load_snapshot,
)
from kartothek_cube.core.history.snapshot_versions import (
    KEEP_HISTORY,
    OperationInfo,
    annotate_operations,
    describe_operation,
    fingerprint,
    operation_info,
    retained_metadata,
    snapshot_retention,
    with_version,
)
from kartothek_cube.core.history.time_travel import (
    AsOf,
    check_as_of,
    list_states,
    load_state,
    name_states,
    select_state,
    state_as_of,
)

__all__ = (
    "KEEP_HISTORY",
    "AsOf",
    "DatasetState",
    "OperationInfo",
    "annotate_operations",
    "describe_operation",
    "fingerprint",
    "operation_info",
    "check_as_of",
    "history_folder",
    "retained_metadata",
    "is_before_key",
    "is_snapshot_key",
    "archive_before",
    "archive_snapshot",
    "load_snapshot",
    "load_state",
    "name_states",
    "list_snapshots",
    "expired_snapshots",
    "expire_snapshots",
    "select_state",
    "state_as_of",
    "list_states",
    "snapshot_retention",
    "with_version",
)
