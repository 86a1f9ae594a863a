"""Cubes with iterators: one frame of input, or one group of a result, is in memory at a time.

Examples
--------
>>> import pandas as pd
>>> from kartothek_cube.core.cube.cube import Cube
>>> from storefact import get_store_from_url
>>> store = get_store_from_url("hmemory://")
>>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
>>> cities = {"DE": "Ulm", "UK": "Bath"}
>>> frames = (pd.DataFrame({"CITY": [name], "COUNTRY_CODE": [code]}) for code, name in cities.items())
>>> sorted(build_cube__iter(frames, cube, store))
['seed']
>>> for frame in query_cube__iterator(cube, store, partition_by="COUNTRY_CODE"):
...     frame["CITY"].tolist()
['Ulm']
['Bath']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import chain
from typing import Literal

import pandas as pd

from kartothek_cube.core.arguments import alias_parameter
from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io import eager_cube
from kartothek_cube.io._local_executor import execute, iter_results
from kartothek_cube.io_components.maintenance.history import CubeAsOf
from kartothek_cube.io_components.query.executor import prefetch_tasks, query_job, run_frames
from kartothek_cube.io_components.query.result_types import plan_frames
from kartothek_cube.io_components.runtime import limit_threads
from kartothek_cube.io_components.verify.report import Report
from kartothek_cube.io_components.write.cube_plan import (
    CubeWritePlan,
    plan_append,
    plan_build,
    plan_extend,
    plan_update,
)
from kartothek_cube.io_components.write.dataset_plan import SchemaMode
from kartothek_cube.io_components.write.incremental import (
    declared_ids,
    iter_input,
    write_part,
    write_parts_job,
)
from kartothek_cube.io_components.write.validation import CubeElement, CubeMetadata
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "append_to_cube__iter",
    "build_cube__iter",
    "cleanup_cube__iter",
    "collect_stats__iter",
    "compact_cube__iter",
    "copy_cube__iter",
    "delete_cube__iter",
    "extend_cube__iter",
    "query_cube__iter",
    "query_cube__iterator",
    "remove_partitions__iter",
    "update_cube__iter",
    "verify_cube__iter",
)


def _write_iter(plan: CubeWritePlan, data: Iterable[CubeElement]) -> dict[str, DatasetMetadata]:
    return execute(write_parts_job(plan, iter_input(data), write_part))


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def build_cube__iter(
    data: Iterable[CubeElement],
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Store a new cube, element by element; see :func:`kartothek_cube.io.eager_cube.build_cube`.

    ``data`` is an iterable of DataFrames (for the seed), dicts of dataset id to DataFrame, and None; cells
    are unique within an element. Each element is checked and written before the next one is taken, and the
    cube appears at the end. ``ktk_cube_dataset_ids`` are the ids that may occur in the input, by default the
    seed.
    """
    names = declared_ids(ktk_cube_dataset_ids, [cube.seed_dataset])
    plan = plan_build(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_iter(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def extend_cube__iter(
    data: Iterable[CubeElement],
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Add datasets to a cube, element by element; see :func:`kartothek_cube.io.eager_cube.extend_cube`.

    ``data`` is as in :func:`build_cube__iter`, ``ktk_cube_dataset_ids`` are the ids that may occur in it.
    """
    names = declared_ids(ktk_cube_dataset_ids)
    plan = plan_extend(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_iter(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def append_to_cube__iter(
    data: Iterable[CubeElement],
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
    schema_mode: SchemaMode = "strict",
    unique_cells: bool = False,
) -> dict[str, DatasetMetadata]:
    """
    Add partitions, element by element; see :func:`kartothek_cube.io.eager_cube.append_to_cube`.

    ``data`` is as in :func:`build_cube__iter`, ``ktk_cube_dataset_ids`` are the ids that may occur in it. A
    dataset without rows in the input stays as it is.
    """
    plan = plan_append(
        cube,
        store,
        declared_ids(ktk_cube_dataset_ids),
        metadata,
        df_serializer,
        schema_mode,
        unique_cells=unique_cells,
    )
    return _write_iter(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def update_cube__iter(
    data: Iterable[CubeElement],
    cube: Cube,
    store: StoreInput,
    remove_conditions: ConditionsInput | Literal["all"],
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Replace partitions, element by element; see :func:`kartothek_cube.io.eager_cube.update_cube`.

    ``data`` is as in :func:`build_cube__iter`; removal and input of a dataset are one commit, at the end.
    """
    plan = plan_update(cube, store, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer)
    return _write_iter(plan, data)


def query_cube__iterator(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
    dtype_backend: DtypeBackend | None = None,
) -> Iterator[pd.DataFrame]:
    """
    Query a cube group by group; see :func:`kartothek_cube.io.eager_cube.query_cube`.

    The call plans the query and raises what is wrong with it; the files of a group are read when its frame is
    taken, from the second on while the one before is in use if the store is remote. For the types of groups,
    footers of files are read when it is planned.
    """
    plan = plan_frames(
        cube,
        store,
        conditions,
        datasets,
        dimension_columns,
        partition_by,
        payload_columns,
        as_of=as_of,
        dtype_backend=dtype_backend,
    )
    tasks = prefetch_tasks(plan.context, plan.tasks())
    return chain.from_iterable(iter_results(query_job(plan, tasks, run_frames)))


#: the same name as those of the other functions
query_cube__iter = query_cube__iterator


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def remove_partitions__iter(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput | Literal["all"] = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """Remove partitions; same as :func:`kartothek_cube.io.eager_cube.remove_partitions`."""
    return eager_cube.remove_partitions(cube, store, conditions, ktk_cube_dataset_ids, metadata)


def delete_cube__iter(cube: Cube, store: StoreInput, datasets: DatasetsInput = None) -> None:
    """Delete a cube; same as :func:`kartothek_cube.io.eager_cube.delete_cube`."""
    eager_cube.delete_cube(cube, store, datasets)


def copy_cube__iter(
    cube: Cube,
    src_store: StoreInput,
    tgt_store: StoreInput,
    overwrite: bool = False,
    datasets: DatasetsInput = None,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
) -> None:
    """Copy a cube; same as :func:`kartothek_cube.io.eager_cube.copy_cube`."""
    eager_cube.copy_cube(
        cube, src_store, tgt_store, overwrite, datasets, renamed_cube_prefix, renamed_datasets
    )


def collect_stats__iter(
    cube: Cube, store: StoreInput, datasets: DatasetsInput = None
) -> dict[str, dict[str, int]]:
    """Count what is stored; same as :func:`kartothek_cube.io.eager_cube.collect_stats`."""
    return eager_cube.collect_stats(cube, store, datasets)


def cleanup_cube__iter(cube: Cube, store: StoreInput, *, retention: timedelta | None = None) -> None:
    """Delete garbage; same as :func:`kartothek_cube.io.eager_cube.cleanup_cube`."""
    eager_cube.cleanup_cube(cube, store, retention=retention)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def compact_cube__iter(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, dict[str, int]]:
    """Merge files; as :func:`kartothek_cube.io.eager_cube.compact_cube`, one partition at a time."""
    with limit_threads(1):
        return eager_cube.compact_cube(
            cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files=min_files
        )


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def verify_cube__iter(
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
    datasets: str | Iterable[str] | None = None,
) -> Report:
    """Check a cube; as :func:`kartothek_cube.io.eager_cube.verify_cube`, one task at a time."""
    with limit_threads(1):
        return eager_cube.verify_cube(cube, store, ktk_cube_dataset_ids, deep=deep)
