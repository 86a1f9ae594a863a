"""kartothek 5.3 wrote it: reading its datasets and cubes gives what it gave."""

from collections import Counter

import pandas as pd
import pytest

from tests.support.golden import CASES, OPERATIONS, check, execute

#: errors of kartothek that are answers here, by exact comparison of two types of numbers: same condition
ANSWERED = {"geodata-error-condition-type-float": [["avg_temp", ">=", 2]]}


@pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in CASES if c["name"] not in ANSWERED])
def test_golden(case):
    why = check(case)
    assert why is None, why


@pytest.mark.parametrize("name", ANSWERED)
def test_errors_that_became_answers(name):
    (case,) = (case for case in CASES if case["name"] == name)
    assert case["expect"]["kind"] == "error"
    (found,) = execute(case)
    (expected,) = execute({**case, "args": {"conditions": ANSWERED[name]}})
    assert len(found["table"])
    pd.testing.assert_frame_equal(found["table"], expected["table"])


def test_every_operation_has_cases():
    assert {case["operation"] for case in CASES} == set(OPERATIONS)
    assert [name for name, count in Counter(case["name"] for case in CASES).items() if count > 1] == []
