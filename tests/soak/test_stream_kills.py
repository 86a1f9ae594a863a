"""Streams whose driver or executors are killed 50 times in the middle of batches; other jobs and faults."""

import itertools

from tests.io.spark.test_cluster import run_on_cluster
from tests.support.stream_kills import run_with_kills
from tests.support.stream_pipeline import POINTS

KILLS = 50


def test_a_stream_survives_kills_of_its_driver(tmp_path):
    points = itertools.islice(itertools.cycle(POINTS), KILLS)
    url = f"hfs://{tmp_path / 'store'}?create_if_missing=true"
    assert run_with_kills(url, tmp_path, points, seconds=2) == KILLS


def test_a_function_of_foreach_batch_survives_kills_of_its_driver(tmp_path):
    points = [*("after", "before", "read", "after") * 5]
    url = f"hfs://{tmp_path / 'store'}?create_if_missing=true"
    assert run_with_kills(url, tmp_path, points, seconds=1, kind="function") == 20


def test_a_stream_and_other_jobs_survive_kills_of_executors():
    run_on_cluster(KARTOTHEK_CUBE_KILLS=str(KILLS))
