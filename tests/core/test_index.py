import datetime
import itertools
import logging
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storefact import get_store_from_url

from kartothek_cube.api.dataset import DatasetFactory, read_table, store_dataframes_as_dataset
from kartothek_cube.core import caching
from kartothek_cube.core import index as index_file
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions import AnyOf
from kartothek_cube.core.index import (
    ExplicitSecondaryIndex,
    IndexBase,
    IndexColumns,
    PartitionIndex,
    filter_indices,
    merge_indices,
    remove_partitions_from_indices,
)
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.pruning import load_index
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.testing import TIME_TO_FREEZE, TIME_TO_FREEZE_ISO_QUOTED, cm_frozen_time
from tests.support.cubes import parquet_bytes as parquet
from tests.support.predicates import COMPARE, KINDS, literals

DAY, NEXT_DAY = datetime.date(2020, 1, 31), datetime.date(2020, 2, 1)
STAMP, LATER = pd.Timestamp("2020-01-31 12:00:00.000001"), pd.Timestamp("2262-01-01")

#: few values, so that they meet; sorted
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [-(2**63), -1, 0, 2**53 + 1],
    pa.uint64(): [0, 1, 2**63, 2**64 - 1],
    pa.float64(): [float("-inf"), -1e-300, 0.0, 0.1],
    pa.bool_(): [False, True],
    pa.string(): ["", "A", "a", "ä"],
    pa.binary(): [b"", b"\0", b"a", b"\xff"],
    pa.date32(): [datetime.date(1, 1, 1), DAY, NEXT_DAY],
    pa.timestamp("ns"): [pd.Timestamp("1969-12-31 23:59:59.999999"), STAMP, LATER],
    pa.timestamp("ns", "Europe/Berlin"): [pd.Timestamp("1969-12-31", tz="Europe/Berlin")],
}
LABELS = ["p=1/a", "p=2/a", "b", "c"]
QUICK = settings(max_examples=25, deadline=None)
DTYPES = pytest.mark.parametrize("dtype", VALUES, ids=str)


def entries(dtype: pa.DataType) -> st.SearchStrategy[list[tuple[Any, str]]]:
    """(value, label) pairs, with duplicates and nulls."""
    return st.lists(st.tuples(st.sampled_from([*VALUES[dtype], None]), st.sampled_from(LABELS)), max_size=8)


def columns_of(pairs: list[tuple[Any, str]], dtype: pa.DataType) -> IndexColumns:
    return IndexColumns.from_pairs(pa.array([v for v, _ in pairs], dtype), [label for _, label in pairs])


def index_of(pairs: list[tuple[Any, str]], dtype: pa.DataType) -> ExplicitSecondaryIndex:
    return ExplicitSecondaryIndex("x", columns_of(pairs, dtype))


def brute(pairs: list[tuple[Any, str]], dtype: pa.DataType) -> dict[Any, list[str]]:
    """What an index has to hold."""
    result: dict[Any, list[str]] = {}
    for value, label in pairs:
        if value is not None and label not in result.setdefault(value, []):
            result[value].append(label)
    return {value: result[value] for value in VALUES[dtype] if value in result}


def held(index: IndexBase) -> dict[Any, list[str]]:
    return dict(zip(index.columns_data.values.to_pylist(), index.index_dct.values()))


def sound(columns: IndexColumns) -> None:
    """What every index holds by construction."""
    values = columns.values
    assert values.null_count == 0 and values.take(pa.compute.sort_indices(values)).equals(values)
    assert len(values.unique()) == len(values)
    assert columns.offsets.dtype == np.int64 and columns.codes.dtype == np.int32
    assert (np.diff(columns.offsets) > 0).all() and columns.offsets[-1] == len(columns.codes)
    assert len(columns.labels.unique()) == len(columns.labels)


X = {1: ["a", "b"], 2: ["b"], 3: ["c"]}


def x_index(**kwargs: Any) -> ExplicitSecondaryIndex:
    return ExplicitSecondaryIndex("x", X, **kwargs)


@DTYPES
@given(data=st.data())
@QUICK
def test_an_index_holds_what_it_is_made_of(dtype, data):
    pairs = data.draw(entries(dtype))
    expected = brute(pairs, dtype)
    index = index_of(pairs, dtype)
    sound(index.columns_data)
    assert held(index) == expected and list(held(index)) == list(expected)
    from_dict = ExplicitSecondaryIndex("x", expected, dtype=dtype)
    assert from_dict == index and from_dict.index_dct == index.index_dct
    assert pickle.loads(pickle.dumps(index)) == index
    taken, codes = index.columns_data.pairs()
    again = zip(taken.to_pylist(), index.columns_data.labels.take(codes).to_pylist())
    assert columns_of(list(again), dtype).equals(index.columns_data)


def test_values_of_float_indices_are_numbers():
    index = index_of([(0.0, "a"), (-0.0, "b"), (float("nan"), "c"), (None, "c")], pa.float64())
    assert index.index_dct == {0.0: ["a", "b"]}
    assert index.query(-0.0) == ["a", "b"]
    assert index.query(float("nan")) == []


