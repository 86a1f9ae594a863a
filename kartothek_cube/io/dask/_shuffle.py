"""Shuffling a dask DataFrame by partition columns and hash buckets, so that equal keys meet in few files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

from kartothek_cube.core.errors import unknown_names
from kartothek_cube.io.dask.compression import pack_payload, unpack_payload

__all__ = ("buckets", "shuffle_by_key")

#: temporary column with the number of the bucket
_KTK_HASH_BUCKET = "__KTK_HASH_BUCKET"


def shuffle_by_key(
    ddf: dd.DataFrame, keys: Sequence[str], bucket_by: str | Iterable[str] | None, num_buckets: int | None
) -> dd.DataFrame:
    """Collect the rows of each key and bucket in one partition; nothing is computed."""
    if not isinstance(num_buckets, int) or isinstance(num_buckets, bool) or num_buckets < 1:
        raise ValueError(f"num_buckets must be a positive integer but is {num_buckets!r}")
    columns = [bucket_by] if isinstance(bucket_by, str) else list(bucket_by or ddf.columns)
    unknown = set(columns) - set(ddf.columns)
    if unknown:
        raise ValueError(f"Cannot bucket by {unknown_names('column', unknown, ddf.columns)}")
    arguments = (columns, num_buckets)
    numbered = ddf.map_partitions(_hash_bucket, *arguments, meta=_hash_bucket(ddf._meta, *arguments))
    by = [*keys, _KTK_HASH_BUCKET]
    method = dask.config.get("dataframe.shuffle.method", None) or "tasks"
    packed = pack_payload(numbered, by).shuffle(on=by, ignore_index=True, shuffle_method=method)
    return unpack_payload(packed, numbered._meta)


def _hash_bucket(df: pd.DataFrame, subset: Sequence[str] | None, num_buckets: int) -> pd.DataFrame:
    """The frame with the number of the bucket of each row."""
    rows = df[list(subset)] if subset else df
    hashes = pd.util.hash_pandas_object(rows, index=False).to_numpy()
    return df.assign(**{_KTK_HASH_BUCKET: (hashes % num_buckets).astype(np.min_scalar_type(num_buckets - 1))})


def buckets(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each bucket of a partition of :func:`shuffle_by_key`, without the bucket column."""
    if _KTK_HASH_BUCKET not in frame:
        return [frame]
    parts = [rows.drop(columns=_KTK_HASH_BUCKET) for _, rows in frame.groupby(_KTK_HASH_BUCKET, sort=True)]
    return parts or [frame.drop(columns=_KTK_HASH_BUCKET)]
