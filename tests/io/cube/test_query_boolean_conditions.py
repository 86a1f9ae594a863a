"""Conditions joined by ``& | ~``, on nulls and on several datasets: against a model in plain Python."""

import datetime
import functools
import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.api.cube import C, Conjunction, Cube
from kartothek_cube.io.eager import build_dataset_indices
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, explain_query, query_cube
from tests.support.cubes import CUBE, build, frame, matching
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
SEED = frame(
    x=[x for x, _ in CELLS],
    p=[p for _, p in CELLS],
    day=[DATE(2024, 1, 1 + (3 * x + p) % 4) for x, p in CELLS],
    v=[None if (x + p) % 4 == 0 else 0.25 * (x + p) for x, p in CELLS],
)
SEED["city"] = pd.Series(
    [None if (x * p) % 5 == 4 else CITIES[(2 * x + p) % 5] for x, p in CELLS], dtype=object
)
#: partitioned like the seed, and without a whole partition and some cells
ENRICH = frame(x=[0, 1, 3, 4, 1, 2], p=[0, 0, 0, 0, 1, 1])
ENRICH["w"] = pd.array([0, 1, None, 2, 1, 0], dtype="Int64")
ENRICH["b"] = pd.array([True, None, False, True, False, True], dtype="boolean")
#: without partitions
UNPARTITIONED = pd.DataFrame({"x": [1, 2, 4], "u": pd.array([0, None, 2], dtype="Int64")})
MIXED = Cube(["x"], ["p"], "cube")


class Case:
    """A condition, and what it means for a row."""

    def __init__(self, condition: Any, matches: Callable[[dict[str, Any]], bool | None]) -> None:
        self.condition, self.matches = condition, matches


def comparable(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return pd.Timestamp(value) if isinstance(value, DATE) else value


def leaf(column: str, make: Callable[..., Any], test: Callable[..., Any], *values: Any) -> Case:
    """Three-valued logic: unknown for nulls."""
    others = [pd.Timestamp(value) if column == "day" else comparable(value) for value in values]

    def matches(row: dict[str, Any]) -> bool | None:
        return None if row[column] is None else bool(test(row[column], *others))

    return Case(make(C(column), *values), matches)


def combined(left: Case, right: Case, op: Callable[[Any, Any], Any], decisive: bool) -> Case:
    """A result that decides, whatever the other one is; else unknown if one of them is."""

    def matches(row: dict[str, Any]) -> bool | None:
        found = left.matches(row), right.matches(row)
        return decisive if decisive in found else None if None in found else not decisive

    return Case(op(left.condition, right.condition), matches)


def negation(case: Case) -> Case:
    def matches(row: dict[str, Any]) -> bool | None:
        found = case.matches(row)
        return None if found is None else not found

    return Case(~case.condition, matches)


COLUMNS = st.sampled_from(sorted(VALUES))


def leaves(n_values: int, make: Callable[..., Any], test: Callable[..., Any]) -> st.SearchStrategy[Case]:
    """Give conditions on any column with a number of its values."""
    return COLUMNS.flatmap(
        lambda column: st.lists(st.sampled_from(VALUES[column]), min_size=n_values, max_size=n_values).map(
            lambda values: leaf(column, make, test, *values)
        )
    )


PREFIXES = st.sampled_from(["", "Bad", "Bad ", "B", "x"])
LEAVES = st.one_of(
    st.sampled_from([*COMPARE.values()]).flatmap(lambda compare: leaves(1, compare, compare)),
    leaves(3, lambda c, *values: c.isin(values), lambda cell, *values: any(cell == v for v in values)),
    leaves(2, lambda c, first, last: c.between(first, last), lambda cell, a, b: a <= cell <= b),
    leaves(2, lambda c, start, stop: c.in_interval(start, stop), lambda cell, a, b: a <= cell < b),
    PREFIXES.map(lambda prefix: leaf("city", lambda c, p: c.startswith(p), str.startswith, prefix)),
    COLUMNS.map(lambda c: Case(C(c).is_null(), lambda row: row[c] is None)),
    COLUMNS.map(lambda c: Case(C(c).not_null(), lambda row: row[c] is not None)),
)
OPERATORS = st.sampled_from([(operator.and_, False), (operator.or_, True)])
CASES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a, b, o: combined(a, b, *o), inner, inner, OPERATORS), st.builds(negation, inner)
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
    old = {"enrich": ENRICH.assign(w=1, b=True), "flat": UNPARTITIONED.assign(u=1)}
    old["seed"] = SEED.assign(v=1.0, city="Bonn", day=DATE(2024, 1, 1))
    build_cube(old if overlapping else datasets, MIXED, store, partition_on={"flat": []})
    if overlapping:
        append_to_cube(datasets, MIXED, store)
    build_dataset_indices(store, "cube++seed", ["city"])
    build_dataset_indices(store, "cube++enrich", ["w"])
    return store


