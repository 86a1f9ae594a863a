"""Which partitions a read needs, exactly; tests/io/dataset/test_properties.py shows that no row is lost."""

import datetime
from typing import Any

import pyarrow as pa
import pytest

from kartothek_cube.api.dataset import DatasetMetadata, ExplicitSecondaryIndex
from kartothek_cube.core.expressions import to_tree
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
