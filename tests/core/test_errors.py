import pickle
import re

import pandas as pd
import pytest

from kartothek_cube.core import errors
from kartothek_cube.core.errors import unknown_names

CELL = {"y": 2, "x": "a"}
HEADERS = ("u.by-dataset-metadata.json", "u.by-dataset-metadata.msgpack.zstd")
U = {"dataset_uuid": "u"}
#: error, the built-in one that it is as well, attributes, parts of its message
CASES = [
    (errors.KartothekCubeError("text"), Exception, {}, ["text"]),
    (
        errors.ConcurrentWriteError("u", ["p=1", "p=2"], detail="do that"),
        RuntimeError,
        {**U, "partitions": ("p=1", "p=2"), "detail": "do that"},
        ["'u'", "p=1, p=2", "do that"],
    ),
    (errors.ConcurrentWriteError("u"), RuntimeError, {"partitions": ()}, ["'u'", "not applied", "repeat"]),
    (errors.UnknownOutcomeError("u", "6 s"), RuntimeError, {**U, "detail": "6 s"}, ["'u'", "unknown", "6 s"]),
    (errors.DatasetExistsError("u"), RuntimeError, {"detail": ""}, ["'u' already exists", "overwrite=True"]),
    (errors.DatasetExistsError("u", "Use that."), RuntimeError, {"detail": "Use that."}, ["Use that."]),
    (errors.DatasetNotFoundError("u"), KeyError, {**U, "keys": HEADERS}, ["'u'", *map(repr, HEADERS)]),
    (errors.DatasetNotFoundError("a/b"), KeyError, {"keys": ()}, ["'a/b' does not exist"]),
    (errors.CorruptDatasetError("k", "odd"), ValueError, {"key": "k", "problem": "odd"}, ["'k'", "odd"]),
    (errors.MissingFileError("u/k"), KeyError, {"key": "u/k"}, ["'u/k'", "`retention`"]),
    (
        errors.StateNotFoundError("u", "3", "7 to 9"),
        ValueError,
        {**U, "as_of": "3", "known": "7 to 9"},
        ["'u'", "as of 3", "7 to 9"],
    ),
    (errors.StateNotFoundError("u", "3"), ValueError, {"known": ""}, ["as of 3"]),
    (
        errors.SchemaConflictError("x differs", "u", "table"),
        ValueError,
        {**U, "problem": "x differs", "table": "table"},
        ["Dataset 'u', table 'table': x differs"],
    ),
    (errors.SchemaConflictError("x differs"), ValueError, {"dataset_uuid": None}, ["x differs"]),
    (
        errors.DuplicateCellsError("seed", CELL, ["v2", "v1"], ["v3"], detail="x y v3"),
        ValueError,
        {"dataset_id": "seed", "columns": ("x", "y"), "example": CELL, "equal_payload": ("v1", "v2")}
        | {"differing_payload": ("v3",), "detail": "x y v3"},
        ["'seed'", "cell of x, y", "x='a', y=2", "Equal payload: v1, v2", "differing payload: v3\nx y v3"],
    ),
    (
        errors.MultiTableCommitAborted("c++seed", ["c++b", "c++a"], ["c++z"], "full"),
        RuntimeError,
        {"failed": "c++seed", "rolled_back": ("c++a", "c++b"), "left": ("c++z",), "detail": "full"},
        ["Dataset 'c++seed': full.", "not committed; rolled back: c++a, c++b.", "c++z"],
    ),
    (errors.MultiTableCommitAborted("c++seed"), RuntimeError, {"left": ()}, ["'c++seed': the commit failed"]),
    (errors.CubeNotFoundError("c", "d?"), ValueError, {"uuid_prefix": "c"}, ["Cube c not found: d?"]),
    (
        errors.ContractViolationError("u", "NotNull('v')", 1, 2, [{"v": None}]),
        ValueError,
        {"rule": "NotNull('v')", "count": 1, "n_rows": 2, "examples": ({"v": None},), "detail": ""},
        ["'u'", "NotNull('v'), which 1 of 2 rows breaks, such as v=None"],
    ),
]


@pytest.mark.parametrize("error, builtin, facts, parts", CASES, ids=lambda case: type(case).__name__)
def test_error_tells_and_carries_the_facts_also_pickled(error, builtin, facts, parts):
    assert isinstance(error, errors.KartothekCubeError)
    assert isinstance(error, builtin)
    assert {name: getattr(error, name) for name in facts} == facts
    for part in parts:
        assert part in str(error)
    assert "'" not in str(error)[:1]  # no repr, KeyError included
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert vars(back) == vars(error)


def test_every_error_is_tested():
    classes = {name for name in errors.__all__ if not name.endswith("Warning")}
    assert {type(case[0]).__name__ for case in CASES} == classes


def test_long_lists_are_cut_but_all_unknown_names_are_listed():
    error = errors.ConcurrentWriteError("u", [f"p={i}" for i in range(1000)])
    assert len(error.partitions) == 1000
    assert "p=19, … and 980 more" in str(error)
    text = unknown_names("dataset", [f"u{i:02}" for i in range(30)], [f"k{i:02}" for i in range(30)])
    assert all(f"u{i:02}" in text for i in range(30))
    assert text.endswith("k19, … and 10 more")


@pytest.mark.parametrize(
    "unknown, available, expected",
    [
        (["b", "a"], ["x", "v"], "unknown column a, b; available: v, x"),
        (["colum"], ["column", "x"], "unknown column colum; did you mean column? available: column, x"),
        (["CITY"], ["city"], "unknown column CITY; did you mean city? available: city"),
        (["a"], [], "unknown column a; available: none"),
        ([1, "z"], [2, "b"], "unknown column 1, z; available: 2, b"),
    ],
)
def test_unknown_names(unknown, available, expected):
    assert unknown_names("column", unknown, available) == expected


@pytest.mark.parametrize("value", ["c", "", None, 1, ["a"], pd.Series(["a"]), pd.DataFrame({"a": ["b"]})])
def test_choices(value):
    """A Series was an error about its truth value."""
    shown = re.escape(" ".join(repr(value).split()))
    with pytest.raises(ValueError, match=f"mode is 'a' or 'b', got {shown}"):
        errors.check_choice("mode", value, ("a", "b"))
    errors.check_choice("mode", "b", ("a", "b", None))
    errors.check_choice("mode", None, ("a", "b", None))
