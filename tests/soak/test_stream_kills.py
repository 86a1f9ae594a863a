"""A stream whose driver is killed 50 times in the middle of batches; takes half an hour."""

from __future__ import annotations

import itertools

from tests.support.stream_kills import run_with_kills
from tests.support.stream_pipeline import POINTS


def test_a_stream_survives_50_kills(tmp_path):
    points = itertools.islice(itertools.cycle(POINTS), 50)
    assert run_with_kills(f"hfs://{tmp_path / 'store'}?create_if_missing=true", tmp_path, points) == 50
