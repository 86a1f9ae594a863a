"""The data source as the sink of streams: every batch exactly once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException

from kartothek_cube.api import cube as api
from kartothek_cube.io.spark._conversion import spark_schema
from kartothek_cube.io.spark.datasource import KartothekCubeDataSource, WriteTarget
from tests.support.spark_session import run_to_end

pytestmark = pytest.mark.slow("streams of Spark, which wait for batches")

CUBE = api.Cube(["x"], ["p"], "cube")
NEW = {"dimension_columns": "x", "partition_columns": "p"}


class Source:
    """A directory that a stream reads, and the stream's checkpoint."""

    def __init__(self, spark, directory: Path, url: str) -> None:
        self.spark, self.url = spark, url
        self.source, self.checkpoint = directory / "source", directory / "checkpoint"
        self.source.mkdir()

    def add(self, xs, v1: int = 0) -> None:
        xs = list(xs)
        rows = pa.table({"x": xs, "p": [x % 2 for x in xs], "v1": [v1] * len(xs)})
        pq.write_table(rows, self.source / f"{len(list(self.source.iterdir()))}.parquet")

    def frame(self):
        return self.spark.readStream.schema("x bigint, p bigint, v1 bigint").parquet(str(self.source))

    def run(self, df=None, mode: str = "append", **options) -> None:
        """Process what is new, then stop."""
        df = self.frame() if df is None else df
        writer = df.writeStream.format("kartothek_cube").outputMode(mode)
        run_to_end(writer.options(store=self.url, cube="cube", **{**NEW, **options}), self.checkpoint)

    def forget(self, batch: int) -> None:
        """Make Spark believe that it died after the commit of a batch, before it noted that down."""
        for path in (self.checkpoint / "commits").glob(f"*{batch}*"):
            path.unlink()

    def batches(self) -> set[str]:
        return {path.name for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()}


@pytest.fixture
def stream(spark, tmp_path, url):
    return Source(spark, tmp_path, url)


def stored(url: str, column: str = "x") -> list:
    return api.query_cube_arrow(CUBE, url)[0][column].to_pylist()


def parquet(url: str) -> set[Path]:
    return set(Path(url.removeprefix("hfs://")).glob("*/table/**/*.parquet"))


def tracked_only(url: str) -> bool:
    """Whether all files belong to the cube."""
    before = parquet(url)
    api.cleanup_cube(CUBE, url)
    return parquet(url) == before


@pytest.mark.parametrize("batch", [0, 1])
def test_a_replayed_batch_changes_nothing(stream, url, batch):
    for number in range(batch + 1):
        stream.add(range(4 * number, 4 * number + 4))
        stream.run()
    before = api.collect_stats(CUBE, url), api.query_cube_arrow(CUBE, url)
    stream.forget(batch)
    stream.run()
    assert stream.batches() == {str(number) for number in range(batch + 1)}
    assert (api.collect_stats(CUBE, url), api.query_cube_arrow(CUBE, url)) == before
    assert tracked_only(url)
    stream.add(range(90, 92))
    stream.run()
    assert stored(url) == [*range(4 * batch + 4), 90, 91]


def test_streams_of_several_threads_count_their_batches_each(stream, spark, tmp_path, url):
    (tmp_path / "2").mkdir()
    other = Source(spark, tmp_path / "2", url)
    for number, source in enumerate((stream, other)):
        source.add([number])
        with ThreadPoolExecutor(1) as pool:
            pool.submit(source.run).result()
    assert stored(url) == [0, 1]


def test_the_commit_of_a_batch_is_planned_once(url, monkeypatch):
    rows = pa.table({"x": [1, 2], "p": [0, 1]})
    source, schema = KartothekCubeDataSource({"store": url, "cube": "cube", **NEW}), spark_schema(rows.schema)
    message = source.streamWriter(schema, overwrite=False).write(iter(rows.to_batches()))
    planned, plan = [], WriteTarget.plan
    monkeypatch.setattr(WriteTarget, "plan", lambda target: planned.append(target) or plan(target))
    # as Spark does, by another writer than that of the tasks
    source.streamWriter(schema, overwrite=False).commit([replace(message, query="stream")], 0)
    assert stored(url) == [1, 2] and len(planned) == 1


def test_a_batch_of_a_stream_without_id_is_an_error(url):
    rows = pa.table({"x": [1, 2], "p": [0, 1]})
    source = KartothekCubeDataSource({"store": url, "cube": "cube", **NEW})
    writer = source.streamWriter(spark_schema(rows.schema), overwrite=False)
    message = writer.write(iter(rows.to_batches()))
    with pytest.raises(RuntimeError, match="write the batches by foreachBatch"):
        writer.commit([message], 0)
    assert parquet(url) == set()


def test_a_complete_result_replaces_the_last_one(stream, url):
    for number in range(2):
        stream.add(range(4), number + 1)
        df = stream.frame().groupBy("p").sum("v1").selectExpr("p AS x", "p", "`sum(v1)` AS v1")
        stream.run(df, "complete")
    assert stored(url, "v1") == [6, 6]
    stream.forget(1)
    stream.run(df, "complete")
    assert stored(url, "v1") == [6, 6]
    assert api.collect_stats(CUBE, url)["seed"]["files"] == 2


