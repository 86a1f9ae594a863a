"""The history of a cube: its states, their listing, tokens, and time travel."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeGuard, overload

import attrs
import pandas as pd

from kartothek_cube import display
from kartothek_cube.core import dataset_files, errors, factory, history, naming, partition, tuning
from kartothek_cube.core.commit import header_store
from kartothek_cube.core.commit.operation import is_hidden, resolve_pending
from kartothek_cube.core.cube import consistency, discover
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.header import CommitRecord, Participation, parse_record
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs
from kartothek_cube.io_components import runtime, scan

_TOKEN_ENTRY = re.compile(r"[A-Za-z0-9+\-_]+@\d{10}-\d{8}T\d{12}Z-[0-9a-f]{16}")
#: metadata key: token of the state of the cube from which a dataset was computed
COMPUTED_FROM = "kartothek_cube_computed_from"

#: a version or point in time of a cube, or of some of its datasets; or a staged write, on top of the cube
CubeAsOf: TypeAlias = factory.DatasetAsOf | Mapping[str, history.AsOf]


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

    def __str__(self) -> str:
        return f"pinned until {format_time(self.expires)}: {format_versions(self.versions)}"


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
        return "\n".join([display.plain_text_table(shown, rows), *map(str, self.pins)])

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
    counts = [(state.rows_added, state.rows_removed) for state in states]
    cells = {
        "version": [str(state.version) for state in states],
        "time": [format_time(state.time) for state in states],
        "operation": [_describe_operation(state) for state in states],
        "datasets": [", ".join(state.datasets) for state in states],
        "files": [f"+{state.files_added} -{state.files_removed}" for state in states],
        "rows": ["" if None in rows else "+{} -{}".format(*rows) for rows in counts],
        "message": [state.message or "" for state in states],
        "job": [format_job(state.job) for state in states],
    }
    shown = [name for name, texts in cells.items() if name not in ("message", "job") or any(texts)]
    return shown, list(zip(*(cells[name] for name in shown), strict=True))


def _describe_operation(state: CubeState) -> str:
    inputs = f" from {format_versions(state.inputs)}" if state.inputs else ""
    return f"{state.operation}{inputs}{' (current)' if state.current else ''}"


def format_time(time: datetime) -> str:
    """A point in time of a table."""
    return f"{time:%Y-%m-%d %H:%M:%S.%f} UTC"


def format_versions(versions: Mapping[str, int]) -> str:
    """Versions of datasets, such as ``seed 3, sales 1``."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def format_job(job: Mapping[str, Any] | None) -> str:
    """Information about a job, such as ``nightly load, run 17``."""
    return ", ".join(str(text) if key == "name" else f"{key} {text}" for key, text in (job or {}).items())


#: a state of each dataset at one moment, by dataset id
Cut: TypeAlias = Mapping[str, history.DatasetState]


