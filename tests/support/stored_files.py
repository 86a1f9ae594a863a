"""A look into what is stored without the code under test, and frames in a form that is easy to compare."""

import json
from typing import Any

import pandas as pd

from kartothek_cube.core.header import COMMIT_RECORD
from tests.support import cubes
from tests.support.cubes import HEADER, frame, keys, snapshot  # noqa: F401 - for tests of datasets
from tests.support.cubes import check_dataset as check_integrity  # noqa: F401
from tests.support.cubes import read_parquet as parquet


def rows(df: pd.DataFrame) -> dict[str, list[Any]]:
    """The columns of a frame as lists; every kind of missing value is None."""
    return {name: [None if _missing(v) else v for v in df[name].tolist()] for name in df.columns}


def _missing(value: Any) -> bool:
    return not hasattr(value, "__len__") and bool(pd.isna(value))


def all_rows(frames: list[pd.DataFrame]) -> list[dict[str, list[Any]]]:
    return [rows(df) for df in frames]


def header(store: Any, uuid: str = "u") -> dict[str, Any]:
    """The header without the commit record, which no two commits have in common."""
    content = json.loads(store().get(f"{uuid}{HEADER}json"))
    return {part: value for part, value in content.items() if part != COMMIT_RECORD}


def labels(store: Any, uuid: str = "u") -> list[str]:
    return list(header(store, uuid)["partitions"])


def directories(store: Any, uuid: str = "u") -> list[str]:
    """Labels without their last component, in the order of the header."""
    return [label.rpartition("/")[0] for label in labels(store, uuid)]


def contents(store: Any, uuid: str = "u", table: str = "table") -> list[dict[str, list[Any]]]:
    """The columns of all files, in the order of the header."""
    files = [part["files"][table] for part in header(store, uuid)["partitions"].values()]
    return [parquet(store, key).read().to_pydict() for key in files]


def index(store: Any, column: str, uuid: str = "u") -> dict[Any, list[int]]:
    """A secondary index: value -> positions of its partitions in the header."""
    order = labels(store, uuid)
    return {v: sorted(map(order.index, found)) for v, found in cubes.index(store, uuid, column).items()}
