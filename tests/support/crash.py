"""Operations on a small cube that go wrong half-way: in processes that are killed, on stores that fail."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from simplekv import KeyValueStore

from kartothek_cube.api import cube as api
from kartothek_cube.api.dataset import build_dataset_indices, read_table
from kartothek_cube.core import caching, history
from kartothek_cube.core.errors import CubeNotFoundError, MultiTableCommitAborted
from kartothek_cube.core.store import open_blobs
from tests.support.cubes import filled
from tests.support.stores import Died, FaultyStore, InjectedError, Same

CUBE = api.Cube(dimension_columns=["x"], partition_columns=["p"], uuid_prefix="cube", index_columns=["i1"])
COPY = CUBE.copy(uuid_prefix="copy")

#: a server that has imported the library forks each process: starting one takes milliseconds
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.crash"])

#: exit code of a process that could not write
FULL = 3


@dataclass(frozen=True)
class Place:
    """The store of the cube, and another one for its copy."""

    store: Any
    other: Any

    @classmethod
    def below(cls, root: Path) -> Place:
        return cls(*(f"hfs://{root / name}?create_if_missing=true" for name in ("store", "other")))

    def cubes(self) -> tuple[tuple[api.Cube, Any], ...]:
        return ((CUBE, self.store), (COPY, self.other))

    def clean(self) -> None:
        """Clean up the cubes; a directory that nothing was written to does not exist."""
        for cube, store in self.cubes():
            with suppress(CubeNotFoundError):
                api.cleanup_cube(cube, store)


# what is done ------------------------------------------------------------------------------------


def cells(p: int, start: int = 0, **payload: object) -> pd.DataFrame:
    x = pd.RangeIndex(start, start + 20).to_numpy() + 1000 * p
    return pd.DataFrame({"x": x, "p": p, **payload})


def seed(p: int, start: int = 0, v1: object = 1) -> pd.DataFrame:
    df = cells(p, start, v1=v1)
    return df.assign(i1=df["x"] % 3)


def build(place: Place) -> None:
    api.build_cube(pd.concat([seed(0), seed(1), seed(2)]), CUBE, place.store)


def build_two(place: Place) -> None:
    build(place)
    api.extend_cube({"extra": pd.concat([cells(0, v2=2), cells(1, v2=2)])}, CUBE, place.store)


def litter(place: Place) -> None:
    build_two(place)
    api.remove_partitions(CUBE, place.store, api.C("p") == 0)
    api.append_to_cube(seed(0), CUBE, place.store)


def overwrite(place: Place) -> None:
    """Build over a cube; the columns keep their names and change their types."""
    data = {"seed": pd.concat([seed(0, v1="one"), seed(1, v1="one")]), "extra": cells(0, v2=0.5)}
    api.build_cube(data, CUBE, place.store, overwrite=True)


def append(place: Place) -> None:
    data = {"seed": pd.concat([seed(0, 50), seed(1, 50)]), "extra": cells(1, 50, v2=3)}
    api.append_to_cube(data, CUBE, place.store)


@dataclass(frozen=True)
class Operation:
    """What is there before, and what is done then."""

    before: Callable[[Place], object]
    run: Callable[[Place], object]


P_1 = api.C("p") == 1
OPERATIONS = {
    "build": Operation(lambda at: None, build_two),
    "overwrite": Operation(build_two, overwrite),
    "extend": Operation(build, lambda at: api.extend_cube({"extra": cells(0, v2=2)}, CUBE, at.store)),
    "append": Operation(build_two, append),
    "update": Operation(build_two, lambda at: api.update_cube(seed(1, v1=9), CUBE, at.store, P_1, ["seed"])),
    "remove": Operation(build_two, lambda at: api.remove_partitions(CUBE, at.store, P_1)),
    "delete rows": Operation(build_two, lambda at: api.delete_rows(CUBE, at.store, "p == 0 | x < 1010")),
    "index": Operation(build_two, lambda at: build_dataset_indices(at.store, "cube++extra", ["v2"])),
    "copy": Operation(
        build_two, lambda at: api.copy_cube(CUBE, at.store, at.other, renamed_cube_prefix="copy")
    ),
    "delete": Operation(build_two, lambda at: api.delete_cube(CUBE, at.store)),
    "cleanup": Operation(litter, lambda at: api.cleanup_cube(CUBE, at.store)),
}


def prepare(name: str, root: Path) -> dict[str, list[tuple]]:
    """Make a directory with stores as they are before an operation; their contents."""
    # reading creates no directory
    root.mkdir()
    OPERATIONS[name].before(Place.below(root))
    return contents(Place.below(root))


def copy_place(before: Path, root: Path) -> Place:
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(before, root)
    return Place.below(root)


# in a process of its own -------------------------------------------------------------------------


def _work(name: str, place: Place, started: Any) -> None:
    started.set()
    OPERATIONS[name].run(place)


def run_and_kill(name: str, place: Place, seconds: float) -> bool:
    """Run an operation in a process of its own and kill it after a time; whether it was still at work."""
    process = _start(name, place)
    process.join(seconds)
    at_work = process.is_alive()
    process.kill()
    process.join()
    if not at_work and process.exitcode != 0:
        raise RuntimeError(f"{name} failed by itself")
    return at_work


def _start(name: str, place: Place) -> Any:
    started = _FORKS.Event()
    process = _FORKS.Process(target=_work, args=(name, place, started))
    process.start()
    started.wait()
    return process


def _work_on_full_disk(name: str, place: Place, size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        OPERATIONS[name].run(place)
    except (OSError, MultiTableCommitAborted):
        sys.exit(FULL)


def run_on_full_disk(name: str, place: Place, size: int) -> bool:
    """Run an operation in a process that cannot write files beyond a size; whether it failed for that."""
    process = _FORKS.Process(target=_work_on_full_disk, args=(name, place, size))
    process.start()
    process.join()
    if process.exitcode not in (0, FULL):
        raise RuntimeError(f"{name} failed in another way: exit code {process.exitcode}")
    return process.exitcode == FULL


def duration(name: str, place: Place) -> float:
    process = _start(name, place)
    begin = time.perf_counter()
    process.join(60)
    seconds = time.perf_counter() - begin
    process.kill()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{name} does not end, or fails by itself")
    return seconds


# on a store on which one request goes wrong, or all from then on ---------------------------------


def stores_after_faults(
    content: dict[str, bytes], operation: Callable[[Same], object], fault: str = "die", **how: Any
) -> list[KeyValueStore]:
    """Stores as an operation leaves them if its first request goes wrong, its second, and so on.

    By default its process dies; else it is the name of another method of `FaultyStore`, such as "fail", which
    also lets handlers of the error take effect. ``how`` selects the requests, as there.
    """
    stores: list[KeyValueStore] = []
    while True:
        store = filled(content)
        faulty = getattr(FaultyStore(store), fault)(**{"method": "any", **how}, at=len(stores) + 1)
        with suppress(Died, InjectedError):
            operation(Same.of(faulty))
        if not faulty.happened:
            return stores
        # another process goes on
        caching.clear()
        stores.append(store)


# what is there -----------------------------------------------------------------------------------


def contents(place: Place) -> dict[str, list[tuple]]:
    """The rows of each dataset, sorted. Cubes with a seed must answer a query as well."""
    found = {}
    for cube, store in place.cubes():
        datasets = api.discover_datasets_unchecked(cube.uuid_prefix, store)
        for dataset in datasets.values():
            df = read_table(dataset.uuid, store)
            found[dataset.uuid] = sorted(df[sorted(df.columns)].itertuples(index=False, name=None))
        if cube.seed_dataset in datasets:
            api.query_cube(cube, store)
    return found


def check_old_or_new(place: Place, old: dict[str, list[tuple]], new: dict[str, list[tuple]]) -> None:
    """Fail unless each dataset is what it was or what it was to be, also after a cleanup."""
    found = contents(place)
    for uuid in old.keys() | new.keys() | found.keys():
        assert found.get(uuid) in (old.get(uuid), new.get(uuid)), uuid
    place.clean()
    assert contents(place) == found


def tracked(cube: api.Cube, store: Any) -> set[str]:
    """The keys that belong to the datasets of a cube, with snapshots of the state that writers have left."""
    keys, blobs = set(), open_blobs(store)
    for dataset in api.discover_datasets_unchecked(cube.uuid_prefix, store).values():
        indices = (dataset.load_index(column, store).indices[column] for column in dataset.indices)
        keys |= {f"{dataset.uuid}.by-dataset-metadata.json", f"{dataset.uuid}/table/_common_metadata"}
        keys |= {file for partition in dataset.partitions.values() for file in partition.files.values()}
        keys |= {index.index_storage_key for index in indices if index.index_storage_key}
        keys |= set(filter(blobs.exists, [history.current_snapshot(dataset, blobs)]))
    return keys
