"""The Spark façade with the methods of tests/support/cube_facades.py: pandas in, sorted pandas out.

Stores have to be such that executors can open them: use it with ``--store local``.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.pandas_conversion import as_table, to_pandas
from kartothek_cube.io.spark import create_frame
from kartothek_cube.io.spark import cube as spark_cube
from kartothek_cube.io_components.write.write_tasks import collect_input
from tests.support.cube_facades import Eager
from tests.support.spark_session import shared_session


def to_frame(table: Any) -> Any:
    """Give a table as a Spark DataFrame, twins among its columns included; other objects as they are."""
    if isinstance(table, pd.DataFrame):
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in table.columns]
        return to_frame(as_table(table.set_axis([str(n) for n in range(len(names))], axis=1))).toDF(*names)
    if not isinstance(table, pa.Table):
        return table
    return create_frame(table.replace_schema_metadata(None), shared_session())


def to_frames(data: Any, cube: Cube) -> Any:
    """Give input in any of the forms that eager functions take as Spark DataFrames by dataset id."""
    if isinstance(data, pd.DataFrame | pa.Table):
        return to_frame(with_integers(data, cube))
    if isinstance(data, Mapping):
        return {name: to_frame(with_integers(item, cube)) for name, item in data.items()}
    if not isinstance(data, list | tuple):
        return data
    found = collect_input(data, cube)
    return {name: to_frame(concat(frames)) if frames else None for name, frames in found.items()}


def with_integers(df: Any, cube: Cube | str) -> Any:
    """Give key columns the integers that pandas made floats of, since one of them is missing."""
    if not isinstance(df, pd.DataFrame) or not df.columns.is_unique or not isinstance(cube, Cube):
        return df
    keys = [c for c in (*cube.dimension_columns, *cube.partition_columns) if c in df.columns]
    floats = [c for c in keys if df[c].dtype == "float64" and df[c].isna().any()]
    return df.astype(dict.fromkeys(floats, "Int64"))


def concat(frames: list[Any]) -> pa.Table:
    tables = [as_table(frame).replace_schema_metadata(None) for frame in frames]
    return pa.concat_tables(tables, promote_options="permissive")


def to_result(df: Any) -> pd.DataFrame:
    table = df.toArrow()
    for position, field in enumerate(table.schema):
        if field.type == pa.decimal128(20, 0):
            table = table.set_column(position, field.name, table.column(position).cast(pa.uint64()))
    return to_pandas(table)


class Spark(Eager):
    """Spark DataFrames in, Spark DataFrames out."""

    name = "spark"
    module, writes, others = spark_cube, "{}_from_spark", "{}_spark"
    #: a DataFrame has one type per column
    groups_share_types = True

    def run(self, name: str, *data: Any, **kwargs: Any) -> Any:
        self.options = {"spark": None if data else shared_session()}
        return super().run(name, *data, **kwargs)

    def make_input(self, data: Any, cube: Any) -> Any:
        return to_frames(data, cube)

    def query_cube(self, cube: Cube, partition_by: Any = None, **kwargs: Any) -> list[pd.DataFrame]:
        shared_session()
        df = spark_cube.query_cube_spark(cube, partition_by=partition_by, **kwargs)
        result = to_result(df)
        by = [partition_by] if isinstance(partition_by, str) else list(partition_by or ())
        if by:
            changes = (result[by] != result[by].shift()).any(axis=1).cumsum()
            return [group.reset_index(drop=True) for _, group in result.groupby(changes)]
        dimensions = kwargs.get("dimension_columns") or cube.dimension_columns
        keys = [dimensions] if isinstance(dimensions, str) else list(dimensions)
        keys += [c for c in cube.partition_columns if c not in keys]
        return [result.sort_values(keys, ignore_index=True)] if len(result) else []
