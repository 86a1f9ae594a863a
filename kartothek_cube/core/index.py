"""Inverted indices: what they share, those on partition keys, and those on data columns with their files."""

from __future__ import annotations

import copy
import datetime
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core import clock
from kartothek_cube.core.arrow import (
    Mask,
    common_type,
    convert_plain,
    is_nested,
    label_array,
    memory_type,
    normalize_value,
    same_type,
    to_numpy,
    widen,
    with_far_times,
)
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
from kartothek_cube.core.index_columns import PARTITION, IndexColumns, parse_index, render_index
from kartothek_cube.core.naming import INDICES_DIRECTORY, index_key
from kartothek_cube.core.pandas_conversion import to_memory, to_pandas
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.store import BlobStore, PreconditionFailed, get_required, open_blobs
from kartothek_cube.core.typing import StoreInput

__all__ = ("ExplicitSecondaryIndex", "IndexBase", "IndexColumns", "PartitionIndex")

_LOGGER = logging.getLogger(__name__)

ValueType = TypeVar("ValueType")
IndexDictType = dict[ValueType, list[str]]


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
        """Rebuild the index through its constructor, with some of its arguments changed."""
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
        """Partitions that hold a value, which is cast leniently; none if no partition has it."""
        data = self._data()
        position = self._position(data, value)
        if position < 0:
            return []
        codes = data.codes[data.offsets[position] : data.offsets[position + 1]]
        labels: list[str] = data.labels.take(pa.array(codes)).to_pylist()
        return labels

    def _position(self, data: IndexColumns, value: Any) -> int:
        # nulls are never indexed, not even as the text "None"
        if is_null_value(value):
            return -1
        return int(pc.index(data.values, value_array([value], data.values.type)[0]).as_py())

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
        """Partitions with a value that matches a predicate; types are strict.

        Raises
        ------
        TypeError
            The value does not fit the column.
        NotImplementedError
            Unknown operator.
        """
        return set(self._data().labels_matching(self.mask(op, value)).to_pylist())

    def observed_values(self, date_as_object: bool = True) -> npt.NDArray[Any]:
        """All values, sorted; dates as :class:`datetime.date` or as ``datetime64[ns]``."""
        values = self._data().values
        if pat.is_date(values.type) and date_as_object:
            dates = np.empty(len(values), dtype=object)
            dates[:] = values.to_pylist()
            return dates
        if pat.is_date(values.type):
            values = to_memory(pa.table({"": values}), dates_as_object=False).column(0)
        return to_numpy(values)

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
        """Value to labels: a copy of :attr:`index_dct`."""
        return {value: list(labels) for value, labels in self.index_dct.items()}

    def update(self, index: IndexBase, inplace: bool = False) -> Self:
        """Add the entries of another index on the same column.

        Parameters
        ----------
        index
            The other index.
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
        """Remove all entries of some partitions; the result is as that of :meth:`update`."""
        return self._replace_data(self._data().keep_labels(list_of_partitions, invert=True), inplace)

    def remove_values(self, list_of_values: Iterable[Any], inplace: bool = False) -> Self:
        """Remove values, which are cast leniently; the result is as that of :meth:`update`."""
        data = self._data()
        values = [value for value in list_of_values if not is_null_value(value)]
        kept = ~to_numpy(pc.is_in(data.values, value_set=value_array(values, data.values.type)))
        return self._replace_data(data if kept.all() else data.select(kept), inplace)

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
        """Read an index from its form in the header: its storage key, or value to labels."""
        if isinstance(dct_or_str, str):
            return ExplicitSecondaryIndex(column, index_storage_key=dct_or_str)
        return ExplicitSecondaryIndex(column, dct_or_str)

    def copy(self, **kwargs: Any) -> Self:
        """Rebuild the index through its constructor, with some of its arguments changed.

        The copy has no storage key unless one is given: the file holds what this index does. Without any
        arguments it keeps the key.
        """
        if kwargs:
            kwargs.setdefault("index_storage_key", None)
        return super().copy(**kwargs)

    def _replace_data(self, columns: IndexColumns, inplace: bool = False) -> Self:
        if inplace and columns is not self.columns_data:
            self.index_storage_key = None
        return super()._replace_data(columns, inplace)

    def load(self, store: StoreInput | BlobStore) -> Self:
        """Read the index data from a store, factory or URL; ``self`` if it is loaded already.

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
        index = copy.copy(self)
        index.columns_data = columns
        return index

    def unload(self) -> Self:
        """Forget the index data, keep the key; raises RuntimeError if the index was never stored."""
        if self.index_storage_key is None:
            raise RuntimeError(
                f"The index on column {self.column!r} is not stored yet; store() it before unloading"
            )
        return self.copy(index_dct=None, index_storage_key=self.index_storage_key)

    def store(self, store: StoreInput | BlobStore, dataset_uuid: str) -> str:
        """Write the index to a file of a dataset.

        Returns
        -------
        str
            Key of the file: the one the index has, if it belongs to the dataset; else a new one with the time
            stamp of this object, or the next free one if a file of that time exists.
        """
        blobs = open_blobs(store)
        if self.index_storage_key and self.index_storage_key.startswith(
            f"{dataset_uuid}/{INDICES_DIRECTORY}/"
        ):
            blobs.put(self.index_storage_key, render_index(self.column, self._data()), durable=True)
            return self.index_storage_key
        key = self.store_new(blobs, dataset_uuid)
        blobs.flush([key])
        return key

    def store_new(self, blobs: BlobStore, dataset_uuid: str) -> str:
        """Write the index to a new file, which a commit makes durable; return its key."""
        data = self._data()
        content = render_index(self.column, data)
        stamp = self.creation_time
        while True:
            key = index_key(dataset_uuid, self.column, stamp)
            try:
                blobs.put_new(key, content)
            except PreconditionFailed:
                stamp += datetime.timedelta(microseconds=1)
            else:
                # a process that appends often need not parse it
                if data.values.type.equals(widen(data.values.type)):
                    CACHE.put(("index", key, self.column), content, data, _memory_size(data))
                self.index_storage_key = key
                return key