@pytest.mark.parametrize(
    "value, expected",
    [
        *((number, int) for number in (1, np.int8(1), 2**63 - 1, 2**64 - 1)),
        (1.5, float),
        ("a", str),
        (b"a", bytes),
        (True, bool),
        (DAY, datetime.date),
        *((stamp, np.datetime64) for stamp in (STAMP, np.datetime64(DAY), datetime.datetime(2020, 1, 31))),
    ],
)
def test_type_is_told_by_the_values(value, expected):
    index = ExplicitSecondaryIndex("x", {None: ["b"], value: ["a"]})
    ((found, labels),) = index.index_dct.items()
    assert type(found) is expected and labels == ["a"]
    assert index.query(value) == ["a"]
    if expected is np.datetime64:
        assert found.dtype == "datetime64[ns]"
        found, value = pd.Timestamp(found), pd.Timestamp(value)
    assert found == value


@pytest.mark.parametrize(
    "given_type, expected",
    [
        (pa.int8(), pa.int64()),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.timestamp("ms"), pa.timestamp("ns")),
        (pa.timestamp("us"), pa.timestamp("us")),
    ],
)
def test_types_are_widened_unless_they_shall_stay(given_type, expected):
    assert ExplicitSecondaryIndex("x", {}, dtype=given_type).dtype == expected
    entries = IndexColumns.from_pairs(pa.array([], given_type), [])
    assert ExplicitSecondaryIndex("x", entries).columns_data.values.type == expected
    kept = ExplicitSecondaryIndex("x", {}, dtype=given_type, normalize_dtype=False)
    assert kept.dtype == kept.columns_data.values.type == kept.copy().dtype == given_type


def test_values_that_become_equal_share_their_partitions(caplog):
    with caplog.at_level(logging.WARNING):
        index = ExplicitSecondaryIndex("x", {1: ["a", "b"], "1": ["b", "c"], "2": ["a"]}, dtype=pa.int64())
    assert index.index_dct == {1: ["a", "b", "c"], 2: ["a"]}
    assert "1 values of the index on 'x'" in caplog.text


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ({"column": "partition", "index_dct": X}, ValueError, "'partition' cannot be indexed"),
        ({"column": "x", "index_dct": X, "dtype": pa.null()}, NotImplementedError, "'x' of type null"),
        ({"column": "x", "index_dct": {None: ["a"]}}, NotImplementedError, "'x' of type null"),
        ({"column": "x", "index_dct": X, "dtype": pa.list_(pa.int64())}, NotImplementedError, "list"),
        ({"column": "x"}, ValueError, "data or a storage key"),
        ({"column": "x", "index_dct": {}}, ValueError, "needs a type"),
        ({"column": "x", "index_dct": {"y": ["a"]}, "dtype": pa.int64()}, ValueError, "'y'"),
        ({"column": "x", "index_dct": {1: [1]}}, TypeError, "have to be str, not int"),
    ],
)
def test_impossible_indices_are_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        ExplicitSecondaryIndex(**arguments)


def test_partition_indices_need_a_type():
    with pytest.raises(ValueError, match="needs the type of its column 'p'"):
        PartitionIndex("p", {1: ["a"]})


OPERATORS = {**COMPARE, "in": lambda value, others: value in others}


@DTYPES
@given(data=st.data())
@QUICK
def test_queries_find_what_a_loop_finds(dtype, data):
    pairs = data.draw(entries(dtype))
    index, expected = index_of(pairs, dtype), brute(pairs, dtype)
    value = data.draw(st.sampled_from(VALUES[dtype]))
    assert index.query(value) == expected.get(value, [])
    op = data.draw(st.sampled_from(sorted(OPERATORS)))
    operand = data.draw(st.lists(st.sampled_from(VALUES[dtype]), max_size=2)) if op == "in" else value
    hits = [OPERATORS[op](v, operand) for v in expected]
    assert index.mask(op, operand).tolist() == hits
    labels = set(itertools.chain.from_iterable(ls for ls, hit in zip(expected.values(), hits) if hit))
    assert index.eval_operator(op, operand) == labels
    table = PartitionTable(["c", "unrelated", "p=1/a"])
    names = table.labels.to_pylist()
    with_value = index.partitions_with(value, table).tolist()
    assert with_value == [label in expected.get(value, []) for label in names]


def test_queries_and_removals_cast_values():
    assert x_index().query("1") == ["a", "b"]
    assert ExplicitSecondaryIndex("x", {DAY: ["a"]}).query("2020-01-31") == ["a"]
    assert ExplicitSecondaryIndex("x", {True: ["a"]}).query("TRUE") == ["a"]
    assert ExplicitSecondaryIndex("x", {b"a": ["a"]}).query("a") == ["a"]
    assert x_index().query(17) == []
    assert ExplicitSecondaryIndex("x", {"None": ["a"]}).query(None) == []
    assert x_index().remove_values(["1", 2]).index_dct == {3: ["c"]}


@pytest.mark.parametrize(
    "op, value", [("==", "1"), ("<", 1.0), ("in", [1, "1"]), ("==", None), (">", None), ("!=", True)]
)
def test_operators_are_strict(op, value):
    with pytest.raises(TypeError, match="'x'"):
        x_index().eval_operator(op, value)
    with pytest.raises(TypeError, match="'x'"):
        ExplicitSecondaryIndex("x", {}, dtype=pa.int64()).eval_operator(op, value)


