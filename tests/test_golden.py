"""kartothek 5.3 wrote it: reading its datasets and cubes gives what it gave."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.golden import CASES, OPERATIONS, check

#: what the package offers by now
ENABLED = (
    "query_cube",
    "collect_stats",
    "discover_cube",
    "dataset_metadata",
    "indices",
    "indices_as_dataframe",
    "query_partitions",
    "storage_keys",
    "exists",
    "read_table",
    "read_dataset_as_dataframes",
)


@pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in CASES if c["operation"] in ENABLED])
def test_golden(case):
    why = check(case)
    assert why is None, why


def test_no_operation_is_forgotten():
    assert {case["operation"] for case in CASES} == set(OPERATIONS) == set(ENABLED)


def test_case_names_are_unique():
    assert [name for name, count in Counter(case["name"] for case in CASES).items() if count > 1] == []
