"""Sessions of Spark: the active one, how much runs at the same time, and what its displays tell."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("active_session", "job_description", "no_pandas_warnings", "require_pyspark", "workers")

#: tasks at the same time, where nothing tells
_WORKERS = 8


def active_session(spark: SparkSession | None = None) -> SparkSession:
    """
    The given session, or the active one.

    Parameters
    ----------
    spark
        A session, or None.

    Returns
    -------
    pyspark.sql.SparkSession

    Raises
    ------
    RuntimeError
        There is none.
    """
    if spark is not None:
        return spark
    require_pyspark()
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    connect = sys.modules.get("pyspark.sql.connect.session")
    if session is None and connect is not None:
        session = connect.SparkSession.getActiveSession()
    if session is None:
        raise RuntimeError(
            "There is no active Spark session: pass one as spark=..., or start one by "
            "kartothek_cube.io.spark.local_session()."
        )
    return session


def require_pyspark() -> None:
    """
    Check that pyspark is installed; it is not imported.

    Raises
    ------
    ImportError
        It is not; says how to install it.
    """
    if find_spec("pyspark") is None:
        raise ImportError('pyspark is not installed: pip install "kartothek_cube[spark]"')


def workers(spark: SparkSession) -> int:
    """
    How many tasks a session can run at the same time, as far as that can be found out.

    Parameters
    ----------
    spark
        The session.

    Returns
    -------
    int
    """
    context = _context(spark)
    if context is not None:
        return max(int(context.defaultParallelism), 1)
    for option in ("spark.sql.leafNodeDefaultParallelism", "spark.default.parallelism"):
        value = spark.conf.get(option, None)
        if value is not None and value.isdigit():
            return max(int(value), 1)
    return _WORKERS


def _context(spark: SparkSession) -> Any:
    """The SparkContext; None in a session of Spark Connect, which has none."""
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext
    except (PySparkException, AttributeError):
        return None


@contextmanager
def job_description(spark: SparkSession, text: str) -> Iterator[None]:
    """
    Let the jobs of this thread tell what they do, in Spark's own displays of progress.

    Parameters
    ----------
    spark
        The session. That of Spark Connect has no descriptions.
    text
        Which operation on which cube or dataset.
    """
    context = _context(spark)
    if context is None:
        yield
        return
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)


@contextmanager
def no_pandas_warnings() -> Iterator[None]:
    """Keep quiet about the version of pandas, which the calls in question do not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
        yield
