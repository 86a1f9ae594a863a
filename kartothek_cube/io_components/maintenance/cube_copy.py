"""Copy of a cube: data files in independent tasks, then the headers, the seed last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import attrs

from kartothek_cube.core.arguments import converter_str_set_optional
from kartothek_cube.core.commit import CommitReceipt
from kartothek_cube.core.commit.undo import undo_all
from kartothek_cube.core.cube.argument_types import DatasetsInput
from kartothek_cube.core.cube.consistency import check_cube
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import (
    discover_datasets_unchecked,
    discover_ktk_cube_dataset_ids,
    select_datasets,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import (
    DatasetExistsError,
    MultiTableCommitAborted,
    UnknownOutcomeError,
    unknown_names,
)
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.job import Job, discard_results
from kartothek_cube.io_components.maintenance.copy import (
    FAILURES,
    DatasetCopy,
    check_different_stores,
    finish_copy,
    plan_copy_dataset,
    run_copy,
)
from kartothek_cube.io_components.runtime.threads import batched, store_factory


@attrs.frozen
class CopyPlan:
    """The datasets to copy."""

    cube: Cube
    source: StoreFactory
    target: StoreFactory
    #: source uuid to target uuid, in the order of copying: the seed comes last
    uuids: Mapping[str, str]
    #: whether existing datasets are replaced
    overwrite: bool = False


def plan_copy(
    cube: Cube,
    src_store: StoreInput,
    tgt_store: StoreInput,
    overwrite: bool = False,
    datasets: DatasetsInput = None,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
) -> CopyPlan:
    """Check a copy of a cube; nothing is copied yet."""
    renamed_cube = cube.copy(uuid_prefix=renamed_cube_prefix or cube.uuid_prefix)
    uuid = renamed_cube.ktk_dataset_uuid(cube.seed_dataset)
    check_different_stores(src_store, tgt_store, uuid, gen_uuid())
    selected = select_datasets(cube, src_store, datasets)
    _check_found(cube, selected, datasets)
    renamed = dict(renamed_datasets or {})
    unknown = set(renamed) - set(selected)
    if unknown:
        raise ValueError(
            "renamed_datasets names datasets that are not copied: "
            + unknown_names("dataset", unknown, selected)
        )
    names = {name: renamed.get(name, name) for name in selected}
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
    check_cube({**kept, **{names[name]: ds for name, ds in selected.items()}}, target_cube)
    order = cube.commit_order(selected)
    return CopyPlan(
        cube,
        store_factory(src_store),
        store_factory(tgt_store),
        {selected[name].uuid: target_cube.ktk_dataset_uuid(names[name]) for name in order},
        overwrite,
    )


def _check_found(cube: Cube, selected: Mapping[str, DatasetMetadata], datasets: DatasetsInput) -> None:
    if datasets is None and not selected:
        raise RuntimeError(f"{cube} not found in source store: there is no dataset {cube.uuid_prefix}++...")
    if datasets is None or isinstance(datasets, Mapping):
        return
    missing = set(converter_str_set_optional(datasets) or ()) - set(selected)
    if missing:
        raise RuntimeError(
            f"{cube} is missing in the source store: " + unknown_names("dataset", missing, selected)
        )


def rollback_copy(
    plan: CopyPlan, receipts: Sequence[CommitReceipt], failed: str, exc: BaseException
) -> NoReturn:
    """Undo what was published of a copy, and raise the failure."""
    undone = undo_all(open_blobs(plan.target), receipts)
    if isinstance(exc, UnknownOutcomeError):
        # not a failure for certain: the dataset may be there, with commits of others on top
        raise exc
    names = [receipt.uuid for receipt in receipts]
    if plan.overwrite:
        advice = "" if undone else ". Datasets may have been overwritten; copy the cube again"
        raise RuntimeError(f"Failed to copy dataset {failed}: {exc}{advice}") from exc
    raise MultiTableCommitAborted(failed, rolled_back=names if undone else [], detail=str(exc)) from exc


@attrs.frozen
class CopyTask:
    """Some files of one dataset: source key to target key."""

    target_uuid: str
    keys: Mapping[str, str]


def copy_tasks(plan: CopyPlan, blocksize: int) -> list[CopyTask]:
    """Independent tasks that copy files, before any header is copied."""
    source = open_blobs(plan.source)
    return [
        CopyTask(target_uuid, dict(block))
        for source_uuid, target_uuid in plan.uuids.items()
        for block in batched(
            list(plan_copy_dataset(source, source_uuid, target_uuid).keys.items()), blocksize
        )
    ]


def run_copy_task(plan: CopyPlan, task: CopyTask) -> None:
    """Copy the files of one task."""
    try:
        run_copy(open_blobs(plan.source), open_blobs(plan.target), task.keys)
    except FAILURES as exc:
        rollback_copy(plan, [], task.target_uuid, exc)


def copy_datasets(plan: CopyPlan) -> None:
    """Copy the datasets of a plan one after the other, each in its newest state."""
    _copy_datasets(plan, lambda target, copy: copy.keys)


def finish_copies(plan: CopyPlan) -> None:
    """Publish datasets whose files tasks have copied, with what was committed to the source since."""
    _copy_datasets(plan, _missing)


def _copy_datasets(plan: CopyPlan, files: Callable[[BlobStore, DatasetCopy], Mapping[str, str]]) -> None:
    source, target = open_blobs(plan.source), open_blobs(plan.target)
    receipts: list[CommitReceipt] = []
    for source_uuid, target_uuid in plan.uuids.items():
        try:
            copy = plan_copy_dataset(source, source_uuid, target_uuid)
            run_copy(source, target, files(target, copy))
            _, receipt = finish_copy(target, copy, overwrite=plan.overwrite)
        except FAILURES as exc:
            rollback_copy(plan, receipts, target_uuid, exc)
        receipts.append(receipt)


def _missing(target: BlobStore, copy: DatasetCopy) -> dict[str, str]:
    """Files that are missing in the target."""
    present = {blob.key for blob in target.list(f"{copy.target_uuid}/")}
    return {key: new for key, new in copy.keys.items() if new not in present}


def copy_cube_job(plan: CopyPlan, blocksize: int | None = None) -> Job[CopyPlan, CopyTask, None, None]:
    """Copy files in blocks, then schemas and headers; without block size all of it in the last step."""
    return Job(
        name="copy_cube",
        description=f"copy cube {plan.cube.uuid_prefix}",
        context=plan,
        tasks=[] if blocksize is None else copy_tasks(plan, blocksize),
        run=run_copy_task,
        finish=partial(_finish_copy_job, copy_datasets if blocksize is None else finish_copies, plan),
        merge=discard_results,
        steps=("prepare", "files", "headers"),
    )


def _finish_copy_job(finish: Callable[[CopyPlan], None], plan: CopyPlan, copied: Iterable[None]) -> None:
    discard_results(copied)
    finish(plan)
