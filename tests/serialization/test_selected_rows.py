"""Selected rows, conditions by columns, and encoded texts: what pyarrow reads, filtered."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.core.arrow.pandas_conversion import to_memory
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions.predicate import filter_mask, literal_mask
from kartothek_cube.serialization import ParquetSerializer, parquet_reader
from kartothek_cube.serialization.parquet_reader import ParquetColumns

VALUES = {
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 65535),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.date32(): st.integers(-10_000, 100_000),
    pa.timestamp("us"): st.integers(-(10**15), 10**15),
    pa.timestamp("us", "Europe/Rome"): st.integers(0, 10**15),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=3) | st.sampled_from(["ä", "bb", "cc"]),
    pa.binary(): st.binary(max_size=3),
}
CODECS = ["none", "snappy", "gzip", "zstd", "brotli"]


@pytest.fixture(autouse=True)
def decode_small_files(monkeypatch):
    monkeypatch.setattr(parquet_reader, "_MIN_ROWS_LATE", 0)


def write(table, **options):
    sink = io.BytesIO()
    if options:
        pq.write_table(table, sink, **options)
    else:
        ParquetSerializer("ZSTD").write_table(table, sink)
    return sink.getvalue()


@st.composite
def columns(draw):
    """A column with runs, repetitions and nulls."""
    dtype = draw(st.sampled_from(list(VALUES)))
    pool = draw(st.lists(VALUES[dtype] | st.none(), min_size=1, max_size=6))
    parts = st.tuples(st.sampled_from(pool), st.sampled_from([1, 1, 1, 2, 9, 40]))
    values = [value for value, times in draw(st.lists(parts, max_size=30)) for _ in range(times)]
    return pa.table({"v": pa.array(values, dtype)})


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_selected_rows_are_those_that_pyarrow_reads(data):
    table = data.draw(columns())
    options = {
        "compression": data.draw(st.sampled_from(CODECS)),
        "use_dictionary": data.draw(st.booleans()),
        "row_group_size": data.draw(st.sampled_from([7, 1000])),
        "data_page_size": data.draw(st.sampled_from([1, 60, 10_000])),
        "write_batch_size": data.draw(st.sampled_from([5, 1000])),
        "data_page_version": data.draw(st.sampled_from(["1.0", "1.0", "2.0"])),
        "write_page_checksum": data.draw(st.booleans()),
    }
    content = write(table, **(options if data.draw(st.booleans()) else {}))
    rows = np.array(
        sorted(data.draw(st.sets(st.integers(0, len(table) - 1)))) if len(table) else [], np.int64
    )
    expected = to_memory(pq.read_table(io.BytesIO(content)).replace_schema_metadata(None))
    with ParquetColumns(content, "v") as file:
        assert file.table(["v"], rows).equals(expected.take(pa.array(rows, pa.int64())))
        assert file.table(["v"]).equals(expected)
        file.load(["v"], encoded=True)
        assert file.table(["v"], rows).equals(expected.take(pa.array(rows, pa.int64())))
        assert file.table(["v"]).equals(expected)


@pytest.mark.parametrize("values", ["random", "runs", "few", "nulls"])
@pytest.mark.parametrize("distinct", [2, 100, 20_000])
def test_codes_of_all_widths(values, distinct):
    rng = np.random.default_rng(distinct)
    codes = rng.integers(distinct, size=30_000)
    if values == "runs":
        codes = np.repeat(codes[:60], 500)
    if values == "few":
        codes[1000:2000] = 1
    texts = pa.array(
        [f"{code:05d}" for code in codes], mask=rng.random(30_000) < 0.3 if values == "nulls" else None
    )
    table = pa.table({"v": texts})
    with ParquetColumns(write(table, compression="zstd"), "v") as file:
        file.load(["v"], encoded=True)
        assert pa.types.is_dictionary(file.get_decoded("v").type)
        assert file.table(["v"]).equals(table)


@pytest.mark.parametrize("dtype", [pa.float64(), pa.string()], ids=str)
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_only_texts_with_a_dictionary_stay_encoded(dtype, use_dictionary):
    table = pa.table({"v": pa.array(["1", "0"] * 9).cast(dtype)})
    with ParquetColumns(write(table, use_dictionary=use_dictionary), "v") as file:
        file.load(["v"], encoded=True)
        is_encoded = pa.types.is_dictionary(file.get_decoded("v").type)
        assert is_encoded == (use_dictionary and dtype == pa.string())


def test_texts_behind_a_dictionary_that_the_writer_gave_up_are_not_encoded():
    table = pa.table({"v": [f"a text of its own, {number * 7919 % 1000:04d}" for number in range(1000)]})
    content = write(table, dictionary_pagesize_limit=200, write_batch_size=10)
    with ParquetColumns(content, "v") as file:
        file.load(["v"], encoded=True)
        assert file.get_decoded("v").type == pa.string()
        assert file.table(["v"]).equals(table)


@pytest.mark.parametrize("dtype", [pa.float64(), pa.string()], ids=str)
def test_damage_is_an_error_or_harmless(dtype):
    values = pa.array([str(number % 50) for number in range(400)]).cast(dtype)
    table = pa.table({"v": values})
    options = {"use_dictionary": dtype == pa.string(), "compression": "zstd", "data_page_size": 100}
    content = write(table, write_page_checksum=True, write_batch_size=100, **options)
    stop = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    found = set()
    for position in range(4, stop):
        for change in (1, 0x40, 0xFF):
            damaged = bytearray(content)
            damaged[position] ^= change
            results = [_values(bytes(damaged), encoded=encoded) for encoded in (True, False)]
            # pyarrow does not notice all changes in headers
            assert results[0] in (None, values.to_pylist(), results[1]), position
            found.add(results[0] is None)
    assert found == {True, False}


def _values(content, *, encoded):
    try:
        with ParquetColumns(content, "v") as file:
            if encoded:
                file.load(["v"], encoded=True)
                return file.table(["v"])["v"].to_pylist()
            parts = [file.table(["v"], rows)["v"] for rows in (np.arange(1, 400), np.array([0]))]
            return parts[1].to_pylist() + parts[0].to_pylist()
    except CorruptDatasetError:
        return None


@given(
    st.lists(st.sampled_from(["a", "b", "ü", None])),
    st.sampled_from(
        [
            ("==", "a"),
            ("!=", "a"),
            ("<", "b"),
            ("in", ["a", None]),
            ("not in", ["b"]),
            ("==", None),
            ("!=", None),
            ("in", []),
        ]
    ),
)
def test_encoded_texts_match_like_plain_ones(values, literal):
    array = pa.array(values, pa.string())
    assert literal_mask(array.dictionary_encode(), *literal).equals(literal_mask(array, *literal))


@given(st.data())
def test_conditions_are_evaluated_column_by_column(data):
    size = data.draw(st.integers(1, 40))
    numbers = data.draw(
        st.lists(st.sampled_from([0.0, 1.0, float("nan"), None]), min_size=size, max_size=size)
    )
    texts = data.draw(st.lists(st.sampled_from(["a", "b", None]), min_size=size, max_size=size))
    table = pa.table({"t": pa.array(texts, pa.string()), "v": pa.array(numbers, pa.float64())})
    literals = st.sampled_from(
        [("v", ">", 0.5), ("v", "!=", 1.0), ("t", "==", "a"), ("t", "in", ["b", None])]
    )
    conjunctions = st.lists(st.lists(literals, min_size=1, max_size=3), min_size=1, max_size=2)
    predicates = data.draw(conjunctions)
    content = write(table, use_dictionary=["t"], row_group_size=data.draw(st.sampled_from([6, 100])))
    expected = table.filter(filter_mask(table, predicates))
    with ParquetColumns(content, "v") as file:
        assert file.read(["t", "v"], predicates).to_pydict().__repr__() == expected.to_pydict().__repr__()


@settings(deadline=None)
@given(st.data())
def test_columns_that_are_kept_are_decoded_in_full(data):
    size = data.draw(st.integers(1, 60))
    table = pa.table(
        {
            "t": pa.array([str(i % 4) for i in range(size)]),
            "x": pa.array([None if i % 7 == 6 else i // 5 for i in range(size)], pa.int64()),
            "v": np.linspace(0, 1, size),
        }
    )
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1)))), np.int64)
    content = write(table, use_dictionary=["t"], row_group_size=data.draw(st.sampled_from([9, 100])))
    with ParquetColumns(content, "v") as file:
        found = file.table(["v", "t", "x"], rows, keep=["t", "x"])
        assert found.equals(table.select(["v", "t", "x"]).take(pa.array(rows)))
        for column in ("t", "x"):
            kept = file.get_decoded(column)
            assert kept is None or kept.to_pylist() == table[column].to_pylist()
        assert file.get_decoded("v") is None
        assert file.table(["t", "x", "v"]).equals(table)


def test_columns_of_one_row_group_are_kept():
    table = pa.table({"x": [1, 1, 2], "v": [0.5, 1.5, 2.5]})
    with ParquetColumns(write(table), "v") as file:
        file.table(["x", "v"], np.array([2]), keep=["x"])
        assert file.get_decoded("x").to_pylist() == [1, 1, 2]


def test_values_of_conditions_are_not_decoded_again():
    table = pa.table(
        {"a": np.arange(60) % 2, "b": np.arange(60) % 3, "c": np.arange(60) % 5, "v": np.arange(60)}
    )
    with ParquetColumns(write(table, row_group_size=20), "v") as file:
        rows = file.select([[("a", "==", 1), ("b", ">", 0), ("c", "==", 2)]])
        assert rows.tolist() == [7, 17, 37, 47]
        for selected in (rows, rows[1:], np.array([0, 7, 8])):
            expected = table.select(["b", "c", "v"]).take(pa.array(selected))
            assert file.table(["b", "c", "v"], selected).equals(expected)
