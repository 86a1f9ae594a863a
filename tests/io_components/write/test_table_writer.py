"""Writing one input: what is refused before anything of it is written, and what is written."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager import store_dataframes_as_dataset
from kartothek_cube.io_components.write.build_index import plan_index_build
from kartothek_cube.io_components.write.table_writer import write_table
from kartothek_cube.io_components.write.write_plan import WriteSpec
from kartothek_cube.io_components.write.write_tasks import write_dataset_input
from kartothek_cube.serialization import ParquetSerializer
from tests.support.factories import STORES

NESTED = [
    pa.array([[1], [2]]),
    pa.array([{"q": 1}, {"q": 2}]),
    pa.array([[("q", 1)], []], pa.map_("string", "int8")),
]
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
        plan_index_build(DatasetFactory("uuid", store_factory), ["x", "y"])


@pytest.mark.parametrize("values", NESTED, ids=["list", "struct", "map"])
def test_nested_columns_that_are_only_stored(store_factory, values):
    result = write_table(
        WriteSpec(store_factory, "uuid", partition_on=("x",)), pa.table({"x": [1, 2], "y": values})
    )
    assert len(result.labels) == 2


def codecs(store, result):
    """Codec and number of rows of each file."""
    blobs = open_blobs(store)
    footers = [
        pq.read_metadata(pa.BufferReader(blobs.get(key)))
        for key in result.partitions().files["table"].to_pylist()
    ]
    return [(footer.row_group(0).column(0).compression, footer.num_rows) for footer in footers]


@pytest.mark.parametrize(
    "files, codec, expected",
    [
        (255, "ZSTD", "ZSTD"),
        (256, "ZSTD", "SNAPPY"),
        (256, "zstd", "SNAPPY"),
        (256, "GZIP", "GZIP"),
    ],
)
def test_many_small_files_are_compressed_with_snappy_instead_of_zstd(tmp_path, files, codec, expected):
    store = STORES["memory"](tmp_path)
    context = WriteSpec(store, "uuid", partition_on=("x",), serializer=ParquetSerializer(codec))
    x = np.append(np.arange(files - 1), np.full(3_000, files))  # the last file is worth it
    result = write_table(context, pa.table({"x": x, "y": x * 7, "v1": x * 0.5}))
    assert codecs(store, result) == [(expected, 1)] * (files - 1) + [(codec.upper(), 3_000)]


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
