"""Input frames: checks of their schemas, and the shuffle of their rows to the tasks that write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from kartothek_cube.io.spark._types import arrow_schema, check_types, to_storage_types

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ("SparkInput", "check_frame", "empty_table", "frames_of", "is_spark_frame", "shuffle_by_partition")

SparkInput: TypeAlias = "DataFrame | Mapping[str, DataFrame | None]"
"""The frame of the seed, or frames by dataset id."""

#: column with the number of tasks of a partition; no dataset can have it
_SHARES = "__kartothek_cube_shares"
#: hash buckets have unequal sizes, so their mean is smaller than a file may be
_UNEVEN = 1.05


def is_spark_frame(obj: Any) -> bool:
    """Whether an object is a DataFrame of Spark, classic or Connect."""
    return any(
        base.__name__ == "DataFrame" and base.__module__.startswith("pyspark.sql")
        for base in type(obj).__mro__
    )


def frames_of(data: Any, default: str) -> dict[str, DataFrame | None]:
    """Input by dataset id; a single frame belongs to ``default``."""
    by_id = {default: data} if is_spark_frame(data) else data
    if not isinstance(by_id, Mapping):
        raise TypeError(_not_a_frame(data))
    for name, frame in by_id.items():
        if frame is not None and not is_spark_frame(frame):
            raise TypeError(f"Dataset {name}: {_not_a_frame(frame)}")
    return {str(name): frame for name, frame in by_id.items()}


def _not_a_frame(obj: Any) -> str:
    return (
        "Expected a Spark DataFrame, or a dict of dataset id to Spark DataFrame, but got "
        f"{type(obj).__module__}.{type(obj).__name__}. Use kartothek_cube.io.spark.create_frame, or "
        "the functions of kartothek_cube.io.eager_cube and kartothek_cube.io.eager"
    )


def check_frame(df: DataFrame, dataset: str) -> None:
    """Check names and types of the columns of a frame."""
    names = list(df.columns)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Duplicate columns in dataset {dataset!r}: {', '.join(twice)}")
    if df.sparkSession.conf.get("spark.sql.caseSensitive", "false") != "true":
        lower = [name.lower() for name in names]
        alike = sorted(name for name in names if lower.count(name.lower()) > 1)
        if alike:
            raise ValueError(
                f"Columns of dataset {dataset!r} differ in upper and lower case only: {', '.join(alike)}. "
                "Rename them, or set spark.sql.caseSensitive to true"
            )
    check_types(df.schema, dataset)


def empty_table(df: DataFrame, stored: Mapping[str, pa.DataType]) -> pa.Table:
    """A frame without rows, in the types that would be stored."""
    return to_storage_types(arrow_schema(df.schema).empty_table(), stored)


def shuffle_by_partition(
    df: DataFrame, keys: Sequence[str], cells: Sequence[str] = (), file_rows: int | None = None
) -> DataFrame:
    """Bring the rows of each logical partition together by one shuffle, sorted by partition."""
    names = [_quoted(key) for key in keys]
    if file_rows is not None:
        return _dealt_out(df, names, [_quoted(cell) for cell in cells], file_rows)
    if not keys:
        return df.repartition(1)
    return df.repartition(*names).sortWithinPartitions(*names)


def _dealt_out(df: DataFrame, keys: list[str], cells: list[str], file_rows: int) -> DataFrame:
    f = _functions(df)
    shares = f.ceil(f.count(f.lit(1)) * _UNEVEN / file_rows).alias(_SHARES)
    counts = df.groupBy(*keys).agg(shares)
    large = counts.where(f.col(_SHARES) > 1)
    plain = [key[1:-1].replace("``", "`") for key in keys]
    marked = df.join(f.broadcast(large), plain, "left") if keys else df.crossJoin(f.broadcast(counts))
    share: Column = f.pmod(f.xxhash64(*cells), f.coalesce(f.col(_SHARES), f.lit(1)))
    sorted_rows = marked.repartition(*keys, share).sortWithinPartitions(*keys, *cells)
    return sorted_rows.select(*map(_quoted, df.columns))


def _functions(df: DataFrame) -> Any:
    """The functions on columns for the kind of session that the frame belongs to."""
    connect = type(df).__module__.startswith("pyspark.sql.connect")
    return import_module("pyspark.sql.connect.functions" if connect else "pyspark.sql.functions")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
