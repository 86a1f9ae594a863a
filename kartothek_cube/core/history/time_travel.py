"""Finding and loading the state of a dataset as of a version or a point in time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.loading import read_header
from kartothek_cube.core.errors import StateNotFoundError
from kartothek_cube.core.history.archive import DatasetState, load_copy, older_states
from kartothek_cube.core.history.snapshot_versions import snapshot_version
from kartothek_cube.core.store import BlobStore

__all__ = ("AsOf", "check_as_of", "load_state", "select_state", "state_as_of", "states")

AsOf: TypeAlias = int | str | datetime
"""A version, or a point in time (a text in ISO 8601 will do; without time zone it is UTC)."""


def states(uuid: str, blobs: BlobStore) -> list[DatasetState]:
    """
    The states of a dataset that can be read, oldest first.

    Parameters
    ----------
    uuid
        The dataset.
    blobs
        The store.

    Returns
    -------
    list of DatasetState
        The current one comes last.

    Raises
    ------
    DatasetNotFoundError
        There is no such dataset.
    """
    stored = read_header(uuid, blobs)
    current = DatasetMetadata.load_from_header(stored, uuid, blobs)
    version, time = snapshot_version(current, blobs, stored.key)
    return [*older_states(blobs, current, stored.key), DatasetState(version, time, True, stored.key)]


def check_as_of(as_of: object) -> int | datetime:
    """
    The ``as_of`` argument: a version, or a point in time.

    Parameters
    ----------
    as_of
        An int, a datetime (pandas' as well) or a text in ISO 8601; without time zone it is UTC.

    Returns
    -------
    int or datetime.datetime

    Raises
    ------
    TypeError, ValueError
        It is something else.

    Examples
    --------
    >>> check_as_of("2020-01-31 12:00")
    datetime.datetime(2020, 1, 31, 12, 0, tzinfo=datetime.timezone.utc)
    """
    if isinstance(as_of, str):
        as_of = datetime.fromisoformat(as_of)
    if isinstance(as_of, datetime):
        return as_of.replace(tzinfo=UTC) if as_of.tzinfo is None else as_of.astimezone(UTC)
    if isinstance(as_of, int) and not isinstance(as_of, bool):
        return as_of
    raise TypeError(f"as_of is a version (int) or a point in time (datetime), got {as_of!r}")


def select_state(uuid: str, known: Sequence[DatasetState], as_of: AsOf) -> DatasetState | None:
    """
    The state of a version, or the newest one that is not newer than a point in time.

    Parameters
    ----------
    uuid
        The dataset.
    known
        Its states, oldest first.
    as_of
        Version or time.

    Returns
    -------
    DatasetState or None
        None if the dataset did not exist then.

    Raises
    ------
    StateNotFoundError
        The state is not kept (any more).
    """
    wanted = check_as_of(as_of)
    if isinstance(wanted, int):
        matches = [state for state in known if state.version == wanted]
    else:
        matches = [state for state in known if state.time <= wanted]
        if not matches and known[0].version == 1:
            return None
    if matches:
        return matches[-1]
    first = known[0]
    raise StateNotFoundError(
        uuid, str(as_of), f"{first.version} ({first.time.isoformat()}) to {known[-1].version}"
    )


def state_as_of(uuid: str, blobs: BlobStore, as_of: AsOf) -> DatasetMetadata:
    """
    Load a state of a dataset.

    Parameters
    ----------
    uuid
        The dataset.
    blobs
        The store.
    as_of
        Version or time.

    Returns
    -------
    DatasetMetadata
        With its schema.

    Raises
    ------
    DatasetNotFoundError
        There is no such dataset.
    StateNotFoundError
        The state is not kept (any more), or the dataset did not exist then.
    CorruptDatasetError
        The copy of the state is damaged.
    """
    check_as_of(as_of)
    known = states(uuid, blobs)
    state = select_state(uuid, known, as_of)
    if state is None:
        raise StateNotFoundError(uuid, str(as_of), f"1 ({known[0].time.isoformat()}), its first one")
    return load_state(uuid, blobs, state)


def load_state(uuid: str, blobs: BlobStore, state: DatasetState) -> DatasetMetadata:
    """
    Load a state.

    Parameters
    ----------
    uuid
        The dataset.
    blobs
        The store.
    state
        One of :func:`states`.

    Returns
    -------
    DatasetMetadata
        With its schema.

    Raises
    ------
    StateNotFoundError
        It was thrown away meanwhile.
    CorruptDatasetError
        The copy is damaged.
    """
    if state.current:
        found = DatasetMetadata.load_from_store(uuid, blobs)
        if snapshot_version(found, blobs, state.key)[0] == state.version:
            return found
        # somebody committed meanwhile: then there is a copy
        moved = [copy for copy in states(uuid, blobs) if copy.version == state.version]
        if not moved:
            raise StateNotFoundError(uuid, str(state.version))
        state = moved[-1]
    try:
        return load_copy(uuid, blobs, state.key)
    except KeyError:
        raise StateNotFoundError(uuid, str(state.version)) from None
