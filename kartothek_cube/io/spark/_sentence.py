"""Errors of the data source as sentences: Spark tells their text alone, without where they were raised."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from kartothek_cube.core.errors import KartothekCubeError

__all__ = ("in_a_sentence",)

P = ParamSpec("P")
T = TypeVar("T")

#: what users can mend; of everything else, where it was raised is the first thing to know
_FOR_USERS = (KartothekCubeError, ValueError, TypeError, RuntimeError)
#: Spark's workers look for these when they report an error, and end then
_SHORT, _HIDDEN = "SPARK_SIMPLIFIED_TRACEBACK", "SPARK_HIDE_TRACEBACK"


def in_a_sentence(method: Callable[P, T]) -> Callable[P, T]:
    """
    Let Spark tell the text of an error only, unless its users want whole tracebacks.

    Parameters
    ----------
    method
        Method that a worker of Spark calls. Users ask for all of a traceback by setting
        ``spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled`` to false.

    Returns
    -------
    callable
        The method.
    """

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except _FOR_USERS:
            if os.environ.get(_SHORT):
                os.environ[_HIDDEN] = "1"
            raise

    return called