def test_operators_of_dates_and_nulls():
    index = ExplicitSecondaryIndex("x", {DAY: ["a"], NEXT_DAY: ["b"]})
    assert index.eval_operator(">", DAY) == index.eval_operator(">", "2020-01-31") == {"b"}
    for value in (pd.Timestamp(DAY), np.datetime64("2020-01-31"), 0):
        with pytest.raises(TypeError, match="'x'"):
            index.eval_operator(">", value)
    index = ExplicitSecondaryIndex("x", {"v": ["a"]})
    assert index.eval_operator("==", None) == set()
    assert index.eval_operator("!=", None) == {"a"}
    assert index.eval_operator("in", ["v", None]) == {"a"}
    with pytest.raises(NotImplementedError, match="~"):
        x_index().eval_operator("~", 1)


@pytest.mark.parametrize(
    "dct, date_as_object, expected",
    [
        ({DAY: ["a"]}, True, np.array([DAY], dtype=object)),
        ({DAY: ["a"]}, False, np.array(["2020-01-31"], dtype="datetime64[ns]")),
        ({2: ["a"], 1: ["a"]}, True, np.array([1, 2])),
        ({"b": ["a"], "a": ["a"]}, True, np.array(["a", "b"], dtype=object)),
        ({STAMP: ["a"]}, True, np.array([STAMP], dtype="datetime64[ns]")),
        (
            {STAMP.tz_localize("Asia/Tokyo"): ["a"]},
            True,
            np.array([STAMP.tz_localize("Asia/Tokyo")], dtype=object),
        ),
        ({True: ["a"]}, True, np.array([True])),
        ({}, True, np.array([], dtype=np.int64)),
    ],
)
def test_observed_values(dct, date_as_object, expected):
    index = ExplicitSecondaryIndex("x", dct, dtype=None if dct else pa.int64())
    found = index.observed_values(date_as_object)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


FLAT = ExplicitSecondaryIndex("x", {DAY: ["b", "a"], NEXT_DAY: ["a"]})


@pytest.mark.parametrize("as_object", [False, True])
def test_flat_series_has_a_row_per_pair(as_object):
    days = [DAY, DAY, NEXT_DAY] if as_object else pd.DatetimeIndex([DAY, DAY, NEXT_DAY]).as_unit("ns")
    dates = pd.Index(days, dtype=object if as_object else None, name="x")
    by_value = FLAT.as_flat_series(date_as_object=as_object)
    pdt.assert_series_equal(by_value, pd.Series(["b", "a", "a"], index=dates, name="partition"))
    by_label = FLAT.as_flat_series(partitions_as_index=True, date_as_object=as_object)
    labels = pd.Index(["b", "a", "a"], name="partition")
    pdt.assert_series_equal(by_label, pd.Series(dates, index=labels, name="x"))


def test_compact_series_hold_lists():
    by_value = FLAT.as_flat_series(compact=True, date_as_object=True)
    assert (by_value.name, by_value.index.name) == ("partition", "x")
    assert {value: list(labels) for value, labels in by_value.items()} == {DAY: ["b", "a"], NEXT_DAY: ["a"]}
    by_label = FLAT.as_flat_series(compact=True, partitions_as_index=True, date_as_object=True)
    assert (by_label.name, by_label.index.name) == ("x", "partition")
    assert list(by_label.items()) == [("a", [DAY, NEXT_DAY]), ("b", [DAY])]
    assert FLAT.as_flat_series(compact=True, partitions_as_index=True)["b"] == [pd.Timestamp(DAY)]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(
    "dtype, expected",
    [(pa.int64(), "int64"), (pa.timestamp("ns"), "datetime64[ns]"), (pa.timestamp("us"), "datetime64[us]")],
)
def test_empty_series_are_typed(compact, dtype, expected):
    index = ExplicitSecondaryIndex("x", {}, dtype=dtype)
    by_value = index.as_flat_series(compact=compact)
    assert (len(by_value), by_value.name, by_value.index.dtype) == (0, "partition", expected)
    by_label = index.as_flat_series(compact=compact, partitions_as_index=True)
    assert (len(by_label), by_label.name) == (0, "x")
    assert by_label.dtype == (object if compact else expected)


@pytest.mark.parametrize(
    "predicates, expected",
    [
        (None, [1, 1, 2, 3]),
        ([[("x", ">", 1)]], [2, 3]),
        ([[("x", ">", 1), ("y", "==", "unknown")], [("x", "==", 1)]], [1, 1, 2, 3]),
        ([[("x", ">", 1), ("x", "<", 3)]], [2]),
        ([[("x", ">", 1)], [("y", "==", 1)]], [1, 1, 2, 3]),
        ([[("y", "==", 1)]], [1, 1, 2, 3]),
    ],
)
def test_flat_series_is_filtered_if_every_conjunction_tells(predicates, expected):
    assert x_index().as_flat_series(predicates=predicates).index.tolist() == expected


