"""Spark: cubes and datasets as DataFrames, in SQL, as a data source; pyspark is imported when needed."""

from __future__ import annotations

from kartothek_cube.io.spark._local_session import local_session, register
from kartothek_cube.io.spark._session import create_frame, require_pyspark

__all__ = ("create_frame", "local_session", "register")

require_pyspark()
