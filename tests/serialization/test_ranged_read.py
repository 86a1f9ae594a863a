"""Of files behind a network, only what is needed is fetched, in few requests."""

from __future__ import annotations

import datetime
import random

import numpy as np
import pyarrow as pa
import pytest

from kartothek_cube.core import caching
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.read.data_files import read_table_of_file
from kartothek_cube.serialization import ParquetSerializer, fetch
from tests.support.object_server import running

ROWS = 5_000


@pytest.fixture(scope="module")
def server():
    with running() as server:
        yield server


@pytest.fixture
def blobs(server):
    caching.clear()
    server.requests.clear()
    return open_blobs(server.url())


def table(columns: int = 40) -> pa.Table:
    values = np.random.default_rng(0).random((columns, ROWS))
    wide = {f"v{number}": values[number] for number in range(columns)}
    text = [f"text {number % 700}" for number in range(ROWS)]
    day = [datetime.date(2020, 1, 1 + number % 28) for number in range(ROWS)]
    null = pa.nulls(ROWS, pa.int64())
    nested = [[number] * (number % 3) for number in range(ROWS)]
    return pa.table(
        {"x": range(ROWS), **wide, "text": text, "day": day, "null": null, "list": nested, "ä b": text}
    )


def stored(blobs, data: pa.Table, **options) -> bytes:
    sink = pa.BufferOutputStream()
    ParquetSerializer(**options).write_table(data, sink)
    content = sink.getvalue().to_pybytes()
    blobs.put("f.parquet", content)
    return content


def ranges(server) -> list[str]:
    return [request.headers.get("range", "all") for request in server.requests if request.method == "GET"]


@pytest.mark.parametrize("chunk_size", [None, 1_000])
@pytest.mark.parametrize("compression", ["SNAPPY", "NONE"])
@pytest.mark.parametrize(
    "columns",
    [["x"], ["v0", "v39"], ["v3", "v4", "v5", "v6"], ["text", "x"], ["day", "null"], ["ä b"], []],
    ids=lambda columns: "-".join(columns) or "none",
)
def test_columns_in_two_requests(server, blobs, columns, chunk_size, compression):
    content = stored(blobs, table(), chunk_size=chunk_size, compression=compression)
    assert len(content) > 1_000_000
    found = read_table_of_file(blobs, "f.parquet", columns)
    assert found.equals(ParquetSerializer.read_table(content, columns))
    assert len(ranges(server)) <= 2
    assert "all" not in ranges(server)


@pytest.mark.parametrize(
    "predicates, columns", [([[("x", "<", 30)]], ["v1"]), ([[("text", "==", "text 7")]], ["x"])]
)
def test_columns_of_predicates_are_fetched(server, blobs, predicates, columns):
    content = stored(blobs, table())
    found = read_table_of_file(blobs, "f.parquet", columns, predicates)
    assert found.equals(ParquetSerializer.read_table(content, columns, predicates))
    assert len(ranges(server)) <= 2


@pytest.mark.parametrize("columns", [None, ["list"], ["x", "list"]])
def test_all_or_nested_columns_come_with_the_whole_file(server, blobs, columns):
    content = stored(blobs, table())
    found = read_table_of_file(blobs, "f.parquet", columns)
    assert found.equals(ParquetSerializer.read_table(content, columns))
    assert ranges(server)[-1] == "all"
    assert len(ranges(server)) == (1 if columns is None else 2)


def test_small_file_in_one_request(server, blobs):
    content = stored(blobs, table().slice(0, 100))
    found = read_table_of_file(blobs, "f.parquet", ["x"])
    assert found.equals(ParquetSerializer.read_table(content, ["x"]))
    assert len(ranges(server)) == 1


def test_distant_columns_of_a_large_file_are_read_separately(server, blobs):
    rows = 700_000
    values = np.random.default_rng(0).random((3, rows))
    stored(blobs, pa.table({"a": values[0], "b": values[1], "c": values[2]}), compression="NONE")
    read_table_of_file(blobs, "f.parquet", ["a", "c"])
    assert len(ranges(server)) == 3
    first, last = (int(part) for part in ranges(server)[1].removeprefix("bytes=").split("-"))
    assert last - first < 8 * rows + 10_000


