"""What filters of Spark become."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from kartothek_cube.io.spark.datasource import to_conditions

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "u": pa.uint64(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.bool_(),
        "d": pa.date32(),
        "t": pa.timestamp("ns"),
        "z": pa.timestamp("ns", "Europe/Berlin"),
        "dec": pa.decimal128(10, 2),
        "n": pa.null(),
    }
)
NAN = float("nan")
NOON = datetime(2020, 1, 1, 12)


@pytest.mark.parametrize(
    "item, conditions",
    [
        (EqualTo(("i",), 1), "i == 1"),
        (EqualNullSafe(("i",), 1), "i == 1"),
        (GreaterThan(("i",), 1), "i > 1"),
        (GreaterThanOrEqual(("f",), 1.5), "f >= 1.5"),
        (LessThan(("s",), "a"), "s < a"),
        (LessThanOrEqual(("d",), date(2020, 1, 1)), "d <= 2020-01-01"),
        (In(("s",), ["b", None, "a"]), "s in ('b', 'a')"),
        (Not(EqualTo(("b",), True)), "b != True"),
        (Not(In(("i",), [1, 2])), "i != 1 & i != 2"),
        (EqualTo(("u",), Decimal(2**63)), f"u == {2**63}"),
        (EqualTo(("dec",), Decimal("1.50")), "dec == 1.50"),
        (GreaterThanOrEqual(("t",), NOON), "t >= 2020-01-01 12:00:00"),
        (LessThan(("t",), NOON), "t < 2020-01-01 12:00:00"),
        (GreaterThan(("t",), NOON), "t >= 2020-01-01 12:00:00.000001"),
        (LessThanOrEqual(("t",), NOON), "t < 2020-01-01 12:00:00.000001"),
        (EqualTo(("t",), NOON), "t >= 2020-01-01 12:00:00 & t < 2020-01-01 12:00:00.000001"),
        (EqualTo(("n",), "text"), "n == text"),
        (LessThan(("z",), NOON.replace(tzinfo=UTC)), "z < 2020-01-01 13:00:00+01:00"),
    ],
)
def test_what_means_the_same_is_taken_over(item, conditions):
    found, left = to_conditions([IsNotNull(getattr(item, "attribute", ("?",))), item], SCHEMA)
    assert " & ".join(map(str, found)) == conditions
    assert left in ([], [IsNotNull(("?",))])


@pytest.mark.parametrize(
    "item, conditions",
    [
        (StringStartsWith(("s",), "ab"), "s >= ab & s < ac"),
        (StringStartsWith(("s",), "a\ud7ff"), "s >= a\ud7ff"),
        (StringStartsWith(("s",), "\U0010ffff"), "s >= \U0010ffff"),
        (
            In(("t",), [NOON, datetime(2019, 1, 1)]),
            "t >= 2019-01-01 00:00:00 & t < 2020-01-01 12:00:00.000001",
        ),
    ],
)
def test_what_is_less_strict_helps_but_is_left_to_spark(item, conditions):
    found, left = to_conditions([IsNotNull(item.attribute), item], SCHEMA)
    assert " & ".join(map(str, found)) == conditions and left == [item]


@pytest.mark.parametrize(
    "item",
    [
        IsNull(("i",)),
        IsNotNull(("i",)),
        StringContains(("s",), "a"),
        StringStartsWith(("s",), ""),
        Not(GreaterThan(("i",), 1)),
        Not(In(("i",), [1, None])),
        Not(In(("i",), list(range(1000)))),
        Not(EqualTo(("t",), NOON)),
        EqualNullSafe(("i",), None),
        In(("i",), [None]),
        EqualTo(("f",), NAN),
        GreaterThan(("f",), NAN),
        EqualTo(("u",), Decimal("1.5")),
        EqualTo(("s", "field"), 1),
        EqualTo(("other",), 1),
        EqualTo(("i",), "text"),
    ],
)
def test_everything_else_is_left_to_spark(item):
    assert to_conditions([item], SCHEMA) == ([], [item])
