"""Filtered scans by Polars: the rows of pyarrow, which reads whatever Polars does not."""

from __future__ import annotations

import datetime
import json
import math
import multiprocessing
import os
import sys

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kartothek_cube.api.cube import C, Cube, append_to_cube, build_cube, query_cube
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.query import dynamic_filter, executor, scan
from kartothek_cube.io_components.read import filtered_scan
from kartothek_cube.io_components.read.data_files import read_files
from kartothek_cube.io_components.read.filtered_scan import read_filtered_files
from kartothek_cube.io_components.runtime import limit_threads

CUBE = Cube(["x", "y"], ["p"], "cube")


@pytest.fixture(autouse=True)
def files_of_any_size(monkeypatch):
    monkeypatch.setattr(dynamic_filter, "_MIN_BYTES", 0)


@pytest.fixture
def scans(monkeypatch):
    """Predicates of each filtered scan, and how many rows it gave; None if pyarrow had to read the files."""
    calls = []

    def read(blobs, keys, columns, predicates):
        tables = read_filtered_files(blobs, keys, columns, predicates)
        calls.append((predicates, None if tables is None else sum(map(len, tables))))
        return tables

    monkeypatch.setattr(scan, "read_filtered_files", read)
    return calls


def make_blobs(directory):
    return open_blobs(f"hfs://{directory}?create_if_missing=true")


