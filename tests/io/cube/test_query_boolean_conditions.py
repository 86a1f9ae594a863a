"""Conditions joined by ``& | ~``, on nulls and on several datasets: against a model in plain Python."""

from __future__ import annotations

import datetime
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, query_cube
from tests.support.factories import memory
from tests.support.predicates import COMPARE

DATE = datetime.date
CITIES = ["", "Bad Ems", "Bad Homburg", "Bonn", "Köln"]
#: values of conditions by column; some of another type than the column
VALUES: dict[str, list[Any]] = {
    "x": [-1, 0, 2, 2.5, np.float64(3), np.uint8(4)],
    "p": [0, 1, 1.5, 7],
    "day": [DATE(2024, 1, 1), "2024-01-02", pd.Timestamp("2024-01-02"), pd.Timestamp("2024-01-02 12:00")],
    "v": [-0.5, 0.25, 1, 2, 2**60 + 1],
    "city": CITIES,
    "w": [0, 1, 2, 1.5],
    "b": [False, True],
    "u": [0, 1, 2, 0.5],
}
CELLS = [(x, p) for p in (0, 1, 2) for x in range(5)]
SEED = pd.DataFrame(
    {
        "x": [x for x, _ in CELLS],
        "p": [p for _, p in CELLS],
        "day": [DATE(2024, 1, 1 + (3 * x + p) % 4) for x, p in CELLS],
        "v": [None if (x + p) % 4 == 0 else 0.25 * (x + p) for x, p in CELLS],
        "city": pd.Series(
            [None if (x * p) % 5 == 4 else CITIES[(2 * x + p) % 5] for x, p in CELLS], dtype=object
        ),
    }
)
#: partitioned like the seed, and without a whole partition and some cells
ENRICH = pd.DataFrame(
    {
        "x": [0, 1, 3, 4, 1, 2],
        "p": [0, 0, 0, 0, 1, 1],
        "w": pd.array([0, 1, None, 2, 1, 0], dtype="Int64"),
        "b": pd.array([True, None, False, True, False, True], dtype="boolean"),
    }
)
#: without partitions
UNPARTITIONED = pd.DataFrame({"x": [1, 2, 4], "u": pd.array([0, None, 2], dtype="Int64")})
MIXED = Cube(["x"], ["p"], "cube", index_columns=["city", "w"])


class Case:
    """A condition, and what it means for a row."""

    def __init__(self, condition: Any, matches: Callable[[dict[str, Any]], bool | None]) -> None:
        self.condition, self.matches = condition, matches


def comparable(value: Any) -> Any:
    return pd.Timestamp(value) if isinstance(value, DATE) else value


def known(column: str, test: Callable[[Any], bool]) -> Callable[[dict[str, Any]], bool | None]:
    """Three-valued logic: unknown for nulls."""

    def matches(row: dict[str, Any]) -> bool | None:
        return None if row[column] is None else test(row[column])

    return matches


def comparison(column: str, op: str, value: Any) -> Case:
    other = pd.Timestamp(value) if column == "day" else value
    if op in ("==", "!=") and isinstance(other, np.generic):
        other = other.item()
    return Case(COMPARE[op](C(column), value), known(column, lambda found: COMPARE[op](found, other)))


def one_of(column: str, values: list[Any]) -> Case:
    others = [pd.Timestamp(v) if column == "day" else v for v in values]
    return Case(C(column).isin(values), known(column, lambda found: any(found == o for o in others)))


def between(column: str, first: Any, last: Any) -> Case:
    a, b = (pd.Timestamp(v) if column == "day" else v for v in (first, last))
    return Case(C(column).between(first, last), known(column, lambda found: a <= found <= b))


def interval(column: str, start: Any, stop: Any) -> Case:
    a, b = (pd.Timestamp(v) if column == "day" else v for v in (start, stop))
    return Case(C(column).in_interval(start, stop), known(column, lambda found: a <= found < b))


def conjunction(left: Case, right: Case) -> Case:
    def matches(row: dict[str, Any]) -> bool | None:
        a, b = left.matches(row), right.matches(row)
        return False if a is False or b is False else None if a is None or b is None else True

    return Case(left.condition & right.condition, matches)


def disjunction(left: Case, right: Case) -> Case:
    def matches(row: dict[str, Any]) -> bool | None:
        a, b = left.matches(row), right.matches(row)
        return True if a or b else None if a is None or b is None else False

    return Case(left.condition | right.condition, matches)


