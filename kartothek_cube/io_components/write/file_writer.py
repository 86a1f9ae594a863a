"""Write the files of one table: a slice of its rows for each partition, several at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import to_pandas
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.runtime.progress import progress_add_total, progress_advance
from kartothek_cube.io_components.runtime.threads import (
    REMOTE_REQUESTS,
    available_cores,
    batched,
    ordered_map,
)
from kartothek_cube.serialization import DataFrameSerializer, ParquetSerializer

__all__ = ("write_files",)


#: limits of the task of a thread
_BYTES_AT_A_TIME, _FILES_AT_A_TIME = 1 << 18, 64
#: smaller files are built in memory and written by one request
_SMALL = 1 << 22
#: a smaller file takes one block of a disk, however it is compressed
_TINY = 1 << 12
#: from this number of tiny files on the set-up of ZSTD matters: it doubles the time to write or read them
_MANY = 256


class _FileSlice(NamedTuple):
    """A row range, and the key of its file."""

    key: str
    start: int
    stop: int


def write_files(
    blobs: BlobStore,
    serializer: DataFrameSerializer,
    table: pa.Table,
    starts: Ints,
    keys: pa.StringArray,
    threads: int | None = None,
) -> pa.StringArray:
    """Write each slice of a table, from one start to the next, as a file; return the keys."""
    stops = np.append(starts[1:], len(table))
    slices = list(map(_FileSlice, keys.to_pylist(), starts.tolist(), stops.tolist()))
    progress_add_total(len(slices))
    if isinstance(serializer, ParquetSerializer):
        table = serializer.storable(table)
        plain = _uncompressed_serializer(serializer, len(slices))
        work = partial(_write_parquet, blobs, serializer, plain, _slice_metadata(table), table)
    else:
        work = partial(_write_other, blobs, serializer, table)
    size = _slices_per_task(len(slices), table.nbytes) if blobs.is_local else 1
    if threads is None:
        threads = available_cores() if blobs.is_local else REMOTE_REQUESTS
    written = list(chain.from_iterable(ordered_map(work, batched(slices, size), threads)))
    return pa.array(written, pa.string())


def _slices_per_task(slices: int, nbytes: int) -> int:
    """Number of slices that a thread writes in one task."""
    # to hand a task to a thread costs as much as to write a small file
    return max(1, min(_FILES_AT_A_TIME, _BYTES_AT_A_TIME * slices // max(nbytes, 1)))


def _write_parquet(
    blobs: BlobStore,
    serializer: ParquetSerializer,
    plain: ParquetSerializer,
    with_length: Callable[[int], pa.Table],
    table: pa.Table,
    slices: Sequence[_FileSlice],
) -> list[str]:
    width = table.nbytes / max(len(table), 1)
    for key, start, stop in slices:
        rows = with_length(stop - start).slice(start, stop - start)
        size = width * len(rows)
        if size < _SMALL:
            buffer = pa.BufferOutputStream()
            (plain if size < _TINY else serializer).write_storable(rows, buffer)
            content = buffer.getvalue()
            blobs.put(key, content)
            progress_advance(content.size)
        else:
            with blobs.open_write(key) as sink:
                serializer.write_storable(rows, sink)
                progress_advance(partial(_size, sink))
    return [file_slice.key for file_slice in slices]


def _uncompressed_serializer(serializer: ParquetSerializer, files: int) -> ParquetSerializer:
    """The serializer of tiny files: without compression if there are many and it is ZSTD."""
    if files < _MANY or serializer.compression.upper() != "ZSTD":
        return serializer
    return ParquetSerializer("NONE", serializer.chunk_size)


def _slice_metadata(table: pa.Table) -> Callable[[int], pa.Table]:
    """Function of a row count: the table with the pandas metadata that a slice of that length has."""
    meta = json.loads(table.schema.metadata[b"pandas"])
    names = set(table.column_names)
    meta["columns"] = [c for c in meta.get("columns", []) if c.get("field_name") in names]
    if meta.get("index_columns"):
        return lambda rows: table
    meta["index_columns"] = [{"kind": "range", "name": None, "start": 0, "step": 1, "stop": "@"}]
    head, tail = json.dumps(meta, sort_keys=True).split('"@"')

    @lru_cache(maxsize=_FILES_AT_A_TIME)
    def with_length(rows: int) -> pa.Table:
        return table.replace_schema_metadata({b"pandas": f"{head}{rows}{tail}".encode()})

    return with_length


def _size(sink: str | BinaryIO) -> int:
    return os.path.getsize(sink) if isinstance(sink, str) else sink.tell()


def _write_other(
    blobs: BlobStore, serializer: DataFrameSerializer, table: pa.Table, slices: Sequence[_FileSlice]
) -> list[str]:
    keys = []
    for key, start, stop in slices:
        rows = table.slice(start, stop - start)
        frame = to_pandas(rows, dates_as_object=True)
        keys.append(serializer.store(blobs.store, key.removesuffix(PARQUET_FILE_SUFFIX), frame))
        progress_advance(rows.nbytes)
    return keys
