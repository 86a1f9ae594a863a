"""The footers of Parquet files in a store: sizes and types without the data."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.store import BlobStore

__all__ = ("read_footer",)


def read_footer(blobs: BlobStore, key: str) -> tuple[pq.FileMetaData, int]:
    """
    Read the footer of a data file, and nothing else of it.

    Parameters
    ----------
    blobs
        Store.
    key
        Key of the file.

    Returns
    -------
    pyarrow.parquet.FileMetaData
    int
        Size of the file in bytes.

    Raises
    ------
    MissingFileError
        There is no such file.
    CorruptDatasetError
        The file is no Parquet file, or damaged.

    Examples
    --------
    >>> from kartothek_cube.core.store import open_blobs
    >>> blobs = open_blobs("hmemory://")
    >>> _ = blobs.put("sales/table/1.parquet", b"PAR1")
    >>> read_footer(blobs, "sales/table/1.parquet")
    Traceback (most recent call last):
      ...
    kartothek_cube.core.errors.CorruptDatasetError: Corrupt object 'sales/table/1.parquet': ...
    """
    try:
        file = blobs.open_read(key)
    except KeyError as error:
        raise MissingFileError(key) from error
    with file:
        try:
            footer = pq.read_metadata(pa.PythonFile(file, mode="r"))
        except (pa.ArrowException, OSError) as error:
            if _is_of_the_store(error):
                raise
            raise CorruptDatasetError(key, f"its footer is not readable: {error}") from error
        return footer, file.seek(0, io.SEEK_END)


def _is_of_the_store(error: Exception) -> bool:
    """Whether a read failed, not the parser, which raises naked OSErrors."""
    return isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None)
