import enum
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.utils import converters

ALL = [converters.converter_str_set, converters.converter_str_set_optional, converters.converter_str_tupleset]


class Name(str, enum.Enum):  # noqa: UP042 (StrEnum is a str in every respect already)
    X = "x"


@pytest.mark.parametrize("obj", ["x", b"x", np.str_("x"), Name.X])
def test_converter_str(obj):
    assert converters.converter_str(obj) == "x"
    assert type(converters.converter_str(obj)) is str


@pytest.mark.parametrize("obj", [None, 1, 1.5, ["x"], ("x",), {"x"}, []])
def test_converter_str_names_type_and_object(obj):
    with pytest.raises(TypeError) as error:
        converters.converter_str(obj)
    assert type(obj).__name__ in str(error.value)
    assert repr(obj) in str(error.value)


@pytest.mark.parametrize(
    "obj, expected",
    [
        *((None, ()), ([], ()), ("ab", ("ab",)), (b"ab", (b"ab",)), (1, (1,)), ([None], (None,))),
        (["b", "a", "b"], ("b", "a", "b")),
        ({"x": 1}, ("x",)),
        ((i for i in (1, 2)), (1, 2)),
        (np.array([1, 2]), (1, 2)),
    ],
)
def test_converter_tuple(obj, expected):
    assert converters.converter_tuple(obj) == expected


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: "ab", ["ab"]),
        (lambda: b"ab", ["ab"]),
        (list, []),
        (lambda: ["b", b"a"], ["b", "a"]),
        *((partial(kind, "ba"), ["b", "a"]) for kind in (tuple, iter)),
        *((partial(kind, ["b", "a"]), ["b", "a"]) for kind in (np.array, pd.Series, pd.Index)),
        (lambda: {"b": 1, "a": 2}.keys(), ["b", "a"]),
    ],
)
def test_sets_of_names(make, expected):
    assert converters.converter_str_set(make()) == frozenset(expected)
    assert converters.converter_str_set_optional(make()) == frozenset(expected)
    assert converters.converter_str_tupleset(make()) == tuple(expected)


def test_sets_of_names_from_none():
    assert converters.converter_str_set(None) == frozenset()
    assert converters.converter_str_set_optional(None) is None
    assert converters.converter_str_tupleset(None) == ()
    with pytest.raises(ValueError, match=r": a, b$"):
        converters.converter_str_tupleset(["b", "a", "c", "b", b"a"])


@pytest.mark.parametrize("converter", ALL)
@pytest.mark.parametrize("obj", [1, [1], [None], [["a"]]])
def test_sets_of_something_else(converter, obj):
    with pytest.raises(TypeError, match="is not a string"):
        converter(obj)


@pytest.mark.parametrize("obj", [{"a"}, frozenset("a"), {"a": 1}])
def test_tupleset_wants_an_order(obj):
    with pytest.raises(TypeError, match="no stable order") as error:
        converters.converter_str_tupleset(obj)
    assert repr(obj) in str(error.value)
    assert type(obj).__name__ in str(error.value)


BOOLS = {False: "0 f n false no N FALSE No", True: "1 t y true yes T YeS"}
TIMES = pd.Timestamp("2020-01-01 01:02")


@pytest.mark.parametrize(
    "pa_type, text, expected",
    [
        *((pa.bool_(), text, value) for value, texts in BOOLS.items() for text in texts.split()),
        (pa.int64(), "-3", -3),
        (pa.int8(), "300", 300),
        (pa.uint8(), "7", 7),
        (pa.float64(), "1e3", 1000.0),
        (pa.float32(), "inf", float("inf")),
        (pa.string(), "a", "a"),
        (pa.string(), '"a"', "a"),
        (pa.string(), "'a'", "a"),
        (pa.string(), '""a""', '"a"'),
        (pa.string(), "\"a'", "\"a'"),
        (pa.string(), '"', '"'),
        (pa.string(), "", ""),
        (pa.large_string(), "'a'", "a"),
        (pa.string_view(), "'a'", "a"),
        (pa.dictionary(pa.int8(), pa.string()), "'a'", "a"),
        (pa.timestamp("ns"), "2020-01-01 01:02", TIMES),
        (pa.timestamp("us"), "2020-01-01T01:02", TIMES),
        (pa.timestamp("ns", "Europe/Berlin"), "2020-01-01 01:02", TIMES.tz_localize("Europe/Berlin")),
        (pa.timestamp("ns", "Europe/Berlin"), "2020-01-01 01:02+00:00", TIMES.tz_localize("UTC")),
    ],
)
def test_values_from_text(pa_type, text, expected):
    value = pickle.loads(pickle.dumps(converters.get_str_to_python_converter(pa_type)))(text)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "pa_type, text",
    [
        (pa.bool_(), ""),
        (pa.int64(), "1.0"),
        *((kind, "x") for kind in (pa.bool_(), pa.float64(), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))),
    ],
)
def test_text_that_is_no_value(pa_type, text):
    with pytest.raises(ValueError):
        converters.get_str_to_python_converter(pa_type)(text)


@pytest.mark.parametrize(
    "pa_type", [pa.date32(), pa.binary(), pa.null(), pa.list_(pa.int64()), pa.decimal128(3, 1)], ids=str
)
def test_types_without_text(pa_type):
    with pytest.raises(ValueError) as error:
        converters.get_str_to_python_converter(pa_type)
    assert str(pa_type) in str(error.value)
