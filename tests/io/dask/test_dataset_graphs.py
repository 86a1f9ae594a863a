"""Graphs of the dask façades of datasets: what building them does and does not do, and what they leave."""

import pickle

import dask
import dask.bag as db
import dask.dataframe as dd
import pandas as pd
import pytest
from dask.bag import Bag, Item
from dask.delayed import Delayed

from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.io import eager
from kartothek_cube.io.dask import bag as bags
from kartothek_cube.io.dask import dataframe, delayed
from kartothek_cube.io_components.write.write_commit import finish_dataset_write
from tests.io.dask.test_all_graphs import DATASET_OTHERS, DATASET_WRITES, fail, states
from tests.support.cubes import frame, keys, memory
from tests.support.stores import FaultyStore, InjectedError, Same, UnpicklableStore, Wrapped

OLD = frame(x=[0, 1], p=[0, 1])


def load(p):
    return frame(x=[p, p + 1], p=[p, p])


def delayed_of(n, function=load):
    return [dask.delayed(function)(i) for i in range(n)]


def ddf_of(n, function=load):
    return dd.from_delayed(delayed_of(n, function), meta=load(0)[:0])


@pytest.fixture
def stored():
    """A store, which cannot be pickled, with a dataset and a leftover."""
    factory = Same.of(memory())
    eager.store_dataframes_as_dataset(factory, "u", [OLD], partition_on="p", secondary_indices="x")
    factory().put("u/table/leftover.parquet", b"data")
    return Wrapped(UnpicklableStore, factory)


