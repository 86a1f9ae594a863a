"""Graphs of the dask façades of cubes: what building them does and does not do, and how large they are."""

import inspect
import pickle
from pathlib import Path

import dask
import pandas as pd
import pytest
from dask.utils import key_split

from kartothek_cube.api import cube as api
from kartothek_cube.io.dask import bag_cube, dataframe_cube, delayed_cube
from tests.io.dask.test_all_graphs import CUBE_WRITES, IDS, bag_of, ddf_of, fail, load
from tests.support import headers
from tests.support.cube_facades import DataFrame, Delayed, LargeBag
from tests.support.cubes import CUBE, SEED, dataset_ids, frame, header, memory
from tests.support.stores import FaultyStore, Same

MODULES = bag_cube, delayed_cube, dataframe_cube


def tasks_of(*collections):
    """Give the optimised graph without the other names of tasks."""
    dsk = {}
    for collection in dask.optimize(*collections):
        dsk.update(collection.__dask_graph__())
    return {key: task for key, task in dsk.items() if type(task).__name__ != "Alias"}


@pytest.mark.parametrize("kind", [str, Path, "hfs://{}".format])
@pytest.mark.parametrize("module", MODULES)
def test_stores_may_be_urls_and_directories(module, kind, tmp_path):
    api.build_cube(SEED, CUBE, tmp_path / "cubes")
    suffix = module.__name__.rpartition(".")[2].partition("_")[0]
    lazy = getattr(module, f"collect_stats_{suffix}")(CUBE, kind(tmp_path / "cubes"))
    [stats] = dask.compute(lazy, scheduler="sync")
    assert api.collect_stats(CUBE, tmp_path / "cubes") in ([*stats] if suffix == "bag" else [stats])


@pytest.mark.parametrize("lazy", [CUBE_WRITES[name] for name in CUBE_WRITES if "build" in name])
def test_a_url_of_which_each_task_would_open_another_store(lazy):
    with pytest.raises(ValueError, match="hmemory:// is a new, empty store each time"):
        lazy("hmemory://")


def test_stores_and_columns_are_checked_at_once(built):
    for copy in (bag_cube.copy_cube_bag, delayed_cube.copy_cube_delayed, dataframe_cube.copy_cube_dataframe):
        with pytest.raises(TypeError, match="DictStore"):
            copy(CUBE, built, memory())
    ddf = ddf_of(2, fail).drop(columns="p")
    with pytest.raises(ValueError, match="p"):
        dataframe_cube.append_to_cube_from_dataframe(ddf, CUBE, built)
    with pytest.raises(ValueError, match="v1"):
        dataframe_cube.extend_cube_from_dataframe({"new": ddf_of(2, fail)}, CUBE, built)


BLOCKS = {
    name: function
    for module in MODULES
    for name, function in vars(module).items()
    if name in module.__all__ and "blocksize" in inspect.signature(function).parameters
}


