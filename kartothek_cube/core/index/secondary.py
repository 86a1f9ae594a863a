"""Inverted indices: what they share, those on partition keys, and those on data columns with their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core import clock
from kartothek_cube.core.arrow.arrays import label_array, to_numpy
from kartothek_cube.core.arrow.casting import normalize_value
from kartothek_cube.core.arrow.types import Mask, common_type, is_nested, same_type, widen
from kartothek_cube.core.caching import CACHE
from kartothek_cube.core.copying import CopyMixin
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions import (
    PredicatesType,
    filter_predicates_by_column,
    is_null_value,
    literal_mask,
    to_tree,
    tree_mask,
)
from kartothek_cube.core.index.data import (
    PARTITION,
    IndexColumns,
    flat_series,
    index_columns,
    infer_dtype,
    parse_index,
    render_index,
    value_array,
    values_to_numpy,
)
from kartothek_cube.core.naming import INDICES_DIRECTORY, index_key
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.store import BlobStore, PreconditionFailed, get_required, open_blobs
from kartothek_cube.core.typing import StoreInput


class IndexBase(CopyMixin):
    """Inverted index of a column: the partitions of each value.

    Parameters
    ----------
    column
        The indexed column.
    index_dct
        Value to labels of partitions, or :class:`IndexColumns`; None: not loaded.
    dtype
        Type of the values; taken from the first value if missing.
    normalize_dtype
        Widen the type (``int8`` to ``int64``), as schemas do.

    Attributes
    ----------
    column : str
    dtype : pyarrow.DataType or None
        None for an index that is not loaded and whose type is unknown.
    columns_data : IndexColumns or None
        The index data; None if it is not loaded.
    creation_time : datetime.datetime
        When the object was made; naive UTC.

    Raises
    ------
    ValueError
        The column is called ``partition``, which no index can have.
    NotImplementedError
        Values of that type have no order: lists, or nothing but nulls.

    Examples
    --------
    >>> index = IndexBase("CITY", {"Rom": ["a1", "b2"], "Bonn": ["a1"]})
    >>> index.query("Rom")
    ['a1', 'b2']
    >>> sorted(index.eval_operator("<", "C"))
    ['a1']
    """

    def __init__(
        self,
        column: str,
        index_dct: Mapping[Any, Iterable[str]] | IndexColumns | None = None,
        dtype: pa.DataType | None = None,
        normalize_dtype: bool = True,
    ) -> None:
        if column == PARTITION:
            raise ValueError(
                f"A column named {PARTITION!r} cannot be indexed: the labels of partitions have this name. "
                "Rename the column."
            )
        if dtype is None and isinstance(index_dct, IndexColumns):
            dtype = index_dct.values.type
        elif dtype is None and index_dct:
            dtype = infer_dtype(list(cast(Mapping[Any, Any], index_dct)))
        if dtype is not None:
            _check_dtype(column, dtype)
            dtype = widen(dtype) if normalize_dtype else dtype
        self.column = column
        self.dtype = dtype
        self.normalize_dtype = normalize_dtype
        self.creation_time = clock.datetime_utcnow()
        self.columns_data = index_columns(column, index_dct, dtype)
        self._index_dct: dict[Any, list[str]] | None = None

    @property
    def loaded(self) -> bool:
        """Whether the index data is there."""
        return self.columns_data is not None

    @property
    def index_dct(self) -> dict[Any, list[str]]:
        """Value to labels, built when first asked for; empty if the index is not loaded."""
        if self._index_dct is None:
            self._index_dct = {} if self.columns_data is None else self.columns_data.to_dict()
        return self._index_dct

    def copy(self, **kwargs: Any) -> Self:
        """Rebuild the index through its constructor, with some arguments changed.

        Parameters
        ----------
        **kwargs
            Arguments of the constructor.

        Returns
        -------
        IndexBase
        """
        kwargs.setdefault("index_dct", self.columns_data)
        return super().copy(**kwargs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IndexBase):
            return NotImplemented
        if type(self) is not type(other) or self.column != other.column:
            return False
        if self.dtype is not None and other.dtype is not None and not self.dtype.equals(other.dtype):
            return False
        if self.columns_data is None or other.columns_data is None:
            return self.columns_data is other.columns_data
        return self.columns_data.equals(other.columns_data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        data = "not loaded" if self.columns_data is None else f"{len(self.columns_data)} values"
        return f"{type(self).__name__}(column={self.column!r}, dtype={self.dtype}, {data})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index_dct": None}

    def _data(self) -> IndexColumns:
        if self.columns_data is None:
            raise RuntimeError(f"The index on column {self.column!r} is not loaded; call load() first")
        return self.columns_data

    @staticmethod
    def normalize_value(dtype: pa.DataType | None, value: Any) -> Any:
        """Convert a value to its form in an index; lenient (``"1"`` is 1 for integers).

        Parameters
        ----------
        dtype
            Type of the column.
        value
            A value of that type, or convertible to it.

        Returns
        -------
        object

        Raises
        ------
        ValueError
            The type is not known, or a text cannot be parsed.
        TypeError
            The value cannot be converted without loss.
        NotImplementedError
            Columns of this type hold no index.

        Examples
        --------
        >>> IndexBase.normalize_value(pa.int64(), "17")
        17
        """
        return normalize_value(dtype, value)

    def query(self, value: Any) -> list[str]:
        """Partitions that hold a value; the value is cast leniently.

        Parameters
        ----------
        value
            The value.

        Returns
        -------
        list of str
            Empty if no partition has it.
        """
        data = self._data()
        return data.labels_of(self._position(data, value))

    def _position(self, data: IndexColumns, value: Any) -> int:
        # nulls are never indexed, not even as the text "None"
        return -1 if is_null_value(value) else data.find(value_array([value], data.values.type)[0])

    def partitions_with(self, value: Any, table: PartitionTable) -> Mask:
        """Mask of the partitions of a dataset with a value, which is cast leniently."""
        data = self._data()
        value_mask = np.zeros(len(data), dtype=bool)
        position = self._position(data, value)
        value_mask[position : position + 1] = position >= 0
        return data.positions_matching(value_mask, table)

    def mask(self, op: str, value: Any) -> Mask:
        """Mask of the values that match an operator and a value of the column's type."""
        return to_numpy(literal_mask(self._data().values, op, value, self.column))

    def eval_operator(self, op: str, value: Any) -> set[str]:
        """Partitions with a value that matches a literal.

        Parameters
        ----------
        op, value
            Operator and value of a predicate; types are strict.

        Returns
        -------
        set of str

        Raises
        ------
        TypeError
            The value does not fit the column.
        NotImplementedError
            Unknown operator.
        """
        return set(self._data().labels_matching(self.mask(op, value)).to_pylist())

    def observed_values(self, date_as_object: bool = True) -> npt.NDArray[Any]:
        """All values, sorted.

        Parameters
        ----------
        date_as_object
            Dates as :class:`datetime.date` instead of ``datetime64[ns]``.

        Returns
        -------
        numpy.ndarray
        """
        return values_to_numpy(self._data(), date_as_object)

    def as_flat_series(
        self,
        compact: bool = False,
        partitions_as_index: bool = False,
        date_as_object: bool = False,
        predicates: PredicatesType = None,
    ) -> pd.Series[Any]:
        """The index as a series of pairs.

        Parameters
        ----------
        compact
            One row per value (or partition) with a list, instead of one per pair.
        partitions_as_index
            Labels as index and values as data, instead of the reverse.
        date_as_object
            Dates as :class:`datetime.date` instead of ``datetime64[ns]``.
        predicates
            Keep only matching values; literals on other columns are ignored, and if a conjunction has no
            literal on this column nothing is filtered.

        Returns
        -------
        pandas.Series
        """
        data = self._data()
        on_column = filter_predicates_by_column(predicates, [self.column])
        if predicates is not None and on_column is not None and len(on_column) == len(predicates):
            data = data.select(to_numpy(tree_mask(pa.table({self.column: data.values}), to_tree(on_column))))
        return flat_series(self.column, data, compact, partitions_as_index, date_as_object)

    def to_dict(self) -> dict[Any, list[str]]:
        """Value to labels.

        Returns
        -------
        dict
            A copy of :attr:`index_dct`.
        """
        return {value: list(labels) for value, labels in self.index_dct.items()}

    def update(self, index: IndexBase, inplace: bool = False) -> Self:
        """Add the entries of another index.

        Parameters
        ----------
        index
            Index on the same column.
        inplace
            Change this object too.

        Returns
        -------
        IndexBase
            ``self`` if there is nothing to add. The result of a change has no storage key.

        Raises
        ------
        TypeError
            It is no index, or its values have another type.
        ValueError
            It is an index on another column.
        """
        if not isinstance(index, IndexBase):
            raise TypeError(f"Expected an index to update with, got {type(index).__name__}")
        if index.column != self.column:
            raise ValueError(f"Cannot update an index on {self.column!r} with one on {index.column!r}")
        if not index.columns_data:
            return self
        data = self._data()
        if index.dtype is None or not index.dtype.equals(self.dtype):
            raise TypeError(
                f"Cannot update an index of {self.dtype} ({self.column!r}) with one of {index.dtype}"
            )
        merged = IndexColumns.merge([data, index.columns_data], self.dtype)
        return self if len(merged.codes) == len(data.codes) else self._replace_data(merged, inplace)

    def remove_partitions(self, list_of_partitions: Iterable[str] | pa.Array, inplace: bool = False) -> Self:
        """Remove all entries of some partitions; values without partitions are removed.

        Parameters
        ----------
        list_of_partitions
            Labels.
        inplace
            Change this object too.

        Returns
        -------
        IndexBase
            ``self`` if nothing changes. The result of a change has no storage key.
        """
        return self._replace_data(self._data().keep_labels(list_of_partitions, invert=True), inplace)

    def remove_values(self, list_of_values: Iterable[Any], inplace: bool = False) -> Self:
        """Remove values.

        Parameters
        ----------
        list_of_values
            The values; cast leniently.
        inplace
            Change this object too.

        Returns
        -------
        IndexBase
            ``self`` if nothing changes. The result of a change has no storage key.
        """
        data = self._data()
        values = [value for value in list_of_values if not is_null_value(value)]
        return self._replace_data(data.drop_values(value_array(values, data.values.type)), inplace)

    def _replace_data(self, columns: IndexColumns, inplace: bool = False) -> Self:
        if columns is self.columns_data:
            return self
        if not inplace:
            return self.copy(index_dct=columns)
        self.columns_data, self._index_dct = columns, None
        return self


