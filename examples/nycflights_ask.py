"""Queries with Spark and pandas that print their code and a summary of their result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import nycflights_show as show
import pandas as pd
from simplekv.decorator import StoreDecorator
from storefact import get_store_from_url

from kartothek_cube.api.cube import Condition, Conjunction, Cube, InIntervalCondition
from kartothek_cube.io.eager_cube import query_cube

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RecordingStore(StoreDecorator):  # type: ignore[misc]
    """A store that records which files are read."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.read_keys: set[str] = set()

    def get(self, key: str) -> bytes:
        """Read a file."""
        self.read_keys.add(key)
        content: bytes = self._dstore.get(key)
        return content

    def open(self, key: str) -> Any:
        """Open a file for partial reads."""
        self.read_keys.add(key)
        return self._dstore.open(key)

    def summary(self) -> str:
        """Return how many of the stored data files were read."""
        stored = {key for key in self.keys() if "/table/" in key and key.endswith(".parquet")}
        return f"{len(self.read_keys & stored)} of {len(stored)} data files read"


def ask_pandas(cube: Cube, url: str, **arguments: Any) -> list[pd.DataFrame]:
    """Query a cube in this process; print the call and a summary of the result."""
    show.code(call("query_cube(cube, store", arguments))
    store = RecordingStore(get_store_from_url(url))
    start = time.perf_counter()
    frames = query_cube(cube, store, **arguments)
    seconds = time.perf_counter() - start
    groups = f" in {len(frames)} frames" if len(frames) > 1 else ""
    show.result(f"{sum(map(len, frames)):,} rows{groups}; {store.summary()}; {1000 * seconds:.0f} ms")
    return frames


def collect(frame: DataFrame) -> pd.DataFrame:
    """Compute a Spark DataFrame; print the number of rows and the time."""
    start = time.perf_counter()
    rows: pd.DataFrame = frame.toArrow().to_pandas()
    show.result(f"{len(rows):,} rows; {1000 * (time.perf_counter() - start):,.0f} ms")
    return rows


def call(start: str, arguments: Mapping[str, Any]) -> str:
    """Format a call as source code."""
    shown = [f"{name}={_argument(value)}" for name, value in arguments.items()]
    return ",\n    ".join([start, *shown]) + ")"


def _argument(value: Any) -> str:
    if isinstance(value, Condition | Conjunction):
        parts = [_condition(part) for part in Conjunction(value).conditions]
        text = parts[0] if len(parts) == 1 else " & ".join(f"({part})" for part in parts)
        text = text if len(text) < 75 else text.replace(" & ", "\n        & ")
    else:
        text = repr(value)
    return text.replace("'", '"').replace(" 00:00:00", "")


def _condition(condition: Condition) -> str:
    if isinstance(condition, InIntervalCondition):
        return f"C({condition.column!r}).in_interval({condition.start!r}, {condition.stop!r})"
    ((column, operator, value),) = condition.predicate_part
    return f"C({column!r}) {operator} {value!r}"
