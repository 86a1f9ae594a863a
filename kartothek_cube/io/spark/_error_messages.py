"""Errors of the data source without stack traces: Spark shows their text alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from kartothek_cube.core.errors import KartothekCubeError

__all__ = ("concise_errors",)

P = ParamSpec("P")
T = TypeVar("T")

#: errors that users can correct; all others need their stack trace
_FOR_USERS = (KartothekCubeError, ValueError, TypeError, RuntimeError)
#: Spark's workers look for this when they report an error; then they end
_HIDDEN = "SPARK_HIDE_TRACEBACK"


def concise_errors(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that a worker of Spark calls: errors carry their text, no stack trace."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except _FOR_USERS:
            if _is_worker():
                os.environ[_HIDDEN] = "1"
            raise

    return called


def _is_worker() -> bool:
    """Whether Spark started this process to call the data source."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
