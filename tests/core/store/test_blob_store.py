"""Which keys are legal and which ones a dataset owns; one by one and in vectors."""

import re

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from simplekv.contrib import VALID_KEY_RE_EXTENDED

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.store import check_key, check_owned, check_owned_keys
from kartothek_cube.core.store.blob_store import check_prefix, is_key
from kartothek_cube.testing import ILLEGAL_KEYS

KEYS = st.text(st.sampled_from("ab./\\ %+é:*\n\0"), max_size=8)


def is_key_by_the_book(key: str) -> bool:
    legal = VALID_KEY_RE_EXTENDED.match(key) is not None and not key.endswith("\n")
    return legal and not any(component in ("", ".", "..") for component in key.split("/"))


@given(KEYS)
@example("a" * 5000 + "/" + "." * 5000)
@example("a" * 5000 + "*")
def test_is_key(key):
    assert is_key(key) is is_key_by_the_book(key)


@pytest.mark.parametrize("key", [*ILLEGAL_KEYS, None, 1, b"a"])
def test_check_key(key):
    with pytest.raises(ValueError, match=re.escape(f"illegal key {key!r}")):
        check_key(key)


@given(KEYS)
def test_check_prefix(prefix):
    possible = any(is_key_by_the_book(prefix + end) for end in ("", "a"))
    if possible:
        assert check_prefix(prefix) == prefix
    else:
        with pytest.raises(ValueError, match="illegal prefix"):
            check_prefix(prefix)


@given(st.lists(KEYS.map(lambda tail: "d/" + tail) | KEYS))
def test_owned_keys_are_owned_one_by_one(keys):
    foreign = [key for key in keys if not (is_key_by_the_book(key) and key.startswith("d/"))]
    if foreign:
        with pytest.raises(CorruptDatasetError) as caught:
            check_owned_keys(pa.array(keys, pa.string()), "d")
        assert caught.value.key == foreign[0]
    else:
        check_owned_keys(pa.array(keys, pa.string()), "d")
    for key in keys:
        if key in foreign:
            with pytest.raises(CorruptDatasetError) as caught:
                check_owned(key, "d")
            assert caught.value.key == key
        else:
            assert check_owned(key, "d") == key


@pytest.mark.parametrize("key", ["d+-_/f", "d+-_/t/x=1/f.parquet", "d+-_.x.by-dataset-index.parquet"])
def test_the_uuid_is_no_pattern(key):
    assert check_owned(key, "d+-_") == key
    with pytest.raises(CorruptDatasetError):
        check_owned("dd/f", "d+")
    with pytest.raises(CorruptDatasetError):
        check_owned_keys(pa.array(["dd/f"]), "d+")


@pytest.mark.parametrize(
    "key",
    [
        *("d", "d/", "e/f", "dd/f", "d.f", "d/../e/f", "/d/f", None, 1, b"d/f", ["d/f"]),
        *("d.by-dataset-metadata.json", "d.x.by-dataset-index.parquet.gz"),
        *(f"{start}.by-dataset-index.parquet" for start in ("d", "d.", "d./x", "d.x/../../y", "dd.x")),
    ],
)
def test_foreign(key):
    with pytest.raises(CorruptDatasetError, match="dataset 'd'") as caught:
        check_owned(key, "d")
    assert str(key) in str(caught.value)


@pytest.mark.parametrize("key", ["d/table/p=a//f.parquet", "d/table/p=//f.parquet", "d/table/p=a//b/f"])
def test_keys_of_kartothek_with_empty_components(key):
    # the file of the value "a/"; on a local disk it lies beside that of "a"
    with pytest.raises(CorruptDatasetError, match="values that end in '/' or contain '//'") as caught:
        check_owned_keys(pa.array([key]), "d")
    assert caught.value.key == key


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([], pa.string()),
        pa.array(["d/f", "d/g"]),
        pa.array(["e/f", "d/f"])[1:],
        pa.array(["d/f"], pa.large_string()),
        pa.chunked_array([["d/f"], [], ["d/g"]], pa.string()),
        pa.chunked_array([], pa.string()),
    ],
)
def test_owned_keys(keys):
    check_owned_keys(keys, "d")


@pytest.mark.parametrize(
    "keys, first",
    [
        (pa.array(["d/f", None, "e/f"]), "None"),
        (pa.array([None], pa.string()), "None"),
        (pa.chunked_array([["d/f"], ["d/g", "e/f"]]), "e/f"),
        (pa.array(["d.x.by-dataset-index.parquet"]), "d.x"),
    ],
)
def test_foreign_keys(keys, first):
    with pytest.raises(CorruptDatasetError, match=first):
        check_owned_keys(keys, "d")
