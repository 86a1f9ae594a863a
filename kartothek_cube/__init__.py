"""Datasets of Parquet files with a strict state, and cubes made of them.

The usual names are here: ``from kartothek_cube import Cube, C, open_cube, query_cube``. They are loaded on
first use, so that importing this package loads nothing else. All names are in :mod:`kartothek_cube.api`.
"""

# ruff: noqa: F403, F405 - names for type checkers; __all__ selects them

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kartothek_cube.kartothek_paths import install_finder

if TYPE_CHECKING:
    from kartothek_cube.api.cube import *
    from kartothek_cube.core.store.resolve import ensure_store
    from kartothek_cube.io.eager import *

    __version__: str

install_finder()

#: modules of names that are loaded on first use; all others are in ``api.cube``
_MODULES = {
    "ensure_store": "kartothek_cube.core.store.resolve",
    "read_table": "kartothek_cube.api.dataset",
    "store_dataframes_as_dataset": "kartothek_cube.api.dataset",
    "update_dataset_from_dataframes": "kartothek_cube.api.dataset",
}

__all__ = (
    "C",
    "Cube",
    "__version__",
    "append_to_cube",
    "bucket",
    "build_column_statistics",
    "build_cube",
    "cleanup_cube",
    "collect_stats",
    "compact_cube",
    "compute_dataset",
    "copy_cube",
    "day",
    "delete_cube",
    "delete_rows",
    "discover_cube",
    "ensure_store",
    "explain_query",
    "extend_cube",
    "hour",
    "keep_cube_history",
    "list_cube_changes",
    "list_cube_history",
    "merge_into_cube",
    "month",
    "open_cube",
    "query_cube",
    "query_cube_df",
    "read_table",
    "remove_partitions",
    "repair_cube",
    "rollback_cube",
    "store_dataframes_as_dataset",
    "truncate",
    "update_cube",
    "update_dataset_from_dataframes",
    "update_schema",
    "verify_cube",
    "year",
)


def __getattr__(name: str) -> Any:
    """Load a name of the API, or ``__version__``, on first use: both take time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "__version__":
        return getattr(import_module(_MODULES.get(name, "kartothek_cube.api.cube")), name)
    from kartothek_cube.core.naming import library_version

    return library_version()


def __dir__() -> list[str]:
    return [*__all__, *globals()]
