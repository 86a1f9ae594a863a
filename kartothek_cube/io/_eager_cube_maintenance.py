"""Looking after cubes at once: statistics, garbage, cube_history, compaction, checks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.history import DatasetState
from kartothek_cube.core.store import Blob, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.maintenance import cube_history, garbage
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.maintenance.garbage import delete_garbage, plan_cube_garbage, with_sizes
from kartothek_cube.io_components.maintenance.stats import plan_stats, run_stats, sum_stats
from kartothek_cube.io_components.runtime.progress import progress_bar
from kartothek_cube.io_components.runtime.threads import available_cores, ordered_map, progress_add_total
from kartothek_cube.serialization import DataFrameSerializer

if TYPE_CHECKING:
    from kartothek_cube.io_components.verify.report import Report

__all__ = (
    "cleanup_cube",
    "collect_stats",
    "compact_cube",
    "keep_cube_history",
    "list_cube_garbage",
    "list_cube_history",
    "repair_cube",
    "rollback_cube",
    "verify_cube",
)


def collect_stats(
    cube: Cube, store: StoreInput, datasets: Any = None, *, progress: bool = False
) -> dict[str, dict[str, int]]:
    """
    Count what is stored.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    datasets
        Ids, or a dict of id to metadata; by default all datasets of the cube.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to ``blobsize`` (bytes of data files), ``files``, ``partitions`` (different values of the
        partition keys) and ``rows`` (in files, hidden ones included).
    """
    with progress_bar("stats", progress):
        base, tasks = plan_stats(cube, store, datasets)
        progress_add_total(sum(len(task.keys) for task in tasks))
        return sum_stats([base, *(run_stats(store, task) for task in tasks)])


def cleanup_cube(cube: Cube, store: StoreInput, *, retention: timedelta | None = None) -> None:
    """
    Remove what overwritten, failed or removed data left behind: keys of the cube that no dataset refers to.

    Files of older states that are kept (:func:`keep_cube_history`) stay.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    retention
        Files that were written less than this time ago stay, since a writer that has not committed yet may
        need them; so do files of which the store does not tell the age. Their time stamp is compared with the
        clock of the store, which is read from an empty file that is put and deleted. None: files of any age
        go, and writers that are not done with theirs get a ConcurrentWriteError.
    """
    delete_garbage(store, plan_cube_garbage(cube, store, retention))


def list_cube_garbage(cube: Cube, store: StoreInput, *, retention: timedelta | None = None) -> list[Blob]:
    """
    What :func:`cleanup_cube` would delete; nothing is deleted.

    Parameters
    ----------
    cube, store, retention
        As there.

    Returns
    -------
    list of Blob
        Each with ``key``, ``size`` in bytes and ``mtime`` in seconds since 1970 (None where the store does
        not tell), sorted by key.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube, remove_partitions
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Rom", "Ulm"], "COUNTRY_CODE": ["IT", "DE"]})
    >>> _ = build_cube(cities, cube, store)
    >>> list_cube_garbage(cube, store)
    []
    >>> _ = remove_partitions(cube, store)
    >>> sum(blob.key.startswith("geodata++seed/table/") for blob in list_cube_garbage(cube, store))
    2
    """
    return with_sizes(open_blobs(store), garbage.list_cube_garbage(cube, store, retention))


def keep_cube_history(
    cube: Cube,
    store: StoreInput,
    states: int,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Keep older states of the datasets of a cube from now on, so that they can be queried and returned to.

    The number is remembered in the metadata of each dataset, under ``kartothek_cube_keep_history``; it may be
    given there right when the cube is built.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    states
        How many states of each dataset are kept beside the current one. With 0 all of them are thrown away;
        their files are garbage then.
    ktk_cube_dataset_ids
        Datasets concerned; all by default.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    ValueError
        ``states`` is no number of states, or there is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import append_to_cube, build_cube, query_cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Ulm"], "COUNTRY_CODE": ["DE"], "PEOPLE": [126_000]})
    >>> built = build_cube(cities, cube, store)
    >>> _ = keep_cube_history(cube, store, states=5)
    >>> monday = list_cube_history(cube, store)["seed"][-1].time
    >>> _ = append_to_cube(cities.assign(PEOPLE=126_329), cube, store)
    >>> query_cube(cube, store, as_of=monday)[0]["PEOPLE"].tolist()
    [126000]
    >>> _ = rollback_cube(cube, store, as_of=monday)
    >>> query_cube(cube, store)[0]["PEOPLE"].tolist()
    [126000]
    """
    return cube_history.keep_cube_history(cube, store, states, ktk_cube_dataset_ids)


def list_cube_history(cube: Cube, store: StoreInput) -> dict[str, list[DatasetState]]:
    """
    The states of the datasets of a cube that can be read.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.

    Returns
    -------
    dict
        Dataset id to states, each with ``version``, ``time`` (UTC) and whether it is the ``current`` one;
        oldest first.
    """
    return cube_history.list_cube_history(cube, store)


