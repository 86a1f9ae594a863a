"""Conditions of cube queries: on every kind of column, with every operator, and on nulls."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.io.eager import update_dataset_from_dataframes
from tests.support.cubes import CUBE, build, frame, matching
from tests.support.predicates import COMPARE

CELLS = range(12)
INDEXED = CUBE.copy(index_columns=["i1", "i2"])
SEED = frame(x=list(CELLS), p=[x % 3 for x in CELLS], v1=[x // 2 for x in CELLS], i1=[x % 4 for x in CELLS])
ENRICH = SEED.rename(columns={"v1": "v2", "i1": "i2"})
DATE = datetime.date
STAMP = pd.Timestamp


CONDITIONS = [
    *((lambda c, op=op, value=value: op(c, value)) for op in COMPARE.values() for value in (-1, 1, 99)),
    lambda c: (c > 0) & (c != 2) & (c < 4),
    lambda c: (c == 1) & (c == 2),
]
#: conditions that are spelled differently for a column and a number
SETS = [
    (lambda c: c.isin([0, 2, 77]), lambda v: v in (0, 2)),
    (lambda c: c.isin(1), lambda v: v == 1),
    (lambda c: c.isin([]), lambda v: False),
    (lambda c: c.in_interval(1, 3), lambda v: 1 <= v < 3),
    (lambda c: c.in_interval(2, None), lambda v: v >= 2),
    (lambda c: c.in_interval(None, 2), lambda v: v < 2),
    (lambda c: c.in_interval(2, 2), lambda v: False),
    (lambda c: c.in_interval(), lambda v: True),
]


@pytest.mark.parametrize("column", ["x", "p", "v1", "i1", "v2", "i2"])
def test_every_condition_on_every_kind_of_column(driver, store_factory, column):
    build(store_factory, INDEXED, seed=SEED, enrich=ENRICH)
    values = {**SEED, **ENRICH}[column]
    for make, accepts in [*((condition, condition) for condition in CONDITIONS), *SETS]:
        expected = [x for x, value in zip(CELLS, values) if accepts(value)]
        condition = make(C(column))
        assert matching(driver, store_factory, condition, INDEXED) == expected, condition


# types -------------------------------------------------------------------------------------------

TYPES = {
    "int": [1, 2],
    "negative": [-2, -1],
    "int8": np.array([-1, 100], dtype="int8"),
    "uint8": np.array([1, 200], dtype="uint8"),
    "large": [2**62, 2**62 + 1],
    "float": [0.5, 1.5],
    "float32": np.array([0.5, 1.5], dtype="float32"),
    "str": ["a", "ä"],
    "special characters": ["a=b %/c?", "b=b %/d'\""],
    "empty str": ["", "a"],
    "bool": [False, True],
    "date": [DATE(2020, 1, 1), DATE(2020, 12, 31)],
    "early date": [DATE(1900, 1, 1), DATE(2100, 1, 1)],
    "far date": [DATE(1, 1, 1), DATE(9999, 12, 31)],
    "timestamp": [STAMP("2020-01-01"), STAMP("2020-01-01 01:02:03.000004")],
}


@pytest.mark.parametrize("kind", TYPES)
def test_conditions_on_columns_of_every_type(driver, store_factory, kind):
    cube = build_typed(store_factory, TYPES[kind])
    first, last = list(TYPES[kind])
    for c in map(C, ("x", "p", "i1", "v1")):
        conditions = (c == first, c < last, c != last, c.isin([last]))
        found = [numbers(driver, store_factory, cube, condition) for condition in conditions]
        assert found == [[0], [0], [0], [1]], c


KEYS_AND_PAYLOAD = pytest.mark.parametrize("column", ["x", "p", "i1", "v1"])


def build_typed(store, values):
    """Build a cube whose columns of all roles have the given values, numbered by the dimension ``n``."""
    cube = CUBE.copy(index_columns=["i1"], dimension_columns=["x", "n"])
    columns = dict.fromkeys(("x", "p", "i1", "v1"), values)
    build(store, cube, seed=pd.DataFrame({"n": range(len(values)), **columns}))
    return cube


def numbers(driver, store, cube, conditions):
    """Give the numbers ``n`` of the cells that match."""
    return sorted(matching(driver, store, conditions, cube, "n"))


@KEYS_AND_PAYLOAD
def test_a_date_is_compared_with_text_and_naive_timestamps(driver, store_factory, column):
    cube = build_typed(store_factory, [DATE(2020, 1, 1), DATE(2020, 1, 2), DATE(2020, 1, 3)])
    c, noon = C(column), STAMP("2020-01-02 12:00")
    expected = [
        (c == "2020-01-02", [1]),
        (c >= "2020-01-02 00:00:00", [1, 2]),
        (c > "2020-01-02T12:00", [2]),
        (c == STAMP("2020-01-02"), [1]),
        (c == datetime.datetime(2020, 1, 2), [1]),
        (c >= np.datetime64("2020-01-02"), [1, 2]),
        (c == noon, []),
        (c != noon, [0, 1, 2]),
        (c < noon, [0, 1]),
        (c >= noon, [2]),
        (c.isin([STAMP("2020-01-01"), noon, "2020-01-03", DATE(2020, 1, 3)]), [0, 2]),
        (c.between(STAMP("2020-01-01 00:00:01"), STAMP("2020-01-02 23:00")), [1]),
    ]
    found = [(condition, numbers(driver, store_factory, cube, condition)) for condition, _ in expected]
    assert found == expected
    with pytest.raises(TypeError, match=f"{column}.*date32.*2020-01-02 00:00:00"):
        numbers(driver, store_factory, cube, c == STAMP("2020-01-02", tz="UTC"))


@KEYS_AND_PAYLOAD
def test_a_timestamp_is_compared_with_dates_and_text(driver, store_factory, column):
    cube = build_typed(store_factory, [STAMP("2020-01-01"), STAMP("2020-01-01 12:00"), STAMP("2020-01-02")])
    c = C(column)
    expected = [
        (c == STAMP("2020-01-01").to_pydatetime(), [0]),
        (c == np.datetime64("2020-01-01"), [0]),
        (c == np.datetime64("2020-01-01", "ns"), [0]),
        (c == DATE(2020, 1, 1), [0]),
        (c > "2020-01-01", [1, 2]),
        (c == "2020-01-01 12:00", [1]),
        (c == "2020-01-01T12:00:00", [1]),
        (c.isin([DATE(2020, 1, 2), "2020-01-01"]), [0, 2]),
    ]
    found = [(condition, numbers(driver, store_factory, cube, condition)) for condition, _ in expected]
    assert found == expected
    for value in ("2020-01-01 12:00 UTC", "2020-01-01T12:00Z", "today", "01.01.2020", "2020-02-30"):
        with pytest.raises(TypeError, match=f"{column}.*timestamp.*{value}"):
            numbers(driver, store_factory, cube, c == value)


def test_a_zoned_timestamp_is_compared_with_text_that_names_a_zone(driver, store_factory):
    stamps = pd.to_datetime(["2020-01-01 12:00", "2020-01-02 00:00"]).tz_localize("Europe/Berlin")
    build(store_factory, seed=pd.DataFrame({"x": [0, 1], "p": [0, 0], "v1": stamps}))
    assert matching(driver, store_factory, C("v1") == "2020-01-01T11:00Z") == [0]
    assert matching(driver, store_factory, C("v1") > "2020-01-01 12:00+01:00") == [1]
    for value in ("2020-01-01", DATE(2020, 1, 1), STAMP("2020-01-01")):
        with pytest.raises(TypeError, match=r"v1.*Europe/Berlin.*2020"):
            matching(driver, store_factory, C("v1") == value)


BIG = 2**53
#: values of a column, and the rows that conditions select: operator, other value, rows
NUMBERS = {
    "int": (
        [-1, 3, BIG + 1, 2**62 + 1],
        [
            *(("==", make(3), [1]) for make in (np.float64, np.uint64, np.int8, np.int64, decimal.Decimal)),
            *((">=", 1.5, [1, 2, 3]), ("<=", 3.5, [0, 1]), ("==", 3.5, []), ("!=", 3.5, [0, 1, 2, 3])),
            *((">", float(BIG), [2, 3]), ("<=", float(BIG), [0, 1]), ("==", float(BIG), [])),
            *((">", -np.inf, [0, 1, 2, 3]), (">=", np.inf, []), ("<", 1e300, [0, 1, 2, 3])),
            *(("isin", [3.0, 3.5, 2**62 + 1], [1, 3]), ("in_interval", (-0.5, 3.5), [1])),
        ],
    ),
    "uint": (
        np.array([0, 3, 2**64 - 1], dtype="uint64"),
        [
            *(("==", make(3), [1]) for make in (int, np.uint8, np.int64)),
            *((">", np.int64(-1), [0, 1, 2]), ("<", float(2**64), [0, 1, 2])),
        ],
    ),
    "float": (
        [-0.5, 10.0, float(2**60), 1e300],
        [
            *((">", 10, [2, 3]), ("isin", [10, 12], [1]), ("==", np.int8(10), [1]), ("==", 2**60, [2])),
            *(
                ("==", 2**60 + 1, []),
                ("<", 2**60 + 1, [0, 1, 2]),
                (">=", 2**60 + 1, [3]),
                (">", 2**60 - 1, [2, 3]),
            ),
            *(("<", 10**400, [0, 1, 2, 3]), (">", 10**400, []), ("==", decimal.Decimal("-0.5"), [0])),
            *(("==", make(-0.5), [0]) for make in (np.float32, np.float64)),
        ],
    ),
    "float32": (
        np.array([0.1, 10.0], dtype="float32"),
        [("==", 10, [1]), ("<", 2**60 + 1, [0, 1]), (">", 0.1, [0, 1])],
    ),
}
METHODS = {"isin": lambda c, values: c.isin(values), "in_interval": lambda c, bounds: c.in_interval(*bounds)}


@KEYS_AND_PAYLOAD
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_are_compared_exactly(driver, store_factory, kind, column):
    values, expected = NUMBERS[kind]
    cube = build_typed(store_factory, values)
    conditions = [({**COMPARE, **METHODS}[op](C(column), value), found) for op, value, found in expected]
    found = [(str(c), numbers(driver, store_factory, cube, c)) for c, _ in conditions]
    assert found == [(str(c), numbers) for c, numbers in conditions]


def test_decimals_and_floats_that_are_not_equal_are_refused(driver, store_factory):
    """Whether 0.1 as a float is meant, which is another number, is not known."""
    build(store_factory, seed=frame(x=[0], p=[0], v1=[0.1], v2=[decimal.Decimal("0.10")]))
    with pytest.raises(TypeError, match=r"v1.*double.*0\.1.*Decimal.*Write 0\.1\."):
        matching(driver, store_factory, C("v1") == decimal.Decimal("0.1"))
    with pytest.raises(TypeError, match=r"v2.*decimal.*0\.1 .*Write decimal\.Decimal\('0\.1'\)\."):
        matching(driver, store_factory, C("v2") == 0.1)
    assert matching(driver, store_factory, "v2 == 0.1 & v1 == 0.1") == [0]


def test_rows_written_by_the_dataset_facade(driver, store_factory):
    build(store_factory, INDEXED, seed=SEED)
    more = frame(x=[50], p=[7], v1=[0], i1=[1])
    keys = {"partition_on": ["p"], "secondary_indices": ["x", "i1"]}
    update_dataset_from_dataframes([more], store=store_factory, dataset_uuid="cube++seed", **keys)
    assert matching(driver, store_factory, C("i1") == 1, INDEXED) == [1, 5, 9, 50]
