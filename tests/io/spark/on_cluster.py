"""Pipelines and faults on a cluster of two executors, each a process; test_cluster.py runs them.

Whatever happens to tasks: a cube is in its old or its new state, whole, and clean-up finds what is left over.
"""

import os
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from storefact import get_store_from_url

from kartothek_cube.api import cube as api
from kartothek_cube.io.spark import create_frame, register
from kartothek_cube.io.spark._session import no_pandas_warnings
from tests.support import sabotage
from tests.support.cubes import file_keys
from tests.support.paths import ROOT
from tests.support.sabotage import Sabotaged, hang, kill_executor, note, notes, once
from tests.support.servers import s3_url
from tests.support.spark_session import CONFIG
from tests.support.standalone import cluster, has_addresses
from tests.support.stream_kills import COPY, Source, stored_rows
from tests.support.stream_pipeline import Kill, fatal_source, run_stream

pytestmark = pytest.mark.slow("a cluster of Spark, whose processes are killed")

CUBE = api.Cube(["x"], ["p"], "cube", index_columns=["i1"])
N = 64
TASKS = 4
OPTIONS = {
    **CONFIG,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": CONFIG["spark.driver.extraJavaOptions"],
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.scheduler.minRegisteredResourcesRatio": 1.0,
    # several tasks even for few rows, so that there is something to be faster than
    "spark.sql.shuffle.partitions": TASKS,
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.executorEnv.AWS_ACCESS_KEY_ID": "executor",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "secret_of_executor",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": 0.5,
    "spark.speculation.multiplier": 1.1,
    "spark.speculation.minTaskRuntime": "1s",
    "spark.ui.showConsoleProgress": "false",
}
#: what may happen to a task; nothing is overtaken where all executors have the same address
DEEDS = ("fail", "kill", "hang") if has_addresses() else ("fail", "kill")
#: executors that a stream loses; ``make soak`` asks for more, and for all combinations
KILLS = int(os.environ.get("KARTOTHEK_CUBE_KILLS", "2"))
ALL = KILLS > 2
#: operations, and what happens to one of their tasks
DISTURBED = [("build", "kill"), ("append", DEEDS[-1]), ("merge", "fail")]
if ALL:
    DISTURBED = [(operation, deed) for operation in ("build", "append", "merge") for deed in DEEDS]


def rows(start: int = 0) -> pa.Table:
    xs = list(range(start, start + N))
    return pa.table({"x": xs, "p": [x % 8 for x in xs], "i1": [f"i{x % 3}" for x in xs], "v1": xs})


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with ExitStack() as stack:
        master = "local-cluster[2,1,1024]"
        if has_addresses():
            master = stack.enter_context(cluster(tmp_path_factory.mktemp("cluster")))
        with no_pandas_warnings():
            session = SparkSession.builder.config(map={"spark.master": master, **OPTIONS}).getOrCreate()
        stack.callback(session.stop)
        yield register(session)


@pytest.fixture
def marks(tmp_path: Path) -> str:
    (tmp_path / "marks").mkdir()
    return str(tmp_path / "marks")


def stored(url: str) -> list[int]:
    return api.query_cube_arrow(CUBE, url)[0]["x"].to_pylist()


def data_files(url: str) -> set[str]:
    root = Path(url.removeprefix("hfs://"))
    return {path.relative_to(root).as_posix() for path in root.glob("*/table/**/*.parquet")}


def files_of_others(url: str, before: set[str]) -> list[str]:
    """Files of other writes than those in `before`, whose speculative attempts may still write."""
    writes = {Path(path).name[:16] for path in before}
    return [path for path in data_files(url) if Path(path).name[:16] not in writes]


def tracked(url: str) -> set[str]:
    return set(file_keys(partial(get_store_from_url, url), "cube++seed").values())


def check_whole(url: str, xs) -> None:
    """Each cell once, in one file per partition and write; nothing else after a clean-up."""
    (table,) = api.query_cube_arrow(CUBE, url)
    assert table["x"].to_pylist() == table["v1"].to_pylist() == list(xs)
    assert api.collect_stats_spark(CUBE, url)["seed"]["rows"] == len(xs)
    assert len(tracked(url)) == len(xs) // 8
    api.cleanup_cube_spark(CUBE, url)
    deadline = time.monotonic() + 60
    while data_files(url) != tracked(url):
        # attempts that Spark gave up may still write for a moment
        assert time.monotonic() < deadline
        time.sleep(0.5)
        api.cleanup_cube_spark(CUBE, url)


