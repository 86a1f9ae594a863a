"""What Spark itself does with filters of a Python data source: the reason for the option ``push_filters``.

The data source here is none of ours. If the test fails with a new version of Spark, the limit is gone.
"""

import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds
from pyspark.sql.types import LongType, StructType

from tests.support.spark_session import xs

pytestmark = pytest.mark.slow("runs many Spark jobs")


class PlainReader(ds.DataSourceReader):
    """Ten numbers; evaluates "<" and ">"."""

    filters = ()

    def pushFilters(self, filters):
        self.filters = [f for f in filters if isinstance(f, ds.LessThan | ds.GreaterThan)]
        return [f for f in filters if f not in self.filters]

    def read(self, partition):
        xs = range(10)
        for f in self.filters:
            xs = [x for x in xs if (x < f.value if isinstance(f, ds.LessThan) else x > f.value)]
        yield pa.record_batch({"x": pa.array(xs, pa.int64())})


class PlainSource(ds.DataSource):
    """A table of numbers."""

    @classmethod
    def name(cls):
        return "plain"

    def schema(self):
        return StructType().add("x", LongType())

    def reader(self, schema):
        return PlainReader()


ALL = list(range(10))


def test_filters_of_one_frame_are_those_of_its_last_scan(spark):
    """Spark keeps what a reader answers once per table, and asks no reader for a scan without filters."""
    if hasattr(ds.DataSourceReader, "pushLimit"):
        pytest.skip("scans are separate in this version")
    spark.dataSource.register(PlainSource)
    df = spark.read.format("plain").load()
    assert xs(df.where("x > 7")) == [8, 9]
    # no function of the reader is called here, so no code of ours could give the right answer
    assert xs(df) == [8, 9] != ALL
    both = df.where("x > 7").unionAll(df.where("x < 2"))
    assert xs(both) == [0, 0, 1, 1]
