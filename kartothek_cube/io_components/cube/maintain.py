"""Looking after cubes: delete, clean up, copy and count; each a list of small tasks and a last step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import attrs

from kartothek_cube.core.cube.consistency import check_cube
from kartothek_cube.core.cube.constants import KTK_CUBE_UUID_SEPARATOR
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import discover_datasets_unchecked, discover_ktk_cube_dataset_ids
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import (
    DatasetExistsError,
    KartothekCubeError,
    MultiTableCommitAborted,
    unknown_names,
)
from kartothek_cube.core.history import KEEP_HISTORY, history_folder
from kartothek_cube.core.store import Blob, open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.age import age_limit, is_older
from kartothek_cube.io_components.columns import group_codes
from kartothek_cube.io_components.copy import check_different_stores
from kartothek_cube.io_components.execute import count_file, store_factory
from kartothek_cube.io_components.keys import data_keys, header_keys
from kartothek_cube.io_components.maintain import history_keys
from kartothek_cube.utils.converters import converter_str_set_optional
from kartothek_cube.utils.ktk_adapters import footer_stats, get_dataset_keys

__all__ = (
    "CopyPlan",
    "add_stats",
    "copy_datasets",
    "list_garbage",
    "plan_cleanup",
    "plan_copy",
    "plan_delete",
    "plan_stats",
    "run_delete",
    "run_stats",
    "sum_stats",
)


def _datasets(cube: Cube, store: StoreInput, datasets: Any) -> dict[str, DatasetMetadata]:
    """The ``datasets`` argument: all, ids, or loaded headers. Ids that do not exist are absent."""
    ensure_cube(cube)
    if isinstance(datasets, Mapping):
        return dict(datasets)
    return discover_datasets_unchecked(cube.uuid_prefix, store, converter_str_set_optional(datasets))


# -- delete and clean up ---------------------------------------------------------------------------


def plan_delete(cube: Cube, store: StoreInput, datasets: Any = None) -> tuple[list[str], list[str]]:
    """
    Keys to delete for a cube or some of its datasets.

    Returns
    -------
    headers
        To be deleted first, in this order: the seed leads, so that the cube is gone at once.
    others
        All other tracked keys, sorted; if they are not reached, they are garbage.
    """
    found = _datasets(cube, store, datasets)
    order = sorted(found, key=lambda name: (name != cube.seed_dataset, name))
    headers = [key for name in order for key in header_keys(found[name].uuid)]
    tracked = {key for ds in found.values() for key in get_dataset_keys(ds)}
    blobs = open_blobs(store)
    for dataset in found.values():
        if KEEP_HISTORY in dataset.metadata:
            tracked |= history_keys(dataset.uuid, blobs)
            tracked.update(blob.key for blob in blobs.list(history_folder(dataset.uuid)))
    return headers, sorted(tracked - set(headers))


def plan_cleanup(cube: Cube, store: StoreInput, retention: timedelta | None = None) -> list[str]:
    """
    Keys with the prefix of a cube that none of its readable datasets refers to.

    Parameters
    ----------
    cube, store, retention
        As in :func:`list_garbage`.

    Returns
    -------
    list of str
        Sorted.
    """
    return [blob.key for blob in list_garbage(cube, store, retention)]


def list_garbage(cube: Cube, store: StoreInput, retention: timedelta | None = None) -> list[Blob]:
    """
    Files with the prefix of a cube to which no readable dataset, and no kept state of one, refers.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    retention
        Files younger than this are no garbage: they may belong to a writer that has not committed yet. Files
        of unknown age count as young. None: age does not matter.

    Returns
    -------
    list of Blob
        Sorted by key.

    Raises
    ------
    CorruptDatasetError
        A header, or the copy of an older state, cannot be read.
    """
    ensure_cube(cube)
    blobs = open_blobs(store)
    prefix = cube.uuid_prefix + KTK_CUBE_UUID_SEPARATOR
    limit = age_limit(blobs, prefix, retention)
    # before the headers: what is committed later is not in the list
    found = blobs.list(prefix)
    tracked: set[str] = set()
    for dataset in discover_datasets_unchecked(cube.uuid_prefix, blobs).values():
        tracked.update((*get_dataset_keys(dataset), *header_keys(dataset.uuid)))
        own = [b for b in found if b.key.startswith(history_folder(dataset.uuid))]
        if own:
            tracked |= history_keys(dataset.uuid, blobs, [b for b in own if not is_older(b, limit)])
    return [blob for blob in found if blob.key not in tracked and is_older(blob, limit)]


def run_delete(store: StoreInput, keys: Iterable[str]) -> None:
    """Delete keys; those that are gone already do not matter."""
    open_blobs(store).delete(keys)


# -- stats -----------------------------------------------------------------------------------------


@attrs.frozen
class StatsTask:
    """Some data files of one dataset, to be counted."""

    name: str
    keys: tuple[str, ...]


def plan_stats(
    cube: Cube, store: StoreInput, datasets: Any = None, blocksize: int = 100
) -> tuple[dict[str, dict[str, int]], list[StatsTask]]:
    """
    What is known without opening a file, and what has to be looked up in files.

    Returns
    -------
    base
        Dataset id to stats with ``files`` and ``partitions``.
    tasks
        Files to open.
    """
    base: dict[str, dict[str, int]] = {}
    tasks = []
    for name, dataset in sorted(_datasets(cube, store, datasets).items()):
        keys = data_keys(dataset)
        values = dataset.partition_table.keys(list(dataset.partition_keys or ()), dataset.schema)
        codes = group_codes(list(values.values()), len(dataset.partition_table))
        partitions = int(codes.max()) + 1 if len(codes) else 0
        base[name] = {"blobsize": 0, "files": len(keys), "partitions": partitions, "rows": 0}
        tasks += [StatsTask(name, tuple(keys[i : i + blocksize])) for i in range(0, len(keys), blocksize)]
    return base, tasks


def run_stats(store: StoreInput, task: StatsTask) -> dict[str, dict[str, int]]:
    """Count the files of one task."""
    blobs = open_blobs(store)
    counted = []
    for key in task.keys:
        counted.append(footer_stats(blobs, key))
        count_file(counted[-1][0])
    return {task.name: {"blobsize": sum(s for s, _ in counted), "rows": sum(r for _, r in counted)}}


def add_stats(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Add up stats of some tasks; associative."""
    total: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, values in part.items():
            sums = total.setdefault(name, {"blobsize": 0, "files": 0, "partitions": 0, "rows": 0})
            for key, value in values.items():
                sums[key] += value
    return total


