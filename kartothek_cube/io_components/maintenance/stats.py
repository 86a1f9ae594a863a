"""Sizes of the datasets of a cube: files, partitions, bytes and rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Generic, TypeAlias

import attrs

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput, select_datasets
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset_files import data_keys
from kartothek_cube.core.store import StoreFactory, StoreInput, open_blobs
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import CountsByDataset, Job
from kartothek_cube.io_components.kernels import group_codes
from kartothek_cube.io_components.runtime import batched, progress_advance, store_factory
from kartothek_cube.kartothek_helpers import footer_stats

Stats: TypeAlias = dict[str, dict[str, int]]


@attrs.frozen
class StatsTask:
    """Some data files of one dataset, to be counted."""

    name: str
    keys: tuple[str, ...]


def count_partitions(dataset: DatasetMetadata) -> int:
    """Count the physical partitions: combinations of values of the partition keys."""
    values = dataset.partition_table.keys(list(dataset.partition_keys or ()), dataset.schema)
    codes = group_codes(list(values.values()), len(dataset.partition_table))
    return int(codes.max()) + 1 if len(codes) else 0


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


@attrs.frozen
class CollectStats(Generic[StoreT]):
    """Count what is stored.

    Parameters
    ----------
    datasets
        Ids, or a dict of id to metadata; by default all datasets of the cube.

    Returns
    -------
    dict
        Dataset id to ``blobsize`` (bytes of data files), ``files``, ``partitions`` (different values of the
        partition keys) and ``rows`` (in files, hidden ones included).

    Raises
    ------
    ValueError
        There is no such cube or dataset.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> from kartothek_cube.io.eager_cube import collect_stats
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> collect_stats(cube, store)["seed"]["rows"]
    2
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    datasets: DatasetsInput = None

    def job(
        self, blocksize: int | None = None
    ) -> Job[StoreFactory, StatsTask, Stats, dict[str, dict[str, int]]]:
        """Count the files of the datasets of a cube, then add up."""
        base: Stats = {}
        tasks: list[StatsTask] = []
        for name, dataset in select_datasets(self.cube, self.store, self.datasets).items():
            keys = data_keys(dataset)
            # known without opening files
            base[name] = {"files": len(keys), "partitions": count_partitions(dataset)}
            tasks += [StatsTask(name, tuple(part)) for part in batched(keys, blocksize or 100)]
        return Job(
            name="collect_stats",
            description=f"count cube {self.cube.uuid_prefix}",
            context=store_factory(self.store),
            tasks=tasks,
            run=run_stats,
            finish=partial(_finish_stats, base),
            merge=add_stats,
            steps=("prepare", "count", "sum"),
            files=sum(len(task.keys) for task in tasks),
        )


def _finish_stats(base: Stats, counted: Iterable[Stats]) -> Stats:
    """Add up all stats; datasets without partitions are left out."""
    total = sorted(add_stats([base, *counted]).items())
    return CountsByDataset({name: sums for name, sums in total if sums["partitions"]})
