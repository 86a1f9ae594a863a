"""Datasets with dask DataFrames as input of writes and as result of reads; the work is done when computed."""

from __future__ import annotations

import math
import uuid
from collections import UserList
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from numbers import Real
from typing import Any, TypeVar

import attrs
import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
from dask.dataframe.utils import clear_known_categories
from dask.delayed import Delayed
from dask.task_spec import TaskRef

from kartothek_cube.core import arrow, errors, pandas_conversion
from kartothek_cube.core.arguments import ensure_string_type, is_count
from kartothek_cube.core.commit.change import MetadataMerger
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions import PredicatesType
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.schema import SchemaWrapper, validate_compatible
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io.dask._dask_executor import SYNC, answer_as_delayed, picklable_store
from kartothek_cube.io.dask.delayed import TABLE, DeleteScopeInput, plan_write, write_as_delayed
from kartothek_cube.io_components import dataset_read, kernels
from kartothek_cube.io_components.dataset_arguments import MetadataInput, dataset_factory, normalize_arg
from kartothek_cube.io_components.dataset_read import ReadContext, ReadPlan, ReadTask, read_frame
from kartothek_cube.io_components.facade import Example, define_facade, with_stores
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.query.frame_conversion import text_dtype
from kartothek_cube.io_components.write.dataset_writes import Names, StoreDataset, UpdateDataset
from kartothek_cube.io_components.write.write_commit import FinishWrite, finish_dataset_write
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteSpec, Written, merge_writes
from kartothek_cube.io_components.write.write_tasks import check_dataset_input, write_parts
from kartothek_cube.serialization import DataFrameSerializer

__all__ = ["read_dataset_as_ddf", "store_dataset_from_ddf", "update_dataset_from_ddf"]
__all__ += ["collect_dataset_metadata", "hash_dataset"]


# -- writes --------------------------------------------------------------------------------------------------


def _find_dataset(update: _UpdateDataset) -> DatasetFactory:
    """The dataset that the arguments name, which has this table or does not exist."""
    dataset = dataset_factory(update.dataset_uuid, picklable_store(update.store), update.factory)
    try:
        tables = dataset.dataset_metadata.tables
    except errors.DatasetNotFoundError:
        return dataset
    if tables:
        errors.check_names(
            f"Dataset {dataset.dataset_uuid!r}: ", "table", [update.table], tables, error=TypeError
        )
    return dataset


#: arguments that name columns of the input
_COLUMN_ARGUMENTS = ("secondary_indices", "sort_partitions_by", "bucket_by")


def _arrange_rows(write: _StoreDataset | _UpdateDataset, spec: WriteSpec) -> dd.DataFrame | None:
    """The input, repartitioned and shuffled; its columns are checked before anything is computed."""
    if write.ddf is None:
        return None
    if not isinstance(write.ddf, dd.DataFrame):
        raise TypeError(f"ddf must be a dask DataFrame but is {type(write.ddf).__name__}")
    rows: dd.DataFrame = write.ddf
    # of the types of the meta, those that cannot be stored are refused at once
    pandas_conversion.from_pandas(rows._meta)
    texts = {name: ensure_string_type(name) for name in rows.columns if not isinstance(name, str)}
    rows = restore_text(rows.rename(columns=texts) if texts else rows)
    ratio: Any = write.repartition_ratio
    if ratio is not None:
        if isinstance(ratio, bool) or not isinstance(ratio, Real) or not 0 < float(ratio) < math.inf:
            raise ValueError(f"repartition_ratio must be a positive number but is {ratio!r}")
        rows = rows.repartition(npartitions=math.ceil(rows.npartitions / ratio))
    given = {name: normalize_arg(name, getattr(write, name)) or () for name in _COLUMN_ARGUMENTS}
    given = {name: [texts.get(column, column) for column in columns] for name, columns in given.items()}
    for name, columns in {**given, "partition_on": spec.partition_on}.items():
        errors.check_names(f"{name}: ", "column", columns, rows.columns)
    num_buckets = check_num_buckets(write.num_buckets, shuffle=write.shuffle)
    if not write.shuffle:
        return rows
    return shuffle_by_key(rows, spec.partition_on, given["bucket_by"], num_buckets, spec.types)


