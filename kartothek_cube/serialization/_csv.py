"""``CsvSerializer``: frames as CSV, for people and other programs; types are lost."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import to_pandas
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions import PredicatesType, check_columns
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.serialization import _generic

__all__ = ("CsvSerializer",)

#: errors of damaged content
_ERRORS = (
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    UnicodeDecodeError,
    pd.errors.EmptyDataError,
    pd.errors.ParserError,
)


@attrs.define(unsafe_hash=True, slots=False)
class CsvSerializer(_generic.DataFrameSerializer):
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

    type_stable: ClassVar[bool] = False

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
        """Read a CSV file.

        Parameters
        ----------
        store, key, filter_query, columns, categories, predicates
            As in :meth:`DataFrameSerializer.restore_dataframe`. Values are compared with what the text looks
            like: dates are texts.
        predicate_pushdown_to_io, date_as_object
            Without meaning here.
        **kwargs
            More arguments of :func:`pandas.read_csv`.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        CorruptDatasetError
            The file is no CSV file; a ValueError.
        """
        _generic.check_filters(filter_query, predicates)
        content = open_blobs(store).get(key)
        try:
            if key.endswith(".gz"):
                content = gzip.decompress(content)
            if not content.strip():
                return pd.DataFrame(index=pd.RangeIndex(0))
            df = pd.read_csv(io.BytesIO(content), sep=";", encoding="utf-8", **kwargs)
        except _ERRORS as error:
            raise CorruptDatasetError(key, f"not a readable CSV file: {error}") from error
        needed = _generic.columns_to_read(columns, predicates)
        check_columns(needed or (), list(df.columns), key)
        df = _generic.filter_df(_generic.filter_df_from_predicates(df, predicates), filter_query)
        df = _generic.select_columns(df, columns).reset_index(drop=True)
        return df.astype(dict.fromkeys(set(categories or ()) & set(df.columns), "category"))

    def store(self, store: StoreInput | BlobStore, key_prefix: str, df: pd.DataFrame | pa.Table) -> str:
        """Write a frame.

        Parameters
        ----------
        store, key_prefix, df
            As in :meth:`DataFrameSerializer.store`.

        Returns
        -------
        str
            The storage key.
        """
        frame = to_pandas(df, dates_as_object=True) if isinstance(df, pa.Table) else df
        content = frame.to_csv(sep=";", index=False).encode("utf-8")
        key = key_prefix + (".csv.gz" if self.compress else ".csv")
        open_blobs(store).put(key, gzip.compress(content, mtime=0) if self.compress else content)
        return key


_generic.DataFrameSerializer.register_serializer(".csv", CsvSerializer)
_generic.DataFrameSerializer.register_serializer(".csv.gz", CsvSerializer)