@DTYPES
@given(data=st.data())
@QUICK
def test_changes_do_what_a_loop_does(dtype, data):
    one, two = data.draw(entries(dtype)), data.draw(entries(dtype))
    labels = data.draw(st.lists(st.sampled_from([*LABELS, "z"]), max_size=3))
    values = data.draw(st.lists(st.sampled_from(VALUES[dtype]), max_size=2))
    index = index_of(one, dtype)
    updated = index.update(index_of(two, dtype))
    sound(updated.columns_data)
    united = brute(one + two, dtype)
    assert {v: set(ls) for v, ls in held(updated).items()} == {v: set(ls) for v, ls in united.items()}
    rest = [(v, label) for v, label in one if label not in labels]
    without = index.remove_partitions(labels)
    sound(without.columns_data)
    assert held(without) == brute(rest, dtype)
    assert set(without.columns_data.labels.to_pylist()) <= {label for _, label in one}
    kept = filter_indices({"x": index}, labels)["x"]
    assert held(kept) == brute([(v, label) for v, label in one if label in labels], dtype)
    fewer = index.remove_values(values)
    sound(fewer.columns_data)
    assert held(fewer) == brute([(v, label) for v, label in one if v not in values], dtype)
    assert held(index) == brute(one, dtype)
    assert held(merge_indices([{"x": index}, {"x": index_of(two, dtype)}])["x"]) == held(updated)


CHANGES = {
    "update": lambda index, inplace: index.update(ExplicitSecondaryIndex("x", {1: ["z"]}), inplace=inplace),
    "remove_partitions": lambda index, inplace: index.remove_partitions(["a"], inplace=inplace),
    "remove_values": lambda index, inplace: index.remove_values([1], inplace=inplace),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_indices_have_no_key(change):
    index = x_index(index_storage_key="u/indices/x/1")
    changed = CHANGES[change](index, False)
    assert changed.index_storage_key is None and changed != index
    assert index == x_index(index_storage_key="u/indices/x/1")
    assert index.index_dct == X
    assert CHANGES[change](index, True) == changed == index
    assert index.index_dct == changed.index_dct


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.update(ExplicitSecondaryIndex("x", {}, dtype=pa.int64())),
        lambda index: index.update(ExplicitSecondaryIndex("x", index_storage_key="not loaded")),
        lambda index: index.update(ExplicitSecondaryIndex("x", {1: ["b"]})),
        lambda index: index.remove_partitions([]),
        lambda index: index.remove_partitions(["z"]),
        lambda index: index.remove_values([]),
        lambda index: index.remove_values(["17"]),
    ],
)
def test_no_change_gives_the_same_index(change):
    index = x_index(index_storage_key="key")
    assert change(index) is index
    assert index.index_storage_key == "key"


@pytest.mark.parametrize(
    "other, error",
    [
        ({1: ["a"]}, TypeError),
        (ExplicitSecondaryIndex("x", {"1": ["a"]}), TypeError),
        (ExplicitSecondaryIndex("y", {1: ["a"]}), ValueError),
    ],
)
def test_only_indices_of_the_same_kind_are_united(other, error):
    with pytest.raises(error):
        x_index().update(other)


def test_helpers_work_on_all_indices():
    other = ExplicitSecondaryIndex("y", {"v": ["a"]})
    merged = merge_indices([{"x": x_index()}, {"x": ExplicitSecondaryIndex("x", {9: ["z"]}), "y": other}])
    assert merged["y"] is other
    assert merged["x"].index_dct == {**X, 9: ["z"]}
    removed = remove_partitions_from_indices({"x": x_index(), "y": other}, (label for label in ["a"]))
    assert (removed["x"].index_dct, removed["y"].index_dct) == ({1: ["b"], 2: ["b"], 3: ["c"]}, {})
    with pytest.raises(TypeError, match="'x' have different types: int64, string"):
        merge_indices([{"x": x_index()}, {"x": ExplicitSecondaryIndex("x", {"v": ["a"]})}])


@pytest.mark.parametrize(
    "other, equal",
    [
        (x_index(), True),
        (ExplicitSecondaryIndex("x", {3: ["c"], 2: ["b"], 1: ["b", "a"]}), True),
        (x_index(index_storage_key="key"), False),
        (ExplicitSecondaryIndex("y", X), False),
        (ExplicitSecondaryIndex("x", {**X, 3: ["a"]}), False),
        (ExplicitSecondaryIndex("x", {**X, 4: ["a"]}), False),
        (ExplicitSecondaryIndex("x", X, dtype=pa.uint64()), False),
        (PartitionIndex("x", X, dtype=pa.int64()), False),
        (X, False),
    ],
)
def test_equality(other, equal):
    assert (x_index() == other) is equal
    assert (other == x_index()) is equal


ENTRIES = st.dictionaries(st.integers(0, 5), st.lists(st.sampled_from("abcd"), min_size=1, unique=True))


