"""The history of a cube: retention and listing of states, time travel, rollback of all datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TypeAlias

from kartothek_cube.core.cube.consistency import check_cube
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import choose_datasets, discover_ktk_cube_dataset_ids, open_existing
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import StateNotFoundError, unknown_names
from kartothek_cube.core.history import (
    AsOf,
    DatasetState,
    check_as_of,
    list_states,
    load_state,
    select_state,
)
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.maintenance.rollback import finish_rollback, keep_history, plan_rollback
from kartothek_cube.io_components.write.cube_commit import commit_cube

__all__ = (
    "datasets_as_of",
    "keep_cube_history",
    "list_cube_history",
    "return_cube",
)

CubeAsOf: TypeAlias = AsOf | Mapping[str, AsOf]
"""A point in time for all datasets of a cube, or a version or time for some: the others are as they are."""


def _choose(cube: Cube, blobs: BlobStore, names: str | Iterable[str] | None) -> list[str]:
    """Ids of existing datasets, all by default, in commit order."""
    ensure_cube(cube)
    existing = discover_ktk_cube_dataset_ids(cube.uuid_prefix, open_existing(cube.uuid_prefix, blobs))
    return cube.commit_order(choose_datasets(cube, names, existing))


def list_cube_history(cube: Cube, store: StoreInput) -> dict[str, list[DatasetState]]:
    """The readable states of all datasets of a cube, oldest first."""
    blobs = open_blobs(store)
    names = sorted(_choose(cube, blobs, None))
    return {name: list_states(cube.ktk_dataset_uuid(name), blobs) for name in names}


def keep_cube_history(
    cube: Cube, store: StoreInput, number: int, ktk_cube_dataset_ids: str | Iterable[str] | None = None
) -> dict[str, DatasetMetadata]:
    """Set how many states of the datasets of a cube are kept."""
    blobs = open_blobs(store)
    names = _choose(cube, blobs, ktk_cube_dataset_ids)
    return {name: keep_history(cube.ktk_dataset_uuid(name), store, number) for name in names}


def _resolve_as_of(cube: Cube, as_of: CubeAsOf, names: Iterable[str]) -> dict[str, AsOf]:
    """Version or time by dataset, of those that are not as they are now."""
    if isinstance(as_of, Mapping):
        unknown = set(as_of) - set(names)
        if unknown:
            raise ValueError("as_of: " + unknown_names("dataset", unknown, names))
        for moment in as_of.values():
            check_as_of(moment)
        return dict(as_of)
    moment = check_as_of(as_of)
    if isinstance(moment, int):
        raise TypeError(
            f"The datasets of cube {cube.uuid_prefix} count their versions each for itself: as_of is a point "
            f"in time, or a dict of dataset id to version, but it is {moment}"
        )
    return dict.fromkeys(names, moment)


def datasets_as_of(
    cube: Cube, store: StoreInput | BlobStore, as_of: CubeAsOf, names: str | Iterable[str] | None = None
) -> dict[str, DatasetMetadata]:
    """The datasets of a cube at a point in time, each in its newest state that is not newer."""
    blobs = open_blobs(store)
    chosen = sorted(_choose(cube, blobs, names))
    moments = _resolve_as_of(cube, as_of, chosen)
    datasets = {}
    for name in chosen:
        uuid = cube.ktk_dataset_uuid(name)
        if name not in moments:
            datasets[name] = DatasetMetadata.load_from_store(uuid, blobs)
            continue
        history = list_states(uuid, blobs)
        state = select_state(uuid, history, moments[name])
        if state is not None:
            datasets[name] = load_state(uuid, blobs, state)
        elif names is not None:
            raise StateNotFoundError(
                uuid, str(moments[name]), f"1 ({history[0].time.isoformat()}), its first one"
            )
    check_cube(datasets, cube)
    return datasets


def return_cube(
    cube: Cube,
    store: StoreInput,
    as_of: CubeAsOf,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """Make older states of the datasets of a cube the current ones, the seed last."""
    blobs = open_blobs(store)
    moments = _resolve_as_of(cube, as_of, _choose(cube, blobs, ktk_cube_dataset_ids))
    plans = {name: plan_rollback(cube.ktk_dataset_uuid(name), blobs, when) for name, when in moments.items()}
    others = set(_choose(cube, blobs, None)) - set(plans)
    after = {name: DatasetMetadata.load_from_store(cube.ktk_dataset_uuid(name), blobs) for name in others}
    check_cube({**after, **{name: plan.state for name, plan in plans.items()}}, cube)
    steps = {
        cube.ktk_dataset_uuid(name): partial(finish_rollback, blobs, plans[name])
        for name in cube.commit_order(plans)
    }
    result = commit_cube(cube, blobs, steps)
    return {name: result[cube.ktk_dataset_uuid(name)] for name in sorted(plans)}
