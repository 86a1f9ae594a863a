"""Operations in steps that are acknowledged, and what power failures may leave of them."""

import json
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from kartothek_cube.api import cube as api
from kartothek_cube.api import dataset as ds
from kartothek_cube.core.commit.operation import committed_state
from kartothek_cube.core.errors import DatasetNotFoundError
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.publication.delta_log import published_keys, read_log
from tests.support import crash, power
from tests.support.crash import CUBE, Place, seed

UUID = "sales"
HEADER = ".by-dataset-metadata.json"

Step = Callable[[Place], object]


@dataclass(frozen=True)
class Operation:
    """What is there before, and what is done then, step by step."""

    before: tuple[Step, ...]
    steps: tuple[Step, ...]
    #: whether datasets may be incomplete until a step is done: a deletion can be repeated
    deletes: bool = False


def _store(at: Place) -> None:
    options = {"partition_on": ["p"], "secondary_indices": ["i1"]}
    ds.store_dataframes_as_dataset(at.store, UUID, [seed(0), seed(1)], **options)


def _update(p: int, start: int, **kwargs: Any) -> Step:
    kwargs["partition_on"] = ["p"]
    return lambda at: ds.update_dataset_from_dataframes([seed(p, start)], at.store, UUID, **kwargs)


def _overwrite(at: Place) -> None:
    ds.store_dataframes_as_dataset(at.store, UUID, [seed(1, v1="one")], partition_on=["p"], overwrite=True)


def _delete_partitions(at: Place) -> None:
    ds.update_dataset_from_dataframes(None, at.store, UUID, partition_on=["p"], delete_scope=[{"p": 0}])


def _rollback(at: Place) -> None:
    ds.rollback_dataset(UUID, at.store, ds.list_dataset_history(UUID, at.store)[0].version)


def _rollback_cube(at: Place) -> None:
    uuid = CUBE.ktk_dataset_uuid("seed")
    api.rollback_cube(CUBE, at.store, {"seed": ds.list_dataset_history(uuid, at.store)[0].version}, ["seed"])


def _publish(at: Place) -> None:
    api.publish_cube(CUBE, at.store)


def _cleanup(at: Place) -> None:
    api.cleanup_cube(CUBE, at.store)


_HISTORY = (_store, lambda at: ds.keep_dataset_history(UUID, at.store, 1))
_CUBE_HISTORY = (crash.build_two, lambda at: api.keep_cube_history(CUBE, at.store, 1))

OPERATIONS = {
    "dataset store": Operation((), (_store,)),
    "dataset overwrite": Operation((_store,), (_overwrite,)),
    "dataset update": Operation((_store,), (_update(1, 50), _update(3, 0))),
    "dataset replace": Operation((_store,), (_update(1, 50, delete_scope=[{"p": 1}]),)),
    "dataset delete partitions": Operation((_store,), (_delete_partitions,)),
    "dataset index": Operation((_store,), (lambda at: ds.build_dataset_indices(at.store, UUID, ["v1"]),)),
    "dataset history": Operation(_HISTORY, (_update(1, 50), _update(1, 80), _rollback)),
    "dataset garbage": Operation(
        (*_HISTORY, _delete_partitions, _update(1, 50), _update(1, 80)),
        (lambda at: ds.garbage_collect_dataset(UUID, at.store),),
    ),
    "dataset delete": Operation((_store,), (lambda at: ds.delete_dataset(UUID, at.store),), deletes=True),
    "dataset copy": Operation((_store,), (lambda at: ds.copy_dataset(UUID, at.store, "copy", at.other),)),
    "cube build": Operation((), (crash.build, crash.OPERATIONS["extend"].run)),
    "cube compact": Operation(
        (crash.build_two, crash.append), (lambda at: api.compact_cube(CUBE, at.store), _cleanup)
    ),
    "cube publish": Operation(
        (crash.build_two, _publish), (crash.OPERATIONS["update"].run, _publish, _cleanup)
    ),
    "cube publish on commit": Operation(
        (crash.build_two, lambda at: api.publish_cube(CUBE, at.store, on_commit=True)), (crash.append,)
    ),
    "cube unpublish": Operation(
        (crash.build_two, _publish), (lambda at: api.unpublish_cube(CUBE, at.store),)
    ),
    "cube history": Operation(_CUBE_HISTORY, (crash.append, crash.append, _rollback_cube)),
    **{
        f"cube {name}": Operation((other.before,), (other.run,))
        for name, other in crash.OPERATIONS.items()
        if name not in ("build", "extend", "index")
    },
}

#: (store, dataset) -> what can be seen of it
Contents = dict[tuple[str, str], Any]