class DatasetHistories:
    """The states of all datasets of a cube, also hidden ones, loaded on demand."""

    def __init__(self, cube: Cube, blobs: BlobStore) -> None:
        self.cube, self.blobs = cube, blobs
        names = sorted(discover.discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs))
        self._threads = 1 if blobs.is_local else tuning.REMOTE_REQUESTS
        listed = zip(names, runtime.ordered_map(self._list_states, names, self._threads), strict=True)
        self.states = {name: states for name, states in listed if states}
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

    def _list_states(self, name: str) -> list[history.DatasetState]:
        try:
            return history.list_states(self.cube.ktk_dataset_uuid(name), self.blobs)
        except errors.DatasetNotFoundError:
            # deleted since it was listed
            return []

    def preload(self, names: Iterable[str], moment: datetime | None = None) -> None:
        """Load all states of datasets, or those of a moment, on remote stores with many requests at once."""
        pairs = [(name, state) for name in names for state in self.states[name]]
        if moment is not None:
            pairs = list({name: state for name, state in pairs if state.time <= moment}.items())

        def load(item: tuple[str, history.DatasetState]) -> None:
            # one that is damaged, or has expired since it was listed, is an error where it is needed
            with suppress(errors.StateNotFoundError, errors.CorruptDatasetError):
                self.load(*item)

        missing = [(name, state) for name, state in pairs if (name, state.version) not in self._loaded]
        for _ in runtime.ordered_map(load, missing, self._threads):
            pass

    def record(self, name: str, state: history.DatasetState) -> CommitRecord | None:
        """The record of the commit that made a state."""
        loaded = self.load(name, state)
        return None if loaded is None else parse_record(loaded.extra)

    def version(self, states: Cut) -> int:
        """The version of the cube in these states."""
        return sum(_versions(states).values()) + self.deleted_versions(states)

    def deleted_versions(self, states: Cut) -> int:
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

    def select_visible(self, states: Cut) -> Cut:
        """The states of the datasets that are not hidden."""
        loaded = {name: self.load(name, state) for name, state in states.items()}
        visible = {name for name, own in loaded.items() if own is not None and not is_hidden(own)}
        return {name: state for name, state in states.items() if name in visible}

    def cut(self, moment: datetime, names: Iterable[str]) -> Cut:
        """The states of datasets at a point in time, also of those that a rollback had hidden."""
        # The seed names for each dataset the last operation on several ones that was committed. What that
        # operation made of the dataset belongs to the moment, and later commits of the dataset alone.
        seed = self.cube.seed_dataset
        if self._threads > 1:
            self.preload({seed, *names} & self.states.keys(), moment)
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
        if header is None:
            return self._select(name, moment)
        wanted = header.participants.get(self.cube.ktk_dataset_uuid(name))
        states = self.states[name]
        until = [state for state in states if state.time <= moment]
        # an operation is visible with the commit of the seed, whatever the clocks of the other commits said
        later = [s for s in states if wanted is not None and s.time > moment and self._is_part(name, s)]
        for state in [*reversed(until), *later]:
            if self._is_pending(name, state):
                continue
            own = self._participation(name, state)
            if (own.operation if own is not None and own.lineage == header.lineage else None) == wanted:
                return state
        selected = self._select(name, moment)
        if selected is None or self._is_pending(name, selected):
            return None
        own = self._participation(name, selected)
        if own is None or own.lineage != header.lineage:
            # other software wrote it
            return selected
        # made by an operation that was committed later
        if states[0].version == 1:
            return None
        uuid, known = self.cube.ktk_dataset_uuid(name), history.name_states(states)
        remedy = f"State {selected.version} became visible later, by the commit of an operation."
        raise errors.StateNotFoundError(uuid, moment.isoformat(), known, remedy=remedy)

    def _participation(self, name: str, state: history.DatasetState) -> Participation | None:
        """The last operation on several datasets that led to a state."""
        record = self.record(name, state)
        return None if record is None else record.participation

    def _is_pending(self, name: str, state: history.DatasetState) -> bool:
        """Whether an operation that has not committed made the state: what is loaded is the one before."""
        if not state.current:
            return False
        loaded = self.load(name, state)
        version = history.version_number(loaded)
        return loaded is None or (version is not None and version < state.version)

    def _is_part(self, name: str, state: history.DatasetState) -> bool:
        """Whether that operation made the state, and no later commit to the dataset alone."""
        own = self._participation(name, state)
        return own is not None and (own.before is not None or state.version == 1)

    def cuts(self) -> Iterator[tuple[datetime, Cut]]:
        """The states of the cube, also with hidden datasets, and when they became visible; oldest first."""
        seed = self.cube.seed_dataset
        moments = {state.time for state in self.states.get(seed, ())}
        for name, states in self.states.items():
            # part of an operation on several datasets: with the commit of the seed
            moments.update(state.time for state in states if name != seed and not self._is_part(name, state))
        last: Cut = {}
        for moment in sorted(moments):
            try:
                cut = self.cut(moment, self.states)
            except errors.StateNotFoundError:
                # older than the states that are kept of some dataset
                continue
            if cut and _versions(cut) != _versions(last):
                yield moment, cut
                last = cut

    def find(self, version: int) -> Cut:
        """The newest states with a version of the cube, which increases with time; none without."""
        # bisection: of 600 snapshots of each dataset, ten are read
        times = sorted({state.time for states in self.states.values() for state in states})

        def version_at(moment: datetime) -> int:
            try:
                return self.version(self.cut(moment, self.states))
            except errors.StateNotFoundError:
                # older than the states that are kept of some dataset
                return -1

        position = bisect_right(times, version, key=version_at) - 1
        if version >= 0 and position >= 0 and version_at(times[position]) == version:
            return self.cut(times[position], self.states)
        # a dataset of which fewer states are kept may lack those of moments in between
        return next((cut for _, cut in self.cuts() if self.version(cut) == version), {})


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
    cube, blobs = discover.find_cube(cube, store), open_blobs(store)
    for _ in header_store.attempts():
        histories = DatasetHistories(cube, blobs)
        # again, if a cleanup has deleted states or a hidden dataset since they were listed
        with suppress(errors.StateNotFoundError, errors.DatasetNotFoundError):
            listed = collect_history(histories)
            break
    else:
        raise errors.ConcurrentWriteError(cube.ktk_dataset_uuid(cube.seed_dataset))
    pins: dict[str, ReaderPin] = {}
    for name in histories.states:
        for pin in history.list_pins(cube.ktk_dataset_uuid(name), histories.blobs):
            versions = pins[pin.id].versions if pin.id in pins else {}
            expires = datetime.fromtimestamp(pin.expires, UTC)
            pins[pin.id] = ReaderPin(pin.id, {**versions, name: _state_number(pin.state)}, expires)
    listed.pins += sorted(pins.values(), key=lambda pin: (pin.expires, pin.id))
    return listed


