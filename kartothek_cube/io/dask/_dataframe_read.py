"""Reading datasets as dask DataFrames: rows, row groups and hashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.dataframe.utils import clear_known_categories

from kartothek_cube.core.arrow.pandas_conversion import dates_as_stamps
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.expressions.predicate import PredicatesType
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import AsOf
from kartothek_cube.core.naming import SINGLE_TABLE
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.dask._dataset_arguments import check_table, picklable_store
from kartothek_cube.io.dask._executor import answer_as_delayed
from kartothek_cube.io.dask._from_map import from_map
from kartothek_cube.io_components.arguments import dataset_factory
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.kernels.encode import hash_groups, hash_rows, merge_hashes
from kartothek_cube.io_components.read.dataset_read import (
    FrameOptions,
    ReadContext,
    ReadPlan,
    ReadTask,
    no_row_groups,
    plan_footers,
    plan_read,
    read_frame,
    row_groups,
)
from kartothek_cube.io_components.utils import normalize_arg

__all__ = ("collect_dataset_metadata", "hash_dataset", "read_dataset_as_ddf")


def read_dataset_as_ddf(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    table: str = SINGLE_TABLE,
    columns: list[str] | None = None,
    predicate_pushdown_to_io: bool = True,
    categoricals: list[str] | None = None,
    dates_as_object: bool = True,
    predicates: PredicatesType = None,
    factory: DatasetFactory | None = None,
    dask_index_on: str | None = None,
    dispatch_by: str | Sequence[str] | None = None,
    *,
    as_of: AsOf | None = None,
) -> dd.DataFrame:
    """
    Read a dataset, a partition per partition or group.

    See :func:`kartothek_cube.io.eager.read_dataset_as_dataframes`. The read is planned when the graph is
    built, and only the columns that dask needs are read. By default, partition keys are the first columns and
    the others are sorted by name. ``dask_index_on`` is an indexed column that becomes the index: one
    partition per value, with known divisions. Types are those of the schema, files may have narrower ones.
    With ``dates_as_object=False`` and several partitions, dates outside of ``datetime64[ns]`` are
    :class:`pandas.Timestamp` objects.

    Examples
    --------
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> read_dataset_as_ddf("geodata", store, dask_index_on="COUNTRY_CODE").divisions
    ('DE', 'IT', 'IT')
    """
    index = _check_index(dask_index_on, normalize_arg("dispatch_by", dispatch_by))
    plan = plan_read(
        dataset_uuid,
        picklable_store(store),
        factory,
        columns=_with_index(columns, index),
        predicate_pushdown_to_io=predicate_pushdown_to_io,
        categoricals=categoricals,
        predicates=predicates,
        dispatch_by=dispatch_by if index is None else [index],
        table_name=check_table(table),
        in_schema_order=True,
        same_categories=True,
        as_of=as_of,
    )
    options, tasks = FrameOptions(plan.context, dates_as_object), plan.tasks()
    meta = _meta(options, index)
    divisions = None if index is None else _divisions(tasks, meta)
    result: dd.DataFrame = from_map(
        _read, tasks, "read_dataset", meta, options, index, len(tasks) < 2, divisions=divisions
    )
    return result


def _check_index(dask_index_on: Any, dispatch_by: Sequence[str] | None) -> str | None:
    if dask_index_on is not None and not isinstance(dask_index_on, str):
        raise TypeError(f"dask_index_on must be the name of a column but is a {type(dask_index_on).__name__}")
    if dask_index_on is not None and dispatch_by:
        raise ValueError(
            "dask_index_on and dispatch_by cannot be used together: a partition has one value of the index"
        )
    return dask_index_on


def _with_index(columns: Any, index: str | None) -> Any:
    add = isinstance(columns, list) and index is not None and index not in columns
    return [*columns, index] if add else columns


def _meta(options: FrameOptions, index: str | None) -> pd.DataFrame:
    context = options.read
    unknown = [column for column in context.categoricals if column not in context.categories]
    meta: pd.DataFrame = clear_known_categories(read_frame(options, None), cols=unknown)
    return meta if index is None else meta.set_index(index)


def _divisions(tasks: Sequence[ReadTask], meta: pd.DataFrame) -> tuple[Any, ...] | None:
    """Divisions of partitions that hold one index value each."""
    groups = [task.group[0] for task in tasks]
    try:
        values = pd.Index(groups, dtype=meta.index.dtype)
    except pd.errors.OutOfBoundsDatetime:  # dates that partitions hold as timestamps
        values = pd.Index(np.array(groups, "datetime64[s]")).astype(object)
    return (*values, values[-1]) if len(values) else None


def _read(
    task: ReadTask | None,
    options: FrameOptions,
    index: str | None,
    alone: bool,
    columns: Sequence[str] | None = None,
) -> pd.DataFrame:
    context = options.read
    if columns is not None:
        context = _project(context, [*columns, *([] if index is None else [index])])
    frame = read_frame(attrs.evolve(options, read=context), task)
    frame = frame if alone else dates_as_stamps(frame)
    return frame if index is None else frame.set_index(index)


def _project(context: ReadContext, columns: list[str]) -> ReadContext:
    names = tuple(dict.fromkeys(columns))
    categoricals = tuple(c for c in context.categoricals if c in names)
    return attrs.evolve(context, columns=names, categoricals=categoricals)


def collect_dataset_metadata(
    store: StoreInput | None = None,
    dataset_uuid: str | None = None,
    predicates: PredicatesType = None,
    frac: float = 1.0,
    factory: DatasetFactory | None = None,
) -> dd.DataFrame:
    """
    Statistics of the row groups in the files of a dataset.

    Parameters
    ----------
    store, dataset_uuid, factory
        As in :func:`kartothek_cube.io.eager.read_dataset_as_dataframes`.
    predicates
        Partitions to read; only conditions on indexed columns count.
    frac
        Share of these partitions, chosen at random.

    Returns
    -------
    dask.dataframe.DataFrame
        One row per row group: ``partition_label``, ``row_group_id``, ``row_group_compressed_size``,
        ``row_group_uncompressed_size``, ``number_rows_total``, ``number_row_groups``, ``serialized_size`` and
        ``number_rows_per_row_group``.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        ``frac`` is not above 0 and at most 1.
    """
    dataset = dataset_factory(dataset_uuid, picklable_store(store), factory)
    files = plan_footers(dataset, predicates, frac)
    result: dd.DataFrame = from_map(
        _row_groups, files, "collect_metadata", no_row_groups(), dataset.store_factory
    )
    return result


def _row_groups(file: tuple[str, str] | None, store: StoreInput) -> pd.DataFrame:
    return no_row_groups() if file is None else row_groups(store, *file)


def hash_dataset(
    store: StoreInput | None = None,
    dataset_uuid: str | None = None,
    subset: Sequence[str] | None = None,
    group_key: str | Sequence[str] | None = None,
    table: str = SINGLE_TABLE,
    predicates: PredicatesType = None,
    factory: DatasetFactory | None = None,
) -> dd.Series:
    """
    Hash a dataset, whatever the order of its rows; other arguments as in :func:`read_dataset_as_ddf`.

    ``subset`` are the columns to hash, by default all. There is one ``uint64`` per partition, or one per
    value of the columns ``group_key``.

    Examples
    --------
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> for uuid, df in {"a": cities, "b": cities[::-1]}.items():
    ...     _ = store_dataframes_as_dataset(store, uuid, [df])
    >>> a, b = (hash_dataset(store, uuid).compute(scheduler="sync") for uuid in "ab")
    >>> a.equals(b)
    True
    """
    keys = [group_key] if isinstance(group_key, str) else list(group_key or [])
    columns = None if subset is None else list(dict.fromkeys([*subset, *keys]))
    plan = plan_read(
        dataset_uuid,
        picklable_store(store),
        factory,
        columns=columns,
        predicates=predicates,
        table_name=check_table(table),
        in_schema_order=True,
    )
    counted = list(plan.context.columns or ()) if subset is None else list(subset)
    unknown = set(keys) - set(plan.context.columns or ())
    if unknown:
        raise ValueError(f"group_key: {unknown_names('column', unknown, plan.context.schema.names)}")
    result: dd.Series = _hashes_by_group(plan, counted, keys) if keys else _hashes(plan, counted)
    return result


def _hashes(plan: ReadPlan, counted: list[str]) -> Any:
    tasks = list(enumerate(plan.tasks()))
    meta = pd.Series(dtype="uint64")
    return from_map(_hash_task, tasks, "hash_dataset", meta, plan.context, counted)


def _hash_task(task: tuple[int, ReadTask] | None, context: ReadContext, counted: list[str]) -> pd.Series[int]:
    if task is None:
        return pd.Series(dtype="uint64")
    hashed = hash_rows(read_frame(FrameOptions(context), task[1]), counted)
    return pd.Series([hashed], index=pd.RangeIndex(task[0], task[0] + 1), dtype="uint64")


@attrs.frozen
class _HashContext:
    """What tasks that hash groups share: columns to hash, columns of the group keys."""

    read: ReadContext
    counted: tuple[str, ...]
    keys: tuple[str, ...]


def _hashes_by_group(plan: ReadPlan, counted: list[str], keys: list[str]) -> Any:
    context = _HashContext(plan.context, tuple(counted), tuple(keys))
    job = Job(
        name="hash_dataset",
        description=f"hash dataset {plan.context.uuid}",
        context=context,
        tasks=plan.tasks() or [None],
        run=_hash_groups,
        finish=merge_hashes,
        merge=merge_hashes,
        steps=("prepare", "groups", "sum"),
    )
    meta = _hash_groups(context, None)
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_delayed([answer_as_delayed(job)], meta=meta, verify_meta=False)


def _hash_groups(context: _HashContext, task: ReadTask | None) -> pd.Series[int]:
    return hash_groups(read_frame(FrameOptions(context.read), task), context.counted, context.keys)
