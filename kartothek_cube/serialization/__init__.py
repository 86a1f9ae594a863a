"""Serialisation of frames and Arrow tables as Parquet and CSV, with predicate pushdown."""

from __future__ import annotations

from kartothek_cube.core.expressions import (
    ConjunctionType,
    LiteralType,
    LiteralValue,
    PredicatesType,
    check_predicates,
    columns_in_predicates,
    filter_predicates_by_column,
)
from kartothek_cube.serialization._generic import (
    CsvSerializer,
    DataFrameSerializer,
    columns_to_read,
    filter_array_like,
    filter_df,
    filter_df_from_predicates,
)
from kartothek_cube.serialization.parquet import ParquetReadError, ParquetSerializer

__all__ = ["CsvSerializer", "DataFrameSerializer", "ParquetReadError", "ParquetSerializer"]
__all__ += ["ConjunctionType", "LiteralType", "LiteralValue", "PredicatesType"]
__all__ += ["check_predicates", "columns_in_predicates", "columns_to_read", "default_serializer"]
__all__ += ["filter_array_like", "filter_df", "filter_df_from_predicates", "filter_predicates_by_column"]


def default_serializer() -> DataFrameSerializer:
    """The serializer of datasets whose writer did not choose one.

    >>> default_serializer()
    ParquetSerializer(compression='SNAPPY', chunk_size=None)
    """
    return ParquetSerializer()
