"""Processes that are killed at random moments: each dataset is in its old or its new state, whole."""

import os
import random

import pyarrow.parquet as pq
import pytest

from tests.support import crash
from tests.support.paths import files_below

pytestmark = pytest.mark.slow("kills processes at random moments")

#: kills of each operation; KARTOTHEK_CUBE_KILLS asks for more, as ``make soak`` does, and
#: KARTOTHEK_CUBE_SEED for the same moments again
KILLS = int(os.environ.get("KARTOTHEK_CUBE_KILLS", "8"))


@pytest.mark.parametrize("name", crash.OPERATIONS)
def test_kill(name, tmp_path):
    moments = random.Random(os.environ.get("KARTOTHEK_CUBE_SEED"))
    before = tmp_path / "before"
    old = crash.prepare(name, before)
    seconds = 60.0
    for _ in range(3):
        seconds = min(seconds, crash.duration(name, crash.copy_place(before, tmp_path / "calm")))
    new = crash.contents(crash.Place.below(tmp_path / "calm"))

    killed = 0
    for _ in range(50 * KILLS):
        root = tmp_path / "killed"
        place = crash.copy_place(before, root)
        moment = moments.uniform(0, 1.2 * seconds)
        if crash.run_and_kill(name, place, moment):
            killed += 1
        else:
            # other processes may have slowed down the first runs
            seconds = min(seconds, moment)
        for path in root.rglob("*.parquet"):
            pq.read_metadata(path)
        crash.check_old_or_new(place, old, new)
        assert files_below(root / "store") == crash.tracked(crash.CUBE, place.store)
        assert files_below(root / "other") == crash.tracked(crash.COPY, place.other)
        if killed == KILLS:
            break
    assert killed == KILLS