def through(function, df):
    with no_pandas_warnings():
        return df.repartition(TASKS, "p").mapInArrow(function, df.schema)


# the way through --------------------------------------------------------------------------------------------


def test_a_pipeline(spark, url):
    api.build_cube_from_spark(create_frame(rows()), CUBE, url)

    def doubled(part: pa.Table) -> pa.Table:
        return part.select(["x", "p"]).append_column("v2", pc.multiply(part["v1"], 2))

    api.extend_cube_from_spark({"more": api.map_cube_spark(doubled, CUBE, url)}, CUBE, url)
    api.append_to_cube_from_spark(create_frame(rows(N)), CUBE, url)
    new = api.query_cube_spark(CUBE, url, api.C("p") == 1, ["seed"]).withColumn("v1", -col("v1"))
    api.update_cube_from_spark(new, CUBE, url, api.C("p") == 1, ["seed"])
    options = f"store '{url}', cube 'cube'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW cells USING kartothek_cube OPTIONS ({options})")
    (row,) = spark.sql("SELECT count(*), sum(v1), sum(v2) FROM cells WHERE x >= 8").collect()
    xs = range(8, 2 * N)
    assert tuple(row) == (
        2 * N - 8,
        sum(-x if x % 8 == 1 else x for x in xs),
        sum(2 * x for x in xs if x < N),
    )


# tasks that fail, hang or die -------------------------------------------------------------------------------


@pytest.mark.parametrize("operation, deed", DISTURBED)
def test_tasks_run_twice(spark, url, marks, operation, deed):
    """An attempt has written a file when it fails, is overtaken, or dies with its executor."""
    store = Sabotaged(url, marks, deed)
    xs = range(N)
    if operation == "merge":
        api.build_cube_from_spark(create_frame(rows().set_column(3, "v1", pa.array([0] * N))), CUBE, url)
        result = api.merge_into_cube_from_spark(create_frame(rows()), CUBE, store)
        assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (0, N, 0)
    elif operation == "append":
        api.build_cube_from_spark(create_frame(rows()), CUBE, url)
        api.append_to_cube_from_spark(create_frame(rows(N)), CUBE, store)
        xs = range(2 * N)
    else:
        api.build_cube_from_spark(create_frame(rows()), CUBE, store)
    assert notes(marks, "written") > 8, "no file was written twice"
    check_whole(url, xs)


@pytest.mark.parametrize("deed", DEEDS[1:] if ALL else DEEDS[-1:])
def test_tasks_of_the_data_source_run_twice(spark, url, marks, deed):
    """The input of a task ends badly after the task has written some of it."""
    api.build_cube_from_spark(create_frame(rows()), CUBE, url)

    def disturbed(batches):
        for batch in batches:
            yield batch
            note(marks, f"task{TaskContext.get().partitionId()}")
            if once(marks, "deed"):
                sabotage.DEEDS[deed]()

    df = through(disturbed, create_frame(rows(N)))
    df.write.format("kartothek_cube").mode("append").options(store=url, cube="cube").save()
    assert max(notes(marks, f"task{task}") for task in range(TASKS)) > 1, "no task ran twice"
    check_whole(url, range(2 * N))


def test_queries_survive_their_executors(spark, url, marks):
    api.build_cube_from_spark(create_frame(rows()), CUBE, url)

    def killing(part: pa.Table) -> pa.Table:
        if len(part) and once(marks, "deed"):
            kill_executor()
        return part

    assert sorted(row["x"] for row in api.map_cube_spark(killing, CUBE, url).collect()) == list(range(N))


def test_a_task_that_always_fails_changes_nothing(spark, url):
    """``spark.task.maxFailures`` attempts, then one sentence; files that other tasks wrote are deleted."""
    api.build_cube_from_spark(create_frame(rows()), CUBE, url)
    before = data_files(url)

    def failing(batches):
        for batch in batches:
            yield batch
            if 9 in batch.column("p").to_pylist():
                raise ConnectionError("the network is gone")

    new = rows(N).set_column(1, "p", pa.array([8 + x % 2 for x in range(N)]))
    text = r"^A task failed in failing \(.*line \d+\): ConnectionError: the n"
    with pytest.raises(RuntimeError, match=text):
        api.append_to_cube_from_spark(through(failing, create_frame(new)), CUBE, url)
    # Spark ends the Python process of a killed attempt after 2 s
    time.sleep(4)
    assert files_of_others(url, before) == []
    check_whole(url, range(N))