def restore_text(rows: dd.DataFrame) -> dd.DataFrame:
    """The input with the text type of pandas instead of ``string``, by which dask replaces it."""
    # kartothek cannot query cubes with that type
    if dask.config.get("dataframe.convert-string", None) is False or not rows.columns.is_unique:
        return rows
    dtypes = rows._meta.dtypes.items()
    texts = [name for name, t in dtypes if isinstance(t, pd.StringDtype) and t.na_value is pd.NA]
    return rows.astype(dict.fromkeys(texts, text_dtype())) if texts else rows


def _write(write: _StoreDataset | _UpdateDataset) -> Delayed:
    """Write each partition in one task, then commit."""
    plan = plan_write(write)
    rows = _arrange_rows(write, plan.spec)
    parts = [] if rows is None else rows.to_delayed()
    run = _write_buckets if write.shuffle else _write_partition
    finish: FinishWrite | None = None
    if write.shuffle and write.ddf is not None:
        finish = partial(_finish_shuffle, restore_text(write.ddf)._meta.reset_index(drop=True))
    return write_as_delayed(write, plan, parts[:1], [TaskRef(part.key) for part in parts], run, finish)


def _write_partition(plan: WritePlan, frame: pd.DataFrame) -> Written:
    """Write the rows; without rows a file of the schema, unless the dataset has partition keys."""
    is_empty = plan.spec.partition_on and not len(frame)
    return write_parts(plan, [] if is_empty else [frame.reset_index(drop=True)])


def _write_buckets(plan: WritePlan, frame: pd.DataFrame) -> Written:
    """Write the rows of each bucket; a shuffle may leave partitions empty."""
    return write_parts(plan, [rows.reset_index(drop=True) for rows in buckets(frame) if len(rows)])


def _finish_shuffle(meta: pd.DataFrame, plan: WritePlan, parts: Iterable[Written]) -> DatasetMetadata:
    """Commit; a dataset without partition keys and without any rows has the columns of the meta."""
    written = merge_writes(parts)
    if not written and not plan.spec.partition_on:
        written = {plan.spec.uuid: check_dataset_input(plan.spec, meta)}
    return finish_dataset_write(plan, [written])


# -- reads ---------------------------------------------------------------------------------------------------


def _meta(context: ReadContext, index: str | None) -> pd.DataFrame:
    unknown = [column for column in context.categoricals if column not in context.categories]
    meta: pd.DataFrame = clear_known_categories(read_frame(context, None), cols=unknown)
    return meta if index is None else meta.set_index(index)


def _divisions(tasks: Sequence[ReadTask], meta: pd.DataFrame) -> tuple[Hashable, ...] | None:
    """Divisions of partitions that hold one index value each."""
    groups, index = [task.group[0] for task in tasks], meta.index
    # as categories, pandas does not find dates among timestamps
    dtype = index.categories.dtype if isinstance(index, pd.CategoricalIndex) else index.dtype
    try:
        values = pd.Index(groups, dtype=dtype)
    except pd.errors.OutOfBoundsDatetime:  # dates that partitions hold as timestamps
        values = pd.Index(np.array(groups, "datetime64[s]")).astype(object)
    return (*values, values[-1]) if len(values) else None


