"""Cubes with iterators: one frame of input, or one group of a result, is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import chain

import pandas as pd

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.typing import ConditionsInput, CubeElement, CubeMetadata, DatasetsInput
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io import eager_cube
from kartothek_cube.io._executor import execute, iter_results
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.frame_conversion import query_job, run_frames
from kartothek_cube.io_components.query.planner import plan_query
from kartothek_cube.io_components.runtime.threads import limit_threads
from kartothek_cube.io_components.verify.report import Report
from kartothek_cube.io_components.write.cube_plan import (
    CubeWritePlan,
    plan_append,
    plan_build,
    plan_extend,
    plan_update,
)
from kartothek_cube.io_components.write.incremental import (
    declared_ids,
    iter_input,
    write_part,
    write_parts_job,
)
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
    "query_cube__iterator",
    "remove_partitions__iter",
    "update_cube__iter",
    "verify_cube__iter",
)


def _write_iter(plan: CubeWritePlan, data: Iterable[CubeElement]) -> dict[str, DatasetMetadata]:
    return execute(write_parts_job(plan, iter_input(data), write_part))


def build_cube__iter(
    data: Iterable[CubeElement],
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Store a new cube.

    Each element of the input is checked and written before the next one is taken; the cube becomes visible at
    the end. If the iterable raises, or an element breaks a rule, no dataset appears.

    Parameters
    ----------
    data
        Iterable of DataFrames (for the seed), dicts of dataset id to DataFrame, and None. Cells have to be
        unique within an element.
    ktk_cube_dataset_ids
        Ids that may occur in the input; by default only the seed. Those that do not occur are not written.
    cube, store, metadata, overwrite, partition_on, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.build_cube`.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    ValueError, RuntimeError
        As :func:`~kartothek_cube.io.eager_cube.build_cube`.

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
    names = declared_ids(ktk_cube_dataset_ids, [cube.seed_dataset])
    plan = plan_build(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_iter(plan, data)


def extend_cube__iter(
    data: Iterable[CubeElement],
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Add datasets, and with them columns, to a cube.

    Parameters
    ----------
    data
        As in :func:`build_cube__iter`.
    ktk_cube_dataset_ids
        Ids that may occur in the input.
    cube, store, metadata, overwrite, partition_on, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.extend_cube`.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError, RuntimeError
        As :func:`~kartothek_cube.io.eager_cube.extend_cube`.
    """
    names = declared_ids(ktk_cube_dataset_ids)
    plan = plan_extend(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_iter(plan, data)


def append_to_cube__iter(
    data: Iterable[CubeElement],
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Add partitions to datasets of a cube; nothing happens to a dataset without rows in the input.

    Parameters
    ----------
    data
        As in :func:`build_cube__iter`.
    ktk_cube_dataset_ids
        Ids that may occur in the input.
    cube, store, metadata, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.append_to_cube`.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError
        As :func:`~kartothek_cube.io.eager_cube.append_to_cube`.
    """
    plan = plan_append(cube, store, declared_ids(ktk_cube_dataset_ids), metadata, df_serializer)
    return _write_iter(plan, data)


def update_cube__iter(
    data: Iterable[CubeElement],
    cube: Cube,
    store: StoreInput,
    remove_conditions: ConditionsInput,
    ktk_cube_dataset_ids: str | Iterable[str],
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Replace partitions: what meets the conditions goes, the input comes, in one commit per dataset.

    Parameters
    ----------
    data
        As in :func:`build_cube__iter`.
    cube, store, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.update_cube`.

    Returns
    -------
    dict
        Dataset id to metadata of the updated datasets.

    Raises
    ------
    ValueError, RuntimeError
        As :func:`~kartothek_cube.io.eager_cube.update_cube`.
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
) -> Iterator[pd.DataFrame]:
    """
    Query a cube group by group. The query is planned at once, a group is read when it is asked for.

    Parameters
    ----------
    cube, store, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of
        As in :func:`kartothek_cube.io.eager_cube.query_cube`.

    Returns
    -------
    iterator of pandas.DataFrame
        The frames of :func:`~kartothek_cube.io.eager_cube.query_cube`. As they are read one by one, a column
        of dates is ``datetime64[s]`` only in those frames that need it.

    Raises
    ------
    ValueError, TypeError
        As :func:`~kartothek_cube.io.eager_cube.query_cube`, by the call itself.
    """
    plan = plan_query(
        cube, store, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of=as_of
    )
    return chain.from_iterable(iter_results(query_job(plan, plan.tasks(), run_frames)))


def remove_partitions__iter(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Remove partitions; the same as :func:`kartothek_cube.io.eager_cube.remove_partitions`.

    Parameters
    ----------
    cube, store, conditions, ktk_cube_dataset_ids, metadata
        As there.

    Returns
    -------
    dict
        Dataset id to metadata of all datasets of the cube.
    """
    return eager_cube.remove_partitions(cube, store, conditions, ktk_cube_dataset_ids, metadata)


def delete_cube__iter(cube: Cube, store: StoreInput, datasets: DatasetsInput = None) -> None:
    """
    Delete a cube; the same as :func:`kartothek_cube.io.eager_cube.delete_cube`.

    Parameters
    ----------
    cube, store, datasets
        As there.
    """
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
    """
    Copy a cube; the same as :func:`kartothek_cube.io.eager_cube.copy_cube`.

    Parameters
    ----------
    cube, src_store, tgt_store, overwrite, datasets, renamed_cube_prefix, renamed_datasets
        As there.
    """
    eager_cube.copy_cube(
        cube, src_store, tgt_store, overwrite, datasets, renamed_cube_prefix, renamed_datasets
    )


def collect_stats__iter(
    cube: Cube, store: StoreInput, datasets: DatasetsInput = None
) -> dict[str, dict[str, int]]:
    """
    Count what is stored; the same as :func:`kartothek_cube.io.eager_cube.collect_stats`.

    Parameters
    ----------
    cube, store, datasets
        As there.

    Returns
    -------
    dict
        Dataset id to stats.
    """
    return eager_cube.collect_stats(cube, store, datasets)


def cleanup_cube__iter(cube: Cube, store: StoreInput, *, retention: timedelta | None = None) -> None:
    """
    Remove what no dataset refers to; the same as :func:`kartothek_cube.io.eager_cube.cleanup_cube`.

    Parameters
    ----------
    cube, store, retention
        As there.
    """
    eager_cube.cleanup_cube(cube, store, retention=retention)


def compact_cube__iter(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
) -> dict[str, dict[str, int]]:
    """
    Merge files; the same as :func:`kartothek_cube.io.eager_cube.compact_cube`, one partition at a time.

    Parameters
    ----------
    cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files
        As there.

    Returns
    -------
    dict
        As there.
    """
    with limit_threads(1):
        return eager_cube.compact_cube(
            cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files=min_files
        )


def verify_cube__iter(
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
) -> Report:
    """
    Check a cube; the same as :func:`kartothek_cube.io.eager_cube.verify_cube`, one file at a time.

    Parameters
    ----------
    cube, store, ktk_cube_dataset_ids, deep
        As there.

    Returns
    -------
    Report
    """
    with limit_threads(1):
        return eager_cube.verify_cube(cube, store, ktk_cube_dataset_ids, deep=deep)
