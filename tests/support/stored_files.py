"""A look into what is stored without the code under test, and frames in a form that is easy to compare."""

import json
from typing import Any

import pandas as pd

from kartothek_cube.core.header import COMMIT_RECORD
from tests.support.cubes import HEADER, frame, keys, snapshot  # noqa: F401 - for tests of datasets
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
    table = parquet(store, header(store, uuid)["indices"][column]).read().to_pydict()
    return {v: sorted(map(order.index, ls)) for v, ls in zip(table[column], table["partition"])}


def index_of_files(store: Any, column: str, uuid: str = "u") -> dict[Any, list[int]]:
    """The index that fits the data files: what `index` has to give."""
    found: dict[Any, set[int]] = {}
    for position, content in enumerate(contents(store, uuid)):
        for value in content[column]:
            if value is not None:
                found.setdefault(value, set()).add(position)
    return {value: sorted(positions) for value, positions in found.items()}


def check_integrity(store: Any, uuid: str = "u") -> None:
    """Fail unless every file that the header names exists and every secondary index fits the data files."""
    content = header(store, uuid)
    named = {key for part in content["partitions"].values() for key in part["files"].values()}
    assert named | set(content.get("indices", {}).values()) <= keys(store)
    for column in content.get("indices", {}):
        assert index(store, column, uuid) == index_of_files(store, column, uuid)
