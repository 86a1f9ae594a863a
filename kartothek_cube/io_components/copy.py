"""Copying a dataset between stores or under a new name: blobs as they are, the header last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import attrs

from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBuilder
from kartothek_cube.core.errors import DatasetNotFoundError
from kartothek_cube.core.naming import check_uuid
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.execute import REMOTE_REQUESTS, count_file, expect_files, ordered_map
from kartothek_cube.io_components.keys import header_keys
from kartothek_cube.utils.ktk_adapters import get_dataset_keys

__all__ = ("DatasetCopy", "check_different_stores", "finish_copy", "plan_copy_dataset", "run_copy")


@attrs.frozen
class DatasetCopy:
    """
    A dataset to copy.

    Attributes
    ----------
    source_uuid, target_uuid
        Its names.
    keys
        Source key to target key of all blobs but the header.
    header_key
        Key of the new header.
    """

    source_uuid: str
    target_uuid: str
    keys: Mapping[str, str]
    header_key: str


def check_different_stores(src_store: StoreInput, tgt_store: StoreInput, uuid: str, token: str) -> None:
    """
    Check that two stores are not the same, by a key written to the target and looked for in the source.

    Raises
    ------
    ValueError
        If they are.
    """
    source, target = open_blobs(src_store), open_blobs(tgt_store)
    key = f"{uuid}/.test_store_difference.{token}"
    target.put(key, b"")
    try:
        same = source.exists(key)
    finally:
        target.delete([key])
    if same:
        raise ValueError("Stores are identical but should not be: a copy needs two different stores")


def _renamed(key: str, source_uuid: str, target_uuid: str) -> str:
    return target_uuid + key[len(source_uuid) :]


def plan_copy_dataset(source: BlobStore, source_uuid: str, target_uuid: str) -> DatasetCopy:
    """
    What belongs to a dataset and what it will be called.

    Raises
    ------
    KeyError
        If there is no such dataset.
    ValueError
        If the name is illegal.
    """
    check_uuid(target_uuid)
    dataset = DatasetMetadata.load_from_store(source_uuid, source)
    headers = header_keys(source_uuid)
    existing = [key for key in headers if source.exists(key)]
    if not existing:
        raise DatasetNotFoundError(source_uuid)
    keys = sorted(get_dataset_keys(dataset) - set(headers))
    return DatasetCopy(
        source_uuid,
        target_uuid,
        {key: _renamed(key, source_uuid, target_uuid) for key in keys},
        _renamed(existing[0], source_uuid, target_uuid),
    )


def run_copy(source: BlobStore, target: BlobStore, keys: Mapping[str, str]) -> None:
    """Copy blobs as they are."""
    for _ in _copied(source, target, keys):
        pass


def _copied(source: BlobStore, target: BlobStore, keys: Mapping[str, str]) -> Iterator[None]:
    expect_files(len(keys))
    return ordered_map(partial(_copy_one, source, target), list(keys.items()), REMOTE_REQUESTS)


def _copy_one(source: BlobStore, target: BlobStore, item: tuple[str, str]) -> None:
    data = source.get(item[0])
    target.put(item[1], data)
    count_file(len(data))


def finish_copy(source: BlobStore, target: BlobStore, copy: DatasetCopy) -> dict[str, DatasetMetadata]:
    """
    Write the header of the copy: with it the dataset exists.

    Returns
    -------
    dict
        Key of the new header to its metadata.
    """
    source_key = _renamed(copy.header_key, copy.target_uuid, copy.source_uuid)
    header = source.get(source_key)
    if copy.source_uuid != copy.target_uuid:
        dataset = DatasetMetadata.load_from_store(copy.source_uuid, source)
        builder = DatasetMetadataBuilder.from_dataset(dataset)
        builder.modify_uuid(copy.target_uuid)
        _, header = builder.to_json() if copy.header_key.endswith(".json") else builder.to_msgpack()
    target.put(copy.header_key, header, durable=True)
    others = set(header_keys(copy.target_uuid)) - {copy.header_key}
    target.delete(sorted(others))
    return {copy.header_key: DatasetMetadata.load_from_store(copy.target_uuid, target)}
