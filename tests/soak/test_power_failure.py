"""Power failures on a model of a disk, many times more of them than in tests/faults."""

import os

import pytest

from tests.support.power_operations import OPERATIONS, check_all

#: how often it is drawn by lot what is lost at each moment
LOTS = int(os.environ.get("KARTOTHEK_CUBE_FAILURES", "100"))
SEED = int(os.environ.get("KARTOTHEK_CUBE_SEED", "1"))


@pytest.mark.parametrize("name", OPERATIONS)
def test_power_failure(name, tmp_path):
    assert check_all(name, tmp_path, LOTS, SEED) > 10 * LOTS