def _read(
    task: ReadTask,
    context: ReadContext,
    index: str | None,
    alone: bool,
    columns: Sequence[str] | None = None,
) -> pd.DataFrame:
    if columns is not None:
        names = tuple(dict.fromkeys([*columns, *([] if index is None else [index])]))
        categoricals = tuple(c for c in context.categoricals if c in names)
        context = attrs.evolve(context, columns=names, categoricals=categoricals)
    frame = read_frame(context, task)
    frame = frame if alone or context.dtype_backend else pandas_conversion.dates_as_stamps(frame)
    for name in () if alone or context.dates_as_object else context.categoricals:
        # pandas unites categories of one unit only, and seconds hold all dates
        if pa.types.is_date(context.schema.field(name).type) and name not in context.categories:
            days: Any = frame[name].cat
            frame[name] = days.rename_categories(days.categories.astype("datetime64[s]"))
    return frame if index is None else frame.set_index(index)


def collect_dataset_metadata(
    store: StoreInput | None = None,
    dataset_uuid: str | None = None,
    predicates: PredicatesType = None,
    frac: float = 1.0,
    factory: DatasetFactory | None = None,
) -> dd.DataFrame:
    """Statistics of the row groups in the files of a dataset.

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

    Examples
    --------
    >>> import tempfile
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> _ = store_dataframes_as_dataset(store, "weather", [pd.DataFrame({"DAY": [1, 2, 1]})])
    >>> collect_dataset_metadata(store, "weather").compute(scheduler="sync")["number_rows_total"].tolist()
    [3]
    """
    dataset = dataset_factory(dataset_uuid, picklable_store(store), factory)
    files, meta = dataset_read.plan_footers(dataset, predicates, frac), dataset_read.no_row_groups()
    result: dd.DataFrame = from_map(_row_groups, files, "collect_metadata", meta, dataset.store_factory)
    return result


def _row_groups(file: tuple[str, str], store: StoreInput) -> pd.DataFrame:
    return dataset_read.row_groups(store, *file)


