import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions import to_tree, tree_mask
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.pruning import select_partitions
from kartothek_cube.core.store import open_blobs

SCHEMA = pa.schema([("p", pa.int64()), ("d", pa.date32()), ("v", pa.int64()), ("w", pa.string())])
DAY, NEXT_DAY = datetime.date(2020, 1, 31), datetime.date(2020, 2, 1)
LABELS = ["p=1/d=2020-01-31/a", "p=1/d=2020-02-01/a", "p=2/d=2020-01-31/a", "p=2/d=2020-01-31/b"]


def dataset(**indices: dict[Any, list[int]]) -> DatasetMetadata:
    """A dataset with four partitions; indices hold their positions."""
    made = {}
    for column, dct in indices.items():
        labels = {v: [LABELS[i] for i in where] for v, where in dct.items()}
        made[column] = ExplicitSecondaryIndex(column, labels, dtype=SCHEMA.field(column).type)
    table = PartitionTable.from_labels("u", "table", LABELS)
    return DatasetMetadata("u", table, indices=made, partition_keys=["p", "d"], schema=SCHEMA)


# partition 3 has only nulls in v
V = {1: [0, 1], 2: [1, 2]}


@pytest.mark.parametrize(
    "predicates, expected",
    [
        (None, [0, 1, 2, 3]),
        ([[("p", "==", 1)]], [0, 1]),
        ([[("p", "in", [])]], []),
        ([[("d", ">", DAY)]], [1]),
        ([[("d", "==", "2020-02-01")]], [1]),
        ([[("p", "==", 1), ("d", "==", DAY)]], [0]),
        ([[("p", "==", 2)], [("d", "==", NEXT_DAY)]], [1, 2, 3]),
        ([[("v", "==", 1)]], [0, 1]),
        ([[("v", "==", 2), ("p", "==", 2)]], [2]),
        ([[("v", "!=", 1)]], [1, 2]),
        ([[("v", ">", 0)]], [0, 1, 2]),
        ([[("v", "in", [2, 17])]], [1, 2]),
        ([[("v", "==", 17)]], []),
        ([[("w", "==", "x")]], [0, 1, 2, 3]),
        ([[("w", "==", "x"), ("v", "==", 2)]], [1, 2]),
        ([[("w", "==", "x")], [("v", "==", 2)]], [0, 1, 2, 3]),
    ],
)
def test_keys_and_indices_choose_partitions(predicates, expected):
    found = select_partitions(dataset(v=V), to_tree(predicates))
    assert found.tolist() == expected and found.dtype == "int64"


@pytest.mark.parametrize(
    "literal, expected",
    [
        *((("w", *literal), [0, 1, 2, 3]) for literal in (("==", None), ("in", ["x", None]))),
        *((("w", *literal), [0, 2]) for literal in (("!=", None), ("in", ["x"]))),
        (("w", "not in", ["x", None]), [0]),
        (("d", "==", None), []),
        (("d", "!=", None), [0, 1, 2, 3]),
        (("d", "in", [NEXT_DAY, None]), [1]),
    ],
)
def test_nulls_are_in_no_index_but_may_be_in_any_file(literal, expected):
    assert select_partitions(dataset(w={"x": [0, 2], "y": [0]}), literal).tolist() == expected


@pytest.mark.parametrize(
    "literal",
    [
        *(("p", "==", "1"), ("p", "==", None), ("d", "==", 1)),
        *(("v", "==", "1"), ("v", "in", ["1", None]), ("w", "<", 1)),
    ],
)
@pytest.mark.parametrize("rows", [4, 0])
def test_types_are_strict_even_without_partitions(literal, rows):
    full = dataset(v=V, w={"x": [0]})
    with pytest.raises(TypeError, match=f"'{literal[0]}'"):
        select_partitions(full.copy(partitions=full.partition_table.take(range(rows))), literal)


def test_keys_need_the_schema_and_indices_are_loaded():
    ds = dataset().copy(indices={"v": ExplicitSecondaryIndex("v", index_storage_key="u/indices/v/1")})
    assert select_partitions(ds, ("v", "==", 1)).tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="unknown column p"):
        select_partitions(dataset().copy(schema=None), ("p", "==", 1))


def test_just_the_needed_indices_are_loaded():
    blobs = open_blobs("hmemory://")
    full = dataset(v=V, w={"x": [0]})
    for index in full.indices.values():
        index.store(blobs, "u")
    ds = full.copy(indices={column: index.unload() for column, index in full.indices.items()})
    loaded = ds.load_indices(["v", "v", "unknown"], blobs)
    assert {column: index.loaded for column, index in loaded.indices.items()} == {"v": True, "w": False}
    assert ds.load_indices(["p"], blobs) is ds  # labels tell the values of partition keys
    assert ds.load_indices([], blobs) is ds
    assert not ds.indices["v"].loaded
    blobs.delete([ds.indices["w"].index_storage_key])
    with pytest.raises(KeyError):
        ds.load_indices(["w"], blobs)


ROWS = st.lists(st.tuples(st.sampled_from([0, 1, None]), st.sampled_from(["x", "y", None])), max_size=3)
IN = st.sampled_from(["in", "not in"])
LITERALS = st.one_of(
    st.tuples(st.just("p"), st.sampled_from(["==", "!=", "<", ">="]), st.integers(0, 3)),
    st.tuples(st.just("v"), st.sampled_from(["==", "!=", "<", ">="]), st.integers(-1, 2)),
    st.tuples(st.just("v"), IN, st.lists(st.sampled_from([0, 1, 7, None]), max_size=2)),
    st.tuples(st.just("w"), st.sampled_from(["==", "!="]), st.sampled_from(["x", "y", None])),
    st.tuples(st.just("w"), IN, st.lists(st.sampled_from(["x", None]), max_size=2)),
)
PREDICATES = st.lists(st.lists(LITERALS, min_size=1, max_size=3), min_size=1, max_size=3)


@given(st.lists(st.tuples(st.integers(0, 2), ROWS), max_size=4), PREDICATES, st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_matching_row_is_lost(files, predicates, indexed):
    labels = [f"p={p}/{i}" for i, (p, _) in enumerate(files)]
    rows = [(i, p, v, w) for i, (p, content) in enumerate(files) for v, w in content]
    schema = pa.schema([*((name, pa.int64()) for name in ("file", "p", "v")), ("w", pa.string())])
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    names = pa.array(labels, pa.string()).take(table["file"].combine_chunks())
    indices = {}
    for column in ("v", "w") if indexed else ():
        pairs = IndexColumns.from_pairs(table[column].combine_chunks(), names)
        indices[column] = ExplicitSecondaryIndex(column, pairs)
    partitions = PartitionTable.from_labels("u", "table", labels)
    ds = DatasetMetadata("u", partitions, indices=indices, partition_keys=["p"], schema=SCHEMA)
    found = set(select_partitions(ds, to_tree(predicates)).tolist())
    matching = set(table.filter(tree_mask(table, to_tree(predicates)))["file"].to_pylist())
    assert matching <= found
