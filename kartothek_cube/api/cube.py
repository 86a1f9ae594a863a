"""The complete cube API: ``from kartothek_cube.api.cube import *``.

Importing this module imports neither dask nor pyspark, and neither do the names of the pandas, Arrow and
iterator façades. The dask and Spark façades are imported when one of their names is used; a star import uses
all names.
"""

# ruff: noqa: F403 - this module only re-exports names

from __future__ import annotations

from typing import TYPE_CHECKING

from kartothek_cube.api import lazy_names
from kartothek_cube.core import transforms
from kartothek_cube.core.cube import conditions, constants, cube, discover
from kartothek_cube.core.cube.conditions import *
from kartothek_cube.core.cube.constants import *
from kartothek_cube.core.cube.cube import *
from kartothek_cube.core.cube.discover import *
from kartothek_cube.core.transforms import *
from kartothek_cube.io import arrow_cube, eager_cube, iter_cube, opened_cube, sql
from kartothek_cube.io.arrow_cube import *
from kartothek_cube.io.eager_cube import *
from kartothek_cube.io.iter_cube import *
from kartothek_cube.io.opened_cube import *
from kartothek_cube.io.sql import *

if TYPE_CHECKING:
    from kartothek_cube.io.dask.bag_cube import *
    from kartothek_cube.io.dask.dataframe_cube import *
    from kartothek_cube.io.dask.delayed_cube import *
    from kartothek_cube.io.spark.cube import *

_MODULES = (
    conditions,
    constants,
    cube,
    discover,
    transforms,
    arrow_cube,
    eager_cube,
    iter_cube,
    opened_cube,
    sql,
)

#: façades that are imported on first use, and their names
_FACADES = {
    "kartothek_cube.io.dask.bag_cube": (
        "append_to_cube_from_bag",
        "build_cube_from_bag",
        "cleanup_cube_bag",
        "collect_stats_bag",
        "compact_cube_bag",
        "compute_dataset_bag",
        "copy_cube_bag",
        "delete_cube_bag",
        "delete_rows_bag",
        "extend_cube_from_bag",
        "query_cube_bag",
        "remove_partitions_bag",
        "update_cube_from_bag",
        "verify_cube_bag",
    ),
    "kartothek_cube.io.dask.delayed_cube": (
        "append_to_cube_from_delayed",
        "build_cube_from_delayed",
        "cleanup_cube_delayed",
        "collect_stats_delayed",
        "compact_cube_delayed",
        "compute_dataset_delayed",
        "copy_cube_delayed",
        "delete_cube_delayed",
        "delete_rows_delayed",
        "extend_cube_from_delayed",
        "query_cube_delayed",
        "remove_partitions_delayed",
        "update_cube_from_delayed",
        "verify_cube_delayed",
    ),
    "kartothek_cube.io.dask.dataframe_cube": (
        "append_to_cube_from_dataframe",
        "build_cube_from_dataframe",
        "cleanup_cube_dataframe",
        "collect_stats_dataframe",
        "copy_cube_dataframe",
        "delete_cube_dataframe",
        "extend_cube_from_dataframe",
        "query_cube_dataframe",
        "remove_partitions_dataframe",
        "update_cube_from_dataframe",
    ),
    "kartothek_cube.io.spark.cube": (
        "append_to_cube_from_spark",
        "build_cube_from_spark",
        "cleanup_cube_spark",
        "collect_stats_spark",
        "compact_cube_spark",
        "compute_dataset_spark",
        "copy_cube_spark",
        "delete_cube_spark",
        "delete_rows_spark",
        "extend_cube_from_spark",
        "map_cube_spark",
        "merge_into_cube_from_spark",
        "query_cube_spark",
        "remove_partitions_spark",
        "update_cube_from_spark",
        "verify_cube_spark",
    ),
}

__getattr__ = lazy_names(
    __name__,
    [name for module in _MODULES for name in module.__all__],
    _FACADES,
)
