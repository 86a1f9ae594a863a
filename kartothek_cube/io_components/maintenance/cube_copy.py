"""Copy of a cube: data files in independent tasks, then the headers, the seed last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import attrs

from kartothek_cube.core.arguments import converter_str_set_optional
from kartothek_cube.core.commit import CommitReceipt, Role
from kartothek_cube.core.commit.undo import undo_all
from kartothek_cube.core.cube.consistency import check_cube
from kartothek_cube.core.cube.constants import KTK_CUBE_UUID_SEPARATOR
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import (
    DatasetsInput,
    discover_datasets_unchecked,
    discover_ktk_cube_dataset_ids,
    existing_dataset_ids,
    select_datasets,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    KartothekCubeError,
    MissingFileError,
    MultiTableCommitAborted,
    UnknownOutcomeError,
    unknown_names,
)
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.store.resolve import check_reopens
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
from kartothek_cube.io_components.write.cube_write import commit_cube


@attrs.frozen
class CopyPlan:
    """The datasets to copy."""

    cube: Cube
    source: StoreFactory
    target: StoreFactory
    #: source uuid to target uuid, in the order of copying: the seed comes last
    uuids: Mapping[str, str]
    #: the cube as it will be in the target
    target_cube: Cube
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
    check_reopens(tgt_store)
    renamed_cube = cube.copy(uuid_prefix=renamed_cube_prefix or cube.uuid_prefix)
    uuid = renamed_cube.ktk_dataset_uuid(cube.seed_dataset)
    check_different_stores(src_store, tgt_store, uuid, gen_uuid())
    selected = select_datasets(cube, src_store, datasets, must_exist=False)
    _check_found(cube, src_store, selected, datasets)
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
    existing = existing_dataset_ids(target_cube.uuid_prefix, tgt_store)
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
        target_cube,
        overwrite,
    )


def _check_found(
    cube: Cube, store: StoreInput, selected: Mapping[str, DatasetMetadata], datasets: DatasetsInput
) -> None:
    if datasets is None and not selected:
        prefix = cube.uuid_prefix
        raise RuntimeError(f"Cube {prefix} not found in source store: there is no dataset {prefix}++...")
    if datasets is None or isinstance(datasets, Mapping):
        return
    missing = set(converter_str_set_optional(datasets) or ()) - set(selected)
    if missing:
        existing = existing_dataset_ids(cube.uuid_prefix, store)
        raise RuntimeError(
            f"Cube {cube.uuid_prefix} in the source store: " + unknown_names("dataset", missing, existing)
        )


def copy_error(plan: CopyPlan, undone: Sequence[str], failed: str, exc: BaseException) -> BaseException:
    """The error for a copy that failed, and was undone."""
    if isinstance(exc, UnknownOutcomeError):
        # not a failure for certain: the dataset may be there, with commits of others on top
        return exc
    # the text of a plain KeyError is the key alone
    is_missing = isinstance(exc, KeyError) and not isinstance(exc, KartothekCubeError)
    problem = str(MissingFileError(exc.args[0])) if is_missing and exc.args else str(exc)
    if plan.overwrite:
        error: BaseException = RuntimeError(f"Failed to copy dataset {failed}: {problem}")
    else:
        error = MultiTableCommitAborted(failed, rolled_back=undone, detail=problem)
    error.__cause__ = exc
    return error


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
        raise copy_error(plan, [], task.target_uuid, exc) from exc


def copy_datasets(plan: CopyPlan) -> None:
    """Copy the datasets of a plan one after the other, each in its newest state."""
    _copy_datasets(plan, lambda target, copy: copy.keys)


def finish_copies(plan: CopyPlan) -> None:
    """Publish datasets whose files tasks have copied, with what was committed to the source since."""
    _copy_datasets(plan, _missing)


def _copy_datasets(plan: CopyPlan, files: Callable[[BlobStore, DatasetCopy], Mapping[str, str]]) -> None:
    source, target = open_blobs(plan.source), open_blobs(plan.target)
    prefix = plan.cube.uuid_prefix + KTK_CUBE_UUID_SEPARATOR
    # one state of all datasets
    states = discover_datasets_unchecked(
        plan.cube.uuid_prefix, source, [uuid.removeprefix(prefix) for uuid in plan.uuids]
    )
    copies = {}
    for source_uuid, target_uuid in plan.uuids.items():
        try:
            state = states.get(source_uuid.removeprefix(prefix))
            if state is None:
                raise DatasetNotFoundError(source_uuid)
            copy = plan_copy_dataset(source, source_uuid, target_uuid, state, plan.uuids)
            run_copy(source, target, files(target, copy))
            copies[target_uuid] = copy
        except FAILURES as exc:
            raise copy_error(plan, [], target_uuid, exc) from exc
    _publish(plan, target, copies)


def _publish(plan: CopyPlan, target: BlobStore, copies: Mapping[str, DatasetCopy]) -> None:
    """Put the headers of all datasets, the seed last."""
    started: list[str] = []
    receipts: list[CommitReceipt] = []

    def put_header(copy: DatasetCopy, role: Role) -> tuple[None, CommitReceipt]:
        started.append(copy.target_uuid)
        _, receipt = finish_copy(target, copy, overwrite=plan.overwrite, role=role)
        return None, receipt

    seed = plan.target_cube.ktk_dataset_uuid(plan.target_cube.seed_dataset)
    steps = {uuid: partial(put_header, copy) for uuid, copy in copies.items()}
    try:
        if seed in copies and not discover_ktk_cube_dataset_ids(plan.target_cube.uuid_prefix, target):
            # a new cube: there is none before its seed, and headers stay byte by byte those of the source
            for step in steps.values():
                receipts.append(step(None)[1])
        else:
            commit_cube(plan.target_cube, target, steps, creates=True)
    except FAILURES as exc:
        undo_all(target, receipts)
        raise copy_error(plan, started[:-1], started[-1] if started else seed, exc) from exc


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
