"""Serialization of DataFrames, and predicates that filter them."""

from __future__ import annotations

from kartothek_cube.serialization import (
    ConjunctionType,
    CsvSerializer,
    DataFrameSerializer,
    LiteralType,
    LiteralValue,
    ParquetSerializer,
    PredicatesType,
    check_predicates,
    columns_in_predicates,
    default_serializer,
    filter_array_like,
    filter_df,
    filter_df_from_predicates,
    filter_predicates_by_column,
)

__all__ = (
    "ConjunctionType",
    "CsvSerializer",
    "DataFrameSerializer",
    "LiteralType",
    "LiteralValue",
    "ParquetSerializer",
    "PredicatesType",
    "check_predicates",
    "columns_in_predicates",
    "default_serializer",
    "filter_array_like",
    "filter_df",
    "filter_df_from_predicates",
    "filter_predicates_by_column",
)
