"""Discovery of cubes and datasets: one listing, one header per dataset, all of one point in time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast
from weakref import ref

from kartothek_cube.core import arguments, caching, errors, naming, transforms
from kartothek_cube.core.commit.operation import Status, is_hidden, load_before, lost_before, status_of
from kartothek_cube.core.cube import consistency, constants
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBase, DatasetsById
from kartothek_cube.core.header import CommitRecord, Participation, parse_record, participation_of
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs

__all__ = (
    "discover_cube",
    "discover_datasets",
    "discover_datasets_unchecked",
    "discover_ktk_cube_dataset_ids",
)

_LOGGER = logging.getLogger(__name__)

T = TypeVar("T")
#: :func:`map`, or a function that makes several calls at once
MapUuids: TypeAlias = Callable[
    [Callable[[str], DatasetMetadata | None], Sequence[str]], Iterable[DatasetMetadata | None]
]
DatasetsInput: TypeAlias = str | Iterable[str] | Mapping[str, DatasetMetadata] | None
"""Datasets of a cube: ids, or loaded datasets by id; None for all."""


def discover_ktk_cube_dataset_ids(uuid_prefix: str, store: StoreInput | BlobStore) -> set[str]:
    """Ids of all datasets of a cube, found by one listing of the top level of the store.

    Parameters
    ----------
    uuid_prefix
        Prefix of the cube.
    store
        Store, factory or URL.

    Returns
    -------
    set of str
        The parts of the dataset uuids behind ``++``; empty if there is no such cube.

    Raises
    ------
    TypeError
        ``store`` is no store.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> _ = build_cube(pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]}), cube, store)
    >>> discover_ktk_cube_dataset_ids("geodata", store)
    {'seed'}
    """
    start = arguments.parse_name("uuid_prefix", uuid_prefix) + constants.KTK_CUBE_UUID_SEPARATOR
    headers = filter(naming.is_header_key, open_blobs(store).list_dir(start))
    return {name.removeprefix(start).partition(naming.METADATA_BASE_SUFFIX)[0] for name in headers} - {""}


def list_cubes(store: StoreInput | BlobStore) -> dict[str, list[str]]:
    """Ids of the datasets of each cube of a store, sorted, by one listing of the top level."""
    cubes: dict[str, list[str]] = {}
    for name in sorted(filter(naming.is_header_key, open_blobs(store).list_dir(""))):
        uuid = name.partition(naming.METADATA_BASE_SUFFIX)[0]
        prefix, _, dataset_id = uuid.partition(constants.KTK_CUBE_UUID_SEPARATOR)
        if prefix and dataset_id and dataset_id not in cubes.setdefault(prefix, []):
            cubes[prefix].append(dataset_id)
    return cubes


@arguments.alias_parameter("datasets", "filter_ktk_cube_dataset_ids")
def discover_datasets_unchecked(
    uuid_prefix: str,
    store: StoreInput | BlobStore,
    filter_ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    load_schema: bool = True,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """Load the datasets of a cube in one state, without checking that they form one.

    Parameters
    ----------
    uuid_prefix
        Prefix of the cube.
    store
        Store, factory or URL.
    datasets, filter_ktk_cube_dataset_ids
        Only these ids; those that do not exist are absent in the result.
    load_schema
        Whether schemas are read.

    Returns
    -------
    dict
        Dataset id to metadata, sorted by id. An operation on several datasets is seen as a
        whole, or not at all. A dataset without a header is left out, and one without a schema,
        with a warning in the log; headers of this library contain the schema.

    Raises
    ------
    CorruptDatasetError
        A header is damaged.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> _ = build_cube(pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]}), cube, store)
    >>> list(discover_datasets_unchecked("geodata", store))
    ['seed']
    """
    uuid_prefix = arguments.parse_name("uuid_prefix", uuid_prefix)
    requested = arguments.parse_name_set_optional("datasets", filter_ktk_cube_dataset_ids)
    blobs = open_blobs(store)
    listed = _ListedDatasets(
        uuid_prefix, blobs, requested, lambda uuid: DatasetMetadata.load_from_store(uuid, blobs, load_schema)
    )
    return listed.read_consistently()


def load_states(uuid_prefix: str, blobs: BlobStore) -> dict[str, DatasetMetadata]:
    """The same with schemas: objects that are shared, and not to be changed."""
    load = partial(DatasetMetadata.load_shared, blobs=blobs)
    return _ListedDatasets(uuid_prefix, blobs, None, load).read_consistently()


#: rounds of reading outdated headers again; each needs another commit between two requests
_ROUNDS = 100


class _ListedDatasets:
    """The newest state of each listed dataset of a cube, and the states of one moment."""

    # Headers are read again until they are those of one moment; without a concurrent write, none is. For each
    # participant, the coordinator names the last operation that is committed. A header that is newer or older
    # than the coordinator names another operation: the coordinator is read again if it was read before the
    # participant, else the participant is.

    def __init__(
        self,
        uuid_prefix: str,
        blobs: BlobStore,
        requested: frozenset[str] | None,
        load: Callable[[str], DatasetMetadata],
        map_uuids: MapUuids = map,
    ) -> None:
        self.blobs, self.requested, self._load = blobs, requested, load
        self.start = start = uuid_prefix + constants.KTK_CUBE_UUID_SEPARATOR
        names = sorted(discover_ktk_cube_dataset_ids(uuid_prefix, blobs))
        uuids = [start + name for name in names if requested is None or name in requested]
        states = zip(uuids, map_uuids(self._read, uuids), strict=True)
        self.initial = {uuid: state for uuid, state in states if state is not None}
        self.states: dict[str, DatasetMetadata | None] = dict(self.initial)
        #: round in which each header was read
        self.read: dict[str, int] = dict.fromkeys(self.initial, 0)
        #: number of the current round
        self.round = 0
        #: how many headers have been read again
        self.read_again = 0

    def read_consistently(self) -> dict[str, DatasetMetadata]:
        """States of one moment by dataset id, sorted."""
        resolved = sorted(self._resolve_all().items())
        return {
            uuid.removeprefix(self.start): state
            for uuid, state in resolved
            if state is not None and self._is_requested(uuid) and not is_hidden(state)
        }

    def _is_requested(self, uuid: str) -> bool:
        name = uuid.removeprefix(self.start)
        return uuid.startswith(self.start) and (self.requested is None or name in self.requested)

    def _read(self, uuid: str) -> DatasetMetadata | None:
        try:
            return self._load(uuid)
        except errors.DatasetNotFoundError:
            # deleted since it was listed
            return None
        except KeyError as error:
            _LOGGER.warning("Skip dataset %s, part of it is missing: %s", uuid, error)
            return None

    def _resolve_all(self) -> dict[str, DatasetMetadata | None]:
        for self.round in range(1, _ROUNDS):
            coordinators = self._list_coordinators()
            resolved = dict(self.states)
            if all(self._resolve(uuid, resolved) for uuid in coordinators):
                return resolved
        problem = "No state of its cube could be read as a whole: it changes all the time."
        raise errors.ConcurrentWriteError(min(self._list_coordinators()), detail=problem)

    def _list_coordinators(self) -> list[str]:
        coordinators = set()
        for uuid, state in self.states.items():
            record = _record(state)
            if record is None:
                continue
            if record.participants:
                coordinators.add(uuid)
            if record.participation is not None:
                coordinators.add(record.participation.coordinator)
        return sorted(coordinators)

    def _resolve(self, coordinator: str, resolved: dict[str, DatasetMetadata | None]) -> bool:
        """Resolve the participants of one coordinator; False if headers have changed since."""
        if coordinator not in self.states:
            self._read_again(coordinator)
            resolved[coordinator] = self.states[coordinator]
        header = _record(self.states[coordinator])
        outdated = self._find_mismatches(coordinator, header)
        if not outdated:
            return True
        if any(self.read[uuid] >= self.read[coordinator] for uuid in outdated if uuid in self.read):
            if self._read_again(coordinator):
                return False
            header = _record(self.states[coordinator])
        # from here on the coordinator is the newer one
        unchanged = True
        for uuid in outdated:
            participation = self._participation(uuid, coordinator)
            if participation is not None and self._is_pending(uuid, participation, header):
                committed = None if header is None else header.participants.get(uuid)
                # not on top of what is committed: this header may be outdated
                if committed != participation.previous and self._read_again(uuid):
                    unchanged = False
                    continue
                try:
                    resolved[uuid] = load_before(self.blobs, uuid, participation)
                    continue
                except KeyError as error:
                    # the operation was committed, or aborted, since
                    if not (self._read_again(coordinator) | self._read_again(uuid)):
                        raise lost_before(uuid, participation, error) from error
                    unchanged = False
                    continue
            # Twice the same: other software wrote or deleted it, which counts as an operation of its own.
            if self._read_again(uuid):
                unchanged = False
        return unchanged

    def _find_mismatches(self, coordinator: str, header: CommitRecord | None) -> list[str]:
        """Datasets whose last operation is not the one that their coordinator names."""
        operations = {} if header is None else header.participants
        outdated = []
        for uuid in sorted({*self.states, *operations}):
            participation = self._participation(uuid, coordinator)
            if self.states[coordinator] is None:
                if participation is not None and participation.creates:
                    outdated.append(uuid)
                continue
            if header is None or (uuid not in self.states and not self._is_requested(uuid)):
                continue
            operation = None
            if participation is not None and _can_judge(participation, header):
                operation = participation.operation
            if operation != operations.get(uuid):
                outdated.append(uuid)
        return outdated

    def _participation(self, uuid: str, coordinator: str) -> Participation | None:
        state = self.states.get(uuid)
        participation = None if state is None else participation_of(state.extra)
        return participation if participation and participation.coordinator == coordinator else None

    def _is_pending(self, uuid: str, participation: Participation, header: CommitRecord | None) -> bool:
        if participation.before is None:
            return False
        coordinator = self.states[participation.coordinator]
        return status_of(uuid, participation, header, coordinator is not None) is not Status.COMMITTED

    def _read_again(self, uuid: str) -> bool:
        """Read the newest header of a dataset; whether it has changed."""
        self.read_again += 1
        old, new = self.states.get(uuid), self._read(uuid)
        self.states[uuid], self.read[uuid] = new, self.round
        changed = _commit(old) != _commit(new)
        if changed:
            _LOGGER.debug("Dataset %s has changed while a cube was read: its header is read again", uuid)
        return changed


def _can_judge(participation: Participation, header: CommitRecord) -> bool:
    """Whether the coordinator knows what has become of an operation."""
    if participation.lineage == header.lineage:
        return True
    # an operation that would have created the coordinator, which another one did
    return participation.creates and participation.before is not None and not header.interrupted


def _record(state: DatasetMetadata | None) -> CommitRecord | None:
    return None if state is None else parse_record(state.extra)


def _commit(state: DatasetMetadata | None) -> object:
    """Identity of a header; of other software its content."""
    record = _record(state)
    return state if record is None else record.commit


def existing_dataset_ids(uuid_prefix: str, store: StoreInput) -> set[str]:
    """Ids of the datasets of a cube, without those of an operation that has not committed."""
    blobs = open_blobs(store)
    try:
        return set(discover_datasets_unchecked(uuid_prefix, blobs, load_schema=False))
    except (errors.CorruptDatasetError, NotImplementedError):
        # of a damaged dataset only the key is known
        return discover_ktk_cube_dataset_ids(uuid_prefix, blobs)


@arguments.alias_parameter("datasets", "filter_ktk_cube_dataset_ids")
def discover_datasets(
    cube: Cube | str,
    store: StoreInput,
    filter_ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """Load the headers of the datasets of a cube and check that they form it.

    Parameters
    ----------
    cube
        Specification or name of the cube.
    store
        Store, factory or URL.
    datasets, filter_ktk_cube_dataset_ids
        Only these ids.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    ValueError
        If a wanted dataset does not exist, or if the datasets do not form the cube.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> _ = build_cube(pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]}), cube, store)
    >>> discover_datasets(cube, store)["seed"].partition_keys
    ['COUNTRY_CODE']
    """
    cube = find_cube(cube, store)
    requested = arguments.parse_name_set_optional("datasets", filter_ktk_cube_dataset_ids)
    blobs = open_blobs(store)
    stored = discover_datasets_unchecked(cube.uuid_prefix, blobs, requested)
    _check_datasets(cube, stored, requested, blobs)
    return DatasetsById(stored)


def _check_datasets(
    cube: Cube, stored: Mapping[str, DatasetMetadata], requested: frozenset[str] | None, blobs: BlobStore
) -> None:
    if not stored and not discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs):
        raise cube_not_found(cube.uuid_prefix, blobs)
    missing = set() if requested is None else requested - set(stored)
    if missing:
        raise _not_found(cube.uuid_prefix, missing, existing_dataset_ids(cube.uuid_prefix, blobs))
    consistency.check_cube(stored, cube)


#: derived values that are kept per snapshot
_MAX_DERIVED = 256
#: rough size of what is derived, without and with the files: codes of their physical partitions
_CHECKED_BYTES, _BYTES_PER_FILE = 1 << 13, 32


@dataclass(eq=False)
class CubeSnapshot:
    """Datasets of a cube in one state, not to be changed, and what has been derived from them."""

    datasets: dict[str, DatasetMetadata]
    _derived: dict[Hashable, object] = field(default_factory=dict)

    def derive(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on the datasets and the key alone; made once, and not to be changed either."""
        # It must not refer to the datasets: it is kept longer than they are.
        try:
            return cast(T, self._derived[key])
        except KeyError:
            made = make()
        if len(self._derived) >= _MAX_DERIVED:
            self._derived.clear()
        self._derived[key] = made
        return made


