"""What operations on cubes ask of the store: few calls, no writes by readers, the seed's header last."""

import pytest

from kartothek_cube.api.cube import C, Cube, eager_cube
from kartothek_cube.api.discover import discover_cube, discover_datasets, discover_ktk_cube_dataset_ids
from tests.support.cubes import CUBE, HEADER, build, file_keys, frame, groups, memory
from tests.support.stores import CountingStore, ReadOnlyStore, Same, Wrapped

INDEXED = CUBE.copy(index_columns=["i1", "v2"])


def counted(partitions):
    """Give a factory of a memory store that counts, with a cube of that many partitions."""
    factory = Same.of(CountingStore(memory()))
    cells = list(range(partitions))
    seed = frame(x=cells, p=cells, i1=[cell % 2 for cell in cells], v1=cells)
    build(factory, INDEXED, seed=seed, enrich=frame(x=cells, p=cells, v2=cells))
    factory().reset()
    return factory


def is_of_a_block(key):
    """Each block of a deletion announces what it deletes, and looks for a header."""
    names = ("/_tombstones/", "/_deletions/", "by-dataset-metadata")
    return any(name in key for name in names)


def is_data_file(key):
    return "/table/" in key and key.endswith(".parquet")


MORE = frame(x=[1000], p=[1000], i1=[1], v1=[1])
OPERATIONS = {
    "query": lambda d, s: d.query_cube(cube=INDEXED, store=s),
    "point query": lambda d, s: d.query_cube(cube=INDEXED, store=s, conditions=C("x") == 3),
    "restricted": lambda d, s: d.query_cube(cube=INDEXED, store=s, conditions=(C("v2") > 3) & (C("i1") == 1)),
    "partition_by": lambda d, s: d.query_cube(cube=INDEXED, store=s, partition_by=["i1", "p"]),
    "append": lambda d, s: d.append_to_cube(data=MORE, cube=INDEXED, store=s),
    "extend": lambda d, s: d.extend_cube(data={"new": frame(x=[0], p=[0], v3=[0])}, cube=INDEXED, store=s),
    "update": lambda d, s: d.update_cube(
        data=MORE, cube=INDEXED, store=s, remove_conditions=C("p") > 2, ktk_cube_dataset_ids=["seed"]
    ),
    "remove": lambda d, s: d.remove_partitions(cube=INDEXED, store=s, conditions=C("p") > 2),
    "stats": lambda d, s: d.collect_stats(cube=INDEXED, store=s),
    "cleanup": lambda d, s: d.cleanup_cube(cube=INDEXED, store=s),
    "delete": lambda d, s: d.delete_cube(cube=INDEXED, store=s),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_calls_do_not_grow_with_the_number_of_partitions(driver, name):
    operation, calls = OPERATIONS[name], []
    for partitions in (5, 50):
        factory = counted(partitions)
        operation(driver, factory)
        log = factory().log
        counted_keys = [key for _, key in log if not is_data_file(key)]
        calls.append(sum(name != "delete" or not is_of_a_block(key) for key in counted_keys))
        # listings are of one level below the cube's prefix
        assert not [method for method, key in log if method in ("keys", "iter_keys") and key in ("", None)]
    assert calls[0] == calls[1] > 0


FILES = [
    *((C("x") == 3, 1), (C("p") == 3, 1), (C("p") == 99, 0), (C("i1") == 1, 10), (C("v1") == 3, 20)),
    *(((C("i1") == 1) & (C("p") < 4), 2), (C("v2").isin([3, 4, 99]), 2), ((C("v2") == 3) & (C("x") == 4), 0)),
]


@pytest.mark.parametrize("conditions, files", FILES, ids=str)
def test_only_files_that_can_match_are_read(driver, conditions, files):
    factory = counted(20)
    found = driver.query_cube(cube=INDEXED, store=factory, conditions=conditions)
    read = {id_: set() for id_ in ("seed", "enrich")}
    for key in (key for _, key in factory().log if is_data_file(key)):
        read[key.partition("/")[0].removeprefix("cube++")].add(key)
    assert len(read["seed"]) == files
    # partitions without cells that match are not read of other datasets
    assert len(read["enrich"]) <= files if files < 20 else len(read["enrich"]) == len(found[0]) == 1


def test_only_needed_indices_are_read(driver):
    factory = counted(5)
    driver.query_cube(cube=INDEXED, store=factory, conditions=C("i1") == 1, payload_columns=["v1"])
    read = {key.split("/")[2] for _, key in factory().log if "/indices/" in key}
    assert read == {"i1"}


@pytest.mark.parametrize("store", [1, object()], ids=["int", "object"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_not_a_store(driver, operation, store):
    with pytest.raises(TypeError, match=type(store).__name__):
        operation(driver, store)


def test_planning_example(driver):
    """Pre-conditions, partition-by, alignment and re-grouping of the first sections; one file per row."""
    factory = Same.of(store := CountingStore(memory()))
    cube = Cube(["X"], ["P", "Q"], "cube", index_columns=["I1", "I2"])
    seed = frame(
        X=[1, 2, 3, 4, 5], P=[0, 0, 0, 1, 1], Q=[0, 1, 1, 0, 0], I1=[1, 2, 3, 4, 5], I2=[1, 1, 1, 1, 2]
    )
    enrich = frame(X=[1, 2, 4, 5, 7], P=[0, 0, 1, 1, 9], Q=[0, 1, 0, 0, 0], V=[6, 7, 8, 9, 0])
    build(factory, cube, seed=seed[:1], enrich=enrich[:1])
    for i in range(1, 5):
        data = {"seed": seed[i : i + 1], "enrich": enrich[i : i + 1]}
        eager_cube.append_to_cube(data=data, cube=cube, store=factory)
    store.reset()
    arguments = {"conditions": C("I1") > 1, "partition_by": "I2", "payload_columns": ["V"]}
    assert groups(driver.query_cube(cube=cube, store=factory, **arguments)) == [
        {"I2": [1, 1, 1], "P": [0, 0, 1], "Q": [1, 1, 0], "V": [7, None, 8], "X": [2, 3, 4]},
        {"I2": [2], "P": [1], "Q": [0], "V": [9], "X": [5]},
    ]
    touched = {key for _, key in store.log}
    seed_files, enrich_files = (
        list(file_keys(factory, f"cube++{id_}").values()) for id_ in ("seed", "enrich")
    )
    assert touched.isdisjoint({seed_files[0], enrich_files[0], enrich_files[4]})
    assert touched >= {*seed_files[1:], *enrich_files[1:4]}


# readers -----------------------------------------------------------------------------------------

READERS = {
    "query": lambda d, s: d.query_cube(cube=CUBE, store=s, conditions=C("x") == 0, partition_by="p"),
    "stats": lambda d, s: d.collect_stats(cube=CUBE, store=s),
    "discover_cube": lambda d, s: discover_cube("cube", s),
    "discover_datasets": lambda d, s: discover_datasets(CUBE, s),
    "discover_ids": lambda d, s: discover_ktk_cube_dataset_ids("cube", s),
}


@pytest.mark.parametrize("operation", READERS.values(), ids=READERS.keys())
def test_readers_work_on_a_read_only_store(driver, store_factory, operation):
    build(store_factory, seed=frame(x=[0, 1], p=[0, 1], v1=[1, 2]))
    assert operation(driver, Wrapped(ReadOnlyStore, store_factory))


def test_the_source_of_a_copy_is_only_read(driver, store_factory, other_store_factory):
    build(store_factory, seed=frame(x=[0, 1], p=[0, 1], v1=[1, 2]))
    source = Wrapped(ReadOnlyStore, store_factory)
    driver.copy_cube(cube=CUBE, src_store=source, tgt_store=other_store_factory)
    assert len(driver.query_cube(cube=CUBE, store=other_store_factory)) == 1


# the order of writes -----------------------------------------------------------------------------

SEED = frame(x=[0, 1], p=[0, 1], v1=[10, 11])
ENRICH = frame(x=[0, 1], p=[0, 1], v2=[20, 21])
BOTH = {"seed": SEED, "aa": ENRICH, "zz": ENRICH.rename(columns={"v2": "v3"})}


WRITERS = {
    "build": lambda d, s: d.build_cube(data=BOTH, cube=CUBE, store=s, overwrite=True),
    "append": lambda d, s: d.append_to_cube(data=BOTH, cube=CUBE, store=s),
    "update": lambda d, s: d.update_cube(
        data=BOTH, cube=CUBE, store=s, remove_conditions=C("p") >= 0, datasets=[*BOTH]
    ),
    "remove": lambda d, s: d.remove_partitions(cube=CUBE, store=s, conditions=C("p") == 0),
}


@pytest.mark.parametrize("operation", WRITERS.values(), ids=WRITERS.keys())
def test_the_header_of_the_seed_is_written_last(driver, operation):
    factory = Same.of(CountingStore(memory()))
    build(factory, **BOTH)
    factory().reset()
    operation(driver, factory)
    puts = [key for method, key in factory().log if method == "put"]
    headers = [key for key in puts if HEADER in key]
    assert sorted(headers) == [f"cube++{id_}{HEADER}json" for id_ in ("aa", "seed", "zz")]
    assert puts[-1] == headers[-1] == f"cube++seed{HEADER}json"


def test_the_header_of_the_seed_is_copied_last(driver):
    source, target = (Same.of(CountingStore(memory())) for _ in range(2))
    build(source, **BOTH)
    driver.copy_cube(cube=CUBE, src_store=source, tgt_store=target)
    puts = [key for method, key in target().log if method == "put"]
    assert puts[-1] == f"cube++seed{HEADER}json"