def _cells(df: pd.DataFrame) -> list[tuple[int, int]]:
    return sorted(zip(df["p"].tolist(), df["x"].tolist(), strict=True))


@pytest.mark.slow("many random conditions")
@pytest.mark.parametrize("overlapping", [False, True], ids=["single files", "overlapping files"])
@settings(deadline=None, max_examples=60)
@given(case=CASES, payload=st.sampled_from([None, [], ["u"], ["v", "w"]]))
def test_conditions_against_three_valued_logic(overlapping, case, payload):
    store = mixed_store(overlapping)
    expected = sorted((row["p"], row["x"]) for row in JOINED if case.matches(row))
    dfs = query_cube(MIXED, store, conditions=case.condition, payload_columns=payload)
    found = _cells(dfs[0]) if dfs else []
    assert found == expected
    if dfs and payload is not None:
        assert list(dfs[0]) == sorted({"x", "p", *payload})
    groups = query_cube(MIXED, store, conditions=case.condition, payload_columns=payload, partition_by=["p"])
    assert sorted(cell for df in groups for cell in _cells(df)) == expected
    assert pickle.loads(pickle.dumps(case.condition)) == case.condition


@settings(deadline=None, max_examples=50)
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


SEED_SMALL = frame(x=[0, 1, 2], p=[0, 0, 1], v1=[1, None, 3])
ENRICH_SMALL = frame(x=[0, 2], p=[0, 1], v2=[7.0, None])


@pytest.mark.parametrize(
    "condition, expected",
    [
        (C("v2").is_null(), [1, 2]),
        (C("v2").not_null(), [0]),
        (~C("v2").is_null(), [0]),
        (C("v2").is_null() & C("v1").not_null(), [2]),
        ((C("v2") == 7) | (C("v1") == 3), [0, 2]),
        ((C("v1") == 3) | C("v2").is_null(), [1, 2]),
        ((C("v2") == 7) | (C("v2") < 0), [0]),
        (~((C("v2") == 7) & (C("p") == 0)), [2]),
        ((C("p") == 1) | (C("x") == 1), [1, 2]),
        (C("x").is_null(), []),
        (C("p").not_null(), [0, 1, 2]),
        ([(C("v2") > 0) | (C("x") > 1), C("v1") > 1.5], [2]),
    ],
    ids=str,
)
def test_missing_cells_and_several_datasets(driver, store_factory, condition, expected):
    build(store_factory, seed=SEED_SMALL, enrich=ENRICH_SMALL)
    assert matching(driver, store_factory, condition) == expected
    assert matching(driver, store_factory, str(Conjunction(condition))) == expected


def test_text(driver, store_factory):
    stamps = pd.to_datetime(["2024-01-04", "2024-01-05", "2024-01-06"])
    days = [stamp.date() for stamp in stamps]
    build(
        store_factory,
        seed=frame(x=[0, 1, 2], p=days, v1=[9, 11, 12], t1=stamps, s1=["a", "H&M | 'x' = (y)", "~"]),
    )
    for text, expected in {
        "v1 > 10 & p >= 2024-01-05": [1, 2],
        "v1 > 10.5 & p < '2024-01-06'": [1],
        "t1 > 2024-01-05": [2],
        "s1 == 'H&M | ''x'' = (y)'": [1],
        "s1 == '~' | s1 startswith a": [0, 2],
        " ": [0, 1, 2],
    }.items():
        assert (text, matching(driver, store_factory, text)) == (text, expected)
    with pytest.raises(ValueError, match="unknown column v; did you mean v1"):
        matching(driver, store_factory, "v == 1")
    with pytest.raises(ValueError, match="Cannot parse condition"):
        matching(driver, store_factory, "s1 == 'a")


