"""Which columns get a dictionary, and that files without one are read alike."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartothek_cube.serialization import ParquetSerializer
from kartothek_cube.serialization.parquet import codecs, dictionary_columns, packed_columns

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
@pytest.mark.parametrize("distinct, worth", [(1.0, False), (0.9, False), (0.3, True), (0.01, True)])
def test_repeated_values_get_a_dictionary(length, distinct, worth):
    values = RANDOM.permutation(np.arange(length) % int(distinct * length)) / 7
    table = pa.table({"v": values, "s": pa.array([f"{value:.6f}" for value in values])})
    assert dictionary_columns(table) == (["v", "s"] if worth else [])


@pytest.mark.parametrize("period", [4, 250, 4096])
def test_regular_repetition_is_seen(period):
    assert dictionary_columns(pa.table({"y": np.arange(40_000) % period})) == ["y"]
    assert dictionary_columns(pa.table({"x": np.arange(40_000) // period})) == ["x"]


def test_dictionaries_are_begun_where_they_pay():
    assert dictionary_columns(pa.table({"v": RANDOM.permutation(np.arange(600_000) // 3)})) == []
    assert dictionary_columns(pa.table({"x": [1] * 999})) == []
    assert dictionary_columns(pa.table({"x": pa.array([], pa.int64())})) == []
    assert codecs(pa.table({"v": NOISE}), ["v"], "ZSTD") == "ZSTD"


@pytest.mark.parametrize(
    "value",
    [
        *("a", b"a", 1, 0.5, True, None, [1], [["a"], []], decimal.Decimal("1.5")),
        *(datetime.time(1), datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("length", [1_000, 10_000])
def test_all_types(value, length):
    found, read = encoded(pa.table({"v": pa.array([value, None] * (length // 2))}))
    assert read.column("v").to_pylist() == [value, None] * (length // 2)
    assert len(found) == (value is not None and value is not True)


NOISE = RANDOM.normal(size=20_000)


@pytest.mark.parametrize(
    "values, expected",
    [
        (NOISE, True),
        (NOISE.astype("float32"), True),
        (NOISE.round(2), False),
        (np.arange(20_000), False),
        (RANDOM.integers(2**62, size=20_000), True),
        (pa.array([*NOISE[:-1], None]), True),
        (pa.array([None] * 20_000, pa.float64()), False),
        (pa.array([str(value) for value in NOISE]), False),
        (NOISE[:999], False),
    ],
)
def test_noise_is_not_compressed(values, expected):
    table = pa.table({"v": values, "x": np.arange(len(values)), "l": [["a"]] * len(values)})
    plain = {"v": "NONE", "x": "zstd", "l.list.item": "zstd"}
    assert codecs(table, packed_columns(table, []), "zstd") == (plain if expected else "zstd")
    sink = pa.BufferOutputStream()
    ParquetSerializer("ZSTD").write_table(table, sink)
    assert ParquetSerializer.read_table(sink.getvalue()).column("v").equals(table.column("v"))
    group = pq.ParquetFile(sink.getvalue()).metadata.row_group(0)
    found = [group.column(number).compression for number in range(3)]
    assert found == ["UNCOMPRESSED" if expected else "ZSTD", "ZSTD", "ZSTD"]


@pytest.mark.parametrize("codec", ["SNAPPY", "GZIP", "NONE"])
def test_other_codecs_hold_for_all_columns(codec):
    assert codecs(pa.table({"v": NOISE}), [], codec) == codec
    sink = pa.BufferOutputStream()
    ParquetSerializer(codec).write_table(pa.table({"v": NOISE, "w": NOISE}), sink)
    assert len(ParquetSerializer.read_table(sink.getvalue())) == 20_000


SORTED = np.sort(RANDOM.choice(200_000, 20_000, replace=False))
PACKED = {
    "ids": pa.array(np.arange(20_000)),
    "with holes": pa.array(SORTED),
    "descending": pa.array(SORTED[::-1]),
    "gaps": pa.array([None, *SORTED[1:].tolist()]),
    "int8": pa.array(RANDOM.integers(-3, 3, 20_000).cumsum() % 100, pa.int8()),
    "int16": pa.array(SORTED // 10, pa.int16()),
    "uint32": pa.array(SORTED, pa.uint32()),
    "largest": pa.array(2**63 - 1 - SORTED),
    "uint64": pa.array(2**64 - 1 - SORTED.astype("u8")),
    "days": pa.array(np.arange(20_000, dtype=np.int32)).cast(pa.date32()),
    "hours": pa.array(SORTED.astype("M8[h]").astype("M8[us]")),
    "zone": pa.array(SORTED.astype("M8[ms]"), pa.timestamp("us", "Asia/Tokyo")),
}
PLAIN = {
    "hashes": pa.array(RANDOM.integers(-(2**63), 2**63 - 1, 20_000)),
    "random": pa.array(RANDOM.integers(2**31 - 1, size=20_000), pa.int32()),
    "numbers": pa.array(NOISE),
    "texts": pa.array([str(value) for value in SORTED]),
    "times": pa.array(SORTED, pa.time64("us")),
    "decimals": pa.array(SORTED).cast(pa.decimal128(21, 2)),
}


def test_sorted_numbers_and_times_are_stored_as_differences():
    table = pa.table({**PACKED, **PLAIN})
    assert packed_columns(table, []) == list(PACKED)
    assert packed_columns(table, ["ids", "days"]) == [name for name in PACKED if name not in ("ids", "days")]
    assert packed_columns(table.slice(0, 999), []) == []
    assert packed_columns(pa.table({"v": pa.nulls(2_000, pa.int64())}), []) == []
    for codec in ("ZSTD", "SNAPPY"):
        sink = pa.BufferOutputStream()
        ParquetSerializer(codec).write_table(table, sink)
        assert len(sink.getvalue()) < 0.5 * table.nbytes
        group = pq.ParquetFile(sink.getvalue()).metadata.row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
        packed = {chunk.path_in_schema for chunk in chunks if "DELTA_BINARY_PACKED" in chunk.encodings}
        assert packed == {*packed_columns(table, dictionary_columns(table))} >= {"ids", "zone", "uint64"}
        read = ParquetSerializer.read_table(sink.getvalue())
        assert read.cast(table.schema).equals(table)