def collect_history(histories: DatasetHistories) -> CubeHistory:
    """The states of a cube, without pins."""
    histories.preload(histories.states)
    states: list[CubeState] = []
    last: Cut = {}
    for moment, cut in histories.cuts():
        states.append(_describe(histories, moment, last, cut))
        last = cut
    if states:
        states[-1] = attrs.evolve(states[-1], current=True)
    return CubeHistory(states, histories.states)


def _versions(cut: Cut) -> dict[str, int]:
    return {name: state.version for name, state in cut.items()}


def _describe(histories: DatasetHistories, moment: datetime, before: Cut, after: Cut) -> CubeState:
    version = histories.version(after)
    before, after = histories.select_visible(before), histories.select_visible(after)
    new, old = _load_changed(histories, after, before), _load_changed(histories, before, after)
    # by the newest commit: before the oldest state that is kept, there were several operations
    newest = sorted(new, key=lambda name: after[name].time, reverse=True)
    infos = (history.operation_info(new[name]) for name in newest)
    info = next((info for info in infos if info.name), history.OperationInfo())
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


def _load_changed(histories: DatasetHistories, states: Cut, others: Cut) -> dict[str, DatasetMetadata]:
    """The states of the datasets that have another version elsewhere, or none."""
    return {
        name: loaded
        for name, state in states.items()
        if (name not in others or others[name].version != state.version)
        and (loaded := histories.load(name, state)) is not None
    }


def _count_rows(blobs: BlobStore, keys: Iterable[str]) -> int | None:
    # it is part of the names of files of cubes; each other file takes a request
    named = {key: partition.rows_of_name(key) for key in keys}
    unnamed = sorted(key for key, rows in named.items() if rows is None)
    try:
        return sum(rows or 0 for rows in named.values()) + scan.count_rows(blobs, unnamed)
    except (KeyError, errors.CorruptDatasetError):
        # deleted by other software, or no Parquet file
        return None


