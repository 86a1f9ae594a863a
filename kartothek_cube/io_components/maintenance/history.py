"""The history of datasets and cubes: retention of states, their listing, time travel, rollback, pins."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event, Thread
from typing import Any, Self, TypeAlias, TypeGuard, overload

import attrs
import pandas as pd

from kartothek_cube import display
from kartothek_cube.core import arguments, dataset_files, errors, history, partition, tuning
from kartothek_cube.core.commit import change, header_store, optimistic
from kartothek_cube.core.commit.operation import Role, is_hidden, resolve_pending, settle
from kartothek_cube.core.cube import discover
from kartothek_cube.core.cube.consistency import check_cube
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetAsOf
from kartothek_cube.core.header import CommitRecord, Participation, parse_record
from kartothek_cube.core.naming import header_keys, metadata_key_from_uuid
from kartothek_cube.core.schema import schema_version_of
from kartothek_cube.core.store import BlobStore, PreconditionFailed, StoreInput, open_blobs
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.maintenance.garbage import finish_operations, store_time
from kartothek_cube.io_components.publication.table import publish_committed
from kartothek_cube.io_components.runtime import ordered_map
from kartothek_cube.io_components.write.write_commit import StagedWrite, commit_cube
from kartothek_cube.serialization.parquet import read_footer


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
    metadata = {history.KEEP_HISTORY: states}
    history.snapshot_retention(metadata)
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
    state = history.state_as_of(uuid, blobs, as_of)
    missing = header_store.missing_files(blobs, uuid, dataset_files.file_keys(state))
    if missing:
        raise errors.CorruptDatasetError(
            missing[0],
            f"the state of dataset {uuid!r} as of {as_of} needs it and {len(missing) - 1} more files, "
            "but these are gone; a cleanup that knows nothing of histories may have deleted them",
        )
    base = _read_base(blobs, uuid, state.table_name)
    current = base.state
    kept = {} if current is None else change.inherited_settings(current.metadata)
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
    return settle(
        blobs, lambda: header_store.read_optional_base(blobs, uuid, table, metadata_key_from_uuid(uuid))
    )


#: remedy for a rollback that another writer has overtaken
_REPEAT = "Look at the newest state, and go back again if that is still wanted."


def finish_rollback(blobs: BlobStore, plan: RollbackPlan, role: Role = None) -> optimistic.Result:
    """Commit an older state as a new one; the state that it replaces is archived."""
    base, info = plan.base, history.describe_operation("rollback")
    for _ in header_store.attempts():
        try:
            state, receipt = optimistic.commit_state(
                blobs,
                base,
                plan.state,
                dataset_files.file_keys(plan.state),
                mode=change.WriteMode.REPLACE,
                role=role,
                info=info,
                hides=plan.hides,
            )
        except PreconditionFailed as error:
            base = _read_base(blobs, plan.state.uuid, plan.state.table_name)
            # only notes of others in the header, such as tombstones or aborted operations, do not matter
            if not _is_same_state(base.state, plan.base.state):
                raise errors.ConcurrentWriteError(plan.state.uuid, detail=_REPEAT) from error
            continue
        if role is None:
            optimistic.announce_commit(info, [receipt])
        return state, receipt
    raise errors.ConcurrentWriteError(plan.state.uuid, detail=_REPEAT)


def _is_same_state(state: DatasetMetadata | None, other: DatasetMetadata | None) -> bool:
    if state is None or other is None:
        return state is other
    # by their versions, as a state may be replaced by another one of the same content
    return all(tell(state) == tell(other) for tell in (history.recorded_version, history.fingerprint))


_TOKEN_ENTRY = re.compile(r"[A-Za-z0-9+\-_]+@\d{10}-\d{8}T\d{12}Z-[0-9a-f]{16}")
#: metadata key: token of the state of the cube from which a dataset was computed
COMPUTED_FROM = "kartothek_cube_computed_from"

CubeAsOf: TypeAlias = DatasetAsOf | Mapping[str, history.AsOf]
"""A version or point in time of a cube, or of some of its datasets; or a staged write, on top of the cube."""


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
    #: version of this library that committed it; "" if unknown
    library: str = ""
    #: versions of the datasets that a computation has read, by id
    inputs: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen
class ReaderPin:
    """A state of a cube that a reader keeps, see `pin_cube`."""

    id: str
    #: version by id of dataset
    versions: Mapping[str, int]
    #: when it stops to count unless it is renewed, UTC
    expires: datetime


class CubeHistory(Sequence[CubeState]):
    """The states of a cube, oldest first; by the id of a dataset, the states of that."""

    def __init__(
        self,
        states: Sequence[CubeState],
        datasets: Mapping[str, list[history.DatasetState]],
        pins: Iterable[ReaderPin] = (),
    ) -> None:
        self._states = list(states)
        #: states that readers keep, also expired ones until a cleanup; the next to expire first
        self.pins = list(pins)
        #: states of each dataset, oldest first
        self.datasets = dict(datasets)

    @overload
    def __getitem__(self, index: int) -> CubeState: ...
    @overload
    def __getitem__(self, index: slice) -> list[CubeState]: ...
    @overload
    def __getitem__(self, index: str) -> list[history.DatasetState]: ...
    def __getitem__(
        self, index: int | slice | str
    ) -> CubeState | list[CubeState] | list[history.DatasetState]:
        return self.datasets[index] if isinstance(index, str) else self._states[index]

    def __len__(self) -> int:
        return len(self._states)

    def __repr__(self) -> str:
        shown, rows = describe_states(self)
        pins = [f"pinned until {format_time(p.expires)}: {format_versions(p.versions)}" for p in self.pins]
        return "\n".join([display.plain_text_table(shown, rows), *pins])

    def to_frame(self) -> pd.DataFrame:
        """The states as a table."""
        columns = [field.name for field in attrs.fields(CubeState)]
        return pd.DataFrame([attrs.asdict(state, recurse=False) for state in self], columns=columns)

    def _repr_html_(self) -> str:
        shown, rows = describe_states(self)
        # times and counts stay on one line, texts may be wrapped
        rows = [
            tuple(
                cell.replace(" ", "\N{NO-BREAK SPACE}") if name in ("time", "files", "rows") else cell
                for name, cell in zip(shown, row, strict=True)
            )
            for row in rows
        ]
        pins = [(pin.id, format_versions(pin.versions), format_time(pin.expires)) for pin in self.pins]
        listed = display.table("Pins", ("pin", "datasets", "expires"), pins)
        return display.card("", display.table("", shown, rows), listed)


def describe_states(states: Sequence[CubeState]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Columns and cells of a table of states; times are valid for ``as_of``."""
    cells = {
        "version": [str(state.version) for state in states],
        "time": [format_time(state.time) for state in states],
        "operation": [_describe_operation(state) for state in states],
        "datasets": [", ".join(state.datasets) for state in states],
        "files": [f"+{state.files_added} -{state.files_removed}" for state in states],
        "rows": [_describe_rows(state) for state in states],
        "message": [state.message or "" for state in states],
        "job": [format_job(state.job) for state in states],
    }
    shown = [name for name, texts in cells.items() if name not in ("message", "job") or any(texts)]
    return shown, list(zip(*(cells[name] for name in shown), strict=True))


