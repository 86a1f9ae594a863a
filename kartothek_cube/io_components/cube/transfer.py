"""Copy of a cube: data and index files in any order, then schemas and headers, the seed last."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from kartothek_cube.core.commit import CommitReceipt
from kartothek_cube.core.errors import KartothekCubeError
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.io_components.copy import DatasetCopy, finish_copy, plan_copy_dataset, run_copy
from kartothek_cube.io_components.cube.maintain import CopyPlan, rollback_copy
from kartothek_cube.io_components.execute import batched

__all__ = ("CopyTask", "copy_datasets", "copy_tasks", "finish_copies", "run_copy_task")

#: what a store raises if something is missing or fails
_FAILURES = (KartothekCubeError, RuntimeError, ValueError, KeyError, OSError)


@attrs.frozen
class CopyTask:
    """Some files of one dataset: source key to target key."""

    target_uuid: str
    keys: Mapping[str, str]


def copy_tasks(plan: CopyPlan, blocksize: int) -> list[CopyTask]:
    """
    Files to copy before any header is.

    Parameters
    ----------
    plan
        The copy.
    blocksize
        Files per task.

    Returns
    -------
    list of CopyTask
        Independent of each other.
    """
    source = open_blobs(plan.source)
    return [
        CopyTask(target_uuid, dict(block))
        for source_uuid, target_uuid in plan.uuids.items()
        for block in batched(
            list(plan_copy_dataset(source, source_uuid, target_uuid).keys.items()), blocksize
        )
    ]


def run_copy_task(plan: CopyPlan, task: CopyTask) -> None:
    """
    Copy the files of one task.

    Raises
    ------
    MultiTableCommitAborted, RuntimeError
        If that fails; no header has been copied then.
    """
    try:
        run_copy(open_blobs(plan.source), open_blobs(plan.target), task.keys)
    except _FAILURES as exc:
        rollback_copy(plan, [], task.target_uuid, exc)


def copy_datasets(plan: CopyPlan) -> None:
    """
    Copy the datasets of a plan one after the other, each in the state in which it is when its turn comes.

    Raises
    ------
    MultiTableCommitAborted, RuntimeError
        If one fails; what was published before is taken back.
    """
    _copy_datasets(plan, lambda target, copy: copy.keys)


def finish_copies(plan: CopyPlan) -> None:
    """
    Publish datasets whose files tasks have copied, and copy what has been committed to the source since.

    Raises
    ------
    MultiTableCommitAborted, RuntimeError
        If one fails; what was published before is taken back.
    """
    _copy_datasets(plan, _missing)


def _copy_datasets(plan: CopyPlan, files: Callable[[BlobStore, DatasetCopy], Mapping[str, str]]) -> None:
    source, target = open_blobs(plan.source), open_blobs(plan.target)
    done: list[CommitReceipt] = []
    for source_uuid, target_uuid in plan.uuids.items():
        try:
            copy = plan_copy_dataset(source, source_uuid, target_uuid)
            run_copy(source, target, files(target, copy))
            _, published = finish_copy(target, copy, overwrite=plan.overwrite)
        except _FAILURES as exc:
            rollback_copy(plan, done, target_uuid, exc)
        done.append(published)


def _missing(target: BlobStore, copy: DatasetCopy) -> dict[str, str]:
    """What the target lacks."""
    present = {blob.key for blob in target.list(f"{copy.target_uuid}/")}
    return {key: new for key, new in copy.keys.items() if new not in present}