@attrs.frozen
class _HashDataset:
    """Hash a dataset, whatever the order of its rows.

    Parameters
    ----------
    subset
        Column or columns to hash, by default all.
    group_key
        Columns by whose values rows are grouped.
    predicates
        Rows to hash: a list of conjunctions of ``(column, operator, value)``, one of which has to hold.
    factory
        The dataset itself, instead of ``dataset_uuid`` and ``store``.

    Returns
    -------
    dask.dataframe.Series
        One ``uint64`` per partition, or one per value of ``group_key``.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        A column does not exist, or ``subset`` is empty.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.dask.dataframe import hash_dataset
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

    store: StoreInput | None = None
    dataset_uuid: str | None = None
    subset: str | Sequence[str] | None = None
    group_key: str | Sequence[str] | None = None
    table: str = SINGLE_TABLE
    predicates: PredicatesType = None
    factory: DatasetFactory | None = None
    table_name: str = attrs.field(default=TABLE, init=False)


@define_facade(_HashDataset)
def hash_dataset(read: _HashDataset) -> dd.Series:
    keys = [] if read.group_key is None else _names(read.group_key)
    subset = None if read.subset is None else _names(read.subset)
    if subset == []:
        raise ValueError("subset names no column to hash; leave it out to hash all columns")
    plan = dataset_read.DatasetRead(
        read.dataset_uuid,
        picklable_store(read.store),
        None if subset is None else list(dict.fromkeys([*subset, *keys])),
        predicates=read.predicates,
        factory=read.factory,
        table_name=read.table_name,
    ).plan()
    counted = list(plan.context.columns or ()) if subset is None else list(subset)
    errors.check_names("group_key: ", "column", keys, plan.context.columns or ())
    if keys:
        return _hashes_by_group(plan, counted, keys)
    tasks, meta = list(enumerate(plan.tasks())), pd.Series(dtype="uint64")
    result: dd.Series = from_map(_hash_task, tasks, "hash_dataset", meta, plan.context, counted)
    return result


def _hash_task(task: tuple[int, ReadTask], context: ReadContext, counted: list[str]) -> pd.Series[int]:
    hashed = kernels.hash_rows(_read_to_hash(context, task[1]), counted)
    return pd.Series([hashed], index=pd.RangeIndex(task[0], task[0] + 1), dtype="uint64")


def _read_to_hash(context: ReadContext, task: ReadTask | None) -> pd.DataFrame:
    """Rows of a task, with integers and booleans of the same types in all tasks, if they have gaps or not."""
    if task is None:
        return read_frame(context, None)
    table = dataset_read.run_read(context, task)
    # as floats and objects, values have other hashes, and keys of groups lose digits
    gaps = [
        field.name
        for field in table.schema
        if (pa.types.is_integer(field.type) or pa.types.is_boolean(field.type))
        and table[field.name].null_count
    ]
    nullable = pandas_conversion.to_pandas(table.select(gaps), dtype_backend="numpy_nullable")
    frame = dataset_read.frame_of_table(context, table)
    return frame.assign(**{name: nullable[name] for name in gaps})


def _hashes_by_group(plan: ReadPlan, counted: list[str], keys: list[str]) -> dd.Series:
    context = plan.context, counted, keys
    job = Job(
        name="hash_dataset",
        description=f"hash dataset {plan.context.uuid}",
        context=context,
        tasks=plan.tasks() or [None],
        run=_hash_groups,
        finish=kernels.merge_hashes,
        merge=kernels.merge_hashes,
        steps=("prepare", "groups", "sum"),
    )
    with dask.config.set({"dataframe.convert-string": False}):
        meta = _hash_groups(context, None)
        result: dd.Series = dd.from_delayed([answer_as_delayed(job)], meta=meta, verify_meta=False)
    return result


def _hash_groups(context: tuple[ReadContext, list[str], list[str]], task: ReadTask | None) -> pd.Series[int]:
    """Hash the groups of one task; the context is the read, the columns to hash, and the group keys."""
    read, counted, keys = context
    return kernels.hash_groups(_read_to_hash(read, task), counted, keys)


# -- shuffles by partition columns and hash buckets: all rows of a key are packed into one compressed value --

#: column of the packed rows
PAYLOAD = "__KTK_PAYLOAD"

# an Arrow type, since dask takes object columns for text
_BINARY = pd.ArrowDtype(pa.large_binary())
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def _names(group_key: str | Iterable[str]) -> list[str]:
    return [group_key] if isinstance(group_key, str) else list(group_key)


def pack_payload(
    df: dd.DataFrame, group_key: str | Iterable[str], types: Mapping[str, pa.DataType] | None = None
) -> dd.DataFrame:
    """Pack all but the key columns of a dask DataFrame into one column of bytes; nothing is computed."""
    keys = _names(group_key)
    meta = pack_payload_pandas(df._meta, keys)
    packed: dd.DataFrame = df.map_partitions(pack_payload_pandas, keys, types, meta=meta)
    return packed


def pack_payload_pandas(
    partition: pd.DataFrame, group_key: str | Iterable[str], types: Mapping[str, pa.DataType] | None = None
) -> pd.DataFrame:
    """Pack all but the key columns: one row per key, in the order of their first rows.

    Columns of other types than the stored ones (`types`) are converted as without a shuffle, where a gap in
    the partition shows that its floats are integers.
    """
    keys, groups = _names(group_key), {}
    if len(partition):
        groups = partition.groupby(keys, sort=False, dropna=False, observed=True).indices
    by_first = {rows[0]: rows for rows in groups.values()}
    first = np.array(sorted(by_first), dtype=np.int64)
    nested = _nested_columns(partition)
    plain = partition.drop(columns=nested)
    untyped = [c for c, dtype in plain.dtypes.items() if pandas_conversion.lacks_categories(dtype)]
    plain = plain.astype(dict.fromkeys(untyped, object))
    # pandas warns of names of several types, and Arrow has texts alone
    plain.columns = pd.Index(list(map(str, plain.columns)))
    table = pa.Table.from_pandas(plain, preserve_index=True)
    # categories with 32-bit codes, so that those of other partitions fit as well
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            wide = pa.dictionary(pa.int32(), field.type.value_type, field.type.ordered)
            table = table.set_column(number, field.with_type(wide), table.column(number).cast(wide))
    table = arrow.append_columns(table, ((name, pa.array(partition[name])) for name in nested))
    table = pandas_conversion.restore_types(table, types or {})
    packed = partition[keys].iloc[first].reset_index(drop=True)
    payload = [_compress(table.take(pa.array(by_first[row]))) for row in first]
    return packed.assign(**{PAYLOAD: pd.Series(payload, index=packed.index, dtype=_BINARY)})


def _compress(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpack_payload(df: dd.DataFrame, unpack_meta: pd.DataFrame) -> dd.DataFrame:
    """Undo :func:`pack_payload`, given a frame without rows; nothing is computed."""
    unpacked: dd.DataFrame = df.map_partitions(unpack_payload_pandas, unpack_meta, meta=unpack_meta)
    return unpacked


def unpack_payload_pandas(partition: pd.DataFrame, unpack_meta: pd.DataFrame) -> pd.DataFrame:
    """Undo :func:`pack_payload_pandas`: rows key by key, with their original row labels.

    Rows of different types are a SchemaConflictError, as without a shuffle.
    """
    tables = [pa.ipc.open_stream(payload).read_all() for payload in partition[PAYLOAD]]
    if not tables:
        return unpack_meta
    tables = _decode_mixed(tables)
    validate_compatible(
        [SchemaWrapper(t.schema.remove_metadata(), "partitions of the DataFrame") for t in tables],
        ignore_pandas=True,
    )
    # a column may have had no values in some tables, or other categories
    table = arrow.concat_promoted(tables).unify_dictionaries()
    nested = _nested_columns(unpack_meta)
    frame: pd.DataFrame = table.drop_columns(nested).to_pandas()
    # pandas makes floats of integers beside nulls
    floats = [str(name) for name, dtype in frame.dtypes.items() if pd.api.types.is_float_dtype(dtype)]
    rounded = [name for name in floats if pa.types.is_integer(table.schema.field(name).type)]
    frame = frame.assign(**{name: pd.arrays.ArrowExtensionArray(table[name]) for name in [*nested, *rounded]})
    return frame[list(map(str, unpack_meta.columns))].set_axis(unpack_meta.columns, axis=1)


def _decode_mixed(tables: list[pa.Table]) -> list[pa.Table]:
    """The tables, without categories in columns that have plain values in others."""
    plain = {f.name for t in tables for f in t.schema if not pa.types.is_dictionary(f.type)}
    decoded = []
    for table in tables:
        for i, field in enumerate(table.schema):
            if field.name in plain and pa.types.is_dictionary(field.type):
                values = table.column(i).cast(field.type.value_type)
                table = table.set_column(i, field.name, values)
        decoded.append(table)
    return decoded


def _nested_columns(frame: pd.DataFrame) -> list[str]:
    """Columns of nested Arrow types, which pandas cannot read from the metadata of a table."""
    return [
        str(name)
        for name, dtype in frame.dtypes.items()
        if isinstance(dtype, pd.ArrowDtype) and pa.types.is_nested(dtype.pyarrow_dtype)
    ]


#: temporary column with the number of the bucket
_KTK_HASH_BUCKET = "__KTK_HASH_BUCKET"


def check_num_buckets(given: Any, *, shuffle: bool) -> int:
    """The number of buckets; raises ValueError for what is none, also where it has no effect."""
    if given is None and not shuffle:  # as in kartothek
        return 1
    if not is_count(given, 1):
        raise ValueError(f"num_buckets must be a positive integer but is {given!r}")
    return int(given)


def shuffle_by_key(
    ddf: dd.DataFrame,
    keys: Sequence[str],
    bucket_by: str | Iterable[str] | None,
    num_buckets: int,
    types: Mapping[str, pa.DataType],
) -> dd.DataFrame:
    """Collect the rows of each key and bucket in one partition; nothing is computed.

    `types` are those of stored columns.
    """
    columns = [bucket_by] if isinstance(bucket_by, str) else list(bucket_by or ddf.columns)
    errors.check_names("Cannot bucket by ", "column", columns, ddf.columns)
    for reserved in {_KTK_HASH_BUCKET, PAYLOAD}.intersection(ddf.columns):
        raise ValueError(f"Column {reserved!r} has a name that the shuffle needs; rename it")
    # partitions of integers and of floats fit a stored column of floats
    stored = {c: t.to_pandas_dtype() for c, t in types.items() if pa.types.is_floating(t)}
    dtypes = {c: stored.get(c, d) if d.kind in "iuf" else d for c, d in ddf._meta.dtypes.items()}
    meta = _number_rows(ddf._meta, dtypes, keys, columns, num_buckets)
    numbered = ddf.map_partitions(_number_rows, dtypes, keys, columns, num_buckets, meta=meta)
    by = [*keys, _KTK_HASH_BUCKET]
    method = dask.config.get("dataframe.shuffle.method", None) or "tasks"
    packed = pack_payload(numbered, by, types).shuffle(on=by, ignore_index=True, shuffle_method=method)
    return unpack_payload(packed, numbered._meta)


def _number_rows(
    df: pd.DataFrame, dtypes: Mapping[Any, Any], keys: Sequence[str], columns: Sequence[str], num_buckets: int
) -> pd.DataFrame:
    """The rows without index, with the number of the bucket, and keys of the same type in all partitions."""
    errors.check_names(
        "A partition of the DataFrame lacks columns of its meta: ", "column", dtypes, df.columns
    )
    ordered = [
        c for c, dtype in df.dtypes.items() if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered
    ]
    # neither an order of the categories nor of the columns is stored; dask takes those of the meta alone
    df = df[[*dtypes, *df.columns.difference([*dtypes], sort=False)]].reset_index(drop=True)
    for name in ordered:
        df[name] = df[name].cat.as_unordered()
    # equal values of other types have other hashes: 1 and 1.0, or one time in two units
    hashed, keyed = df.copy(deep=False), df.copy(deep=False)
    for name in (c for c in {*keys, *columns} if df[c].dtype != dtypes[c]):
        hashed[name] = _cast_like(df[name], dtypes[name])
        if name in keys:
            keyed[name] = hashed[name]
    numbers = _hash_bucket(hashed, columns, num_buckets)[_KTK_HASH_BUCKET]
    return keyed.assign(**{_KTK_HASH_BUCKET: numbers})


def _cast_like(column: pd.Series[Any], dtype: Any) -> pd.Series[Any]:
    """The values of a partition with the type of the meta or the stored column."""
    if isinstance(dtype, pd.CategoricalDtype):
        return column
    is_null = column.isna()
    try:
        # integers beside nulls; their hashes are those of the type without nulls
        nullable: Any = "Int64" if pd.api.types.is_integer_dtype(dtype) and is_null.any() else dtype
        cast: pd.Series[Any] = column.astype(nullable)
        if (is_null | (cast == column)).all():
            return cast
    except (TypeError, ValueError):
        pass  # the error below names the column
    raise errors.SchemaConflictError(
        f"Column {column.name!r} is {column.dtype} in a partition of the DataFrame but {dtype} in its meta,"
        " and some of the values do not fit; convert it with astype, or correct the meta"
    )


def _hash_bucket(df: pd.DataFrame, subset: Sequence[str] | None, num_buckets: int) -> pd.DataFrame:
    """The frame with the number of the bucket of each row."""
    rows = df[list(subset)] if subset else df
    try:
        hashes = pd.util.hash_pandas_object(rows, index=False).to_numpy()
    except TypeError:
        texts = rows.assign(**{str(name): _nested_as_text(column) for name, column in rows.items()})
        hashes = pd.util.hash_pandas_object(texts, index=False).to_numpy()
    return df.assign(**{_KTK_HASH_BUCKET: (hashes % num_buckets).astype(np.min_scalar_type(num_buckets - 1))})


def _nested_as_text(column: pd.Series) -> pd.Series:
    """Replace lists and dicts, which pandas cannot hash; missing values have one hash in all partitions."""
    try:
        pd.util.hash_pandas_object(column, index=False)
    except TypeError:
        return column.map(repr, na_action="ignore")
    return column


def buckets(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each bucket of a partition of :func:`shuffle_by_key`, without the bucket column."""
    parts = [rows for _, rows in frame.groupby(_KTK_HASH_BUCKET, sort=True)] or [frame]
    return [rows.drop(columns=_KTK_HASH_BUCKET) for rows in parts]