@pytest.mark.parametrize("function", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize(
    "blocksize, error, fragment",
    [("a", TypeError, "str"), (1.5, TypeError, "float"), (True, TypeError, "bool"), (0, ValueError, "0")],
)
def test_block_sizes_are_positive_integers(built, function, blocksize, error, fragment):
    stores = [built] * sum("store" in name for name in inspect.signature(function).parameters)
    with pytest.raises(error, match=fragment):
        function(CUBE, *stores, blocksize=blocksize)


@pytest.mark.parametrize(
    "write, data",
    [
        (bag_cube.append_to_cube_from_bag, [SEED]),
        (bag_cube.extend_cube_from_bag, SEED),
        (delayed_cube.append_to_cube_from_delayed, 1),
        (delayed_cube.append_to_cube_from_delayed, "seed"),
    ],
)
def test_input_must_be_of_the_kind_of_the_facade(built, write, data):
    with pytest.raises(TypeError, match=type(data).__name__):
        write(data, CUBE, built, [])


@pytest.mark.parametrize("data", [SEED, {"seed": SEED}, [1]], ids=["frame", "dict", "list"])
def test_dask_dataframes_must_be_such(built, data):
    with pytest.raises(TypeError, match=r"DataFrame|list"):
        dataframe_cube.append_to_cube_from_dataframe(data, CUBE, built)


@pytest.mark.parametrize("name", ["cube bag build", "cube bag append", "cube bag update"])
def test_an_element_is_one_task_from_input_to_files(built, name):
    assert len(tasks_of(CUBE_WRITES[name](built, n=5))) == 5 + 1


def test_each_element_is_evaluated_once(built):
    calls = []

    def record(p):
        calls.append(p)
        return load(p)

    CUBE_WRITES["cube bag append"](built, n=5, f=record).compute(scheduler="sync")
    assert sorted(calls) == list(range(5))


def test_one_element_or_group_per_block(built):
    bag = bag_cube.query_cube_bag(CUBE, built, partition_by="x", blocksize=1)
    assert (bag.npartitions, len(bag.compute(scheduler="sync"))) == (2, 2)
    bag = bag_cube.query_cube_bag(CUBE, built, partition_by="x", blocksize=5)
    assert (bag.npartitions, len(bag.compute(scheduler="sync"))) == (1, 2)
    bag = bag_cube.query_cube_bag(CUBE, built, api.C("p") == 9)
    assert (bag.npartitions, bag.compute(scheduler="sync")) == (1, [])


SIZES = {
    "bag query": lambda s, n: bag_cube.query_cube_bag(headers.CUBE, s, partition_by="p"),
    "delayed query": lambda s, n: delayed_cube.query_cube_delayed(headers.CUBE, s, partition_by="p"),
    "dataframe query": lambda s, n: dataframe_cube.query_cube_dataframe(headers.CUBE, s, partition_by="p"),
    "bag update": lambda s, n: bag_cube.update_cube_from_bag(bag_of(n), headers.CUBE, s, api.C("p") > 1, IDS),
    "bag stats": lambda s, n: bag_cube.collect_stats_bag(headers.CUBE, s, blocksize=1),
    "bag delete": lambda s, n: bag_cube.delete_cube_bag(headers.CUBE, s),
    "bag copy": lambda s, n: bag_cube.copy_cube_bag(headers.CUBE, s, Same.of(memory())),
}


@pytest.fixture(scope="module")
def many():
    """A store with a cube of 10,000 partitions."""
    factory = Same.of(memory())
    headers.store_headers(factory, 10_000)
    return factory


@pytest.mark.slow("10,000 partitions")
@pytest.mark.parametrize("lazy", SIZES.values(), ids=SIZES)
def test_graphs_of_10000_partitions_are_small(many, lazy):
    assert len(pickle.dumps(lazy(many, 10_000))) < 5_000_000


def test_tasks_of_a_write_do_not_carry_what_only_the_commit_needs(many):
    bag = bag_cube.update_cube_from_bag(bag_of(3), headers.CUBE, many, api.C("p") > 1, IDS)
    sizes = {key_split(key): len(pickle.dumps(task)) for key, task in bag.__dask_graph__().items()}
    assert sizes["update_cube-write"] < 5_000 < 100_000 < sizes["update_cube-commit"]


@pytest.mark.parametrize("name", ["bag copy", "delayed copy"])
def test_a_failing_copy_leaves_no_dataset(built, name):
    inner = memory()
    target = Same.of(FaultyStore(inner).fail("put", key="cube++seed/table/p=1"))
    copy = {"bag copy": bag_cube.copy_cube_bag, "delayed copy": delayed_cube.copy_cube_delayed}[name]
    with pytest.raises(RuntimeError, match=r"cube\+\+seed"):
        copy(CUBE, built, target, blocksize=1).compute(scheduler="sync")
    assert dataset_ids(Same.of(inner)) == set()


def test_a_copy_takes_what_came_to_the_source_after_its_graph_was_built(built):
    target = Same.of(memory())
    copy = bag_cube.copy_cube_bag(CUBE, built, target)
    api.append_to_cube(frame(x=[5], p=[5], v1=[15]), CUBE, built)
    copy.compute(scheduler="sync")
    assert header(target, "cube++seed") == header(built, "cube++seed")
    (result,) = api.query_cube(CUBE, target)
    assert list(result["x"]) == [0, 1, 5]


@pytest.mark.parametrize("driver", [Delayed, LargeBag, DataFrame], ids=lambda cls: cls.name)
def test_results_of_threads_are_those_of_the_eager_facade(monkeypatch, store, driver):
    monkeypatch.setattr("tests.support.cube_facades.SCHEDULER", "threads")
    cells = list(range(60))
    data = {
        "seed": frame(x=cells, p=[0, 1, 2] * 20, v1=cells),
        "enrich": frame(x=cells[:9], p=[0, 1, 2] * 3, v2=cells[:9]),
    }
    driver().build_cube(data=data, cube=CUBE, store=store)
    frames = driver().query_cube(cube=CUBE, store=store, partition_by="p")
    expected = api.query_cube(CUBE, store, partition_by="p")
    assert len(frames) == len(expected) == 3
    for got, want in zip(frames, expected):
        pd.testing.assert_frame_equal(got, want)
