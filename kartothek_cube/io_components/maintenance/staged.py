"""Staged writes: read the cube as it would be, commit them, or delete their files."""

from __future__ import annotations

from contextlib import suppress

from kartothek_cube.core.commit.header_store import missing_files
from kartothek_cube.core.commit.optimistic import is_committed
from kartothek_cube.core.cube.discover import load_states
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DatasetNotFoundError, format_count
from kartothek_cube.core.store import StoreInput, open_blobs
from kartothek_cube.io_components.maintenance.garbage import delete_garbage, history_keys
from kartothek_cube.io_components.runtime import store_factory
from kartothek_cube.io_components.write.write_commit import (
    StagedInput,
    StagedWrite,
    check_outcome,
    commit_datasets,
)


def publish_staged(staged: StagedInput, store: StoreInput) -> dict[str, DatasetMetadata]:
    """Commit a staged write to the newest state, all datasets of a cube at once.

    It is committed as it would have been without ``publish=False``, on top of what other writers have
    committed since. What is published already has no effect, also if its rows were replaced or deleted since;
    after a rollback to the state before, it may be published again.

    Parameters
    ----------
    staged
        What a write with ``publish=False`` returned.
    store
        Store, factory or URL.

    Returns
    -------
    dict
        Dataset id to metadata of what was written; for a single dataset, its uuid.

    Raises
    ------
    ConcurrentWriteError
        Another writer has changed what the write replaces or removes, or a cleanup has deleted its files.
        Nothing is changed: write again.
    ValueError
        The cube has changed in a way that the write does not fit; or it was staged more than 30 days ago.
    TypeError
        ``staged`` is no staged write.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube, ensure_store, query_cube_df
    >>> from kartothek_cube.io.eager_cube import publish_staged
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> staged = append_to_cube(cities.assign(CITY="Ulm"), cube, store, publish=False)
    >>> staged
    <staged: seed: 2 rows in 2 files>
    >>> len(query_cube_df(cube, store)), len(query_cube_df(cube, store, as_of=staged))
    (2, 4)
    >>> _ = publish_staged(staged, store)
    >>> len(query_cube_df(cube, store))
    4
    """
    write, factory = _check_staged(staged), store_factory(store)
    blobs = open_blobs(factory)
    plan = write.plan(factory)
    if plan.is_cube_write:
        states = load_states(plan.cube.uuid_prefix, blobs)
        if not all(is_committed(states.get(name), change) for name, change in write.changes.items()):
            check_outcome(plan, write.changes, states)
    return commit_datasets(plan, write.changes, blobs)


def discard_staged(staged: StagedInput, store: StoreInput) -> None:
    """Delete the files of a staged write, which can no longer be published.

    The files of a staged write that is forgotten are garbage, which a cleanup deletes.

    Parameters
    ----------
    staged
        What a write with ``publish=False`` returned.
    store
        Store, factory or URL.

    Raises
    ------
    ValueError
        The write is published: its files stay.
    TypeError
        ``staged`` is no staged write.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> from kartothek_cube.io.eager_cube import discard_staged
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> staged = build_cube(cities, cube, store, publish=False)
    >>> len(store.keys())
    2
    >>> discard_staged(staged, store)
    >>> len(store.keys())
    0
    """
    # As a garbage collection does, under tombstones: the commit of the write at the same time either comes
    # first, or is refused.
    write, blobs, n_files = _check_staged(staged), open_blobs(store), 0
    for change in write.changes.values():
        keys = [key for keys in change.added.files.values() for key in keys.to_pylist()]
        referenced: set[str] = set()
        with suppress(DatasetNotFoundError):
            # the write was committed, and its partitions were removed since
            state = DatasetMetadata.load_from_store(change.uuid, blobs, load_schema=False)
            referenced = history_keys(state, blobs, ())
        staged_id = "" if change.staged is None else change.staged[0]
        delete_garbage(store, set(keys) - referenced, staged_id)
        n_files += len(keys) - len(missing_files(blobs, change.uuid, keys))
    if n_files:
        raise ValueError(
            f"{write!r} is published, or being published: {format_count(n_files, 'file')} of it stay. A "
            "rollback returns to the state before"
        )


def _check_staged(staged: StagedInput) -> StagedWrite:
    if not isinstance(staged, StagedWrite):
        raise TypeError(
            f"Expected what a write with publish=False returns, got {type(staged).__name__}; without it, the "
            "write is committed already"
        )
    return staged