# -- DataFrames of tasks -------------------------------------------------------------------------------------


Pandas = TypeVar("Pandas", pd.DataFrame, "pd.Series[int]")


def from_map(
    function: Callable[..., Pandas],
    items: Sequence[object],
    label: str,
    meta: Pandas,
    *args: object,
    divisions: tuple[Hashable, ...] | None = None,
) -> Any:
    """A dask collection of ``function(item, *args)`` per item; without items of the meta."""
    if not items:
        function, items, args = copy, [meta], ()
    options = {"args": list(args), "meta": meta, "label": label, "divisions": divisions}
    # dask would turn all objects, such as dates, bytes and lists, into text
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(function, OpaqueSequence(items), **options)


class OpaqueSequence(UserList[object]):
    """A list that dask does not look into to tokenize it."""

    def __init__(self, items: Iterable[object]) -> None:
        super().__init__(items)
        self._token = uuid.uuid4().hex

    def __dask_tokenize__(self) -> str:
        return self._token


# -- façades -------------------------------------------------------------------------------------------------


_SHUFFLE = """
    Parameters of the façade.

    Parameters
    ----------
    ddf
        A dask DataFrame; its index is not stored.{}
    shuffle
        Whether the rows of each partition key are first collected into few files.
    repartition_ratio
        So many partitions of the input become one, before anything else.
    num_buckets
        With ``shuffle``, the largest number of files of a partition key.
    bucket_by
        With ``shuffle``, the columns by whose values rows are put into files; all by default.
"""


