"""Values of partition transforms, and what conditions imply about them."""

import datetime as dt
import pickle

import numpy as np
import pyarrow as pa
import pytest

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.transforms import (
    METADATA_KEY,
    PartitionTransform,
    bucket,
    day,
    hash_values,
    hour,
    month,
    parse_transform,
    read_transforms,
    truncate,
    year,
)

TIME = dt.datetime(2017, 11, 16, 22, 31, 8)
ZONED = dt.datetime(2017, 11, 16, 14, 31, 8, tzinfo=dt.timezone(dt.timedelta(hours=-8)))
US, NS = pa.timestamp("us"), pa.timestamp("ns")


@pytest.mark.parametrize(
    "value, dtype, expected",
    [
        *((34, dtype, 2017239379) for dtype in (pa.int32(), pa.int64(), pa.uint8())),
        (TIME.date(), pa.date32(), -653330422),
        *((TIME, dtype, -2047944441) for dtype in (US, NS)),
        (TIME.replace(microsecond=1), US, -1207196810),
        *((ZONED, pa.timestamp("us", zone), -2047944441) for zone in ("UTC", "America/Los_Angeles")),
        *(("iceberg", dtype, 1210000089) for dtype in (pa.string(), pa.large_string())),
        (b"\0\1\2\3", pa.binary(), -188683207),
    ],
)
def test_hashes_are_those_that_iceberg_publishes(value, dtype, expected):
    # appendix B of the specification of Iceberg
    assert hash_values(pa.array([value], dtype)).view(np.int32).tolist() == [expected]


def _murmur3(data: bytes) -> int:
    """The algorithm as it is published, byte by byte."""
    h = 0
    for start in range(0, len(data), 4):
        word = data[start : start + 4]
        k = int.from_bytes(word, "little") * 0xCC9E2D51 % 2**32
        k = (k << 15 | k >> 17) % 2**32 * 0x1B873593 % 2**32
        h ^= k
        if len(word) == 4:
            h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) % 2**32
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


def test_hashes_of_a_column_are_those_of_its_values():
    # slices begin within the buffers
    texts = ["", "a", "ab", "abc", "abcd", "abcde", "Köln", "x" * 37, "🙂"]
    hashes = [_murmur3(text.encode()) for text in texts]
    assert hash_values(pa.array(["before", *texts, "after"]).slice(1, len(texts))).tolist() == hashes
    numbers = [0, 1, -1, 2**63 - 1, -(2**63)]
    expected = [_murmur3(number.to_bytes(8, "little", signed=True)) for number in numbers]
    assert hash_values(pa.array([7, *numbers]).slice(1)).tolist() == expected


BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 999999)
LATE = dt.datetime(2024, 3, 31, 23, 30)


@pytest.mark.parametrize(
    "transform, value, dtype, expected",
    [
        (year("t"), LATE, US, 2024),
        (year("t"), BEFORE_1970, NS, 1969),
        (month("t"), LATE, NS, "2024-03"),
        (month("t"), BEFORE_1970, US, "1969-12"),
        (month("t"), dt.date(987, 6, 5), pa.date32(), "0987-06"),
        (day("t"), LATE, US, LATE.date()),
        (day("t"), BEFORE_1970, NS, BEFORE_1970.date()),
        (day("t"), LATE.date(), pa.date32(), LATE.date()),
        (hour("t"), LATE, NS, "2024-03-31T23"),
        (hour("t"), LATE, pa.timestamp("us", "Europe/Berlin"), "2024-03-31T23"),
        (bucket(16, "t"), 34, pa.int64(), 3),
        (bucket(16, "t"), "iceberg", pa.string(), 1210000089 % 16),
        (bucket(100, "t"), b"\0\1\2\3", pa.binary(), (-188683207 & 0x7FFFFFFF) % 100),
        (truncate(10, "t"), 19, pa.int8(), 10),
        (truncate(10, "t"), -1, pa.int64(), -10),
        (truncate(10, "t"), 2**64 - 1, pa.uint64(), 2**64 - 6),
        (truncate(2, "t"), "🙂ab", pa.string(), "🙂a"),
        (truncate(2, "t"), "", pa.string(), ""),
    ],
)
def test_values(transform, value, dtype, expected):
    assert transform.apply(pa.array([value], dtype)).to_pylist() == [expected]
    # the values of columns come in chunks, which may be empty
    assert transform.apply(pa.chunked_array([], dtype)).type == transform.apply(pa.array([value], dtype)).type


@pytest.mark.parametrize(
    "transform, values, error, text",
    [
        (hour("t"), pa.array([0], pa.date32()), TypeError, r"hour\('t'\) is not defined .* date32"),
        (month("t"), pa.array(["2024-01"]), TypeError, "string"),
        (bucket(2, "t"), pa.array([0.5]), TypeError, "double"),
        (truncate(2, "t"), pa.array([True]), TypeError, "bool"),
        (month("t"), pa.array([10**7], pa.date32()), ValueError, "out of the years 0 to 9999"),
        (truncate(10, "t"), pa.array([-(2**63)]), ValueError, "out of the range of integers"),
    ],
)
def test_values_that_have_no_partition_are_refused(transform, values, error, text):
    with pytest.raises(error, match=text):
        transform.apply(values)


