"""``DataFrameSerializer``, the interface of serializers, filters on frames, and ``CsvSerializer``."""

from __future__ import annotations

import gzip
import io
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core import expressions
from kartothek_cube.core.arrow import Mask, to_numpy
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions import (  # noqa: F401 (kartothek has them all here)
    ConjunctionType,
    LiteralType,
    LiteralValue,
    PredicatesType,
    check_predicates,
    columns_in_predicates,
    filter_predicates_by_column,
)
from kartothek_cube.core.pandas_conversion import to_pandas
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs


def check_filters(filter_query: str | None, predicates: PredicatesType) -> None:
    """Raise ValueError for two filters at once, and for malformed predicates."""
    if filter_query and predicates is not None:
        raise ValueError("Use either predicates or filter_query (deprecated) to filter, not both.")
    check_predicates(predicates)


def columns_to_read(columns: Sequence[str] | None, predicates: PredicatesType) -> list[str] | None:
    """Columns needed to filter and to return some; None for all."""
    if columns is None:
        return None
    return list(dict.fromkeys([*columns, *sorted(columns_in_predicates(predicates))]))


def select_columns(df: pd.DataFrame, columns: Sequence[str] | None) -> pd.DataFrame:
    """Columns of a frame in this order; None for all."""
    return df if columns is None else df[list(columns)]


class DataFrameSerializer(ABC):
    """Writes frames to a store and reads them back; subclasses do so in one file format.

    Attributes
    ----------
    type_stable : bool
        Whether what is read has the types of what was written.
    """

    type_stable: ClassVar[bool] = False
    _serializers: ClassVar[dict[str, type[DataFrameSerializer]]] = {}

    @classmethod
    def register_serializer(cls, suffix: str, serializer: type[DataFrameSerializer]) -> None:
        """Let a class read the files with a suffix.

        Parameters
        ----------
        suffix
            End of the storage keys, such as ``.parquet``.
        serializer
            The class.
        """
        cls._serializers[suffix] = serializer

    @classmethod
    def restore_dataframe(
        cls,
        store: StoreInput | BlobStore,
        key: str,
        filter_query: str | None = None,
        columns: Sequence[str] | None = None,
        predicate_pushdown_to_io: bool = True,
        categories: Iterable[str] | None = None,
        predicates: PredicatesType = None,
        date_as_object: bool = False,
    ) -> pd.DataFrame:
        """Read a file with the serializer for its suffix.

        Parameters
        ----------
        store
            The store, its factory or URL.
        key
            Storage key of the file.
        filter_query
            Deprecated: filter in the syntax of :meth:`pandas.DataFrame.query`.
        columns
            Columns, in this order; None for all. Columns that only ``predicates`` need are read and
            dropped again.
        predicate_pushdown_to_io
            Accepted for compatibility with kartothek; the serialisers of this library ignore it.
        categories
            Columns to return as categoricals.
        predicates
            Filter in disjunctive normal form.
        date_as_object
            Whether dates are :class:`datetime.date` objects; else they are ``datetime64[ns]``.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ValueError
            The suffix is unknown, a column does not exist, or both kinds of filter are given.
        KeyError
            There is no such file.
        """
        for suffix, serializer in cls._serializers.items():
            if key.endswith(suffix):
                return serializer.restore_dataframe(
                    store,
                    key,
                    filter_query=filter_query,
                    columns=columns,
                    predicate_pushdown_to_io=predicate_pushdown_to_io,
                    categories=categories,
                    predicates=predicates,
                    date_as_object=date_as_object,
                )
        suffixes = ", ".join(sorted(cls._serializers))
        raise ValueError(f"The file format of {key!r} is not supported; known suffixes are: {suffixes}.")

    @abstractmethod
    def store(self, store: StoreInput | BlobStore, key_prefix: str, df: pd.DataFrame | pa.Table) -> str:
        """Write a frame.

        Parameters
        ----------
        store
            The store, its factory or URL.
        key_prefix
            Storage key without the suffix.
        df
            The frame, or an Arrow table.

        Returns
        -------
        str
            The storage key with the suffix.
        """


def filter_df(df: pd.DataFrame, filter_query: str | None = None) -> pd.DataFrame:
    """Filter a frame in the syntax of :meth:`pandas.DataFrame.query`; one without rows is returned itself.

    >>> filter_df(pd.DataFrame({"STORE_ID": [1, 2]}), "STORE_ID > 1")["STORE_ID"].tolist()
    [2]
    """
    return df.query(filter_query) if filter_query and len(df) else df


def filter_df_from_predicates(
    df: pd.DataFrame, predicates: PredicatesType, strict_date_types: bool = False
) -> pd.DataFrame:
    """Rows of a frame that match predicates.

    Parameters
    ----------
    df
        The frame.
    predicates
        The filter; None returns ``df`` itself.
    strict_date_types
        Whether dates and timestamps cannot be compared with each other.

    Returns
    -------
    pandas.DataFrame
        With the index entries of these rows.

    Raises
    ------
    ValueError
        The form is wrong, a column does not exist, or a null is compared by an operator that has no meaning
        for nulls.
    TypeError
        A value does not fit its column.

    Examples
    --------
    >>> df = pd.DataFrame({"STORE_ID": [1, 2]})
    >>> filter_df_from_predicates(df, [[("STORE_ID", ">", 1)]]).index.tolist()
    [1]
    """
    node = expressions.to_tree(predicates)
    if node is None:
        return df
    expressions.check_columns(columns_in_predicates(predicates), list(df.columns), "Predicates")

    def mask_of_literal(literal: LiteralType) -> pa.BooleanArray:
        name, op, value = literal
        rows = filter_array_like(df[name], op, value, strict_date_types=strict_date_types, column_name=name)
        return pa.array(rows)

    return df[to_numpy(expressions.evaluate(node, mask_of_literal, len(df)))]


