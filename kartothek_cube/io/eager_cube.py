"""Cubes with pandas, at once: every function does its whole work before it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ParamSpec

import attrs
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arguments import alias_parameter, converter_str_tupleset
from kartothek_cube.core.arrow.types import Frame
from kartothek_cube.core.contract import ContractRule
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import find_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.history import annotate_operations
from kartothek_cube.core.hooks import CommitEvent, Hook, QueryEvent, on_commit, on_query
from kartothek_cube.core.schema.evolution import ColumnTypes
from kartothek_cube.core.store import Blob, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.computed_dataset import ComputeDataset
from kartothek_cube.io_components.delete_rows import DeleteRows
from kartothek_cube.io_components.facade import Operation, define_facade, facade, plan_job
from kartothek_cube.io_components.job import Answer, execute
from kartothek_cube.io_components.maintenance import garbage, history
from kartothek_cube.io_components.maintenance.changed_partitions import CubeChanges, ListCubeChanges
from kartothek_cube.io_components.maintenance.compact import CompactCube
from kartothek_cube.io_components.maintenance.copy import CopyCube
from kartothek_cube.io_components.maintenance.garbage import CleanupCube, DeleteCube, with_sizes
from kartothek_cube.io_components.maintenance.history import CubeAsOf, CubeHistory, CubeState
from kartothek_cube.io_components.maintenance.lineage import CubeLineage, LineageCube
from kartothek_cube.io_components.maintenance.publish import PublishCube, UnpublishCube
from kartothek_cube.io_components.maintenance.staged import discard_staged, publish_staged
from kartothek_cube.io_components.maintenance.stats import CollectStats
from kartothek_cube.io_components.query import executor, explain
from kartothek_cube.io_components.query.cube_query import QueryFrame, QueryFrames
from kartothek_cube.io_components.query.planner import plan_frames, plan_table
from kartothek_cube.io_components.runtime import available_cores, progress_bar
from kartothek_cube.io_components.verify.cube_rules import VerifyCube
from kartothek_cube.io_components.write import cube_writes
from kartothek_cube.io_components.write.adopt import ADOPT_THREADS, Adoption, adopt_job
from kartothek_cube.io_components.write.build_index import BuildColumnStatistics
from kartothek_cube.io_components.write.foreign_tables import TableSource
from kartothek_cube.io_components.write.merge import plan_merge
from kartothek_cube.io_components.write.write_commit import StagedWrite, write_cube_job
from kartothek_cube.io_components.write.write_tasks import CubeInput, collect_input
from kartothek_cube.serialization import DataFrameSerializer

if TYPE_CHECKING:
    from kartothek_cube.io_components.verify import Report
    from kartothek_cube.io_components.write.merge import MergeResult

__all__ = (
    "Adoption",
    "CommitEvent",
    "CubeChanges",
    "CubeHistory",
    "CubeLineage",
    "CubeState",
    "Hook",
    "QueryEvent",
    "StagedWrite",
    "adopt_dataset",
    "annotate_operations",
    "append_to_cube",
    "build_column_statistics",
    "build_cube",
    "cleanup_cube",
    "collect_stats",
    "compact_cube",
    "compute_dataset",
    "copy_cube",
    "delete_cube",
    "delete_rows",
    "discard_staged",
    "explain_query",
    "extend_cube",
    "keep_cube_history",
    "lineage_cube",
    "list_contract",
    "list_cube_changes",
    "list_cube_garbage",
    "list_cube_history",
    "merge_into_cube",
    "on_commit",
    "on_query",
    "pin_cube",
    "publish_cube",
    "publish_staged",
    "query_cube",
    "query_cube_df",
    "remove_partitions",
    "repair_cube",
    "rollback_cube",
    "set_contract",
    "unpublish_cube",
    "update_cube",
    "update_schema",
    "verify_cube",
)

P = ParamSpec("P")


_TYPES = {"DataT": "CubeInput", "StoreT": "StoreInput"}


def _write(
    name: str, write: Callable[P, cube_writes.CubeWrite[CubeInput]], title: str
) -> Callable[P, dict[str, DatasetMetadata]]:
    """The façade of a write of data that is in memory."""

    def run(write: cube_writes.CubeWrite[CubeInput]) -> dict[str, DatasetMetadata]:
        with progress_bar(title, getattr(write, "progress", False)):
            frames = collect_input(write.data, write.cube)
            return execute(write_cube_job(write.plan(frames), frames))

    return facade(__name__, name, write, run, types=_TYPES)


def _eager(name: str, operation: Callable[P, Operation[Answer]], title: str = "") -> Callable[P, Answer]:
    """The façade that runs a job."""

    def run(operation: Operation[Answer]) -> Answer:
        with progress_bar(title, getattr(operation, "progress", False)):
            job = plan_job(operation)
            return execute(job, available_cores() if job.is_parallel else 1)

    return facade(__name__, name, operation, run, types=_TYPES)


@attrs.frozen
class _BuildCube(cube_writes.BuildCube[CubeInput, StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class _ExtendCube(cube_writes.ExtendCube[CubeInput, StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


build_cube = _write("build_cube", _BuildCube, "build")
extend_cube = _write("extend_cube", _ExtendCube, "extend")


def adopt_dataset(
    source: TableSource,
    cube: Cube | str,
    store: StoreInput,
    dataset_id: str,
    *,
    snapshot: int | None = None,
    types: Mapping[str, pa.DataType | str] | None = None,
    partition_on: str | Iterable[str] | None = None,
    metadata: Mapping[str, object] | None = None,
    overwrite: bool = False,
    link: bool | None = None,
    progress: bool = False,
) -> Adoption:
    """Copy a table of another system as a dataset of a cube; the source stays as it is.

    Files that have the form of those of a cube are copied as they are: without the partition columns, rows of
    one partition, sorted by the dimensions. Rows of other files are written again, with Arrow
    (:doc:`/adopt`). The rules are those of :func:`build_cube` for the seed, of :func:`extend_cube` for other
    datasets.

    Parameters
    ----------
    source
        A directory of Parquet files or a URL (``s3://bucket/path``), Hive-partitioned or not; the directory
        of a Delta table, or a ``deltalake.DeltaTable`` (extra ``delta``); the metadata file of an Iceberg
        table, or a ``pyiceberg.table.Table`` (extra ``iceberg``).
    cube, store
        Specification of the cube; store, factory or URL.
    dataset_id
        Id of the new dataset. That of the seed creates the cube.
    snapshot
        Version of the Delta table, or id of the snapshot of the Iceberg table; the newest by default.
    types
        Types of columns that are directories, ``column=value``. By default those of the cube, else integers,
        dates and timestamps if all values are, else text.
    partition_on
        Partition columns; default are those of the cube. The seed can't have others.
    metadata
        Metadata to keep with the dataset.
    overwrite
        Whether an existing dataset is replaced.
    link
        Whether files of a local table become hard links in a store on the same file system. By default, those
        of Delta and Iceberg tables do, which are never written in place, and those of directories do not:
        many programs overwrite them in place, and would change the cube.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    Adoption
        The new dataset, the number of rows, and how many files were linked, copied and rewritten.

    Raises
    ------
    ValueError
        The table breaks a rule of the cube: missing columns, nulls in key columns, duplicate cells, types
        that differ from those of the cube or between files. Or it is a Delta table with deletion vectors or
        column mapping, or refers to files outside of its directory. Nothing is left behind.
    RuntimeError
        The dataset exists, and ``overwrite`` is not set.
    MultiTableCommitAborted
        The table has no rows, or the datasets do not form the cube.
    ImportError
        deltalake or pyiceberg is missing.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, ensure_store
    >>> directory = tempfile.mkdtemp()
    >>> cities = pd.DataFrame({"CITY": [53111, 117, 89073], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> cities.to_parquet(directory, partition_cols=["COUNTRY_CODE"])
    >>> store = ensure_store("hmemory://")
    >>> cube = Cube(["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> adopt_dataset(directory, cube, store, "seed")
    Adoption(dataset='geodata++seed', n_rows=3, n_linked=0, n_copied=2, n_rewritten=0)
    >>> query_cube(cube, store)[0]["CITY"].tolist()
    [117, 53111, 89073]
    """
    cube = find_cube(cube, store)
    with progress_bar("adopt", progress):
        job = adopt_job(
            source,
            cube,
            store,
            dataset_id,
            snapshot=snapshot,
            types=types,
            partition_on=None if partition_on is None else converter_str_tupleset(partition_on),
            metadata=metadata,
            overwrite=overwrite,
            link=link,
        )
        return execute(job, ADOPT_THREADS)


@attrs.frozen
class _AppendToCube(cube_writes.AppendToCube[CubeInput, StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


append_to_cube = _write("append_to_cube", _AppendToCube, "append")


def update_schema(
    cube: Cube | str,
    store: StoreInput,
    dataset: str | None = None,
    *,
    add: ColumnTypes | None = None,
    defaults: Mapping[str, object] | None = None,
    drop: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    widen: ColumnTypes | None = None,
) -> DatasetMetadata:
    """Add, drop, rename or widen payload columns of a dataset, by one commit of its header.

    Data files stay as they are; readers of this library adapt them. A name that older files have is not used
    again for another column. Dimensions, partition columns and indexed columns cannot be changed. Other
    libraries see the new schema and the old files (:doc:`/schema_evolution`).

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    dataset
        Id of the dataset; the seed by default.
    add
        Columns to add, with their types: a type of Arrow, pandas, NumPy or Python, or its name.
    defaults
        Values of added columns in existing rows, times also as text; null by default. They also hold for
        rows that are appended without the column (``schema_mode="merge"``).
    drop
        Columns to drop.
    rename
        Old to new names.
    widen
        Columns of integers to widen, with the type ``float64``. Their values are read, as integers above
        2**53 cannot be widened.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    ValueError
        For unknown datasets and columns, names that exist or existed, keys and indexed columns, and types or
        defaults that do not fit. Nothing is changed.
    ConcurrentWriteError
        Another writer added rows to a column that is widened.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store, query_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn"], "COUNTRY_CODE": ["DE"], "PEOPLE": [336]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = update_schema(cube, store, add={"AREA": "float64"}, rename={"PEOPLE": "POPULATION"})
    >>> query_cube(cube, store)[0].columns.tolist()
    ['AREA', 'CITY', 'COUNTRY_CODE', 'POPULATION']
    """
    cube = find_cube(cube, store)
    from kartothek_cube.io_components.maintenance.schema_update import plan_schema_update, update_cube_schema

    return update_cube_schema(cube, store, dataset, plan_schema_update(add, defaults, drop, rename, widen))


def set_contract(
    cube: Cube | str,
    store: StoreInput,
    dataset: str,
    rules: ContractRule | Iterable[ContractRule],
    *,
    check_existing: bool = True,
) -> DatasetMetadata:
    """Set the rules that rows of a dataset have to meet, in place of the former ones.

    They are stored with the dataset. Each write of this library checks them before its commit, whatever the
    façade: a violation is an error, and nothing is committed. Overwrites and rollbacks keep the contract.
    kartothek and plateau ignore it; :func:`verify_cube` finds what they wrote. Compactions and
    deletions check nothing.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    dataset
        Id of the dataset.
    rules
        Rules (:mod:`kartothek_cube.core.contract`), such as ``NotNull("KWH")``; an empty list removes the
        contract.
    check_existing
        Whether the rows that are stored are checked: all are read. Otherwise new rules are marked as not
        ``checked``.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    ContractViolationError
        Stored rows break a rule. Nothing is changed.
    TypeError, ValueError
        For unknown datasets and columns, and values of other types than those of the columns.
    ConcurrentWriteError
        Another writer added rows meanwhile: repeat the call.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> from kartothek_cube.core.contract import InRange, NotNull
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn"], "COUNTRY_CODE": ["DE"], "PEOPLE": [336]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = set_contract(cube, store, "seed", [NotNull("PEOPLE"), InRange("PEOPLE", min=0)])
    >>> append_to_cube(cities.assign(PEOPLE=-1), cube, store)
    Traceback (most recent call last):
    ...
    kartothek_cube.core.errors.ContractViolationError: Dataset 'geodata++seed' has the rule InRange(...
    """
    cube = find_cube(cube, store)
    from kartothek_cube.io_components.write import contract_checks

    return contract_checks.set_contract(cube, store, dataset, rules, check_existing=check_existing)


def list_contract(cube: Cube | str, store: StoreInput, dataset: str) -> list[ContractRule]:
    """List the rules that rows of a dataset have to meet.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    dataset
        Id of the dataset.

    Returns
    -------
    list of ContractRule
        ``str(rule)`` is a short form.

    Raises
    ------
    ValueError
        There is no such dataset, or its contract is malformed.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> from kartothek_cube.core.contract import NotNull
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn"], "COUNTRY_CODE": ["DE"], "PEOPLE": [336]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = set_contract(cube, store, "seed", [NotNull("PEOPLE")])
    >>> list_contract(cube, store, "seed")
    [NotNull(checked=True, column='PEOPLE')]
    """
    cube = find_cube(cube, store)
    from kartothek_cube.io_components.write import contract_checks

    return contract_checks.list_contract(cube, store, dataset)


@attrs.frozen
class _UpdateCube(cube_writes.UpdateCube[CubeInput, StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


update_cube = _write("update_cube", _UpdateCube, "update")


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
    from kartothek_cube.io_components.write.merge import MergeContext, merge_cube_job

    with progress_bar("merge", progress):
        plan = plan_merge(cube, store, dataset, metadata, df_serializer, publish=publish)
        return execute(merge_cube_job(MergeContext(plan, delete_column), data), available_cores())


remove_partitions = _eager("remove_partitions", cube_writes.RemovePartitions[StoreInput])


@attrs.frozen
class _DeleteRows(DeleteRows[StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


delete_rows = _eager("delete_rows", _DeleteRows, "delete")


@attrs.frozen
class _QueryFrames(QueryFrames[StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class _QueryFrame(QueryFrame[StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


@define_facade(_QueryFrames, _TYPES)
def query_cube(query: _QueryFrames) -> list[pd.DataFrame]:
    with progress_bar("query", query.progress):
        plan = plan_frames(query)
        task = plan.single_task()
        tasks = [] if task is None else [task]
        parts = execute(executor.query_job(plan, tasks, executor.run_frames))
        return list(chain.from_iterable(parts))


@define_facade(_QueryFrame, _TYPES)
def query_cube_df(query: _QueryFrame) -> pd.DataFrame:
    with progress_bar("query", query.progress):
        plan = plan_table(query)
        if query.limit is not None:
            return executor.frame_of_result(
                plan.context, [execute(executor.query_table_job(plan, query.limit))]
            )
        (frame,) = execute(executor.query_job(plan, [plan.single_task()], executor.run_single_frame))
        return frame


explain_query = facade(
    __name__, "explain_query", explain.ExplainQuery[StoreInput], explain.explain_query, types=_TYPES
)


@attrs.frozen
class _CopyCube(CopyCube[StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class _CollectStats(CollectStats[StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class _ComputeDataset(ComputeDataset[StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


delete_cube = _eager("delete_cube", DeleteCube[StoreInput])
copy_cube = _eager("copy_cube", _CopyCube, "copy")
build_column_statistics = _eager("build_column_statistics", BuildColumnStatistics[StoreInput])
collect_stats = _eager("collect_stats", _CollectStats, "stats")
cleanup_cube = _eager("cleanup_cube", CleanupCube[StoreInput])
compute_dataset = _eager("compute_dataset", _ComputeDataset, "compute")
list_cube_changes = _eager("list_cube_changes", ListCubeChanges[StoreInput])
lineage_cube = _eager("lineage_cube", LineageCube[StoreInput])


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
    return with_sizes(open_blobs(store), garbage.list_cube_garbage(cube, store, retention))


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def keep_cube_history(
    cube: Cube | str,
    store: StoreInput,
    states: int | None = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """Set how many older states of the datasets are kept for time travel and rollback.

    By default all are kept until a cleanup (:func:`cleanup_cube`). The number is stored in the metadata of
    each dataset, under ``kartothek_cube_keep_history``; it may be set there when the cube is built. Datasets
    that are added later have that of the seed.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    states
        Number of snapshots of each dataset to keep beside the current state, also through cleanups; the files
        of the others become garbage. 0 for none; None for all until a cleanup.
    datasets, ktk_cube_dataset_ids
        Datasets concerned; all by default.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    ValueError
        ``states`` is not a number of states, or there is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube, ensure_store, query_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Ulm"], "COUNTRY_CODE": ["DE"], "PEOPLE": [126_000]})
    >>> built = build_cube(cities, cube, store)
    >>> _ = keep_cube_history(cube, store, states=5)
    >>> monday = list_cube_history(cube, store)["seed"][-1].time
    >>> _ = append_to_cube(cities.assign(PEOPLE=126_329), cube, store)
    >>> query_cube(cube, store, as_of=monday)[0]["PEOPLE"].tolist()
    [126000]
    >>> _ = rollback_cube(cube, store, as_of=monday)
    >>> query_cube(cube, store)[0]["PEOPLE"].tolist()
    [126000]
    """
    cube = find_cube(cube, store)
    return history.keep_cube_history(cube, store, states, ktk_cube_dataset_ids)


def pin_cube(
    cube: Cube | str, store: StoreInput, *, lease: timedelta = timedelta(hours=1)
) -> history.CubePin:
    """Keep the current state of a cube from being deleted while it is read, by cleanups of any process.

    In a ``with`` block, the pin is renewed in the background, and ends with the block. Of a process that dies
    it counts until the lease ends. A pin costs a file per dataset. A deletion of the cube ignores it.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    lease
        How long the pin counts, by the clock of the store, unless it is renewed; at least ten seconds.

    Returns
    -------
    CubePin
        Its ``token`` is the state, for the ``as_of`` of queries; methods ``renew()`` and ``release()``.

    Raises
    ------
    ValueError
        There is no such cube, or the lease is too short.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, cleanup_cube, query_cube_df
    >>> from kartothek_cube.io.eager_cube import pin_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> with pin_cube(cube, store) as pin:
    ...     _ = build_cube(cities.assign(CITY="Ulm"), cube, store, overwrite=True)
    ...     cleanup_cube(cube, store)
    ...     query_cube_df(cube, store, as_of=pin.token)["CITY"].tolist()
    ['Bonn', 'Rom']
    """
    return history.pin_cube(find_cube(cube, store), store, lease)


def list_cube_history(cube: Cube | str, store: StoreInput) -> CubeHistory:
    """The readable states of a cube: what was done when to which datasets.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.

    Returns
    -------
    CubeHistory
        The states, oldest first: ``version``, ``time`` (UTC), ``operation``, ``datasets``, the data files and
        rows that came and went, the message and job of :func:`annotate_operations`, the ``library`` version,
        and the ``inputs`` of a computation; ``to_frame()`` gives a table. ``history["seed"]`` gives the
        states of one dataset, ``history.pins`` those that readers have pinned (:func:`pin_cube`). An
        operation on several datasets is one state. States are kept until a cleanup, see
        :func:`keep_cube_history`.

    Raises
    ------
    ValueError
        There is no such cube.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube, ensure_store, query_cube
    >>> cube, store = Cube(["x"], ["p"], "shop"), ensure_store("hmemory://")
    >>> df = pd.DataFrame({"x": [0, 1], "p": 0})
    >>> data = {"seed": df, "extra": df.assign(v=1)}
    >>> _ = build_cube(data, cube, store)
    >>> with annotate_operations("corrected values"):
    ...     _ = append_to_cube({"seed": df, "extra": df.assign(v=2)}, cube, store)
    >>> first, second = list_cube_history(cube, store)
    >>> second.operation, second.datasets, second.rows_added, second.message
    ('append', ('extra', 'seed'), 4, 'corrected values')
    >>> [len(query_cube(cube, store, as_of=state.version)[0]) for state in (first, second)]
    [2, 2]
    """
    cube = find_cube(cube, store)
    return history.list_cube_history(cube, store)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def rollback_cube(
    cube: Cube | str,
    store: StoreInput,
    as_of: CubeAsOf,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """Make older states of datasets the current ones, all at once; the replaced states are archived.

    Datasets that did not exist then are hidden: the cube does not have them any more, but a rollback to a
    later state brings them back, as long as that is kept.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    as_of
        Version of the cube, see :func:`list_cube_history`, or point in time: the datasets return to the state
        of the cube then. Or a dict of dataset id to version or time; other datasets stay as they are.
    datasets, ktk_cube_dataset_ids
        Datasets concerned; all by default.

    Returns
    -------
    dict
        Dataset id to metadata of the datasets concerned.

    Raises
    ------
    ValueError
        A dataset does not exist, the datasets would not form the cube, or they are in that state already.
    StateNotFoundError
        A state is not archived (any more), or the cube did not exist then.
    CorruptDatasetError
        Files of a state are missing. Nothing is changed.
    ConcurrentWriteError
        Another writer committed at the same time. Nothing is changed.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube, query_cube_df
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = append_to_cube(cities.assign(CITY="Ulm"), cube, store)
    >>> _ = rollback_cube(cube, store, as_of=1)
    >>> query_cube_df(cube, store)["CITY"].tolist()
    ['Bonn', 'Rom']
    """
    cube = find_cube(cube, store)
    return history.return_cube(cube, store, as_of, ktk_cube_dataset_ids)


@attrs.frozen
class _CompactCube(CompactCube[StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


compact_cube = _eager("compact_cube", _CompactCube, "compact")


@attrs.frozen
class _PublishCube(PublishCube):
    progress: bool = attrs.field(default=False, kw_only=True)


publish_cube = _eager("publish_cube", _PublishCube, "publish")
unpublish_cube = _eager("unpublish_cube", UnpublishCube)


@attrs.frozen
class _VerifyCube(VerifyCube[StoreInput]):
    progress: bool = attrs.field(default=False, kw_only=True)


verify_cube = _eager("verify_cube", _VerifyCube, "verify")


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
    from kartothek_cube.io_components.verify.cube_rules import repair

    return repair(store, partial(verify_cube, cube, store, ktk_cube_dataset_ids))