def resolve_as_of(histories: DatasetHistories, as_of: CubeAsOf, names: Iterable[str]) -> Cut:
    """The states of datasets that existed at a moment, or that a mapping names."""
    cube = histories.cube
    if isinstance(as_of, Mapping):
        errors.check_names("States by dataset: ", "dataset", as_of, list(names))
        states = {}
        for name, moment in as_of.items():
            uuid = cube.ktk_dataset_uuid(name)
            state = history.select_state(uuid, histories.states[name], history.check_as_of(moment))
            if state is None or not histories.select_visible({name: state}):
                known = history.name_states(histories.states[name])
                remedy = "" if state is None else history.HIDDEN
                raise errors.StateNotFoundError(uuid, str(moment), known, remedy=remedy)
            states[name] = state
        return states
    if is_token(as_of):
        return {name: state for name, state in _states_of_token(histories, as_of).items() if name in names}
    moment, seed = history.check_as_of(as_of), cube.seed_dataset
    cut: Cut = {}
    remedy = ""
    if isinstance(moment, datetime):
        cut = histories.select_visible(histories.cut(moment, {seed, *names} & histories.states.keys()))
    else:
        cut = histories.find(moment)
        newest = {name: states[-1] for name, states in histories.states.items()}
        if histories.deleted_versions(cut) != histories.deleted_versions(newest):
            # the number may be that of another state, with a dataset that is no more
            cut = {}
            remedy = (
                "A dataset of the cube was deleted since, so that older states have other versions than "
                "before: pass the time of the state, which the history of the cube lists."
            )
        cut = histories.select_visible(cut)
    if not cut or (seed in histories.states and seed not in cut):
        known = history.name_states(collect_history(histories))
        raise errors.StateNotFoundError(cube.uuid_prefix, str(as_of), known, kind="Cube", remedy=remedy)
    return {name: state for name, state in cut.items() if name in names}


def _states_of_token(histories: DatasetHistories, token: str) -> Cut:
    """The states that a token names, if all are kept."""
    cut: dict[str, history.DatasetState] = {}
    for name, snapshot in parse_token(token).items():
        known = histories.states.get(name, [])
        # a dataset that was deleted and built again has the same versions, and other snapshots
        for state in [state for state in known if state.version == _state_number(snapshot)]:
            loaded = histories.load(name, state) if state.current else None
            current = "" if loaded is None else make_token({name: loaded}, histories.blobs)
            if current == f"{name}@{snapshot}" or state.key.endswith(f"/{snapshot}.state"):
                cut[name] = state
        if name not in cut:
            uuid = histories.cube.ktk_dataset_uuid(name)
            remedy = _ONLY_PINNED if history.list_pins(uuid, histories.blobs, snapshot) else ""
            raise _missing_token_state(uuid, name, snapshot, known, remedy)
    return cut


#: remedy for a rollback to a state that the history does not have
_ONLY_PINNED = "Only a pin keeps it, for readers: query the cube as of the token, and write the rows again."


def _missing_token_state(
    uuid: str, name: str, snapshot: str, known: Sequence[history.DatasetState], remedy: str = ""
) -> errors.StateNotFoundError:
    text = f"version {_state_number(snapshot)} of token {name}@{snapshot}"
    remedy = remedy if known else "The dataset does not exist any more."
    return errors.StateNotFoundError(uuid, text, history.name_states(known), remedy=remedy)


