"""A fixed sample of the random queries of random cubes in tests/soak, on all façades, against a model."""

from __future__ import annotations

from collections import Counter

import pytest

from kartothek_cube.io_components.query import dynamic_filter, executor
from tests.support.query_fuzz import run_case


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_queries_of_random_cubes(first, tmp_path, monkeypatch):
    # files of any size are scanned by Polars where that is possible; the others are many
    monkeypatch.setattr(dynamic_filter, "_MIN_BYTES", 0)
    # their rows are joined in blocks of few rows
    monkeypatch.setattr(executor, "_BLOCK_ROWS", 3)
    counts: Counter[str] = Counter()
    for number in range(first, first + 4):
        run_case(number, tmp_path, counts, queries=4, share=0.3)
    assert {"eager", "iter", "delayed", "bag_bs1", "dataframe", "arrow", "columns"} <= set(counts)