@pytest.mark.parametrize("overlapping", [False, True])
def test_groups_and_projections(driver, store_factory, overlapping):
    cube = CUBE.copy(dimension_columns=["x", "y"])
    seed = frame(x=[0, 0, 1, 1], y=[0, 1, 0, 1], p=[0, 0, 0, 1], v1=[1, 2, 3, 4])
    flat = frame(x=[0, 1], p=[0, 0], v2=[None, 5.0])
    build(store_factory, cube, seed=seed, enrich=flat)
    if overlapping:
        driver.append_to_cube(data={"seed": seed, "enrich": flat}, cube=cube, store=store_factory)
    arguments = {"cube": cube, "store": store_factory, "payload_columns": ["v2"]}
    groups = driver.query_cube(conditions=C("v2").is_null(), partition_by=["p"], **arguments)
    assert [df[["x", "y"]].to_numpy().tolist() for df in groups] == [[[0, 0], [0, 1]], [[1, 1]]]
    either = (C("x") == 0) | (C("v2") > 4)
    (df,) = driver.query_cube(conditions=either, dimension_columns=["x"], **arguments)
    assert df[["x", "p"]].to_numpy().tolist() == [[0, 0], [1, 0]]
    with pytest.raises(ValueError, match="no y: add it to dimension_columns"):
        driver.query_cube(conditions=(C("x") == 0) | (C("y") == 1), dimension_columns=["x"], **arguments)


PARTITIONED = Cube(["x"], ["p", "q"], "cube")


@pytest.mark.parametrize(
    "conditions, left",
    [
        ((C("p") == 0) | (C("q") == "b"), [(1, "a")]),
        (~(C("p") == 0) & (C("q") == "b"), [(0, "a"), (0, "b"), (1, "a")]),
        ("p == 0 | q == b", [(1, "a")]),
        ("p >= 0.5 & q startswith a", [(0, "a"), (0, "b"), (1, "b")]),
        (C("p") < 0.5, [(1, "a"), (1, "b")]),
        (C("p").is_null(), [(0, "a"), (0, "b"), (1, "a"), (1, "b")]),
        (C("p").not_null() & ((C("q") == "b") | (C("q") == "c")), [(0, "a"), (1, "a")]),
    ],
    ids=str,
)
def test_removed_partitions(driver, store_factory, conditions, left):
    build(store_factory, PARTITIONED, seed=frame(x=range(4), p=[0, 0, 1, 1], q=list("abab")))
    driver.remove_partitions(cube=PARTITIONED, store=store_factory, conditions=conditions)
    found = driver.query_cube(cube=PARTITIONED, store=store_factory)
    assert sorted(pair for df in found for pair in zip(df["p"], df["q"], strict=True)) == left


def test_partitions_that_an_alternative_does_not_select_are_kept(driver, store_factory):
    """A dataset that is partitioned by one of the columns only cannot tell which partitions are meant."""
    enrich = frame(x=[0, 1], q=[0, 1], v=[1, 2])
    build(store_factory, PARTITIONED, seed=frame(x=[0, 1], p=[0, 1], q=[0, 1]), enrich=enrich)
    either = (C("p") == 0) | (C("q") == 1)
    with pytest.raises(ValueError, match=r"dataset 'cube\+\+enrich' is not partitioned: p"):
        driver.remove_partitions(cube=PARTITIONED, store=store_factory, conditions=either)
    (df,) = driver.query_cube(cube=PARTITIONED, store=store_factory)
    assert df["x"].tolist() == [0, 1]
    assert df["v"].tolist() == [1, 2]


def test_alternatives_prune_files():
    store = mixed_store(False)
    condition = (C("p") == 0) | ((C("p") == 1) & (C("city") == "none"))
    seed, enrich, _ = explain_query(MIXED, store, conditions=condition).datasets
    assert (seed.read_files, seed.files) == (1, 3)
    assert [(c.by, c.kept) for c in seed.conditions] == [("partition key", 1)]
    assert enrich.read_files == 1
    explained = explain_query(MIXED, store, conditions=(C("w") == 7) | (C("w") == 8))
    roles = {d.name: d.role for d in explained.datasets}
    assert (roles["enrich"], explained.read_files) == ("restricted", 0)
    explained = explain_query(MIXED, store, conditions=C("w").is_null(), payload_columns=[])
    found = {d.name: (d.role, d.read_files) for d in explained.datasets}
    assert found == {"seed": ("seed", 3), "enrich": ("left", 2)}
