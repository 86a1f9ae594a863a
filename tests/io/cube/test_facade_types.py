"""All façades write and read the same types: what one of them writes, each of them reads."""

import datetime
import decimal
from functools import cache

import dask.dataframe as dd
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.arrow import memory_type, with_far_times
from kartothek_cube.io.dask import bag_cube, dataframe_cube, delayed_cube
from kartothek_cube.io.spark import create_frame
from kartothek_cube.io.spark import cube as spark_cube
from tests.support.cube_facades import compute
from tests.support.spark_session import shared_session

CUBE = api.Cube(["x"], ["p"], "cube")
NEAR, FAR = datetime.datetime(2020, 10, 25, 0, 30, 0, 1), datetime.datetime.max
INSTANT = NEAR.replace(tzinfo=datetime.UTC)
#: a type, and two of its values
KINDS = {
    **{f"int{n}": (getattr(pa, f"int{n}")(), [-(2 ** (n - 1)), 2 ** (n - 1) - 1]) for n in (8, 16, 32, 64)},
    **{f"uint{n}": (getattr(pa, f"uint{n}")(), [0, 2**n - 1]) for n in (8, 16, 32, 64)},
    "float32": (pa.float32(), [0.5, float("inf")]),
    "float64": (pa.float64(), [0.1, -0.0]),
    "bool": (pa.bool_(), [True, False]),
    "text": (pa.string(), ["", "ä\U0001f600"]),
    "bytes": (pa.binary(), [b"", b"\0\xff"]),
    "date": (pa.date32(), [datetime.date(1900, 1, 1), datetime.date(2262, 4, 11)]),
    "time": (pa.time64("us"), [datetime.time(0), datetime.time(23, 59, 59, 999999)]),
    "near": (pa.timestamp("ns"), [NEAR, datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)]),
    "far": (pa.timestamp("us"), [NEAR, FAR]),
    "utc": (pa.timestamp("ns", "UTC"), [INSTANT, INSTANT]),
    "berlin": (pa.timestamp("ns", "Europe/Berlin"), [INSTANT, INSTANT + datetime.timedelta(hours=1)]),
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal("12345678.50"), decimal.Decimal("-99999999.99")]),
    "list": (pa.list_(pa.int64()), [[2**62 + 1], []]),
    "narrow struct": (pa.struct([("a", pa.int8())]), [{"a": 1}, {"a": -128}]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
}
#: types of results, where they are not those of the input
WIDENED = {"narrow struct": pa.struct([("a", pa.int64())])}
#: columns that Spark has in another type: integers without sign are wider, and zones are UTC
NOT_OF_SPARK = {f"uint{n}" for n in (8, 16, 32, 64)} | {"berlin"}


#: readers that have all times in microseconds
READ_MICROSECONDS = {"spark", "dataset"}


@cache
def rows():
    columns = {name: pa.array(values, dtype) for name, (dtype, values) in KINDS.items()}
    return pa.table({"x": [0, 1], "p": ["a", "b"], **dict(sorted(columns.items()))})


def typed_frame(table):
    """A DataFrame with the types of Arrow."""
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def build_from_dask(table, store):
    # dask makes text of objects, also of bytes
    df = dd.from_pandas(typed_frame(table), npartitions=2)
    compute(dataframe_cube.build_cube_from_dataframe(df, CUBE, store))


def build_from_spark(table, store):
    data = create_frame(table.drop_columns(sorted(NOT_OF_SPARK)), shared_session())
    spark_cube.build_cube_from_spark(data, CUBE, store)


WRITERS = {
    "pandas": lambda table, store: api.build_cube(table.to_pandas(), CUBE, store),
    "pandas of Arrow": lambda table, store: api.build_cube(typed_frame(table), CUBE, store),
    "arrow": lambda table, store: api.build_cube(table, CUBE, store),
    "polars": lambda table, store: api.build_cube(pl.DataFrame(table), CUBE, store),
    "iter": lambda table, store: api.build_cube__iter(
        iter([table[:1].to_pandas(), table[1:].to_pandas()]), CUBE, store
    ),
    "dask": build_from_dask,
    "spark": build_from_spark,
}


def read_spark(store):
    shared_session()
    return spark_cube.query_cube_spark(CUBE, store).toArrow()


READERS = {
    "pandas": lambda store: pa.Table.from_pandas(api.query_cube_df(CUBE, store)),
    "pandas of Arrow": lambda store: pa.Table.from_pandas(
        api.query_cube_df(CUBE, store, dtype_backend="pyarrow")
    ),
    "nullable": lambda store: pa.Table.from_pandas(
        api.query_cube_df(CUBE, store, dtype_backend="numpy_nullable").astype({"date": object})
    ),
    "arrow": lambda store: api.query_cube_table(CUBE, store),
    "groups": lambda store: pa.concat_tables(api.query_cube_arrow(CUBE, store, partition_by="p")),
    "stream": lambda store: api.query_cube_as_record_batches(CUBE, store).read_all(),
    "dataset": lambda store: api.cube_dataset(CUBE, store).to_table(),
    "polars": lambda store: api.query_cube_polars(CUBE, store).to_arrow(),
    "iter": lambda store: frames_to_table(api.query_cube__iterator(CUBE, store, partition_by="p")),
    "delayed": lambda store: frames_to_table(
        map(compute, delayed_cube.query_cube_delayed(CUBE, store, partition_by="p"))
    ),
    "bag": lambda store: frames_to_table(compute(bag_cube.query_cube_bag(CUBE, store, partition_by="p"))),
    "dask": lambda store: frames_to_table(
        [dataframe_cube.query_cube_dataframe(CUBE, store, partition_by="p").compute()]
    ),
    "spark": read_spark,
}


def frames_to_table(frames):
    return pa.concat_tables([pa.Table.from_pandas(df, preserve_index=False) for df in frames])


@pytest.fixture(scope="module", params=WRITERS)
def written(request, tmp_path_factory):
    """The writer, and the store with what it wrote."""
    store = f"hfs://{tmp_path_factory.mktemp('types')}"
    WRITERS[request.param](rows(), store)
    return request.param, store


@pytest.mark.parametrize("reader", READERS)
def test_what_a_facade_writes_each_facade_reads_with_the_same_types(written, reader):
    writer, store = written
    read = READERS[reader](store).sort_by("x")
    # frames of pandas have timestamps for dates
    days = read["date"].cast(pa.date32())
    read = read.set_column(read.column_names.index("date"), "date", days)
    names = [n for n in KINDS if not (n in NOT_OF_SPARK and "spark" in (writer, reader))]
    assert {n: read[n].to_pylist() for n in names} == {n: rows()[n].to_pylist() for n in names}
    types = {n: WIDENED.get(n, rows().schema.field(n).type) for n in names}
    if reader in READ_MICROSECONDS:
        types = {name: with_far_times(dtype) for name, dtype in types.items()}
    # text and lists have several layouts
    assert {n: memory_type(read.schema.field(n).type) for n in names} == types