T = "t"
MARCH, APRIL = dt.datetime(2024, 3, 1), dt.datetime(2024, 4, 1)


@pytest.mark.parametrize(
    "transform, dtype, literal, expected",
    [
        (month("t"), NS, (T, "==", LATE), ("t_month", "==", "2024-03")),
        (month("t"), NS, (T, "in", (MARCH, LATE, APRIL)), ("t_month", "in", ["2024-03", "2024-04"])),
        (month("t"), NS, (T, ">=", LATE), ("t_month", ">=", "2024-03")),
        (month("t"), NS, (T, ">", LATE), ("t_month", ">=", "2024-03")),
        (month("t"), NS, (T, "<=", APRIL), ("t_month", "<=", "2024-04")),
        # what is before the first instant of April is in March
        (month("t"), NS, (T, "<", APRIL), ("t_month", "<", "2024-04")),
        (month("t"), NS, (T, "<", LATE), ("t_month", "<=", "2024-03")),
        (month("t"), pa.date32(), (T, "<", APRIL.date()), ("t_month", "<", "2024-04")),
        (month("t"), NS, (T, "!=", LATE), None),
        (month("t"), NS, (T, "not in", (LATE,)), None),
        (year("t"), NS, (T, "<", dt.datetime(2024, 1, 1)), ("t_year", "<", 2024)),
        (day("t"), NS, (T, ">=", LATE), ("t_day", ">=", LATE.date())),
        (truncate(10, "t"), pa.int64(), (T, "<", 20), ("t_truncate", "<", 20)),
        (truncate(10, "t"), pa.int64(), (T, "<", 21), ("t_truncate", "<=", 20)),
        (truncate(2, "t"), pa.string(), (T, ">=", "abc"), ("t_truncate", ">=", "ab")),
        (truncate(2, "t"), pa.string(), (T, "<", "ab"), ("t_truncate", "<", "ab")),
        (bucket(16, "t"), pa.int64(), (T, "==", 34), ("t_bucket", "==", 3)),
        (bucket(16, "t"), pa.int64(), (T, "in", (34, 35)), ("t_bucket", "in", [3, 5])),
        (bucket(16, "t"), pa.int64(), (T, "<", 34), None),
        # values that no row can have, as they have no partition
        (truncate(10, "t"), pa.int64(), (T, ">=", -(2**63)), None),
        (truncate(10, "t"), pa.int64(), (T, "in", (-(2**63), 5)), None),
        (month("t"), US, (T, "<", np.datetime64("20000-01-01")), None),
        # no value is equal
        (bucket(16, "t"), pa.int64(), (T, "==", 2**70), None),
    ],
)
def test_conditions_imply_conditions_on_the_partition(transform, dtype, literal, expected):
    implied = transform.imply(literal, dtype)
    if implied is not None and implied[1] == "in":
        implied = (*implied[:2], implied[2].to_pylist())
    assert implied == expected


@pytest.mark.parametrize(
    "transform, text",
    [
        (month("a b"), "month('a b')"),
        (day("t", name="d"), "day('t', name='d')"),
        (bucket(4, "t"), "bucket(4, 't')"),
        (truncate(2, "t", name="x"), "truncate(2, 't', name='x')"),
    ],
)
def test_is_a_value_with_a_form_as_metadata(transform, text):
    assert repr(transform) == text
    assert pickle.loads(pickle.dumps(transform)) == transform
    assert read_transforms({METADATA_KEY: {transform.name: transform.to_dict()}}) == (transform,)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("month(a b)", month("a b")),
        ("bucket(16, t)", bucket(16, "t")),
        ("truncate(2,t)", truncate(2, "t")),
        ("t", "t"),
        ("minute(t)", "minute(t)"),
    ],
)
def test_text(text, expected):
    assert parse_transform(text) == expected


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: bucket("t", 3), TypeError, r"takes the number first, as in Spark: bucket\(3, 't'\)"),
        (lambda: month(5), TypeError, "column is a name .* got 5"),
        (lambda: bucket("t", True), TypeError, "column is a name .* got True"),
        (lambda: bucket(True, "t"), TypeError, "n of bucket must be an integer"),
        (lambda: truncate(0, "t"), ValueError, "n of truncate must be from 1"),
        (lambda: PartitionTransform("month", "t", 3), ValueError, "month has no n"),
        (lambda: PartitionTransform("minute", "t"), ValueError, "'minute' is no partition transform"),
    ],
)
def test_wrong_arguments_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_unknown_transforms_in_metadata_are_named():
    assert read_transforms({}) is None
    with pytest.raises(CorruptDatasetError, match="'minute' is no partition transform"):
        read_transforms({METADATA_KEY: {"x": {"function": "minute", "column": "t"}}})
