"""Copies of blobs between stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kartothek_cube.core.commit.header_store import render
from kartothek_cube.core.dataset import DatasetMetadataBase
from kartothek_cube.core.naming import is_header_key
from kartothek_cube.core.store import BlobStore, check_key, open_blobs
from kartothek_cube.core.store.blob_store import check_keys
from kartothek_cube.core.typing import StoreInput

__all__ = ("copy_keys", "copy_rename_keys")


def copy_keys(
    keys: Iterable[str], src_store: StoreInput | BlobStore, tgt_store: StoreInput | BlobStore
) -> None:
    """Copy blobs from one store to another.

    All keys are checked first. Headers are copied last, in the order given, so that no incomplete dataset is
    visible.

    Parameters
    ----------
    keys
        Keys of the blobs.
    src_store
        Store, factory or URL to read from.
    tgt_store
        Store, factory or URL to write to; blobs at these keys are replaced.

    Raises
    ------
    KeyError
        The source lacks a key.
    ValueError
        A key is illegal; nothing was written.

    Examples
    --------
    >>> from storefact import get_store_from_url
    >>> source, target = get_store_from_url("hmemory://"), get_store_from_url("hmemory://")
    >>> source.put("sales/table/COUNTRY_CODE=DE/0d34.parquet", b"PAR1")
    'sales/table/COUNTRY_CODE=DE/0d34.parquet'
    >>> copy_keys(["sales/table/COUNTRY_CODE=DE/0d34.parquet"], source, target)
    >>> target.keys()
    ['sales/table/COUNTRY_CODE=DE/0d34.parquet']
    """
    copy_rename_keys({key: key for key in check_keys(keys)}, src_store, tgt_store, {})


def copy_rename_keys(
    key_mappings: Mapping[str, str],
    src_store: StoreInput | BlobStore,
    tgt_store: StoreInput | BlobStore,
    md_transformed: Mapping[str, DatasetMetadataBase],
) -> None:
    """Copy blobs from one store to another, under new keys.

    All keys are checked first. Headers are copied last, in the order given, so that no incomplete dataset is
    visible.

    Parameters
    ----------
    key_mappings
        Key in the source to key in the target.
    src_store
        Store, factory or URL to read from.
    tgt_store
        Store, factory or URL to write to; blobs at these keys are replaced.
    md_transformed
        Key in the target to metadata. Such a header is not copied but rendered, in the format of its key.

    Raises
    ------
    KeyError
        The source lacks a key.
    ValueError
        A key is illegal; nothing was written.
    """
    source, target = open_blobs(src_store), open_blobs(tgt_store)
    mapping = {check_key(old): check_key(new) for old, new in key_mappings.items()}
    headers = {old: new for old, new in mapping.items() if is_header_key(new)}
    files = {old: new for old, new in mapping.items() if old not in headers}

    def copy(old: str, new: str) -> None:
        header = md_transformed.get(new)
        data = source.get(old) if header is None else render(header, new)
        target.put(new, data, durable=old in headers)

    for old, new in files.items():
        copy(old, new)
    # files have to survive a power failure before a header names them
    target.flush(list(files.values()))
    for old, new in headers.items():
        copy(old, new)
