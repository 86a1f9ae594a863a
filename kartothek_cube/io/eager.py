"""Datasets with pandas, at once: every function does its whole work before it returns."""

from __future__ import annotations

from collections.abc import Sequence

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io._eager_maintenance import (
    garbage_collect_dataset,
    keep_dataset_history,
    list_dataset_garbage,
    list_dataset_history,
    repair_dataset,
    rollback_dataset,
    verify_dataset,
)
from kartothek_cube.io._eager_read import read_dataset_as_dataframes, read_table
from kartothek_cube.io._eager_write import (
    commit_dataset,
    create_empty_dataset_header,
    store_dataframes_as_dataset,
    update_dataset_from_dataframes,
    write_single_partition,
)
from kartothek_cube.io_components.arguments import dataset_factory
from kartothek_cube.io_components.maintenance.copy import finish_copy, plan_copy_dataset, run_copy
from kartothek_cube.io_components.maintenance.delete import plan_delete, run_delete
from kartothek_cube.io_components.utils import normalize_arg
from kartothek_cube.io_components.write.build_index import (
    finish_index_build,
    plan_index_build,
    run_index_build,
)

__all__ = (
    "build_dataset_indices",
    "commit_dataset",
    "copy_dataset",
    "create_empty_dataset_header",
    "delete_dataset",
    "garbage_collect_dataset",
    "keep_dataset_history",
    "list_dataset_garbage",
    "list_dataset_history",
    "read_dataset_as_dataframes",
    "read_table",
    "repair_dataset",
    "rollback_dataset",
    "store_dataframes_as_dataset",
    "update_dataset_from_dataframes",
    "verify_dataset",
    "write_single_partition",
)


def build_dataset_indices(
    store: StoreInput | None,
    dataset_uuid: str | None,
    columns: str | Sequence[str],
    factory: DatasetFactory | None = None,
) -> DatasetMetadata:
    """
    Add secondary indices to a dataset, or build existing ones anew. Only the columns concerned are read.

    Parameters
    ----------
    store, dataset_uuid, factory
        As in :func:`read_dataset_as_dataframes`.
    columns
        Columns to index.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    KeyError
        There is no such dataset.
    RuntimeError
        A column does not exist, or is a partition key.

    Examples
    --------
    >>> import pandas as pd
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Bonn", "Rom"]})])
    >>> sorted(build_dataset_indices(store, "geodata", ["CITY"]).indices)
    ['CITY']
    """
    wanted = normalize_arg("columns", columns) or []
    context, tasks = plan_index_build(dataset_factory(dataset_uuid, store, factory), wanted)
    return finish_index_build(context, [run_index_build(context, task) for task in tasks])


def delete_dataset(
    dataset_uuid: str | None = None, store: StoreInput | None = None, factory: DatasetFactory | None = None
) -> None:
    """
    Delete a dataset: its header first, so that it is there as a whole or not at all, then all its files.

    Called again, it deletes what an earlier call that died has left.

    Other keys that start with its uuid stay.

    Parameters
    ----------
    dataset_uuid
        Uuid of the dataset.
    store
        Store, factory or URL.
    factory
        The dataset itself, instead of the two others.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Rom"]})])
    >>> delete_dataset("geodata", store)
    >>> list(store.keys())
    []
    """
    dataset = dataset_factory(dataset_uuid, store, factory, load_schema=False)
    run_delete(dataset.store_factory, plan_delete(dataset))


def copy_dataset(
    source_dataset_uuid: str,
    store: StoreInput,
    target_dataset_uuid: str | None = None,
    target_store: StoreInput | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Copy a dataset under another name, to another store, or both.

    Parameters
    ----------
    source_dataset_uuid
        The dataset.
    store
        Where it is.
    target_dataset_uuid
        Name of the copy; the same by default.
    target_store
        Where the copy goes; the same store by default.

    Returns
    -------
    dict
        Key of the new header to its metadata.

    Raises
    ------
    ValueError
        If neither name nor store differ.
    KeyError
        If there is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Bonn", "Rom"]})])
    >>> list(copy_dataset("geodata", store, "geodata_backup"))
    ['geodata_backup.by-dataset-metadata.json']
    """
    target_uuid = target_dataset_uuid or source_dataset_uuid
    target_input = store if target_store is None else target_store
    if source_dataset_uuid == target_uuid and store == target_input:
        raise ValueError(
            "Cannot copy a dataset onto itself: give another target_dataset_uuid or another target_store"
        )
    source, target = open_blobs(store), open_blobs(target_input)
    copy = plan_copy_dataset(source, source_dataset_uuid, target_uuid)
    run_copy(source, target, copy.keys)
    return finish_copy(target, copy)[0]
