"""Datasets with pandas, at once: every function does its whole work before it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pandas as pd

from kartothek_cube.core import naming, pandas_conversion, tuning
from kartothek_cube.core.commit.change import MetadataMerger
from kartothek_cube.core.commit.operation import list_committed_states
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import DatasetState
from kartothek_cube.core.store import Blob, StoreInput, open_blobs
from kartothek_cube.io_components import dataset_read, delete_rows
from kartothek_cube.io_components.dataset_arguments import MetadataInput, dataset_factory
from kartothek_cube.io_components.facade import Operation, P, define_facade, facade
from kartothek_cube.io_components.job import Answer, execute
from kartothek_cube.io_components.maintenance import copy, garbage, publish
from kartothek_cube.io_components.maintenance.rollback import keep_dataset_history, rollback_dataset
from kartothek_cube.io_components.maintenance.schema_update import update_dataset_schema
from kartothek_cube.io_components.write import build_index, dataset_writes, write_commit, write_tasks
from kartothek_cube.io_components.write.dataset_writes import Names
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteResult
from kartothek_cube.io_components.write.write_tasks import DatasetInput
from kartothek_cube.serialization import DataFrameSerializer

if TYPE_CHECKING:
    from kartothek_cube.io_components.maintenance.verify_dataset import Report

__all__ = ["read_dataset_as_dataframes", "read_table", "store_dataframes_as_dataset"]
__all__ += ["update_dataset_from_dataframes", "update_dataset_schema"]
__all__ += ["commit_dataset", "create_empty_dataset_header", "write_single_partition"]
__all__ += ["copy_dataset", "delete_dataset", "delete_dataset_rows", "garbage_collect_dataset"]
__all__ += ["list_dataset_garbage", "list_dataset_history", "keep_dataset_history", "rollback_dataset"]
__all__ += ["build_dataset_indices", "repair_dataset", "verify_dataset"]
__all__ += ["publish_dataset", "unpublish_dataset"]


def _eager(name: str, operation: Callable[P, Operation[Answer]]) -> Callable[P, Answer]:
    """The façade that runs a job."""

    def run(operation: Operation[Answer]) -> Answer:
        return execute(operation.job())

    return facade(__name__, name, operation, run)


@define_facade(dataset_read.ReadDataset)
def read_dataset_as_dataframes(read: dataset_read.ReadDataset) -> list[pd.DataFrame]:
    plan = read.plan()
    frames = [dataset_read.frame_of_table(plan.context, table) for table in dataset_read.run_each(plan)]
    pandas_conversion.align_date_units(frames)
    return frames


@define_facade(dataset_read.ReadTable)
def read_table(read: dataset_read.ReadTable) -> pd.DataFrame:
    plan = read.plan()
    return dataset_read.read_frame(plan.context, plan.single_task())


@attrs.frozen
class _StoreDataset(dataset_writes.StoreDataset):
    """Parameters of the façade.

    Parameters
    ----------
    dfs
        The inputs: DataFrames, anything that Arrow reads as a table (:class:`pyarrow.Table`, polars, DuckDB),
        None for nothing, or lists of these. A single one need not be in a list. The index of a frame is no
        column of the dataset; datasets without partition keys keep it for those who read frame by frame.
        Frames of one table with its name as in kartothek 5.3, ``{"table": df}`` or
        ``{"label": "a", "data": [("table", df)]}``, are deprecated.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset
    >>> from storefact import get_store_from_url
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> store = get_store_from_url("hmemory://")
    >>> store_dataframes_as_dataset(
    ...     store, "geodata", [cities], partition_on="COUNTRY_CODE", secondary_indices="CITY"
    ... )
    DatasetMetadata(uuid=geodata, tables=['table'], partition_keys=['COUNTRY_CODE'], metadata_version=4,
        indices=['CITY'], explicit_partitions=True)
    """

    dataset_uuid: str | None
    dfs: DatasetInput
    metadata: MetadataInput = None
    partition_on: Names = None
    df_serializer: DataFrameSerializer | None = None
    overwrite: bool = False
    secondary_indices: Names = None
    metadata_storage_format: str = naming.DEFAULT_METADATA_STORAGE_FORMAT
    metadata_version: int = naming.DEFAULT_METADATA_VERSION
    table_name: str = naming.SINGLE_TABLE


@attrs.frozen
class _UpdateDataset(dataset_writes.UpdateDataset):
    """Parameters of the façade.

    Parameters
    ----------
    df_list
        The inputs, as in :func:`store_dataframes_as_dataset`; empty to only remove partitions.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import read_table, update_dataset_from_dataframes
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> weather = pd.DataFrame({"DAY": [1, 2], "AVG_TEMP": [6, 5]})
    >>> _ = update_dataset_from_dataframes([weather], store, "weather", partition_on="DAY")
    >>> corrected = pd.DataFrame({"DAY": [2], "AVG_TEMP": [8]})
    >>> _ = update_dataset_from_dataframes([corrected], store, "weather", delete_scope=[{"DAY": 2}])
    >>> read_table("weather", store)["AVG_TEMP"].tolist()
    [6, 8]
    """

    df_list: DatasetInput
    store: StoreInput | None = None
    dataset_uuid: str | None = None
    delete_scope: Sequence[dict[str, Any]] | None = None
    metadata: MetadataInput = None
    df_serializer: DataFrameSerializer | None = None
    metadata_merger: MetadataMerger | None = None
    default_metadata_version: int = naming.DEFAULT_METADATA_VERSION
    partition_on: Names = None
    sort_partitions_by: Names = None
    secondary_indices: Names = None
    table_name: str = naming.SINGLE_TABLE
    factory: DatasetFactory | None = None


def _write_all(plan: WritePlan, data: DatasetInput) -> DatasetMetadata:
    """Write all inputs, several at once where waiting for the store takes the time, and commit."""
    job = write_commit.write_dataset_job(plan, list(write_tasks.iter_inputs(data)), write_tasks.write_part)
    return execute(job, 1 if open_blobs(plan.store).is_local else tuning.REMOTE_REQUESTS)


@define_facade(_StoreDataset)
def store_dataframes_as_dataset(store: _StoreDataset) -> DatasetMetadata:
    return _write_all(store.plan(), store.dfs)


@define_facade(_UpdateDataset)
def update_dataset_from_dataframes(update: _UpdateDataset) -> DatasetMetadata:
    return _write_all(update.plan(), update.df_list)


@define_facade(dataset_writes.WritePartition)
def write_single_partition(write: dataset_writes.WritePartition) -> WriteResult:
    if write.data is None:
        raise TypeError("write_single_partition needs data, got None.")
    return write_tasks.write_dataset_input(write.plan(), write.data)


@define_facade(dataset_writes.CommitDataset)
def commit_dataset(commit: dataset_writes.CommitDataset) -> DatasetMetadata:
    return write_commit.finish_dataset_write(*commit.plan_with_results())


create_empty_dataset_header = facade(
    __name__, "create_empty_dataset_header", dataset_writes.CreateHeader, dataset_writes.create_header
)
delete_dataset_rows = _eager("delete_dataset_rows", delete_rows.DeleteDatasetRows)
garbage_collect_dataset = _eager("garbage_collect_dataset", garbage.CollectDatasetGarbage)


def list_dataset_garbage(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    retention: timedelta | None = None,
) -> list[Blob]:
    """List the files that :func:`garbage_collect_dataset` would delete.

    Parameters
    ----------
    dataset_uuid, store, factory, retention
        As in :func:`garbage_collect_dataset`.

    Returns
    -------
    list of Blob
        Each with ``key``, ``size`` in bytes and ``mtime`` in seconds since 1970 (None if unknown),
        sorted by key.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import ensure_store, store_dataframes_as_dataset
    >>> store = ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"]})
    >>> for _ in range(2):
    ...     _ = store_dataframes_as_dataset(store, "geodata", [cities], overwrite=True)
    >>> [blob.key.split("/")[1] for blob in list_dataset_garbage("geodata", store)]
    ['_history', 'table']
    """
    dataset = dataset_factory(dataset_uuid, store, factory)
    return garbage.with_sizes(open_blobs(dataset.store_factory), garbage.list_garbage(dataset, retention))


def list_dataset_history(dataset_uuid: str, store: StoreInput) -> list[DatasetState]:
    """The readable states of a dataset.

    Parameters
    ----------
    dataset_uuid, store
        Uuid of the dataset; store, factory or URL.

    Returns
    -------
    list of DatasetState
        Each with ``version``, ``time`` (UTC) and whether it is the ``current`` one; oldest first.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import ensure_store, store_dataframes_as_dataset
    >>> from kartothek_cube.io.eager import list_dataset_history
    >>> store = ensure_store("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Rom"]})])
    >>> [(state.version, state.current) for state in list_dataset_history("geodata", store)]
    [(1, True)]
    """
    return list_committed_states(dataset_uuid, open_blobs(store))


def verify_dataset(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    deep: bool = True,
) -> Report:
    """Check a dataset against its header; nothing is changed.

    Every file exists and can be read, has the recorded schema and lies in its partition; indices hold
    exactly the values of the data; archived snapshots are complete.

    Parameters
    ----------
    dataset_uuid, store, factory
        As in :func:`~kartothek_cube.io.eager.read_dataset_as_dataframes`.
    deep
        Whether all rows are read; otherwise only the footers of files are, and indices are not compared with
        the data.

    Returns
    -------
    Report
        ``report.ok`` is True without problems; ``report.problems`` also say what to do.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import ensure_store, store_dataframes_as_dataset
    >>> store = ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"]})
    >>> dataset = store_dataframes_as_dataset(store, "geodata", [cities], secondary_indices="CITY")
    >>> verify_dataset("geodata", store)
    no problems in 1 dataset, 1 file, 2 rows, 1 index
    >>> store.delete(dataset.indices["CITY"].index_storage_key)
    >>> [problem.kind for problem in verify_dataset("geodata", store).problems]
    ['missing-index']
    >>> repair_dataset("geodata", store).ok
    True
    """
    # imported when needed: importing this module stays quick
    from kartothek_cube.io_components.maintenance.verify_dataset import verify_dataset_job

    dataset = dataset_factory(dataset_uuid, store, factory, load_schema=False)
    return execute(verify_dataset_job(dataset, deep=deep))


def repair_dataset(
    dataset_uuid: str | None = None, store: StoreInput | None = None, factory: DatasetFactory | None = None
) -> Report:
    """Check a dataset and rebuild wrong and missing indices, by one commit.

    An index stays as it is if data files are missing or unreadable, since its entries are unknown then.

    Parameters
    ----------
    dataset_uuid, store, factory
        As in :func:`verify_dataset`.

    Returns
    -------
    Report
        Remaining problems, and those that were ``repaired``.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import ensure_store, store_dataframes_as_dataset
    >>> store = ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"]})
    >>> dataset = store_dataframes_as_dataset(store, "geodata", [cities], secondary_indices="CITY")
    >>> store.delete(dataset.indices["CITY"].index_storage_key)
    >>> repair_dataset("geodata", store).ok
    True
    """
    from kartothek_cube.io_components.maintenance.verify_cube import repair

    dataset = dataset_factory(dataset_uuid, store, factory, load_schema=False)
    return repair(dataset.store_factory, partial(verify_dataset, factory=dataset))


build_dataset_indices = _eager("build_dataset_indices", build_index.BuildDatasetIndices)


publish_dataset = _eager("publish_dataset", publish.PublishDataset)
unpublish_dataset = _eager("unpublish_dataset", publish.UnpublishDataset)
delete_dataset = _eager("delete_dataset", garbage.DeleteDataset)


def copy_dataset(
    source_dataset_uuid: str,
    store: StoreInput,
    target_dataset_uuid: str | None = None,
    target_store: StoreInput | None = None,
) -> dict[str, DatasetMetadata]:
    """Copy a dataset under another name, to another store, or both.

    Parameters
    ----------
    source_dataset_uuid
        The dataset.
    store
        Its store.
    target_dataset_uuid
        Name of the copy; the same by default.
    target_store
        Store of the copy; the same by default.

    Returns
    -------
    dict
        Key of the new header to metadata.

    Raises
    ------
    ValueError
        Neither name nor store differ.
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import ensure_store
    >>> store = ensure_store("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Bonn", "Rom"]})])
    >>> list(copy_dataset("geodata", store, "geodata_backup"))
    ['geodata_backup.by-dataset-metadata.json']
    """
    target_uuid = source_dataset_uuid if target_dataset_uuid is None else target_dataset_uuid
    for uuid in (source_dataset_uuid, target_uuid):
        naming.check_uuid(uuid)
    target_input = store if target_store is None else target_store
    if source_dataset_uuid == target_uuid and store == target_input:
        remedy = "give another target_dataset_uuid or another target_store"
        raise ValueError(f"Cannot copy a dataset onto itself: {remedy}")
    return execute(copy.copy_dataset_job(store, source_dataset_uuid, target_input, target_uuid))