@attrs.frozen
class _StoreDataset(StoreDataset):
    __doc__ = _SHUFFLE.format("")

    ddf: dd.DataFrame
    store: StoreInput
    dataset_uuid: str | None
    table: str = SINGLE_TABLE
    secondary_indices: Names = None
    shuffle: bool = False
    repartition_ratio: float | None = None
    num_buckets: int | None = 1
    sort_partitions_by: Names = None
    metadata: MetadataInput = None
    df_serializer: DataFrameSerializer | None = None
    metadata_merger: MetadataMerger | None = None
    metadata_version: int = DEFAULT_METADATA_VERSION
    partition_on: Names = None
    bucket_by: str | Sequence[str] | None = None
    overwrite: bool = False
    table_name: str = attrs.field(default=TABLE, init=False)
    metadata_storage_format: str = attrs.field(default=DEFAULT_METADATA_STORAGE_FORMAT, init=False)


@attrs.frozen
class _UpdateDataset(UpdateDataset):
    __doc__ = _SHUFFLE.format(" None to only remove partitions.")

    ddf: dd.DataFrame | None
    store: StoreInput | None = None
    dataset_uuid: str | None = None
    table: str = SINGLE_TABLE
    secondary_indices: Names = None
    shuffle: bool = False
    repartition_ratio: float | None = None
    num_buckets: int | None = 1
    sort_partitions_by: Names = None
    delete_scope: DeleteScopeInput = None
    metadata: MetadataInput = None
    df_serializer: DataFrameSerializer | None = None
    metadata_merger: MetadataMerger | None = None
    default_metadata_version: int = DEFAULT_METADATA_VERSION
    partition_on: Names = None
    factory: DatasetFactory | None = None
    bucket_by: str | Sequence[str] | None = None
    table_name: str = attrs.field(default=TABLE, init=False)


