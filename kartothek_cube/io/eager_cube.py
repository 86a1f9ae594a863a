"""Cubes with pandas, at once: every function does its whole work before it returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Literal

import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arguments import alias_parameter, converter_str_tupleset
from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend
from kartothek_cube.core.arrow.types import Frame
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import DatasetsInput, choose_datasets, discover_datasets
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.history import annotate_operations
from kartothek_cube.core.schema.evolution import ColumnTypes
from kartothek_cube.core.store import Blob, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.job import execute
from kartothek_cube.io_components.maintenance import garbage, history
from kartothek_cube.io_components.maintenance.copy import copy_cube_job, plan_copy
from kartothek_cube.io_components.maintenance.garbage import cube_garbage_job, delete_cube_job, with_sizes
from kartothek_cube.io_components.maintenance.history import CubeAsOf, CubeHistory, CubeState
from kartothek_cube.io_components.maintenance.stats import collect_stats_job
from kartothek_cube.io_components.query.executor import (
    frames_of_result,
    query_job,
    query_table_job,
    run_frames,
    run_single_frame,
)
from kartothek_cube.io_components.query.explain import explain_query
from kartothek_cube.io_components.query.result_types import plan_frames, plan_table
from kartothek_cube.io_components.runtime import available_cores, progress_bar
from kartothek_cube.io_components.write.adopt import ADOPT_THREADS, Adoption, adopt_job
from kartothek_cube.io_components.write.cube_plan import (
    plan_append,
    plan_build,
    plan_extend,
    plan_merge,
    plan_update,
)
from kartothek_cube.io_components.write.foreign_tables import TableSource
from kartothek_cube.io_components.write.validation import CubeInput, CubeMetadata, collect_input
from kartothek_cube.io_components.write.write_commit import remove_partitions_job, write_cube_job
from kartothek_cube.io_components.write.write_plan import RowsOutside, SchemaMode
from kartothek_cube.serialization import DataFrameSerializer

if TYPE_CHECKING:
    from kartothek_cube.io_components.verify.report import Report
    from kartothek_cube.io_components.write.merge import MergeResult

__all__ = (
    "Adoption",
    "CubeHistory",
    "CubeState",
    "adopt_dataset",
    "annotate_operations",
    "append_to_cube",
    "build_cube",
    "cleanup_cube",
    "collect_stats",
    "compact_cube",
    "copy_cube",
    "delete_cube",
    "explain_query",
    "extend_cube",
    "keep_cube_history",
    "list_cube_garbage",
    "list_cube_history",
    "merge_into_cube",
    "publish_cube",
    "query_cube",
    "query_cube_df",
    "remove_partitions",
    "repair_cube",
    "rollback_cube",
    "update_cube",
    "update_schema",
    "verify_cube",
)


def build_cube(
    data: CubeInput,
    cube: Cube,
    store: StoreInput,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    progress: bool = False,
) -> dict[str, DatasetMetadata]:
    """
    Store a new cube.

    All input is checked before anything is written. The datasets appear one by one, the seed last: the cube
    exists when its seed does.

    Parameters
    ----------
    data
        A DataFrame (the seed), a dict of dataset id to DataFrame, or an iterable of these. Anything
        with the Arrow C stream interface (a :class:`pyarrow.Table`, a polars frame, ...) may
        stand for a DataFrame.
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    metadata
        Metadata to keep with each dataset, by dataset id.
    overwrite
        Whether an existing cube is replaced.
    partition_on
        Partition columns by dataset id; default are the partition columns of the cube. The seed can't
        have others.
    df_serializer
        How files are written; Parquet with ZSTD by default.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    ValueError
        If the input breaks a rule of the cube: missing or duplicate columns, nulls in key columns, duplicate
        cells, payload in two datasets, a missing seed, datasets left out of an overwrite.
    RuntimeError
        If a dataset exists and ``overwrite`` is not set.
    MultiTableCommitAborted
        If a dataset has no rows, or the datasets do not form the cube; the store is as it was then,
        apart from files that :func:`cleanup_cube` removes.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(["CITY", "DAY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> weather = pd.DataFrame({
    ...     "CITY": ["Hamburg", "Dresden", "London"],
    ...     "DAY": pd.to_datetime(["2020-01-01"] * 3),
    ...     "COUNTRY_CODE": ["DE", "DE", "UK"],
    ...     "AVG_TEMP": [6, 5, 8],
    ... })
    >>> sorted(build_cube(weather, cube, store))
    ['seed']
    >>> query_cube(cube, store, payload_columns=["AVG_TEMP"])[0]["AVG_TEMP"].tolist()
    [5, 6, 8]
    """
    with progress_bar("build", progress):
        frames = collect_input(data, cube)
        plan = plan_build(cube, store, frames, metadata, overwrite, partition_on, df_serializer)
        return execute(write_cube_job(plan, frames))


def extend_cube(
    data: CubeInput,
    cube: Cube,
    store: StoreInput,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    progress: bool = False,
) -> dict[str, DatasetMetadata]:
    """
    Add datasets, and with them columns, to a cube.

    Parameters
    ----------
    data, metadata, partition_on, df_serializer
        As in :func:`build_cube`, without the seed.
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    overwrite
        Whether datasets that exist already are replaced.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError
        As :func:`build_cube`; also for the seed, and for payload columns that the cube has in another
        dataset.
    RuntimeError
        If a dataset exists and ``overwrite`` is not set.
    MultiTableCommitAborted
        As :func:`build_cube`.
    """
    with progress_bar("extend", progress):
        frames = collect_input(data, cube)
        plan = plan_extend(cube, store, frames, metadata, overwrite, partition_on, df_serializer)
        return execute(write_cube_job(plan, frames))


def adopt_dataset(
    source: TableSource,
    cube: Cube,
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
    """
    Copy a table of another system as a dataset of a cube; the source stays as it is.

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
    cube
        Specification of the cube.
    store
        Store, factory or URL.
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
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from storefact import get_store_from_url
    >>> directory = tempfile.mkdtemp()
    >>> cities = pd.DataFrame({"CITY": [53111, 117, 89073], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> cities.to_parquet(directory, partition_cols=["COUNTRY_CODE"])
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> adopt_dataset(directory, cube, store, "seed")
    Adoption(dataset='geodata++seed', n_rows=3, n_linked=0, n_copied=2, n_rewritten=0)
    >>> query_cube(cube, store)[0]["CITY"].tolist()
    [117, 53111, 89073]
    """
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


def append_to_cube(
    data: CubeInput,
    cube: Cube,
    store: StoreInput,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    unique_cells: bool = False,
    progress: bool = False,
    schema_mode: SchemaMode = "strict",
) -> dict[str, DatasetMetadata]:
    """
    Add partitions to datasets of a cube.

    New cells hide older ones with the same key in the same partition. Datasets without rows in the input stay
    as they are.

    Parameters
    ----------
    data, df_serializer
        As in :func:`build_cube`.
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    metadata
        Metadata to set by dataset id; other entries stay.
    schema_mode
        ``strict``: rows have the columns of the dataset. ``merge``: new cells may lack payload columns, which
        are null there or have the default of :func:`update_schema`, and new payload columns are added, which
        are null in existing rows. A cell that would lose a stored value in this way is an error: use
        :func:`merge_into_cube`. All frames of a dataset in one call have the same columns.
    unique_cells
        Whether a cell of the seed that is already in another partition of the cube is an error. Otherwise
        both are rows of a query. Only files are read that share a value of each indexed dimension; a
        concurrent append is not seen.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError
        As :func:`build_cube`; also for datasets that do not exist, for columns that do not fit, and for
        ``unique_cells`` if the seed has no index on a dimension.
    MultiTableCommitAborted
        As :func:`build_cube`.
    """
    with progress_bar("append", progress):
        frames = collect_input(data, cube)
        plan = plan_append(
            cube, store, frames, metadata, df_serializer, schema_mode, unique_cells=unique_cells
        )
        return execute(write_cube_job(plan, frames))


def update_schema(
    cube: Cube,
    store: StoreInput,
    dataset: str | None = None,
    *,
    add: ColumnTypes | None = None,
    defaults: Mapping[str, object] | None = None,
    drop: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    widen: ColumnTypes | None = None,
) -> DatasetMetadata:
    """
    Add, drop, rename or widen payload columns of a dataset, by one commit of its header.

    Data files stay as they are; readers of this library adapt them. A name that older files have is not used
    again for another column. Dimensions, partition columns and indexed columns cannot be changed. Other
    libraries see the new schema and the old files (:doc:`/schema_evolution`).

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
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
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube, query_cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Bonn"], "COUNTRY_CODE": ["DE"], "PEOPLE": [336]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = update_schema(cube, store, add={"AREA": "float64"}, rename={"PEOPLE": "POPULATION"})
    >>> query_cube(cube, store)[0].columns.tolist()
    ['AREA', 'CITY', 'COUNTRY_CODE', 'POPULATION']
    """
    from kartothek_cube.io_components.maintenance.schema_update import plan_schema_update, update_cube_schema

    return update_cube_schema(cube, store, dataset, plan_schema_update(add, defaults, drop, rename, widen))


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def update_cube(
    data: CubeInput,
    cube: Cube,
    store: StoreInput,
    remove_conditions: ConditionsInput | Literal["all"],
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    progress: bool = False,
    datasets: str | Iterable[str] | None = None,
    rows_outside: RowsOutside = "raise",
) -> dict[str, DatasetMetadata]:
    """
    Remove partitions of datasets and add others, in one commit per dataset.

    Parameters
    ----------
    data, df_serializer
        As in :func:`build_cube`.
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    remove_conditions
        Partitions to remove, as in :func:`remove_partitions`; None removes nothing.
    datasets, ktk_cube_dataset_ids
        Datasets to update, also those for which there is no input.
    metadata
        Metadata to set by dataset id; other entries stay.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.
    rows_outside
        What to do with input for partitions that ``remove_conditions`` do not select: ``"raise"`` an error;
        ``"append"`` it, beside the rows that are stored there; ``"warn"`` and append it, as
        ``update_cube_from_bag`` does by default, for users of kartothek.

    Returns
    -------
    dict
        Dataset id to metadata of the updated datasets.

    Raises
    ------
    ValueError
        For input of other datasets or outside of the conditions, conditions on other columns than the
        partition columns of the cube, and as :func:`append_to_cube`.
    ConcurrentWriteError
        If another writer added partitions in the range that is removed.
    MultiTableCommitAborted
        If a dataset would lose all its partitions.
    """
    with progress_bar("update", progress):
        frames = collect_input(data, cube)
        plan = plan_update(
            cube,
            store,
            remove_conditions,
            ktk_cube_dataset_ids,
            metadata,
            df_serializer,
            rows_outside=rows_outside,
        )
        return execute(write_cube_job(plan, frames))


def merge_into_cube(
    data: Frame,
    cube: Cube,
    store: StoreInput,
    dataset: str | None = None,
    metadata: Mapping[str, object] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    delete_column: str | None = None,
    progress: bool = False,
) -> MergeResult:
    """
    Update, insert and delete rows of a dataset by cell, in one commit.

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
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    dataset
        Id of the dataset; the seed by default.
    metadata
        Metadata to set; other entries stay.
    df_serializer
        As in :func:`build_cube`.
    delete_column
        Boolean column of ``data`` that flags cells to delete; null is not deleted. It is not stored. Cells
        that do not exist are ignored. To delete a cell of the cube, delete it from the seed.
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
    from kartothek_cube.io_components.write.merge import MergeContext, merge_cube_job

    with progress_bar("merge", progress):
        context = MergeContext(plan_merge(cube, store, dataset, metadata, df_serializer), delete_column)
        return execute(merge_cube_job(context, data), available_cores())


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def remove_partitions(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput | Literal["all"] = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Remove partitions. Their files stay until :func:`cleanup_cube`.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    conditions
        Conditions on partition columns of the cube, or their text. A condition on a column is ignored in
        datasets that are not partitioned by it: they lose rows with all its values, which is a warning unless
        they are named. One that joins several columns by ``|`` is an error if a
        dataset is partitioned by some of them only. ``"all"`` removes all partitions; without conditions that
        is done as well, with a warning.
    datasets, ktk_cube_dataset_ids
        Datasets concerned; all by default.
    metadata
        Metadata to set by dataset id.

    Returns
    -------
    dict
        Dataset id to metadata of all datasets of the cube.

    Raises
    ------
    ValueError
        For conditions on other columns, and for unknown datasets.
    """
    return execute(remove_partitions_job(cube, store, conditions, ktk_cube_dataset_ids, metadata))


def query_cube(
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
    progress: bool = False,
) -> list[pd.DataFrame]:
    """
    Query a cube as if it were one DataFrame.

    Cells come from the seed, all other datasets add columns to them ("Query System" in the specification).

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    conditions
        Conditions that all have to hold, made with :class:`~kartothek_cube.core.cube.conditions.C`, or their
        text: ``"TEMP > 10 & DAY >= 2024-01-05"``; see
        :meth:`~kartothek_cube.core.cube.conditions.Conjunction.from_string`.
    datasets
        Ids of the datasets to join, or a dict of id to metadata; by default all of the cube.
    dimension_columns
        Dimensions of the result, in sort order; by default all. Fewer dimensions project the cube.
    partition_by
        Indexed columns by whose values the result is split.
    payload_columns
        Columns to read; by default all.
    as_of
        Version of the cube (:func:`list_cube_history`) or point in time: the cube is read in that state,
        which is kept until a cleanup (:func:`keep_cube_history`). Or a dict of dataset id to version or time,
        for some of the datasets. By default, the cube is read as it is now.
    dtype_backend
        ``"numpy_nullable"`` or ``"pyarrow"``: types that can hold missing values, as in pandas. They do
        not depend on the values. By default, types are those of NumPy as far as possible.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    list of pandas.DataFrame
        One frame per group with rows, sorted by the values of ``partition_by``; without it one frame, or none
        if nothing matches (:func:`query_cube_df` always returns one). Columns are sorted by name, rows by
        dimension and partition columns. A column has the same type in all frames (:ref:`types`). Dates are
        ``datetime64[ns]``; a column with dates that this cannot hold (before 1677-09-22 or after 2262-04-11)
        is ``datetime64[s]`` in all frames.

    Raises
    ------
    ValueError
        For unknown or unindexed columns, unknown datasets, and projections that would lose rows.
    TypeError
        If a condition has a value of the wrong type.
    """
    with progress_bar("query", progress):
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
        task = plan.single_task()
        tasks = [] if task is None else [task]
        parts = execute(query_job(plan, tasks, run_frames))
        return list(chain.from_iterable(parts))


def query_cube_df(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    columns: str | Iterable[str] | None = None,
    limit: int | None = None,
    as_of: CubeAsOf | None = None,
    dtype_backend: DtypeBackend | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """
    Query a cube into one DataFrame, which has no rows if nothing matches.

    Parameters
    ----------
    cube, store, conditions, datasets, dimension_columns, as_of, dtype_backend, progress
        As in :func:`query_cube`.
    payload_columns, columns
        Columns to read, by default all; ``columns`` is the shorter name. The frame has the dimensions and the
        partition columns first, unless they are named as well, and then these columns in this order.
    limit
        Largest number of rows. Partitions are read one after the other until there are as many: which rows
        these are depends on how the cube is stored. They are sorted as usual.

    Returns
    -------
    pandas.DataFrame
        If nothing matches, with all columns and the types of the schema.

    Raises
    ------
    ValueError, TypeError
        As :func:`query_cube`; also for a negative limit.

    Examples
    --------
    >>> from kartothek_cube.core.cube.conditions import C
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = {"AVG_TEMP": [8, 7], "CITY": ["Ulm", "Bonn"], "COUNTRY_CODE": ["DE", "DE"]}
    >>> _ = build_cube(pd.DataFrame(cities), cube, store)
    >>> query_cube_df(cube, store, limit=1)
       CITY COUNTRY_CODE  AVG_TEMP
    0  Bonn           DE         7
    >>> query_cube_df(cube, store, C("AVG_TEMP") > 30).dtypes["AVG_TEMP"]
    dtype('int64')
    """
    with progress_bar("query", progress):
        plan = plan_table(
            cube,
            store,
            conditions,
            datasets,
            dimension_columns,
            payload_columns,
            columns=columns,
            limit=limit,
            as_of=as_of,
            dtype_backend=dtype_backend,
        )
        if limit is not None:
            return frames_of_result(plan.context, [execute(query_table_job(plan, limit))])[0]
        (frame,) = execute(query_job(plan, [plan.single_task()], run_single_frame))
        return frame


def delete_cube(cube: Cube, store: StoreInput, datasets: DatasetsInput = None) -> None:
    """
    Delete a cube or some of its datasets.

    Files that belong to no state of a dataset, such as replaced indices and those of failed writes, stay
    until :func:`cleanup_cube` deletes them, which is possible before and after. A deletion that was
    interrupted is repeated.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    datasets
        Ids, or a dict of id to metadata; by default all datasets of the cube.
    """
    execute(delete_cube_job(cube, store, datasets))


def copy_cube(
    cube: Cube,
    src_store: StoreInput,
    tgt_store: StoreInput,
    overwrite: bool = False,
    datasets: DatasetsInput = None,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
    *,
    progress: bool = False,
) -> None:
    """
    Copy a cube from one store to another.

    Parameters
    ----------
    cube
        Specification of the cube.
    src_store, tgt_store
        Stores, factories or URLs; must not be the same store.
    overwrite
        Whether datasets that exist in the target are replaced.
    datasets
        Ids, or a dict of id to metadata; by default all datasets of the cube.
    renamed_cube_prefix
        Prefix of the copy; the same by default.
    renamed_datasets
        Old to new ids of renamed datasets.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Raises
    ------
    ValueError
        If the stores are the same, or the target would not be a valid cube.
    RuntimeError
        If a dataset is missing in the source, or exists in the target and ``overwrite`` is not set.
    """
    with progress_bar("copy", progress):
        plan = plan_copy(
            cube, src_store, tgt_store, overwrite, datasets, renamed_cube_prefix, renamed_datasets
        )
        execute(copy_cube_job(plan))


def collect_stats(
    cube: Cube, store: StoreInput, datasets: DatasetsInput = None, *, progress: bool = False
) -> dict[str, dict[str, int]]:
    """
    Count what is stored.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    datasets
        Ids, or a dict of id to metadata; by default all datasets of the cube.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to ``blobsize`` (bytes of data files), ``files``, ``partitions`` (different values of the
        partition keys) and ``rows`` (in files, hidden ones included).
    """
    with progress_bar("stats", progress):
        return execute(collect_stats_job(cube, store, datasets))


def cleanup_cube(cube: Cube, store: StoreInput, *, retention: timedelta | None = None) -> None:
    """
    Delete garbage: files of failed, overwritten or removed writes, to which no dataset refers.

    Older states, and files that only they have, are deleted unless the retention or
    :func:`keep_cube_history` keeps them; the log says how many.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    retention
        Minimum age of garbage, by the clock of the store; younger files may belong to a write that has not
        committed yet. States stay readable for this time after they were replaced. Files of unknown age stay.
        The clock is read from an empty file that is put and deleted. None: files of any age are deleted, and
        all older states; a write that still needs them gets a ConcurrentWriteError.
    """
    execute(cube_garbage_job(cube, store, retention))


def list_cube_garbage(cube: Cube, store: StoreInput, *, retention: timedelta | None = None) -> list[Blob]:
    """
    List the files that :func:`cleanup_cube` would delete.

    Parameters
    ----------
    cube, store, retention
        As in :func:`cleanup_cube`.

    Returns
    -------
    list of Blob
        Each with ``key``, ``size`` in bytes and ``mtime`` in seconds since 1970 (None if unknown),
        sorted by key.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube, remove_partitions
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Rom", "Ulm"], "COUNTRY_CODE": ["IT", "DE"]})
    >>> _ = build_cube(cities, cube, store)
    >>> list_cube_garbage(cube, store)
    []
    >>> _ = remove_partitions(cube, store, "all")
    >>> sum(blob.key.startswith("geodata++seed/table/") for blob in list_cube_garbage(cube, store))
    2
    """
    return with_sizes(open_blobs(store), garbage.list_cube_garbage(cube, store, retention))


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def keep_cube_history(
    cube: Cube,
    store: StoreInput,
    states: int | None = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Set how many older states of the datasets are kept for time travel and rollback.

    By default all are kept until a cleanup (:func:`cleanup_cube`). The number is stored in the metadata of
    each dataset, under ``kartothek_cube_keep_history``; it may be set there when the cube is built. Datasets
    that are added later have that of the seed.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
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
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import append_to_cube, build_cube, query_cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
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
    return history.keep_cube_history(cube, store, states, ktk_cube_dataset_ids)


def list_cube_history(cube: Cube, store: StoreInput) -> CubeHistory:
    """
    The readable states of a cube: what was done when to which datasets.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.

    Returns
    -------
    CubeHistory
        The states, oldest first: ``version``, ``time`` (UTC), ``operation``, ``datasets``, the data files and
        rows that came and went, and the message and job of :func:`annotate_operations`; ``to_frame()`` gives
        a table. ``history["seed"]`` gives the states of one dataset. An operation on several datasets is one
        state. States are kept until a cleanup, see :func:`keep_cube_history`.

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
    return history.list_cube_history(cube, store)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def rollback_cube(
    cube: Cube,
    store: StoreInput,
    as_of: CubeAsOf,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Make older states of datasets the current ones, all at once; the replaced states are archived.

    Datasets that did not exist then are hidden: the cube does not have them any more, but a rollback to a
    later state brings them back, as long as that is kept.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
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
    """
    return history.return_cube(cube, store, as_of, ktk_cube_dataset_ids)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def compact_cube(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
    progress: bool = False,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, dict[str, int]]:
    """
    Merge the files of each physical partition into one, without cells that newer files hide.

    Results of queries stay the same. Each dataset is compacted by one commit; concurrent appends are allowed
    and stay newer. The old files stay until :func:`cleanup_cube`.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    conditions
        Conditions on partition columns of the cube that select partitions; by default all.
    datasets, ktk_cube_dataset_ids
        Datasets concerned; all by default.
    df_serializer
        How files are written; Parquet with ZSTD by default.
    min_files
        Partitions with fewer files are left as they are. With 1, files that were written before a change of
        the schema (:doc:`/schema_evolution`) are rewritten with the current columns as well.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to the number of examined ``partitions``, and their ``files_before``,
        ``files_after``, ``bytes_before``, ``bytes_after``, ``rows_before`` and ``rows_after``.

    Raises
    ------
    ValueError
        For conditions on other columns, and unknown datasets.
    ConcurrentWriteError
        A concurrent writer replaced or removed files, or dropped, renamed or widened columns. That dataset is
        as it was: repeat the call.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import append_to_cube, build_cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Ulm"], "COUNTRY_CODE": ["DE", "DE"], "PEOPLE": [336, 126]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = append_to_cube(cities.tail(1).assign(PEOPLE=127), cube, store)
    >>> counts = compact_cube(cube, store)["seed"]
    >>> counts["files_before"], counts["files_after"], counts["rows_before"], counts["rows_after"]
    (2, 1, 3, 2)
    """
    # imported when needed, as in other rare operations: importing this module stays quick
    from kartothek_cube.io_components.maintenance.compact import compact_cube_job

    job = compact_cube_job(cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files)
    with progress_bar("compact", progress):
        return execute(job, available_cores())


def publish_cube(
    cube: Cube,
    store: StoreInput,
    datasets: str | Iterable[str] | None = None,
    *,
    format: Literal["delta"] = "delta",
    compact: bool = False,
    progress: bool = False,
) -> dict[str, dict[str, int]]:
    """
    Publish the datasets of a cube as Delta tables, one each, for engines that do not know this library.

    Each table shows the newest state of its dataset at the moment of its publication; a repetition adds what
    has changed since. See :func:`~kartothek_cube.io.eager.publish_dataset` and :doc:`/publish`.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    datasets
        Datasets concerned; all by default.
    format
        ``"delta"``.
    compact
        Compact the datasets first (:func:`compact_cube`), so that no file has overwritten cells.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to ``version`` of the table, its number of ``files``, and how many were ``added`` and
        ``removed``.

    Raises
    ------
    ValueError
        There is no such cube or dataset, or a Delta table cannot show one of the datasets: a column has a
        type that is unknown there, files have overwritten cells, or older files differ from the schema. Then
        no dataset is published.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import append_to_cube, build_cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Ulm"], "COUNTRY_CODE": ["DE", "DE"], "PEOPLE": [336, 126]})
    >>> _ = build_cube(cities, cube, store)
    >>> publish_cube(cube, store)
    {'seed': {'version': 0, 'files': 1, 'added': 1, 'removed': 0}}
    >>> _ = append_to_cube(cities.tail(1).assign(PEOPLE=127), cube, store)
    >>> publish_cube(cube, store, compact=True)
    {'seed': {'version': 1, 'files': 1, 'added': 1, 'removed': 1}}
    """
    # imported when needed, as in other rare operations: importing this module stays quick
    from kartothek_cube.io_components.maintenance.publish import check_format, publish_job

    check_format(format)
    ensure_cube(cube)
    existing = discover_datasets(cube, store)
    names = list(cube.commit_order(choose_datasets(cube, datasets, existing)))
    if compact:
        compact_cube(cube, store, datasets=names, progress=progress)
    job = publish_job({name: cube.ktk_dataset_uuid(name) for name in names}, store, format)
    with progress_bar("publish", progress):
        return execute(job, available_cores())


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def verify_cube(
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
    progress: bool = False,
    datasets: str | Iterable[str] | None = None,
) -> Report:
    """
    Check the datasets of a cube against their headers and the rules of the cube; nothing is changed.

    In addition to :func:`~kartothek_cube.io.eager.verify_dataset`: the seed exists, types agree, a payload
    column belongs to one dataset, rows are sorted by cell, keys are not null, all indices of the cube exist,
    and no cell of the seed is in several partitions.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    datasets, ktk_cube_dataset_ids
        Datasets concerned; all by default.
    deep
        Whether all rows are read; otherwise only the footers of files are, and indices are not compared with
        the data.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    Report
        ``report.ok`` is True without problems; ``report.problems`` also say what to do.

    Raises
    ------
    ValueError
        There is no such cube or dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> dataset = build_cube(cities, cube, store)["seed"]
    >>> verify_cube(cube, store).ok
    True
    >>> store.delete(dataset.indices["CITY"].index_storage_key)
    >>> repair_cube(cube, store)  # doctest: +ELLIPSIS
    no problems in 1 dataset, 2 files, 2 rows, 1 index
    repaired: geodata++seed: missing-index: the index of CITY does not exist [...]
    """
    from kartothek_cube.io_components.verify.cube_rules import verify_cube_job

    job = verify_cube_job(cube, store, ktk_cube_dataset_ids, deep=deep)
    with progress_bar("verify", progress):
        return execute(job, available_cores())


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def repair_cube(
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Report:
    """
    Check a cube and rebuild wrong and missing indices, by one commit per dataset.

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
    """
    from kartothek_cube.io_components.verify.dataset_rules import compare_reports, repair

    before = verify_cube(cube, store, ktk_cube_dataset_ids)
    uuids = sorted({problem.dataset for problem in before.problems if problem.repairable})
    if not [uuid for uuid in uuids if repair(uuid, store, before.problems)]:
        return before
    return compare_reports(before, verify_cube(cube, store, ktk_cube_dataset_ids))
