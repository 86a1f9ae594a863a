"""Which columns get a dictionary, and that files without one are read alike."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartothek_cube.serialization import ParquetSerializer
from kartothek_cube.serialization._encoding import dictionary_columns

RANDOM = np.random.default_rng(1)


def encoded(table):
    """Write a table; tell the columns that have a dictionary, and what is read."""
    sink = pa.BufferOutputStream()
    ParquetSerializer().write_table(table, sink)
    content = sink.getvalue()
    group = pq.ParquetFile(content).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {c.path_in_schema for c in columns if c.has_dictionary_page}, ParquetSerializer.read_table(content)


@pytest.mark.parametrize("length", [1_000, 9_000, 50_000])
@pytest.mark.parametrize(
    "distinct, worth",
    [(1.0, False), (0.9, False), (0.3, True), (0.01, True)],
)
def test_repeated_values_get_a_dictionary(length, distinct, worth):
    values = RANDOM.permutation(np.arange(length) % int(distinct * length)) / 7
    table = pa.table({"v": values, "s": pa.array([f"{value:.6f}" for value in values])})
    assert dictionary_columns(table) == (["v", "s"] if worth else [])


@pytest.mark.parametrize("period", [4, 250, 4096])
def test_regular_repetition_is_seen(period):
    assert dictionary_columns(pa.table({"y": np.arange(40_000) % period})) == ["y"]
    assert dictionary_columns(pa.table({"x": np.arange(40_000) // period})) == ["x"]


def test_dictionaries_that_become_too_large_are_not_begun():
    values = RANDOM.permutation(np.arange(600_000) // 3)
    assert dictionary_columns(pa.table({"v": values})) == []


def test_few_rows_need_no_dictionary():
    assert dictionary_columns(pa.table({"x": [1] * 999})) == []
    assert dictionary_columns(pa.table({"x": pa.array([], pa.int64())})) == []


@pytest.mark.parametrize(
    "value",
    [
        "a",
        b"a",
        1,
        0.5,
        True,
        None,
        datetime.date(2020, 1, 1),
        datetime.datetime(2020, 1, 1),
        decimal.Decimal("1.5"),
        datetime.time(1),
        [1],
        [["a"], []],
    ],
    ids=repr,
)
@pytest.mark.parametrize("length", [1_000, 10_000])
def test_all_types(value, length):
    table = pa.table({"v": pa.array([value, None] * (length // 2))})
    found, read = encoded(table)
    assert read.column("v").to_pylist() == [value, None] * (length // 2)
    assert len(found) == (value is not None and value is not True)
