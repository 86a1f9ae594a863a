"""Looking after datasets at once: garbage, rollback, checks."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import AsOf, DatasetState
from kartothek_cube.core.store import Blob, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.arguments import dataset_factory
from kartothek_cube.io_components.maintenance import rollback
from kartothek_cube.io_components.maintenance.garbage import (
    delete_garbage,
    list_garbage,
    plan_garbage,
    with_sizes,
)
from kartothek_cube.io_components.runtime.threads import available_cores, ordered_map

if TYPE_CHECKING:
    from kartothek_cube.io_components.verify.report import Report

__all__ = (
    "garbage_collect_dataset",
    "keep_dataset_history",
    "list_dataset_garbage",
    "list_dataset_history",
    "repair_dataset",
    "rollback_dataset",
    "verify_dataset",
)


def garbage_collect_dataset(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    retention: timedelta | None = None,
) -> None:
    """
    Delete what failed, overwritten or removed writes left behind: files that the dataset does not refer to.

    Files of older states that are kept (:func:`keep_dataset_history`) stay.

    Parameters
    ----------
    dataset_uuid, store, factory
        As in :func:`~kartothek_cube.io.eager.read_dataset_as_dataframes`.
    retention
        Files that were written less than this time ago stay, since a writer that has not committed yet may
        need them; so do files of which the store does not tell the age. Their time stamp is compared with the
        clock of the store, which is read from an empty file that is put and deleted. None: files of any age
        go, and writers that are not done with theirs get a ConcurrentWriteError. It does not protect readers
        of older states, whose files may be old: a history does.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset, write_single_partition
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Bonn", "Rom"]})])
    >>> before = set(store.keys())
    >>> _ = write_single_partition(store, "geodata", pd.DataFrame({"CITY": ["Ulm"]}))  # never committed
    >>> garbage_collect_dataset("geodata", store)
    >>> set(store.keys()) == before
    True
    """
    dataset = dataset_factory(dataset_uuid, store, factory)
    delete_garbage(dataset.store_factory, plan_garbage(dataset, retention))


def list_dataset_garbage(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    retention: timedelta | None = None,
) -> list[Blob]:
    """
    What :func:`garbage_collect_dataset` would delete; nothing is deleted.

    Parameters
    ----------
    dataset_uuid, store, factory, retention
        As there.

    Returns
    -------
    list of Blob
        Each with ``key``, ``size`` in bytes and ``mtime`` in seconds since 1970 (None where the store does
        not tell), sorted by key.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"]})
    >>> for _ in range(2):
    ...     _ = store_dataframes_as_dataset(store, "geodata", [cities], overwrite=True)
    >>> len(list_dataset_garbage("geodata", store))
    1
    """
    dataset = dataset_factory(dataset_uuid, store, factory)
    return with_sizes(open_blobs(dataset.store_factory), list_garbage(dataset, retention))


def keep_dataset_history(dataset_uuid: str, store: StoreInput, states: int) -> DatasetMetadata:
    """
    Keep older states of a dataset from now on, so that they can be read and returned to.

    The number is remembered in the metadata of the dataset, under ``kartothek_cube_keep_history``; it may be
    given there right when the dataset is written. An overwrite takes it over.

    Parameters
    ----------
    dataset_uuid
        Uuid of the dataset.
    store
        Store, factory or URL.
    states
        How many states are kept beside the current one. With 0 all of them are thrown away; their files are
        garbage then.

    Returns
    -------
    DatasetMetadata

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        ``states`` is no number of states.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import read_table, store_dataframes_as_dataset
    >>> from kartothek_cube.io.eager import update_dataset_from_dataframes
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> metadata = {"kartothek_cube_keep_history": 10}
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Rom"]})], metadata)
    >>> _ = update_dataset_from_dataframes([pd.DataFrame({"CITY": ["Ulm"]})], store, "geodata")
    >>> [(state.version, state.current) for state in list_dataset_history("geodata", store)]
    [(1, False), (2, True)]
    >>> read_table("geodata", store, as_of=1)["CITY"].tolist()
    ['Rom']
    >>> _ = rollback_dataset("geodata", store, as_of=1)
    >>> read_table("geodata", store)["CITY"].tolist()
    ['Rom']
    >>> [state.version for state in list_dataset_history("geodata", store)]
    [1, 2, 3]
    """
    return rollback.keep_history(dataset_uuid, store, states)


def list_dataset_history(dataset_uuid: str, store: StoreInput) -> list[DatasetState]:
    """
    The states of a dataset that can be read.

    Parameters
    ----------
    dataset_uuid
        Uuid of the dataset.
    store
        Store, factory or URL.

    Returns
    -------
    list of DatasetState
        Each with ``version``, ``time`` (UTC) and whether it is the ``current`` one; oldest first.

    Raises
    ------
    KeyError
        There is no such dataset.
    """
    return rollback.list_history(dataset_uuid, store)


def rollback_dataset(dataset_uuid: str, store: StoreInput, as_of: AsOf) -> DatasetMetadata:
    """
    Make an older state of a dataset the current one, by a commit of its own: what it replaces is kept, too.

    Parameters
    ----------
    dataset_uuid
        Uuid of the dataset.
    store
        Store, factory or URL.
    as_of
        Version of the state, or a point in time for the newest one that is not newer.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    KeyError
        There is no such dataset.
    StateNotFoundError
        The state is not kept (any more).
    CorruptDatasetError
        Files of that state are gone. Nothing is changed.
    ConcurrentWriteError
        Somebody committed meanwhile. Nothing is changed.
    """
    blobs = open_blobs(store)
    return rollback.finish_rollback(blobs, rollback.plan_rollback(dataset_uuid, blobs, as_of))[0]


def verify_dataset(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    deep: bool = True,
) -> Report:
    """
    Check that a dataset is what its header says; nothing is changed.

    Every file exists and can be read, has the recorded schema and lies in its partition; indices know every
    value of the data and no others; older states that are kept are complete.

    Parameters
    ----------
    dataset_uuid, store, factory
        As in :func:`~kartothek_cube.io.eager.read_dataset_as_dataframes`.
    deep
        Whether all rows are read; otherwise only the footers of files are, and indices are not compared with
        the data.

    Returns
    -------
    Report
        ``report.ok`` tells whether all is well, ``report.problems`` what is not and what to do about it.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"]})
    >>> dataset = store_dataframes_as_dataset(store, "geodata", [cities], secondary_indices="CITY")
    >>> verify_dataset("geodata", store)
    no problems in 1 datasets, 1 files, 2 rows, 1 indices
    >>> store.delete(dataset.indices["CITY"].index_storage_key)
    >>> [problem.kind for problem in verify_dataset("geodata", store).problems]
    ['missing-index']
    >>> repair_dataset("geodata", store).ok
    True
    """
    # what is rarely called is imported late: importing this module stays quick
    from kartothek_cube.io_components.verify.finish import finish_verify
    from kartothek_cube.io_components.verify.plan import plan_verify
    from kartothek_cube.io_components.verify.run import run_verify

    dataset = dataset_factory(dataset_uuid, store, factory, load_schema=False)
    plan = plan_verify(dataset.dataset_uuid, dataset.store_factory, deep=deep)
    if plan.context is None:
        return finish_verify(plan, dataset.store_factory, [])
    findings = ordered_map(partial(run_verify, plan.context), plan.tasks, available_cores())
    return finish_verify(plan, dataset.store_factory, list(findings))


def repair_dataset(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
) -> Report:
    """
    Check a dataset and build anew what can be: wrong and missing indices, by one commit.

    Nothing is done where data files are missing or cannot be read, since nobody knows then what an index has
    to hold.

    Parameters
    ----------
    dataset_uuid, store, factory
        As in :func:`verify_dataset`.

    Returns
    -------
    Report
        What is still wrong afterwards, and what was ``repaired``.

    Raises
    ------
    KeyError
        There is no such dataset.
    """
    from kartothek_cube.io_components.verify.repair import compare_reports, repair

    dataset = dataset_factory(dataset_uuid, store, factory, load_schema=False)
    before = verify_dataset(factory=dataset)
    if not repair(dataset.dataset_uuid, dataset.store_factory, before.problems):
        return before
    return compare_reports(before, verify_dataset(factory=dataset))
