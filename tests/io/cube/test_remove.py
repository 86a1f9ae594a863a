"""Removing partitions from the datasets of a cube."""

import pytest

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.dataset import DatasetMetadata
from tests.support import cubes
from tests.support.cubes import wrong

PQ = cubes.CUBE.copy(partition_columns=["p", "q"])
GRID = {"p": [0, 0, 1, 1], "q": ["a", "b", "a", "b"]}
EXTRA = ["p=0/q=a/v5=50", "p=0/q=a/v5=51", "p=1/q=a/v5=51"]
IDS = ["seed", "same", "only_q", "whole", "extra"]


@pytest.fixture
def built(driver, store_factory):
    """A store with datasets of five kinds of partitioning."""
    data = {
        "seed": cubes.frame(x=[0, 1, 2, 3], **GRID, v1=[10, 11, 12, 13]),
        "same": cubes.frame(x=[0, 1, 2, 3], **GRID, v2=[20, 21, 22, 23]),
        "only_q": cubes.frame(x=[0, 1], q=["a", "b"], v3=[30, 31]),
        "whole": cubes.frame(x=[0, 1], v4=[40, 41]),
        "extra": cubes.frame(x=[0, 1, 2], p=[0, 0, 1], q=["a", "a", "a"], v5=[50, 51, 51]),
    }
    partition_on = {"only_q": ["q"], "whole": [], "extra": ["p", "q", "v5"]}
    arguments = {"partition_on": partition_on, "metadata": {"seed": {"a": 1, "b": 2}}}
    driver.build_cube(data=data, cube=PQ, store=store_factory, **arguments)
    return store_factory


def directories(store, id_):
    """Give the partitions of a dataset without the names of the files."""
    return [label.rpartition("/")[0] for label in cubes.file_keys(store, f"cube++{id_}")]


@pytest.mark.filterwarnings("ignore:Removed from dataset")
@pytest.mark.parametrize(
    "conditions, seed, only_q, whole, extra",
    [
        ("all", [], [], [], []),
        (C("p") == 0, ["p=1/q=a", "p=1/q=b"], [], [], ["p=1/q=a/v5=51"]),
        (C("q") == "a", ["p=0/q=b", "p=1/q=b"], ["q=b"], [], []),
        ((C("p") == 0) & (C("q") == "a"), ["p=0/q=b", "p=1/q=a", "p=1/q=b"], ["q=b"], [], ["p=1/q=a/v5=51"]),
        ([C("p").isin([1, 2]), C("q") > "a"], ["p=0/q=a", "p=0/q=b", "p=1/q=a"], ["q=a"], [], EXTRA),
    ],
    ids=["all", "p", "q", "p and q", "list"],
)
def test_conditions_concern_the_keys_a_dataset_has(driver, built, conditions, seed, only_q, whole, extra):
    result = driver.remove_partitions(cube=PQ, store=built, conditions=conditions)
    expected = {"seed": seed, "same": seed, "only_q": only_q, "whole": whole, "extra": extra}
    assert {id_: directories(built, id_) for id_ in IDS} == expected
    assert result == {id_: DatasetMetadata.load_from_store(f"cube++{id_}", built()) for id_ in IDS}
    cubes.check_integrity(built, PQ)


@pytest.mark.parametrize(
    "ids, touched", [("same", {"same"}), (["same", "whole"], {"same", "whole"}), ([], set())]
)
def test_only_the_given_datasets_are_touched(driver, built, ids, touched):
    before = cubes.without_commit_ids(cubes.snapshot(built))
    result = driver.remove_partitions(cube=PQ, store=built, conditions=C("p") == 0, ktk_cube_dataset_ids=ids)
    after = cubes.without_commit_ids(cubes.snapshot(built))
    changed = {key.split("++")[1].split(".")[0] for key in before if after.get(key) != before[key]}
    assert set(result) == set(IDS)
    assert changed == touched


