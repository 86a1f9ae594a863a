"""The files of one table: its pieces, each in the file of a partition, several at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import to_pandas
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.runtime.threads import (
    REMOTE_REQUESTS,
    available_cores,
    batched,
    ordered_map,
    progress_add_total,
    progress_advance,
)
from kartothek_cube.serialization import DataFrameSerializer, ParquetSerializer

__all__ = ("write_files",)

Ints = npt.NDArray[np.int64]

#: what a thread should have to do at a time: so many bytes, and so many files
_BYTES_AT_A_TIME, _FILES_AT_A_TIME = 1 << 18, 64
#: smaller files are made in memory, and written in one go
_SMALL = 1 << 22
#: with less in it, no compression makes a file take less of a disk
_TINY = 1 << 12
#: from so many tiny files on, it counts that ZSTD is slow to start: it doubles the time they take
_MANY = 256


class _FileSlice(NamedTuple):
    """Some rows, and the key of their file."""

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
    """
    Write the pieces of a table.

    Where a table makes hundreds of files, those of a few rows are not compressed by ZSTD: setting it up costs
    more than all the rest of writing or reading such a file, and saves nothing.

    Parameters
    ----------
    blobs
        Store.
    serializer
        Writes the files.
    table
        Rows.
    starts
        Position of the first row of each piece.
    keys
        Keys of the files.
    threads
        How many files to write at once; by default as many as pays.

    Returns
    -------
    pyarrow.StringArray
        Keys of what was written; serializers that are not for Parquet choose other ones.
    """
    stops = np.append(starts[1:], len(table))
    pieces = list(map(_FileSlice, keys.to_pylist(), starts.tolist(), stops.tolist()))
    progress_add_total(len(pieces))
    if isinstance(serializer, ParquetSerializer):
        table = serializer.storable(table)
        plain = _uncompressed_serializer(serializer, len(pieces))
        work = partial(_write_parquet, blobs, serializer, plain, _described(table), table)
    else:
        work = partial(_write_other, blobs, serializer, table)
    size = _pieces_at_a_time(len(pieces), table.nbytes) if blobs.is_local else 1
    if threads is None:
        threads = available_cores() if blobs.is_local else REMOTE_REQUESTS
    written = list(chain.from_iterable(ordered_map(work, batched(pieces, size), threads)))
    return pa.array(written, pa.string())


def _pieces_at_a_time(pieces: int, nbytes: int) -> int:
    """How many pieces a thread writes in one turn: taking turns costs as much as writing a small file."""
    return max(1, min(_FILES_AT_A_TIME, _BYTES_AT_A_TIME * pieces // max(nbytes, 1)))


def _write_parquet(
    blobs: BlobStore,
    serializer: ParquetSerializer,
    plain: ParquetSerializer,
    with_length: Callable[[int], pa.Table],
    table: pa.Table,
    pieces: Sequence[_FileSlice],
) -> list[str]:
    width = table.nbytes / max(len(table), 1)
    for key, start, stop in pieces:
        part = with_length(stop - start).slice(start, stop - start)
        size = width * len(part)
        if size < _SMALL:
            buffer = pa.BufferOutputStream()
            (plain if size < _TINY else serializer).write_storable(part, buffer)
            content = buffer.getvalue()
            blobs.put(key, content)
            progress_advance(content.size)
        else:
            with blobs.open_write(key) as sink:
                serializer.write_storable(part, sink)
                progress_advance(partial(_size, sink))
    return [piece.key for piece in pieces]


def _uncompressed_serializer(serializer: ParquetSerializer, files: int) -> ParquetSerializer:
    """How to write files of a few rows: many of them without compression, if that is ZSTD."""
    if files < _MANY or serializer.compression.upper() != "ZSTD":
        return serializer
    return ParquetSerializer("NONE", serializer.chunk_size)


def _described(table: pa.Table) -> Callable[[int], pa.Table]:
    """The table with the pandas metadata that a slice of so many rows has: its own index, or a fresh one."""
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
    blobs: BlobStore, serializer: DataFrameSerializer, table: pa.Table, pieces: Sequence[_FileSlice]
) -> list[str]:
    written = []
    for key, start, stop in pieces:
        part = table.slice(start, stop - start)
        frame = to_pandas(part, dates_as_object=True)
        written.append(serializer.store(blobs.store, key.removesuffix(PARQUET_FILE_SUFFIX), frame))
        progress_advance(part.nbytes)
    return written