def test_long_footer_costs_the_whole_file(server, blobs):
    data = pa.table({f"a rather long name of a column, number {n}": range(600) for n in range(600)})
    content = stored(blobs, data)
    column = data.column_names[7]
    found = read_table_of_file(blobs, "f.parquet", [column])
    assert found.equals(ParquetSerializer.read_table(content, [column]))
    assert len(ranges(server)) <= 2


def test_second_read_needs_one_request(server, blobs):
    content = stored(blobs, table())
    read_table_of_file(blobs, "f.parquet", ["x"])
    server.requests.clear()
    found = read_table_of_file(blobs, "f.parquet", ["v3", "day"])
    assert found.equals(ParquetSerializer.read_table(content, ["v3", "day"]))
    assert len(ranges(server)) == 1


@pytest.mark.parametrize("rows", [ROWS, ROWS - 1, 10], ids=["same length", "shorter", "small"])
def test_replaced_file_is_read_anew(server, blobs, rows):
    """Other programs may write other content under a name that we have read before."""
    stored(blobs, table())
    read_table_of_file(blobs, "f.parquet", ["x", "v1"])
    content = stored(blobs, table().take(list(reversed(range(rows)))))
    for columns in (["x", "v1"], ["v39"], ["text"]):
        found = read_table_of_file(blobs, "f.parquet", columns)
        assert found.equals(ParquetSerializer.read_table(content, columns))


def test_deleted_file_is_missing_although_its_footer_is_cached(server, blobs):
    stored(blobs, table())
    read_table_of_file(blobs, "f.parquet", ["x"])
    blobs.delete(["f.parquet"])
    for columns in (["x"], []):
        with pytest.raises(MissingFileError, match=r"f\.parquet"):
            read_table_of_file(blobs, "f.parquet", columns)


def test_unknown_column_is_named(blobs):
    stored(blobs, table())
    with pytest.raises(ValueError, match="unknown column v1000"):
        read_table_of_file(blobs, "f.parquet", ["v1000"])


def test_missing_file(blobs):
    with pytest.raises(MissingFileError, match=r"missing\.parquet"):
        read_table_of_file(blobs, "missing.parquet", ["x"])


def test_what_looks_like_a_footer_within_a_footer(server, blobs):
    """Statistics with a copy of the entry of another column mislead us; the file is read all the same."""
    data = table(30)
    content = stored(blobs, data)
    footer = content[-int.from_bytes(content[-8:-4], "little") - 8 :]
    start = footer.index(b"\x19\x18\x01x\x15")
    entry = footer[start : start + 40].decode("latin-1").encode()
    bait = data.append_column("bait", pa.array([entry] * ROWS, pa.binary()))
    content = stored(blobs, bait)
    for columns in (["x"], ["x", "v1"], ["bait"]):
        assert read_table_of_file(blobs, "f.parquet", columns).equals(
            ParquetSerializer.read_table(content, columns)
        )


@pytest.mark.parametrize("seed", range(40))
def test_broken_files_are_read_as_if_they_were_local(blobs, seed):
    """The same table, or the same kind of error, as from the whole content."""
    content = bytearray(stored(blobs, table(30)))
    source = random.Random(seed)
    for _ in range(source.choice([1, 3])):
        content[source.randrange(len(content) - 20_000, len(content))] = source.randrange(256)
    blobs.put("f.parquet", bytes(content))
    columns = ["x", "v3", "text"]
    assert outcome(lambda: read_table_of_file(blobs, "f.parquet", columns)) == outcome(
        lambda: ParquetSerializer.read_table(bytes(content), columns)
    )


def outcome(read):
    try:
        return read().to_pydict()
    except (CorruptDatasetError, ValueError) as error:
        return type(error)


def test_what_is_left_out_takes_no_memory(blobs):
    content = stored(blobs, table(80))
    buffer = fetch(blobs, "f.parquet", ["x"])
    assert len(buffer) == len(content)
    assert bytes(buffer)[100_000:-200_000].count(0) > 0.9 * (len(content) - 300_000)