def test_a_stream_survives_its_executors(spark, url, tmp_path, marks):
    """They die in the middle of a batch, of the source and of the sink in turn; rows arrive once."""
    source = Source(url)
    spark.dataSource.register(fatal_source(Kill(marks, kill_executor)))
    try:
        for point in islice(cycle(["read", "write"]), KILLS):
            source.append()
            Path(marks, point).touch()
            run_stream(spark, url, str(tmp_path / "checkpoint"))
            assert not Path(marks, point).exists(), "no executor was killed"
            assert stored_rows(url, COPY) == source.rows
    finally:
        register(spark)


# skew -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_a_partition_with_half_of_the_rows_is_written_by_several_tasks(spark, url, marks, adaptive):
    xs = list(range(800))
    ps = [0 if x % 2 else 1 + x % 8 for x in xs]
    table = pa.table({"x": xs, "p": ps, "i1": ["i"] * len(xs), "v1": xs})
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        store = Sabotaged(url, marks)
        built = api.build_cube_from_spark(create_frame(table), CUBE, store, max_rows_per_file=120)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)
    labels = built["seed"].partition_table.labels.to_pylist()
    large = [label for label in labels if label.startswith("p=0/")]
    assert len(large) >= 400 / 120 and len(labels) - len(large) == len(set(ps)) - 1
    # a table and its names belong to one task
    writers = {Path(path).name.split("-")[1] for path in Path(marks).glob("p=0-*")}
    assert len(writers) > 1
    root = Path(url.removeprefix("hfs://"), "cube++seed", "table")
    parts = [pq.read_table(root / f"{label}.parquet", partitioning=None)["x"].to_pylist() for label in large]
    assert all(part == sorted(part) for part in parts)
    assert sorted(chain.from_iterable(parts)) == [x for x in xs if x % 2]
    assert api.verify_cube(CUBE, url).ok and stored(url) == xs


# credentials ------------------------------------------------------------------------------------------------


def test_credentials_are_those_of_each_executor(spark, monkeypatch):
    """Neither the URL nor the tasks have them: driver and executors have different ones."""
    url = s3_url().partition("&access_key_id")[0]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "driver")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret_of_driver")
    api.build_cube_from_spark(create_frame(rows()), CUBE, url)
    api.merge_into_cube_from_spark(create_frame(rows(N - 8)), CUBE, url)
    assert api.query_cube_spark(CUBE, url).count() == 2 * N - 8


# commits that fail, jobs that are cancelled -----------------------------------------------------------------


def test_a_commit_that_fails(spark, url, monkeypatch):
    api.build_cube_from_spark(create_frame(rows()), CUBE, url)
    before = data_files(url)

    def refuse(*_, **__):
        raise ConnectionError("the store is gone")

    monkeypatch.setattr("kartothek_cube.core.store.local.LocalBlobStore.put_if", refuse)
    with pytest.raises(ConnectionError):
        api.append_to_cube_from_spark(create_frame(rows(N)), CUBE, url)
    monkeypatch.undo()
    assert files_of_others(url, before) == []
    check_whole(url, range(N))


@pytest.mark.parametrize("source", [False, True])
def test_a_job_that_is_cancelled(spark, url, marks, source):
    api.build_cube_from_spark(create_frame(rows()), CUBE, url)
    store = Sabotaged(url, marks, "hang")
    df = create_frame(rows(N))
    if source:

        def slow(batches):
            for batch in batches:
                yield batch
                note(marks, "written")
                hang()

        df = through(slow, df)
    canceller = threading.Thread(target=cancel, args=(spark, marks))
    canceller.start()
    with pytest.raises(Exception, match=r"(?i)cancel"):
        if source:
            df.write.format("kartothek_cube").mode("append").options(store=url, cube="cube").save()
        else:
            api.append_to_cube_from_spark(df, CUBE, store)
    canceller.join()
    assert stored(url) == list(range(N))
    check_whole(url, range(N))
    api.append_to_cube_from_spark(create_frame(rows(N)), CUBE, url)
    check_whole(url, range(2 * N))


def cancel(spark, marks: str) -> None:
    while not notes(marks, "written"):
        time.sleep(0.1)
    spark.sparkContext.cancelAllJobs()