def _check_dtype(column: str, dtype: pa.DataType) -> None:
    if is_nested(dtype) or pat.is_null(dtype):
        raise NotImplementedError(
            f"Column {column!r} of type {dtype} cannot be indexed: its values have no order"
        )


ValueType = TypeVar("ValueType")
IndexDictType = dict[ValueType, list[str]]


class PartitionIndex(IndexBase):
    """Index on a partition key, made from the labels of the partitions.

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
    """Index on a column of the data, stored in a file of its own.

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

    @staticmethod
    def from_v2(column: str, dct_or_str: str | Mapping[Any, Iterable[str]]) -> ExplicitSecondaryIndex:
        """Read an index from its form in the header.

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
        """Rebuild the index through its constructor, with some arguments changed.

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
        """Read the index data.

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
        is_fit = dtype is None or same_type(dtype, file_dtype) or _are_zoned(dtype, file_dtype)
        if not is_fit:
            raise CorruptDatasetError(
                key, f"it holds values of type {file_dtype}, column {self.column!r} is {dtype}"
            )
        if dtype is None or not dtype.equals(file_dtype):
            # also where the schema, of another library, does not tell that there are far times
            dtype = file_dtype if dtype is None else common_type(dtype, file_dtype)
            return self.copy(index_dct=columns, dtype=dtype, index_storage_key=key)
        # the usual case without the constructor, whose checks take longer than reading the file
        index = object.__new__(type(self))
        index.__dict__.update(self.__dict__)
        index.columns_data, index._index_dct = columns, None
        return index

    def unload(self) -> Self:
        """Forget the index data, keep the key.

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
        """Write the index to a file.

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
    """Merge the indices of several sets of partitions.

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
    """Remove partitions from several indices.

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
    """Keep only some partitions in several indices.

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
