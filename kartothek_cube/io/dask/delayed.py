"""Datasets with ``dask.delayed``: functions return Delayed objects, which do the work when computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
from dask.delayed import Delayed
from dask.task_spec import TaskRef

from kartothek_cube.core.arguments import check_positive
from kartothek_cube.core.commit.change import MetadataMerger
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions import PredicatesType
from kartothek_cube.core.factory import DatasetAsOf, DatasetFactory
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io.dask import _dask_executor as executor
from kartothek_cube.io.dask._dask_executor import SYNC, SYNC_ALL, answer_as_delayed, picklable_store
from kartothek_cube.io_components.dataset_arguments import MetadataInput
from kartothek_cube.io_components.dataset_read import ReadDataset, read_dataset_job, read_frame
from kartothek_cube.io_components.delete_rows import DeleteDatasetRows
from kartothek_cube.io_components.facade import Example, define_facade, with_stores
from kartothek_cube.io_components.maintenance.garbage import CollectDatasetGarbage, DeleteDataset
from kartothek_cube.io_components.write import write_tasks
from kartothek_cube.io_components.write.dataset_writes import Names, StoreDataset, UpdateDataset, with_scope
from kartothek_cube.io_components.write.write_commit import (
    FinishWrite,
    RunWrite,
    finish_dataset_write,
    write_dataset_job,
)
from kartothek_cube.io_components.write.write_plan import WritePlan
from kartothek_cube.serialization import DataFrameSerializer

__all__ = ["read_dataset_as_delayed", "read_table_as_delayed"]
__all__ += ["store_delayed_as_dataset", "update_dataset_from_delayed"]
__all__ += ["delete_dataset__delayed", "delete_dataset_rows__delayed", "garbage_collect_dataset__delayed"]

DeleteScopeInput: TypeAlias = Sequence[dict[str, Any]] | Delayed | None

#: keys that a task deletes
_BLOCK = 100


# -- writes --------------------------------------------------------------------------------------------------


def write_as_delayed(
    write: StoreDataset | UpdateDataset,
    plan: WritePlan,
    inputs: Sequence[Delayed],
    tasks: Iterable[TaskRef],
    run: RunWrite,
    finish: FinishWrite | None = None,
) -> Delayed:
    """Write inputs and commit; a delayed ``delete_scope`` is planned right before the commit."""
    finish = finish or finish_dataset_write
    job = attrs.evolve(write_dataset_job(plan, tasks, run), finish=partial(finish, plan))
    scope = getattr(write, "delete_scope", None)
    if not isinstance(scope, Delayed):
        return answer_as_delayed(job, inputs)
    job = attrs.evolve(job, finish=partial(_finish_with_scope, finish, plan))
    return answer_as_delayed(job, [*inputs, scope], first=[scope.key])


def plan_write(write: StoreDataset | UpdateDataset) -> WritePlan:
    """Plan what is known when the graph is built."""
    write = with_stores(write, picklable_store)
    if isinstance(write, UpdateDataset) and isinstance(write.delete_scope, Delayed):
        write = attrs.evolve(write, delete_scope=None)
    return write.plan()


def _finish_with_scope(finish: FinishWrite, plan: WritePlan, results: Iterable[Any]) -> DatasetMetadata:
    delete_scope, *parts = results
    return finish(with_scope(plan, delete_scope), parts)


def _table_name(arguments: Any) -> str:
    if not isinstance(arguments.table, str):
        raise TypeError(f"table must be the name of a table but is {arguments.table!r}")
    return arguments.table


#: default of the field for the name of a table, which some façades call ``table``
TABLE = attrs.Factory(_table_name, takes_self=True)


# -- reads ---------------------------------------------------------------------------------------------------


def _read(read: ReadDataset) -> list[Delayed]:
    plan = with_stores(read, picklable_store).plan(same_categories=True)
    return executor.results_as_delayed(read_dataset_job(plan.context, plan.tasks(), read_frame, "partition"))


@define_facade(ReadDataset, example=SYNC_ALL)
def read_dataset_as_delayed(read: ReadDataset) -> list[Delayed]:
    """Read a dataset, a Delayed per partition or group.

    The read is planned when the graph is built. A categorical column with an index has the same categories in
    all frames: all values of the index.
    """
    return _read(read)


@attrs.frozen
class _ReadTable(ReadDataset):
    table: str = SINGLE_TABLE
    columns: list[str] | None = None
    predicate_pushdown_to_io: bool = True
    categoricals: list[str] | None = None
    dates_as_object: bool = True
    predicates: PredicatesType = None
    factory: DatasetFactory | None = None
    dispatch_by: str | Sequence[str] | None = None
    as_of: DatasetAsOf | None = attrs.field(default=None, init=False)
    table_name: str | None = attrs.field(default=TABLE, init=False)


@define_facade(_ReadTable, example=SYNC_ALL)
def read_table_as_delayed(read: _ReadTable) -> list[Delayed]:
    """Read a dataset, a Delayed per partition or group.

    The same as :func:`read_dataset_as_delayed`, with another name of ``table_name``.
    """
    return _read(read)


# -- maintenance ---------------------------------------------------------------------------------------------


@attrs.frozen
class _CollectDatasetGarbage(CollectDatasetGarbage):
    chunk_size: int = 100
    # declared again to be the last parameter, as in kartothek
    factory: DatasetFactory | None = None


@define_facade(DeleteDataset, example=Example(value=SYNC))
def delete_dataset__delayed(delete: DeleteDataset) -> Delayed:
    """Delete a dataset: its header first, so that it exists as a whole or not at all, then its files.

    A first task deletes the header, others the files. The Delayed is None.
    """
    return answer_as_delayed(with_stores(delete, picklable_store).job(_BLOCK))


@define_facade(DeleteDatasetRows, example=Example(value=SYNC))
def delete_dataset_rows__delayed(delete: DeleteDatasetRows) -> Delayed:
    """Delete the rows of a dataset that meet predicates, by one commit.

    Files with such rows are found when the graph is built; a task rewrites up to 16. The Delayed is a dict of
    the numbers of ``rows_deleted`` and of changed ``partitions``.
    """
    return answer_as_delayed(with_stores(delete, picklable_store).job())


@define_facade(_CollectDatasetGarbage, example=SYNC_ALL)
def garbage_collect_dataset__delayed(collect: _CollectDatasetGarbage) -> list[Delayed]:
    """Delete garbage: files of failed, overwritten or removed writes, to which the dataset does not refer.

    Garbage is listed when the graph is built. There is one Delayed of None for each ``chunk_size`` files.
    """
    check_positive("chunk_size", collect.chunk_size)
    return executor.results_as_delayed(with_stores(collect, picklable_store).job(collect.chunk_size))


# -- functions whose arguments differ ------------------------------------------------------------------------


@attrs.frozen
class _StoreDataset(StoreDataset):
    delayed_tasks: Iterable[Delayed]
    store: StoreInput
    dataset_uuid: str | None = None
    metadata: MetadataInput = None
    df_serializer: DataFrameSerializer | None = None
    overwrite: bool = False
    metadata_merger: MetadataMerger | None = None
    metadata_version: int = DEFAULT_METADATA_VERSION
    partition_on: Names = None
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT
    table_name: str = SINGLE_TABLE
    secondary_indices: Names = None


@attrs.frozen
class _UpdateDataset(UpdateDataset):
    """Parameters of the façade.

    Parameters
    ----------
    delete_scope
        Partitions to remove: a list of dicts of indexed column to value. A partition matches if it has all
        values of a dict; the empty dict matches all partitions. It may be a Delayed, which is planned right
        before the commit.
    """

    delayed_tasks: Iterable[Delayed]
    store: StoreInput | None = None
    dataset_uuid: str | None = None
    delete_scope: DeleteScopeInput = None
    metadata: MetadataInput = None
    df_serializer: DataFrameSerializer | None = None
    metadata_merger: MetadataMerger | None = None
    default_metadata_version: int = DEFAULT_METADATA_VERSION
    partition_on: Names = None
    sort_partitions_by: Names = None
    secondary_indices: Names = None
    factory: DatasetFactory | None = None
    table_name: str = SINGLE_TABLE


def _write(write: _StoreDataset | _UpdateDataset) -> Delayed:
    """Write each Delayed in one task, then commit."""
    inputs, tasks = executor.delayed_inputs(write.delayed_tasks)
    return write_as_delayed(write, plan_write(write), inputs, tasks, write_tasks.write_part)


_EXAMPLE = Example(("import dask", "data = [dask.delayed(df) for df in data]"), SYNC)


@define_facade(_StoreDataset, example=_EXAMPLE)
def store_delayed_as_dataset(store: _StoreDataset) -> Delayed:
    """Store a new dataset.

    One task writes each input, the last one commits the dataset; arguments are checked when the graph is
    built.
    """
    return _write(store)


@define_facade(_UpdateDataset, example=_EXAMPLE)
def update_dataset_from_delayed(update: _UpdateDataset) -> Delayed:
    """Remove partitions and add others, in one step. A dataset that does not exist is created.

    One task writes each input, the last one commits the dataset; arguments are checked when the graph is
    built.
    """
    return _write(update)