@given(ENTRIES, st.data())
def test_partitions_are_replaced_as_by_a_removal_and_an_update(entries, data):
    index = ExplicitSecondaryIndex("x", entries, dtype=pa.int64())
    removed = data.draw(st.lists(st.sampled_from("abcde"), unique=True), label="removed")
    if data.draw(st.booleans(), label="the same cells"):
        names = dict(zip(removed, data.draw(st.permutations(["f", "g", "h", "i", "j"])), strict=False))
        added = {x: [names[label] for label in labels if label in names] for x, labels in entries.items()}
        added = {x: labels for x, labels in added.items() if labels}
    else:
        added = data.draw(ENTRIES, label="added")
    new = ExplicitSecondaryIndex("x", added, dtype=pa.int64())
    before = index.copy()
    found = index.replace_partitions(pa.array(removed, pa.string()), new)
    assert found == index.remove_partitions(removed).update(new)
    assert index == before
    assert len(found.columns_data.labels.unique()) == len(found.columns_data.labels)


def test_files_of_the_same_cells_take_over_their_entries():
    index = ExplicitSecondaryIndex("x", {1: ["a", "b"], 2: ["b"], 3: ["c"]}, dtype=pa.int64())
    new = ExplicitSecondaryIndex("x", {1: ["d"], 2: ["d"]}, dtype=pa.int64())
    found = index.replace_partitions(pa.array(["b"]), new)
    assert found.index_dct == {1: ["a", "d"], 2: ["d"], 3: ["c"]}
    assert found.columns_data.codes is index.columns_data.codes


@pytest.mark.parametrize("shared", [False, True], ids=["disjoint", "shared"])
def test_parts_are_merged_in_their_order(shared):
    """Whether or not parts speak about the same partitions."""
    dicts = [{1: ["a", "b"], 3: ["a"]}, {2: ["c"], 3: ["c", "d"]}, {3: ["e"], 1: ["e"], 9: ["e"]}]
    if shared:
        dicts.append({3: ["a", "f"], 1: ["f"]})
    parts = [IndexColumns.from_dict(pa.array(list(d)), list(d.values())) for d in dicts]
    expected = {}
    for dct in dicts:
        for value, labels in dct.items():
            expected.setdefault(value, []).extend(x for x in labels if x not in expected[value])
    merged = IndexColumns.merge([parts[0], IndexColumns.empty(pa.int64()), *parts[1:]], pa.int64())
    assert merged.to_dict() == dict(sorted(expected.items()))
    assert merged.labels.to_pylist() == list("abcdef")[: len(merged.labels)]
    assert (merged.offsets.dtype, merged.codes.dtype) == (np.int64, np.int32)


def test_values_may_be_given_once_for_many_pairs():
    values = pa.array([0.0, None, 2.0, -0.0, float("nan"), 1.0])
    rows, codes = np.array([2, 0, 1, 3, 4, 0, 2]), np.array([1, 0, 1, 1, 0, 0, 0])
    columns = IndexColumns.from_pairs(values, ["a", "b"], codes, rows)
    assert columns.to_dict() == {0.0: ["a", "b"], 2.0: ["b", "a"]}


def test_merging_casts_to_the_type_asked_for():
    narrow, wide = columns_of([(1, "a")], pa.int8()), columns_of([(2, "b")], pa.int64())
    merged = IndexColumns.merge([narrow, IndexColumns.empty(pa.null()), wide], pa.int64())
    assert merged.to_dict() == {1: ["a"], 2: ["b"]} and merged.values.type == pa.int64()
    assert IndexColumns.merge([], pa.string()).values.type == pa.string()


@DTYPES
@given(data=st.data())
@QUICK
def test_files_hold_everything(dtype, data):
    index = index_of(data.draw(entries(dtype)), dtype)
    blobs = open_blobs("hmemory://")
    key = index.store(blobs, "u")
    for known, is_cached in itertools.product((None, dtype), (True, False)):
        if not is_cached:
            caching.clear()
        unloaded = ExplicitSecondaryIndex("x", index_storage_key=key, dtype=known)
        loaded = unloaded.load(blobs)
        assert loaded == index and loaded.dtype == dtype and loaded.index_dct == index.index_dct
        assert not unloaded.loaded
        assert loaded.load("hmemory://") is loaded


@pytest.mark.parametrize(
    "dtype, is_packed",
    [
        (pa.int64(), True),
        (pa.uint64(), True),
        (pa.timestamp("us"), True),
        (pa.date32(), True),
        (pa.string(), False),
        (pa.float64(), False),
    ],
    ids=str,
)
def test_values_of_integers_and_times_are_stored_as_differences(dtype, is_packed):
    numbers = pa.array(np.arange(10_000, 20_000), pa.int32())  # texts of equal length
    values = numbers.cast(dtype if dtype == pa.date32() else pa.int64()).cast(dtype)
    columns = IndexColumns.from_pairs(values, ["a"] * len(values))
    content = index_file.render_index("x", columns)
    encodings = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0).column(0).encodings
    assert ("DELTA_BINARY_PACKED" in encodings) == is_packed
    assert index_file.parse_index(content, "x", "key").values.cast(dtype).equals(values)


def test_files_are_those_of_the_format():
    columns = IndexColumns.from_pairs(pa.array([STAMP, LATER], pa.timestamp("ns")), ["a", "a"])
    file = pq.ParquetFile(pa.BufferReader(index_file.render_index("x", columns)))
    assert [file.schema.column(i).path for i in range(2)] == ["x", "partition.list.item"]
    lists = pa.list_(pa.field("item", pa.string()))
    assert file.schema_arrow.equals(pa.schema([("x", pa.timestamp("us")), ("partition", lists)]))