def sum_stats(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Add up all stats. Datasets without partitions are left out."""
    return {name: sums for name, sums in sorted(add_stats(parts).items()) if sums["partitions"]}


# -- copy ------------------------------------------------------------------------------------------


@attrs.frozen
class CopyPlan:
    """
    Datasets to copy.

    Attributes
    ----------
    cube
        The cube.
    source, target
        Factories of the stores.
    uuids
        Source uuid to target uuid, in the order of copying: the seed comes last.
    overwrite
        Whether existing datasets are replaced.
    """

    cube: Cube
    source: StoreFactory
    target: StoreFactory
    uuids: Mapping[str, str]
    overwrite: bool = False


def plan_copy(
    cube: Cube,
    src_store: StoreInput,
    tgt_store: StoreInput,
    overwrite: bool = False,
    datasets: Any = None,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
) -> CopyPlan:
    """
    Check a copy; nothing is copied.

    Raises
    ------
    ValueError
        If both stores are the same, or the target would not be a valid cube.
    RuntimeError
        If a dataset is missing in the source, or exists in the target.
    """
    # under the name of the copy: should we die in between, a cleanup of the copy finds what was written
    renamed_cube = cube.copy(uuid_prefix=renamed_cube_prefix or cube.uuid_prefix)
    uuid = renamed_cube.ktk_dataset_uuid(cube.seed_dataset)
    check_different_stores(src_store, tgt_store, uuid, gen_uuid())
    found = _datasets(cube, src_store, datasets)
    _check_found(cube, found, datasets)
    renamed = dict(renamed_datasets or {})
    unknown = set(renamed) - set(found)
    if unknown:
        raise ValueError(
            "renamed_datasets names datasets that are not copied: " + unknown_names("dataset", unknown, found)
        )
    names = {name: renamed.get(name, name) for name in found}
    if len(set(names.values())) < len(names):
        raise ValueError(
            f"renamed_datasets gives the same name to several datasets: {', '.join(sorted(names.values()))}"
        )
    target_cube = cube.copy(
        uuid_prefix=renamed_cube_prefix or cube.uuid_prefix,
        seed_dataset=names.get(cube.seed_dataset, renamed.get(cube.seed_dataset, cube.seed_dataset)),
    )
    existing = discover_ktk_cube_dataset_ids(target_cube.uuid_prefix, tgt_store)
    for name in sorted(names.values()):
        if name in existing and not overwrite:
            raise DatasetExistsError(target_cube.ktk_dataset_uuid(name))
    kept = discover_datasets_unchecked(target_cube.uuid_prefix, tgt_store, existing - set(names.values()))
    check_cube({**kept, **{names[name]: ds for name, ds in found.items()}}, target_cube)
    order = sorted(found, key=lambda name: (name == cube.seed_dataset, name))
    return CopyPlan(
        cube,
        store_factory(src_store),
        store_factory(tgt_store),
        {found[name].uuid: target_cube.ktk_dataset_uuid(names[name]) for name in order},
        overwrite,
    )


def _check_found(cube: Cube, found: Mapping[str, DatasetMetadata], wanted: Any) -> None:
    if wanted is None and not found:
        raise RuntimeError(f"{cube} not found in source store: there is no dataset {cube.uuid_prefix}++...")
    if wanted is None or isinstance(wanted, Mapping):
        return
    missing = set(converter_str_set_optional(wanted) or ()) - set(found)
    if missing:
        raise RuntimeError(
            f"{cube} is missing in the source store: " + unknown_names("dataset", missing, found)
        )


def copy_datasets(plan: CopyPlan, copy: Callable[..., Any]) -> None:
    """
    Copy the datasets of a plan one after the other.

    Parameters
    ----------
    plan
        What to copy.
    copy
        Copies one dataset: ``copy(source_dataset_uuid, store, target_dataset_uuid, target_store)``.

    Raises
    ------
    MultiTableCommitAborted
        If one fails; the headers of those copied before are removed, unless datasets may have been replaced.
    """
    done: list[str] = []
    for source_uuid, target_uuid in plan.uuids.items():
        try:
            copy(
                source_dataset_uuid=source_uuid,
                store=plan.source,
                target_dataset_uuid=target_uuid,
                target_store=plan.target,
            )
        except (KartothekCubeError, RuntimeError, ValueError, KeyError, OSError) as exc:
            undo_copy(plan, done, target_uuid, exc)
        done.append(target_uuid)


def undo_copy(plan: CopyPlan, done: Sequence[str], failed: str, exc: BaseException) -> None:
    """Remove the headers of copied datasets and report the failure."""
    if plan.overwrite:
        raise RuntimeError(
            f"Failed to copy dataset {failed}: {exc}. Datasets may have been overwritten; copy the cube again"
        ) from exc
    run_delete(plan.target, [key for uuid in done for key in header_keys(uuid)])
    raise MultiTableCommitAborted(failed, rolled_back=done, detail=str(exc)) from exc
