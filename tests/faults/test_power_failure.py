"""Power failures at each moment of each operation, on a model of a disk: nothing acknowledged is lost."""

from __future__ import annotations

import pytest

from tests.support.power_operations import OPERATIONS, check_all


@pytest.mark.parametrize("name", OPERATIONS)
def test_power_failure(name, tmp_path):
    assert check_all(name, tmp_path, lots=1, seed=1) > 50