def rollback_cube(
    cube: Cube,
    store: StoreInput,
    as_of: CubeAsOf,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Make older states of datasets the current ones, each by a commit of its own; what they replace is kept.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    as_of
        Point in time: each dataset returns to its newest state that is not newer. Or a dict of dataset id to
        version or time; then the others stay as they are.
    ktk_cube_dataset_ids
        Datasets concerned; all by default.

    Returns
    -------
    dict
        Dataset id to metadata of the datasets concerned.

    Raises
    ------
    ValueError
        A dataset does not exist, or the datasets would not form the cube.
    StateNotFoundError
        A state is not kept (any more), or a dataset did not exist then: delete that dataset first, or name
        the others.
    CorruptDatasetError
        Files of a state are gone. Nothing is changed.
    ConcurrentWriteError
        Somebody committed meanwhile. Nothing is changed.
    """
    return cube_history.return_cube(cube, store, as_of, ktk_cube_dataset_ids)


def compact_cube(
    cube: Cube,
    store: StoreInput,
    conditions: Any = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
    progress: bool = False,
) -> dict[str, dict[str, int]]:
    """
    Merge the files of each physical partition into one, without the cells that newer ones hide.

    Queries give the same before and after. Each dataset is compacted by one commit. Appends may go on
    meanwhile: what they add stays newer. The old files stay until :func:`cleanup_cube`.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    conditions
        Conditions on partition columns of the cube that choose partitions; by default all.
    ktk_cube_dataset_ids
        Datasets concerned; all by default.
    df_serializer
        How files are written; Parquet with ZSTD by default.
    min_files
        Partitions with fewer files are left as they are.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to the number of ``partitions`` that were looked at, and their ``files_before``,
        ``files_after``, ``bytes_before``, ``bytes_after``, ``rows_before`` and ``rows_after``.

    Raises
    ------
    ValueError
        For conditions on other columns, and unknown datasets.
    ConcurrentWriteError
        Somebody replaced or removed files while they were compacted. That dataset is as it was.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import append_to_cube, build_cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Ulm"], "COUNTRY_CODE": ["DE", "DE"], "PEOPLE": [336, 126]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = append_to_cube(cities.tail(1).assign(PEOPLE=127), cube, store)
    >>> counts = compact_cube(cube, store)["seed"]
    >>> counts["files_before"], counts["files_after"], counts["rows_before"], counts["rows_after"]
    (2, 1, 3, 2)
    """
    # what is rarely called is imported late: importing this module stays quick
    from kartothek_cube.io_components.maintenance.compact import finish_compact, plan_compact, run_compact

    context, tasks = plan_compact(cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files)
    with progress_bar("compact", progress):
        progress_add_total(sum(len(task.labels) for task in tasks))
        results = list(ordered_map(partial(run_compact, context), tasks, available_cores()))
        return finish_compact(context, results)


def verify_cube(
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
    progress: bool = False,
) -> Report:
    """
    Check that the datasets of a cube are what their headers say, and form the cube; nothing is changed.

    On top of :func:`~kartothek_cube.io.eager.verify_dataset`: there is a seed, types agree, payload belongs
    to one dataset, rows are sorted by cell, keys are not null, and there are all indices that the cube
    demands.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    ktk_cube_dataset_ids
        Datasets concerned; all by default.
    deep
        Whether all rows are read; otherwise only the footers of files are, and indices are not compared with
        the data.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    Report
        ``report.ok`` tells whether all is well, ``report.problems`` what is not and what to do about it.

    Raises
    ------
    ValueError
        There is no such cube, or a dataset that is asked for does not exist.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> dataset = build_cube(cities, cube, store)["seed"]
    >>> verify_cube(cube, store).ok
    True
    >>> store.delete(dataset.indices["CITY"].index_storage_key)
    >>> repair_cube(cube, store)  # doctest: +ELLIPSIS
    no problems in 1 datasets, 2 files, 2 rows, 1 indices
    repaired: geodata++seed: missing-index: the index of CITY does not exist [...]
    """
    from kartothek_cube.io_components.verify.cube_rules import (
        finish_cube_verify,
        plan_cube_verify,
        run_cube_verify,
    )

    plan = plan_cube_verify(cube, store, ktk_cube_dataset_ids, deep=deep)
    run, tasks = partial(run_cube_verify, plan.contexts()), plan.tasks()
    with progress_bar("verify", progress):
        progress_add_total(sum(len(task.task.keys) for task in tasks))
        return finish_cube_verify(plan, list(ordered_map(run, tasks, available_cores())))


def repair_cube(
    cube: Cube, store: StoreInput, ktk_cube_dataset_ids: str | Iterable[str] | None = None
) -> Report:
    """
    Check a cube and build anew what can be: indices that are wrong or missing, by one commit per dataset.

    Parameters
    ----------
    cube, store, ktk_cube_dataset_ids
        As in :func:`verify_cube`.

    Returns
    -------
    Report
        What is still wrong afterwards, and what was ``repaired``.

    Raises
    ------
    ValueError
        As :func:`verify_cube`.
    """
    from kartothek_cube.io_components.verify.repair import compare_reports, repair

    before = verify_cube(cube, store, ktk_cube_dataset_ids)
    uuids = sorted({problem.dataset for problem in before.problems if problem.repairable})
    if not [uuid for uuid in uuids if repair(uuid, store, before.problems)]:
        return before
    return compare_reports(before, verify_cube(cube, store, ktk_cube_dataset_ids))
