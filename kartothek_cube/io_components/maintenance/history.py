"""The history of datasets and cubes: retention of states, their listing, time travel, rollback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias, overload

import attrs
import pandas as pd

from kartothek_cube.core.commit.change import ChangeSet, WriteMode
from kartothek_cube.core.commit.header_store import BaseState, CommitReceipt, read_base
from kartothek_cube.core.commit.operation import Role, committed_state, settle
from kartothek_cube.core.commit.optimistic import commit, commit_state
from kartothek_cube.core.cube.consistency import check_cube
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import (
    choose_datasets,
    discover_datasets_unchecked,
    existing_dataset_ids,
    open_existing,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.file_keys import data_keys, file_keys
from kartothek_cube.core.errors import (
    ConcurrentWriteError,
    CorruptDatasetError,
    StateNotFoundError,
    format_count,
    unknown_names,
)
from kartothek_cube.core.header import CommitRecord, parse_record, participation_of
from kartothek_cube.core.history import (
    KEEP_HISTORY,
    AsOf,
    DatasetState,
    OperationInfo,
    check_as_of,
    describe_operation,
    fingerprint,
    list_states,
    load_state,
    name_states,
    operation_info,
    select_state,
    snapshot_retention,
    state_as_of,
)
from kartothek_cube.core.schema.file import schema_version_of
from kartothek_cube.core.store import BlobStore, PreconditionFailed, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.display import card, table
from kartothek_cube.io_components.runtime import REMOTE_REQUESTS, ordered_map
from kartothek_cube.io_components.write.write_commit import commit_cube
from kartothek_cube.serialization.ranged_read import read_footer

__all__ = (
    "STATE_COLUMNS",
    "CubeAsOf",
    "CubeHistory",
    "CubeState",
    "RollbackPlan",
    "datasets_as_of",
    "describe_state",
    "finish_rollback",
    "keep_cube_history",
    "keep_history",
    "list_cube_history",
    "list_history",
    "missing_files",
    "plan_rollback",
    "return_cube",
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
    change = ChangeSet(uuid, table, metadata=metadata, info=describe_operation("keep history"))
    return commit(blobs, change)[0]


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
    keys = file_keys(state)
    if len(keys) <= _FEW_FILES:
        return [key for key in keys if not blobs.exists(key)]
    stored = {blob.key for blob in blobs.list(f"{state.uuid}/")}
    return [key for key in keys if key not in stored and not blobs.exists(key)]


def finish_rollback(
    blobs: BlobStore, plan: RollbackPlan, role: Role = None
) -> tuple[DatasetMetadata, CommitReceipt]:
    """Commit an older state as a new one; the state that it replaces is archived."""
    try:
        return commit_state(
            blobs,
            plan.base,
            plan.state,
            file_keys(plan.state),
            mode=WriteMode.REPLACE,
            role=role,
            info=describe_operation("rollback"),
        )
    except PreconditionFailed as error:
        raise ConcurrentWriteError(
            plan.state.uuid, detail="Look at the newest state, and go back again if that is still wanted."
        ) from error


CubeAsOf: TypeAlias = AsOf | Mapping[str, AsOf]
"""A version or point in time of a cube, or of some of its datasets: the others are as they are."""


@attrs.frozen
class CubeState:
    """A state of a cube: what an operation made of it."""

    #: increases with each state: the sum of the versions of all datasets
    version: int
    #: when it became visible, UTC
    time: datetime
    #: such as "append"; "" if unknown
    operation: str
    #: ids of the datasets that the operation changed
    datasets: tuple[str, ...]
    #: version by id of dataset
    versions: Mapping[str, int]
    #: data files that came and went
    files_added: int
    files_removed: int
    #: their rows; None if files are gone
    rows_added: int | None
    rows_removed: int | None
    #: of the user, see `annotate_operations`
    message: str | None = None
    job: Mapping[str, Any] | None = None
    current: bool = False


class CubeHistory(Sequence[CubeState]):
    """The states of a cube, oldest first; by the id of a dataset, the states of that."""

    def __init__(self, states: Sequence[CubeState], datasets: Mapping[str, list[DatasetState]]) -> None:
        self._states = list(states)
        #: states of each dataset, oldest first
        self.datasets = dict(datasets)

    @overload
    def __getitem__(self, index: int) -> CubeState: ...
    @overload
    def __getitem__(self, index: slice) -> list[CubeState]: ...
    @overload
    def __getitem__(self, index: str) -> list[DatasetState]: ...
    def __getitem__(self, index: int | slice | str) -> CubeState | list[CubeState] | list[DatasetState]:
        return self.datasets[index] if isinstance(index, str) else self._states[index]

    def __len__(self) -> int:
        return len(self._states)

    def __repr__(self) -> str:
        return f"<CubeHistory of {format_count(len(self), 'state')}>"

    def to_frame(self) -> pd.DataFrame:
        """The states as a table."""
        columns = [field.name for field in attrs.fields(CubeState)]
        return pd.DataFrame([attrs.asdict(state, recurse=False) for state in self], columns=columns)

    def _repr_html_(self) -> str:
        # without the column of messages if there are none
        shown = STATE_COLUMNS if any(state.message for state in self) else STATE_COLUMNS[:-1]
        rows = [describe_state(state)[: len(shown)] for state in self]
        # times and counts stay on one line, texts may be wrapped
        rows = [
            tuple(
                cell.replace(" ", "\N{NO-BREAK SPACE}") if name in ("time", "files", "rows") else cell
                for name, cell in zip(shown, row, strict=True)
            )
            for row in rows
        ]
        return card("", table("", shown, rows))


#: of a table of states
STATE_COLUMNS = ("version", "time", "operation", "datasets", "files", "rows", "message")


def describe_state(state: CubeState) -> tuple[str, ...]:
    """The cells of a state in a table; the time is valid for ``as_of``."""
    is_counted = state.rows_added is not None and state.rows_removed is not None
    return (
        str(state.version),
        f"{state.time:%Y-%m-%d %H:%M:%S.%f} UTC",
        state.operation + (" (current)" if state.current else ""),
        ", ".join(state.datasets),
        f"+{state.files_added} -{state.files_removed}",
        f"+{state.rows_added} -{state.rows_removed}" if is_counted else "",
        state.message or "",
    )


class _Histories:
    """The states of all datasets of a cube, loaded on demand."""

    def __init__(self, cube: Cube, blobs: BlobStore) -> None:
        ensure_cube(cube)
        self.cube, self.blobs = cube, blobs
        self.names = sorted(existing_dataset_ids(cube.uuid_prefix, blobs))
        self.states = {name: list_states(cube.ktk_dataset_uuid(name), blobs) for name in self.names}
        self._loaded: dict[tuple[str, int], DatasetMetadata] = {}

    def load(self, name: str, state: DatasetState) -> DatasetMetadata:
        """The content of a state; the current one as of the last committed operation."""
        key = name, state.version
        if key not in self._loaded:
            loaded = load_state(self.cube.ktk_dataset_uuid(name), self.blobs, state)
            self._loaded[key] = committed_state(self.blobs, loaded) if state.current else loaded
        return self._loaded[key]

    def cut(self, moment: datetime, names: Iterable[str]) -> dict[str, DatasetState]:
        """The states of datasets at a point in time; those that did not exist are absent."""
        # The seed names for each dataset the last operation on several ones that was committed. What that
        # operation made of the dataset belongs to the moment, and later commits of the dataset alone.
        seed = self.cube.seed_dataset
        header: CommitRecord | None = None
        found: dict[str, DatasetState | None] = {}
        if seed in self.states:
            found[seed] = state = self._select(seed, moment)
            header = None if state is None else parse_record(self.load(seed, state).extra)
        for name in names:
            if name != seed:
                found[name] = self._select_participant(name, moment, header)
        return {name: state for name in names if (state := found[name]) is not None}

    def _select(self, name: str, moment: datetime) -> DatasetState | None:
        return select_state(self.cube.ktk_dataset_uuid(name), self.states[name], moment)

    def _select_participant(
        self, name: str, moment: datetime, header: CommitRecord | None
    ) -> DatasetState | None:
        if header is None or not header.participants:
            return self._select(name, moment)
        wanted = header.participants.get(self.cube.ktk_dataset_uuid(name))
        states = self.states[name]
        until = [state for state in states if state.time <= moment]
        # an operation is visible with the commit of the seed, whatever the clocks of the other commits said
        later = [state for state in states if state.time > moment] if wanted is not None else []
        for state in [*reversed(until), *later]:
            own = participation_of(self.load(name, state).extra)
            if (own.operation if own is not None and own.lineage == header.lineage else None) == wanted:
                return state
        # other software wrote it
        return self._select(name, moment)

    def moments(self) -> list[datetime]:
        """When states of the cube became visible."""
        seed = self.cube.seed_dataset
        moments = {state.time for state in self.states.get(seed, ())}
        for name in self.names:
            last = None
            for state in self.states[name]:
                own = participation_of(self.load(name, state).extra)
                operation = None if own is None else own.operation
                # part of an operation on several datasets: with the commit of the seed
                if name != seed and operation == last:
                    moments.add(state.time)
                last = operation
        return sorted(moments)


def list_cube_history(cube: Cube, store: StoreInput | BlobStore) -> CubeHistory:
    """The readable states of a cube, oldest first."""
    histories = _Histories(cube, open_blobs(store))
    states: list[CubeState] = []
    last: dict[str, DatasetState] = {}
    for moment in histories.moments():
        try:
            cut = histories.cut(moment, histories.names)
        except StateNotFoundError:
            # older than the states that are kept of some dataset
            continue
        if cut and _versions(cut) != _versions(last):
            states.append(_describe(histories, moment, last, cut))
            last = cut
    if states:
        states[-1] = attrs.evolve(states[-1], current=True)
    return CubeHistory(states, histories.states)


def _versions(cut: Mapping[str, DatasetState]) -> dict[str, int]:
    return {name: state.version for name, state in cut.items()}


def _describe(
    histories: _Histories,
    moment: datetime,
    before: Mapping[str, DatasetState],
    after: Mapping[str, DatasetState],
) -> CubeState:
    changed = [n for n in after if n not in before or before[n].version != after[n].version]
    new = {name: histories.load(name, after[name]) for name in changed}
    old = {name: histories.load(name, before[name]) for name in changed if name in before}
    info = next((i for i in map(operation_info, new.values()) if i.name), OperationInfo())
    added = {key for state in new.values() for key in data_keys(state)}
    removed = {key for state in old.values() for key in data_keys(state)}
    return CubeState(
        version=sum(_versions(after).values()),
        time=moment,
        operation=info.name,
        # the header of the seed also changes with operations on other datasets
        datasets=tuple(n for n in changed if n not in old or fingerprint(old[n]) != fingerprint(new[n])),
        versions=_versions(after),
        files_added=len(added - removed),
        files_removed=len(removed - added),
        rows_added=_count_rows(histories.blobs, added - removed),
        rows_removed=_count_rows(histories.blobs, removed - added),
        message=info.message,
        job=info.job,
    )


def _count_rows(blobs: BlobStore, keys: Iterable[str]) -> int | None:
    try:
        footers = ordered_map(partial(read_footer, blobs), sorted(keys), REMOTE_REQUESTS)
        return sum(int(footer.num_rows) for footer, _ in footers)
    except (KeyError, CorruptDatasetError):
        # deleted by other software, or no Parquet file
        return None


def _choose(cube: Cube, blobs: BlobStore, names: str | Iterable[str] | None) -> list[str]:
    """Ids of existing datasets, all by default, in commit order."""
    ensure_cube(cube)
    existing = existing_dataset_ids(cube.uuid_prefix, open_existing(cube.uuid_prefix, blobs))
    return cube.commit_order(choose_datasets(cube, names, existing))


def keep_cube_history(
    cube: Cube, store: StoreInput, number: int, ktk_cube_dataset_ids: str | Iterable[str] | None = None
) -> dict[str, DatasetMetadata]:
    """Set how many states of the datasets of a cube are kept."""
    blobs = open_blobs(store)
    names = _choose(cube, blobs, ktk_cube_dataset_ids)
    return {name: keep_history(cube.ktk_dataset_uuid(name), store, number) for name in names}


def _resolve_as_of(cube: Cube, blobs: BlobStore, as_of: CubeAsOf, names: Sequence[str]) -> dict[str, AsOf]:
    """Version or time by dataset, of those that existed, or that a mapping names."""
    if isinstance(as_of, Mapping):
        unknown = set(as_of) - set(names)
        if unknown:
            raise ValueError("as_of: " + unknown_names("dataset", unknown, names))
        for moment in as_of.values():
            check_as_of(moment)
        return dict(as_of)
    moment = check_as_of(as_of)
    if isinstance(moment, datetime):
        return dict(_versions(_Histories(cube, blobs).cut(moment, names)))
    history = list_cube_history(cube, blobs)
    for state in reversed(history):
        if state.version == moment:
            return {name: version for name, version in state.versions.items() if name in names}
    raise StateNotFoundError(cube.uuid_prefix, str(moment), name_states(history), kind="Cube")


def datasets_as_of(
    cube: Cube, store: StoreInput | BlobStore, as_of: CubeAsOf, names: str | Iterable[str] | None = None
) -> dict[str, DatasetMetadata]:
    """The datasets of a cube as of one of its states."""
    blobs = open_blobs(store)
    chosen = sorted(_choose(cube, blobs, names))
    moments = _resolve_as_of(cube, blobs, as_of, chosen)
    datasets = {}
    if isinstance(as_of, Mapping):
        datasets = discover_datasets_unchecked(cube.uuid_prefix, blobs, set(chosen) - set(moments))
    for name, moment in moments.items():
        uuid = cube.ktk_dataset_uuid(name)
        state = select_state(uuid, list_states(uuid, blobs), moment)
        if state is not None:
            datasets[name] = committed_state(blobs, load_state(uuid, blobs, state))
    if names is not None:
        _check_existed(cube, blobs, as_of, set(chosen) - set(datasets))
    check_cube(datasets, cube)
    return {name: datasets[name] for name in chosen if name in datasets}


def _check_existed(cube: Cube, blobs: BlobStore, as_of: CubeAsOf, absent: Iterable[str]) -> None:
    """Raise StateNotFoundError for datasets that did not exist."""
    for name in sorted(absent):
        uuid = cube.ktk_dataset_uuid(name)
        raise StateNotFoundError(uuid, str(as_of), name_states(list_states(uuid, blobs)))


def return_cube(
    cube: Cube,
    store: StoreInput,
    as_of: CubeAsOf,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """Make older states of the datasets of a cube the current ones, all at once."""
    blobs = open_blobs(store)
    names = _choose(cube, blobs, ktk_cube_dataset_ids)
    moments = _resolve_as_of(cube, blobs, as_of, names)
    if not isinstance(as_of, Mapping):
        _check_existed(cube, blobs, as_of, set(names) - set(moments))
    plans = {name: plan_rollback(cube.ktk_dataset_uuid(name), blobs, when) for name, when in moments.items()}
    existing = discover_datasets_unchecked(cube.uuid_prefix, blobs)
    check_cube({**existing, **{name: plan.state for name, plan in plans.items()}}, cube)
    steps = {
        cube.ktk_dataset_uuid(name): partial(finish_rollback, blobs, plans[name])
        for name in cube.commit_order(plans)
    }
    result = commit_cube(cube, blobs, steps, describe_operation("rollback"))
    return {name: result[cube.ktk_dataset_uuid(name)] for name in sorted(plans)}
