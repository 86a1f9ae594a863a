"""Footers of Parquet files in a store: sizes and types without data."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.store import BlobStore

__all__ = ("read_footer",)


def read_footer(blobs: BlobStore, key: str) -> tuple[pq.FileMetaData, int]:
    """Footer and size of a data file; raises MissingFileError or CorruptDatasetError."""
    try:
        file = blobs.open_read(key)
    except KeyError as error:
        raise MissingFileError(key) from error
    with file:
        try:
            footer = pq.read_metadata(pa.PythonFile(file, mode="r"))
        except (pa.ArrowException, OSError) as error:
            if _is_store_error(error):
                raise
            raise CorruptDatasetError(key, f"its footer is not readable: {error}") from error
        return footer, file.seek(0, io.SEEK_END)


def _is_store_error(error: Exception) -> bool:
    """Whether the store failed, not the parser, which raises OSErrors without errno."""
    return isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None)