@pytest.mark.parametrize("n, groups", [(0, [0]), (1, [1]), (1 << 17, [1 << 17]), (131_073, [1 << 17, 1])])
def test_row_groups_are_bounded(n, groups):
    columns = IndexColumns.from_pairs(pa.array(range(n), pa.int64()), ["a"], np.zeros(n, dtype=np.int64))
    content = index_file.render_index("x", columns)
    metadata = pq.read_metadata(pa.BufferReader(content))
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == groups
    assert index_file.parse_index(content, "x", "key").equals(columns)


def test_row_groups_are_small_where_values_have_many_partitions(monkeypatch):
    monkeypatch.setattr(index_file, "_ENTRIES_PER_GROUP", 2)
    columns = IndexColumns.from_pairs(pa.array([1, 1, 1, 2, 3, 3]), list("abcabc"))
    content = index_file.render_index("x", columns)
    assert pq.read_metadata(pa.BufferReader(content)).num_row_groups == 3
    assert index_file.parse_index(content, "x", "key").equals(columns)


def test_nanoseconds_are_refused_by_name():
    index = ExplicitSecondaryIndex("x", {np.datetime64(1, "ns"): ["a"]})
    with pytest.raises(ValueError, match="index on 'x' cannot be stored"):
        index.store("hmemory://", "u")


GOOD = pa.table({"x": [1, 2], "partition": [["a"], ["b"]]})


def test_files_of_other_writers_are_read():
    values = pa.array([b"v", b"w"], pa.large_binary()).dictionary_encode()
    lists = pa.array([["b", "a"], ["a"]], pa.large_list(pa.large_string()))
    table = pa.table({"x": values, "partition": lists})
    for content in (parquet(table), parquet(table.slice(1, 1).append_column("y", [[1]]).select([0, 1]))):
        assert index_file.parse_index(content, "x", "key").values.type == pa.binary()
    unsorted = pa.table({"x": [2, 1, 2], "partition": [["a"], ["b"], ["a", "c"]]})
    assert index_file.parse_index(parquet(unsorted), "x", "key").to_dict() == {1: ["b"], 2: ["a", "c"]}


KEPT_TYPES = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
KEPT_TYPES[pa.timestamp("ms")] = pa.timestamp("ns")


@pytest.mark.parametrize("dtype", KEPT_TYPES, ids=str)
def test_types_that_others_demand_are_kept_in_files(dtype, store):
    values = pa.array([DAY, NEXT_DAY] if dtype == pa.timestamp("ms") else ["v", "w"]).cast(dtype)
    key = "u/indices/x/1"
    store.put(key, parquet(pa.table({"x": values, "partition": [["a"], ["a", "b"]]})))
    loaded = ExplicitSecondaryIndex("x", index_storage_key=key).load(store)
    short = KEPT_TYPES[dtype]
    assert loaded.dtype == loaded.columns_data.values.type == short
    more = ExplicitSecondaryIndex("x", IndexColumns.from_pairs(values.cast(short), ["c", "d"]))
    empty = loaded.remove_partitions(["a", "b"])
    changed = [loaded, pickle.loads(pickle.dumps(loaded)), loaded.update(more), empty, empty.update(more)]
    changed += [loaded.remove_partitions(["a"]), loaded.remove_values([values[0].as_py()])]
    changed += [merge_indices([{"x": loaded}, {"x": more}])["x"], filter_indices({"x": loaded}, ["b"])["x"]]
    for index in changed:
        stored = index.copy(index_storage_key=None).store(store, "u")
        assert pq.read_schema(pa.BufferReader(store.get(stored))).field("x").type == dtype
        # as parsed just now, and as remembered
        for found in (index_file.parse_index(store.get(stored), "x", stored), index.columns_data):
            assert found.file_type == dtype and found.equals(index.columns_data)
    assert more.store(store, "u") and more.columns_data.file_type is None


def test_microseconds_replace_milliseconds_in_files(store):
    key = "u/indices/x/1"
    store.put(key, parquet(pa.table({"x": pa.array([DAY]).cast(pa.timestamp("ms")), "partition": [["a"]]})))
    loaded = ExplicitSecondaryIndex("x", index_storage_key=key).load(store)
    stored = loaded.update(ExplicitSecondaryIndex("x", {STAMP: ["b"]})).store(store, "u")
    assert pq.read_schema(pa.BufferReader(store.get(stored))).field("x").type == pa.timestamp("us")
    assert ExplicitSecondaryIndex("x", index_storage_key=stored).load(store).query(STAMP) == ["b"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PAR1",
        b"PAR1" + bytes(100) + b"PAR1",
        parquet(GOOD)[:-1],
        parquet(GOOD).replace(b"partition", b"parti\xfeion"),
        parquet(GOOD.rename_columns(["y", "partition"])),
        parquet(GOOD.select(["partition", "x"])),
        parquet(GOOD.append_column("y", [[1, 2]])),
        parquet(GOOD.set_column(1, "partition", [["a", "b"]])),
        parquet(GOOD.set_column(1, "partition", [[[1], [2]]])),
        parquet(GOOD.set_column(1, "partition", [[["a"], [None]]])),
        parquet(GOOD.set_column(1, "partition", [[["a"], None]])),
        parquet(GOOD.set_column(0, "x", [[1, None]])),
        parquet(GOOD.set_column(0, "x", [[None, None]])),
        parquet(GOOD.set_column(0, "x", [[[1], [2]]])),
        parquet(GOOD.set_column(0, "x", pa.chunked_array([[2**62, 0]], pa.timestamp("ms")))),
    ],
)
def test_files_of_something_else_are_refused(content):
    blobs = open_blobs("hmemory://")
    blobs.put("u/indices/x/1", content)
    with pytest.raises(CorruptDatasetError) as caught:
        ExplicitSecondaryIndex("x", index_storage_key="u/indices/x/1").load(blobs)
    assert caught.value.key == "u/indices/x/1"


