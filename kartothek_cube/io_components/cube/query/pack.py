"""Cutting a query into tasks of about equal size, by the size of a few files."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.io_components.cube.query.layout import QueryPlan, Source, Task
from kartothek_cube.io_components.execute import REMOTE_REQUESTS, ordered_map

__all__ = ("TASK_SIZE", "pack")

#: bytes in files, of the columns needed, that a task may read at once
TASK_SIZE = 64 << 20
#: less than this is not worth a task of its own
_WORTH_A_TASK = 1 << 20
#: files of each dataset that are looked at
_SAMPLE = 16

Weights = npt.NDArray[np.float64]


def pack(plan: QueryPlan, workers: int, tasks_per_worker: int = 3, size: int = TASK_SIZE) -> list[Task]:
    """
    Tasks that together are the query, each read and joined at once.

    Parameters
    ----------
    plan
        The query.
    workers
        How many tasks run at the same time.
    tasks_per_worker
        How many of them each worker should get, so that none waits long for the slowest.
    size
        Bytes that a task should not exceed; a single partition or group may.

    Returns
    -------
    list of Task
        Over consecutive groups, or over consecutive physical partitions without ``partition_by``.
    """
    if not plan.n_units or (plan.groups is not None and not plan.groups):
        return []
    sizes = _file_sizes(plan)
    # files that every task has to read do not count: more tasks make no less of them
    aligned = [
        0.0 if not source.alignment else size
        for source, size in zip(plan.context.sources, sizes, strict=True)
    ]
    weights = plan.unit_weights(aligned)
    repeated = float(plan.unit_weights(sizes).max() - weights.max())
    size = max(size, int(repeated))
    if plan.groups is None:
        return plan.unit_tasks(_bounds(weights, workers * tasks_per_worker, size))
    # what several groups share is read once per task: the fewer tasks, the better
    shared = sum(len(units) for units in plan.group_units or ()) > plan.n_units
    return plan.group_tasks(
        _bounds(plan.group_weights(weights), workers * (1 if shared else tasks_per_worker), size)
    )


def _file_sizes(plan: QueryPlan) -> list[float]:
    """For each dataset about how many bytes of a file are needed."""
    blobs = open_blobs(plan.context.store)
    return [
        _mean_size(blobs, keys) * _needed_share(source)
        for source, keys in zip(plan.context.sources, plan.sample_keys(_SAMPLE), strict=True)
    ]


def _mean_size(blobs: BlobStore, keys: tuple[str, ...]) -> float:
    threads = 1 if blobs.is_local else REMOTE_REQUESTS
    return float(np.mean(list(ordered_map(blobs.size, keys, threads)))) if keys else 0.0


def _needed_share(source: Source) -> float:
    stored = set(source.schema.names) - set(source.partition_keys)
    return len(stored & set(source.columns)) / max(len(stored), 1)


def _bounds(weights: Weights, least: int, size: int) -> npt.NDArray[np.int64]:
    """Bounds of pieces of equal weight: at least so many, none above the size, if they are worth it."""
    ends = np.cumsum(weights)
    total = float(ends[-1])
    pieces = max(int(np.ceil(total / size)), min(least, int(np.ceil(total / _WORTH_A_TASK))), 1)
    cuts = np.searchsorted(ends, total * np.arange(1, pieces) / pieces, "left") + 1
    bounds: npt.NDArray[np.int64] = np.unique(np.concatenate([[0], cuts, [len(weights)]]))
    return bounds