def _describe_operation(state: CubeState) -> str:
    inputs = f" from {format_versions(state.inputs)}" if state.inputs else ""
    return f"{state.operation}{inputs}{' (current)' if state.current else ''}"


def _describe_rows(state: CubeState) -> str:
    is_counted = state.rows_added is not None and state.rows_removed is not None
    return f"+{state.rows_added} -{state.rows_removed}" if is_counted else ""


def format_time(time: datetime) -> str:
    """A point in time of a table."""
    return f"{time:%Y-%m-%d %H:%M:%S.%f} UTC"


def format_versions(versions: Mapping[str, int]) -> str:
    """Versions of datasets, such as ``seed 3, sales 1``."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def format_job(job: Mapping[str, Any] | None) -> str:
    """Information about a job, such as ``nightly load, run 17``."""
    return ", ".join(str(text) if key == "name" else f"{key} {text}" for key, text in (job or {}).items())


_Cut: TypeAlias = Mapping[str, history.DatasetState]


class _Histories:
    """The states of all datasets of a cube, also hidden ones, loaded on demand."""

    def __init__(self, cube: Cube, blobs: BlobStore) -> None:
        discover.open_existing(cube.uuid_prefix, blobs)
        self.cube, self.blobs = cube, blobs
        self.states: dict[str, list[history.DatasetState]] = {}
        for name in sorted(discover.discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs)):
            # deleted since it was listed
            with suppress(errors.DatasetNotFoundError):
                self.states[name] = history.list_states(cube.ktk_dataset_uuid(name), blobs)
        if not self.states:
            raise discover.cube_not_found(cube.uuid_prefix, blobs)
        self._loaded: dict[tuple[str, int], DatasetMetadata | None] = {}

    def load(self, name: str, state: history.DatasetState) -> DatasetMetadata | None:
        """Load a state; the current one as of the last committed operation, None if that does not exist."""
        key = name, state.version
        if key not in self._loaded:
            loaded = history.load_state(self.cube.ktk_dataset_uuid(name), self.blobs, state)
            self._loaded[key] = resolve_pending(self.blobs, loaded) if state.current else loaded
        return self._loaded[key]

    def record(self, name: str, state: history.DatasetState) -> CommitRecord | None:
        """The record of the commit that made a state."""
        loaded = self.load(name, state)
        return None if loaded is None else parse_record(loaded.extra)

    def version(self, states: _Cut) -> int:
        """The version of the cube in these states."""
        return sum(_versions(states).values()) + self.deleted_versions(states)

    def deleted_versions(self, states: _Cut) -> int:
        """The versions of deleted datasets that count in that of the cube."""
        seed = self.cube.seed_dataset
        # other software drops the record: what the state before it says
        for state in reversed(self.states.get(seed, ())):
            if seed in states and state.version <= states[seed].version:
                loaded = self.load(seed, state)
                version = None if loaded is None else history.recorded_version(loaded)
                if version is not None:
                    return version.deleted
        return 0

    def select_visible(self, states: _Cut) -> _Cut:
        """The states of the datasets that are not hidden."""
        return {
            name: state
            for name, state in states.items()
            if (own := self.load(name, state)) is not None and not is_hidden(own)
        }

    def cut(self, moment: datetime, names: Iterable[str]) -> _Cut:
        """The states of datasets at a point in time, also of those that a rollback had hidden."""
        # The seed names for each dataset the last operation on several ones that was committed. What that
        # operation made of the dataset belongs to the moment, and later commits of the dataset alone.
        seed = self.cube.seed_dataset
        header: CommitRecord | None = None
        found: dict[str, history.DatasetState | None] = {}
        if seed in self.states:
            found[seed] = state = self._select(seed, moment)
            header = None if state is None else self.record(seed, state)
        for name in names:
            if name != seed:
                found[name] = self._select_participant(name, moment, header)
        return {name: state for name in names if (state := found[name]) is not None}

    def _select(self, name: str, moment: datetime) -> history.DatasetState | None:
        return history.select_state(self.cube.ktk_dataset_uuid(name), self.states[name], moment)

    def _select_participant(
        self, name: str, moment: datetime, header: CommitRecord | None
    ) -> history.DatasetState | None:
        if header is None or not header.participants:
            return self._select(name, moment)
        wanted = header.participants.get(self.cube.ktk_dataset_uuid(name))
        states = self.states[name]
        until = [state for state in states if state.time <= moment]
        # an operation is visible with the commit of the seed, whatever the clocks of the other commits said
        later = [s for s in states if wanted is not None and s.time > moment and self._is_part(name, s)]
        for state in [*reversed(until), *later]:
            own = self._participation(name, state)
            if (own.operation if own is not None and own.lineage == header.lineage else None) == wanted:
                return state
        # other software wrote it
        return self._select(name, moment)

    def _participation(self, name: str, state: history.DatasetState) -> Participation | None:
        """The last operation on several datasets that led to a state."""
        record = self.record(name, state)
        return None if record is None else record.participation

    def _is_part(self, name: str, state: history.DatasetState) -> bool:
        """Whether that operation made the state, and no later commit to the dataset alone."""
        own = self._participation(name, state)
        return own is not None and (own.before is not None or state.version == 1)

    def cuts(self) -> Iterator[tuple[datetime, _Cut]]:
        """The states of the cube, also with hidden datasets, and when they became visible; oldest first."""
        last: _Cut = {}
        for moment in self._moments():
            try:
                cut = self.cut(moment, self.states)
            except errors.StateNotFoundError:
                # older than the states that are kept of some dataset
                continue
            if cut and _versions(cut) != _versions(last):
                yield moment, cut
                last = cut

    def _moments(self) -> list[datetime]:
        seed = self.cube.seed_dataset
        moments = {state.time for state in self.states.get(seed, ())}
        for name, states in self.states.items():
            # part of an operation on several datasets: with the commit of the seed
            moments.update(state.time for state in states if name != seed and not self._is_part(name, state))
        return sorted(moments)


def list_cube_history(cube: Cube | str, store: StoreInput) -> CubeHistory:
    """The readable states of a cube: what was done when to which datasets.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.

    Returns
    -------
    CubeHistory
        The states, oldest first: ``version``, ``time`` (UTC), ``operation``, ``datasets``, the data files and
        rows that came and went, the message and job of :func:`annotate_operations`, the ``library`` version,
        and the ``inputs`` of a computation; ``to_frame()`` gives a table. ``history["seed"]`` gives the
        states of one dataset, ``history.pins`` those that readers have pinned (:func:`pin_cube`). An
        operation on several datasets is one state. States are kept until a cleanup, see
        :func:`keep_cube_history`.

    Raises
    ------
    ValueError
        There is no such cube.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube, ensure_store, query_cube
    >>> cube, store = Cube(["x"], ["p"], "shop"), ensure_store("hmemory://")
    >>> df = pd.DataFrame({"x": [0, 1], "p": 0})
    >>> data = {"seed": df, "extra": df.assign(v=1)}
    >>> _ = build_cube(data, cube, store)
    >>> from kartothek_cube.io.eager_cube import annotate_operations
    >>> with annotate_operations("corrected values"):
    ...     _ = append_to_cube({"seed": df, "extra": df.assign(v=2)}, cube, store)
    >>> first, second = list_cube_history(cube, store)
    >>> second.operation, second.datasets, second.rows_added, second.message
    ('append', ('extra', 'seed'), 4, 'corrected values')
    >>> [len(query_cube(cube, store, as_of=state.version)[0]) for state in (first, second)]
    [2, 2]
    """
    cube = discover.find_cube(cube, store)
    histories = _Histories(cube, open_blobs(store))
    listed = _describe_states(histories)
    pins: dict[str, ReaderPin] = {}
    for name in histories.states:
        for pin in history.list_pins(cube.ktk_dataset_uuid(name), histories.blobs):
            versions = pins[pin.id].versions if pin.id in pins else {}
            expires = datetime.fromtimestamp(pin.expires, UTC)
            pins[pin.id] = ReaderPin(pin.id, {**versions, name: _state_number(pin.state)}, expires)
    listed.pins += sorted(pins.values(), key=lambda pin: (pin.expires, pin.id))
    return listed


def _describe_states(histories: _Histories) -> CubeHistory:
    states: list[CubeState] = []
    last: _Cut = {}
    for moment, cut in histories.cuts():
        states.append(_describe(histories, moment, last, cut))
        last = cut
    if states:
        states[-1] = attrs.evolve(states[-1], current=True)
    return CubeHistory(states, histories.states)


def _versions(cut: _Cut) -> dict[str, int]:
    return {name: state.version for name, state in cut.items()}


def _describe(histories: _Histories, moment: datetime, before: _Cut, after: _Cut) -> CubeState:
    version = histories.version(after)
    before, after = histories.select_visible(before), histories.select_visible(after)
    new, old = _load_changed(histories, after, before), _load_changed(histories, before, after)
    info = next((i for i in map(history.operation_info, new.values()) if i.name), history.OperationInfo())
    added = {key for state in new.values() for key in dataset_files.data_keys(state)}
    removed = {key for state in old.values() for key in dataset_files.data_keys(state)}
    # the header of the seed also changes with operations on other datasets
    contents = [{name: history.fingerprint(state) for name, state in states.items()} for states in (old, new)]
    changed = sorted(old.keys() | new.keys(), key=[*after, *before].index)
    inputs: dict[str, int] = {}
    for state in new.values() if info.name == "compute" else ():
        inputs |= token_versions(state.metadata.get(COMPUTED_FROM))
    return CubeState(
        version=version,
        time=moment,
        operation=info.name,
        datasets=tuple(name for name in changed if contents[0].get(name) != contents[1].get(name)),
        versions=_versions(after),
        files_added=len(added - removed),
        files_removed=len(removed - added),
        rows_added=_count_rows(histories.blobs, added - removed),
        rows_removed=_count_rows(histories.blobs, removed - added),
        message=info.message,
        job=info.job,
        library=info.library,
        inputs=inputs,
    )


def _load_changed(histories: _Histories, states: _Cut, others: _Cut) -> dict[str, DatasetMetadata]:
    """The states of the datasets that have another version elsewhere, or none."""
    return {
        name: loaded
        for name, state in states.items()
        if (name not in others or others[name].version != state.version)
        and (loaded := histories.load(name, state)) is not None
    }


def _count_rows(blobs: BlobStore, keys: Iterable[str]) -> int | None:
    try:
        footers = ordered_map(partial(read_footer, blobs), sorted(keys), tuning.REMOTE_REQUESTS)
        return sum(int(footer.num_rows) for footer, _ in footers)
    except (KeyError, errors.CorruptDatasetError):
        # deleted by other software, or no Parquet file
        return None


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
    blobs = discover.open_existing(cube.uuid_prefix, store)
    existing = discover.existing_dataset_ids(cube.uuid_prefix, blobs)
    if not existing:
        raise discover.cube_not_found(cube.uuid_prefix, blobs)
    names = discover.choose_datasets(cube, ktk_cube_dataset_ids, existing)
    uuids = {name: cube.ktk_dataset_uuid(name) for name in cube.commit_order(names)}
    return {name: keep_dataset_history(uuid, store, states) for name, uuid in uuids.items()}


_REMEDY_DELETED = (
    "A dataset of the cube was deleted since, so that older states have other versions than before: pass the "
    "time of the state, see list_cube_history."
)


def _resolve_as_of(histories: _Histories, as_of: CubeAsOf, names: Iterable[str]) -> _Cut:
    """The states of datasets that existed at a moment, or that a mapping names."""
    cube = histories.cube
    if isinstance(as_of, Mapping):
        errors.check_names("as_of: ", "dataset", as_of, list(names))
        states = {}
        for name, moment in as_of.items():
            uuid = cube.ktk_dataset_uuid(name)
            state = history.select_state(uuid, histories.states[name], history.check_as_of(moment))
            if state is None:
                raise errors.StateNotFoundError(
                    uuid, str(moment), history.name_states(histories.states[name])
                )
            states[name] = state
        return states
    moment, seed = history.check_as_of(as_of), cube.seed_dataset
    cut: _Cut = {}
    remedy = ""
    if isinstance(moment, datetime):
        cut = histories.select_visible(histories.cut(moment, {seed, *names} & histories.states.keys()))
    else:
        newest: _Cut = {}
        for _, newest in histories.cuts():
            if histories.version(newest) == moment:
                cut = newest
        if histories.deleted_versions(cut) != histories.deleted_versions(newest):
            # the number may be that of another state, with a dataset that is no more
            cut, remedy = {}, _REMEDY_DELETED
        cut = histories.select_visible(cut)
    if not cut or (seed in histories.states and seed not in cut):
        known = history.name_states(_describe_states(histories))
        raise errors.StateNotFoundError(cube.uuid_prefix, str(as_of), known, kind="Cube", remedy=remedy)
    return {name: state for name, state in cut.items() if name in names}


def datasets_as_of(
    cube: Cube, store: StoreInput | BlobStore, as_of: CubeAsOf, names: str | Iterable[str] | None = None
) -> dict[str, DatasetMetadata]:
    """The datasets of a cube as of one of its states."""
    blobs = open_blobs(store)
    datasets = None
    if isinstance(as_of, StagedWrite):
        datasets = as_of.load_datasets(cube, blobs)
    elif is_token(as_of):
        datasets = load_token(cube, blobs, as_of)
    if datasets is not None:
        return {name: datasets[name] for name in sorted(discover.choose_datasets(cube, names, datasets))}
    histories = _Histories(cube, blobs)
    chosen = sorted(discover.choose_datasets(cube, names, histories.states))
    states = _resolve_as_of(histories, as_of, chosen)
    datasets = {}
    if isinstance(as_of, Mapping):
        datasets = discover.discover_datasets_unchecked(cube.uuid_prefix, blobs, set(chosen) - set(states))
    for name, state in states.items():
        loaded = histories.load(name, state)
        if loaded is not None:
            datasets[name] = loaded
    if names is not None:
        for name in sorted(set(chosen) - set(datasets)):
            known = history.name_states(histories.states[name])
            raise errors.StateNotFoundError(cube.ktk_dataset_uuid(name), str(as_of), known)
    check_cube(datasets, cube)
    return {name: datasets[name] for name in chosen if name in datasets}


def make_token(datasets: Mapping[str, DatasetMetadata], blobs: BlobStore) -> str:
    """Token of a state of a cube: the names of the snapshots that its datasets have, or will have."""
    names = []
    for name, dataset in sorted(datasets.items()):
        # that of a state of other software depends on the time of its header
        has_version = history.recorded_version(dataset) is not None
        key = next((k for k in header_keys(dataset.uuid) if has_version or blobs.exists(k)), "")
        names.append(f"{name}@{history.snapshot_name(dataset, blobs, key).removesuffix('.state')}")
    return ",".join(names)


def is_token(as_of: object) -> TypeGuard[str]:
    """Whether a value is the token of a state of a cube."""
    return isinstance(as_of, str) and "@" in as_of


def _state_number(name: str) -> int:
    """The version in the name of a snapshot."""
    return int(name.partition("-")[0])


def token_versions(token: object) -> dict[str, int]:
    """The versions of the datasets in a token; none for what is no token."""
    entries = token.split(",") if is_token(token) else []
    if not all(map(_TOKEN_ENTRY.fullmatch, entries)):
        return {}
    return {name: _state_number(state) for name, _, state in (entry.partition("@") for entry in entries)}


def load_token(cube: Cube, blobs: BlobStore, token: str) -> dict[str, DatasetMetadata]:
    """The datasets in the state of a token: one request for each that has changed, besides the headers."""
    current = discover.load_snapshot(cube, blobs, None).datasets
    names_now = {entry.partition("@")[0]: entry for entry in make_token(current, blobs).split(",")}
    datasets = {}
    for entry in token.split(","):
        if not _TOKEN_ENTRY.fullmatch(entry):
            raise ValueError(f"{token!r} is no token of a state of a cube: {entry!r} is none of a dataset")
        name, _, state = entry.partition("@")
        if names_now.get(name) == entry:
            datasets[name] = current[name]
            continue
        uuid = cube.ktk_dataset_uuid(name)
        try:
            datasets[name] = _load_named(uuid, blobs, state)
        except KeyError:
            try:
                known = history.name_states(history.list_states(uuid, blobs))
            except errors.DatasetNotFoundError:
                known = ""
            raise errors.StateNotFoundError(
                uuid, f"version {_state_number(state)} of token {entry}", known
            ) from None
    return datasets


def _load_named(uuid: str, blobs: BlobStore, state: str) -> DatasetMetadata:
    """Load a replaced state by its name in a token; raises KeyError if it is neither archived nor pinned."""
    with suppress(KeyError):
        return history.load_snapshot(uuid, blobs, f"{history.history_folder(uuid)}{state}.state")
    for pin in history.list_pins(uuid, blobs, state):
        with suppress(KeyError):
            return history.load_snapshot(uuid, blobs, pin.key)
    raise KeyError(state)


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
        Version of the cube, see :func:`list_cube_history`, or point in time: the datasets return to the state
        of the cube then. Or a dict of dataset id to version or time; other datasets stay as they are.
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
    finish_operations(cube, blobs)
    histories = _Histories(cube, blobs)
    existing = discover.discover_datasets_unchecked(cube.uuid_prefix, blobs)
    states, absent = _select_states(histories, as_of, ktk_cube_dataset_ids, existing)
    # also of datasets that are in their state already: a commit to them in the meantime is a conflict
    plans = {name: plan_rollback(cube.ktk_dataset_uuid(name), blobs, states[name].version) for name in states}
    plans |= {name: plan_hiding(cube.ktk_dataset_uuid(name), blobs) for name in absent}
    remaining = {name: dataset for name, dataset in existing.items() if name not in absent}
    check_cube({**remaining, **{n: plan.state for n, plan in plans.items() if not plan.hides}}, cube)
    steps = {
        cube.ktk_dataset_uuid(name): partial(finish_rollback, blobs, plans[name])
        for name in cube.commit_order(plans)
    }
    result = commit_cube(cube, blobs, steps, info)
    return {name: result[cube.ktk_dataset_uuid(name)] for name in sorted(states)}


def check_rollback(cube: Cube, store: StoreInput, as_of: CubeAsOf, names: Iterable[str] | None) -> None:
    """Raise the errors of :func:`rollback_cube` about the state, without changing anything."""
    histories = _Histories(cube, open_blobs(store))
    existing = discover.discover_datasets_unchecked(cube.uuid_prefix, histories.blobs)
    _select_states(histories, as_of, names, existing)


def _select_states(
    histories: _Histories, as_of: CubeAsOf, requested: str | Iterable[str] | None, existing: Collection[str]
) -> tuple[_Cut, list[str]]:
    """The states that a rollback restores, and the datasets that it hides."""
    cube = histories.cube
    names = cube.commit_order(discover.choose_datasets(cube, requested, histories.states))
    states = _resolve_as_of(histories, as_of, names)
    absent = [] if isinstance(as_of, Mapping) else [n for n in names if n in existing and n not in states]
    if not absent and all(state.current for state in states.values()):
        raise _already_current(f"Cube {cube.uuid_prefix!r}", as_of, _describe_states(histories))
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
    states = history.list_states(dataset_uuid, blobs)
    state = history.select_state(dataset_uuid, states, as_of)
    if state is not None and state.current:
        raise _already_current(f"Dataset {dataset_uuid!r}", as_of, states)
    return publish_committed(blobs, finish_rollback(blobs, plan_rollback(dataset_uuid, blobs, as_of))[0])


def _already_current(
    name: str, as_of: CubeAsOf, states: Sequence[CubeState | history.DatasetState]
) -> ValueError:
    """The error for a rollback that would change nothing."""
    return ValueError(
        f"{name} already has the state as of {as_of}, so that there is nothing to undo. It keeps "
        f"{errors.format_count(len(states), 'state')}: {history.name_states(states)}"
    )


# -- pins ----------------------------------------------------------------------------------------------------

# The order of requests: put the pins, then read the headers again. If they still have the pinned states, a
# garbage collection that deletes files of these adds its tombstones later, and lists the pins after that.


class CubePin:
    """A state of a cube that garbage collections keep; made by :func:`pin_cube`.

    Attributes
    ----------
    token : str
        The state, for ``as_of``.
    expires : datetime.datetime
        When the pin stops to count unless it is renewed, UTC, by the clock of the store.
    """

    def __init__(self, cube: Cube, blobs: BlobStore, lease: timedelta) -> None:
        self._cube, self._blobs, self._lease = cube, blobs, lease
        self._id, self._ended = gen_uuid(), Event()
        self._keys: list[str] = []
        for _ in header_store.attempts():
            self._datasets = discover.load_snapshot(cube, blobs, None).datasets
            self.token = make_token(self._datasets, blobs)
            self.renew()
            if make_token(discover.load_snapshot(cube, blobs, None).datasets, blobs) == self.token:
                break
            self.release()
        else:
            raise errors.ConcurrentWriteError(cube.ktk_dataset_uuid(cube.seed_dataset))

    def renew(self) -> None:
        """Extend the lease, from now on. In a ``with`` block this is done in the background."""
        prefix = self._cube.ktk_dataset_uuid(self._cube.seed_dataset)
        now = store_time(self._blobs, f"{prefix}.{gen_uuid()}.tmp")
        expires = int(now + self._lease.total_seconds())
        self.expires = datetime.fromtimestamp(expires, UTC)
        states = dict(entry.split("@") for entry in self.token.split(","))
        keys = [
            history.put_pin(self._blobs, ds, states[n], expires, self._id) for n, ds in self._datasets.items()
        ]
        self._blobs.delete([key for key in self._keys if key not in keys])
        self._keys = keys

    def release(self) -> None:
        """End the pin."""
        self._ended.set()
        self._blobs.delete(self._keys)
        self._keys = []

    def _renew_until_the_end(self) -> None:
        while not self._ended.wait(self._lease.total_seconds() / 3):
            # the store may be available again before the lease ends
            with suppress(Exception):
                self.renew()

    def __enter__(self) -> Self:
        if not self._keys:
            self.renew()
        self._ended.clear()
        self._thread = Thread(target=self._renew_until_the_end, name="renew-pin", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.release()

    def __repr__(self) -> str:
        return f"<pin of cube {self._cube.uuid_prefix} until {self.expires:%Y-%m-%d %H:%M:%S} UTC>"


def pin_cube(cube: Cube | str, store: StoreInput, *, lease: timedelta = timedelta(hours=1)) -> CubePin:
    """Keep the current state of a cube from being deleted while it is read, by cleanups of any process.

    In a ``with`` block, the pin is renewed in the background, and ends with the block. Of a process that dies
    it counts until the lease ends. A pin costs a file per dataset. A deletion of the cube ignores it.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    lease
        How long the pin counts, by the clock of the store, unless it is renewed; at least ten seconds.

    Returns
    -------
    CubePin
        Its ``token`` is the state, for the ``as_of`` of queries; methods ``renew()`` and ``release()``.

    Raises
    ------
    ValueError
        There is no such cube, or the lease is too short.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, cleanup_cube, query_cube_df
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> with pin_cube(cube, store) as pin:
    ...     _ = build_cube(cities.assign(CITY="Ulm"), cube, store, overwrite=True)
    ...     cleanup_cube(cube, store)
    ...     query_cube_df(cube, store, as_of=pin.token)["CITY"].tolist()
    ['Bonn', 'Rom']
    """
    cube = discover.find_cube(cube, store)
    if not isinstance(lease, timedelta):
        raise TypeError(f"lease is a datetime.timedelta, such as timedelta(hours=1), not {lease!r}")
    if lease < timedelta(seconds=10):
        raise ValueError(f"lease is at least ten seconds, as it has to be renewed in time, not {lease}")
    return CubePin(cube, open_blobs(store), lease)