_CONVERT = "data = dd.from_pandas(pd.concat(data), npartitions=1)"
_EXAMPLE = Example(("import dask.dataframe as dd", _CONVERT), SYNC)


@define_facade(_StoreDataset, example=_EXAMPLE)
def store_dataset_from_ddf(store: _StoreDataset) -> Delayed:
    """Store a new dataset.

    One task writes each partition of ``ddf``, the last one commits the dataset; arguments are checked when
    the graph is built.
    """
    return _write(store)


@define_facade(_UpdateDataset, example=_EXAMPLE)
def update_dataset_from_ddf(update: _UpdateDataset) -> Delayed:
    """Remove partitions and add others, in one step. A dataset that does not exist is created.

    One task writes each partition of ``ddf``, the last one commits the dataset; arguments are checked when
    the graph is built. ``delete_scope`` may be a Delayed. A ``table`` that the dataset does not have is a
    TypeError.
    """
    dataset = _find_dataset(update)
    return _write(attrs.evolve(update, dataset_uuid=None, store=None, factory=dataset))


@attrs.frozen
class _ReadTable(dataset_read.ReadTable):
    """Parameters of the façade.

    Parameters
    ----------
    dask_index_on
        Indexed column that becomes the index: one partition per value, with known divisions. Rows without a
        value in this column are left out.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.dask.dataframe import read_dataset_as_ddf
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> weather = pd.DataFrame({"DAY": [1, 2, 1], "AVG_TEMP": [6, 5, 7]})
    >>> _ = store_dataframes_as_dataset(store, "weather", [weather], partition_on="DAY")
    >>> ddf = read_dataset_as_ddf("weather", store, dask_index_on="DAY")
    >>> ddf.loc[1]["AVG_TEMP"].compute(scheduler="sync").tolist()
    [6, 7]
    """

    table: str = SINGLE_TABLE
    columns: list[str] | None = None
    predicate_pushdown_to_io: bool = True
    categoricals: list[str] | None = None
    dates_as_object: bool = True
    predicates: PredicatesType = None
    factory: DatasetFactory | None = None
    dask_index_on: str | None = None
    dispatch_by: str | Sequence[str] | None = None
    table_name: str | None = attrs.field(default=TABLE, init=False)

    @property
    def dispatch_argument(self) -> str:
        return "dispatch_by" if self.dask_index_on is None else "dask_index_on"


