"""Spark sessions: the active one, its parallelism, frames and displays of progress; stores for executors."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import Any
from urllib.parse import quote

import attrs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql.types import NullType
from simplekv import KeyValueStore

from kartothek_cube.core.arrow import Frame
from kartothek_cube.core.pandas_conversion import as_table
from kartothek_cube.core.store import StoreFactory, StoreInput
from kartothek_cube.core.store.resolve import ensure_store, find_dictionary, lazy_store, to_url
from kartothek_cube.io.spark._conversion import arrow_schema, spark_schema, to_spark

#: number of parallel tasks, if it cannot be determined
_WORKERS = 8
#: setting of Spark: data sources in Python get filters
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
#: advice where functions for the driver are called on executors
INSIDE_TASKS = "Functions that Spark calls in tasks use kartothek_cube.io.eager_cube."


# -- frames --------------------------------------------------------------------------------------------------


def create_frame(data: Frame, spark: SparkSession | None = None) -> DataFrame:
    """Make a DataFrame of a table.

    Spark's own ``createDataFrame`` takes naive timestamps for instants in the time zone of the session, and
    refuses integers without sign. Here naive timestamps stay naive, and integers without sign become wider
    ones. A column of nulls only has the type ``void``, and has no type yet where it is stored.

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
    session, table = active_session(spark), as_table(data)
    # columns of nulls stay so: a dataset that got texts of them would refuse other values later
    schema = spark_schema(table.schema, NullType())
    with no_pandas_warnings():
        return session.createDataFrame(to_spark(table, arrow_schema(schema)), schema)


# -- the active session --------------------------------------------------------------------------------------


@attrs.frozen(slots=False)
class SessionArgument:
    """The parameter of façades for the session."""

    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


def active_session(spark: SparkSession | None = None) -> SparkSession:
    """The given session, or the active one."""
    if spark is not None:
        return spark
    session = SparkSession.getActiveSession()
    connect = sys.modules.get("pyspark.sql.connect.session")
    if session is None and connect is not None:
        session = connect.SparkSession.getActiveSession()
    if session is None:
        # threads have no active session of their own
        with suppress(PySparkException):
            session = SparkSession.active()
    if session is None:
        raise RuntimeError(
            "There is no active Spark session: pass one as spark=..., or start one by "
            f"kartothek_cube.io.spark.local_session(). {INSIDE_TASKS}"
        )
    return session


def is_connect(df: DataFrame) -> bool:
    """Whether a frame belongs to a session of Spark Connect."""
    return df.__class__.__module__.startswith("pyspark.sql.connect")


def column_functions(df: DataFrame) -> ModuleType:
    """The functions on columns for the kind of session that the frame belongs to."""
    return import_module("pyspark.sql.connect.functions" if is_connect(df) else "pyspark.sql.functions")


def quote_column(name: str) -> str:
    """The name of a column as Spark reads it, with dots and spaces in it."""
    return "`" + name.replace("`", "``") + "`"


def is_case_sensitive(spark: SparkSession) -> bool:
    """Whether names of columns may differ in case only."""
    return str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


#: other threads would take a changed setting for that of the user
_SETTINGS = RLock()


