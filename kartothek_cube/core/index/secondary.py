"""Indices on partition keys and on data columns, with the files of the latter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Self, TypeVar

import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.arrow.arrays import label_array
from kartothek_cube.core.arrow.types import widen
from kartothek_cube.core.caching import CACHE
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.index.data import IndexColumns, parse_index, render_index
from kartothek_cube.core.index.inverted import IndexBase
from kartothek_cube.core.naming import INDICES_DIRECTORY, index_key
from kartothek_cube.core.store import BlobStore, PreconditionFailed, get_required, open_blobs
from kartothek_cube.core.typing import StoreInput

__all__ = (
    "ExplicitSecondaryIndex",
    "IndexDictType",
    "PartitionIndex",
    "ValueType",
    "filter_indices",
    "merge_indices",
    "remove_partitions_from_indices",
)

ValueType = TypeVar("ValueType")
IndexDictType = dict[ValueType, list[str]]


class PartitionIndex(IndexBase):
    """
    Index on a partition key, made from the labels of the partitions.

    Parameters
    ----------
    column, index_dct, normalize_dtype
        As in :class:`IndexBase`.
    dtype
        Type of the values; mandatory.

    Raises
    ------
    ValueError
        No type is given.
    """

    def __init__(
        self,
        column: str,
        index_dct: Mapping[Any, Iterable[str]] | IndexColumns | None = None,
        dtype: pa.DataType | None = None,
        normalize_dtype: bool = True,
    ) -> None:
        if dtype is None:
            raise ValueError(f"A partition index needs the type of its column {column!r}")
        super().__init__(column, index_dct, dtype, normalize_dtype)


class ExplicitSecondaryIndex(IndexBase):
    """
    Index on a column of the data, stored in a file of its own.

    Parameters
    ----------
    column, index_dct, dtype, normalize_dtype
        As in :class:`IndexBase`.
    index_storage_key
        Where the index is stored.

    Attributes
    ----------
    index_storage_key : str or None
        None for an index that is not stored, or was changed since.

    Raises
    ------
    ValueError
        Neither data nor key is given, or data without values and without type.

    Examples
    --------
    >>> index = ExplicitSecondaryIndex("CITY", {"Rom": ["a1"]})
    >>> index.store("hmemory://", "geodata").startswith("geodata/indices/CITY/")
    True
    """

    def __init__(
        self,
        column: str,
        index_dct: Mapping[Any, Iterable[str]] | IndexColumns | None = None,
        index_storage_key: str | None = None,
        dtype: pa.DataType | None = None,
        normalize_dtype: bool = True,
    ) -> None:
        if index_dct is None and index_storage_key is None:
            raise ValueError(f"An index on {column!r} needs data or a storage key")
        if dtype is None and isinstance(index_dct, Mapping) and not index_dct:
            if index_storage_key is None:
                raise ValueError(f"An index on {column!r} without values needs a type")
            index_dct = None
        super().__init__(column, index_dct, dtype, normalize_dtype)
        self.index_storage_key = index_storage_key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExplicitSecondaryIndex):
            return NotImplemented if not isinstance(other, IndexBase) else False
        return self.index_storage_key == other.index_storage_key and super().__eq__(other) is True

    __hash__ = None

    @classmethod
    def from_columns(
        cls,
        column: str,
        columns: IndexColumns,
        dtype: pa.DataType | None = None,
        index_storage_key: str | None = None,
    ) -> Self:
        """Make an index from index data; the type of the values is the default."""
        return cls(column, columns, index_storage_key, dtype)

    @staticmethod
    def from_v2(column: str, dct_or_str: str | Mapping[Any, Iterable[str]]) -> ExplicitSecondaryIndex:
        """
        Read an index from its form in the header.

        Parameters
        ----------
        column
            The indexed column.
        dct_or_str
            Storage key, or value to labels.

        Returns
        -------
        ExplicitSecondaryIndex
        """
        if isinstance(dct_or_str, str):
            return ExplicitSecondaryIndex(column, index_storage_key=dct_or_str)
        return ExplicitSecondaryIndex(column, dct_or_str)

    def copy(self, **kwargs: Any) -> Self:
        """
        Rebuild the index through its constructor, with some arguments changed.

        Parameters
        ----------
        **kwargs
            Arguments of the constructor. The copy has no storage key unless one is given: the file holds what
            this index does. Without any arguments it keeps the key.

        Returns
        -------
        ExplicitSecondaryIndex
        """
        if kwargs:
            kwargs.setdefault("index_storage_key", None)
        return super().copy(**kwargs)

    def _replace_data(self, columns: IndexColumns, inplace: bool = False) -> Self:
        if inplace and columns is not self.columns_data:
            self.index_storage_key = None
        return super()._replace_data(columns, inplace)

    def load(self, store: StoreInput | BlobStore) -> Self:
        """
        Read the index data.

        Parameters
        ----------
        store
            Store, factory or URL.

        Returns
        -------
        ExplicitSecondaryIndex
            ``self`` if it is loaded already.

        Raises
        ------
        KeyError
            There is no such file.
        CorruptDatasetError
            The file is not one of an index on this column, or has values of another type.
        """
        if self.columns_data is not None:
            return self
        key = str(self.index_storage_key)
        content = get_required(open_blobs(store), key)
        columns = CACHE.parse(
            ("index", key, self.column), content, lambda buf: parse_index(buf, self.column, key), _memory_size
        )
        file_dtype, dtype = columns.values.type, self.dtype
        if dtype is not None and not dtype.equals(file_dtype) and not _are_zoned(dtype, file_dtype):
            raise CorruptDatasetError(
                key, f"it holds values of type {file_dtype}, column {self.column!r} is {dtype}"
            )
        if dtype is None or not dtype.equals(file_dtype):
            return self.copy(index_dct=columns, dtype=dtype or file_dtype, index_storage_key=key)
        # the usual case without the constructor, whose checks take longer than reading the file
        index = object.__new__(type(self))
        index.__dict__.update(self.__dict__)
        index.columns_data, index._index_dct = columns, None
        return index

    def unload(self) -> Self:
        """
        Forget the index data, keep the key.

        Returns
        -------
        ExplicitSecondaryIndex

        Raises
        ------
        RuntimeError
            The index was never stored, so the data would be lost.
        """
        if self.index_storage_key is None:
            raise RuntimeError(
                f"The index on column {self.column!r} is not stored yet; store() it before unloading"
            )
        return self.copy(index_dct=None, index_storage_key=self.index_storage_key)

    def store(self, store: StoreInput | BlobStore, dataset_uuid: str) -> str:
        """
        Write the index to a file.

        Parameters
        ----------
        store
            Store, factory or URL.
        dataset_uuid
            The dataset.

        Returns
        -------
        str
            Key of the file: the one the index has, if it belongs to the dataset; else a new one with the time
            stamp of this object, or the next free one if a file of that time exists.
        """
        blobs = open_blobs(store)
        content = render_index(self.column, self._data())
        if self.index_storage_key and self.index_storage_key.startswith(
            f"{dataset_uuid}/{INDICES_DIRECTORY}/"
        ):
            blobs.put(self.index_storage_key, content, durable=True)
            return self.index_storage_key
        stamp = self.creation_time
        while True:
            key = index_key(dataset_uuid, self.column, stamp)
            try:
                blobs.put_if(key, content, None)
            except PreconditionFailed:
                stamp += timedelta(microseconds=1)
            else:
                self._cache(key, content)
                self.index_storage_key = key
                return key

    def _cache(self, key: str, content: bytes) -> None:
        """Cache the index, so that a process that appends often need not parse it."""
        data = self._data()
        if data.values.type.equals(widen(data.values.type)):
            CACHE.put(("index", key, self.column), content, data, _memory_size(data))


def _memory_size(columns: IndexColumns) -> int:
    return sum(part.nbytes for part in (columns.values, columns.offsets, columns.codes, columns.labels))


def merge_indices(list_of_indices: Iterable[Mapping[str, IndexBase]]) -> dict[str, IndexBase]:
    """
    Merge the indices of several sets of partitions.

    Parameters
    ----------
    list_of_indices
        Dicts of column to index.

    Returns
    -------
    dict of str to IndexBase
    """
    by_column: dict[str, list[IndexBase]] = {}
    for indices in list_of_indices:
        for column, index in indices.items():
            by_column.setdefault(column, []).append(index)
    return {column: _merge(indices) for column, indices in by_column.items()}


def _merge(indices: list[IndexBase]) -> IndexBase:
    first, *others = indices
    if not others:
        return first
    types = {index.dtype for index in indices}
    if len(types) > 1:
        raise TypeError(
            f"Indices on {first.column!r} have different types: {', '.join(sorted(map(str, types)))}"
        )
    return first._replace_data(IndexColumns.merge([index._data() for index in indices], first.dtype))


def remove_partitions_from_indices(
    index_dict: Mapping[str, IndexBase], partitions: Iterable[str] | pa.Array
) -> dict[str, IndexBase]:
    """
    Remove partitions from several indices.

    Parameters
    ----------
    index_dict
        Column to index.
    partitions
        Labels.

    Returns
    -------
    dict of str to IndexBase
    """
    labels = label_array(partitions)
    return {column: index.remove_partitions(labels) for column, index in index_dict.items()}


def filter_indices(
    index_dict: Mapping[str, IndexBase], partitions: Iterable[str] | pa.Array
) -> dict[str, IndexBase]:
    """
    Keep only some partitions in several indices.

    Parameters
    ----------
    index_dict
        Column to index.
    partitions
        Labels.

    Returns
    -------
    dict of str to IndexBase
    """
    labels = label_array(partitions)
    return {c: index._replace_data(index._data().keep_labels(labels)) for c, index in index_dict.items()}


def _are_zoned(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether both are timestamps with a time zone."""
    # A file without Arrow's own schema says UTC, whatever the zone is.
    return bool(pat.is_timestamp(a) and pat.is_timestamp(b) and a.tz and b.tz)
