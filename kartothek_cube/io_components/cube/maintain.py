"""Maintenance of cubes: delete, clean up, copy and count; each a list of small tasks and a last step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import attrs

from kartothek_cube.core.commit import CommitReceipt
from kartothek_cube.core.commit.tombstones import is_tombstone_file
from kartothek_cube.core.commit.undo import undo_all
from kartothek_cube.core.cube.consistency import check_cube
from kartothek_cube.core.cube.constants import KTK_CUBE_UUID_SEPARATOR
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import discover_datasets_unchecked, discover_ktk_cube_dataset_ids
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import (
    DatasetExistsError,
    MultiTableCommitAborted,
    unknown_names,
)
from kartothek_cube.core.history import KEEP_HISTORY, history_folder
from kartothek_cube.core.store import Blob, open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.age import is_older, retention_cutoff
from kartothek_cube.io_components.columns import group_codes
from kartothek_cube.io_components.copy import check_different_stores
from kartothek_cube.io_components.execute import progress_advance, store_factory
from kartothek_cube.io_components.keys import data_keys, header_keys, is_header_key, schema_keys
from kartothek_cube.io_components.maintain import DeletePlan, finished_tombstones, history_keys
from kartothek_cube.utils.converters import converter_str_set_optional
from kartothek_cube.utils.ktk_adapters import footer_stats, get_dataset_keys

__all__ = (
    "CopyPlan",
    "add_stats",
    "list_garbage",
    "plan_cleanup",
    "plan_copy",
    "plan_delete",
    "plan_stats",
    "run_stats",
    "sum_stats",
    "rollback_copy",
)


def _datasets(cube: Cube, store: StoreInput, datasets: Any) -> dict[str, DatasetMetadata]:
    """The ``datasets`` argument: all, ids, or loaded headers. Ids that do not exist are absent."""
    ensure_cube(cube)
    if isinstance(datasets, Mapping):
        return dict(datasets)
    return discover_datasets_unchecked(cube.uuid_prefix, store, converter_str_set_optional(datasets))


# -- delete and clean up ---------------------------------------------------------------------------


def plan_delete(cube: Cube, store: StoreInput, datasets: Any = None) -> DeletePlan:
    """Plan the deletion of a cube or of datasets; the seed leads, so that the cube is gone at once."""
    found = _datasets(cube, store, datasets)
    order = sorted(found, key=lambda name: (name != cube.seed_dataset, name))
    blobs = open_blobs(store)
    tracked = {key for ds in found.values() for key in (*get_dataset_keys(ds), *schema_keys(ds, blobs))}
    for dataset in found.values():
        if KEEP_HISTORY in dataset.metadata:
            tracked |= history_keys(dataset.uuid, blobs)
            tracked.update(blob.key for blob in blobs.list(history_folder(dataset.uuid)))
    headers = {key for ds in found.values() for key in header_keys(ds.uuid)}
    return DeletePlan([found[name].uuid for name in order], sorted(tracked - headers))


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
    limit = retention_cutoff(blobs, prefix, retention)
    # before the headers: what is committed later is not in the list
    found = blobs.list(prefix)
    tracked: set[str] = set()
    # without schemas: one that is missing makes no garbage of the rest
    datasets = discover_datasets_unchecked(cube.uuid_prefix, blobs, load_schema=False)
    for dataset in datasets.values():
        uuid = dataset.uuid
        tracked.update((*get_dataset_keys(dataset), *schema_keys(dataset, blobs)))
        if KEEP_HISTORY in dataset.metadata or any(b.key.startswith(history_folder(uuid)) for b in found):
            young = [b for b in found if not is_older(b, limit) and b.key.startswith(history_folder(uuid))]
            tracked |= history_keys(uuid, blobs, young)
    garbage = [
        blob
        for blob in found
        if not (blob.key in tracked or is_header_key(blob.key) or is_tombstone_file(blob.key))
        and is_older(blob, limit)
    ]
    for uuid in sorted({blob.key.partition("/")[0] for blob in found if is_tombstone_file(blob.key)}):
        garbage += finished_tombstones(blobs, uuid, garbage, limit)
    return sorted(garbage)


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
        progress_advance(counted[-1][0])
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


def rollback_copy(plan: CopyPlan, done: Sequence[CommitReceipt], failed: str, exc: BaseException) -> NoReturn:
    """Take back what was published of a copy, and report the failure."""
    undone = undo_all(open_blobs(plan.target), done)
    names = [published.uuid for published in done]
    if plan.overwrite:
        rest = "" if undone else ". Datasets may have been overwritten; copy the cube again"
        raise RuntimeError(f"Failed to copy dataset {failed}: {exc}{rest}") from exc
    raise MultiTableCommitAborted(failed, rolled_back=names if undone else [], detail=str(exc)) from exc
