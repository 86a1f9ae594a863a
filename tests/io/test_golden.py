"""kartothek 5.3 wrote it: reading its datasets and cubes gives what it gave."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.golden import CASES, OPERATIONS, check


@pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in CASES])
def test_golden(case):
    why = check(case)
    assert why is None, why


def test_every_operation_has_cases():
    assert {case["operation"] for case in CASES} == set(OPERATIONS)


def test_case_names_are_unique():
    assert [name for name, count in Counter(case["name"] for case in CASES).items() if count > 1] == []