def test_no_match_changes_nothing_but_the_metadata(driver, built):
    before = {id_: list(cubes.file_keys(built, f"cube++{id_}")) for id_ in ["seed", "same", "extra"]}
    arguments = {"ktk_cube_dataset_ids": list(before), "metadata": {"seed": {"b": 20, "c": 30}}}
    driver.remove_partitions(cube=PQ, store=built, conditions=C("p") == 9, **arguments)
    assert {id_: list(cubes.file_keys(built, f"cube++{id_}")) for id_ in before} == before
    stored = cubes.header(built, "cube++seed")["metadata"]
    assert (stored["a"], stored["b"], stored["c"], stored["ktk_cube_is_seed"]) == (1, 20, 30, True)


@pytest.mark.parametrize(
    "conditions, expected",
    [
        (C("p") == 0, {"only_q": "by p: 2 rows,", "whole": "by p: 2 rows,"}),
        (C("q") == "a", {"whole": "by q: 2 rows,"}),
        ((C("p") == 0) & (C("q") == "a"), {"only_q": "by p: 1 row,", "whole": "by p, q: 2 rows,"}),
        (C("q") == "z", {"whole": "by q: 2 rows,"}),
        # of only_q, nothing is removed
        ((C("p") == 0) & (C("q") == "z"), {"whole": "by p, q: 2 rows,"}),
    ],
)
def test_rows_of_datasets_with_other_keys_are_removed_with_a_warning(driver, built, conditions, expected):
    with pytest.warns(UserWarning, match=r"partitions from by datasets=\.\.\.$") as caught:
        driver.remove_partitions(cube=PQ, store=built, conditions=conditions)
    assert len(caught) == len(expected)
    texts = sorted(str(warning.message) for warning in caught)
    for text, (name, part) in zip(texts, sorted(expected.items()), strict=True):
        assert text.startswith(f"Removed from dataset 'cube++{name}', which is not partitioned {part}")


def test_datasets_with_other_keys_are_emptied_without_their_files(driver, built):
    for key in cubes.keys(built):
        if key.startswith("cube++whole/table/") and key.endswith(".parquet"):
            built().delete(key)
    with pytest.warns(UserWarning, match=r"'cube\+\+whole', which is not partitioned by q: 1 file,"):
        driver.remove_partitions(cube=PQ, store=built, conditions=C("q") == "a")
    assert directories(built, "whole") == []


def test_an_emptied_cube_keeps_its_files_and_can_be_queried_and_appended_to(driver, built):
    before = cubes.keys(built)
    driver.remove_partitions(cube=PQ, store=built, conditions="all")
    assert {key for key in before if key.endswith(".parquet") and "/table/" in key} <= cubes.keys(built)
    assert driver.query_cube(cube=PQ, store=built) == []
    assert driver.query_cube(cube=PQ, store=built, conditions=C("v1") == 10, partition_by="x") == []
    driver.append_to_cube(data=cubes.frame(x=[7], p=[7], q=["z"], v1=[17]), cube=PQ, store=built)
    found = cubes.rows(driver.query_cube(cube=PQ, store=built))
    assert found == {"p": [7], "q": ["z"], "v1": [17], **{f"v{n}": [None] for n in range(2, 6)}, "x": [7]}


NO_REMOVAL = {
    "dimension": wrong("x", conditions=C("x") == 0),
    "payload": wrong("v5", conditions=(C("p") == 0) & (C("v5") == 50)),
    "unknown column": wrong("z", conditions=C("z") == 0),
    "wrong type": wrong("p", "int64", "a", error=TypeError, conditions=C("p") == "a"),
    "not a condition": wrong(error=TypeError, conditions=1),
    "unknown ids": wrong("a, b", ktk_cube_dataset_ids=["b", "seed", "a"]),
    "no id": wrong("int", error=TypeError, ktk_cube_dataset_ids=1),
    "metadata": wrong("int", error=TypeError, metadata=1),
    "metadata of unknown datasets": wrong("a, b", metadata={"b": {}, "a": {}}),
}


@pytest.mark.parametrize("expected, arguments", NO_REMOVAL.values(), ids=NO_REMOVAL)
def test_wrong_arguments_are_refused_before_anything_is_written(driver, built, expected, arguments):
    with cubes.refuses(built, *expected):
        driver.remove_partitions(**{"cube": PQ, "store": built, "conditions": "all", **arguments})
