"""The way through cubes, datasets, the data source and streams with Spark Connect, which has no JVM."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.paths import ROOT

#: tests of this folder that run again, in a process whose session is one of Spark Connect
TESTS = {
    "test_cube.py": (
        "test_the_schema_is_there_without_rows[arguments0]",
        "test_query_transform_extend_is_one_line",
        "test_large_partitions_become_several_files[3]",
        "test_cells_that_occur_twice_are_an_error_of_the_library[None]",
        "test_nothing_is_left_when_the_job_fails",
        "test_an_update_replaces_partitions",
        "test_names_need_no_quotes",
        "test_times_do_not_depend_on_the_zone_of_the_session",
    ),
    "test_merge.py": ("test_a_merge_is_that_of_the_eager_function",),
    "test_dataset.py": (
        "test_a_dataset_is_read_as_it_was_written",
        "test_an_update_adds_and_removes",
        "test_indices_are_built_by_executors",
        "test_garbage_is_collected_by_executors",
    ),
    "test_datasource.py": (
        "test_a_read_is_the_query",
        "test_sql_sees_a_view",
        "test_wrong_options_are_named[options2-unknown option collumns; did you mean columns?]",
        "test_modes_differ_in_what_they_do_with_what_is_there",
    ),
    "test_stream.py": ("test_a_replayed_batch_changes_nothing[1]",),
    "test_inside_tasks.py": ("test_queries_in_map_in_arrow[url]",),
    "test_round_trips.py": ("test_columns_survive_in_cubes", "test_columns_survive_in_datasets"),
}


def test_the_main_path_works_with_spark_connect():
    tests = [f"tests/io/spark/{module}::{name}" for module, names in TESTS.items() for name in names]
    # a port of its own: that of Spark Connect may be taken
    env = {**os.environ, "SPARK_REMOTE": "local[2]", "SPARK_TESTING": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr[-2_000:]
    assert " passed" in result.stdout and "deselected" not in result.stdout


def test_a_client_without_java_ships_its_modules(tmp_path: Path):
    """A module and a zipped package that the server lacks travel by Connect."""
    (tmp_path / "store").mkdir()
    (tmp_path / "bin").mkdir()
    module, package = tmp_path / "shipped_module.py", tmp_path / "shipped_package.zip"
    module.write_text(
        "import pyarrow.compute as pc\n"
        "def double(t, column, name):\n"
        "    return t.drop_columns(column).append_column(name, pc.multiply(t[column], 2))\n"
    )
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("shipped_package/__init__.py", "")
        archive.writestr(
            "shipped_package/scale.py",
            "import pyarrow.compute as pc\n"
            "def negate(t, column):\n"
            "    return t.drop_columns(column).append_column(column, pc.negate(t[column]))\n",
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = {k: v for k, v in os.environ.items() if "SPARK" not in k}
    env |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    env["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = "token"
    server = subprocess.Popen(
        [sys.executable, "tests/io/spark/connect_server.py", port],
        cwd=ROOT,
        env={**env, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    script = [sys.executable, "tests/io/spark/connect_client.py", f"sc://127.0.0.1:{port}"]
    try:
        assert server.stdout is not None and "started" in server.stdout.readline()
        url = f"hfs://{tmp_path / 'store'}"
        client = subprocess.run(
            [*script, url, module, package],
            cwd=ROOT,
            env={k: v for k, v in env.items() if k != "JAVA_HOME"} | {"PATH": str(tmp_path / "bin")},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.communicate()
    assert client.returncode == 0 and "done" in client.stdout, client.stdout + client.stderr[-5_000:]
