"""Which columns get a dictionary, are packed or not compressed, and that all are read alike."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartothek_cube.serialization import ParquetSerializer
from kartothek_cube.serialization.parquet import read_parquet

RANDOM = np.random.default_rng(1)
ENCODINGS = ("RLE_DICTIONARY", "DELTA_BINARY_PACKED", "PLAIN")


def written(table, codec="SNAPPY"):
    """Write a table and check what is read; encoding and codec of each column."""
    sink = pa.BufferOutputStream()
    ParquetSerializer(codec).write_table(table, sink)
    assert read_parquet(sink.getvalue(), "a file").cast(table.schema).equals(table)
    group = pq.ParquetFile(sink.getvalue()).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    encodings = [next(e for e in ENCODINGS if e in column.encodings) for column in columns]
    return {c.path_in_schema: (e, c.compression) for c, e in zip(columns, encodings, strict=True)}


def encodings(columns):
    return {name: encoding for name, (encoding, _) in written(pa.table(columns)).items()}


@pytest.mark.parametrize("length", [1_000, 9_000, 50_000])
@pytest.mark.parametrize("distinct, worth", [(1.0, False), (0.9, False), (0.3, True), (0.01, True)])
def test_repeated_values_get_a_dictionary(length, distinct, worth):
    values = RANDOM.permutation(np.arange(length) % int(distinct * length)) / 7
    expected = "RLE_DICTIONARY" if worth else "PLAIN"
    columns = {"v": values, "s": pa.array([f"{value:.6f}" for value in values])}
    assert encodings(columns) == {"v": expected, "s": expected}


@pytest.mark.parametrize("period", [4, 250, 4096])
def test_regular_repetition_is_seen(period):
    columns = {"y": np.arange(40_000) % period, "x": np.arange(40_000) // period}
    assert set(encodings(columns).values()) == {"RLE_DICTIONARY"}


def test_dictionaries_are_begun_where_they_pay():
    assert encodings({"v": RANDOM.permutation(np.arange(600_000) // 3) / 7}) == {"v": "PLAIN"}
    assert encodings({"x": [1] * 999}) == {"x": "PLAIN"}


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
    (found,) = encodings({"v": pa.array([value, None] * (length // 2))}).values()
    assert found == ("PLAIN" if value is None or value is True else "RLE_DICTIONARY")


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
    columns = {
        "v": values,
        "x": np.arange(len(values)),
        "l": [["a"]] * len(values),
        "s": [{"n": 1, "l": [{"m": [("k", 1)]}]}] * len(values),
    }
    types = {"s": pa.struct({"n": pa.int64(), "l": pa.list_(pa.struct({"m": pa.map_("string", "int64")}))})}
    arrays = {name: pa.array(array, types.get(name)) for name, array in columns.items()}
    leaves = ["x", "l.list.item", "s.n", *(f"s.l.list.item.m.key_value.{name}" for name in ("key", "value"))]
    found = {path: codec for path, (_, codec) in written(pa.table(arrays), "ZSTD").items()}
    assert found == {"v": "UNCOMPRESSED" if expected else "ZSTD", **dict.fromkeys(leaves, "ZSTD")}


@pytest.mark.parametrize("codec", ["SNAPPY", "GZIP", "NONE"])
def test_other_codecs_hold_for_all_columns(codec):
    found = written(pa.table({"v": NOISE, "w": NOISE}), codec)
    assert [name for _, name in found.values()] == 2 * ["UNCOMPRESSED" if codec == "NONE" else codec]


SORTED = np.sort(RANDOM.choice(200_000, 20_000, replace=False))
PACKED = {
    "ids": pa.array(np.arange(20_000)),
    "with holes": pa.array(SORTED),
    "descending": pa.array(SORTED[::-1]),
    "gaps": pa.array([None, *SORTED[1:].tolist()]),
    "int16": pa.array(np.arange(20_000), pa.int16()),
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


@pytest.mark.parametrize("codec", ["ZSTD", "SNAPPY"])
def test_sorted_numbers_and_times_are_stored_as_differences(codec):
    found = written(pa.table({**PACKED, **PLAIN}), codec)
    assert {name for name, (encoding, _) in found.items() if encoding == "DELTA_BINARY_PACKED"} == {*PACKED}
    assert set(encodings({"ids": np.arange(999), "null": pa.nulls(999, pa.int64())}).values()) == {"PLAIN"}
    assert encodings({"v": pa.nulls(2_000, pa.int64())})["v"] != "DELTA_BINARY_PACKED"