def load_snapshot(
    cube: Cube, blobs: BlobStore, requested: frozenset[str] | None, map_uuids: MapUuids = map
) -> CubeSnapshot:
    """Datasets of a cube, checked as in `discover_datasets`, but shared: not to be changed."""
    # In place of :func:`map`, `map_uuids` may read several headers at once.
    load = partial(DatasetMetadata.load_shared, blobs=blobs)
    listed = _ListedDatasets(cube.uuid_prefix, blobs, requested, load, map_uuids)
    # All checks are functions of headers and schemas: what holds for some holds for the same ones again,
    # unless headers had to be read again to find a state of one moment.
    key, states = ("cube", cube, requested), list(listed.initial.values())
    checked: Any = caching.CACHE.get(key)
    if checked is not None and [id(reference()) for reference in checked[0]] == list(map(id, states)):
        start = len(listed.start)
        return CubeSnapshot({uuid[start:]: state for uuid, state in listed.initial.items()}, checked[1])
    datasets = listed.read_consistently()
    _check_datasets(cube, datasets, requested, blobs)
    snapshot = CubeSnapshot(datasets)
    if not listed.read_again and list(map(id, datasets.values())) == list(map(id, states)):
        n_files = sum(len(state.partition_table) for state in states)
        size = _CHECKED_BYTES + _BYTES_PER_FILE * n_files
        caching.CACHE.put(key, b"", ([ref(state) for state in states], snapshot._derived), size)
    return snapshot


