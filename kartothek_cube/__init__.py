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

__all__ = ["C", "Cube", "__version__", "discover_cube", "ensure_store", "open_cube"]
# transforms of partition columns
__all__ += ["bucket", "day", "hour", "month", "truncate", "year"]
# reads
__all__ += ["explain_query", "query_cube", "query_cube_df"]
# writes
__all__ += ["append_to_cube", "build_cube", "compute_dataset", "delete_rows", "extend_cube"]
__all__ += ["merge_into_cube", "remove_partitions", "update_cube", "update_schema"]
# maintenance
__all__ += ["build_column_statistics", "cleanup_cube", "collect_stats", "compact_cube", "copy_cube"]
__all__ += ["delete_cube", "keep_cube_history", "list_cube_changes", "list_cube_history", "repair_cube"]
__all__ += ["rollback_cube", "verify_cube"]
# datasets
__all__ += ["read_table", "store_dataframes_as_dataset", "update_dataset_from_dataframes"]


def __getattr__(name: str) -> Any:
    """Load a name of the API, or ``__version__``, on first use: both take time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        return import_module("kartothek_cube.core.naming").library_version()
    return getattr(import_module(_MODULES.get(name, "kartothek_cube.api.cube")), name)


def __dir__() -> list[str]:
    return [*__all__, *globals()]
