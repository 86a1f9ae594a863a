"""Save modes "error" and "ignore" for our format, which Spark refuses for every data source in Python.

Spark 4 raises UNSUPPORTED_DATA_SOURCE_SAVE_MODE before it asks the data source. So ``DataFrameWriter.save``
passes these modes on as "append" with the option ``if_exists``, for ``format("kartothek_cube")`` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from kartothek_cube.io.spark._options import FORMAT

__all__ = ("install",)

_MODES = {"error": "error", "errorifexists": "error", "default": "error", "ignore": "ignore"}
_CHOSEN = "_kartothek_cube_chosen"
_MARK = "_kartothek_cube_wraps"


def install() -> None:
    """Teach the writers of all kinds of sessions that are imported; once is enough."""
    for module in ("pyspark.sql.readwriter", "pyspark.sql.connect.readwriter"):
        if module in sys.modules:
            writer = sys.modules[module].DataFrameWriter
            if not hasattr(writer.save, _MARK):
                writer.format = _remembering("format", writer.format)
                writer.mode = _remembering("mode", writer.mode)
                writer.save = _saving(writer.save)


def _remembering(what: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def remember(self: Any, value: Any) -> Any:
        if value is not None:
            self.__dict__.setdefault(_CHOSEN, {})[what] = value
        return method(self, value)

    return remember


def _saving(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def save(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> Any:
        chosen = self.__dict__.get(_CHOSEN, {})
        if str(format or chosen.get("format", "")).lower() == FORMAT:
            wanted = str(mode or chosen.get("mode", "error")).lower()
            if wanted in _MODES:
                options["if_exists"], mode = _MODES[wanted], "append"
        return method(self, path, format, mode, partitionBy, **options)

    setattr(save, _MARK, True)
    return save
