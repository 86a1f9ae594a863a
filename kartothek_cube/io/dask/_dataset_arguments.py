"""Arguments of the dask façades of datasets: stores, tables, and a delayed ``delete_scope``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import attrs
from dask.delayed import Delayed
from dask.task_spec import TaskRef

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store.resolve import lazy_store
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io.dask._dask_executor import answer_as_delayed
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.write.dataset_commit import Written, finish_written, update_dataset_job
from kartothek_cube.io_components.write.dataset_plan import with_scope
from kartothek_cube.io_components.write.plan import DatasetWritePlan, with_write_id
from kartothek_cube.io_components.write.table_writer import WriteContext

__all__ = (
    "DeleteScopeInput",
    "check_table",
    "immediate_scope",
    "picklable_store",
    "repeatable_update_job",
    "update_as_delayed",
)

DeleteScopeInput: TypeAlias = Sequence[dict[str, Any]] | Delayed | None
Input = TypeVar("Input")


def picklable_store(store: StoreInput | None) -> StoreFactory | None:
    """A factory that graphs can carry; None stays None."""
    return None if store is None else lazy_store(store)


def check_table(table: object) -> str:
    """Check the type of a table name."""
    if not isinstance(table, str):
        raise TypeError(f"table must be the name of a table but is {table!r}")
    return table


def immediate_scope(delete_scope: DeleteScopeInput) -> Sequence[dict[str, Any]] | None:
    """The part of a ``delete_scope`` that is known when the graph is built: all or nothing."""
    return None if isinstance(delete_scope, Delayed) else delete_scope


def repeatable_update_job(
    plan: DatasetWritePlan, tasks: Iterable[Input], run: Callable[[WriteContext, Input], Written]
) -> Job[WriteContext, Input, Written, DatasetMetadata]:
    """A write whose tasks and commit may run again, as dask does when it loses their results."""
    return update_dataset_job(with_write_id(plan), tasks, run)


def update_as_delayed(
    plan: DatasetWritePlan,
    inputs: Sequence[Any],
    tasks: Iterable[TaskRef],
    run: Callable[[WriteContext, Any], Written],
    delete_scope: DeleteScopeInput = None,
) -> Delayed:
    """Write inputs and commit; a delayed ``delete_scope`` is planned right before the commit."""
    job = repeatable_update_job(plan, tasks, run)
    if not isinstance(delete_scope, Delayed):
        return answer_as_delayed(job, inputs)
    plan = attrs.evolve(plan, context=job.context)
    job = attrs.evolve(job, finish=partial(_finish_with_scope, plan))
    return answer_as_delayed(job, [*inputs, delete_scope], first=[delete_scope.key])


def _finish_with_scope(plan: DatasetWritePlan, results: Iterable[Any]) -> DatasetMetadata:
    delete_scope, *parts = results
    return finish_written(with_scope(plan, delete_scope), parts)
