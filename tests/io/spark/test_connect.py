"""The way through cubes, datasets, the data source and streams with Spark Connect, which has no JVM."""

from __future__ import annotations

import os
import subprocess
import sys

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
