"""Cubes with pandas, at once: every function does its whole work before it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TypeAlias

import attrs
import pandas as pd

from kartothek_cube.core.arguments import alias_parameter
from kartothek_cube.core.arrow import Frame
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import find_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.history import annotate_operations
from kartothek_cube.core.hooks import CommitEvent, Hook, QueryEvent, check_rows, on_commit, on_query
from kartothek_cube.core.store import Blob, StoreInput, open_blobs
from kartothek_cube.io_components import computed_dataset, runtime
from kartothek_cube.io_components.delete_rows import DeleteRows
from kartothek_cube.io_components.facade import Operation, P, define_facade, facade
from kartothek_cube.io_components.job import Answer, execute
from kartothek_cube.io_components.maintenance import copy, garbage, overview, publish
from kartothek_cube.io_components.maintenance.cube_history import CubeHistory, CubeState, list_cube_history
from kartothek_cube.io_components.maintenance.overview import CubeChanges, CubeLineage
from kartothek_cube.io_components.maintenance.pins import pin_cube
from kartothek_cube.io_components.maintenance.publish import discard_staged, publish_staged
from kartothek_cube.io_components.maintenance.rollback import keep_cube_history, rollback_cube
from kartothek_cube.io_components.maintenance.schema_update import update_schema
from kartothek_cube.io_components.maintenance.verify_cube import VerifyCube, repair
from kartothek_cube.io_components.maintenance.verify_dataset import Report
from kartothek_cube.io_components.query import executor, explain, logical_plan, physical_plan
from kartothek_cube.io_components.query.frame_conversion import frame_of_table
from kartothek_cube.io_components.write import build_index, cube_writes, rewrite
from kartothek_cube.io_components.write.adopt import ADOPT_THREADS, AdoptDataset, Adoption
from kartothek_cube.io_components.write.rewrite import MergeResult
from kartothek_cube.io_components.write.stored_rows import list_contract, set_contract
from kartothek_cube.io_components.write.write_commit import StagedWrite, write_job
from kartothek_cube.io_components.write.write_tasks import CubeInput, collect_input, write_frames
from kartothek_cube.serialization import DataFrameSerializer

__all__ = ["build_cube", "extend_cube", "append_to_cube", "update_cube", "merge_into_cube", "compute_dataset"]
__all__ += ["query_cube", "query_cube_df", "explain_query"]
__all__ += ["delete_rows", "remove_partitions", "delete_cube", "copy_cube", "update_schema"]
__all__ += ["adopt_dataset", "Adoption", "publish_cube", "unpublish_cube"]
__all__ += ["StagedWrite", "publish_staged", "discard_staged"]
__all__ += ["list_cube_history", "CubeHistory", "CubeState", "keep_cube_history", "pin_cube", "rollback_cube"]
__all__ += ["list_cube_changes", "CubeChanges", "lineage_cube", "CubeLineage"]
__all__ += ["build_column_statistics", "cleanup_cube", "compact_cube", "list_cube_garbage"]
__all__ += ["collect_stats", "repair_cube", "verify_cube", "list_contract", "set_contract"]
__all__ += ["on_commit", "CommitEvent", "on_query", "QueryEvent", "Hook", "annotate_operations", "check_rows"]

Datasets: TypeAlias = dict[str, DatasetMetadata]

_TYPES = {"DataT": "CubeInput", "StoreT": "StoreInput"}


def _write(name: str, write: Callable[P, cube_writes.CubeWrite[CubeInput]]) -> Callable[P, Datasets]:
    """The façade of a write of data that is in memory."""

    def run(write: cube_writes.CubeWrite[CubeInput]) -> dict[str, DatasetMetadata]:
        frames = collect_input(write.data, write.cube)
        return execute(write_job(write.plan(frames), [frames], write_frames))

    return facade(__name__, name, write, run, types=_TYPES)


def _eager(name: str, operation: Callable[P, Operation[Answer]]) -> Callable[P, Answer]:
    """The façade that runs a job."""

    def run(operation: Operation[Answer]) -> Answer:
        return execute(operation.job())

    return facade(__name__, name, operation, run, types=_TYPES)


@attrs.frozen(slots=False)
class _Progress:
    progress: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class _BuildCube(_Progress, cube_writes.BuildCube[CubeInput, StoreInput]): ...


@attrs.frozen
class _ExtendCube(_Progress, cube_writes.ExtendCube[CubeInput, StoreInput]): ...


build_cube = _write("build_cube", _BuildCube)
extend_cube = _write("extend_cube", _ExtendCube)


@attrs.frozen
class _AdoptDataset(_Progress, AdoptDataset): ...


@define_facade(_AdoptDataset)
def adopt_dataset(adopt: _AdoptDataset) -> Adoption:
    return execute(adopt.job(), ADOPT_THREADS)


@attrs.frozen
class _AppendToCube(_Progress, cube_writes.AppendToCube[CubeInput, StoreInput]): ...


append_to_cube = _write("append_to_cube", _AppendToCube)


@attrs.frozen
class _UpdateCube(_Progress, cube_writes.UpdateCube[CubeInput, StoreInput]): ...


update_cube = _write("update_cube", _UpdateCube)


def merge_into_cube(
    data: Frame,
    cube: Cube | str,
    store: StoreInput,
    dataset: str | None = None,
    metadata: Mapping[str, object] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    delete_column: str | None = None,
    publish: bool = True,
    progress: bool = False,
) -> MergeResult:
    """Update, insert and delete rows of a dataset by cell, in one commit.

    A row whose cell is stored replaces it (``WHEN MATCHED THEN UPDATE``), other rows are inserted
    (``WHEN NOT MATCHED THEN INSERT``), and rows that are flagged delete their cell. A cell is identified by
    the partition columns of the cube and the dimension columns that the dataset has. Stored columns that
    ``data`` lacks keep their values, and are null in inserted rows or have the default of
    :func:`update_schema`. A null in ``data`` replaces the stored value.

    The files of the partitions that occur in ``data`` are read and rewritten; others are not touched. If all
    columns are given and nothing is deleted, :func:`append_to_cube` does the same without reading anything.

    Parameters
    ----------
    data
        A DataFrame, or anything with the Arrow C stream interface. It needs the dimension, partition and
        indexed columns of the dataset; other columns are optional.
    cube, store
        Specification of the cube; store, factory or URL.
    dataset
        Id of the dataset; the seed by default.
    metadata
        Metadata to set; other entries stay.
    df_serializer
        As in :func:`build_cube`.
    delete_column
        Boolean column of ``data`` that flags cells to delete; null is not deleted. It is not stored. Cells
        that do not exist are ignored. To delete a cell of the cube, delete it from the seed.
    publish
        False: stop before the commit, and return a ``StagedWrite`` (:ref:`staging`).
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    MergeResult
        The new state, ``dataset``, and numbers of rows: ``rows_inserted``, ``rows_updated``,
        ``rows_deleted``, and a table of these by partition, ``partitions``.

    Raises
    ------
    ValueError
        For unknown datasets and columns, missing key columns, nulls in keys, and types that do not fit.
        Nothing is changed.
    DuplicateCellsError
        ``data`` has several rows for one cell.
    ConcurrentWriteError
        Another writer changed a partition that occurs in ``data``, or the schema. Nothing is changed: repeat
        the call.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store, query_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Ulm"], "COUNTRY_CODE": "DE", "PEOPLE": [336, 126]})
    >>> _ = build_cube(cities, cube, store)
    >>> changes = pd.DataFrame({"CITY": ["Ulm", "Bonn"], "COUNTRY_CODE": "DE", "PEOPLE": [127, 0]})
    >>> changes["is_deleted"] = [False, True]
    >>> merge_into_cube(changes, cube, store, delete_column="is_deleted")
    <merge: 0 rows inserted, 1 updated, 1 deleted in 1 partition>
    >>> query_cube(cube, store)[0][["CITY", "PEOPLE"]].to_dict("records")
    [{'CITY': 'Ulm', 'PEOPLE': 127}]
    """
    cube = find_cube(cube, store)
    with runtime.progress_bar("merge", progress):
        context = rewrite.plan_merge(
            cube, store, dataset, metadata, df_serializer, delete_column=delete_column, publish=publish
        )
        return execute(rewrite.merge_cube_job(context, data))


remove_partitions = _eager("remove_partitions", cube_writes.RemovePartitions[StoreInput])


@attrs.frozen
class _DeleteRows(_Progress, DeleteRows[StoreInput]): ...


delete_rows = _eager("delete_rows", _DeleteRows)


@attrs.frozen
class _QueryFrames(_Progress, logical_plan.QueryFrames[StoreInput]): ...


@attrs.frozen
class _QueryFrame(_Progress, logical_plan.QueryFrame[StoreInput]): ...


@define_facade(_QueryFrames, _TYPES)
def query_cube(query: _QueryFrames) -> list[pd.DataFrame]:
    plan = physical_plan.plan_query(query)
    task = plan.single_task()
    parts = execute(executor.query_job(plan, [] if task is None else [task], executor.run_frames))
    return list(chain.from_iterable(parts))


@define_facade(_QueryFrame, _TYPES)
def query_cube_df(query: _QueryFrame) -> pd.DataFrame:
    plan = physical_plan.plan_table(query)
    if query.limit is not None:
        return frame_of_table([executor.query_table(plan, query.limit)], plan.context.dtype_backend)
    frames: list[pd.DataFrame]
    frames = execute(executor.query_job(plan, [plan.single_task()], executor.run_single_frame))
    return frames[0]


explain_query = facade(
    __name__, "explain_query", explain.ExplainQuery[StoreInput], explain.explain_query, types=_TYPES
)


@attrs.frozen
class _CopyCube(_Progress, copy.CopyCube[StoreInput]): ...


@attrs.frozen
class _CollectStats(_Progress, overview.CollectStats[StoreInput]): ...


@attrs.frozen
class _ComputeDataset(_Progress, computed_dataset.ComputeDataset[StoreInput]): ...


delete_cube = _eager("delete_cube", garbage.DeleteCube[StoreInput])
copy_cube = _eager("copy_cube", _CopyCube)
build_column_statistics = _eager("build_column_statistics", build_index.BuildColumnStatistics[StoreInput])
collect_stats = _eager("collect_stats", _CollectStats)
cleanup_cube = _eager("cleanup_cube", garbage.CleanupCube[StoreInput])
compute_dataset = _eager("compute_dataset", _ComputeDataset)
list_cube_changes = _eager("list_cube_changes", overview.ListCubeChanges[StoreInput])
lineage_cube = _eager("lineage_cube", overview.LineageCube[StoreInput])


def list_cube_garbage(
    cube: Cube | str, store: StoreInput, *, retention: timedelta | None = None
) -> list[Blob]:
    """List the files that :func:`cleanup_cube` would delete.

    Parameters
    ----------
    cube, store, retention
        As in :func:`cleanup_cube`.

    Returns
    -------
    list of Blob
        Each with ``key``, ``size`` in bytes and ``mtime`` in seconds since 1970 (None if unknown),
        sorted by key.

    Raises
    ------
    ValueError
        There is no such cube.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store, remove_partitions
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Rom", "Ulm"], "COUNTRY_CODE": ["IT", "DE"]})
    >>> _ = build_cube(cities, cube, store)
    >>> list_cube_garbage(cube, store)
    []
    >>> _ = remove_partitions(cube, store, "all")
    >>> sum(blob.key.startswith("geodata++seed/table/") for blob in list_cube_garbage(cube, store))
    2
    """
    cube = find_cube(cube, store)
    return garbage.with_sizes(open_blobs(store), garbage.list_cube_garbage(cube, store, retention))


@attrs.frozen
class _CompactCube(_Progress, rewrite.CompactCube[StoreInput]): ...


compact_cube = _eager("compact_cube", _CompactCube)


@attrs.frozen
class _PublishCube(_Progress, publish.PublishCube): ...


publish_cube = _eager("publish_cube", _PublishCube)
unpublish_cube = _eager("unpublish_cube", publish.UnpublishCube)


@attrs.frozen
class _VerifyCube(_Progress, VerifyCube[StoreInput]): ...


verify_cube = _eager("verify_cube", _VerifyCube)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def repair_cube(
    cube: Cube | str,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Report:
    """Check a cube and rebuild wrong and missing indices, by one commit per dataset.

    Parameters
    ----------
    cube, store, datasets, ktk_cube_dataset_ids
        As in :func:`verify_cube`.

    Returns
    -------
    Report
        Remaining problems, and those that were ``repaired``.

    Raises
    ------
    ValueError
        As :func:`verify_cube`.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> datasets = build_cube(cities, cube, store)
    >>> ensure_store(store).delete(datasets["seed"].indices["CITY"].index_storage_key)
    >>> repair_cube(cube, store).ok
    True
    """
    cube = find_cube(cube, store)
    return repair(store, partial(verify_cube, cube, store, ktk_cube_dataset_ids))
