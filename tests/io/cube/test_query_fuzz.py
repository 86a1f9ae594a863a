"""A fixed sample of the random queries of random cubes in tests/soak, on all façades, against a model."""

from collections import Counter

import pytest

from kartothek_cube.core import tuning
from tests.support.query_fuzz import run_case

MORE = pytest.mark.slow("random cubes, queried with all façades")


@pytest.mark.parametrize("first", [12, *(pytest.param(first, marks=MORE) for first in (0, 4, 8))])
def test_queries_of_random_cubes(first, tmp_path, monkeypatch):
    # blocks of one partition
    monkeypatch.setattr(tuning, "BLOCK_BYTES", 0.1)
    counts: Counter[str] = Counter()
    for number in range(first, first + 4):
        run_case(number, tmp_path, counts, queries=4, share=0.3)
    assert {"eager", "iter", "delayed", "bag_bs1", "dataframe", "arrow", "columns"} <= set(counts)
