"""Graphs of the dask façades of datasets: what building them does and does not do, and what they leave."""

import pickle

import dask
import dask.bag as db
import dask.dataframe as dd
import pytest
from dask.bag import Bag, Item
from dask.delayed import Delayed

from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.io import eager
from kartothek_cube.io.dask import bag as bags
from kartothek_cube.io.dask import dataframe, delayed
from kartothek_cube.io_components.write.write_commit import finish_dataset_write
from tests.io.dask.test_all_graphs import DATASET_OTHERS, DATASET_WRITES, ddf_of, fail, frames_of, states
from tests.support.cubes import SEED, frame, keys, memory
from tests.support.stores import FaultyStore, InjectedError, Same

KINDS = {
    Delayed: ["delayed store", "delayed update", "ddf store", "delayed delete"],
    Item: ["bag store"],
    Bag: ["bag read", "bag index"],
    dd.DataFrame: ["ddf read", "ddf metadata"],
    dd.Series: ["ddf hash", "ddf hash by group"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_results(built, kind):
    lazy = {**DATASET_WRITES, **DATASET_OTHERS}
    assert all(isinstance(lazy[name](built), kind) for name in KINDS[kind])


def test_wrong_kinds_of_input(built):
    with pytest.raises(TypeError, match="list"):
        bags.store_bag_as_dataset([SEED], built, "v")
    with pytest.raises(TypeError, match="DataFrame"):
        dataframe.store_dataset_from_ddf(SEED, built, "v")
    with pytest.raises(TypeError, match="int"):
        delayed.store_delayed_as_dataset(1, built, "v")
    with pytest.raises(ValueError, match="int"):
        delayed.store_delayed_as_dataset([dask.delayed(int)()], built, "v").compute(scheduler="sync")
    frames = dask.compute(delayed.read_table_as_delayed("u", built, columns=["x"]), scheduler="sync")[0]
    assert [df["x"].tolist() for df in frames] == [[0], [1]]
    with pytest.raises(RuntimeError, match="unknown table core"):
        delayed.read_table_as_delayed("u", built, "core")
    with pytest.raises(TypeError, match="table"):
        delayed.read_table_as_delayed("u", built, None)


@pytest.mark.parametrize(
    "store, data",
    [
        (delayed.store_delayed_as_dataset, []),
        (bags.store_bag_as_dataset, db.from_sequence([0]).map(fail)),
        (dataframe.store_dataset_from_ddf, ddf_of(1, fail)),
    ],
)
def test_arguments_are_checked_when_the_graph_is_built(built, store, data):
    with pytest.raises(RuntimeError, match="'u'"):
        store(data, built, "u")
    with pytest.raises(TypeError, match="int"):
        store(data, built, "v", metadata=1)


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
def test_arguments_of_updates_are_checked_when_the_graph_is_built(built, update, arguments, fragment):
    data = ddf_of(1, fail) if update is dataframe.update_dataset_from_ddf else []
    with pytest.raises(ValueError, match=fragment):
        update(data, **{"store": built, "dataset_uuid": "u", **arguments})


@pytest.mark.parametrize("scope", [[{"p": 0}], None, []], ids=str)
@pytest.mark.parametrize("update", [delayed.update_dataset_from_delayed, dataframe.update_dataset_from_ddf])
def test_a_scope_may_be_delayed(built, update, scope):
    data = ddf_of(1) if update is dataframe.update_dataset_from_ddf else frames_of(1)
    late = dask.delayed(lambda: scope)()
    dataset = update(data, built, "u", delete_scope=late).compute(scheduler="sync")
    labels = [label.split("/")[0] for label in dataset.partitions]
    assert labels == (["p=1", "p=0"] if scope else ["p=0", "p=1", "p=0"])


@pytest.mark.parametrize("on_conflict", ["raise", "replace"])
def test_a_delayed_scope_respects_on_conflict(built, monkeypatch, on_conflict):
    def commit_later(plan, parts):
        # another writer adds a partition in the scope, which is planned already
        eager.update_dataset_from_dataframes([frame(x=[7], p=[0], v1=[0])], built, "u")
        return finish_dataset_write(plan, parts)

    monkeypatch.setattr("kartothek_cube.io.dask.delayed.finish_dataset_write", commit_later)
    options = {"delete_scope": dask.delayed([{"p": 0}]), "on_conflict": on_conflict}
    graph = delayed.update_dataset_from_delayed(frames_of(1), built, "u", **options)
    if on_conflict == "raise":
        with pytest.raises(ConcurrentWriteError, match="p=0"):
            graph.compute(scheduler="sync")
    else:
        labels = [label.split("/")[0] for label in graph.compute(scheduler="sync").partitions]
        assert labels == ["p=1", "p=0"]


def test_a_wrong_scope_that_is_delayed_changes_nothing(built):
    before = states(built)
    scope = dask.delayed([{"nope": 1}])
    graph = delayed.update_dataset_from_delayed(frames_of(1), built, "u", delete_scope=scope)
    with pytest.raises(ValueError, match="nope"):
        graph.compute(scheduler="sync")
    assert states(built) == before


def test_a_delayed_scope_of_a_dataset_that_does_not_exist_is_ignored(built):
    scope = dask.delayed([{"nope": 1}])
    graph = delayed.update_dataset_from_delayed(frames_of(1), built, "v", delete_scope=scope)
    assert len(graph.compute(scheduler="sync").partitions) == 1


def test_reads_and_writes_through_a_factory(built):
    factory = DatasetFactory("u", built)
    graph = delayed.update_dataset_from_delayed(frames_of(1), factory=factory)
    assert len(pickle.loads(pickle.dumps(graph)).compute(scheduler="sync").partitions) == 3
    factory.invalidate()
    assert len(delayed.read_dataset_as_delayed(factory=factory)) == 3
    assert dataframe.read_dataset_as_ddf(factory=factory).npartitions == 3


@pytest.mark.parametrize("elements, partitions", [(0, 1), (1, 1), (100, 100), (101, 51), (400, 200)])
def test_elements_per_partition_of_a_bag(store, elements, partitions):
    df = frame(x=range(max(elements, 1)), p=range(max(elements, 1)))
    eager.store_dataframes_as_dataset(store, "u", [df], partition_on="p")
    predicates = [[("p", "<", elements)]]
    for options, expected in (({}, partitions), ({"partition_size": 1000}, 1)):
        bag = bags.read_dataset_as_dataframe_bag("u", store, predicates=predicates, **options)
        assert bag.npartitions == expected


@pytest.mark.parametrize("read", [delayed.read_dataset_as_delayed, bags.read_dataset_as_dataframe_bag])
def test_categories_of_indexed_columns_are_those_of_the_dataset(store, read):
    df = frame(a=["v", "u"], b=["y", "x"], c=["s", "r"], d=[2, 1])
    eager.store_dataframes_as_dataset(store, "u", [df], partition_on="a", secondary_indices=["b", "d"])
    frames = dask.compute(read("u", store, categoricals=["a", "b", "c", "d"]), scheduler="sync")[0]
    found = [{name: df[name].cat.categories.tolist() for name in df} for df in frames]
    assert found == [{"a": ["u", "v"], "b": ["x", "y"], "c": [c], "d": [1, 2]} for c in ("s", "r")]


@pytest.mark.parametrize("chunk_size, chunks", [(1, 3), (2, 2), (100, 1)])
def test_garbage_is_deleted_in_chunks(built, chunk_size, chunks):
    before = keys(built)
    for name in ("a", "b"):
        built().put(f"u/table/{name}.parquet", b"data")
    graphs = delayed.garbage_collect_dataset__delayed("u", built, chunk_size=chunk_size)
    assert len(graphs) == chunks
    dask.compute(graphs, scheduler="sync")
    assert keys(built) == before - {"u/table/leftover.parquet"}
    assert delayed.garbage_collect_dataset__delayed("u", built) == []


def test_the_header_is_deleted_first(built):
    faulty = Same.of(FaultyStore(built()._dstore).fail("delete", key="table/p=1", lasting=True))
    with pytest.raises(InjectedError):
        delayed.delete_dataset__delayed("u", faulty).compute(scheduler="sync")
    assert "u.by-dataset-metadata.json" not in keys(built)
    delayed.delete_dataset__delayed("u", built).compute(scheduler="sync")
    assert not [key for key in keys(built) if key.startswith("u")]
    with pytest.raises(KeyError, match="u"):
        delayed.delete_dataset__delayed("u", built)


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
def test_partitions_of_bags_and_tasks_hold_at_least_one_item(built, function, size, error):
    with pytest.raises(error, match="_size must be"):
        function(built, size)


@pytest.mark.parametrize("partition_size", [None, 1, 5])
def test_indices_are_built_in_parts(built, partition_size):
    bag = bags.build_dataset_indices__bag(built, "u", ["x"], partition_size=partition_size)
    assert bag.npartitions == 1
    (dataset,) = bag.compute(scheduler="sync")
    found = dataset.load_all_indices(built()).indices["x"].index_dct
    assert {value: len(labels) for value, labels in found.items()} == {0: 1, 1: 1}
