import datetime

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.core.cube import C
from kartothek_cube.utils import predicate_converter


@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("value", ["a=b", '"q"', "", 1, 1.5, True, pd.Timestamp("2020-01-01 05:00")])
def test_literal(op, value):
    condition = predicate_converter.write_predicate_as_cube_condition(("x y", op, value))
    assert condition.predicate_part == [("x y", op, value)]
    assert type(condition.value) is type(value)


def test_conjunction_without_nulls():
    found = predicate_converter.convert_predicates_to_cube_conditions([[("x", "==", "a"), ("y", ">", 1)]])
    assert found == (C("x") == "a", C("y") > 1)
    assert predicate_converter.convert_predicates_to_cube_conditions(None) == ()
    with pytest.raises(ValueError, match="'x'"):
        predicate_converter.write_predicate_as_cube_condition(("x", "==", float("nan")))


@pytest.mark.parametrize("predicates", [[], [[("x", "==", 1)], [("y", "==", 1)]]])
def test_cubes_know_no_or(predicates):
    with pytest.raises(ValueError, match=f"exactly one conjunction, but got {len(predicates)}"):
        predicate_converter.convert_predicates_to_cube_conditions(predicates)


@pytest.mark.parametrize("literal", [("x", "=="), ("x", "==", 1, 2), ()])
def test_literal_has_three_entries(literal):
    with pytest.raises(ValueError, match="exactly 3 entries"):
        predicate_converter.write_predicate_as_cube_condition(literal)


@pytest.mark.parametrize("value", [None, [1], datetime.date(2020, 1, 1), np.int64(1), b"a"], ids=repr)
def test_value_of_another_type(value):
    with pytest.raises(TypeError, match="'x' must be one of str, int, float, bool, Timestamp, not a "):
        predicate_converter.write_predicate_as_cube_condition(("x", "==", value))


@pytest.mark.parametrize("op", ["in", "=>", "", "__class__"])
def test_unknown_operator(op):
    with pytest.raises(ValueError, match=f"Operator '{op}' has no condition, available: ==, !="):
        predicate_converter.write_predicate_as_cube_condition(("x", op, 1))