def test_files_of_another_type_zone_or_none():
    blobs = open_blobs("hmemory://")
    key = ExplicitSecondaryIndex("x", {"1": ["a"]}).store(blobs, "u")
    with pytest.raises(CorruptDatasetError, match="values of type string, column 'x' is int64"):
        ExplicitSecondaryIndex("x", index_storage_key=key, dtype=pa.int64()).load(blobs)
    noon = pd.Timestamp("2020-01-31 12:00", tz="UTC")
    key = ExplicitSecondaryIndex("x", {noon: ["a"]}).store(blobs, "u")
    berlin = pa.timestamp("ns", "Europe/Berlin")
    loaded = ExplicitSecondaryIndex("x", index_storage_key=key, dtype=berlin).load(blobs)
    assert loaded.dtype == berlin == loaded.columns_data.values.type
    assert loaded.query(noon) == loaded.query(noon.tz_convert("Asia/Tokyo")) == ["a"]
    with pytest.raises(KeyError, match="u/indices/x/1"):
        ExplicitSecondaryIndex("x", index_storage_key="u/indices/x/1").load("hmemory://")


def test_keys_carry_the_time_of_the_index_and_are_unique_within_a_microsecond(store):
    with cm_frozen_time(TIME_TO_FREEZE):
        index = ExplicitSecondaryIndex("x ä/=", X)
    expected = f"u/indices/x%20%C3%A4%2F%3D/{TIME_TO_FREEZE_ISO_QUOTED}.by-dataset-index.parquet"
    assert index.creation_time == TIME_TO_FREEZE
    assert index.store(store, "u") == index.index_storage_key == expected
    assert list(store.keys()) == [expected]
    assert index.unload().load(store) == index
    with cm_frozen_time(TIME_TO_FREEZE):
        keys = [ExplicitSecondaryIndex("x", {i: ["a"]}).store(store, "u") for i in range(3)]
    assert [key[-len("1.by-dataset-index.parquet") :][:1] for key in keys] == ["1", "2", "3"]
    for i, key in enumerate(keys):
        assert ExplicitSecondaryIndex("x", index_storage_key=key).load(store).query(i) == ["a"]


@pytest.mark.parametrize("key, kept", [("u/indices/x/1", True), ("other/indices/u/1", False), ("u.x", False)])
def test_keys_within_the_dataset_are_used_again(key, kept):
    blobs = open_blobs("hmemory://")
    assert (x_index(index_storage_key=key).store(blobs, "u") == key) is kept


def test_unloading_keeps_key_and_type():
    index = x_index(index_storage_key="key").unload()
    assert not index.loaded and index.index_dct == {} == index.to_dict()
    assert (index.index_storage_key, index.dtype) == ("key", pa.int64())
    assert pickle.loads(pickle.dumps(index)) == index
    assert index == ExplicitSecondaryIndex("x", index_storage_key="key")
    assert index != x_index(index_storage_key="key")
    with pytest.raises(RuntimeError, match="'x' is not stored"):
        x_index().unload()
    assert ExplicitSecondaryIndex.from_v2("x", "key") == ExplicitSecondaryIndex("x", index_storage_key="key")
    assert ExplicitSecondaryIndex.from_v2("x", X) == x_index()


@pytest.mark.parametrize(
    "use",
    [
        ("query", 1),
        ("mask", "==", 1),
        ("eval_operator", "==", 1),
        ("as_flat_series",),
        ("observed_values",),
        ("update", x_index()),
        ("remove_partitions", ["a"]),
        ("remove_values", [1]),
        ("store", "hmemory://", "u"),
    ],
    ids=lambda use: use[0],
)
def test_unloaded_indices_tell_nothing(use):
    index = ExplicitSecondaryIndex("x", index_storage_key="key", dtype=pa.int64())
    with pytest.raises(RuntimeError, match="'x' is not loaded"):
        getattr(index, use[0])(*use[1:])


