"""Shuffles by partition columns and hash buckets: all rows of a key are packed into one compressed value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow import append_columns, concat_promoted
from kartothek_cube.core.errors import check_names

#: column of the packed rows
PAYLOAD = "__KTK_PAYLOAD"

# an Arrow type, since dask takes object columns for text
_BINARY = pd.ArrowDtype(pa.large_binary())
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def _names(group_key: str | Iterable[str]) -> list[str]:
    return [group_key] if isinstance(group_key, str) else list(group_key)


def pack_payload(df: dd.DataFrame, group_key: str | Iterable[str]) -> dd.DataFrame:
    """Pack all but the key columns of a dask DataFrame into one column of bytes; nothing is computed."""
    keys = _names(group_key)
    packed: dd.DataFrame = df.map_partitions(
        pack_payload_pandas, keys, meta=pack_payload_pandas(df._meta, keys)
    )
    return packed


def pack_payload_pandas(partition: pd.DataFrame, group_key: str | Iterable[str]) -> pd.DataFrame:
    """Pack all but the key columns: one row per key, in the order of their first rows."""
    keys = _names(group_key)
    groups = (
        partition.groupby(keys, sort=False, dropna=False, observed=True).indices if len(partition) else {}
    )
    first = np.array(sorted(rows[0] for rows in groups.values()), dtype=np.int64)
    by_first = {rows[0]: rows for rows in groups.values()}
    nested = _nested_columns(partition)
    table = _wide_codes(pa.Table.from_pandas(partition.drop(columns=nested), preserve_index=True))
    table = append_columns(table, ((name, pa.array(partition[name])) for name in nested))
    packed = partition[keys].iloc[first].reset_index(drop=True)
    payload = [_compress(table.take(pa.array(by_first[row]))) for row in first]
    return packed.assign(**{PAYLOAD: pd.Series(payload, index=packed.index, dtype=_BINARY)})


def _wide_codes(table: pa.Table) -> pa.Table:
    """Categories with 32-bit codes, so that those of other partitions fit as well."""
    fields = [
        field.with_type(pa.dictionary(pa.int32(), field.type.value_type, field.type.ordered))
        if pa.types.is_dictionary(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields, metadata=table.schema.metadata))


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
    """Undo :func:`pack_payload_pandas`: rows key by key, with their original row labels."""
    tables = [_decompress(payload) for payload in partition[PAYLOAD]]
    if not tables:
        return unpack_meta
    table = _concat(tables)
    nested = _nested_columns(unpack_meta)
    frame: pd.DataFrame = table.drop_columns(nested).to_pandas()
    arrays = {name: pd.arrays.ArrowExtensionArray(table[name]) for name in nested}
    return frame.assign(**arrays)[list(unpack_meta.columns)]


def _nested_columns(frame: pd.DataFrame) -> list[str]:
    """Columns of nested Arrow types, which pandas cannot read from the metadata of a table."""
    return [
        str(name)
        for name, dtype in frame.dtypes.items()
        if isinstance(dtype, pd.ArrowDtype) and pa.types.is_nested(dtype.pyarrow_dtype)
    ]


def _decompress(payload: bytes) -> pa.Table:
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_all()


def _concat(tables: list[pa.Table]) -> pa.Table:
    """All rows; a column may have had no values in some tables, or other categories."""
    return concat_promoted(tables).unify_dictionaries()


# -- shuffle ------------------------------------------------------------------------------------------------


#: temporary column with the number of the bucket
_KTK_HASH_BUCKET = "__KTK_HASH_BUCKET"


def shuffle_by_key(
    ddf: dd.DataFrame, keys: Sequence[str], bucket_by: str | Iterable[str] | None, num_buckets: int | None
) -> dd.DataFrame:
    """Collect the rows of each key and bucket in one partition; nothing is computed."""
    if not isinstance(num_buckets, int) or isinstance(num_buckets, bool) or num_buckets < 1:
        raise ValueError(f"num_buckets must be a positive integer but is {num_buckets!r}")
    columns = [bucket_by] if isinstance(bucket_by, str) else list(bucket_by or ddf.columns)
    check_names("Cannot bucket by ", "column", columns, ddf.columns)
    arguments = (columns, num_buckets)
    numbered = ddf.map_partitions(_hash_bucket, *arguments, meta=_hash_bucket(ddf._meta, *arguments))
    by = [*keys, _KTK_HASH_BUCKET]
    method = dask.config.get("dataframe.shuffle.method", None) or "tasks"
    packed = pack_payload(numbered, by).shuffle(on=by, ignore_index=True, shuffle_method=method)
    return unpack_payload(packed, numbered._meta)


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
    if _KTK_HASH_BUCKET not in frame:
        return [frame]
    parts = [rows.drop(columns=_KTK_HASH_BUCKET) for _, rows in frame.groupby(_KTK_HASH_BUCKET, sort=True)]
    return parts or [frame.drop(columns=_KTK_HASH_BUCKET)]