@define_facade(_ReadTable, returns="One partition for each of the dataset, or for each group.")
def read_dataset_as_ddf(read: _ReadTable) -> dd.DataFrame:
    """Read a dataset as a dask DataFrame.

    The read is planned when the graph is built, and only columns that dask needs are read. Partitions may
    have narrower types if the header has none; dates outside of ``datetime64[ns]`` are objects if there
    are several partitions. Integers are floats in partitions with gaps, beside which dask rounds those beyond
    2**53 of other partitions; with ``dtype_backend``, all partitions have one type.
    """
    index, columns, read = read.dask_index_on, read.columns, with_stores(read, picklable_store)
    if index is not None:
        if not isinstance(index, str):
            raise TypeError(f"dask_index_on must be the name of a column but is a {type(index).__name__}")
        if normalize_arg("dispatch_by", read.dispatch_by):
            reason = "a partition has one value of the index"
            raise ValueError(f"dask_index_on and dispatch_by cannot be used together: {reason}")
        if isinstance(columns, list) and index not in columns:
            columns = [*columns, index]
        read = attrs.evolve(read, columns=columns, dispatch_by=[index])
    plan = read.plan(same_categories=True)
    tasks, meta = plan.tasks(), _meta(plan.context, index)
    divisions = None if index is None else _divisions(tasks, meta)
    arguments = plan.context, index, len(tasks) < 2
    result: dd.DataFrame = from_map(_read, tasks, "read_dataset", meta, *arguments, divisions=divisions)
    return result