def write(blobs, name, table):
    """Write a file with several row groups and pages."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=7, data_page_size=16)
    blobs.put(name, sink.getvalue().to_pybytes())
    return name


def read_by_pyarrow(blobs, keys, columns, predicates):
    return list(read_files(blobs, keys, columns, lambda _: predicates))


DAYS = st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))
TIMES = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)).map(
    lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)
)
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 1e300, 5e-324])
TEXTS = st.sampled_from(["", "a", "ä", "A", "a ", "\0", "😀", "zz", "a\0b", "ａ"])
OPERATORS = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in"])
#: type of the column -> values, and the values of conditions
COLUMNS = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]),
    pa.int64(): st.sampled_from([-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1]),
    pa.float64(): FLOATS,
    pa.float32(): st.sampled_from([0.0, -0.0, 0.5, math.inf, math.nan]),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.date32(): DAYS,
    pa.timestamp("ms"): TIMES,
    pa.timestamp("us"): TIMES,
    pa.timestamp("ns"): TIMES.map(pd.Timestamp),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("dtype", COLUMNS, ids=str)
def test_the_rows_are_those_of_pyarrow(dtype, data, tmp_path):
    values = COLUMNS[dtype]
    real = values.filter(lambda value: value == value)
    blobs = make_blobs(tmp_path)
    lengths = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    keys = []
    for number, length in enumerate(lengths):
        column = data.draw(st.lists(st.none() | values, min_size=length, max_size=length))
        table = pa.table({"v": pa.array(column, dtype), "row": np.arange(length), "unused": ["u"] * length})
        keys.append(write(blobs, f"p={number}/a b [c]%C3%A9%20#?.parquet", table))
    conjunctions = []
    for operators in data.draw(st.lists(st.lists(OPERATORS, min_size=1, max_size=2), max_size=2)):
        operands = [data.draw(st.lists(real, min_size=1) if op == "in" else real) for op in operators]
        conjunctions.append([("v", op, operand) for op, operand in zip(operators, operands, strict=True)])
    columns, predicates = ["row", "v"], conjunctions or None
    found = read_filtered_files(blobs, keys, columns, predicates)
    expected = read_by_pyarrow(blobs, keys, columns, predicates)
    assert found is not None
    for a, b in zip(found, expected, strict=True):
        assert a.schema.equals(b.schema)
        pd.testing.assert_frame_equal(a.to_pandas(), b.to_pandas())


@pytest.mark.parametrize(
    "literal",
    [("v", "==", None), ("v", "in", [1, None]), ("v", "not in", [1]), ("v", "!=", None)],
    ids=str,
)
def test_conditions_on_nulls_are_left_to_pyarrow(literal, tmp_path):
    blobs = make_blobs(tmp_path)
    key = write(blobs, "a.parquet", pa.table({"v": [1, None, 3]}))
    assert read_filtered_files(blobs, [key], ["v"], [[literal]]) is None


OTHER_TABLES = {
    "narrower": pa.table({"v": pa.array([5], pa.int8())}),
    "null": pa.table({"v": pa.nulls(1)}),
    "category": pa.table({"v": pa.array(["a"]).dictionary_encode()}),
    "decimal": pa.table({"v": pa.array([5], pa.decimal128(5, 2))}),
    "zone": pa.table({"v": pa.array([5], pa.timestamp("us", "UTC"))}),
    "absent": pa.table({"w": [5]}),
}


@pytest.mark.parametrize(
    "other, first",
    # nulls without a type are like those of any type
    [(other, first) for other in OTHER_TABLES for first in (False, True) if first or other != "null"],
)
def test_files_of_other_types_are_left_to_pyarrow(other, first, tmp_path):
    blobs = make_blobs(tmp_path)
    keys = [
        write(blobs, "a.parquet", pa.table({"v": [5, 6]})),
        write(blobs, "b.parquet", OTHER_TABLES[other]),
    ]
    assert read_filtered_files(blobs, keys[::-1] if first else keys, ["v"], [[("v", ">=", 5)]]) is None


def make_cube(directory, n=40):
    """A cube with datasets of all cells and of some, and one that all partitions share."""
    x, y = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
    seed = pd.DataFrame({"x": x, "y": y, "p": x % 4, "v": x * 1.0 + y / n, "t": [f"t{i % 7}" for i in y]})
    enrich = seed[["x", "y", "p"]].assign(w=np.where(x % 5 == 0, np.nan, y * 1.0))
    part = enrich[enrich.y % 3 == 0].rename(columns={"w": "u"})
    shared = pd.DataFrame({"y": np.arange(n), "z": np.arange(n) * 10})
    store = f"hfs://{directory}?create_if_missing=true"
    data = {"seed": seed, "enrich": enrich, "part": part, "shared": shared}
    build_cube(data, CUBE, store, partition_on={"shared": []})
    return store


CONDITIONS = {
    "seed": C("v") > 39.5,
    "text": (C("t") == "t3") & (C("x") < 3),
    "other dataset": C("w") >= 39.0,
    "two datasets": (C("w") < 3.0) & (C("v") > 30),
    "incomplete dataset": (C("u") == 36.0) & (C("x") > 30),
    "shared dataset": (C("z") == 50) & (C("v") < 9),
    "nothing": C("v") > 1000,
    "all": C("v") >= 0,
    "or": (C("v") > 39.5) | ((C("t") == "t3") & (C("x") == 1)),
    "dimension": C("x").isin([3, 17, 99]),
    "no condition": None,
}


@pytest.mark.parametrize("block_rows", [3, 1 << 17], ids=["blocks", "one block"])
@pytest.mark.parametrize("conditions", CONDITIONS.values(), ids=list(CONDITIONS))
def test_answers_are_the_same_with_both_engines(conditions, block_rows, tmp_path, scans, monkeypatch):
    # of the rows that need a lookup join
    monkeypatch.setattr(executor, "_BLOCK_ROWS", block_rows)
    store = make_cube(tmp_path)
    found = query_cube(CUBE, store, conditions)
    assert scans
    scans.clear()
    monkeypatch.setenv(filtered_scan.ENVIRONMENT_VARIABLE, "pyarrow")
    expected = query_cube(CUBE, store, conditions)
    assert not scans
    for a, b in zip(found, expected, strict=True):
        pd.testing.assert_frame_equal(a, b)


def test_cells_of_few_rows_restrict_the_scans_of_other_datasets(tmp_path, scans):
    store = make_cube(tmp_path)
    (df,) = query_cube(CUBE, store, (C("w") == 39.0) & C("p").isin([1]), payload_columns=["v", "w", "u"])
    assert sorted(df.x) == [x for x in range(40) if x % 4 == 1 and x % 5]
    # of 400 cells in the partition
    (on_enrich, n_enrich), *others = scans
    assert [column for column, _, _ in on_enrich[0]] == ["w"]
    assert n_enrich == len(df)
    # x has more values than y
    assert [[column for column, _, _ in on[0]] for on, _ in others] == [["x"], ["x"]]
    assert all(n < 400 for _, n in others)


def test_datasets_without_conditions_are_read_in_full_beside_many_cells(tmp_path, scans, monkeypatch):
    monkeypatch.setattr(dynamic_filter, "_MAX_DYNAMIC_ROWS", 1)
    cells = pd.DataFrame({"x": np.arange(40) % 8, "y": np.arange(40) // 8, "p": np.arange(40) % 2})
    data = {"seed": cells.assign(v=np.arange(40.0)), "enrich": cells.assign(w=np.arange(40))}
    build_cube(data, CUBE, f"hfs://{tmp_path}")
    (frame,) = query_cube(CUBE, f"hfs://{tmp_path}", conditions=C("w") >= 30)
    assert scans == [([[("w", ">=", 30)]], 10), (None, 40)]
    assert sorted(frame["v"]) == list(range(30, 40))


@pytest.mark.parametrize("partitions", [1, 2])
def test_one_partition_tells_whether_many_cells_match(partitions, tmp_path, scans, monkeypatch):
    monkeypatch.setattr(dynamic_filter, "_MAX_DYNAMIC_ROWS", 1)
    monkeypatch.setattr(dynamic_filter, "_MAX_UNRESTRICTED_BYTES", 0)
    numbers = np.arange(40)
    cells = pd.DataFrame({"x": numbers % 8, "y": numbers // 8, "p": numbers % partitions})
    data = {"seed": cells.assign(v=np.arange(40.0)), "enrich": cells.assign(w=numbers)}
    build_cube(data, CUBE, f"hfs://{tmp_path}")
    (frame,) = query_cube(CUBE, f"hfs://{tmp_path}", conditions=C("w") >= 30)
    sample = ([[("w", ">=", 30)]], 10 // partitions)
    # of the only partition, it is the scan; else pyarrow reads block by block
    assert scans == ([sample, (None, 40)] if partitions == 1 else [sample])
    assert sorted(frame["v"]) == list(range(30, 40))


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 100])
def test_rows_per_file_do_not_depend_on_chunks(chunk_rows):
    counts = {"a": 3, "b": 0, "c": 1, "d": 4}
    column = [path for path, count in counts.items() for _ in range(count)]
    chunks = [polars.Series(column[i : i + chunk_rows]) for i in range(0, len(column), chunk_rows)]
    series = polars.concat([*chunks, polars.Series([], dtype=polars.String)], rechunk=False)
    assert filtered_scan._rows_per_file(series, list(counts)).tolist() == list(counts.values())


def test_overwritten_cells_are_read_by_pyarrow(tmp_path, scans):
    store = make_cube(tmp_path)
    append_to_cube(
        {"seed": pd.DataFrame({"x": [0], "y": [0], "p": [0], "v": [99.0], "t": ["new"]})}, CUBE, store
    )
    (df,) = query_cube(CUBE, store, C("v") < 0.5, payload_columns=["v"])
    assert not scans
    assert df.v.tolist() == [y / 40 for y in range(1, 20)]


@pytest.mark.parametrize("problem", ["broken", "cut", "absent"])
def test_errors_are_those_of_pyarrow(problem, tmp_path, scans):
    store = make_cube(tmp_path)
    blobs = open_blobs(store)
    key = next(key for key in blobs.store.keys() if "++seed/table/p=2/" in key)
    path = blobs.local_path(key)
    with open(path, "rb") as file:
        content = bytearray(file.read())
    if problem == "broken":
        content[-200:-100] = bytes(100)
    blobs.delete([key])
    if problem != "absent":
        blobs.put(key, bytes(content[:-50] if problem == "cut" else content))
    with pytest.raises(MissingFileError if problem == "absent" else CorruptDatasetError, match="p=2"):
        query_cube(CUBE, store, C("v") > 30, payload_columns=["v"])
    assert all(rows is None for _, rows in scans)


def test_files_of_several_partitions_are_left_to_pyarrow(tmp_path, scans):
    store = make_cube(tmp_path)
    header = tmp_path / "cube++seed.by-dataset-metadata.json"
    content = json.loads(header.read_text())
    first, second, *_ = content["partitions"].values()
    second["files"] = first["files"]
    header.write_text(json.dumps(content))
    [df] = query_cube(CUBE, store, conditions=C("x") >= 0, payload_columns=[])
    assert df.groupby("p").size().nunique() == 1
    assert any(rows is None for _, rows in scans)


def test_a_limit_of_threads_excludes_polars(tmp_path, scans):
    store = make_cube(tmp_path)
    with limit_threads(1):
        query_cube(CUBE, store, C("v") > 30)
    assert not scans


def test_without_polars_pyarrow_reads(tmp_path, scans, monkeypatch):
    store = make_cube(tmp_path)
    monkeypatch.delitem(sys.modules, "polars", raising=False)
    monkeypatch.setattr(filtered_scan, "_is_installed", lambda: False)
    query_cube(CUBE, store, C("v") > 30)
    assert not scans


def _count_rows(store, queue):
    queue.put(len(query_cube(CUBE, store, C("v") > 30, payload_columns=["v"])[0]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, which Windows does not have")
def test_a_forked_process_does_not_wait_for_threads_of_its_parent(tmp_path, scans):
    store = make_cube(tmp_path)
    expected = len(query_cube(CUBE, store, C("v") > 30, payload_columns=["v"])[0])
    assert scans[0][1] is not None
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_count_rows, args=(store, queue))
    child.start()
    child.join(60)
    if child.is_alive():
        child.kill()
        pytest.fail("the child waits")
    assert queue.get() == expected