def test_a_complete_result_without_rows_removes_the_last_one(stream, url):
    for number in (1, -1):
        stream.add(range(4), number)
        df = stream.frame().groupBy("p").sum("v1").selectExpr("p AS x", "p", "`sum(v1)` AS v1")
        stream.run(df.where("v1 > 0"), "complete")
        assert len(api.query_cube_df(CUBE, url)) == (2 if number > 0 else 0)


def test_a_batch_without_rows_is_no_batch(stream, url):
    stream.add(range(4))
    stream.run()
    before = api.collect_stats(CUBE, url)
    stream.add(range(4))
    stream.run(stream.frame().where("x > 100"))
    assert api.collect_stats(CUBE, url) == before and stream.batches() == {"0", "1"}


@pytest.mark.parametrize(
    "bad, fragment",
    [
        ("raise_error('user error')", "user error"),
        ("cast(null as bigint)", 'NULL-values in dimension column "x"'),
        ("cast(p as bigint)", "several rows for one cell"),
    ],
)
def test_a_batch_that_fails_leaves_nothing_and_can_be_repeated(stream, url, bad, fragment):
    stream.add(range(4))
    stream.run()
    before = parquet(url)
    stream.add(range(4, 8))
    with pytest.raises(PySparkException, match=fragment):
        stream.run(stream.frame().selectExpr(f"if(x < 4, x, {bad}) AS x", "p", "v1"))
    assert parquet(url) == before and stored(url) == list(range(4))
    stream.run()
    assert stored(url) == list(range(8))


@pytest.mark.parametrize(
    "options, fragment",
    [
        ({"if_exists": "error"}, "a stream appends"),
        ({"partitionOverwriteMode": "dynamic"}, "does not overwrite single partitions"),
        ({"dimension_columns": "xx"}, "xx"),
        ({"cubes": "a"}, "unknown option cubes; did you mean cube"),
        ({"dataset": "other"}, "not found"),
    ],
)
def test_wrong_options_stop_a_stream_at_once(stream, url, options, fragment):
    stream.add(range(4))
    with pytest.raises(PySparkException, match=fragment):
        stream.run(**options)
    assert parquet(url) == set()


@pytest.mark.parametrize(
    "change, fragment",
    [
        (lambda writer: writer.partitionBy("p"), "leave out partitionBy: the cube defines"),
        (lambda writer: writer.clusterBy("p"), "leave out clusterBy"),
        (lambda writer: writer.outputMode("update"), "append the batches by foreachBatch"),
    ],
)
def test_what_spark_or_the_format_would_ignore_is_refused_at_once(stream, url, change, fragment):
    writer = change(stream.frame().writeStream.format("kartothek_cube").options(store=url, cube="cube"))
    with pytest.raises(AnalysisException, match=fragment):
        writer.start()
    assert parquet(url) == set()


def test_a_frame_of_a_stream_is_not_written_at_once(stream, url):
    with pytest.raises(TypeError, match=r"Dataset seed: .* by this function in foreachBatch"):
        api.build_cube_from_spark({"seed": stream.frame()}, CUBE, url)


# foreachBatch -----------------------------------------------------------------------------------------------


def save_batch(df, number: int, url: str) -> None:
    writer = df.write.format("kartothek_cube").options(store=url, cube="cube", **NEW)
    writer.options(txnAppId="copier", txnVersion=number).mode("append").save()


def append_batch(df, number: int, url: str) -> None:
    more = df.selectExpr("x", "p", "v1 AS v2")
    api.append_to_cube_from_spark({"seed": df, "more": more}, CUBE, url, batch=("copier", number))


def update_batch(df, number: int, url: str) -> None:
    options = {"rows_outside": "append", "batch": ("copier", number)}
    api.update_cube_from_spark(df, CUBE, url, api.C("p") == 9, ["seed"], **options)


@pytest.mark.parametrize("write", [save_batch, append_batch, update_batch])
def test_a_function_that_fails_after_its_write_does_not_write_twice(stream, spark, url, write):
    cells = pa.table({"x": [-1], "p": [0]})
    data = {"seed": cells.append_column("v1", [[0]]), "more": cells.append_column("v2", [[0]])}
    api.build_cube(data, CUBE, url)
    failing = True

    def function(df, number):
        write(df, number, url)
        if failing:
            raise RuntimeError("after the write")

    def run():
        run_to_end(stream.frame().writeStream.foreachBatch(function), stream.checkpoint)

    for number in range(2):
        stream.add([number])
        failing = True
        with pytest.raises(PySparkException, match="after the write"):
            run()
        before = api.collect_stats(CUBE, url), api.query_cube_arrow(CUBE, url), parquet(url)
        assert stored(url) == [-1, *range(number + 1)]
        failing = False
        run()
        assert (api.collect_stats(CUBE, url), api.query_cube_arrow(CUBE, url), parquet(url)) == before


@pytest.mark.parametrize(
    "batch, error", [("a", TypeError), (("a", True), TypeError), (("a", -1), ValueError)]
)
def test_wrong_batches_are_refused(spark, url, batch, error):
    df = spark.sql("SELECT 1L AS x, 1L AS p")
    with pytest.raises(error, match="batch"):
        api.append_to_cube_from_spark(df, CUBE, url, batch=batch)
    with pytest.raises(PySparkException, match="txnVersion"):
        writer = df.write.format("kartothek_cube").options(store=url, cube="cube", txnAppId="a", **NEW)
        writer.mode("append").save()
