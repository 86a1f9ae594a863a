"""Datasets with ``dask.delayed``: functions return Delayed objects, which do the work when computed.

Examples
--------
>>> import pandas as pd
>>> from dask import compute, delayed
>>> from storefact import get_store_from_url
>>> store = get_store_from_url("hmemory://")
>>> days = [delayed(pd.DataFrame)({"DAY": [day], "AVG_TEMP": [6]}) for day in range(3)]
>>> task = store_delayed_as_dataset(days, store, "weather", partition_on="DAY")
>>> len(task.compute(scheduler="sync").partitions)
3
>>> frames = compute(*read_dataset_as_delayed("weather", store), scheduler="sync")
>>> [df["DAY"].tolist() for df in frames]
[[0], [1], [2]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
from dask.delayed import Delayed, delayed
from dask.task_spec import TaskRef

from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend
from kartothek_cube.core.commit.change import MetadataMerger
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions.predicate import PredicatesType
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.store.resolve import lazy_store
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.dask._dask_executor import answer_as_delayed, picklable_store, results_as_delayed
from kartothek_cube.io_components.arguments import MetadataInput
from kartothek_cube.io_components.facade import facade, with_stores
from kartothek_cube.io_components.maintenance.garbage import CollectDatasetGarbage, DeleteDataset
from kartothek_cube.io_components.read.dataset_arguments import ReadDataset
from kartothek_cube.io_components.read.dataset_read import read_dataset_job, read_frame
from kartothek_cube.io_components.write.dataset_plan import (
    OnConflict,
    plan_dataset_update,
    plan_store,
    with_scope,
)
from kartothek_cube.io_components.write.table_writer import Written
from kartothek_cube.io_components.write.validation import iter_inputs
from kartothek_cube.io_components.write.write_commit import finish_dataset_write, write_dataset_job
from kartothek_cube.io_components.write.write_plan import SchemaMode, WritePlan, with_write_id
from kartothek_cube.io_components.write.write_tasks import write_part
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "delete_dataset__delayed",
    "garbage_collect_dataset__delayed",
    "read_dataset_as_delayed",
    "read_table_as_delayed",
    "store_delayed_as_dataset",
    "update_dataset_from_delayed",
)

DeleteScopeInput: TypeAlias = Sequence[dict[str, Any]] | Delayed | None

#: keys that a task deletes
_BLOCK = 100


# -- writes --------------------------------------------------------------------------------------------------


def _write(
    plan: WritePlan,
    delayed_tasks: Iterable[Delayed] | Delayed,
    delete_scope: DeleteScopeInput = None,
) -> Delayed:
    """Write each Delayed in one task, then commit."""
    if isinstance(delayed_tasks, Delayed):
        items = [delayed_tasks]
    else:
        items = [delayed(item) for item in iter_inputs(delayed_tasks)]
    tasks = [TaskRef(item.key) for item in items]
    return update_as_delayed(plan, items, tasks, write_part, delete_scope)


def update_as_delayed(
    plan: WritePlan,
    inputs: Sequence[Delayed],
    tasks: Iterable[TaskRef],
    run: Callable[[WritePlan, Any], Written],
    delete_scope: DeleteScopeInput = None,
) -> Delayed:
    """Write inputs and commit; a delayed ``delete_scope`` is planned right before the commit."""
    plan = with_write_id(plan)
    job = write_dataset_job(plan, tasks, run)
    if not isinstance(delete_scope, Delayed):
        return answer_as_delayed(job, inputs)
    job = attrs.evolve(job, finish=partial(_finish_with_scope, plan))
    return answer_as_delayed(job, [*inputs, delete_scope], first=[delete_scope.key])


def _finish_with_scope(plan: WritePlan, results: Iterable[Any]) -> DatasetMetadata:
    delete_scope, *parts = results
    return finish_dataset_write(with_scope(plan, delete_scope), parts)


def immediate_scope(delete_scope: DeleteScopeInput) -> Sequence[dict[str, Any]] | None:
    """The part of a ``delete_scope`` that is known when the graph is built: all or nothing."""
    return None if isinstance(delete_scope, Delayed) else delete_scope


# -- reads ---------------------------------------------------------------------------------------------------


def _read(read: ReadDataset) -> list[Delayed]:
    plan = with_stores(read, picklable_store).plan(same_categories=True)
    return results_as_delayed(read_dataset_job(read.options(plan), plan.tasks(), read_frame, "partition"))


read_dataset_as_delayed = facade(
    __name__,
    "read_dataset_as_delayed",
    ReadDataset,
    _read,
    "The read is planned when the graph is built. A categorical column with an index has the same "
    "categories in all frames: all values of the index.",
    summary="Read a dataset, a Delayed per partition or group.",
)


def check_table(table: object) -> str:
    """Check the type of a table name."""
    if not isinstance(table, str):
        raise TypeError(f"table must be the name of a table but is {table!r}")
    return table


# -- maintenance ---------------------------------------------------------------------------------------------


@attrs.frozen
class _CollectDatasetGarbage(CollectDatasetGarbage):
    chunk_size: int = 100
    # declared again to be the last parameter, as in kartothek
    factory: DatasetFactory | None = None


def _delete(delete: DeleteDataset) -> Delayed:
    return answer_as_delayed(with_stores(delete, picklable_store).job(_BLOCK))


def _collect_garbage(collect: _CollectDatasetGarbage) -> list[Delayed]:
    return results_as_delayed(with_stores(collect, picklable_store).job(collect.chunk_size))


delete_dataset__delayed = facade(
    __name__,
    "delete_dataset__delayed",
    DeleteDataset,
    _delete,
    "A first task deletes the header, others the files. The Delayed is None.",
)
garbage_collect_dataset__delayed = facade(
    __name__,
    "garbage_collect_dataset__delayed",
    _CollectDatasetGarbage,
    _collect_garbage,
    "Garbage is listed when the graph is built. There is one Delayed of None for each ``chunk_size`` files.",
)


# -- functions whose arguments differ ------------------------------------------------------------------------


def store_delayed_as_dataset(
    delayed_tasks: Iterable[Delayed],
    store: StoreInput,
    dataset_uuid: str | None = None,
    metadata: MetadataInput = None,
    df_serializer: DataFrameSerializer | None = None,
    overwrite: bool = False,
    metadata_merger: MetadataMerger | None = None,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: str | Sequence[str] | None = None,
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT,
    table_name: str = SINGLE_TABLE,
    secondary_indices: str | Sequence[str] | None = None,
) -> Delayed:
    """
    Store a new dataset.

    See :func:`kartothek_cube.io.eager.store_dataframes_as_dataset`. ``delayed_tasks`` are Delayed objects of
    its inputs. One task writes each of them, the last one commits the dataset; arguments are checked when the
    graph is built.
    """
    plan = plan_store(
        lazy_store(store),
        dataset_uuid,
        metadata=metadata,
        partition_on=partition_on,
        df_serializer=df_serializer,
        overwrite=overwrite,
        secondary_indices=secondary_indices,
        metadata_storage_format=metadata_storage_format,
        metadata_version=metadata_version,
        metadata_merger=metadata_merger,
        table_name=table_name,
    )
    return _write(plan, delayed_tasks)


def update_dataset_from_delayed(
    delayed_tasks: Iterable[Delayed],
    store: StoreInput | None = None,
    dataset_uuid: str | None = None,
    delete_scope: DeleteScopeInput = None,
    metadata: MetadataInput = None,
    df_serializer: DataFrameSerializer | None = None,
    metadata_merger: MetadataMerger | None = None,
    default_metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: str | Sequence[str] | None = None,
    sort_partitions_by: str | Sequence[str] | None = None,
    secondary_indices: str | Sequence[str] | None = None,
    factory: DatasetFactory | None = None,
    table_name: str = SINGLE_TABLE,
    *,
    on_conflict: OnConflict = "raise",
    schema_mode: SchemaMode = "strict",
) -> Delayed:
    """
    Remove partitions and add others, in one step.

    See :func:`kartothek_cube.io.eager.update_dataset_from_dataframes`. ``delayed_tasks`` are as in
    :func:`store_delayed_as_dataset`. ``delete_scope`` may be a Delayed as well, which is planned right before
    the commit.
    """
    plan = plan_dataset_update(
        dataset_uuid,
        picklable_store(store),
        factory,
        delete_scope=immediate_scope(delete_scope),
        metadata=metadata,
        df_serializer=df_serializer,
        metadata_merger=metadata_merger,
        default_metadata_version=default_metadata_version,
        partition_on=partition_on,
        sort_partitions_by=sort_partitions_by,
        secondary_indices=secondary_indices,
        table_name=table_name,
        on_conflict=on_conflict,
        schema_mode=schema_mode,
    )
    return _write(plan, delayed_tasks, delete_scope)


def read_table_as_delayed(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    table: str = SINGLE_TABLE,
    columns: list[str] | None = None,
    predicate_pushdown_to_io: bool = True,
    categoricals: list[str] | None = None,
    dates_as_object: bool = True,
    predicates: PredicatesType = None,
    factory: DatasetFactory | None = None,
    dispatch_by: str | Sequence[str] | None = None,
    *,
    dtype_backend: DtypeBackend | None = None,
) -> list[Delayed]:
    """
    Read a dataset, a Delayed per partition or group.

    See :func:`kartothek_cube.io.eager.read_dataset_as_dataframes`. The same as
    :func:`read_dataset_as_delayed`, with another name of ``table_name``.
    """
    return read_dataset_as_delayed(
        dataset_uuid,
        store,
        columns,
        predicate_pushdown_to_io,
        categoricals,
        dates_as_object,
        predicates,
        factory,
        dispatch_by,
        table_name=check_table(table),
        dtype_backend=dtype_backend,
    )
