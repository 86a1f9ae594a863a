"""The data source as the source of streams: what commits append, each row once."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from kartothek_cube.api import cube as api
from kartothek_cube.core.store.local import LocalBlobStore
from kartothek_cube.io.spark import datasource
from kartothek_cube.io.spark._datasource_options import StreamOptions
from tests.support.spark_session import run_to_end
from tests.support.stream_kills import run_with_kills

pytestmark = pytest.mark.slow("streams of Spark, which wait for batches")

CUBE = api.Cube(["x"], ["p"], "cube")


def cells(xs, v=0) -> pa.Table:
    return pa.table({"x": list(xs), "p": [x % 2 for x in xs], "v": [v] * len(list(xs))})


class Stream:
    """A stream from a cube to Parquet files, with its checkpoint."""

    def __init__(self, spark, directory: Path, url: str) -> None:
        self.spark, self.url, self.directory = spark, url, directory

    def run(self, limit: int | None = None, **options) -> list[list[int]]:
        """Read what is new; the values of x, batch by batch."""
        batches: list[list[int]] = []
        rows = self.spark.readStream.format("kartothek_cube").options(store=self.url, cube="cube", **options)

        def collect(df, _number):
            batches.append(sorted(row["x"] for row in df.collect()))

        run_to_end(rows.load().writeStream.foreachBatch(collect), self.directory / "checkpoint")
        return batches


@pytest.fixture
def stream(spark, tmp_path, url):
    api.build_cube(cells(range(4)), CUBE, url)
    api.keep_cube_history(CUBE, url, 20)
    return Stream(spark, tmp_path, url)


def append(url, xs, v=0):
    api.append_to_cube(cells(xs, v), CUBE, url, schema_mode="merge")


def flat(batches) -> list[int]:
    return [x for batch in batches for x in batch]


def test_rows_arrive_once_over_restarts(stream, url):
    assert stream.run() == [[0, 1, 2, 3]]
    append(url, [4, 5])
    append(url, [6])
    # compacted files are read as they were appended
    api.compact_cube(CUBE, url)
    api.update_schema(CUBE, url, add={"n": "int64"})
    assert stream.run() == [[4, 5, 6]]
    api.compact_cube(CUBE, url)
    assert flat(stream.run()) == []


def open_reader(url) -> datasource.CubeStreamReader:
    """The reader of a stream that starts now, without Spark."""
    options = {"store": url, "cube": "cube"}
    return datasource.CubeStreamReader(options, datasource.KartothekCubeDataSource(options).schema(), 2)


def read_versions(reader: datasource.CubeStreamReader, first: int, last: int) -> list[dict]:
    start, end = {"version": first, "files": 0}, {"version": last + 1, "files": 0}
    batches = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    return pa.Table.from_batches(batches).sort_by("x").to_pylist()


def test_a_trigger_without_new_rows_reads_the_header_and_the_history_once(url, monkeypatch):
    api.build_cube(cells([0]), CUBE, url)
    reader = open_reader(url)
    start = reader.latestOffset(reader.initialOffset())
    requests = []
    for name in ("get_with_token", "open_read", "list", "list_dir"):
        method = getattr(LocalBlobStore, name)

        def request(self, key, name=name, method=method):
            requests.append((name, key))
            return method(self, key)

        monkeypatch.setattr(LocalBlobStore, name, request)
    assert reader.latestOffset(start) == start
    assert requests == [
        ("get_with_token", "cube++seed.by-dataset-metadata.json"),
        ("list", "cube++seed/_history/"),
    ]


def test_rows_of_older_schemas_are_those_of_queries(url):
    api.build_cube(cells(range(4)), CUBE, url)
    api.update_schema(CUBE, url, rename={"v": "w"}, add={"n": "int64"}, defaults={"n": 5})
    api.append_to_cube(pa.table({"x": [4], "p": [0], "w": [8], "n": [6]}), CUBE, url)
    (expected,) = api.query_cube(CUBE, url)
    assert read_versions(open_reader(url), 1, 3) == expected.sort_values("x").to_dict("records")


def test_a_column_that_is_gone_ends_a_stream(url):
    api.build_cube(cells(range(4)), CUBE, url)
    reader = open_reader(url)
    assert len(read_versions(reader, 1, 1)) == 4
    api.update_schema(CUBE, url, rename={"v": "w"})
    api.append_to_cube(pa.table({"x": [4], "p": [0], "w": [8]}), CUBE, url)
    with pytest.raises(ValueError, match=r"'cube\+\+seed' no longer has the column\(s\) v of the stream"):
        read_versions(reader, 2, 3)


@pytest.mark.parametrize("appends", [0, 3])
def test_a_dataset_that_is_created_again_ends_a_stream(url, appends):
    api.build_cube(cells(range(4)), CUBE, url)
    append(url, [4])
    reader = open_reader(url)
    end = reader.latestOffset(reader.initialOffset())
    assert reader.latestOffset(end) == end and reader.partitions(end, end) == []
    api.delete_cube(CUBE, url)
    api.build_cube(cells(range(4)), CUBE, url)
    for x in range(appends):
        append(url, [x])
    for ask in (lambda: reader.latestOffset(end), lambda: reader.partitions(end, {**end, "version": 9})):
        with pytest.raises(ValueError, match="deleted and created again since the stream has read it: start"):
            ask()


@pytest.mark.skipif(not hasattr(datasource, "limits"), reason="Spark 4.1 asks for all that there is")
def test_a_batch_has_some_of_the_files(stream, url):
    append(url, range(4, 8))
    batches = stream.run(maxFilesPerTrigger=1)
    assert sorted(batches[:2]) == [[0, 2], [1, 3]] and sorted(batches[2:]) == [[4, 6], [5, 7]]


@pytest.mark.parametrize("option", ["startingVersion", "startingTimestamp"])
def test_a_stream_starts_at_a_version(stream, url, option):
    append(url, [4])
    append(url, [5])
    state = api.list_cube_history(CUBE, url)["seed"][-1]
    append(url, [6])
    start = state.version if option == "startingVersion" else state.time.isoformat()
    assert stream.run(**{option: start}) == [[5, 6]]


def test_a_stream_starts_now(stream, url):
    assert flat(stream.run(startingVersion="latest")) == []
    append(url, [4])
    assert stream.run(startingVersion="latest") == [[4]]


def test_removed_rows_are_an_error_unless_they_are_left_out(stream, url):
    append(url, [4])
    api.remove_partitions(CUBE, url, api.C("p") == 1)
    append(url, [5])
    with pytest.raises(PySparkException, match=r"operation remove.*removed or.*skipChangeCommits"):
        stream.run(startingVersion=3)
    assert flat(stream.run(startingVersion=3, skipChangeCommits="true")) == [4, 5]


def test_a_version_that_is_no_longer_kept_is_named(stream, url):
    api.keep_cube_history(CUBE, url, 1)
    for x in range(4, 8):
        append(url, [x])
    with pytest.raises(PySparkException, match=r"which are not kept.*Start again with a new check") as caught:
        stream.run(startingVersion=2)
    assert "Traceback" not in str(caught.value)


def test_a_stream_reads_one_dataset(stream, url):
    api.extend_cube({"more": pa.table({"x": [0, 1], "p": [0, 1], "w": [5, 6]})}, CUBE, url)
    api.keep_cube_history(CUBE, url, 20)
    remedy = r"'seed' has no column\(s\) w; name it in the option 'dataset'"
    with pytest.raises(PySparkException, match=remedy):
        stream.run()
    assert stream.run(dataset="more") == [[0, 1]]


@pytest.mark.parametrize(
    "options, fragment",
    [
        ({"startingVersion": "new"}, "'startingVersion' is a whole number, got 'new'"),
        ({"startingVersion": "1", "startingTimestamp": "2020-01-01"}, "startingVersion or startingTimestamp"),
        ({"maxFilesPerTrigger": "0"}, "'maxFilesPerTrigger' is 1 or more"),
        ({"conditions": "x > 1"}, "a stream has no option 'conditions'"),
        ({"versionAsOf": "1"}, "a stream has no option 'versionAsOf'"),
        ({"skipChangeCommit": "true"}, "did you mean skipChangeCommits"),
        ({"skipChangeCommits": "yes"}, "'skipChangeCommits' is true or false"),
    ],
)
def test_wrong_options_are_named(options, fragment):
    with pytest.raises(ValueError, match=fragment):
        StreamOptions.of({"store": "hfs:///data", "cube": "cube", **options})


def test_without_history_there_is_no_stream(spark, tmp_path, url):
    api.build_cube(cells(range(4)), CUBE, url, metadata={"seed": {"kartothek_cube_keep_history": 0}})
    with pytest.raises(PySparkException, match=r"keeps no history.*keep_cube_history"):
        Stream(spark, tmp_path, url).run()


def test_a_cube_streams_into_another_one(stream, spark, tmp_path, url):
    append(url, [4], 1)
    rows = spark.readStream.format("kartothek_cube").options(store=url, cube="cube").load()
    for number in range(2):
        options = {"store": url, "cube": "copy", "dimension_columns": "x", "partition_columns": "p"}
        writer = rows.writeStream.format("kartothek_cube").options(**options)
        run_to_end(writer, tmp_path / "copies")
        expected = api.query_cube_arrow(CUBE, url)[0]
        assert api.query_cube_arrow(CUBE.copy(uuid_prefix="copy"), url)[0].equals(expected)
        append(url, [5 + number], 2)


@pytest.mark.parametrize("kind, points", [("format", ["after"]), ("function", ["after", "before"])])
def test_a_stream_that_is_killed_writes_each_row_once(tmp_path, url, kind, points):
    assert run_with_kills(url, tmp_path, points, seconds=1, kind=kind) == len(points)
