import datetime
import string

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.core.urlencode import decode_key, quote, quote_indices, unquote, unquote_indices

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT)
def test_quote_round_trip_within_one_component(text):
    quoted = quote(text)
    assert unquote(quoted) == text
    assert set(quoted) <= set(string.ascii_letters + string.digits + "_.-~%")
    assert quote(text.encode()) == quoted


@given(TEXT, st.lists(st.tuples(TEXT, TEXT)))
def test_key_round_trip(file, pairs):
    key = "/".join(["u", "table", *quote_indices(pairs), quote(file)])
    assert decode_key(key) == ("u", "table", pairs, quote(file))


@pytest.mark.parametrize(
    "value, expected",
    [
        ("a/b=c d%", "a%2Fb%3Dc%20d%25"),
        *(("~._-", "~._-"), (b"\xff", "%FF"), (1.0, "1.0"), (None, "None"), (np.float32(0.1), "0.1")),
        (pd.Timestamp("2019-01-01"), "2019-01-01%2000%3A00%3A00"),
        (datetime.date(2019, 1, 1), "2019-01-01"),
    ],
)
def test_quote_of_other_values(value, expected):
    assert quote(value) == expected


def test_unquote_leaves_what_is_not_encoded_and_refuses_what_is_not_utf8():
    assert unquote("a+b% %zzü") == "a+b% %zzü"
    assert unquote(b"a%20b") == "a b"
    for text in ("%FF", "a%C3"):
        with pytest.raises(ValueError, match="utf-8"):
            unquote(text)


def test_unquote_indices_skips_other_components():
    components = ["a%20b=1", "x", "a=b=c", "p=", "a%3D=%3D"]
    assert unquote_indices(components) == [("a b", "1"), ("p", ""), ("a=", "=")]


@pytest.mark.parametrize(
    "key, expected",
    [
        ("u/table/a=1/b=2/f.parquet", ("u", "table", [("a", "1"), ("b", "2")], "f.parquet")),
        ("u/table/other/f", ("u", "table", [], "f")),
        ("u/t/f", ("u", "t", [], "f")),
        ("u/t", ("u/t", None, [], None)),
        ("", ("", None, [], None)),
        ("u//f", ("u", "", [], "f")),
    ],
)
def test_decode_key(key, expected):
    assert decode_key(key) == expected