def contents(root: Path) -> Contents:
    """Give rows, partitions and index entries of each dataset; each older state and each cube can be read."""
    place, found = Place.below(root), {}
    for name, store in (("store", place.store), ("other", place.other)):
        for path in sorted((root / name).glob(f"*{HEADER}")):
            uuid = path.name.removesuffix(HEADER)
            header = ds.DatasetMetadata.load_from_store(uuid, store)
            try:
                # as readers do: the header may be that of an operation that has not committed
                dataset = committed_state(open_blobs(store), header).load_all_indices(store)
            except DatasetNotFoundError:
                continue
            content = {column: index.index_dct for column, index in dataset.indices.items()}
            indices = {c: {value: len(labels) for value, labels in dct.items()} for c, dct in content.items()}
            found[name, uuid] = (_rows(ds.read_table(uuid, store)), len(dataset.partitions), indices)
            for state in ds.list_dataset_history(uuid, store):
                ds.read_table(uuid, store, as_of=state.version)
            log = read_log(open_blobs(store), uuid)
            if log.version >= 0:
                found[name, f"{uuid} table"] = (log.version, sorted(log.files))
                for key in published_keys(open_blobs(store), uuid):
                    assert (root / name / key).exists(), key
    for cube, store in place.cubes():
        if any(uuid == cube.ktk_dataset_uuid("seed") for _, uuid in found):
            api.query_cube(cube, store)
    return found


def _copies(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*.state")}


def _rows(df: pd.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(df[sorted(df.columns)].itertuples(index=False, name=None))


class Check:
    """Opens what power failures left, and compares."""

    def __init__(self, operation: Operation, root: Path) -> None:
        self._operation = operation
        self._root = root
        #: path -> content of each file that never changes
        self._written: dict[str, set[bytes]] = {}
        #: contents of all disks with the same state
        self._known: dict[Any, Contents] = {}
        self._cleaned: set[Any] = set()
        self.images = 0

    def run(self) -> None:
        disk = self._root / "disk"
        disk.mkdir(parents=True)
        for step in self._operation.before:
            step(Place.below(disk))
        self.states = [contents(disk)]
        self._copies = [_copies(disk)]
        self.recording = power.Recording(disk)
        #: number of events when each step had been acknowledged
        self.acknowledged = []
        for step in self._operation.steps:
            with self.recording.running():
                step(Place.below(disk))
            self.acknowledged.append(len(self.recording))
            self.states.append(contents(disk))
            self._copies.append(_copies(disk))
        for path, content in self.recording.before.after_failure("none").items():
            self._note(path, content)
        for event in self.recording.events:
            self._note(event.target or event.path, event.content)

    def _note(self, path: str, content: bytes | None) -> None:
        if content is not None:
            self._written.setdefault(path, set()).add(content)

    def check(self, done: int, tree: power.Tree) -> None:
        """Fail unless all that was acknowledged is there, and each dataset in its old or its new state."""
        self.images += 1
        step = sum(number <= done for number in self.acknowledged)
        is_at_rest = done in (0, *self.acknowledged)
        allowed = self.states[step : step + 1] if is_at_rest else self.states[step : step + 2]
        if self._operation.deletes and not is_at_rest:
            return
        if is_at_rest:
            assert all(tree.get(path) in self._written[path] for path in self._copies[step]), done
        found = self._contents(tree, is_at_rest)
        for place in {place for state in (*allowed, found) for place in state}:
            assert any(found.get(place) == state.get(place) for state in allowed), (place, done)

    def _contents(self, tree: power.Tree, cleanup: bool) -> Contents:
        state = {}
        for path, content in tree.items():
            is_state = path.endswith((HEADER, "/_common_metadata")) or "/_delta_log/" in path
            if content is not None and is_state:
                state[path] = sha256(content).digest()
            if content is not None and path.endswith(HEADER):
                for file in _files(path, content):
                    # byte for byte
                    assert tree.get(file) in self._written[file], file
                    state[file] = sha256(tree[file]).digest()
        key = frozenset(state.items())
        if key not in self._known:
            self._known[key] = contents(self._image(tree))
        if cleanup and key not in self._cleaned:
            self._cleaned.add(key)
            clean(self._image(tree), self._known[key])
        return self._known[key]

    def _image(self, tree: power.Tree) -> Path:
        image = self._root / "image"
        shutil.rmtree(image, ignore_errors=True)
        power.write_tree(tree, image)
        return image


def clean(root: Path, found: Contents) -> None:
    place = Place.below(root)
    place.clean()
    if ("store", UUID) in found:
        ds.garbage_collect_dataset(UUID, place.store)
    assert contents(root) == found


def _files(path: str, header: bytes) -> Iterable[str]:
    state, store = json.loads(header), path.rpartition("/")[0]
    for partition in state["partitions"].values():
        for file in partition["files"].values():
            yield f"{store}/{file}"
    for file in state.get("indices", {}).values():
        yield f"{store}/{file}"


def check_all(name: str, root: Path, lots: int, seed: int) -> int:
    """Check what power failures leave at all moments, by lot what is lost; the number of power failures."""
    check = Check(OPERATIONS[name], root)
    check.run()
    draws = random.Random(seed)
    for done, disk in check.recording.replay():
        check.check(done, disk.after_failure("all"))
        check.check(done, disk.after_failure("contents"))
        check.check(done, disk.after_failure("none"))
        for _ in range(10 * lots if done in check.acknowledged else lots):
            check.check(done, disk.after_failure(draws))
    return check.images