@arguments.alias_parameter("datasets", "filter_ktk_cube_dataset_ids")
def discover_cube(
    uuid_prefix: str,
    store: StoreInput,
    filter_ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> tuple[Cube, dict[str, DatasetMetadata]]:
    """Recover the specification of a cube from what is stored.

    Parameters
    ----------
    uuid_prefix
        Prefix of the cube.
    store
        Store, factory or URL.
    datasets, filter_ktk_cube_dataset_ids
        Only these ids; must contain the seed.

    Returns
    -------
    tuple
        The cube, and dataset id to metadata with partition indices loaded.

    Raises
    ------
    ValueError
        If there is no such cube or its datasets do not form one.
    NotImplementedError
        For old cubes with an unusual timestamp column.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> _ = build_cube(pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]}), cube, store)
    >>> specification, datasets = discover_cube("geodata", store)
    >>> specification.dimension_columns, list(datasets)
    (('CITY',), ['seed'])
    """
    cube, stored = discover_cube_unchecked(uuid_prefix, store, filter_ktk_cube_dataset_ids)
    return cube, consistency.check_datasets(stored, cube)


def discover_cube_unchecked(
    uuid_prefix: str, store: StoreInput | BlobStore, datasets: str | Iterable[str] | None = None
) -> tuple[Cube, dict[str, DatasetMetadata]]:
    """The specification of a stored cube, and its datasets, which may break a rule of the cube."""
    uuid_prefix = arguments.parse_name("uuid_prefix", uuid_prefix)
    requested = arguments.parse_name_set_optional("datasets", datasets)
    blobs = open_blobs(store)
    stored = discover_datasets_unchecked(uuid_prefix, blobs, requested)
    if not stored:
        existing = () if requested is None else existing_dataset_ids(uuid_prefix, blobs)
        if requested is None or not existing:
            raise cube_not_found(uuid_prefix, blobs)
        raise _not_found(uuid_prefix, requested, existing)
    return recover_cube(uuid_prefix, stored), stored


def recover_cube(uuid_prefix: str, stored: Mapping[str, DatasetMetadata]) -> Cube:
    """The specification of a cube, by the metadata of its datasets."""
    seed = _find_seed(uuid_prefix, stored)
    metadata = stored[seed].metadata
    dimensions = consistency.read_specification(metadata, constants.KTK_CUBE_METADATA_DIMENSION_COLUMNS)
    if dimensions is None:
        raise ValueError(
            f'Could not recover dimension columns from seed dataset ("{seed}") of cube "{uuid_prefix}": '
            f"its metadata has no {constants.KTK_CUBE_METADATA_DIMENSION_COLUMNS}"
        )
    partitions = _partition_columns(uuid_prefix, seed, stored[seed])
    indexed: set[str] = set()
    for ds in stored.values():
        # beyond the partition keys, which the header implies
        indexed |= (set(ds.indices) - set(ds.partition_keys)) & consistency.get_dataset_columns(ds)
    return Cube(
        uuid_prefix=uuid_prefix,
        dimension_columns=_names(dimensions, "dimension columns", seed),
        partition_columns=partitions,
        seed_dataset=seed,
        index_columns=indexed - set(dimensions) - set(partitions) - {constants.KLEE_TIMESTAMP_COLUMN},
        suppress_index_on=_names(
            metadata.get(constants.KTK_CUBE_METADATA_SUPPRESS_INDEX_ON) or (), "suppress_index_on", seed
        ),
        transforms=transforms.read_transforms(metadata) or (),
    )


def _names(value: Any, what: str, seed: str) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        problem = f"in the metadata of seed dataset {seed!r} are not a list of names: {value!r}"
        raise ValueError(f"The {what} {problem}")
    return list(value)


def _find_seed(uuid_prefix: str, datasets: Mapping[str, DatasetMetadata]) -> str:
    key = constants.KTK_CUBE_METADATA_KEY_IS_SEED
    seeds = [
        name for name, ds in datasets.items() if consistency.read_specification(ds.metadata, key) is True
    ]
    if len(seeds) == 1:
        return seeds[0]
    problem = "Found multiple possible seed datasets" if seeds else "Could not find seed dataset"
    names = f": {', '.join(seeds)}" if seeds else f". Datasets with this prefix: {', '.join(datasets)}"
    raise ValueError(f'{problem} for cube "{uuid_prefix}"{names}')


def _partition_columns(uuid_prefix: str, seed: str, dataset: DatasetMetadata) -> list[str]:
    stored = consistency.read_specification(dataset.metadata, constants.KTK_CUBE_METADATA_PARTITION_COLUMNS)
    timestamp = dataset.metadata.get(constants.KLEE_METADATA_TIMESTAMP_COLUMN)
    if stored is not None:
        columns = _names(stored, "partition columns", seed)
    else:
        keys = list(dataset.partition_keys or [])
        if not keys:
            raise ValueError(f'Seed dataset ("{seed}") of cube "{uuid_prefix}" has no partition keys')
        if len(keys) < 2:
            raise ValueError(
                f'Seed dataset ("{seed}") of cube "{uuid_prefix}" has only a single partition key '
                f"({keys[0]}), an old cube needs at least one beside the timestamp column"
            )
        columns, timestamp = keys[:-1], timestamp or keys[-1]
    if timestamp is not None and timestamp != constants.KLEE_TIMESTAMP_COLUMN:
        raise NotImplementedError(
            f'Can only read old cubes with timestamp column "KLEE_TS", but got "{timestamp}"'
        )
    return columns


def choose_datasets(cube: Cube, ids: str | Iterable[str] | None, existing: Collection[str]) -> set[str]:
    """The dataset ids that a user gave, all of which have to exist; None for all existing ones."""
    chosen = set(existing) if ids is None else set(arguments.parse_name_set("datasets", ids))
    if chosen - set(existing):
        raise _not_found(cube.uuid_prefix, chosen - set(existing), existing)
    return chosen


def _not_found(uuid_prefix: str, missing: Collection[str], existing: Collection[str]) -> ValueError:
    problem = errors.unknown_names("dataset", missing, existing)
    return ValueError(f"Could not find datasets of cube {uuid_prefix}: {problem}")


def select_datasets(
    cube: Cube, store: StoreInput, datasets: DatasetsInput, *, must_exist: bool = True
) -> dict[str, DatasetMetadata]:
    """The ``datasets`` argument: all, ids, or loaded headers; those without a schema are absent."""
    ensure_cube(cube)
    if isinstance(datasets, Mapping):
        return check_loaded(datasets)
    blobs = open_blobs(store)
    requested = arguments.parse_name_set_optional("datasets", datasets)
    datasets_of_cube = discover_datasets_unchecked(cube.uuid_prefix, blobs, requested)
    # a failed write may have left files
    if not datasets_of_cube and not blobs.list_dir(cube.uuid_prefix + constants.KTK_CUBE_UUID_SEPARATOR):
        raise cube_not_found(cube.uuid_prefix, blobs)
    if must_exist and requested is not None and not requested <= datasets_of_cube.keys():
        choose_datasets(cube, requested, discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs))
    return datasets_of_cube