@contextmanager
def changed_setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Change a setting of the session that has a default, and change it back."""
    with _SETTINGS:
        before = str(spark.conf.get(name))
        spark.conf.set(name, value)
        try:
            yield
        finally:
            spark.conf.set(name, before)


def workers(spark: SparkSession) -> int:
    """Number of tasks that a session can run at the same time, as far as it can be determined."""
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
    try:
        return spark.sparkContext
    except (PySparkException, AttributeError):
        return None


@contextmanager
def job_description(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the jobs of this thread in Spark's displays of progress; a no-op with Spark Connect."""
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
    """Suppress warnings about the version of pandas, which these calls do not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
        yield


# -- why a job failed ----------------------------------------------------------------------------------------

_REMEDY = (
    "Executors need a Python of version {version} with kartothek_cube and pyarrow: set the environment "
    "variable PYSPARK_PYTHON to it before the session starts (on this machine: {executable}), or let "
    "kartothek_cube.io.spark.local_session() start the session."
)
_REMEDY_CONNECT = (
    "The server of Spark Connect needs a Python of version {version} with kartothek_cube and pyarrow: "
    "install them there, or send kartothek_cube by spark.addArtifacts."
)
#: parts of Spark's message if Python cannot run tasks; the first packages that a task imports
_WRONG_PYTHON = re.compile(
    r"No module named '(kartothek_cube|pyarrow|pandas|numpy|attrs?|simplekv|storefact|pyspark)\b"
    r"|(PYTHON_VERSION_MISMATCH)"
    r"|PACKAGE_NOT_INSTALLED\W+(\w+)"
    r"|Cannot run program \"([^\"]+)\""
    r"|(Python worker failed to connect back)"
)
#: Spark computed lost rows again, and found others
_OTHER_ROWS = re.compile(r"stage with indeterminate output was failed and retried")
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
#: files that no user wrote: installed packages, Spark's own, this package
_FOREIGN = re.compile(
    r"site-packages|dist-packages|/pyspark/|pyspark\.zip|^<frozen|/kartothek_cube/(core|io|io_components)/"
)
#: the line after the frames
_ERROR = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:: .*)?)$", re.MULTILINE)


def remedy() -> str:
    """Advice about a wrong Python."""
    version = ".".join(map(str, sys.version_info[:2]))
    return (_REMEDY_CONNECT if is_remote() else _REMEDY).format(version=version, executable=sys.executable)


def explain_error(error: BaseException) -> RuntimeError | None:
    """The reason why a job failed, if that is the Python of executors, or the user's rows or function."""
    text = str(error)
    wrong = _WRONG_PYTHON.search(text)
    if wrong is not None:
        cause = wrong[wrong.lastindex or 0]
        return RuntimeError(f"The Python of Spark's executors is not the right one ({cause}). {remedy()}")
    if _OTHER_ROWS.search(text):
        return RuntimeError(
            "Spark had lost rows, computed them again, and they had other values: before the write, call "
            "checkpoint() of the DataFrame, or write it to Parquet"
        )
    _, found, tail = text.rpartition("Traceback (most recent call last):\n")
    last_line = _ERROR.search(tail)
    if not (found and last_line):
        return None
    frames = [frame for frame in _FRAME.finditer(tail) if not _FOREIGN.search(frame["file"])]
    if not frames:
        # the sentence about a function of map_cube_spark
        sentence = last_line["error"].removeprefix("RuntimeError: ")
        return RuntimeError(sentence) if sentence.startswith("Function ") else None
    file, line, function = frames[-1].group("file", "line", "function")
    return RuntimeError(f"A task failed in {function} ({file}, line {line}): {last_line['error'].strip()}")


# -- stores -------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False, slots=False)
class CachedStoreFactory:
    """Factory of a store that is opened when first needed, once per process."""

    factory: StoreFactory

    @cached_property
    def store(self) -> KeyValueStore:
        """The open store."""
        return ensure_store(self.factory)

    def __call__(self) -> KeyValueStore:
        """The open store."""
        return self.store

    def __reduce__(self) -> tuple[type[CachedStoreFactory], tuple[StoreFactory]]:
        return type(self), (self.factory,)


def picklable_store(store: StoreInput) -> CachedStoreFactory:
    """A factory for a store that executors can open; relative paths are those of this process.

    >>> picklable_store("hmemory://")
    Traceback (most recent call last):
    ...
    ValueError: Spark's executors cannot open a store in the memory of the driver: use ...
    """
    if isinstance(store, CachedStoreFactory):
        return store
    factory = CachedStoreFactory(lazy_store(store))
    if find_dictionary(factory()) is not None:
        raise ValueError(
            "Spark's executors cannot open a store in the memory of the driver: use a directory that all of "
            "them see (hfs:///data), or an object store (s3://bucket)."
        )
    root = getattr(factory(), "root", None)
    if isinstance(store, str | os.PathLike) and isinstance(root, str):
        # executors work in another directory
        path = quote(os.path.abspath(root))
        return CachedStoreFactory(lazy_store(re.sub(r"^(h?fs://)[^?#]*", rf"\g<1>{path}", to_url(store))))
    return factory
