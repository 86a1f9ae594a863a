"""A look into what is stored without the code under test, and frames in a form that is easy to compare."""

import json
from typing import Any

from kartothek_cube.core.header import COMMIT_RECORD
from tests.support import cubes
from tests.support.cubes import HEADER, frame, keys, snapshot  # noqa: F401 - for tests of datasets
from tests.support.cubes import as_dict as rows  # noqa: F401
from tests.support.cubes import check_dataset as check_integrity  # noqa: F401
from tests.support.cubes import groups as all_rows  # noqa: F401
from tests.support.cubes import read_parquet as parquet


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
    files = [part["files"][table] for part in header(store, uuid)["partitions"].values()]
    return [parquet(store, key).read().to_pydict() for key in files]


def index(store: Any, column: str, uuid: str = "u") -> dict[Any, list[int]]:
    """A secondary index: value -> positions of its partitions in the header."""
    order = labels(store, uuid)
    return {v: sorted(map(order.index, found)) for v, found in cubes.index(store, uuid, column).items()}
