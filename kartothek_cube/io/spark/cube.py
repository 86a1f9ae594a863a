"""Cubes with Spark: DataFrames in, DataFrames out; plans and commits happen on the driver."""

from __future__ import annotations

from kartothek_cube.io.spark._cube_maintain import (
    cleanup_cube_spark,
    collect_stats_spark,
    compact_cube_spark,
    copy_cube_spark,
    delete_cube_spark,
    verify_cube_spark,
)
from kartothek_cube.io.spark._cube_read import map_cube_spark, query_cube_spark
from kartothek_cube.io.spark._cube_write import (
    append_to_cube_from_spark,
    build_cube_from_spark,
    extend_cube_from_spark,
    remove_partitions_spark,
    update_cube_from_spark,
)

__all__ = (
    "append_to_cube_from_spark",
    "build_cube_from_spark",
    "cleanup_cube_spark",
    "collect_stats_spark",
    "compact_cube_spark",
    "copy_cube_spark",
    "delete_cube_spark",
    "extend_cube_from_spark",
    "map_cube_spark",
    "query_cube_spark",
    "remove_partitions_spark",
    "update_cube_from_spark",
    "verify_cube_spark",
)
