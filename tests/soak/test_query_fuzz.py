"""More random queries of random cubes than in each run of the tests, against a model: ``make soak``.

KARTOTHEK_CUBE_CASES says how many cubes; KARTOTHEK_CUBE_SEED which: a failure names the number of its case,
and ``KARTOTHEK_CUBE_CASES=1 KARTOTHEK_CUBE_SEED=<number>`` runs that one again.
"""

import datetime
import os
from collections import Counter

import pytest

from tests.support.query_fuzz import run_case

CASES = int(os.environ.get("KARTOTHEK_CUBE_CASES", "1000"))
#: all workers of pytest-xdist have to agree on it; other cases every day
SEED = int(os.environ.get("KARTOTHEK_CUBE_SEED", datetime.date.today().toordinal() * 1_000_000))
#: cases of one test
BATCH = 50


@pytest.mark.parametrize("first", range(SEED, SEED + CASES, BATCH))
def test_queries_of_random_cubes(first, tmp_path):
    counts: Counter[str] = Counter()
    for number in range(first, min(first + BATCH, SEED + CASES)):
        run_case(number, tmp_path, counts, queries=10, share=0.1)
    print(dict(counts))  # noqa: T201