KINDS = {
    Delayed: ["delayed store", "delayed update", "ddf store", "delayed delete"],
    Item: ["bag store"],
    Bag: ["bag read", "bag index"],
    dd.DataFrame: ["ddf read", "ddf metadata"],
    dd.Series: ["ddf hash", "ddf hash by group"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_results(stored, kind):
    lazy = {**DATASET_WRITES, **DATASET_OTHERS}
    assert all(isinstance(lazy[name](stored), kind) for name in KINDS[kind])


def test_wrong_kinds_of_input(stored):
    with pytest.raises(TypeError, match="list"):
        bags.store_bag_as_dataset([OLD], stored, "v")
    with pytest.raises(TypeError, match="DataFrame"):
        dataframe.store_dataset_from_ddf(OLD, stored, "v")
    with pytest.raises(TypeError, match="int"):
        delayed.store_delayed_as_dataset(1, stored, "v")
    with pytest.raises(ValueError, match="int"):
        delayed.store_delayed_as_dataset([dask.delayed(int)()], stored, "v").compute(scheduler="sync")
    frames = dask.compute(delayed.read_table_as_delayed("u", stored, columns=["x"]), scheduler="sync")[0]
    assert [df["x"].tolist() for df in frames] == [[0], [1]]
    with pytest.raises(RuntimeError, match="unknown table core"):
        delayed.read_table_as_delayed("u", stored, "core")
    with pytest.raises(TypeError, match="table"):
        delayed.read_table_as_delayed("u", stored, None)


@pytest.mark.parametrize(
    "store, data",
    [
        (delayed.store_delayed_as_dataset, []),
        (bags.store_bag_as_dataset, db.from_sequence([0]).map(fail)),
        (dataframe.store_dataset_from_ddf, ddf_of(1, fail)),
    ],
)
def test_arguments_are_checked_when_the_graph_is_built(stored, store, data):
    with pytest.raises(RuntimeError, match="'u'"):
        store(data, stored, "u")
    with pytest.raises(TypeError, match="int"):
        store(data, stored, "v", metadata=1)


@pytest.mark.parametrize("update", [delayed.update_dataset_from_delayed, dataframe.update_dataset_from_ddf])
@pytest.mark.parametrize(
    "arguments, fragment",
    [
        ({"partition_on": ["x"]}, "partition"),
        ({"delete_scope": [{"nope": 1}]}, "nope"),
        ({"factory": DatasetFactory("u", Same.of(memory()))}, "factory"),
        ({"dataset_uuid": None}, "dataset_uuid"),
    ],
)
def test_arguments_of_updates_are_checked_when_the_graph_is_built(stored, update, arguments, fragment):
    data = ddf_of(1, fail) if update is dataframe.update_dataset_from_ddf else []
    with pytest.raises(ValueError, match=fragment):
        update(data, **{"store": stored, "dataset_uuid": "u", **arguments})


@pytest.mark.parametrize("scope", [[{"p": 0}], None, []], ids=str)
@pytest.mark.parametrize("update", [delayed.update_dataset_from_delayed, dataframe.update_dataset_from_ddf])
def test_a_scope_may_be_delayed(stored, update, scope):
    data = ddf_of(1) if update is dataframe.update_dataset_from_ddf else delayed_of(1)
    late = dask.delayed(lambda: scope)()
    dataset = update(data, stored, "u", delete_scope=late).compute(scheduler="sync")
    labels = [label.split("/")[0] for label in dataset.partitions]
    assert labels == (["p=1", "p=0"] if scope else ["p=0", "p=1", "p=0"])


@pytest.mark.parametrize("on_conflict", ["raise", "replace"])
def test_a_delayed_scope_respects_on_conflict(stored, monkeypatch, on_conflict):
    def commit_later(plan, parts):
        # another writer adds a partition in the scope, which is planned already
        eager.update_dataset_from_dataframes([frame(x=[7], p=[0])], stored, "u")
        return finish_dataset_write(plan, parts)

    monkeypatch.setattr("kartothek_cube.io.dask.delayed.finish_dataset_write", commit_later)
    options = {"delete_scope": dask.delayed([{"p": 0}]), "on_conflict": on_conflict}
    graph = delayed.update_dataset_from_delayed(delayed_of(1), stored, "u", **options)
    if on_conflict == "raise":
        with pytest.raises(ConcurrentWriteError, match="p=0"):
            graph.compute(scheduler="sync")
    else:
        labels = [label.split("/")[0] for label in graph.compute(scheduler="sync").partitions]
        assert labels == ["p=1", "p=0"]


def test_a_wrong_scope_that_is_delayed_changes_nothing(stored):
    before = states(stored)
    scope = dask.delayed([{"nope": 1}])
    graph = delayed.update_dataset_from_delayed(delayed_of(1), stored, "u", delete_scope=scope)
    with pytest.raises(ValueError, match="nope"):
        graph.compute(scheduler="sync")
    assert states(stored) == before


def test_a_delayed_scope_of_a_dataset_that_does_not_exist_is_ignored(stored):
    scope = dask.delayed([{"nope": 1}])
    graph = delayed.update_dataset_from_delayed(delayed_of(1), stored, "v", delete_scope=scope)
    assert len(graph.compute(scheduler="sync").partitions) == 1


def test_reads_and_writes_through_a_factory(stored):
    factory = DatasetFactory("u", stored)
    graph = delayed.update_dataset_from_delayed(delayed_of(1), factory=factory)
    assert len(pickle.loads(pickle.dumps(graph)).compute(scheduler="sync").partitions) == 3
    factory.invalidate()
    assert len(delayed.read_dataset_as_delayed(factory=factory)) == 3
    assert dataframe.read_dataset_as_ddf(factory=factory).npartitions == 3


@pytest.mark.parametrize("elements, partitions", [(0, 1), (1, 1), (100, 100), (101, 51), (400, 200)])
def test_elements_per_partition_of_a_bag(elements, partitions):
    store = Same.of(memory())
    df = frame(x=range(max(elements, 1)), p=range(max(elements, 1)))
    eager.store_dataframes_as_dataset(store, "u", [df], partition_on="p")
    predicates = [[("p", "<", elements)]]
    for options, expected in (({}, partitions), ({"partition_size": 1000}, 1)):
        bag = bags.read_dataset_as_dataframe_bag("u", store, predicates=predicates, **options)
        assert bag.npartitions == expected


@pytest.mark.parametrize("read", [delayed.read_dataset_as_delayed, bags.read_dataset_as_dataframe_bag])
def test_categories_of_indexed_columns_are_those_of_the_dataset(read):
    store = Same.of(memory())
    df = frame(a=["v", "u"], b=["y", "x"], c=["s", "r"], d=[2, 1])
    eager.store_dataframes_as_dataset(store, "u", [df], partition_on="a", secondary_indices=["b", "d"])
    frames = dask.compute(read("u", store, categoricals=["a", "b", "c", "d"]), scheduler="sync")[0]
    found = [{name: df[name].cat.categories.tolist() for name in df} for df in frames]
    assert found == [{"a": ["u", "v"], "b": ["x", "y"], "c": [c], "d": [1, 2]} for c in ("s", "r")]


READERS = [delayed.read_dataset_as_delayed, bags.read_dataset_as_dataframe_bag, dataframe.read_dataset_as_ddf]


@pytest.mark.parametrize("read", READERS)
def test_older_states(stored, read):
    eager.keep_dataset_history("u", stored, 2)
    eager.update_dataset_from_dataframes([frame(x=[7], p=[7])], stored, "u", delete_scope=[{"p": 0}])

    def values(**kwargs):
        parts = read("u", stored, **kwargs)
        frames = dask.compute(*(parts if isinstance(parts, list) else parts.to_delayed()), scheduler="sync")
        dfs = [df for part in frames for df in (part if isinstance(part, list) else [part])]
        return sorted(pd.concat(dfs)["x"])

    assert values() == [1, 7]
    assert values(as_of=1) == [0, 1]


@pytest.mark.parametrize("chunk_size, chunks", [(1, 3), (2, 2), (100, 1)])
def test_garbage_is_deleted_in_chunks(stored, chunk_size, chunks):
    before = keys(stored)
    for name in ("a", "b"):
        stored().put(f"u/table/{name}.parquet", b"data")
    graphs = delayed.garbage_collect_dataset__delayed("u", stored, chunk_size=chunk_size)
    assert len(graphs) == chunks
    dask.compute(graphs, scheduler="sync")
    assert keys(stored) == before - {"u/table/leftover.parquet"}
    assert delayed.garbage_collect_dataset__delayed("u", stored) == []


def test_the_header_is_deleted_first(stored):
    faulty = Same.of(FaultyStore(stored()._dstore).fail("delete", key="table/p=1", lasting=True))
    with pytest.raises(InjectedError):
        delayed.delete_dataset__delayed("u", faulty).compute(scheduler="sync")
    assert "u.by-dataset-metadata.json" not in keys(stored)
    delayed.delete_dataset__delayed("u", stored).compute(scheduler="sync")
    assert keys(stored) == set()
    with pytest.raises(KeyError, match="u"):
        delayed.delete_dataset__delayed("u", stored)


@pytest.mark.parametrize("size, error", [(0, ValueError), (-1, ValueError), (1.5, TypeError)])
@pytest.mark.parametrize(
    "function",
    [
        lambda store, size: bags.read_dataset_as_dataframe_bag("u", store, partition_size=size),
        lambda store, size: bags.build_dataset_indices__bag(store, "u", "x", partition_size=size),
        lambda store, size: delayed.garbage_collect_dataset__delayed("u", store, chunk_size=size),
    ],
    ids=["read", "index", "garbage"],
)
def test_partitions_of_bags_and_tasks_hold_at_least_one_item(stored, function, size, error):
    with pytest.raises(error, match="_size must be"):
        function(stored, size)


@pytest.mark.parametrize("partition_size", [None, 1, 5])
def test_indices_are_built_in_parts(stored, partition_size):
    bag = bags.build_dataset_indices__bag(stored, "u", ["x"], partition_size=partition_size)
    assert bag.npartitions == 1
    (dataset,) = bag.compute(scheduler="sync")
    found = dataset.load_all_indices(stored()).indices["x"].index_dct
    assert {value: len(labels) for value, labels in found.items()} == {0: 1, 1: 1}