def test_copies_are_rebuilt():
    index = x_index(index_storage_key="key")
    assert index.copy() == index
    assert index.copy(column="y", index_dct={9: ["z"]}).query(9) == ["z"]
    assert PartitionIndex("p", X, dtype=pa.int8()).copy() == PartitionIndex("p", X, dtype=pa.int64())
    with pytest.raises(TypeError):
        index.copy(unknown=1)
    index = x_index(index_storage_key="u/indices/x/1")
    assert index.copy(column="y").index_storage_key is None
    assert index.copy(index_dct={9: ["z"]}).index_storage_key is None
    assert index.copy(index_storage_key="u/indices/x/2").index_dct == index.index_dct
    blobs = open_blobs("hmemory://")
    key = x_index().store(blobs, "u")
    loaded = ExplicitSecondaryIndex("x", index_storage_key=key).load(blobs)
    assert loaded.index_storage_key == loaded.unload().index_storage_key == key
    index = x_index()
    index.to_dict()[1].append("z")
    assert index.to_dict() == X


def test_indices_are_small_when_pickled_and_shown():
    columns = IndexColumns.from_pairs(pa.array(range(1000)), [f"{i:032x}" for i in range(1000)])
    assert len(pickle.dumps(columns)) < 70_000
    assert len(pickle.dumps(columns.select(np.arange(1000) < 3).keep_labels(["0" * 32]))) < 2_000
    assert repr(x_index()) == "ExplicitSecondaryIndex(column='x', dtype=int64, 3 values)"
    assert "not loaded" in repr(x_index(index_storage_key="key").unload())


# entries of a condition


def stored_index(columns, column="x"):
    """An index in a file, of which nothing is in memory, and its store."""
    index, blobs = ExplicitSecondaryIndex(column, columns), open_blobs("hmemory://")
    index.store(blobs, "u")
    caching.clear()
    return index.unload(), blobs


@pytest.fixture
def groups_of_two(monkeypatch):
    monkeypatch.setattr(index_file, "_VALUES_PER_GROUP", 2)


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"category", "timestamp_ns"}))
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_row_groups_of_a_condition_have_all_entries_that_match(name, data, groups_of_two):
    cells = data.draw(st.lists(st.sampled_from(KINDS[name].cells), max_size=8, unique_by=repr))
    columns = IndexColumns.from_pairs(pa.array(cells, KINDS[name].dtype), map(str, range(len(cells))))
    first, second = data.draw(literals(name)), data.draw(literals(name))
    stored, blobs = stored_index(columns, name)
    part = load_index(stored, blobs, AnyOf((first, ("another", "==", 1), second)))
    for _, op, value in (first, second):
        assert part.eval_operator(op, value) == stored.load(blobs).eval_operator(op, value)


def test_a_condition_on_a_large_index_reads_few_of_its_entries(groups_of_two):
    stored, blobs = stored_index(IndexColumns.from_pairs(pa.array(range(10)), list("abcdefghij")))

    def read(literal):
        return load_index(stored, blobs, literal).columns_data.values.to_pylist()

    assert read(("x", "==", 3)) == [2, 3] and read(("x", "in", [1, 8])) == [0, 1, 8, 9]
    assert read(("x", ">=", 7)) == [6, 7, 8, 9] and read(("x", "==", 99)) == []
    assert read(("x", "!=", 3)) == list(range(10))
    # all of it was read, and is in the cache now
    assert read(("x", "==", 3)) == list(range(10))


def test_a_row_group_is_parsed_once(groups_of_two, monkeypatch):
    blobs = open_blobs("hmemory://")
    keys = [ExplicitSecondaryIndex("x", {i: [label] for i in range(10)}).store(blobs, "u") for label in "ab"]
    caching.clear()

    def read(key, value):
        stored = ExplicitSecondaryIndex("x", index_storage_key=key, dtype=pa.int64())
        return load_index(stored, blobs, ("x", "==", value)).query(value)

    assert [read(keys[0], 3), read(keys[1], 3), read(keys[0], 5)] == [["a"], ["b"], ["a"]]
    monkeypatch.setattr(index_file, "parse_index", lambda *_: pytest.fail("a row group is parsed again"))
    assert [read(keys[0], 2), read(keys[1], 3), read(keys[0], 5)] == [["a"], ["b"], ["a"]]
    monkeypatch.undo()
    # another index under the name of the first
    monkeypatch.setattr(index_file, "_VALUES_PER_GROUP", 2)
    blobs.put(keys[0], blobs.get(keys[1]))
    assert read(keys[0], 3) == ["b"]


def test_bounds_of_other_writers_are_not_trusted(groups_of_two, monkeypatch):
    stored, blobs = stored_index(IndexColumns.from_pairs(pa.array(range(4)), list("abcd")))
    key = stored.index_storage_key
    blobs.put(key, blobs.get(key).replace(b"parquet-cpp-arrow", b"another-cpp-arrow"))
    assert len(load_index(stored, blobs, ("x", "==", 3)).columns_data) == 4


def test_a_factory_keeps_whole_indices(groups_of_two):
    frame = pd.DataFrame({"x": range(10), "p": [0, 1] * 5})
    store = get_store_from_url("hmemory://")
    store_dataframes_as_dataset(
        dfs=[frame], store=store, dataset_uuid="d", partition_on="p", secondary_indices="x"
    )
    caching.clear()
    factory = DatasetFactory("d", store)
    assert read_table(factory=factory, predicates=[[("x", "==", 3)]])["x"].tolist() == [3]
    assert len(factory.load_index("x").indices["x"].index_dct) == 10
