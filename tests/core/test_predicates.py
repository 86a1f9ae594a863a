import datetime
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.core import expressions
from tests.support.predicates import KINDS, brute_force, literals, predicates_of, rows_of, stamp, tables


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_mask_equals_brute_force(name: str, data: st.DataObject) -> None:
    names = [name, *data.draw(st.lists(st.sampled_from(sorted(KINDS)).filter(name.__ne__), max_size=1))]
    table = data.draw(tables(names))
    rows = rows_of(table)
    single = [[[literal]] for literal in data.draw(st.lists(literals(name), min_size=6, max_size=6))]
    for predicates in [*single, data.draw(predicates_of(names))]:
        expected = brute_force(rows, predicates)
        mask = expressions.tree_mask(table, expressions.to_tree(predicates))
        assert [row for row, hit in enumerate(mask.to_pylist()) if hit] == expected


DAY = datetime.date(2020, 1, 1)
TABLE = pa.table({"x": [1, 2, None], "y": ["a", None, "b"]})


@pytest.mark.parametrize(
    "predicates, error, message",
    [
        ([], ValueError, "Empty predicates"),
        ([[]], ValueError, "Conjunction 0 is empty"),
        ([[("x", "==", 1)], ()], ValueError, "Conjunction 1 .* got tuple"),
        ("x", ValueError, "Conjunction 0 .* got str"),
        ([[("x", "==", 1), ["x", "==", 1]]], ValueError, "Literal 1 in conjunction 0"),
        ([[("x", "==")]], ValueError, "Literal 0 in conjunction 0"),
        ([[("x", "==", 1, 2)]], ValueError, "Literal 0 in conjunction 0"),
        *(([[("x", *rest)]], ValueError, "'x'") for rest in (("<", None), (">=", math.nan), ("in", None))),
        ([[("x", "in", "abc")]], TypeError, "'x'.* got str"),
        ([[("x", "not in", 1)]], TypeError, "'x'.* got int"),
        ([[("x", "in", iter([1]))]], TypeError, "'x'.* got list_iterator"),
        ([[("x", "==", b"\0")]], NotImplementedError, "NUL"),
        ([[("x", "in", [b"a", b"b\0"])]], NotImplementedError, "NUL"),
    ],
)
def test_check_predicates_refuses(predicates, error, message):
    with pytest.raises(error, match=message):
        expressions.check_predicates(predicates)


@pytest.mark.parametrize(
    "predicates",
    [
        None,
        [[("x", "==", None)], [("x", "!=", pd.NaT)]],
        [[("x", "==", "\0")]],
        [[("x", "not in", {1})]],
        *([[("x", "in", values)]] for values in ([None, 1], [], np.array([1]))),
    ],
)
def test_check_predicates_accepts(predicates):
    expressions.check_predicates(predicates)


def test_columns_in_predicates():
    assert expressions.columns_in_predicates(None) == set()
    predicates = [[("x", "==", 1), ("y", "==", 1)], [("x", "<", 1)]]
    assert expressions.columns_in_predicates(predicates) == {"x", "y"}


@pytest.mark.parametrize(
    "columns, expected",
    [
        (["x", "y"], [[("x", "==", 1), ("y", "==", 2)], [("y", "<", 3)]]),
        (["x"], [[("x", "==", 1)]]),
        (["y"], [[("y", "==", 2)], [("y", "<", 3)]]),
        (["z"], None),
    ],
)
def test_filter_predicates_by_column(columns, expected):
    predicates = [[("x", "==", 1), ("y", "==", 2)], [("y", "<", 3)]]
    assert expressions.filter_predicates_by_column(predicates, columns) == expected
    assert expressions.filter_predicates_by_column(None, columns) is None


@pytest.mark.parametrize("array", [pa.nulls(0, "int64"), pa.chunked_array([], "int64"), pa.nulls(3, "int64")])
def test_types_are_checked_without_values(array):
    with pytest.raises(TypeError, match=r"'x' of type int64 .*\(==\) with '1' \(type str\)"):
        expressions.literal_mask(array, "==", "1", "x")
    assert expressions.literal_mask(array, "==", 1).to_pylist() == [False] * len(array)


@pytest.mark.parametrize("op, expected", [("in", [False, False, False]), ("not in", [True, True, False])])
def test_empty_list_matches_without_a_type(op, expected):
    assert expressions.literal_mask(TABLE["x"], op, []).to_pylist() == expected


