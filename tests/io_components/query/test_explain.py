"""What explain_query tells is what the query does."""

import json

import pandas as pd
import pytest

from kartothek_cube.api.cube import C, Cube, append_to_cube, build_cube, explain_query, open_cube, query_cube
from tests.support.cubes import memory
from tests.support.stores import CountingStore

KEY = "partition key"
CUBE = Cube(["x"], ["p"], "cube", index_columns=["i1"])


@pytest.fixture
def store():
    """Four partitions; `enrich` lacks one of them and has an index; `extra` has a column of its own."""
    store = memory()
    seed = pd.DataFrame({"x": range(8), "p": [0, 0, 1, 1, 2, 2, 3, 3], "v1": range(8)})
    enrich = pd.DataFrame({"x": range(6), "p": [0, 0, 1, 1, 2, 2], "i1": [1, 1, 2, 2, 3, 3]})
    extra = pd.DataFrame({"x": range(8), "v2": range(8)})
    build_cube({"seed": seed, "enrich": enrich, "extra": extra}, CUBE, store, partition_on={"extra": []})
    return store


def roles(explained):
    return {dataset.name: dataset for dataset in explained.datasets}


def test_everything(store):
    explained = explain_query(CUBE, store)
    found = [(d.name, d.role) for d in explained.datasets]
    assert found == [("seed", "seed"), ("enrich", "left"), ("extra", "left")]
    assert [d.read_files for d in explained.datasets] == [4, 3, 1]
    assert (explained.partitions, explained.groups, explained.unused) == (4, None, ())
    assert "not needed" not in repr(explained)
    assert roles(explained)["enrich"].aligned_by == ("p",)
    assert roles(explained)["extra"].joined_by == ("x",)
    explained = explain_query(CUBE, store, C("p") == 9)
    assert (explained.read_files, explained.read_bytes, explained.partitions) == (0, 0, 0)
    assert "0 files in 0 partitions" in repr(explained)
    explained = explain_query(CUBE, store, partition_by="i1")
    assert (explained.groups, explained.first_groups) == (3, ((1,), (2,), (3,)))
    assert "groups:     3 by i1: 1, 2, 3" in repr(explained)
    counting = CountingStore(store)
    explain_query(CUBE, counting)
    read = [key for method, key in counting.log if method == "get"]
    assert not [key for key in read if key.endswith(".parquet") and "/table/" in key]
    assert not counting.counts["put"]
    for query in (query_cube, explain_query):
        with pytest.raises(ValueError, match="did you mean v1"):
            query(CUBE, store, payload_columns=["v_1"])


@pytest.mark.parametrize(
    "conditions, effects, read",
    [
        (C("p") > 1, {"seed": (KEY, 2, 2), "enrich": (KEY, 1, 2)}, {"seed": 2, "enrich": 1}),
        (C("i1") == 2, {"enrich": ("index", 1, 2)}, {"seed": 1, "enrich": 1}),
        (C("v1") > 3, {"seed": ("rows", 4, 0)}, {"seed": 4, "enrich": 3}),
        (C("x") == 7, {"seed": ("index", 1, 3), "enrich": ("rows", 3, 0)}, {"seed": 1, "enrich": 0}),
    ],
)
def test_conditions(store, conditions, effects, read):
    explained = explain_query(CUBE, store, conditions, payload_columns=["v1", "i1"])
    found = {d.name: (c.by, c.kept, c.pruned) for d in explained.datasets for c in d.conditions}
    assert found == effects
    assert {d.name: d.read_files for d in explained.datasets} == read
    assert explained.unused == ("extra",)
    assert roles(explained)["enrich"].role == ("restricted" if "i1" in conditions.column else "left")


def test_files_that_hide_others_are_read(store):
    append_to_cube({"enrich": pd.DataFrame({"x": [2], "p": [1], "i1": [5]})}, CUBE, store)
    enrich = roles(explain_query(CUBE, store, C("i1") == 2))["enrich"]
    assert (enrich.matching_files, enrich.read_files, enrich.read_partitions) == (1, 2, 1)


def test_bytes(store):
    whole = explain_query(CUBE, store)
    part = explain_query(CUBE, store, payload_columns=[])
    for dataset in whole.datasets:
        keys = [key for key in store.keys() if f"++{dataset.name}/table/" in key and key.endswith(".parquet")]
        assert dataset.file_bytes == sum(len(store.get(key)) for key in keys)
        assert dataset.read_bytes == dataset.file_bytes
    assert 0 < roles(part)["seed"].read_bytes < roles(whole)["seed"].read_bytes


def test_views(store):
    explained = explain_query(CUBE, store, (C("i1") == 2) & (C("p") > 0), partition_by="i1")
    html = explained._repr_html_()
    assert "<caption>Conditions</caption>" in html
    assert "&gt; 0" in html
    assert json.loads(json.dumps(explained.to_dict()))["read_files"] == explained.read_files
    assert repr(explained).startswith("Query of cube cube\n  result:     ")


def test_a_limit_is_displayed(store):
    explained = open_cube(CUBE, store).query("x > 1", limit=1).explain()
    assert (explained.limit, explained.to_dict()["limit"]) == (1, 1)
    assert "columns, at most 1 row, sorted by" in repr(explained)
    assert "to read:    at most 6 files in 3 partitions" in repr(explained)
    with pytest.raises(ValueError, match="limit is a number of rows"):
        explain_query(CUBE, store, limit=-1)


def test_a_list_of_many_values_is_displayed_by_its_beginning(store):
    explained = explain_query(CUBE, store, conditions=C("x").isin(range(100_000)))
    as_json = json.dumps(explained.to_dict(), ensure_ascii=False)
    for text in (repr(explained), explained._repr_html_(), as_json):
        assert len(text) < 5_000
        assert "characters)" in text
