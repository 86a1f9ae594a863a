"""Time travel: find and load the state of a dataset as of a version or point in time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeAlias

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.loading import read_header
from kartothek_cube.core.errors import StateNotFoundError
from kartothek_cube.core.history.archive import DatasetState, list_snapshots, load_snapshot
from kartothek_cube.core.history.snapshot_versions import snapshot_version
from kartothek_cube.core.store import BlobStore

__all__ = ("AsOf", "check_as_of", "list_states", "load_state", "name_states", "select_state", "state_as_of")

AsOf: TypeAlias = int | str | datetime
"""A version, or a point in time (a text in ISO 8601 will do; without time zone it is UTC)."""


class _HasVersion(Protocol):
    @property
    def version(self) -> int: ...
    @property
    def time(self) -> datetime: ...


def list_states(uuid: str, blobs: BlobStore) -> list[DatasetState]:
    """Readable states of a dataset, oldest first, the current one last."""
    stored = read_header(uuid, blobs)
    current = DatasetMetadata.load_from_header(stored, uuid, blobs)
    version, time = snapshot_version(current, blobs, stored.key)
    return [*list_snapshots(blobs, current, stored.key), DatasetState(version, time, True, stored.key)]


def check_as_of(as_of: object) -> int | datetime:
    """Validate an ``as_of`` argument: version, or point in time (UTC without time zone)."""
    if isinstance(as_of, str):
        try:
            as_of = datetime.fromisoformat(as_of)
        except ValueError:
            raise ValueError(
                f"as_of is a version (int) or a point in time such as '2025-01-31T12:00:00', got {as_of!r}"
            ) from None
    if isinstance(as_of, datetime):
        return as_of.replace(tzinfo=UTC) if as_of.tzinfo is None else as_of.astimezone(UTC)
    if isinstance(as_of, int) and not isinstance(as_of, bool):
        return as_of
    raise TypeError(f"as_of is a version (int) or a point in time (datetime), got {as_of!r}")


def select_state(uuid: str, states: Sequence[DatasetState], as_of: AsOf) -> DatasetState | None:
    """State of a version, or newest one until a point in time; None if the dataset did not exist then."""
    version_or_time = check_as_of(as_of)
    if isinstance(version_or_time, int):
        matches = [state for state in states if state.version == version_or_time]
    else:
        matches = [state for state in states if state.time <= version_or_time]
        if not matches and states[0].version == 1:
            return None
    if matches:
        return matches[-1]
    raise StateNotFoundError(uuid, str(as_of), name_states(states))


def name_states(states: Sequence[_HasVersion]) -> str:
    """The range of states, for messages: one state, or the first and the last one."""
    if not states:
        return ""
    first, last = states[0], states[-1]
    text = f"{first.version} ({first.time.isoformat()})"
    return f"{text} to {last.version}" if last.version != first.version else text


def state_as_of(uuid: str, blobs: BlobStore, as_of: AsOf) -> DatasetMetadata:
    """Load the state of a dataset as of a version or time; raises StateNotFoundError."""
    check_as_of(as_of)
    states = list_states(uuid, blobs)
    state = select_state(uuid, states, as_of)
    if state is None:
        raise StateNotFoundError(uuid, str(as_of), name_states(states))
    return load_state(uuid, blobs, state)


def load_state(uuid: str, blobs: BlobStore, state: DatasetState) -> DatasetMetadata:
    """Load one of the states of a dataset; raises StateNotFoundError if it has expired meanwhile."""
    if state.current:
        dataset = DatasetMetadata.load_from_store(uuid, blobs)
        if snapshot_version(dataset, blobs, state.key)[0] == state.version:
            return dataset
        # replaced meanwhile by another commit, which has archived it
        snapshots = [snapshot for snapshot in list_states(uuid, blobs) if snapshot.version == state.version]
        if not snapshots:
            raise StateNotFoundError(uuid, str(state.version))
        state = snapshots[-1]
    try:
        return load_snapshot(uuid, blobs, state.key)
    except KeyError:
        raise StateNotFoundError(uuid, str(state.version)) from None
