"""The Python of executors: find out before a job, or from its failure, that it is not the right one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("check_python", "explained")

_REMEDY = (
    "Executors need a Python of version {version} with kartothek_cube and pyarrow: set the environment "
    "variable PYSPARK_PYTHON to it before the session starts (on this machine: {executable}), or let "
    "kartothek_cube.io.spark.local_session() start the session."
)
_SIGNS = (
    re.compile(r"No module named '(?P<what>[\w.]+)'"),
    re.compile(r"(?P<what>PYTHON_VERSION_MISMATCH)"),
    re.compile(r"PACKAGE_NOT_INSTALLED\W+(?P<what>\w+)"),
    re.compile(r"Cannot run program \"(?P<what>[^\"]+)\""),
    re.compile(r"(?P<what>Python worker failed to connect back)"),
)
#: what a task imports before it does anything for the user
_OURS = ("kartothek_cube", "pyarrow", "pandas", "numpy", "attr", "attrs", "simplekv", "storefact", "pyspark")


def remedy() -> str:
    """What to do about a wrong Python."""
    version = ".".join(map(str, sys.version_info[:2]))
    return _REMEDY.format(version=version, executable=sys.executable)


def explained(error: BaseException) -> RuntimeError | None:
    """
    The reason why a job failed, if that is the Python of executors.

    Parameters
    ----------
    error
        What Spark raised.

    Returns
    -------
    RuntimeError or None

    Examples
    --------
    >>> print(explained(RuntimeError("ModuleNotFoundError: No module named 'pyarrow'")))
    The Python of Spark's executors is not the right one (pyarrow). Executors need a Python of version ...
    """
    text = str(error)
    for sign in _SIGNS:
        found = sign.search(text)
        if found is None:
            continue
        what = found.group("what")
        if sign is _SIGNS[0] and what.partition(".")[0] not in _OURS:
            continue
        return RuntimeError(f"The Python of Spark's executors is not the right one ({what}). {remedy()}")
    return None


def check_python(spark: SparkSession) -> None:
    """
    Check the Python of executors, if they run on this machine and it is not the Python of this process.

    Parameters
    ----------
    spark
        The session.

    Raises
    ------
    RuntimeError
        It lacks a package, or has another version.
    """
    from pyspark.errors import PySparkException

    try:
        context: Any = spark.sparkContext
    except (PySparkException, AttributeError):
        return
    if not context.master.startswith("local"):
        return
    executable = shutil.which(context.pythonExec) or context.pythonExec
    if os.path.abspath(executable) == os.path.abspath(sys.executable):
        return
    problem = _problem(executable)
    if problem is not None:
        raise RuntimeError(
            f"The Python of Spark's executors, {executable}, is not the right one ({problem}). {remedy()}"
        )


@cache
def _problem(executable: str) -> str | None:
    code = "import sys, kartothek_cube, pyarrow, pyspark; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([executable, "-c", code], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    if answer.returncode:
        return (answer.stderr.strip().splitlines() or ["it does not start"])[-1]
    version = answer.stdout.split()
    return None if version == [str(n) for n in sys.version_info[:2]] else f"version {'.'.join(version)}"
