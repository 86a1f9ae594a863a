"""Graphs of the dask façades of cubes: what building them does and does not do, and how large they are."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import dask
import dask.bag as db
import dask.dataframe as dd
import pandas as pd
import pytest
from dask.utils import key_split

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.io import eager_cube
from kartothek_cube.io.dask import bag_cube, dataframe_cube, delayed_cube
from tests.support import headers
from tests.support.cube_facades import DataFrame, Delayed, LargeBag
from tests.support.cubes import CUBE, build, dataset_ids, frame, header, memory, snapshot, unchanged
from tests.support.stores import CountingStore, FaultyStore, InjectedError, Same, UnpicklableStore, Wrapped

SEED = frame(x=[0, 1], p=[0, 1], v1=[10, 11])
ENRICH = frame(x=[0, 1], p=[0, 1], v2=[20, 21])
P = C("p") == 0
#: updates write more partitions than they remove
OUTSIDE = {"rows_outside": "append"}


def fail(_item):
    raise InjectedError("in a task of the user")


def load(p):
    """Give the input of one task: two datasets."""
    return {
        "seed": frame(x=[0, 1], p=[p, p], v1=[p, p]),
        "enrich": frame(x=[0, 1], p=[p, p], v2=[p, p]),
    }


def bag_of(n, function=load):
    return db.from_sequence(range(n), npartitions=n).map(function)


def ddf_of(n, function=load):
    parts = [dask.delayed(function)(i)["seed"] for i in range(n)]
    return dd.from_delayed(parts, meta=load(0)["seed"][:0])


IDS = ["seed", "enrich"]
#: name -> lazy result for a store with a cube of two datasets; input comes from tasks
WRITES = {
    "bag build": lambda s, n=2, f=load: bag_cube.build_cube_from_bag(
        bag_of(n, f), CUBE, s, IDS, overwrite=True
    ),
    "bag append": lambda s, n=2, f=load: bag_cube.append_to_cube_from_bag(bag_of(n, f), CUBE, s, IDS),
    "bag update": lambda s, n=2, f=load: bag_cube.update_cube_from_bag(
        bag_of(n, f), CUBE, s, P, IDS, **OUTSIDE
    ),
    "delayed build": lambda s, n=2, f=load: delayed_cube.build_cube_from_delayed(
        [dask.delayed(f)(i) for i in range(n)], CUBE, s, IDS, overwrite=True
    ),
    "delayed append": lambda s, n=2, f=load: delayed_cube.append_to_cube_from_delayed(
        [dask.delayed(f)(i) for i in range(n)], CUBE, s, IDS
    ),
    "delayed update": lambda s, n=2, f=load: delayed_cube.update_cube_from_delayed(
        [dask.delayed(f)(i) for i in range(n)], CUBE, s, P, IDS, **OUTSIDE
    ),
    "dataframe extend": lambda s, n=2, f=load: dataframe_cube.extend_cube_from_dataframe(
        {"new": ddf_of(n, f).rename(columns={"v1": "v3"})}, CUBE, s
    ),
    "dataframe append": lambda s, n=2, f=load: dataframe_cube.append_to_cube_from_dataframe(
        ddf_of(n, f), CUBE, s
    ),
    "dataframe update": lambda s, n=2, f=load: dataframe_cube.update_cube_from_dataframe(
        ddf_of(n, f), CUBE, s, P, ["seed"], **OUTSIDE
    ),
}
OTHERS = {
    "bag remove": lambda s: bag_cube.remove_partitions_bag(CUBE, s, P),
    "bag query": lambda s: bag_cube.query_cube_bag(CUBE, s, partition_by="p"),
    "bag delete": lambda s: bag_cube.delete_cube_bag(CUBE, s),
    "bag stats": lambda s: bag_cube.collect_stats_bag(CUBE, s),
    "bag cleanup": lambda s: bag_cube.cleanup_cube_bag(CUBE, s),
    "bag copy": lambda s: bag_cube.copy_cube_bag(CUBE, s, Same.of(memory())),
    "delayed remove": lambda s: delayed_cube.remove_partitions_delayed(CUBE, s, P),
    "delayed query": lambda s: delayed_cube.query_cube_delayed(CUBE, s, partition_by="p"),
    "delayed delete": lambda s: delayed_cube.delete_cube_delayed(CUBE, s),
    "delayed stats": lambda s: delayed_cube.collect_stats_delayed(CUBE, s),
    "delayed cleanup": lambda s: delayed_cube.cleanup_cube_delayed(CUBE, s),
    "delayed copy": lambda s: delayed_cube.copy_cube_delayed(CUBE, s, Same.of(memory())),
    "dataframe query": lambda s: dataframe_cube.query_cube_dataframe(CUBE, s, partition_by="p"),
}
ALL = {**WRITES, **OTHERS}


@pytest.fixture
def built():
    """A store with a cube of two datasets and leftovers, which cannot be pickled."""
    factory = Same.of(memory())
    build(factory, seed=SEED, enrich=ENRICH)
    eager_cube.build_cube({"seed": SEED, "enrich": ENRICH}, CUBE, factory, overwrite=True)
    return Wrapped(UnpicklableStore, factory)


def tasks_of(*collections):
    """Give the optimised graph without the other names of tasks."""
    dsk = {}
    for collection in dask.optimize(*collections):
        dsk.update(collection.__dask_graph__())
    return {key: task for key, task in dsk.items() if type(task).__name__ != "Alias"}


# building ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", ALL.values(), ids=ALL)
def test_building_a_graph_computes_and_writes_nothing(built, lazy):
    def never(*_args, **_kwargs):
        raise AssertionError("computed")

    with unchanged(built), dask.config.set(scheduler=never):
        lazy(built)


@pytest.mark.parametrize("lazy", WRITES.values(), ids=WRITES)
def test_input_is_not_looked_at_before_it_is_computed(built, lazy):
    lazy(built, f=fail)


@pytest.mark.parametrize("lazy", OTHERS.values(), ids=OTHERS)
def test_planning_opens_no_data_file(built, lazy):
    counting = Same.of(CountingStore(built()._dstore))
    lazy(counting)
    opened = [key for method, key in counting().log if method in ("get", "open") and "/p=" in key]
    assert opened == []


@pytest.mark.parametrize("lazy", ALL.values(), ids=ALL)
def test_graphs_survive_plain_pickle_and_hold_no_store(built, lazy):
    again = pickle.loads(pickle.dumps(lazy(built)))
    dask.compute(again, scheduler="sync")


@pytest.mark.parametrize("lazy", ALL.values(), ids=ALL)
@pytest.mark.parametrize("store", [memory(), 1, None], ids=["instance", "int", "none"])
def test_a_store_must_be_a_factory(lazy, store):
    with pytest.raises(TypeError, match=type(store).__name__):
        lazy(store)


@pytest.mark.parametrize("kind", [str, Path, "hfs://{}".format])
@pytest.mark.parametrize(
    "module", [bag_cube, delayed_cube, dataframe_cube], ids=lambda module: module.__name__
)
def test_stores_may_be_urls_and_directories(module, kind, tmp_path):
    eager_cube.build_cube(SEED, CUBE, tmp_path / "cubes")
    suffix = module.__name__.rpartition(".")[2].partition("_")[0]
    lazy = getattr(module, f"collect_stats_{suffix}")(CUBE, kind(tmp_path / "cubes"))
    [stats] = dask.compute(lazy, scheduler="sync")
    assert eager_cube.collect_stats(CUBE, tmp_path / "cubes") in ([*stats] if suffix == "bag" else [stats])


@pytest.mark.parametrize("lazy", [WRITES[name] for name in WRITES if "build" in name])
def test_a_url_of_which_each_task_would_open_another_store(lazy):
    with pytest.raises(ValueError, match="hmemory:// is a new, empty store each time"):
        lazy("hmemory://")


def test_both_stores_of_a_copy_must_be_factories(built):
    for copy in (bag_cube.copy_cube_bag, delayed_cube.copy_cube_delayed, dataframe_cube.copy_cube_dataframe):
        with pytest.raises(TypeError, match="DictStore"):
            copy(CUBE, built, memory())


BLOCKS = {
    name: function
    for module in (bag_cube, delayed_cube, dataframe_cube)
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


def test_columns_of_dask_dataframes_are_checked_at_once(built):
    ddf = ddf_of(2, fail).drop(columns="p")
    with pytest.raises(ValueError, match="p"):
        dataframe_cube.append_to_cube_from_dataframe(ddf, CUBE, built)
    with pytest.raises(ValueError, match="v1"):
        dataframe_cube.extend_cube_from_dataframe({"new": ddf_of(2, fail)}, CUBE, built)


# tasks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bag build", "bag append", "bag update"])
def test_an_element_is_one_task_from_input_to_files(built, name):
    tasks = tasks_of(WRITES[name](built, n=5))
    assert len(tasks) == 5 + 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_extension_is_one_task_per_element(built, overwrite):
    def more(p):
        return {"new": load(p)["seed"].rename(columns={"v1": "v3"}), "other": frame(x=[0], p=[p], v4=[p])}

    bag = bag_cube.extend_cube_from_bag(bag_of(4, more), CUBE, built, ["new", "other"], overwrite=overwrite)
    assert len(tasks_of(bag)) == 4 + 1


def test_each_element_is_evaluated_once(built):
    calls = []

    def record(p):
        calls.append(p)
        return load(p)

    WRITES["bag append"](built, n=5, f=record).compute(scheduler="sync")
    assert sorted(calls) == list(range(5))


@pytest.mark.parametrize("name", ["bag append", "delayed append", "dataframe append"])
def test_many_inputs_are_merged_in_a_tree(built, name):
    lazy = WRITES[name](built, n=70)
    merges = [task for key, task in lazy.__dask_graph__().items() if "merge" in str(key)]
    assert len(merges) == 3
    (result,) = dask.compute(lazy, scheduler="sync")
    written = result[0] if isinstance(result, list) else result
    assert len(written["seed"].partitions) == 2 + 70


NAMES = {
    "bag build": {"build_cube-write", "build_cube-commit"},
    "delayed append": {"append_cube-write", "append_cube-commit"},
    "dataframe update": {"update_cube-write", "update_cube-commit"},
    "delayed remove": {"remove_partitions-commit"},
    "bag query": {"query_cube-groups"},
    "delayed query": {"query_cube-group"},
    "dataframe query": {"query_cube"},
    "bag stats": {"collect_stats-count", "collect_stats-sum"},
    "bag copy": {"copy_cube-files", "copy_cube-headers"},
    "bag delete": {"delete_cube-headers", "delete_cube-files"},
    "bag cleanup": {"cleanup_cube-files"},
}


@pytest.mark.parametrize("name, expected", NAMES.items(), ids=NAMES)
def test_names_of_tasks(built, name, expected):
    lazy = ALL[name](built)
    collections = lazy if isinstance(lazy, list) else [lazy]
    names = {key_split(key) for item in collections for key in item.__dask_graph__()}
    assert expected <= names


def test_one_element_or_group_per_block(built):
    bag = bag_cube.query_cube_bag(CUBE, built, partition_by="x", blocksize=1)
    assert (bag.npartitions, len(bag.compute(scheduler="sync"))) == (2, 2)
    bag = bag_cube.query_cube_bag(CUBE, built, partition_by="x", blocksize=5)
    assert (bag.npartitions, len(bag.compute(scheduler="sync"))) == (1, 2)
    bag = bag_cube.query_cube_bag(CUBE, built, C("p") == 9)
    assert (bag.npartitions, bag.compute(scheduler="sync")) == (1, [])


# size --------------------------------------------------------------------------------------------

SIZES = {
    "bag query": lambda s, n: bag_cube.query_cube_bag(headers.CUBE, s, partition_by="p"),
    "bag query in blocks": lambda s, n: bag_cube.query_cube_bag(
        headers.CUBE, s, partition_by="p", blocksize=100
    ),
    "bag query at once": lambda s, n: bag_cube.query_cube_bag(headers.CUBE, s),
    "delayed query": lambda s, n: delayed_cube.query_cube_delayed(headers.CUBE, s, partition_by="p"),
    "dataframe query": lambda s, n: dataframe_cube.query_cube_dataframe(headers.CUBE, s, partition_by="p"),
    "bag append": lambda s, n: bag_cube.append_to_cube_from_bag(bag_of(n), headers.CUBE, s, IDS),
    "bag update": lambda s, n: bag_cube.update_cube_from_bag(bag_of(n), headers.CUBE, s, C("p") > 1, IDS),
    "delayed update": lambda s, n: delayed_cube.update_cube_from_delayed(
        [None] * n, headers.CUBE, s, C("p") > 1, IDS
    ),
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
    bag = bag_cube.update_cube_from_bag(bag_of(3), headers.CUBE, many, C("p") > 1, IDS)
    sizes = {key_split(key): len(pickle.dumps(task)) for key, task in bag.__dask_graph__().items()}
    assert sizes["update_cube-write"] < 5_000 < 100_000 < sizes["update_cube-commit"]


# failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", WRITES.values(), ids=WRITES)
def test_a_failing_task_leaves_the_datasets_as_they_were(built, lazy):
    def last_fails(p):
        return fail(p) if p == 4 else load(p)

    with unchanged(built, garbage=True), pytest.raises(InjectedError):
        dask.compute(lazy(built, n=5, f=last_fails), scheduler="sync")


@pytest.mark.parametrize("lazy", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("key", ["table/p=3", ".by-dataset-metadata"], ids=["file", "header"])
def test_a_failing_store_leaves_the_datasets_as_they_were(built, lazy, key):
    faulty = Same.of(FaultyStore(built()._dstore).fail("put", key=key))
    with unchanged(built, garbage=True), pytest.raises((OSError, RuntimeError), match="injected"):
        dask.compute(lazy(faulty, n=5), scheduler="sync")


@pytest.mark.parametrize("name", ["bag copy", "delayed copy"])
def test_a_failing_copy_leaves_no_dataset(built, name):
    inner = memory()
    target = Same.of(FaultyStore(inner).fail("put", key="cube++seed/table/p=1"))
    copy = {"bag copy": bag_cube.copy_cube_bag, "delayed copy": delayed_cube.copy_cube_delayed}[name]
    with pytest.raises(RuntimeError, match=r"cube\+\+seed"):
        copy(CUBE, built, target, blocksize=1).compute(scheduler="sync")
    assert dataset_ids(Same.of(inner)) == set()


# computing later, twice, elsewhere ---------------------------------------------------------------


def test_a_copy_takes_what_came_to_the_source_after_its_graph_was_built(built):
    target = Same.of(memory())
    copy = bag_cube.copy_cube_bag(CUBE, built, target)
    eager_cube.append_to_cube(frame(x=[5], p=[5], v1=[15]), CUBE, built)
    copy.compute(scheduler="sync")
    assert header(target, "cube++seed") == header(built, "cube++seed")
    (result,) = eager_cube.query_cube(CUBE, target)
    assert list(result["x"]) == [0, 1, 5]


@pytest.mark.parametrize(
    "name", ["bag build", "bag append", "bag update", "delayed append", "dataframe append"]
)
def test_a_graph_that_is_computed_again_commits_once(built, name):
    """A scheduler does so if it loses the result of the commit together with all others."""
    lazy = WRITES[name](built)
    first = dask.compute(lazy, scheduler="sync")
    before = snapshot(built)
    second = dask.compute(lazy, scheduler="sync")
    assert second == first
    after = snapshot(built)
    assert {key: after[key] for key in before} == before


@pytest.mark.parametrize("driver", [Delayed, LargeBag, DataFrame], ids=lambda cls: cls.name)
@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_results_do_not_depend_on_the_scheduler(monkeypatch, driver, scheduler):
    monkeypatch.setattr("tests.support.cube_facades.SCHEDULER", scheduler)
    store, cells = Same.of(memory()), list(range(60))
    data = {
        "seed": frame(x=cells, p=[0, 1, 2] * 20, v1=cells),
        "enrich": frame(x=cells[:9], p=[0, 1, 2] * 3, v2=cells[:9]),
    }
    driver().build_cube(data=data, cube=CUBE, store=store)
    frames = driver().query_cube(cube=CUBE, store=store, partition_by="p")
    expected = eager_cube.query_cube(CUBE, store, partition_by="p")
    assert len(frames) == len(expected) == 3
    for got, want in zip(frames, expected):
        pd.testing.assert_frame_equal(got, want)