def _memory_size(columns: IndexColumns) -> int:
    return sum(part.nbytes for part in (columns.values, columns.offsets, columns.codes, columns.labels))


def merge_indices(list_of_indices: Iterable[Mapping[str, IndexBase]]) -> dict[str, IndexBase]:
    """Merge the indices, by column, of several sets of partitions."""
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
    """Remove partitions, by their labels, from several indices."""
    labels = label_array(partitions)
    return {column: index.remove_partitions(labels) for column, index in index_dict.items()}


def filter_indices(
    index_dict: Mapping[str, IndexBase], partitions: Iterable[str] | pa.Array
) -> dict[str, IndexBase]:
    """Keep only some partitions, by their labels, in several indices."""
    labels = label_array(partitions)
    return {c: index._replace_data(index._data().keep_labels(labels)) for c, index in index_dict.items()}


def _are_zoned(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether both are timestamps with a time zone."""
    # A file without Arrow's own schema says UTC, whatever the zone is.
    return bool(pat.is_timestamp(a) and pat.is_timestamp(b) and a.tz and b.tz)


# -- conversion of values -----------------------------------------------------------------------------------


def infer_dtype(values: Sequence[Any]) -> pa.DataType:
    """Arrow type of Python values, by the first one that is not null."""
    first = next((value for value in values if not is_null_value(value)), None)
    if isinstance(first, np.datetime64 | datetime.datetime):
        stamp = pd.Timestamp(first)
        dtype = pa.timestamp("ns", None if stamp.tz is None else str(stamp.tz))
        try:
            value_array([value for value in values if not is_null_value(value)], dtype)
        except ValueError:
            return with_far_times(dtype)
        return dtype
    try:
        return pa.array([first]).type
    except OverflowError:
        return pa.array([first], pa.uint64()).type


def value_array(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Lenient conversion of values without nulls to an array."""
    plain = convert_plain(values, dtype)
    if plain is not None:
        return plain
    converted = [normalize_value(dtype, value) for value in values]
    if not pat.is_timestamp(dtype):
        return pa.array(converted, dtype)
    dtype_in_memory = memory_type(dtype)
    stamps = np.array(converted, dtype=f"datetime64[{dtype_in_memory.unit}]").view("i8")
    return pa.array(stamps, pa.int64()).cast(dtype_in_memory).cast(dtype)


def index_columns(
    column: str, data: Mapping[Any, Iterable[str]] | IndexColumns | None, dtype: pa.DataType | None
) -> IndexColumns | None:
    """Index data of a dict or of index data; None without data or type."""
    # Duplicates after conversion are merged with a warning.
    if data is None or dtype is None:
        return None
    if isinstance(data, IndexColumns):
        return data.cast(dtype)
    null = pd.Series(list(data), dtype=object).isna()
    present = {value: data[value] for value in compress(data, ~null.to_numpy())} if null.any() else data
    values = value_array(list(present), dtype)
    collisions = len(values) - len(values.unique())
    if collisions:
        _LOGGER.warning(
            "%s values of the index on %r are the same once they are %s; their partitions were united.",
            collisions,
            column,
            dtype,
        )
    return IndexColumns.from_dict(values, list(present.values()))


def inline_dict(columns: IndexColumns) -> dict[str, list[str]]:
    """Inline form of an index in a header, with string keys; UnicodeDecodeError for binary values."""
    values = columns.values
    if pat.is_date(values.type) or pat.is_timestamp(values.type):
        columns = columns.cast(pa.string())
    return {_json_key(value): labels for value, labels in columns.to_dict().items()}


def _json_key(value: Any) -> str:
    """String form of a key by the rules of the json module."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def flat_series(
    column: str, columns: IndexColumns, compact: bool, partitions_as_index: bool, date_as_object: bool
) -> pd.Series[Any]:
    """Index as a series, see ``IndexBase.as_flat_series``."""
    if compact and partitions_as_index:
        return _values_per_partition(column, columns, date_as_object)
    if compact:
        labels = pa.ListArray.from_arrays(pa.array(columns.offsets, pa.int32()), columns.entry_labels())
        index = _series(column, columns.values, date_as_object)
        return pd.Series(labels.to_pandas().to_numpy(), index=pd.Index(index), name=PARTITION, dtype=object)
    values = _series(column, columns.pairs()[0], date_as_object)
    partitions = _series(PARTITION, columns.entry_labels(), date_as_object)
    data, index = (values, partitions) if partitions_as_index else (partitions, values)
    return pd.Series(data.array, index=pd.Index(index), name=data.name)


def _values_per_partition(column: str, columns: IndexColumns, date_as_object: bool) -> pd.Series[Any]:
    """Lists of values by label; labels sorted."""
    entries = _series(column, columns.pairs()[0], date_as_object).astype(object).to_numpy()
    labels = to_numpy(columns.entry_labels())
    order = np.argsort(labels, kind="stable")
    names, starts = np.unique(labels[order], return_index=True)
    lists = [values.tolist() for values in np.split(entries[order], starts[1:])] if len(names) else []
    data = pd.Series(lists, dtype=object).to_numpy()
    index = _series(PARTITION, pa.array(names, pa.string()), date_as_object)
    return pd.Series(data, index=pd.Index(index), name=column, dtype=object)


def _series(name: str, values: pa.Array, date_as_object: bool) -> pd.Series[Any]:
    return to_pandas(pa.table({name: values}), dates_as_object=date_as_object)[name]
