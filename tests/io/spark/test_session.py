"""Sessions: quiet, with the right Python, and clear about what is missing."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.io.spark import _java_version, local_session, register
from kartothek_cube.io.spark._datasource_options import patch_pyspark
from kartothek_cube.io.spark._session import active_session, explain_error, no_pandas_warnings, workers
from tests.io.spark.test_cube import CUBE, seed
from tests.support.paths import ROOT
from tests.support.spark_session import CONFIG

pytestmark = pytest.mark.slow("runs many Spark jobs")


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with nothing of Spark in its environment."""
    env = {k: v for k, v in os.environ.items() if "SPARK" not in k and k != "VIRTUAL_ENV"}
    env |= {"PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


FIRST_STEPS = """
import tempfile, pyarrow as pa
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.spark import create_frame, local_session
from kartothek_cube.io.spark.cube import build_cube_from_spark, query_cube_spark
spark = local_session(1)
cube, store = Cube(["x"], ["p"], "cube"), "hfs://" + tempfile.mkdtemp()
build_cube_from_spark(create_frame(pa.table({"x": [1, 2], "p": [0, 1]})), cube, store)
assert spark.read.format("kartothek_cube").load(store, cube="cube").where("x > 1").count() == 1
try:
    spark.sql("SELECT y FROM range(1)")
except Exception as error:
    assert "A column, variable, or function parameter with name `y` cannot be resolved" in str(error)
print(sorted(map(tuple, query_cube_spark(cube, store).collect())), local_session() is spark)
"""


@pytest.mark.slow("starts a session of its own")
def test_first_steps_are_quiet_and_use_this_python(tmp_path):
    """Also if there is no virtual environment on the PATH, and another Python is."""
    (tmp_path / "python3").write_text("#!/bin/sh\necho this is another Python >&2\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    # Java compiles little, as in all tests: most of its code runs once
    settings = "".join(f"{name} {value}\n" for name, value in CONFIG.items())
    (tmp_path / "spark-defaults.conf").write_text(settings)
    spark = {"PYSPARK_PYTHON": str(tmp_path / "python3"), "SPARK_CONF_DIR": str(tmp_path)}
    result = python(FIRST_STEPS, PATH=f"{tmp_path}:/usr/bin:/bin", **spark)
    assert (result.stdout, result.stderr) == ("[(0, 1), (1, 2)] True\n", "")


@pytest.mark.parametrize("found, said", [("none", "found none"), ("1.8.0_292", "found 8"), ("11.0.2", "11")])
def test_without_java_one_sentence_says_what_to_do(tmp_path, found, said):
    if found != "none":
        (tmp_path / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{found}\" 2020' >&2\n")
        (tmp_path / "java").chmod(0o755)
    code = "from kartothek_cube.io.spark import local_session; local_session()"
    result = python(code, PATH=str(tmp_path), JAVA_HOME="")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: Spark needs Java 17 or newer, but found")
    assert said in last and "apt-get install openjdk-17-jre-headless" in last


def test_java_home_is_looked_at_first(tmp_path, monkeypatch):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert _java_version() == 21


def test_the_active_session_is_taken(session, monkeypatch):
    assert local_session() is session is active_session() is register()
    assert workers(session) == 2
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    # as in a thread
    assert active_session() is session


def test_without_a_session_the_error_says_how_to_start_one():
    statement = "from kartothek_cube.io.spark._session import active_session; active_session()"
    done = python(statement)
    assert "RuntimeError: There is no active Spark session" in done.stderr and "local_session" in done.stderr
    assert "in tasks use kartothek_cube.io.eager_cube" in done.stderr


# the Python of executors ------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path) -> str:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return str(tmp_path / "bare" / "bin" / "python")


@pytest.mark.parametrize("name", ["python", "nothing"])
def test_a_wrong_python_is_recognised_when_the_job_fails(jvm, url, bare, monkeypatch, name):
    frame = jvm.createDataFrame(seed())
    monkeypatch.setattr(jvm.sparkContext, "pythonExec", str(Path(bare).parent / name))
    text = r"The Python of Spark's executors is not the right one .*set the env.*PYSPARK"
    with pytest.raises(RuntimeError, match=text):
        api.build_cube_from_spark(frame, CUBE, url)


@pytest.mark.parametrize(
    "text, what",
    [
        ("ModuleNotFoundError: No module named 'kartothek_cube'", "kartothek_cube"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "PYTHON_VERSION_MISMATCH"),
        ('java.io.IOException: Cannot run program "python9": error=2', "python9"),
        ("org.apache.spark.SparkException: Python worker failed to connect back.", "failed to connect back"),
        ("[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed", "PyArrow"),
        ("ModuleNotFoundError: No module named 'sklearn'", None),
        ("ValueError: something else", None),
    ],
)
def test_what_failures_mean(text, what):
    reason = explain_error(RuntimeError(text))
    assert (reason is None) if what is None else (what in str(reason) and sys.executable in str(reason))


def test_rows_that_differ_when_spark_computes_them_again_need_a_checkpoint():
    said = "Job aborted: A shuffle map stage with indeterminate output was failed and retried. However, ..."
    assert "call checkpoint()" in str(explain_error(RuntimeError(said)))


# what jobs say ----------------------------------------------------------------------------------------------


def test_jobs_say_which_operation_of_which_cube(jvm, url, monkeypatch):
    texts, kind = [], type(jvm.sparkContext)
    describe = kind.setJobDescription
    monkeypatch.setattr(kind, "setJobDescription", lambda sc, text: texts.append(text) or describe(sc, text))
    monkeypatch.setattr("kartothek_cube.io.spark.cube._BLOCK", 1)
    jvm.sparkContext.setJobDescription("of the user")
    frame = jvm.createDataFrame(seed())
    api.build_cube_from_spark(frame, CUBE, url)
    api.append_to_cube_from_spark(frame, CUBE, url)
    api.build_cube_from_spark(frame, CUBE, url, overwrite=True)
    api.cleanup_cube_spark(CUBE, url)
    done = ("build cube cube: seed", "append cube cube: seed", "build cube cube: seed", "clean up cube cube")
    assert texts == ["of the user", *done]
    assert jvm.sparkContext.getLocalProperty("spark.job.description") == "of the user"
    assert "query_cube" in api.query_cube_spark(CUBE, url)._jdf.queryExecution().toString()


# errors of users' functions ---------------------------------------------------------------------------------


def test_a_function_that_fails_is_named_with_its_line(spark, url):
    api.build_cube_from_spark(spark.createDataFrame(seed()), CUBE, url)

    def wrong(table):
        if len(table):
            raise KeyError("nokey")  # this line
        return table

    with pytest.raises(Exception, match=r"Function wrong failed for .*KeyError: 'nokey'") as caught:
        api.map_cube_spark(wrong, CUBE, url).collect()
    line = wrong.__code__.co_firstlineno + 2
    assert f"{__file__}, line {line}" in str(caught.value)
    assert len(str(caught.value).splitlines()) < 12
    mapped = api.map_cube_spark(wrong, CUBE, url, payload_columns=["v1"]).withColumnRenamed("v1", "v2")
    with pytest.raises(RuntimeError, match=f"^Function wrong failed for .* line {line}: KeyError: 'nokey'$"):
        api.extend_cube_from_spark({"more": mapped}, CUBE, url)


def test_input_that_fails_is_one_sentence(spark, url):
    def wrong(batches):
        for _ in batches:
            raise KeyError("nokey")
        yield from ()

    frame = spark.createDataFrame(seed())
    with no_pandas_warnings():
        frame = frame.mapInArrow(wrong, frame.schema)
    with pytest.raises(RuntimeError) as caught:
        api.build_cube_from_spark(frame, CUBE, url)
    line = wrong.__code__.co_firstlineno + 2
    assert str(caught.value) == f"A task failed in wrong ({__file__}, line {line}): KeyError: 'nokey'"
    assert caught.value.__suppress_context__


def test_an_unknown_version_of_pyspark_is_a_warning(monkeypatch):
    unknown = SimpleNamespace(DataFrameWriter=type("DataFrameWriter", (), {"save": print}))
    monkeypatch.setitem(sys.modules, "pyspark.sql.readwriter", unknown)
    with pytest.warns(UserWarning, match=r"PySpark is unknown .* Use kartothek_cube.io.spark.cube"):
        patch_pyspark()
