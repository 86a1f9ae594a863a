import inspect

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest

from kartothek_cube.io_components import utils

LISTS = ["partition_on", "secondary_indices", "sort_partitions_by", "delete_scope", "bucket_by"]
LISTS.append("dispatch_by")


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    "value, expected",
    [
        *((value, [value]) for value in ("x", "", b"x", 1, 1.5, True)),
        *((xy, ["x", "y"]) for xy in (["x", "y"], ("x", "y"), pd.Index(["x", "y"]), (x for x in "xy"))),
        ([], []),
        (np.array(["x"]), ["x"]),
        ({"x": 1}.keys(), ["x"]),
        ([{"x": 1}], [{"x": 1}]),
    ],
)
def test_normalize_arg(name, value, expected):
    if inspect.isgenerator(value):
        value = iter(expected)
    assert utils.normalize_arg(name, value) == expected


@pytest.mark.parametrize("value", [{"x"}, frozenset("x"), {"x": 1}])
def test_normalize_arg_without_order(value):
    with pytest.raises(ValueError, match=f"partition_on is a {type(value).__name__}"):
        utils.normalize_arg("partition_on", value)


def test_normalize_args():

    @utils.normalize_args
    def function(store, partition_on, other=None, dispatch_by="x", *, delete_scope=None, **more):
        """Docstring."""
        return store, partition_on, other, dispatch_by, delete_scope, more

    assert function(1, "p", "o", z=2) == (1, ["p"], "o", ["x"], [], {"z": 2})
    assert function(store="s", partition_on=("p",), dispatch_by=None) == ("s", ["p"], None, None, [], {})
    names = ["store", "partition_on", "other", "dispatch_by", "delete_scope", "more"]
    assert list(inspect.signature(function).parameters) == names
    assert (function.__name__, function.__doc__) == ("function", "Docstring.")
    with pytest.raises(TypeError, match="partition_on"):
        function(1)
    found = {name: utils.normalize_arg(name, None) for name in LISTS}
    assert found.pop("dispatch_by") is None
    assert set(found) == set(LISTS[:-1])
    assert all(value == [] for value in found.values())


@pytest.mark.parametrize(
    "items, expected",
    [([1, 2, 1, 3, 3, 1], [1, 3]), (["a", "b"], []), ([], []), (None, []), (iter("aba"), ["a"])],
)
def test_extract_duplicates(items, expected):
    assert utils.extract_duplicates(items) == expected


@pytest.mark.parametrize(
    "sources, expected",
    [
        ([], {}),
        ([{"a": 1}, {"a": 2}], {}),
        *((sources, {"a": 1}) for sources in ([{"a": 1}], [{"a": 1}, {"a": 1}], [{"a": 1}, None, {}])),
        ([{"a": 1}, {"b": 2}], {"a": 1, "b": 2}),
        ([{"a": None}, {"a": 2}], {"a": 2}),
        ([{"a": None}, {"a": None}], {"a": None}),
        ([{"a": [1]}, {"a": [2]}, {"a": []}], {"a": [1, 2]}),
        ([{"a": [1]}, {"a": [1]}], {"a": [1]}),
        ([{"a": [1]}, {"a": 1}], {}),
        ([{"a": {"x": 1}}, {"a": {"y": 2}}], {"a": {"x": 1, "y": 2}}),
        ([{"a": {"x": 1}}, {"a": {"x": 2}}], {}),
        ([{"a": {"x": 1, "y": 1}}, {"a": {"x": 2, "y": 1}}], {"a": {"y": 1}}),
        ([{"a": {"x": 1}}, {"a": 3}], {}),
    ],
)
def test_combine_metadata(sources, expected):
    assert utils.combine_metadata(sources) == expected
    assert utils.combine_metadata(sources[::-1]).keys() == expected.keys()


def test_combine_metadata_without_lists():
    sources = [{"a": [1], "b": [1]}, {"a": [2], "b": [1]}]
    assert utils.combine_metadata(sources, append_to_list=False) == {"b": [1]}


def test_align_categories():
    short = pd.DataFrame({"x": pd.Categorical(["b", None]), "y": [1, 2]})
    long = pd.DataFrame({"x": pd.Categorical(["d", "c", "d"], categories=["d", "c", "e"]), "y": [1, 2, 3]})
    other = pd.DataFrame({"x": pd.Categorical(["a"]), "y": [1]})
    before = [df.copy(deep=True) for df in (short, long, other)]
    aligned = utils.align_categories([short, long, other], ["x"])
    assert [df["x"].cat.categories.tolist() for df in aligned] == [["d", "c", "e", "a", "b"]] * 3
    for df, original, copy in zip(aligned, [short, long, other], before):
        assert df["x"].astype(object).equals(original["x"].astype(object))
        pdt.assert_frame_equal(original, copy)
    assert isinstance(pd.concat(aligned)["x"].dtype, pd.CategoricalDtype)


def test_plain_columns_become_categories():
    plain, encoded = pd.DataFrame({"x": ["b", None]}), pd.DataFrame({"x": pd.Categorical(["a"])})
    aligned = utils.align_categories([plain, encoded], ["x"])
    assert [df["x"].cat.categories.tolist() for df in aligned] == [["b", "a"]] * 2
    for columns in ([], ["x"]):
        assert utils.align_categories([], columns) == []


def test_sort_values_categorical():
    x = pd.Categorical(["b", "a", "c", "a"], categories=["c", "b", "a"])
    df = pd.DataFrame({"x": x, "y": [1, 2, 3, 1]}, index=[7, 8, 9, 10])
    before = df.copy(deep=True)
    by_x = utils.sort_values_categorical(df, "x")
    assert (by_x["x"].tolist(), by_x["y"].tolist()) == (["a", "a", "b", "c"], [2, 1, 1, 3])
    assert by_x["x"].cat.ordered
    assert by_x["x"].cat.categories.tolist() == ["a", "b", "c"]
    assert by_x.index.tolist() == [0, 1, 2, 3]
    by_y = utils.sort_values_categorical(df, ["y", "x"])
    assert by_y["x"].tolist() == ["a", "b", "a", "c"]
    assert by_y["x"].cat.categories.tolist() == ["a", "b", "c"]
    pdt.assert_frame_equal(df, before)