def datasets_as_of(
    cube: Cube, store: StoreInput | BlobStore, as_of: CubeAsOf, names: str | Iterable[str] | None = None
) -> dict[str, DatasetMetadata]:
    """The datasets of a cube as of one of its states."""
    blobs = open_blobs(store)
    datasets: Mapping[str, DatasetMetadata] | None = None
    if isinstance(as_of, factory.StagedState):
        datasets = as_of.load_datasets(cube, blobs)
    elif is_token(as_of):
        datasets = load_token(cube, blobs, as_of)
    if datasets is not None:
        return {name: datasets[name] for name in sorted(discover.choose_datasets(cube, names, datasets))}
    histories = DatasetHistories(cube, blobs)
    chosen = sorted(discover.choose_datasets(cube, names, histories.states))
    states = resolve_as_of(histories, as_of, chosen)
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
    consistency.check_cube(datasets, cube)
    return {name: datasets[name] for name in chosen if name in datasets}


def make_token(datasets: Mapping[str, DatasetMetadata], blobs: BlobStore) -> str:
    """Token of a state of a cube: the names of the snapshots that its datasets have, or will have."""
    names = []
    for name, dataset in sorted(datasets.items()):
        # that of a state of other software depends on the time of its header
        has_version = history.recorded_version(dataset) is not None
        key = next((k for k in naming.header_keys(dataset.uuid) if has_version or blobs.exists(k)), "")
        names.append(f"{name}@{history.snapshot_name(dataset, blobs, key).removesuffix('.state')}")
    return ",".join(names)


def is_token(as_of: object) -> TypeGuard[str]:
    """Whether a value is the token of a state of a cube."""
    return isinstance(as_of, str) and "@" in as_of


def _state_number(name: str) -> int:
    """The version in the name of a snapshot."""
    return int(name.partition("-")[0])


def parse_token(token: str) -> dict[str, str]:
    """The names of the states in a token, by dataset id; raises ValueError for what is no token."""
    for entry in token.split(","):
        if not _TOKEN_ENTRY.fullmatch(entry):
            raise ValueError(f"{token!r} is no token of a state of a cube: {entry!r} is none of a dataset")
    return dict(entry.split("@") for entry in token.split(","))


def token_versions(token: object) -> dict[str, int]:
    """The versions of the datasets in a token; none for what is no token."""
    with suppress(ValueError):
        return {n: _state_number(state) for n, state in parse_token(token).items()} if is_token(token) else {}
    return {}


def rename_in_token(token: object, names: Mapping[str, str]) -> object:
    """A token with other names of datasets; what is no token stays as it is."""
    with suppress(ValueError):
        if is_token(token):
            states = {names.get(name, name): state for name, state in parse_token(token).items()}
            return ",".join(f"{name}@{state}" for name, state in sorted(states.items()))
    return token


def load_token(cube: Cube, blobs: BlobStore, token: str) -> dict[str, DatasetMetadata]:
    """The datasets in the state of a token: one request for each that has changed, besides the headers."""
    states = parse_token(token)
    current = discover.load_snapshot(cube, blobs, None).datasets
    unchanged = set(make_token(current, blobs).split(","))
    datasets = {}
    for name, state in states.items():
        entry = f"{name}@{state}"
        if entry in unchanged:
            datasets[name] = current[name]
            continue
        uuid = cube.ktk_dataset_uuid(name)
        try:
            datasets[name] = _load_named(uuid, blobs, state)
        except KeyError:
            known: Sequence[history.DatasetState] = []
            with suppress(errors.DatasetNotFoundError):
                known = history.list_states(uuid, blobs)
            raise _missing_token_state(uuid, name, state, known) from None
    return datasets


def _load_named(uuid: str, blobs: BlobStore, state: str) -> DatasetMetadata:
    """Load a replaced state by its name in a token; raises KeyError if it is neither archived nor pinned."""
    with suppress(KeyError):
        return history.load_snapshot(uuid, blobs, f"{history.history_folder(uuid)}{state}.state")
    read = set[str]()
    # one that is gone by now was released, or renewed under another name
    while pins := [pin for pin in history.list_pins(uuid, blobs, state) if pin.key not in read]:
        for pin in pins:
            read.add(pin.key)
            with suppress(KeyError):
                return history.load_snapshot(uuid, blobs, pin.key)
    raise KeyError(state)
