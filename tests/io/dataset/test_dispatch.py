"""Reads that are dispatched by indexed columns: one frame per combination of values."""

import pytest

from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.io.eager import (
    read_dataset_as_dataframes,
    store_dataframes_as_dataset,
    update_dataset_from_dataframes,
)
from tests.support.stored_files import all_rows, frame
from tests.support.stores import CountingStore


@pytest.fixture
def stored(memory):
    """Partitions p = 2, 1, 2 with x = [3, 1, 3], [1, None], [2, 3]."""
    df = frame(p=[2, 2, 1, 1, 2], x=[3, 1, 1, None, 3], y=["a", "b", "c", "d", "e"])
    df = df.astype({"x": "Int64"})
    store_dataframes_as_dataset(memory, "u", [df], partition_on="p", secondary_indices="x")
    more = frame(p=[2, 2], x=[2, 3], y=["f", "g"]).astype({"x": "Int64"})
    update_dataset_from_dataframes([more], memory, "u")
    return memory


@pytest.mark.parametrize(
    "dispatch_by, predicates, found",
    [
        ("p", [[("p", ">", 1)]], [["a", "b", "e", "f", "g"]]),
        ("x", [[("x", "in", [1, 3])]], [["b", "c"], ["a", "e", "g"]]),
        ("x", [[("x", ">", 1), ("p", "==", 2)]], [["f"], ["a", "e", "g"]]),
        ("x", [[("x", "==", 1), ("p", "==", 1)], [("x", "==", 2)]], [["c"], ["f"]]),
        ("x", [[("y", ">", "e")]], [[], ["f"], ["g"]]),
        ("p", [[("y", "==", "a")]], [[], ["a"]]),
        ("p", [[("x", "==", 2)]], [["f"]]),
        (["p", "x"], [[("p", "==", 2)]], [["b"], ["f"], ["a", "e", "g"]]),
        ([], [[("x", "<", 3)]], [["b", "c", "f"]]),
        ("p", [[("p", "==", 7)]], []),
        ([], [[("p", "==", 7)]], []),
    ],
)
@pytest.mark.parametrize("pushdown", [True, False])
def test_predicates(io, stored, dispatch_by, predicates, found, pushdown):
    options = {"predicates": predicates, "predicate_pushdown_to_io": pushdown}
    assert [df["y"].tolist() for df in io.read(stored, dispatch_by=dispatch_by, **options)] == found


@pytest.mark.parametrize("columns", [["y"], ["y", "x"], ["p"], []])
def test_columns(io, stored, columns):
    frames = io.read(stored, dispatch_by="x", columns=columns)
    assert [list(df.columns) for df in frames] == [columns] * 3
    assert [len(df) for df in frames] == [2, 1, 3]


def test_combinations_that_only_the_indices_hold(io, memory):
    io.store(memory, [frame(x=[1, 2], y=["a", "b"])], secondary_indices=["x", "y"])
    found = all_rows(io.read(memory, dispatch_by=["x", "y"]))
    assert found == [{"x": [1], "y": ["a"]}, {"x": [], "y": []}, {"x": [], "y": []}, {"x": [2], "y": ["b"]}]


@pytest.mark.parametrize("dispatch_by", ["y", ["x", "y"], ["zz"]])
def test_columns_without_index(io, stored, dispatch_by):
    with pytest.raises(RuntimeError, match=r"Requested: .*; available .*: p, x"):
        io.read(stored, dispatch_by=dispatch_by)


def test_indices_stay_in_the_factory(io, stored):
    factory = DatasetFactory("u", stored)
    io.read(None, None, factory=factory, dispatch_by=["x"])
    assert factory.indices["x"].loaded
    with pytest.raises(ValueError, match="set"):
        io.read(stored, dispatch_by={"x"})


def test_only_needed_files_are_opened(stored):
    counting = CountingStore(stored())
    [_] = read_dataset_as_dataframes("u", counting, dispatch_by="x", predicates=[[("x", "==", 2)]])
    assert sum("/table/p=" in key for _, key in counting.log) == 1
