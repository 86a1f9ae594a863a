"""Files that Arrow's threads read are in memory of Arrow, or a thread may abort the process at its exit."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartothek_cube.core.arrow import copy_to_arrow_memory
from kartothek_cube.core.index import IndexColumns, parse_index, render_index
from kartothek_cube.serialization.parquet import read_parquet

INDEX = render_index("CITY", IndexColumns.from_pairs(pa.array(["Rom", "Bonn"]), ["a1", "a2"]))


@pytest.mark.parametrize(
    "read",
    [
        lambda content: parse_index(content, "CITY", "key"),
        lambda content: read_parquet(content, "key"),
        lambda content: read_parquet(content, "key", row_index=True),
    ],
)
def test_threads_of_arrow_do_not_hold_memory_of_python(monkeypatch, read):
    """A thread that released it while the interpreter exits ended the process with SIGABRT."""
    original, addresses = pq.ParquetFile, []

    def open_file(source, **options):
        position = source.tell()
        source.seek(0)
        addresses.append(source.read_buffer(8).address)
        source.seek(position)
        return original(source, **options)

    monkeypatch.setattr(pq, "ParquetFile", open_file)
    read(INDEX)
    assert addresses
    assert pa.py_buffer(INDEX).address not in addresses


@pytest.mark.parametrize("content", [b"", b"abc", bytearray(b"abc"), memoryview(b"xabcx")[1:4]])
def test_copy_to_arrow_memory(content):
    assert copy_to_arrow_memory(content).to_pybytes() == bytes(content)
