"""Copying a cube to another store, also under other names."""

import pytest

from kartothek_cube.api.discover import discover_cube, discover_datasets
from kartothek_cube.core.errors import MultiTableCommitAborted
from kartothek_cube.io import eager_cube
from tests.support import cubes
from tests.support.cubes import CUBE, ENRICH, SEED, wrong
from tests.support.stores import FaultyStore, InjectedError, Same


@pytest.fixture
def source(store_factory):
    """A store with a cube of two datasets, and a file that belongs to nobody."""
    cubes.build(store_factory, CUBE.copy(index_columns=["v2"]), seed=SEED, enrich=ENRICH)
    store_factory().put("cube++seed/leftover", b"data")
    return store_factory


@pytest.fixture
def target(other_store_factory):
    return other_store_factory


def tracked(store, text=""):
    """Give keys and bytes of a source without the file that belongs to nobody."""
    return {key: data for key, data in cubes.snapshot(store).items() if "leftover" not in key and text in key}


@pytest.mark.parametrize("datasets", [None, "seed", ["seed"], {"seed"}, "as loaded"])
def test_copy_is_byte_for_byte(driver, source, target, datasets):
    if datasets == "as loaded":
        datasets = {"seed": discover_datasets(CUBE, source)["seed"]}
    with cubes.unchanged(source):
        assert driver.copy_cube(cube=CUBE, src_store=source, tgt_store=target, datasets=datasets) is None
    assert cubes.snapshot(target) == tracked(source, "" if datasets is None else "seed")


def test_copy_a_dataset_to_a_cube_that_fits(driver, source, target):
    cubes.build(target, seed=SEED.assign(v1=[30, 31]))
    driver.copy_cube(cube=CUBE, src_store=source, tgt_store=target, datasets=["enrich"])
    found = cubes.rows(driver.query_cube(cube=CUBE, store=target))
    assert found == {"p": [0, 1], "v1": [30, 31], "v2": [20, 21], "x": [0, 1]}


def test_overwrite_leaves_the_files_of_the_old_datasets(driver, source, target):
    cubes.build(target, seed=SEED, enrich=cubes.frame(x=[0], p=[0], v3=[1]))
    old = cubes.keys(target)
    driver.copy_cube(cube=CUBE, src_store=source, tgt_store=target, overwrite=True)
    assert {key for key in cubes.keys(target) if "/_history/" not in key} == old | set(tracked(source))
    driver.cleanup_cube(cube=CUBE, store=target)
    copied, expected = map(cubes.without_commit_ids, (cubes.snapshot(target), tracked(source)))
    assert copied.keys() == expected.keys()
    # a schema file holds the schema before as well
    assert all(copied[key] == expected[key] for key in copied if "_common_metadata" not in key)


# renaming ----------------------------------------------------------------------------------------


SWAPPED = {"seed": "enrich", "enrich": "seed"}


@pytest.mark.parametrize(
    "arguments, prefix, ids",
    [
        ({"renamed_cube_prefix": "new"}, "new", {"seed": "seed", "enrich": "enrich"}),
        ({"renamed_datasets": {"enrich": "other"}}, "cube", {"seed": "seed", "enrich": "other"}),
        ({"renamed_datasets": {"seed": "main"}}, "cube", {"seed": "main", "enrich": "enrich"}),
        ({"renamed_cube_prefix": "new", "renamed_datasets": SWAPPED}, "new", SWAPPED),
    ],
    ids=["cube", "dataset", "seed", "swapped"],
)
def test_renamed_copy(driver, source, target, arguments, prefix, ids):
    def renamed(text):
        for old, new in ids.items():
            text = text.replace(f"cube++{old}", f"{prefix}##{new}")
        return text.replace("##", "++")

    with cubes.unchanged(source):
        driver.copy_cube(cube=CUBE, src_store=source, tgt_store=target, **arguments)
    assert cubes.snapshot(target) == {
        renamed(key): renamed(data.decode()).encode() if cubes.HEADER in key else data
        for key, data in tracked(source).items()
    }
    cube, _ = discover_cube(prefix, target)
    assert cube.seed_dataset == ids["seed"]
    expected = cubes.rows(driver.query_cube(cube=CUBE, store=source))
    assert cubes.rows(driver.query_cube(cube=cube, store=target)) == expected
    cubes.check_integrity(target, cube)


def test_a_computation_goes_on_in_a_copy_with_other_ids(source, target):
    def double(df):
        return df.assign(c=2 * df.pop("v2"))[["x", "p", "c"]]

    eager_cube.compute_dataset(double, CUBE, source, "computed")
    names = {"enrich": "other", "seed": "main", "computed": "again"}
    eager_cube.copy_cube(CUBE, source, target, renamed_datasets=names)
    cube, _ = discover_cube("cube", target)
    assert eager_cube.compute_dataset(double, cube, target, "again").n_partitions == 0
    eager_cube.append_to_cube({"other": ENRICH[:1].assign(v2=9)}, cube, target)
    assert eager_cube.compute_dataset(double, cube, target, "again").n_partitions == 1


