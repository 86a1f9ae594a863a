"""Writing one input: what is refused before anything of it is written, and what is written."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager import build_dataset_indices, store_dataframes_as_dataset
from kartothek_cube.io_components.write.table_writer import index_entries, write_table
from kartothek_cube.io_components.write.write_plan import WriteSpec
from kartothek_cube.io_components.write.write_tasks import write_dataset_input
from kartothek_cube.serialization import ParquetSerializer
from tests.support.factories import STORES

MAPS = pa.array([[("q", 1)], []], pa.map_("string", "int8"))
NESTED = [pa.array([[1], [2]]), pa.array([{"q": 1}, {"q": 2}]), MAPS]
WHAT = {"partition_on": "partition", "indices": "index", "sort_by": "sort"}


@pytest.mark.parametrize("values", NESTED, ids=["list", "struct", "map"])
@pytest.mark.parametrize("use", WHAT)
def test_nested_values_have_no_order(store_factory, use, values):
    context = WriteSpec(store_factory, "uuid", **{use: ("x",)})
    good, bad = pa.table({"x": [1, 2], "y": [1, 2]}), pa.table({"x": values, "y": [1, 2]})
    with pytest.raises(NotImplementedError, match=f"Cannot {WHAT[use]} dataset uuid by column x of type"):
        write_dataset_input(context, [good, bad])
    assert open_blobs(store_factory).list("") == []


def test_nested_columns_get_no_index_later(store_factory):
    store_dataframes_as_dataset(store_factory, "uuid", [pa.table({"x": NESTED[0], "y": [1, 2]})])
    with pytest.raises(NotImplementedError, match="Cannot index dataset uuid by column x of type list"):
        build_dataset_indices(store_factory, "uuid", ["x", "y"])


VALUES = {
    pa.int64(): [-(2**63), 0, 1, 2, 2**63 - 1],
    pa.uint64(): [0, 1, 2**64 - 1],
    pa.float64(): [float("-inf"), -0.0, 0.0, 1.5, float("nan")],
    pa.bool_(): [False, True],
    pa.string(): ["", "a", "b"],
    pa.binary(): [b"", b"\xff"],
    pa.decimal128(5, 2): [Decimal("-1.50"), Decimal(0)],
    pa.date32(): [datetime.date(1, 1, 1), datetime.date(2024, 1, 1)],
    pa.timestamp("us", "Europe/Berlin"): [pd.Timestamp("1969-12-31", tz="UTC"), pd.Timestamp(1000, tz="UTC")],
    pa.dictionary(pa.int8(), pa.string()): ["", "a", "b"],
    pa.null(): [None],
}


@pytest.mark.parametrize("dtype", VALUES, ids=str)
@given(data=st.data())
def test_index_has_each_value_with_its_partitions(dtype, data):
    times = data.draw(st.sampled_from([1, 10_000]), "repeated")
    values = st.lists(st.sampled_from([*VALUES[dtype], None]), max_size=6)
    partitions = data.draw(st.lists(values, min_size=1, max_size=4), "values of each partition")
    labels = [f"p={number}/a" for number in range(len(partitions))]
    stored = pa.string() if pa.types.is_null(dtype) or pa.types.is_dictionary(dtype) else dtype
    repeated = [pa.array(part, dtype).take(np.tile(np.arange(len(part)), times)) for part in partitions]
    starts = np.cumsum([0, *map(len, repeated)])[:-1]
    index = index_entries(pa.chunked_array(repeated), starts, pa.array(labels), stored).entries
    found = {value for part in partitions for value in part if value is not None and value == value}
    pairs = list(zip(labels, partitions, strict=True))
    has = {value: [label for label, part in pairs if value in part] for value in found}
    assert index.to_dict() == IndexColumns.from_dict(pa.array(has, stored), has.values()).to_dict()
    assert index.values.to_pylist() == sorted(found)


def test_index_of_unsorted_cells_that_are_in_one_partition_each():
    cells = np.random.default_rng(0).permutation(100_000)
    starts, labels = np.arange(0, 100_000, 5_000), pa.array([f"{number:02}" for number in range(20)])
    index = index_entries(pa.chunked_array([cells]), starts, labels, pa.int64()).entries
    assert index.values.to_pylist() == list(range(100_000))
    assert index.entry_labels().to_pylist() == [f"{n:02}" for n in np.argsort(cells) // 5_000]


@pytest.mark.parametrize(
    "files, codec, expected",
    [(255, "ZSTD", "ZSTD"), (256, "ZSTD", "SNAPPY"), (256, "zstd", "SNAPPY"), (256, "GZIP", "GZIP")],
)
def test_many_small_files_are_compressed_with_snappy_instead_of_zstd(tmp_path, files, codec, expected):
    store = STORES["memory"](tmp_path)
    context = WriteSpec(store, "uuid", partition_on=("x",), serializer=ParquetSerializer(codec))
    x = np.append(np.arange(files - 1), np.full(3_000, files))  # the last file is worth it
    result = write_table(context, pa.table({"x": x, "y": x * 7, "v1": x * 0.5}))
    keys = result.partitions().files["table"].to_pylist()
    footers = [pq.read_metadata(pa.BufferReader(store().get(key))) for key in keys]
    codecs = [(footer.row_group(0).column(0).compression, footer.num_rows) for footer in footers]
    assert codecs == [(expected, 1)] * (files - 1) + [(codec.upper(), 3_000)]


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_files_and_labels_belong_together(store_factory, threads):
    """Also if a thread writes many files in one turn, and if their numbers of rows differ."""
    x = np.repeat(np.arange(150), 1 + np.arange(150) % 3)
    context = WriteSpec(store_factory, "uuid", partition_on=("x",))
    result = write_table(context, pa.table({"x": x, "y": x * 7}), threads=threads)
    assert [label.split("/")[0] for label in result.labels.to_pylist()] == [f"x={i}" for i in range(150)]
    blobs = open_blobs(store_factory)
    for number, key in enumerate(result.partitions().files["table"].to_pylist()):
        df = pq.read_table(pa.BufferReader(blobs.get(key))).to_pandas()
        assert df["y"].tolist() == [7 * number] * (1 + number % 3)
        assert df.index.equals(pd.RangeIndex(1 + number % 3))
