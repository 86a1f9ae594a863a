"""What Spark itself does with a Python data source: reasons for limits that docs/spark.rst names.

The data source here is none of ours. A test that fails with a new version of Spark says that a limit is gone.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import datasource as ds
from pyspark.sql.types import LongType, StructType

from tests.support.spark_session import xs

pytestmark = pytest.mark.slow("runs many Spark jobs")


class PlainReader(ds.DataSourceReader):
    """Ten numbers; evaluates "<" and ">"."""

    def __init__(self, options) -> None:
        self.options, self.filters = dict(options), []

    def pushFilters(self, filters):
        self.filters = [f for f in filters if isinstance(f, ds.LessThan | ds.GreaterThan)]
        return [f for f in filters if f not in self.filters]

    def read(self, partition):
        xs = range(10)
        for f in self.filters:
            xs = [x for x in xs if (x < f.value if isinstance(f, ds.LessThan) else x > f.value)]
        yield pa.record_batch({"x": pa.array(xs, pa.int64()), "n": pa.array([len(self.options)] * len(xs))})


class PlainSource(ds.DataSource):
    """A table of two numbers."""

    @classmethod
    def name(cls):
        return "plain"

    def schema(self):
        return StructType().add("x", LongType()).add("n", LongType())

    def reader(self, schema):
        return PlainReader(self.options)


class FileReader(ds.DataSourceReader):
    """The number in a file, which is read when the scan is planned."""

    def __init__(self, path) -> None:
        self.path = path

    def pushFilters(self, filters):
        return filters

    def partitions(self):
        return [ds.InputPartition(int(Path(self.path).read_text()))]

    def read(self, partition):
        yield pa.record_batch({"x": pa.array([partition.value], pa.int64())})


class FileSource(ds.DataSource):
    """A table of one number."""

    @classmethod
    def name(cls):
        return "number_in_file"

    def schema(self):
        return StructType().add("x", LongType())

    def reader(self, schema):
        return FileReader(self.options["path"])


@pytest.fixture
def plain(spark):
    for source in (PlainSource, FileSource):
        spark.dataSource.register(source)
    return spark


def load(spark):
    return spark.read.format("plain").option("a", "b").load()


ALL = list(range(10))


def test_filters_of_one_frame_are_those_of_its_last_scan(plain):
    """Spark keeps what a reader answers once per table, and asks no reader for a scan without filters."""
    if hasattr(ds.DataSourceReader, "pushLimit"):
        pytest.skip("scans are separate in this version")
    df = load(plain)
    assert xs(df.where("x > 7")) == [8, 9]
    # no function of the reader is called here, so no code of ours could give the right answer
    assert xs(df) == [8, 9] != ALL
    both = df.where("x > 7").unionAll(df.where("x < 2"))
    assert xs(both) == [0, 0, 1, 1]


def test_frames_that_are_loaded_anew_have_filters_of_their_own(plain):
    assert xs(load(plain).where("x > 7").unionAll(load(plain).where("x < 2"))) == [0, 1, 8, 9]


def test_a_view_is_planned_again_for_filters_alone(plain, tmp_path):
    path = tmp_path / "number"
    path.write_text("1")
    plain.sql(f"CREATE OR REPLACE TEMPORARY VIEW number USING number_in_file OPTIONS (path '{path}')")
    assert xs(plain.table("number")) == [1]
    path.write_text("2")
    plain.catalog.refreshTable("number")
    assert xs(plain.table("number")) == [1]
    assert xs(plain.table("number").where("x > 0")) == xs(plain.table("number")) == [2]


def test_a_table_of_the_catalog_has_no_options_when_it_is_read(plain):
    plain.sql("CREATE TABLE plain_table USING plain OPTIONS (a 'b', c 'd')")
    try:
        assert {row["n"] for row in plain.table("plain_table").collect()} == {0}
        with pytest.raises(Exception, match="TIME_TRAVEL"):
            plain.sql("SELECT * FROM plain_table VERSION AS OF 1").collect()
    finally:
        plain.sql("DROP TABLE plain_table")
    assert {row["n"] for row in load(plain).collect()} == {1}


def test_a_path_cannot_be_queried(plain):
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"):
        plain.sql("SELECT * FROM plain.`/data`").collect()


def test_all_columns_are_read_whichever_are_selected(jvm):
    jvm.dataSource.register(PlainSource)
    plan = load(jvm).select("x")._jdf.queryExecution().executedPlan().toString()
    scan = plan.split("BatchScan")[1]
    assert "[x#" in scan and ", n#" in scan
    # a reader cannot describe itself
    assert scan.split("]")[1].split("Runtime")[0].strip() == "(Python)"
    assert not {"description", "explain", "name"} & {*dir(ds.DataSourceReader)}