def test_only_exact_ids_are_renamed(driver, source, target):
    driver.extend_cube(data={"enrich2": ENRICH.rename(columns={"v2": "v3"})}, cube=CUBE, store=source)
    driver.copy_cube(cube=CUBE, src_store=source, tgt_store=target, renamed_datasets={"enrich": "other"})
    assert cubes.dataset_ids(target) == {"seed", "other", "enrich2"}
    expected = cubes.rows(driver.query_cube(cube=CUBE, store=source))
    assert cubes.rows(driver.query_cube(cube=CUBE, store=target)) == expected


SEAD = "source store: unknown dataset sead; did you mean seed? available: enrich, seed"
NO_COPY = {
    "no cube": wrong("nope", error=RuntimeError, cube=CUBE.copy(uuid_prefix="nope")),
    "unknown ids": wrong(SEAD, error=RuntimeError, datasets=["sead"]),
    "without seed": wrong("seed", datasets=["enrich"]),
    "nothing": wrong("seed", datasets=[]),
    "no id": wrong("int", error=TypeError, datasets=1),
    "prefix with separator": wrong("a++b", renamed_cube_prefix="a++b"),
    "illegal prefix": wrong("a/b", renamed_cube_prefix="a/b"),
    "id with separator": wrong("a++b", renamed_datasets={"enrich": "a++b"}),
    "illegal id": wrong("a/b", renamed_datasets={"enrich": "a/b"}),
    "two of one name": wrong("seed", renamed_datasets={"enrich": "seed"}),
}


@pytest.mark.parametrize("expected, arguments", NO_COPY.values(), ids=NO_COPY)
def test_wrong_arguments(driver, source, target, expected, arguments):
    with cubes.refuses(target, *expected):
        driver.copy_cube(**{"cube": CUBE, "src_store": source, "tgt_store": target, **arguments})


def test_old_names_need_not_be_free(driver, source, target):
    cubes.build(target, seed=SEED)
    driver.copy_cube(cube=CUBE, src_store=source, tgt_store=target, renamed_cube_prefix="new")
    assert cubes.dataset_ids(target, CUBE.copy(uuid_prefix="new")) == {"seed", "enrich"}


# refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"overwrite": True}, {"renamed_cube_prefix": "new"}], ids=str)
def test_a_store_is_not_copied_to_itself(driver, source, arguments):
    with cubes.refuses(source, ValueError):
        driver.copy_cube(cube=CUBE, src_store=source, tgt_store=source, **arguments)


FIT = ["v2", "enrich, seed"]
OTHER_SEED = SEED.rename(columns={"v1": "v2"})
IN_THE_WAY = {
    "new name": ("new", SEED, wrong("new++seed", error=RuntimeError, renamed_cube_prefix="new")),
    "dataset": ("cube", SEED, wrong("cube++seed", error=RuntimeError)),
    "payload": ("cube", OTHER_SEED, wrong(*FIT, datasets=["enrich"], overwrite=False)),
    "payload of a replaced cube": ("cube", OTHER_SEED, wrong(*FIT, datasets=["enrich"], overwrite=True)),
}


@pytest.mark.parametrize("prefix, seed, refused", IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_existing_datasets_are_kept_and_must_fit(driver, source, target, prefix, seed, refused):
    cubes.build(target, CUBE.copy(uuid_prefix=prefix), seed=seed)
    expected, arguments = refused
    with cubes.refuses(target, *expected):
        driver.copy_cube(cube=CUBE, src_store=source, tgt_store=target, **arguments)


# failures ----------------------------------------------------------------------------------------


def test_what_a_copy_that_died_early_wrote_is_found_by_a_cleanup_of_the_copy(driver, source, target):
    store = FaultyStore(target()).fail("delete")
    with pytest.raises(InjectedError):
        driver.copy_cube(cube=CUBE, src_store=source, tgt_store=Same.of(store), renamed_cube_prefix="copy")
    assert {key.split(".")[0] for key in cubes.keys(target)} == {"copy++seed"}
    driver.cleanup_cube(cube=CUBE.copy(uuid_prefix="copy"), store=target)
    assert cubes.keys(target) == set()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_copy_says_so_and_leaves_no_header_that_it_wrote(driver, source, overwrite):
    inner = cubes.memory()
    if overwrite:
        cubes.build(Same.of(inner), seed=SEED, enrich=ENRICH)
    before = cubes.dataset_ids(Same.of(inner))
    store = FaultyStore(inner).fail("put", key="cube++seed/indices")
    error = RuntimeError if overwrite else MultiTableCommitAborted
    with pytest.raises(error, match="seed") as caught:
        driver.copy_cube(cube=CUBE, src_store=source, tgt_store=Same.of(store), overwrite=overwrite)
    assert isinstance(caught.value.__cause__, InjectedError)
    assert cubes.dataset_ids(Same.of(inner)) == before
