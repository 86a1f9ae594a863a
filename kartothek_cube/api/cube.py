"""
The whole cube API: ``from kartothek_cube.api.cube import *``.

Names of the dask façades are there if dask is installed; it is imported when one of them is first used
(a star import uses all of them).
"""

# ruff: noqa: F401 - names are imported to be exported, by an __all__ that depends on what is installed

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from kartothek_cube.core.cube.conditions import *  # noqa: F403
from kartothek_cube.core.cube.conditions import __all__ as _conditions
from kartothek_cube.core.cube.constants import *  # noqa: F403
from kartothek_cube.core.cube.constants import __all__ as _constants
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import (
    discover_cube,
    discover_datasets,
    discover_datasets_unchecked,
    discover_ktk_cube_dataset_ids,
)
from kartothek_cube.io.arrow_cube import query_cube_arrow
from kartothek_cube.io.eager_cube import (
    append_to_cube,
    build_cube,
    cleanup_cube,
    collect_stats,
    copy_cube,
    delete_cube,
    extend_cube,
    query_cube,
    remove_partitions,
    update_cube,
)

_EAGER = (
    "Cube",
    "append_to_cube",
    "build_cube",
    "cleanup_cube",
    "collect_stats",
    "copy_cube",
    "delete_cube",
    "discover_cube",
    "discover_datasets",
    "discover_datasets_unchecked",
    "discover_ktk_cube_dataset_ids",
    "extend_cube",
    "query_cube",
    "query_cube_arrow",
    "remove_partitions",
    "update_cube",
)

#: engine -> module -> names
_OPTIONAL: dict[str, dict[str, tuple[str, ...]]] = {
    "dask": {
        "kartothek_cube.io.dask.bag_cube": (
            "append_to_cube_from_bag",
            "build_cube_from_bag",
            "cleanup_cube_bag",
            "collect_stats_bag",
            "copy_cube_bag",
            "delete_cube_bag",
            "extend_cube_from_bag",
            "query_cube_bag",
            "update_cube_from_bag",
        ),
        "kartothek_cube.io.dask.dataframe_cube": (
            "append_to_cube_from_dataframe",
            "build_cube_from_dataframe",
            "extend_cube_from_dataframe",
            "query_cube_dataframe",
        ),
    },
}
_HOME = {
    name: module
    for engine, modules in _OPTIONAL.items()
    if find_spec(engine) is not None
    for module, names in modules.items()
    for name in names
}

__all__ = [*_EAGER, *_conditions, *_constants, *_HOME]


def __getattr__(name: str) -> Any:
    """Import an optional façade when one of its names is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