@pytest.mark.parametrize(
    "op, value, expected",
    [("==", "a", False), ("!=", 1, False), ("<", 1.5, False), ("in", [1, "a"], False), ("not in", [1], False),
     ("==", None, True), ("!=", None, False), ("in", ["a", None], True)],
)  # fmt: skip
def test_null_columns_take_any_value(op, value, expected):
    assert expressions.literal_mask(pa.nulls(2), op, value).to_pylist() == [expected, expected]


def test_a_column_of_nan_and_null_takes_any_value():
    array = pa.array([math.nan, None])
    assert expressions.literal_mask(array, "==", "a").to_pylist() == [False, False]
    with pytest.raises(TypeError):
        expressions.literal_mask(pa.array([math.nan, 1.0]), "==", "a")


def test_the_codes_of_a_dictionary_may_have_no_room_for_another_value():
    array = pa.DictionaryArray.from_arrays(pa.array([127, None], pa.int8()), pa.array(range(128)))
    assert expressions.literal_mask(array, "==", 127).to_pylist() == [True, False]
    assert expressions.literal_mask(array, "in", [1, None]).to_pylist() == [False, True]


@pytest.mark.parametrize("op", ["~", "=", "IN", None])
def test_unknown_operator(op):
    with pytest.raises(NotImplementedError, match=r"'x'.* not in"):
        expressions.tree_mask(TABLE, ("x", op, 1))
    with pytest.raises(NotImplementedError, match=r"'x'.* not in"):
        expressions.bind([[("x", op, 1)]], TABLE.schema)


@pytest.mark.parametrize(
    "predicates, error, message",
    [
        ([[("z", "==", 1)], [("xx", "==", 1)]], ValueError, "xx, z"),
        ([[("x", "==", 1), ("y", "==", 1)]], TypeError, "'y'"),
        ([[("x", "<", None)]], ValueError, "null"),
        ([], ValueError, "Empty"),
    ],
)
def test_bind_refuses(predicates, error, message):
    with pytest.raises(error, match=message):
        expressions.bind(predicates, TABLE.schema)


def test_what_is_bound_and_what_matches_everything():
    expressions.bind(None, TABLE.schema)
    expressions.bind([[("x", "==", 2**80), ("y", "in", ["a", None])]], TABLE.schema)
    with pytest.raises(ValueError, match="unknown column z"):
        expressions.tree_mask(TABLE, ("z", "==", 1))
    assert expressions.tree_mask(TABLE, None).to_pylist() == [True] * 3


@pytest.mark.parametrize(
    "predicates, constants, expected",
    [
        ([[("p", "==", 1)]], {"p": 1}, True),
        ([[("p", "==", 2)]], {"p": 1}, False),
        ([[("p", "==", 1), ("x", ">", 1)]], {"p": 1}, [[("x", ">", 1)]]),
        ([[("p", "==", 2), ("x", ">", 1)], [("x", "<", 0)]], {"p": 1}, [[("x", "<", 0)]]),
        ([[("x", ">", 1)], [("p", "==", 1)]], {"p": 1}, True),
        ([[("x", ">", 1)]], {}, [[("x", ">", 1)]]),
        ([[("p", "in", ["a", "b"]), ("q", "<", DAY.replace(day=2))]], {"p": "a", "q": DAY}, True),
        ([[("p", ">", 1)]], {"p": np.uint64(2**64 - 1)}, True),
        ([[("p", "==", stamp("2020-01-01", 1))]], {"p": stamp("2020-01-01", 1).to_datetime64()}, True),
        ([[("p", "==", True)]], {"p": np.bool_(True)}, True),
    ],
)
def test_simplify(predicates, constants, expected):
    remaining = expected if isinstance(expected, bool) else expressions.to_tree(expected)
    scalars = {name: pa.scalar(value) for name, value in constants.items()}
    assert expressions.simplify(expressions.to_tree(predicates), scalars) == remaining


def test_simplify_checks_all_types():
    constants = dict.fromkeys("pq", pa.scalar(1))
    with pytest.raises(TypeError, match="'q'"):
        expressions.simplify(expressions.to_tree([[("p", "==", 2), ("q", "==", "a")]]), constants)
