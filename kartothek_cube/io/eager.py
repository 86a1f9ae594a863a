"""Datasets with pandas, at once: every function does its whole work before it returns."""

from __future__ import annotations

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.copy import finish_copy, plan_copy_dataset, run_copy

__all__ = ("copy_dataset",)


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
    """
    target_uuid = target_dataset_uuid or source_dataset_uuid
    target_input = store if target_store is None else target_store
    if source_dataset_uuid == target_uuid and store == target_input:
        raise ValueError("Cannot copy a dataset onto itself: give another target_dataset_uuid or another target_store")
    source, target = open_blobs(store), open_blobs(target_input)
    copy = plan_copy_dataset(source, source_dataset_uuid, target_uuid)
    run_copy(source, target, copy.keys)
    return finish_copy(source, target, copy)
