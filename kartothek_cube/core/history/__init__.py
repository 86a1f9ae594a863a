"""Older states of a dataset: kept on demand next to it, listed, loaded as of a time or version.

The current state is the header and nothing else, as the format demands. A dataset whose metadata say so
(`KEEP_HISTORY`) numbers its states; before a commit replaces a header, it puts a copy of it, with the schema,
under ``<uuid>/_history/``. Only headers that were published are copied, and whatever dies between copy,
publication and clean-up leaves a readable history: a copy of the current state is no second state.
"""

from __future__ import annotations

from kartothek_cube.core.history.archive import (
    DatasetState,
    archive_snapshot,
    expire_snapshots,
    expired_snapshots,
    history_folder,
    is_snapshot_key,
    load_copy,
    older_states,
)
from kartothek_cube.core.history.snapshot_versions import (
    KEEP_HISTORY,
    retained_metadata,
    snapshot_retention,
    with_version,
)
from kartothek_cube.core.history.time_travel import (
    AsOf,
    check_as_of,
    load_state,
    select_state,
    state_as_of,
    states,
)

__all__ = (
    "KEEP_HISTORY",
    "AsOf",
    "DatasetState",
    "check_as_of",
    "history_folder",
    "retained_metadata",
    "is_snapshot_key",
    "archive_snapshot",
    "load_copy",
    "load_state",
    "older_states",
    "expired_snapshots",
    "expire_snapshots",
    "select_state",
    "state_as_of",
    "states",
    "snapshot_retention",
    "with_version",
)
