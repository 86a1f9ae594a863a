"""Undo: retention of older states, and rollback of datasets and cubes to one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import attrs

from kartothek_cube.core import arguments, dataset_files, errors, history, naming, partition
from kartothek_cube.core.commit import change, header_store, optimistic
from kartothek_cube.core.commit.operation import Decision, Role, list_committed_states, settle, state_as_of
from kartothek_cube.core.cube import discover
from kartothek_cube.core.cube.consistency import check_cube
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.schema import schema_version_of
from kartothek_cube.core.store import BlobStore, PreconditionFailed, StoreInput, open_blobs
from kartothek_cube.io_components.maintenance import cube_history, garbage
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf, CubeState, Cut, DatasetHistories
from kartothek_cube.io_components.publication.published_table import publish_committed
from kartothek_cube.io_components.write.write_commit import check_rules, commit_cube, validate_cube


def keep_dataset_history(dataset_uuid: str, store: StoreInput, states: int | None = None) -> DatasetMetadata:
    """Set how many older states of a dataset are kept for time travel and rollback.

    By default all are kept until a cleanup (:func:`garbage_collect_dataset`). The number is stored in the
    metadata of the dataset, under ``kartothek_cube_keep_history``; it may be set there when the dataset is
    written. An overwrite keeps it.

    Parameters
    ----------
    dataset_uuid, store
        Uuid of the dataset; store, factory or URL.
    states
        Number of snapshots to keep beside the current state, also through cleanups; the files of the others
        become garbage. 0 for none; None for all until a cleanup.

    Returns
    -------
    DatasetMetadata

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        ``states`` is not a number of states.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import ensure_store, read_table
    >>> from kartothek_cube import store_dataframes_as_dataset, update_dataset_from_dataframes
    >>> store = ensure_store("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Rom"]})])
    >>> _ = keep_dataset_history("geodata", store, states=10)
    >>> _ = update_dataset_from_dataframes([pd.DataFrame({"CITY": ["Ulm"]})], store, "geodata")
    >>> from kartothek_cube.io.eager import list_dataset_history
    >>> [(state.version, state.current) for state in list_dataset_history("geodata", store)]
    [(1, False), (2, False), (3, True)]
    >>> read_table("geodata", store, as_of=1)["CITY"].tolist()
    ['Rom']
    >>> _ = rollback_dataset("geodata", store, as_of=1)
    >>> read_table("geodata", store)["CITY"].tolist()
    ['Rom']
    >>> [state.version for state in list_dataset_history("geodata", store)]
    [1, 2, 3, 4]
    """
    # JSON has no numbers of NumPy
    metadata = {history.KEEP_HISTORY: int(states) if arguments.is_count(states) else states}
    history.snapshot_retention(metadata, "states")
    blobs = open_blobs(store)
    table = DatasetMetadata.load_from_store(dataset_uuid, blobs).table_name
    info = history.describe_operation("keep history")
    return optimistic.commit(blobs, change.ChangeSet(dataset_uuid, table, metadata=metadata, info=info))[0]


@attrs.frozen
class RollbackPlan:
    """A planned rollback to an older state."""

    #: the state that is replaced
    base: header_store.BaseState
    #: the new state
    state: DatasetMetadata
    #: whether the dataset did not exist then
    hides: bool = False


def plan_rollback(uuid: str, blobs: BlobStore, as_of: history.AsOf) -> RollbackPlan:
    """Plan to make an older state of a dataset the current one."""
    state = state_as_of(uuid, blobs, as_of)
    missing = header_store.missing_files(blobs, uuid, dataset_files.file_keys(state))
    if missing:
        text = (
            f"the state of dataset {uuid!r} as of {as_of} needs it and {len(missing) - 1} more files, "
            "but these are gone; a cleanup that knows nothing of histories may have deleted them"
        )
        raise errors.CorruptDatasetError(missing[0], text)
    base = _read_base(blobs, uuid, state.table_name)
    current = base.state
    # a hidden dataset has its settings, too
    newest = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False) if current is None else current
    kept = change.inherited_settings(newest.metadata)
    schema = state.schema
    if current is not None and schema_version_of(current.metadata) == schema_version_of(state.metadata):
        # that of later updates, which knows at least as much
        schema = current.schema
    settings = change.inherited_settings(state.metadata)
    metadata = {key: value for key, value in state.metadata.items() if key not in settings}
    return RollbackPlan(base, state.copy(metadata={**metadata, **kept}, schema=schema))


def plan_hiding(uuid: str, blobs: BlobStore) -> RollbackPlan:
    """Plan to hide a dataset that did not exist at the time to which its cube goes back."""
    base = _read_base(blobs, uuid, DatasetMetadata.load_from_store(uuid, blobs, load_schema=False).table_name)
    if base.state is None:
        raise errors.ConcurrentWriteError(uuid, detail=_REPEAT)
    # other software, which does not know that it is hidden, reads an empty dataset
    empty = base.state.copy(partitions=partition.PartitionTable.empty((base.state.table_name,)), indices={})
    return RollbackPlan(base, empty, hides=True)


def _read_base(blobs: BlobStore, uuid: str, table: str) -> header_store.BaseState:
    key = naming.metadata_key_from_uuid(uuid)
    return settle(blobs, lambda: header_store.read_optional_base(blobs, uuid, table, key))


#: remedy for a rollback that another writer has overtaken
_REPEAT = "Look at the newest state, and go back again if that is still wanted."


def finish_rollback(blobs: BlobStore, plan: RollbackPlan, role: Role = None) -> optimistic.Result:
    """Commit an older state as a new one; the state that it replaces is archived."""
    base, info = plan.base, history.describe_operation("rollback")
    keys = dataset_files.file_keys(plan.state)
    if isinstance(role, Decision) and base.record is None:
        # the operation has added a record to the header of other software
        base = _read_same_base(blobs, plan)
    for _ in header_store.attempts():
        try:
            state, receipt = optimistic.commit_state(
                blobs, base, plan.state, keys, role, info, replaces=True, hides=plan.hides
            )
        except PreconditionFailed:
            base = _read_same_base(blobs, plan)
            continue
        if role is None:
            optimistic.announce_commit(info, [receipt])
        return state, receipt
    raise errors.ConcurrentWriteError(plan.state.uuid, detail=_REPEAT)


def _read_same_base(blobs: BlobStore, plan: RollbackPlan) -> header_store.BaseState:
    """Read the state that is replaced again; ConcurrentWriteError if it is another one."""
    base = _read_base(blobs, plan.state.uuid, plan.state.table_name)
    # only notes of others in the header, such as tombstones or aborted operations, do not matter
    if not _is_same_state(base.state, plan.base.state):
        raise errors.ConcurrentWriteError(plan.state.uuid, detail=_REPEAT)
    return base


def _is_same_state(state: DatasetMetadata | None, other: DatasetMetadata | None) -> bool:
    if state is None or other is None:
        return state is other
    # by their versions, as a state may be replaced by another one of the same content; that of a state of
    # other software may be noted since
    versions = history.recorded_version(state), history.recorded_version(other)
    return versions[1] in (None, versions[0]) and history.fingerprint(state) == history.fingerprint(other)


@arguments.alias_parameter("datasets", "ktk_cube_dataset_ids")
def keep_cube_history(
    cube: Cube | str,
    store: StoreInput,
    states: int | None = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """Set how many older states of the datasets are kept for time travel and rollback.

    By default all are kept until a cleanup (:func:`cleanup_cube`). The number is stored in the metadata of
    each dataset, under ``kartothek_cube_keep_history``; it may be set there when the cube is built. Datasets
    that are added later have that of the seed.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    states
        Number of snapshots of each dataset to keep beside the current state, also through cleanups; the files
        of the others become garbage. 0 for none; None for all until a cleanup.
    datasets, ktk_cube_dataset_ids
        Datasets concerned; all by default.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    ValueError
        ``states`` is not a number of states, or there is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube, ensure_store, query_cube
    >>> from kartothek_cube.io.eager_cube import list_cube_history, rollback_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Ulm"], "COUNTRY_CODE": ["DE"], "PEOPLE": [126_000]})
    >>> built = build_cube(cities, cube, store)
    >>> _ = keep_cube_history(cube, store, states=5)
    >>> monday = list_cube_history(cube, store)["seed"][-1].time
    >>> _ = append_to_cube(cities.assign(PEOPLE=126_329), cube, store)
    >>> query_cube(cube, store, as_of=monday)[0]["PEOPLE"].tolist()
    [126000]
    >>> _ = rollback_cube(cube, store, as_of=monday)
    >>> query_cube(cube, store)[0]["PEOPLE"].tolist()
    [126000]
    """
    cube = discover.find_cube(cube, store)
    blobs = open_blobs(store)
    existing = discover.existing_dataset_ids(cube.uuid_prefix, blobs)
    if not existing:
        raise discover.cube_not_found(cube.uuid_prefix, blobs)
    names = discover.choose_datasets(cube, ktk_cube_dataset_ids, existing)
    uuids = {name: cube.ktk_dataset_uuid(name) for name in cube.commit_order(names)}
    return {name: keep_dataset_history(uuid, store, states) for name, uuid in uuids.items()}


@arguments.alias_parameter("datasets", "ktk_cube_dataset_ids")
def rollback_cube(
    cube: Cube | str,
    store: StoreInput,
    as_of: CubeAsOf,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """Make older states of datasets the current ones, all at once; the replaced states are archived.

    Datasets that did not exist then are hidden: the cube does not have them any more, but a rollback to a
    later state brings them back, as long as that is kept.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    as_of
        Version of the cube, see :func:`list_cube_history`, token, see :func:`list_cube_changes`, or point in
        time: the datasets return to the state of the cube then. Or a dict of dataset id to version or time;
        other datasets stay as they are.
    datasets, ktk_cube_dataset_ids
        Datasets concerned; all by default.

    Returns
    -------
    dict
        Dataset id to metadata of the datasets concerned.

    Raises
    ------
    ValueError
        A dataset does not exist, the datasets would not form the cube, or they are in that state already.
    StateNotFoundError
        A state is not archived (any more), or the cube did not exist then.
    CorruptDatasetError
        Files of a state are missing. Nothing is changed.
    ConcurrentWriteError
        Another writer committed at the same time. Nothing is changed.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube, query_cube_df
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = append_to_cube(cities.assign(CITY="Ulm"), cube, store)
    >>> _ = rollback_cube(cube, store, as_of=1)
    >>> query_cube_df(cube, store)["CITY"].tolist()
    ['Bonn', 'Rom']
    """
    cube = discover.find_cube(cube, store)
    blobs, info = open_blobs(store), history.describe_operation("rollback")
    # an operation whose writer was killed is no state to return to, nor one to replace
    garbage.finish_operations(cube, blobs)
    histories = DatasetHistories(cube, blobs)
    existing = discover.discover_datasets_unchecked(cube.uuid_prefix, blobs)
    states, absent = _select_states(histories, as_of, ktk_cube_dataset_ids, existing)
    # also of datasets that are in their state already: a commit to them in the meantime is a conflict
    plans = {name: plan_rollback(cube.ktk_dataset_uuid(name), blobs, states[name].version) for name in states}
    plans |= {name: plan_hiding(cube.ktk_dataset_uuid(name), blobs) for name in absent}
    remaining = {name: dataset for name, dataset in existing.items() if name not in absent}
    check_cube({**remaining, **{n: plan.state for n, plan in plans.items() if not plan.hides}}, cube)
    order = cube.commit_order(plans)
    steps = {cube.ktk_dataset_uuid(n): partial(finish_rollback, blobs, plans[n]) for n in order}
    result = commit_cube(cube, blobs, steps, info, validate=partial(validate_cube, cube, blobs))
    return {name: result[cube.ktk_dataset_uuid(name)] for name in sorted(states)}


def check_rollback(cube: Cube, store: StoreInput, as_of: CubeAsOf, names: Iterable[str] | None) -> None:
    """Raise the errors of :func:`rollback_cube` about the state, without changing anything."""
    histories = DatasetHistories(cube, open_blobs(store))
    existing = discover.discover_datasets_unchecked(cube.uuid_prefix, histories.blobs)
    _select_states(histories, as_of, names, existing)


def _select_states(
    histories: DatasetHistories, as_of: CubeAsOf, ids: str | Iterable[str] | None, existing: Collection[str]
) -> tuple[Cut, list[str]]:
    """The states that a rollback restores, and the datasets that it hides."""
    cube = histories.cube
    names = cube.commit_order(discover.choose_datasets(cube, ids, histories.states))
    states = cube_history.resolve_as_of(histories, as_of, names)
    absent = [] if isinstance(as_of, Mapping) else [n for n in names if n in existing and n not in states]
    if not absent and all(state.current for state in states.values()):
        listed = cube_history.collect_history(histories)
        raise _already_current(f"Cube {cube.uuid_prefix!r}", as_of, listed)
    return states, absent


def rollback_dataset(dataset_uuid: str, store: StoreInput, as_of: history.AsOf) -> DatasetMetadata:
    """Make an older state of a dataset the current one, by a new commit; the replaced state is archived.

    Parameters
    ----------
    dataset_uuid, store
        Uuid of the dataset; store, factory or URL.
    as_of
        Version of the state, or a point in time for the newest one that is not newer.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        The dataset is in that state already.
    StateNotFoundError
        The state is not archived (any more).
    CorruptDatasetError
        Files of that state are missing. Nothing is changed.
    ConcurrentWriteError
        Another writer committed at the same time. Nothing is changed.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import ensure_store, read_table
    >>> from kartothek_cube import store_dataframes_as_dataset, update_dataset_from_dataframes
    >>> store = ensure_store("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Rom"]})])
    >>> _ = update_dataset_from_dataframes([pd.DataFrame({"CITY": ["Ulm"]})], store, "geodata")
    >>> _ = rollback_dataset("geodata", store, as_of=1)
    >>> read_table("geodata", store)["CITY"].tolist()
    ['Rom']
    """
    blobs = open_blobs(store)
    states = list_committed_states(dataset_uuid, blobs)
    state = history.select_state(dataset_uuid, states, as_of)
    if state is not None and state.current:
        raise _already_current(f"Dataset {dataset_uuid!r}", as_of, states)
    plan = plan_rollback(dataset_uuid, blobs, as_of)
    check_rules(blobs, plan.state)
    return publish_committed(blobs, finish_rollback(blobs, plan)[0])


def _already_current(
    name: str, as_of: CubeAsOf, states: Sequence[CubeState | history.DatasetState]
) -> ValueError:
    """The error for a rollback that would change nothing."""
    return ValueError(
        f"{name} already has the state as of {as_of}, so that there is nothing to undo. It keeps "
        f"{errors.format_count(len(states), 'state')}: {history.name_states(states)}"
    )