def filter_array_like(
    array_like: Any,
    op: str,
    value: Any,
    mask: Mask | None = None,
    out: Mask | None = None,
    strict_date_types: bool = False,
    column_name: str | None = None,
) -> Mask:
    """Entries of a numpy array, pandas series, index or categorical that match one literal, as booleans.

    Entries outside of ``mask`` do not match. The result is put into ``out``, which may be ``mask``. Dates and
    timestamps are compared with each other, unless ``strict_date_types``. A value that does not fit the
    column, and a null with an operator that has no meaning for nulls, is a TypeError with its name.

    >>> import numpy as np
    >>> filter_array_like(np.array([1, 2, 3]), ">=", 2, mask=np.array([True, True, False]))
    array([False,  True, False])
    """
    column = "<unknown>" if column_name is None else column_name
    try:
        array = pa.array(array_like, from_pandas=True)
    except pa.ArrowInvalid as error:
        raise TypeError(f"Column {column!r} holds values of several types: {error}") from error
    if not strict_date_types:
        op, value = _unify_dates(array.type, op, value)
    result = to_numpy(expressions.literal_mask(array, op, value, column))
    if mask is not None:
        result = result & mask
    if out is None:
        return result.copy() if not result.flags.writeable else result
    out[:] = result
    return out


def _unify_dates(dtype: pa.DataType, op: str, value: Any) -> tuple[str, Any]:
    """Operator and value in the type of the column, if one is a date and the other a timestamp."""
    is_list = op in ("in", "not in")
    if is_list and (isinstance(value, (str, bytes)) or not isinstance(value, Iterable)):
        return op, value
    items = list(value) if is_list else [value]
    if not pat.is_temporal(dtype) or any(isinstance(item, (str, bytes)) for item in items):
        return op, value
    _, op, value = expressions.exact_literal(dtype, ("", op, items if is_list else value))
    return op, value


#: errors of damaged content
_GZIP_ERRORS = (gzip.BadGzipFile, zlib.error, EOFError)
_CSV_ERRORS = (UnicodeDecodeError, pd.errors.EmptyDataError, pd.errors.ParserError)


@attrs.define(unsafe_hash=True, slots=False)
class CsvSerializer(DataFrameSerializer):
    """Frames as semicolon-separated UTF-8 text, without their index.

    Parameters
    ----------
    compress
        Whether files are compressed by gzip (suffix ``.csv.gz``).

    Attributes
    ----------
    compress : bool

    Examples
    --------
    >>> from kartothek_cube.core.store import open_blobs
    >>> blobs = open_blobs("hmemory://")
    >>> key = CsvSerializer(compress=False).store(blobs, "cities", pd.DataFrame({"CITY": ["Rom"]}))
    >>> CsvSerializer.restore_dataframe(blobs, key)["CITY"].tolist()
    ['Rom']
    """

    compress: bool = True

    @staticmethod
    def restore_dataframe(
        store: StoreInput | BlobStore,
        key: str,
        filter_query: str | None = None,
        columns: Sequence[str] | None = None,
        predicate_pushdown_to_io: bool | None = None,
        categories: Iterable[str] | None = None,
        predicates: PredicatesType = None,
        date_as_object: bool | None = None,
        **kwargs: Any,
    ) -> pd.DataFrame:
        """Read a CSV file; see :meth:`DataFrameSerializer.restore_dataframe`.

        Values are compared with what the text looks like: dates are texts, and ``date_as_object`` has no
        meaning. ``kwargs`` are more arguments of :func:`pandas.read_csv`. A file that is no CSV file raises
        CorruptDatasetError, a ValueError.
        """
        check_filters(filter_query, predicates)
        content = open_blobs(store).get(key)
        try:
            if key.endswith(".gz"):
                content = gzip.decompress(content)
            if not content.strip():
                return pd.DataFrame(index=pd.RangeIndex(0))
            df = pd.read_csv(io.BytesIO(content), sep=";", encoding="utf-8", **kwargs)
        except (*_GZIP_ERRORS, *_CSV_ERRORS) as error:
            raise CorruptDatasetError(key, f"not a readable CSV file: {error}") from error
        needed = columns_to_read(columns, predicates)
        expressions.check_columns(needed or (), list(df.columns), key)
        df = filter_df(filter_df_from_predicates(df, predicates), filter_query)
        df = select_columns(df, columns).reset_index(drop=True)
        return df.astype(dict.fromkeys(set(categories or ()) & set(df.columns), "category"))

    def store(self, store: StoreInput | BlobStore, key_prefix: str, df: pd.DataFrame | pa.Table) -> str:
        """Write a frame; see :meth:`DataFrameSerializer.store`."""
        frame = to_pandas(df, dates_as_object=True) if isinstance(df, pa.Table) else df
        content = frame.to_csv(sep=";", index=False).encode("utf-8")
        key = key_prefix + (".csv.gz" if self.compress else ".csv")
        open_blobs(store).put(key, gzip.compress(content, mtime=0) if self.compress else content)
        return key


DataFrameSerializer.register_serializer(".csv", CsvSerializer)
DataFrameSerializer.register_serializer(".csv.gz", CsvSerializer)