def negation(case: Case) -> Case:
    def matches(row: dict[str, Any]) -> bool | None:
        found = case.matches(row)
        return None if found is None else not found

    return Case(~case.condition, matches)


COLUMN_AND_VALUES = st.sampled_from(sorted(VALUES)).flatmap(
    lambda column: st.tuples(
        st.just(column), st.lists(st.sampled_from(VALUES[column]), min_size=2, max_size=3)
    )
)
LEAVES = st.one_of(
    st.builds(
        lambda pair, op: comparison(pair[0], op, pair[1][0]),
        COLUMN_AND_VALUES,
        st.sampled_from(sorted(COMPARE)),
    ),
    COLUMN_AND_VALUES.map(lambda pair: one_of(*pair)),
    COLUMN_AND_VALUES.map(lambda pair: between(pair[0], *pair[1][:2])),
    COLUMN_AND_VALUES.map(lambda pair: interval(pair[0], *pair[1][:2])),
    st.sampled_from(["", "Bad", "Bad ", "B", "x"]).map(
        lambda prefix: Case(
            C("city").startswith(prefix), known("city", lambda found: found.startswith(prefix))
        )
    ),
    st.sampled_from(sorted(VALUES)).map(lambda c: Case(C(c).is_null(), lambda row: row[c] is None)),
    st.sampled_from(sorted(VALUES)).map(lambda c: Case(C(c).not_null(), lambda row: row[c] is not None)),
)
CASES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(conjunction, inner, inner), st.builds(disjunction, inner, inner), st.builds(negation, inner)
    ),
    max_leaves=6,
)


def _plain(value: Any) -> Any:
    return None if pd.isna(value) else comparable(value)


def _joined_rows() -> list[dict[str, Any]]:
    joined = SEED.merge(ENRICH, on=["x", "p"], how="left").merge(UNPARTITIONED, on=["x"], how="left")
    joined = joined.astype(object)
    return [{name: _plain(value) for name, value in row.items()} for row in joined.to_dict("records")]


JOINED = _joined_rows()


@functools.cache
def mixed_store(overlapping: bool) -> Any:
    """Store of the cube; some partitions with one file, or superseded rows in all of them."""
    store = memory(Path())
    datasets = {"seed": SEED, "enrich": ENRICH, "flat": UNPARTITIONED}
    if not overlapping:
        build_cube(datasets, MIXED, store)
        return store
    old = {
        "seed": SEED.assign(v=1.0, city="Bonn", day=DATE(2024, 1, 1)),
        "enrich": ENRICH.assign(w=1, b=True),
        "flat": UNPARTITIONED.assign(u=1),
    }
    build_cube(old, MIXED, store)
    append_to_cube(datasets, MIXED, store)
    return store


def _cells(df: pd.DataFrame) -> list[tuple[int, int]]:
    return sorted(zip(df["p"].tolist(), df["x"].tolist(), strict=True))


@pytest.mark.parametrize("overlapping", [False, True], ids=["single files", "overlapping files"])
@settings(deadline=None)
@given(case=CASES, payload=st.sampled_from([None, [], ["u"], ["v", "w"]]))
def test_conditions_against_three_valued_logic(overlapping, case, payload):
    store = mixed_store(overlapping)
    expected = sorted((row["p"], row["x"]) for row in JOINED if case.matches(row))
    dfs = query_cube(MIXED, store, conditions=case.condition, payload_columns=payload)
    assert _cells(dfs[0]) if dfs else expected == []
    if dfs and payload is not None:
        assert list(dfs[0]) == sorted({"x", "p", *payload})
    groups = query_cube(MIXED, store, conditions=case.condition, payload_columns=payload, partition_by=["p"])
    assert sorted(cell for df in groups for cell in _cells(df)) == expected
    assert pickle.loads(pickle.dumps(case.condition)) == case.condition


@settings(deadline=None)
@given(CASES)
def test_filter_df_against_three_valued_logic(case):
    df = pd.DataFrame(JOINED, dtype=object).assign(
        v=lambda d: d["v"].astype("float64"),
        day=lambda d: [stamp.date() for stamp in d["day"]],
        w=lambda d: d["w"].astype("Int64"),
        u=lambda d: d["u"].astype("Int64"),
    )
    expected = [number for number, row in enumerate(JOINED) if case.matches(row)]
    assert case.condition.filter_df(df).index.tolist() == expected
