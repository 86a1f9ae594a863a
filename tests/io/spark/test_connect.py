"""Spark Connect: a client without Java, a server whose Python lacks the library until the client ships it."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.support.paths import ROOT
from tests.support.standalone import wait_for

pytestmark = pytest.mark.slow("a server of Spark Connect and its clients")

HOME = Path(pyspark.__file__).parent
#: tests of this folder that a client runs after it has sent the library
TESTS = {
    "test_cube.py": (
        "test_map_takes_columns_of_the_query_for_what_they_are",
        "test_large_partitions_become_several_files[3]",
        "test_cells_that_occur_twice_are_an_error_of_the_library[None]",
        "test_nothing_is_left_when_the_job_fails",
        "test_an_update_replaces_partitions",
    ),
    "test_cube_maintain.py": ("test_compact", "test_retention"),
    "test_merge.py": ("test_a_merge_is_that_of_the_eager_function",),
    "test_dataset.py": (
        "test_reads_are_planned[arguments0-expected0]",
        "test_an_update_adds_and_removes",
        "test_garbage_is_collected_by_executors",
    ),
    "test_datasource.py": ("test_modes_differ_in_what_they_do_with_what_is_there[append-expected0]",),
    "test_catalog.py": ("test_a_cube_is_a_table_of_the_catalog",),
    "test_table.py": (
        "test_a_table_has_the_methods_of_a_frame",
        "test_a_chain_reads_what_it_needs[two uses]",
    ),
    "test_round_trips.py": ("test_columns_survive_in_cubes[function]",),
}
#: ``sitecustomize`` of the server's Python: the library is where Spark puts what clients send, or in {}
SERVER_PYTHON = """
import importlib.machinery, sys

class Found:
    def find_spec(name, path=None, target=None):
        if name in ("kartothek_cube", "tests"):
            places = [entry for entry in sys.path if "/userFiles-" in entry]
            spec = importlib.machinery.PathFinder.find_spec(name, [*places, {!r}])
            if spec is None:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
            return spec

sys.meta_path.insert(0, Found)
"""
#: ``sitecustomize`` of the client: of PySpark it has what the package pyspark-client contains
CLIENT_PYTHON = """
import sys
sys.modules["py4j"] = sys.modules["pyspark.core"] = None
"""
#: what a packed environment has instead of a Python of its own
ENVIRONMENT_PYTHON = """#!/bin/sh
PYTHONPATH="$(dirname "$0")/../lib:$PYTHONPATH" exec "{}" "$@"
"""
#: plain PySpark 4.3: tasks of a stream do not find what a client sent, those of other queries do
PLAIN = """
import sys, tempfile
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
module, directory = Path(tempfile.mkdtemp(), "sent.py"), tempfile.mkdtemp()
module.write_text("")
spark.addArtifacts(str(module), pyfile=True)

def use(batches):
    import sent
    yield from batches

print(spark.range(3).mapInArrow(use, "id bigint").count())
spark.range(3).write.mode("overwrite").parquet(directory)
stream = spark.readStream.schema("id bigint").parquet(directory).mapInArrow(use, "id bigint")
query = stream.writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp()).start()
try:
    query.processAllAvailable()
except Exception as error:
    print("No module named 'sent'" in str(error))
"""
#: a stream from a cube into another one, to its end
STREAM = """
import sys, tempfile
import pyarrow as pa
from pyspark.sql import SparkSession
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import build_cube, keep_cube_history, query_cube
from kartothek_cube.io.spark import register

store, spark = sys.argv[1], register(SparkSession.builder.getOrCreate())
source, target = (Cube(["x"], ["p"], name) for name in ("source", "target"))
build_cube(pa.table({"x": [1, 2], "p": [0, 1]}), source, store)
keep_cube_history(source, store, 9)
rows = spark.readStream.format("kartothek_cube").options(store=store, cube="source").load()
sink = rows.writeStream.format("kartothek_cube").options(store=store, cube="target")
sink = sink.options(dimension_columns="x", partition_columns="p", checkpointLocation=tempfile.mkdtemp())
query = sink.trigger(availableNow=True).start()
query.awaitTermination()
query.stop()
print(query_cube(target, store)[0]["x"].tolist())
"""
#: functions, with an environment that has the library
PACKED = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.spark import create_frame
from kartothek_cube.io.spark.cube import build_cube_from_spark, query_cube_spark

store, environment = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
cube, frame = Cube(["x"], ["p"], "cube"), create_frame(pa.table({"x": [1, 2], "p": [0, 1]}), spark)
try:
    build_cube_from_spark(frame, cube, store)
except RuntimeError as error:
    print(error)
spark.addArtifacts(f"{environment}#environment", archive=True)
spark.conf.set("spark.sql.execution.pyspark.python", "environment/bin/python")
build_cube_from_spark(frame, cube, store)
print(sorted(map(tuple, query_cube_spark(cube, store).collect())))
"""


def python_path(directory: Path, code: str) -> str:
    """A directory whose code each Python runs that has it in its path."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(code)
    return str(directory)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A directory, empty at first, where the server's Python looks for the library."""
    return tmp_path_factory.mktemp("installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory, installed) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 2,
    }
    env = {
        **{name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"},
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": python_path(directory / "python", SERVER_PYTHON.format(str(installed))),
    }
    command = [HOME / "bin" / "spark-submit", "--master", "local[2]"]
    command += [part for name, value in options.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=directory, stdout=log, stderr=log)
    try:
        wait_for("127.0.0.1", port, process)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def run_client(server: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python without Java; a hanging call fails."""
    path = [entry for entry in os.environ["PATH"].split(os.pathsep) if not Path(entry, "java").exists()]
    env = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    env |= {
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join([python_path(directory / "client", CLIENT_PYTHON), str(ROOT)]),
        "SPARK_REMOTE": server,
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def run_script(server: str, directory: Path, code: str, *arguments: str) -> list[str]:
    result = run_client(server, directory, "-c", code, *arguments)
    assert result.returncode == 0, result.stderr[-5_000:]
    return result.stdout.splitlines()


def test_a_packed_environment_serves_functions(server, tmp_path, url):
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text(ENVIRONMENT_PYTHON.format(sys.executable))
    python.chmod(0o755)
    shutil.copytree(ROOT / "kartothek_cube", environment / "lib" / "kartothek_cube")
    archive = shutil.make_archive(str(environment), "gztar", environment)
    refused, *rows = run_script(server, tmp_path, PACKED, url, archive)
    assert "(kartothek_cube). The server of Spark Connect needs a Python" in refused
    assert rows == ["[(0, 1), (1, 2)]"]


def test_streams_do_not_find_what_a_client_sent(server, tmp_path):
    """If this fails, Spark has changed: the documentation tells that streams need more."""
    assert run_script(server, tmp_path, PLAIN) == ["3", "True"]


def test_a_client_without_java_sends_the_library(server, tmp_path):
    names = [f"tests/io/spark/{module}::{name}" for module, names in TESTS.items() for name in names]
    result = run_client(server, tmp_path, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *names)
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr[-2_000:]
    assert " passed" in result.stdout and "deselected" not in result.stdout


def test_a_client_without_java_starts_streams(server, tmp_path, url, installed):
    (installed / "kartothek_cube").symlink_to(ROOT / "kartothek_cube")
    assert run_script(server, tmp_path, STREAM, url) == ["[1, 2]"]
