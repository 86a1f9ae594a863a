"""Cutting a query into tasks of about equal size, by the size of a few files."""

from __future__ import annotations

from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.cube.query.layout import DatasetScan, PhysicalPlan, ScanTask
from kartothek_cube.io_components.packing import SAMPLE, TASK_SIZE, mean_size, split_by_weight

__all__ = ("column_fraction", "split_into_tasks")


def split_into_tasks(
    plan: PhysicalPlan, workers: int, tasks_per_worker: int = 3, size: int = TASK_SIZE
) -> list[ScanTask]:
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
    if not plan.n_partitions or (plan.groups is not None and not plan.groups):
        return []
    sizes = _file_sizes(plan)
    # files that every task has to read do not count: more tasks make no less of them
    aligned = [
        0.0 if not source.alignment else size
        for source, size in zip(plan.context.sources, sizes, strict=True)
    ]
    weights = plan.partition_bytes(aligned)
    repeated = float(plan.partition_bytes(sizes).max() - weights.max())
    size = max(size, int(repeated))
    if plan.groups is None:
        return plan.partition_tasks(split_by_weight(weights, workers * tasks_per_worker, size))
    # what several groups share is read once per task: the fewer tasks, the better
    shared = sum(len(units) for units in plan.group_units or ()) > plan.n_partitions
    return plan.group_tasks(
        split_by_weight(plan.group_weights(weights), workers * (1 if shared else tasks_per_worker), size)
    )


def _file_sizes(plan: PhysicalPlan) -> list[float]:
    """For each dataset about how many bytes of a file are needed."""
    blobs = open_blobs(plan.context.store)
    return [
        mean_size(blobs, keys) * column_fraction(source)
        for source, keys in zip(plan.context.sources, plan.sample_keys(SAMPLE), strict=True)
    ]


def column_fraction(source: DatasetScan) -> float:
    """Share of the columns in its files that a query needs of a dataset."""
    stored = set(source.schema.names) - set(source.partition_keys)
    return len(stored & set(source.columns)) / max(len(stored), 1)