def check_loaded(datasets: Mapping[str, object]) -> dict[str, DatasetMetadata]:
    """The ``datasets`` argument as loaded headers by id; raises TypeError for others, such as frames."""
    arguments.parse_names("datasets", datasets.keys())
    for name, dataset in datasets.items():
        if not isinstance(dataset, DatasetMetadataBase):
            kind = type(dataset).__name__
            raise TypeError(
                f"datasets has ids, or loaded headers (DatasetMetadata) by id, got {kind} for {name}"
            )
    return cast(dict[str, DatasetMetadata], dict(datasets))


def find_cube(cube: Cube | str, store: StoreInput | BlobStore) -> Cube:
    """The specification of a cube: the store has it for a name, which is the uuid prefix."""
    if isinstance(cube, str):
        if not naming.validate_uuid(cube):
            hint = ". If it is the store, pass the cube before it" if "/" in cube else ""
            raise ValueError(f"{cube!r} cannot be the name of a cube: one or more of a-z A-Z 0-9 + - _{hint}")
        return discover_cube_unchecked(cube, store)[0]
    ensure_cube(cube)
    return cube


def cube_not_found(uuid_prefix: str, blobs: BlobStore) -> errors.CubeNotFoundError:
    """The error about a cube that does not exist, with the names of those that do, or a missing directory."""
    directory = blobs.missing_directory
    if directory is not None:
        return errors.CubeNotFoundError(uuid_prefix, f"there is no directory {directory}")
    cubes = [name for name in list_cubes(blobs) if name != uuid_prefix]
    _, _, alternatives = errors.unknown_names("cube", [uuid_prefix], cubes).partition("; ")
    return errors.CubeNotFoundError(uuid_prefix, alternatives)
