"""Spark DataFrames of tables that Arrow reads, in the types of cubes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kartothek_cube.core.arrow.pandas_conversion import as_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ("create_frame",)


def create_frame(data: Any, spark: SparkSession | None = None) -> DataFrame:
    """
    Make a DataFrame of a table.

    Spark's own ``createDataFrame`` takes naive timestamps for instants in the time zone of the session, and
    refuses integers without sign. Here naive timestamps stay naive, and integers without sign become wider
    ones.

    Parameters
    ----------
    data
        A :class:`pyarrow.Table`, a :class:`pandas.DataFrame`, or anything else that Arrow reads as a table.
    spark
        The session; the active one by default.

    Returns
    -------
    pyspark.sql.DataFrame

    Raises
    ------
    TypeError
        Spark has no type for a column; names it.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.spark import create_frame, local_session
    >>> days = pd.DataFrame({"CITY": ["Bonn"], "DAY": pd.to_datetime(["2020-01-01"])})
    >>> create_frame(days, local_session(2)).collect()
    [Row(CITY='Bonn', DAY=datetime.datetime(2020, 1, 1, 0, 0))]
    """
    from kartothek_cube.io.spark._session import active_session, no_pandas_warnings
    from kartothek_cube.io.spark._types import arrow_schema, spark_schema, to_spark

    session, table = active_session(spark), as_table(data)
    schema = spark_schema(table.schema)
    with no_pandas_warnings():
        return session.createDataFrame(to_spark(table, arrow_schema(schema)), schema)
