"""Conditions that are long or nested: they work, or are refused in a sentence."""

import copy
import operator
import pickle
from functools import reduce

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kartothek_cube.core.cube.condition_codec import MAX_DEPTH
from kartothek_cube.core.cube.conditions import C, Conjunction, parse_conditions
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.arrow_cube import cube_dataset
from kartothek_cube.io.eager import read_table, store_dataframes_as_dataset
from kartothek_cube.io.eager_cube import build_cube, explain_query, query_cube, remove_partitions
from kartothek_cube.io.sql import connect
from tests.support.cubes import memory

CUBE = Cube(["X"], ["P"], "deep")
TYPES = {"X": pa.int64(), "V": pa.int64()}
FRAME = pd.DataFrame({"X": range(10), "P": 0, "V": range(10)})
TOO_DEEP = "Conditions are nested more than 50 deep"


@pytest.fixture(scope="module")
def store():
    build_cube(FRAME, CUBE, store := memory())
    return store


def nested(levels: int):
    """Alternating conjunctions and disjunctions."""
    condition = C("X") < 5
    for level in range(levels):
        condition = (condition & (C("V") != level)) if level % 2 else (condition | (C("V") == level))
    return condition


LONG = {
    "and": lambda: reduce(operator.and_, [C("V") != number for number in range(1_000, 2_000)]),
    "or": lambda: reduce(operator.or_, [C("V") == number for number in range(1_000)]),
    "deepest": lambda: nested(MAX_DEPTH - 1),
}


@pytest.mark.slow("conditions of a thousand terms")
@pytest.mark.parametrize("name", LONG)
def test_long_and_deep_conditions(store, name):
    condition = LONG[name]()
    assert pickle.loads(pickle.dumps(condition)) == copy.deepcopy(condition) == condition
    assert hash(condition) == hash(copy.copy(condition))
    assert repr(condition).count("column='V'") == str(condition).count("V")
    joined = Conjunction(condition)
    assert parse_conditions(str(condition), TYPES) == joined
    assert Conjunction.from_jsonarray(joined.to_jsonarray()) == joined
    expected = condition.filter_df(FRAME).X.tolist()
    assert [x for frame in query_cube(CUBE, store, condition) for x in frame.X] == expected
    others = [x for frame in query_cube(CUBE, store, ~condition) for x in frame.X]
    assert sorted(expected + others) == FRAME.X.tolist()
    assert "characters)" in repr(explain_query(CUBE, store, condition)) or name == "and"


def test_deeper_conditions_are_refused():
    with pytest.raises(ValueError, match=TOO_DEEP):
        nested(1_000)
    with pytest.raises(ValueError, match=TOO_DEEP):
        nested(MAX_DEPTH + 1)


@pytest.mark.parametrize(
    "text",
    ["(" * 1_000 + "V == 1" + ")" * 1_000, "~" * 1_000 + "(V == 1)", "~(" * 1_000 + "V == 1" + ")" * 1_000],
)
def test_deep_texts_are_refused(text):
    with pytest.raises(ValueError, match=TOO_DEEP):
        parse_conditions(text, TYPES)


def test_deep_json_is_refused_but_not_redundant_parentheses():
    assert parse_conditions("(" * 50 + "V == 1" + ")" * 50, TYPES) == Conjunction(C("V") == 1)
    (element,) = Conjunction(C("V") == 1).to_jsonarray()
    for kind in ("Conjunction", "Disjunction") * 500:
        element = {"type": kind, "conditions": [element]}
    with pytest.raises(ValueError, match=TOO_DEEP):
        Conjunction.from_jsonarray([element])


@pytest.mark.slow("predicates of thousands of values")
def test_long_predicates(tmp_path):
    store_dataframes_as_dataset(dfs=[FRAME], store=tmp_path, dataset_uuid="deep")
    conjunction = [("V", "!=", n) for n in range(1, 1_000)]
    disjunction = [[("V", "==", -n)] for n in range(1_000)]
    for predicates in ([conjunction], disjunction):
        assert read_table(store=tmp_path, dataset_uuid="deep", predicates=predicates).V.tolist() == [0]


@pytest.mark.slow("conditions of a thousand terms")
@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda v: reduce(operator.and_, [v != n for n in range(1, 1_000)]), [0]),
        (lambda v: reduce(operator.or_, [v == -n for n in range(1_000)]), [0]),
        (lambda v: reduce(lambda a, n: (a | (v == n)) & (v != n + 20), range(4), v == 9), [0, 1, 2, 3, 9]),
        (lambda v: reduce(lambda a, n: (a | (v == 3)) & (v != n + 20), range(200), v == 9), [3, 9]),
        (lambda v: reduce(lambda a, _: ~a, range(1_000), v == 9), [9]),
    ],
)
def test_deep_expressions_of_arrow(store, make, expected):
    found = cube_dataset(CUBE, store).to_table(filter=make(pc.field("V")))
    assert sorted(found["V"].to_pylist()) == expected


@pytest.mark.slow("conditions of a thousand terms")
@pytest.mark.parametrize("join", ["AND", "OR"])
def test_deep_conditions_of_sql(store, join):
    condition = f" {join} ".join(f"V <> {number}" for number in range(1, 1_000))
    with connect(CUBE, store) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM deep WHERE {condition}").fetchone()
    assert count == (1 if join == "AND" else 10)


MANY = list(range(10_000))


@pytest.mark.parametrize(
    "fail",
    [
        lambda store: bool(C("V").isin(MANY)),
        lambda store: query_cube(CUBE, store, C("V").isin(list(map(str, MANY)))),
        lambda store: query_cube(CUBE, store, C("W").isin(MANY)),
        lambda store: query_cube(CUBE, store, [MANY]),
        lambda store: remove_partitions(CUBE, store, C("V").isin(MANY)),
        lambda store: C("V").isin(MANY) & MANY,
        lambda store: parse_conditions(f"V in ({','.join(map(str, MANY))},x)", TYPES),
        lambda store: parse_conditions(f"W in ({','.join(map(str, MANY))})", TYPES),
        lambda store: Conjunction.from_jsonarray([{"type": "IsIn", "value": MANY}]),
        lambda store: Conjunction.from_jsonarray([{"type": "IsInCondition", "value": MANY}]),
    ],
)
def test_errors_name_the_beginning_of_many_values(store, fail):
    with pytest.raises((TypeError, ValueError)) as raised:
        fail(store)
    assert len(str(raised.value)) < 1_000
