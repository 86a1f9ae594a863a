"""Graphs of all dask façades: what building them does and does not do, and what they leave."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import dask
import dask.bag as db
import dask.dataframe as dd
import pytest
from dask.utils import key_split

from kartothek_cube.api.cube import append_to_cube
from kartothek_cube.core.cube.conditions import C
from kartothek_cube.io.dask import bag, bag_cube, dataframe, dataframe_cube, delayed, delayed_cube
from kartothek_cube.io.eager import update_dataset_from_dataframes
from tests.support.cubes import CUBE, frame, memory, snapshot, unchanged
from tests.support.stores import CountingStore, FaultyStore, InjectedError, Same

P = C("p") == 0
IDS = ["seed", "enrich"]
#: updates write more partitions than they remove
OUTSIDE = {"rows_outside": "append"}


def fail(_item):
    raise InjectedError("in a task of the user")


def load(p):
    return {"seed": frame(x=[0, 1], p=[p, p], v1=[p, p]), "enrich": frame(x=[0, 1], p=[p, p], v2=[p, p])}


def bag_of(n, function=load):
    return db.from_sequence(range(n), npartitions=n).map(function)


def delayed_of(n, function=load):
    return [dask.delayed(function)(i) for i in range(n)]


def ddf_of(n, function=load):
    return dd.from_delayed(frames_of(n, function), meta=load(0)["seed"][:0])


def new_ddf_of(n, function):
    return {"new": ddf_of(n, function).rename(columns={"v1": "v3"})}


def frames_of(n, function=load):
    return [item["seed"] for item in delayed_of(n, function)]


def cube_write(function, input_of, *args, **options):
    return lambda s, n=2, f=load: function(input_of(n, f), CUBE, s, *args, **options)


def write(function, input_of, **options):
    return lambda s, n=2, f=load: function(input_of(n, f), s, "u", **options)


#: name -> lazy result for a store with a cube of two datasets and a dataset "u"; input comes from tasks
CUBE_WRITES = {
    "cube bag build": cube_write(bag_cube.build_cube_from_bag, bag_of, IDS, overwrite=True),
    "cube bag append": cube_write(bag_cube.append_to_cube_from_bag, bag_of, IDS),
    "cube bag update": cube_write(bag_cube.update_cube_from_bag, bag_of, P, IDS, **OUTSIDE),
    "cube delayed build": cube_write(delayed_cube.build_cube_from_delayed, delayed_of, IDS, overwrite=True),
    "cube delayed append": cube_write(delayed_cube.append_to_cube_from_delayed, delayed_of, IDS),
    "cube delayed update": cube_write(delayed_cube.update_cube_from_delayed, delayed_of, P, IDS, **OUTSIDE),
    "cube dataframe extend": cube_write(dataframe_cube.extend_cube_from_dataframe, new_ddf_of),
    "cube dataframe append": cube_write(dataframe_cube.append_to_cube_from_dataframe, ddf_of),
    "cube dataframe update": cube_write(
        dataframe_cube.update_cube_from_dataframe, ddf_of, P, ["seed"], **OUTSIDE
    ),
}
REPLACE, SCOPE = {"partition_on": "p", "overwrite": True}, [{"p": 0}]
DATASET_WRITES = {
    "delayed store": write(delayed.store_delayed_as_dataset, frames_of, **REPLACE),
    "delayed update": write(delayed.update_dataset_from_delayed, frames_of, delete_scope=SCOPE),
    "bag store": write(bag.store_bag_as_dataset, lambda n, f: bag_of(n, f).pluck("seed"), **REPLACE),
    "ddf store": write(dataframe.store_dataset_from_ddf, ddf_of, **REPLACE),
    "ddf update": write(dataframe.update_dataset_from_ddf, ddf_of, delete_scope=SCOPE, shuffle=True),
}
CUBE_OTHERS = {
    "cube bag remove": lambda s: bag_cube.remove_partitions_bag(CUBE, s, P),
    "cube bag query": lambda s: bag_cube.query_cube_bag(CUBE, s, partition_by="p"),
    "cube bag delete": lambda s: bag_cube.delete_cube_bag(CUBE, s),
    "cube bag stats": lambda s: bag_cube.collect_stats_bag(CUBE, s),
    "cube bag cleanup": lambda s: bag_cube.cleanup_cube_bag(CUBE, s),
    "cube bag copy": lambda s: bag_cube.copy_cube_bag(CUBE, s, Same.of(memory())),
    "cube delayed remove": lambda s: delayed_cube.remove_partitions_delayed(CUBE, s, P),
    "cube delayed query": lambda s: delayed_cube.query_cube_delayed(CUBE, s, partition_by="p"),
    "cube delayed delete": lambda s: delayed_cube.delete_cube_delayed(CUBE, s),
    "cube delayed stats": lambda s: delayed_cube.collect_stats_delayed(CUBE, s),
    "cube delayed cleanup": lambda s: delayed_cube.cleanup_cube_delayed(CUBE, s),
    "cube delayed copy": lambda s: delayed_cube.copy_cube_delayed(CUBE, s, Same.of(memory())),
    "cube dataframe query": lambda s: dataframe_cube.query_cube_dataframe(CUBE, s, partition_by="p"),
}
DATASET_OTHERS = {
    "delayed read": lambda s: delayed.read_dataset_as_delayed("u", s),
    "bag read": lambda s: bag.read_dataset_as_dataframe_bag("u", s),
    "ddf read": lambda s: dataframe.read_dataset_as_ddf("u", s),
    "ddf read by index": lambda s: dataframe.read_dataset_as_ddf("u", s, dask_index_on="x"),
    "ddf metadata": lambda s: dataframe.collect_dataset_metadata(s, "u"),
    "ddf hash": lambda s: dataframe.hash_dataset(s, "u"),
    "ddf hash by group": lambda s: dataframe.hash_dataset(s, "u", group_key="p"),
    "bag index": lambda s: bag.build_dataset_indices__bag(s, "u", "x"),
    "delayed garbage": lambda s: delayed.garbage_collect_dataset__delayed("u", s),
    "delayed delete": lambda s: delayed.delete_dataset__delayed("u", s),
}
WRITES = {**CUBE_WRITES, **DATASET_WRITES}
OTHERS = {**CUBE_OTHERS, **DATASET_OTHERS}
ALL = {**WRITES, **OTHERS}


def states(store):
    """Give what makes a dataset: everything but data files."""
    return {key: data for key, data in snapshot(store).items() if "/table/p=" not in key}


@pytest.mark.parametrize("lazy", ALL.values(), ids=ALL)
def test_building_a_graph_computes_and_writes_nothing(built, lazy):
    def never(*_args, **_kwargs):
        raise AssertionError("computed")

    with unchanged(built), dask.config.set(scheduler=never):
        lazy(built)
        if lazy in WRITES.values():
            lazy(built, f=fail)


@pytest.mark.parametrize("lazy", OTHERS.values(), ids=OTHERS)
def test_planning_opens_no_data_file(built, lazy):
    counting = Same.of(CountingStore(built()._dstore))
    lazy(counting)
    assert [key for method, key in counting().log if method in ("get", "open") and "/p=" in key] == []


@pytest.mark.parametrize("lazy", ALL.values(), ids=ALL)
def test_graphs_survive_plain_pickle_and_hold_no_store(built, lazy):
    again = pickle.loads(pickle.dumps(lazy(built)))
    dask.compute(again, scheduler="sync")


@pytest.mark.parametrize("name", [*CUBE_WRITES, *CUBE_OTHERS])
@pytest.mark.parametrize("store", [memory(), 1, None], ids=["instance", "int", "none"])
def test_a_store_of_a_cube_must_be_a_factory(name, store):
    with pytest.raises(TypeError, match=type(store).__name__):
        ALL[name](store)


@pytest.mark.parametrize("name", [*DATASET_WRITES, *DATASET_OTHERS])
def test_stores_of_datasets_that_cannot_travel_are_refused(built, name):
    with pytest.raises(TypeError, match="UnpicklableStore"):
        ALL[name](built())


NAMES = {
    "cube bag build": "build_cube-write build_cube-commit",
    "cube delayed append": "append_cube-write append_cube-commit",
    "cube dataframe update": "update_cube-write update_cube-commit",
    "cube delayed remove": "remove_partitions-commit",
    "cube bag query": "query_cube-groups",
    "cube delayed query": "query_cube-group",
    "cube dataframe query": "query_cube",
    "cube bag stats": "collect_stats-count collect_stats-sum",
    "cube bag copy": "copy_cube-files copy_cube-headers",
    "cube bag delete": "delete_cube-headers delete_cube-files",
    "cube bag cleanup": "cleanup_cube-files",
    "delayed store": "store_dataset-write store_dataset-commit",
    "ddf update": "update_dataset-write update_dataset-commit",
    "delayed read": "read_dataset-partition",
    "ddf read": "read_dataset",
    "bag index": "build_indices-read build_indices-commit",
    "delayed delete": "delete_dataset-files delete_dataset-header",
    "delayed garbage": "collect_garbage-files",
}


@pytest.mark.parametrize("name, expected", NAMES.items(), ids=NAMES)
def test_names_of_tasks(built, name, expected):
    lazy = ALL[name](built)
    collections = lazy if isinstance(lazy, list) else [lazy]
    assert set(expected.split()) <= {key_split(key) for item in collections for key in item.__dask_graph__()}


@pytest.mark.slow("graphs of many tasks")
@pytest.mark.parametrize("name", [*(name for name in CUBE_WRITES if "append" in name), *DATASET_WRITES])
def test_many_inputs_are_merged_in_a_tree(built, name):
    lazy = ALL[name](built, n=70)
    assert len([key for key in lazy.__dask_graph__() if "merge" in str(key)]) == 3
    (result,) = dask.compute(lazy, scheduler="sync")
    written = result[0] if isinstance(result, list) else result
    dataset = written["seed"] if name in CUBE_WRITES else written
    assert len(dataset.partitions) == 70 + {"append": 2, "update": 1}.get(name.split()[-1], 0)


@pytest.mark.parametrize("lazy", WRITES.values(), ids=WRITES)
def test_a_failing_task_leaves_the_datasets_as_they_were(built, lazy):
    def last_fails(p):
        return fail(p) if p == 4 else load(p)

    before = states(built)
    with unchanged(built, garbage=True), pytest.raises(InjectedError):
        dask.compute(lazy(built, n=5, f=last_fails), scheduler="sync")
    assert states(built) == before


@pytest.mark.parametrize("lazy", CUBE_WRITES.values(), ids=CUBE_WRITES)
@pytest.mark.parametrize("key", ["table/p=3", ".by-dataset-metadata"], ids=["file", "header"])
def test_a_failing_store_leaves_the_datasets_as_they_were(built, lazy, key):
    faulty = Same.of(FaultyStore(built()._dstore).fail("put", key=key))
    with unchanged(built, garbage=True), pytest.raises((OSError, RuntimeError), match="injected"):
        dask.compute(lazy(faulty, n=5), scheduler="sync")


REPEATED = {
    **WRITES,
    **{name: OTHERS[name] for name in ("cube bag remove", "cube delayed remove")},
    "cube bag statistics": lambda s: bag_cube.build_column_statistics_bag(CUBE, s, "x"),
    "cube delayed statistics": lambda s: delayed_cube.build_column_statistics_delayed(CUBE, s, "x"),
}


@pytest.mark.parametrize("lazy", REPEATED.values(), ids=REPEATED)
def test_a_graph_that_is_computed_again_commits_once(built, lazy):
    """A scheduler does so if it loses the result of the commit together with all others."""
    graph = lazy(built)
    first = dask.compute(graph, scheduler="sync")
    before, state = snapshot(built), states(built)
    assert dask.compute(graph, scheduler="sync") == first
    after = snapshot(built)
    assert {key: after[key] for key in before} == before
    assert states(built) == state


#: rewrites of files that have several rows
REWRITES = {
    "cube bag delete rows": lambda s: bag_cube.delete_rows_bag(CUBE, s, "x == 1"),
    "cube bag compact": lambda s: bag_cube.compact_cube_bag(CUBE, s),
    "cube delayed delete rows": lambda s: delayed_cube.delete_rows_delayed(CUBE, s, "x == 1"),
    "cube delayed compact": lambda s: delayed_cube.compact_cube_delayed(CUBE, s),
    "delayed delete rows": lambda s: delayed.delete_dataset_rows__delayed("u", s, [[("x", "==", 1)]]),
}


@pytest.mark.parametrize("lazy", REWRITES.values(), ids=REWRITES)
def test_a_rewrite_that_is_computed_again_after_other_writes_commits_once(built, lazy):
    append_to_cube(load(0), CUBE, built)
    update_dataset_from_dataframes([load(0)["seed"]], built, "u")
    graph = lazy(built)
    first = dask.compute(graph, scheduler="sync")
    append_to_cube(load(0), CUBE, built)
    update_dataset_from_dataframes([load(0)["seed"]], built, "u")
    state = states(built)
    assert dask.compute(graph, scheduler="sync") == first
    assert states(built) == state


@pytest.mark.parametrize("function, n_elements", [("delete_cube_bag", 2), ("cleanup_cube_bag", 2)])
def test_the_elements_of_a_bag_without_a_result_are_none(built, function, n_elements):
    elements = getattr(bag_cube, function)(CUBE, built, blocksize=1).compute(scheduler="sync")
    assert set(elements) == {None}
    assert len(elements) >= n_elements


@pytest.fixture(scope="module")
def other_process():
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, dask.config.set(pool=pool):
        yield


IN_MEMORY = {
    "delayed store": lambda s: delayed.store_delayed_as_dataset(frames_of(1), s, "new", overwrite=True),
    "delayed update": lambda s: delayed.update_dataset_from_delayed([], s, "u", delete_scope=SCOPE),
    "delayed delete": DATASET_OTHERS["delayed delete"],
    "bag index": lambda s: bag.build_dataset_indices__bag(s, "u", "v1"),
    "cube delayed remove": lambda s: CUBE_OTHERS["cube delayed remove"](lambda: s),
    "cube delayed append": lambda s: CUBE_WRITES["cube delayed append"](lambda: s),
}


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("lazy", IN_MEMORY.values(), ids=IN_MEMORY)
def test_other_processes_do_not_write_to_their_copy_of_a_store_in_memory(built, other_process, lazy):
    store = built()._dstore
    with (
        unchanged(lambda: store),
        pytest.raises(ValueError, match="memory of the process that built the graph"),
    ):
        dask.compute(lazy(store), scheduler="processes")


@pytest.mark.slow("starts a process")
def test_other_processes_read_their_copy_of_a_store_in_memory(built, other_process):
    store = built()._dstore
    graphs = delayed.read_dataset_as_delayed("u", store)
    assert [df["x"].tolist() for df in dask.compute(graphs, scheduler="processes")[0]] == [[0], [1]]
