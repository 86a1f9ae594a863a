"""Building a cube: input, what is stored, refusals, overwriting and rollback."""

import re

import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import MultiTableCommitAborted
from kartothek_cube.serialization import ParquetSerializer
from tests.support.cubes import (
    BOTH,
    CUBE,
    ENRICH,
    HEADER,
    SEED,
    aborts,
    as_dict,
    check_integrity,
    check_message,
    dataset_ids,
    file_contents,
    file_keys,
    files,
    frame,
    header,
    index,
    index_columns,
    keys,
    memory,
    read_parquet,
    refuses,
    rows,
    snapshot,
)

NAME = "[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{16}"
INDEX = r"indices/{}/\d{{4}}-\d\d-\d\dT\d\d%3A\d\d%3A\d\d(\.\d{{6}})?\.by-dataset-index\.parquet"


# what is stored ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed, expected",
    [
        (frame(x=[0, 1], p=[0, 1], v1=[1, 2]), [f"p=0/{NAME}", f"p=1/{NAME}"]),
        (frame(x=[0, 1], p=[0, 0], v1=[1, 2]), [f"p=0/{NAME}"]),
    ],
    ids=["two partitions", "one partition"],
)
def test_keys_of_a_seed_are_header_schema_index_and_files(driver, store_factory, seed, expected):
    driver.build_cube(data=seed, cube=CUBE, store=store_factory)
    patterns = [
        r"cube\+\+seed\.by-dataset-metadata\.json",
        r"cube\+\+seed/table/_common_metadata",
        r"cube\+\+seed/" + INDEX.format("x"),
        *(rf"cube\+\+seed/table/{label}\.parquet" for label in expected),
    ]
    found = sorted(keys(store_factory))
    assert len(found) == len(patterns)
    assert all(any(re.fullmatch(pattern, key) for key in found) for pattern in patterns)


def test_each_dataset_of_the_input_becomes_a_dataset(driver, store_factory):
    result = driver.build_cube(data=BOTH, cube=CUBE, store=store_factory)
    assert set(result) == dataset_ids(store_factory) == {"seed", "enrich"}
    for id_ in result:
        stored = header(store_factory, f"cube++{id_}")
        assert stored["dataset_uuid"] == f"cube++{id_}"
        assert stored["dataset_metadata_version"] == 4
        assert stored["partition_keys"] == ["p"]
        assert [set(part["files"]) for part in stored["partitions"].values()] == [{"table"}, {"table"}]
    check_integrity(store_factory)


def test_result_equals_what_a_load_gives(driver, store_factory):
    result = driver.build_cube(data=BOTH, cube=CUBE, store=store_factory)
    for id_, dataset in result.items():
        assert dataset == DatasetMetadata.load_from_store(f"cube++{id_}", store_factory())


def test_metadata_of_each_dataset_names_the_cube(driver, store_factory):
    cube = CUBE.copy(dimension_columns=["x", "y"], suppress_index_on=["y"])
    data = {"seed": SEED.assign(y=0), "enrich": ENRICH}
    given = {"seed": {"name": "a"}}
    driver.build_cube(data=data, cube=cube, store=store_factory, metadata=given)
    for id_, own in [("seed", {"name": "a"}), ("enrich", {})]:
        stored = header(store_factory, f"cube++{id_}")["metadata"]
        del stored["creation_time"]
        assert stored == {
            **own,
            "ktk_cube_dimension_columns": ["x", "y"],
            "ktk_cube_is_seed": id_ == "seed",
            "ktk_cube_partition_columns": ["p"],
            "ktk_cube_suppress_index_on": ["y"],
            "klee_dimension_columns": ["x", "y"],
            "klee_is_seed": id_ == "seed",
            "klee_partition_columns": ["p"],
        }
    assert given == {"seed": {"name": "a"}}


@pytest.mark.parametrize(
    "changes, partition_on, seed_indices, enrich_indices",
    [
        ({}, None, {"x", "y"}, set()),
        ({"suppress_index_on": ["x"]}, None, {"y"}, set()),
        ({"suppress_index_on": ["x", "y"]}, None, set(), set()),
        ({"index_columns": ["v1"]}, None, {"x", "y", "v1"}, set()),
        ({"index_columns": ["v1", "v2"]}, None, {"x", "y", "v1"}, {"v2"}),
        ({"index_columns": ["v2", "v3"]}, {"enrich": ["p", "v2"]}, {"x", "y"}, {"v3"}),
    ],
)
def test_indices_of_seed_and_enrichment(
    driver, store_factory, changes, partition_on, seed_indices, enrich_indices
):
    cube = CUBE.copy(dimension_columns=["x", "y"], **changes)
    data = {"seed": SEED.assign(y=[3, 4]), "enrich": ENRICH.assign(y=[3, 4], v3=[5, 6])}
    driver.build_cube(data=data, cube=cube, store=store_factory, partition_on=partition_on)
    assert index_columns(store_factory, "cube++seed") == seed_indices
    assert index_columns(store_factory, "cube++enrich") == enrich_indices
    check_integrity(store_factory, cube)


def test_index_names_every_partition_of_a_value(driver, store_factory):
    driver.build_cube(data=frame(x=[0, 1, 1], p=[0, 0, 1], v1=[1, 2, 3]), cube=CUBE, store=store_factory)
    first, second = file_keys(store_factory, "cube++seed")
    assert index(store_factory, "cube++seed", "x") == {0: [first], 1: sorted([first, second])}


def test_rows_of_a_file_are_sorted_by_dimensions_in_cube_order(driver, store_factory):
    cube = CUBE.copy(dimension_columns=["y", "x"])
    seed = pd.DataFrame(
        {"v1": [1, 2, 3, 4], "x": [1, 0, 1, 0], "p": [0, 0, 0, 0], "y": [1, 1, 0, 0]}, index=[7, 7, 3, 1]
    )
    driver.build_cube(data=seed, cube=cube, store=store_factory)
    assert file_contents(store_factory, "cube++seed") == [
        {"v1": [4, 3, 2, 1], "x": [0, 1, 0, 1], "y": [0, 0, 1, 1]}
    ]


def test_partition_columns_are_in_the_label_only(driver, store_factory):
    cube = CUBE.copy(partition_columns=["p", "q"])
    driver.build_cube(data=frame(x=[0], p=["a/b"], q=[1], v1=[1]), cube=cube, store=store_factory)
    ((label, content),) = files(store_factory, "cube++seed").items()
    assert re.fullmatch(f"p=a%2Fb/q=1/{NAME}", label)
    assert content == {"x": [0], "v1": [1]}


@pytest.mark.parametrize(
    "serializer, compression, row_groups",
    [(None, "ZSTD", 1), (ParquetSerializer(compression="SNAPPY", chunk_size=1), "SNAPPY", 2)],
)
def test_serializer(driver, store_factory, serializer, compression, row_groups):
    seed = frame(x=[0, 1], p=[0, 0], v1=[1, 2])
    driver.build_cube(data=seed, cube=CUBE, store=store_factory, df_serializer=serializer)
    (key,) = file_keys(store_factory, "cube++seed").values()
    footer = read_parquet(store_factory, key).metadata
    assert footer.num_row_groups == row_groups
    assert footer.row_group(0).column(0).compression == compression


@pytest.mark.parametrize(
    "partition_on, keys_, labels",
    [
        (None, ["p"], {"p=0", "p=1"}),
        (["p"], ["p"], {"p=0", "p=1"}),
        (["p", "v2"], ["p", "v2"], {"p=0/v2=20", "p=1/v2=21"}),
        (["v2", "p"], ["v2", "p"], {"v2=20/p=0", "v2=21/p=1"}),
    ],
)
def test_partition_on_of_an_enrichment(driver, store_factory, partition_on, keys_, labels):
    given = {"enrich": partition_on} if partition_on else None
    driver.build_cube(data=BOTH, cube=CUBE, store=store_factory, partition_on=given)
    assert header(store_factory, "cube++enrich")["partition_keys"] == keys_
    assert {label.rpartition("/")[0] for label in file_keys(store_factory, "cube++enrich")} == labels


def test_enrichment_without_partitions(driver, store_factory):
    data = {"seed": SEED, "enrich": ENRICH.drop(columns="p")}
    driver.build_cube(data=data, cube=CUBE, store=store_factory, partition_on={"enrich": []})
    assert header(store_factory, "cube++enrich")["partition_keys"] == []
    assert file_contents(store_factory, "cube++enrich") == [{"x": [0, 1], "v2": [20, 21]}]


def test_seed_may_have_another_name(driver, store_factory):
    cube = CUBE.copy(seed_dataset="main")
    driver.build_cube(data={"main": SEED, "seed": ENRICH}, cube=cube, store=store_factory)
    assert header(store_factory, "cube++main")["metadata"]["ktk_cube_is_seed"] is True
    assert header(store_factory, "cube++seed")["metadata"]["ktk_cube_is_seed"] is False


def test_a_single_frame_is_the_seed(driver, store_factory):
    assert set(driver.build_cube(data=SEED, cube=CUBE.copy(seed_dataset="main"), store=store_factory)) == {
        "main"
    }


def test_nulls_are_allowed_in_payload(driver, store_factory):
    seed = frame(x=[0, 1], p=[0, 1], v1=[1.0, None], v2=["a", None], v3=[None, None])
    driver.build_cube(data=seed, cube=CUBE, store=store_factory)
    assert rows(driver.query_cube(cube=CUBE, store=store_factory)) == as_dict(
        seed[["p", "v1", "v2", "v3", "x"]]
    )


# input of the eager façade -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        BOTH,
        [BOTH],
        [{"seed": SEED}, {"enrich": ENRICH}],
        [SEED, {"enrich": ENRICH}],
        [None, {"seed": SEED}, None, {"enrich": ENRICH, "seed": None}],
        [SEED.iloc[:1], {"enrich": ENRICH}, SEED.iloc[1:]],
        [SEED.iloc[:0], {"enrich": ENRICH, "seed": SEED}, {"enrich": ENRICH.iloc[:0]}],
        [SEED[["p", "x", "v1"]].iloc[:1], SEED.iloc[1:], {"enrich": ENRICH}],
    ],
    ids=["dict", "list", "split", "frame", "none", "concat", "empty", "column order"],
)
def test_forms_of_input(store_factory, data):
    api.build_cube(data=data, cube=CUBE, store=store_factory)
    found = rows(api.query_cube(cube=CUBE, store=store_factory))
    assert found == {"p": [0, 1], "v1": [10, 11], "v2": [20, 21], "x": [0, 1]}


def test_input_is_not_modified(store_factory):
    seed = pd.DataFrame({"x": [1, 0], "p": [0, 0], "v1": [1, 2]}, index=[5, 5])
    kept = seed.copy(deep=True)
    data = {"seed": seed}
    api.build_cube(data=data, cube=CUBE, store=store_factory)
    pd.testing.assert_frame_equal(seed, kept)
    assert list(data) == ["seed"] and data["seed"] is seed


def test_column_names_in_bytes_become_text(store_factory):
    api.build_cube(data=pd.DataFrame({b"x": [1], b"p": [0], b"v1": [2]}), cube=CUBE, store=store_factory)
    assert rows(api.query_cube(cube=CUBE, store=store_factory)) == {"p": [0], "v1": [2], "x": [1]}


def test_a_store_may_be_an_instance_or_a_url(tmp_path, store_factory):
    url = f"hfs://{tmp_path}/by-url?create_if_missing=true"
    for store in (store_factory(), url):
        api.build_cube(data=SEED, cube=CUBE, store=store)
        assert len(api.query_cube(cube=CUBE, store=store)) == 1


# refusals ----------------------------------------------------------------------------------------

NO_BUILD = {
    "seed missing": ({"data": {"enrich": ENRICH}}, ValueError, ["seed"]),
    "nothing": ({"data": []}, ValueError, ["seed"]),
    "not a frame": ({"data": {"seed": 1}}, TypeError, ["int"]),
    "sparse": ({"data": SEED.assign(v1=pd.arrays.SparseArray([0, 1]))}, TypeError, ["parse"]),
    "duplicate columns": (
        {"data": pd.DataFrame([[1, 2, 3, 4]], columns=["x", "p", "v1", "v1"])},
        ValueError,
        ["seed", "v1"],
    ),
    "seed without dimension": ({"data": frame(p=[1], v1=[1])}, ValueError, ["seed", "x"]),
    "enrichment without dimension": (
        {"data": {"seed": SEED, "enrich": frame(p=[1], v2=[1])}},
        ValueError,
        ["enrich", "x"],
    ),
    "partition column missing": ({"data": frame(x=[1], v1=[1])}, ValueError, ["seed", "p"]),
    "partition_on column missing": (
        {"data": BOTH, "partition_on": {"enrich": ["p", "q"]}},
        ValueError,
        ["enrich", "q"],
    ),
    "partition column not in partition_on": (
        {"data": BOTH, "partition_on": {"enrich": []}},
        ValueError,
        ["enrich", "p"],
    ),
    "seed partitioned otherwise": (
        {"data": SEED, "partition_on": {"seed": ["p", "v1"]}},
        ValueError,
        ["seed", "p"],
    ),
    "duplicates in partition_on": (
        {"data": BOTH, "partition_on": {"enrich": ["p", "p"]}},
        ValueError,
        ["enrich", "p"],
    ),
    "null in dimension": ({"data": frame(x=[1, None], p=[0, 0])}, ValueError, ["dimension", "x", "seed"]),
    "null in partition": ({"data": frame(x=[1, 2], p=["a", None])}, ValueError, ["partition", "p", "seed"]),
    "null in index": (
        {
            "data": {"seed": SEED, "enrich": ENRICH.assign(i1=["a", None])},
            "cube": CUBE.copy(index_columns=["i1"]),
        },
        ValueError,
        ["index", "i1", "enrich"],
    ),
    "metadata not a dict": ({"data": SEED, "metadata": 1}, TypeError, ["int"]),
    "metadata of a dataset not a dict": ({"data": SEED, "metadata": {"seed": 1}}, TypeError, ["seed", "int"]),
    "metadata of unknown datasets": ({"data": SEED, "metadata": {"b": {}, "a": {}}}, ValueError, ["a, b"]),
    "metadata that JSON does not know": (
        {"data": SEED, "metadata": {"seed": {"a": object()}}},
        TypeError,
        ["object"],
    ),
    "illegal dataset id": ({"data": {"seed": SEED, "a/b": ENRICH}}, ValueError, ["a/b"]),
    "separator in dataset id": ({"data": {"seed": SEED, "a++b": ENRICH}}, ValueError, ["a++b"]),
}


@pytest.mark.parametrize("arguments, exception, fragments", NO_BUILD.values(), ids=NO_BUILD.keys())
def test_wrong_input_is_refused_before_anything_is_written(
    driver, store_factory, arguments, exception, fragments
):
    with refuses(store_factory, exception, *fragments):
        driver.build_cube(**{"cube": CUBE, "store": store_factory, **arguments})


def test_frames_of_a_dataset_must_have_equal_columns(store_factory):
    with refuses(store_factory, ValueError, "seed", "v1", "v2"):
        api.build_cube(data=[SEED, SEED.rename(columns={"v1": "v2"})], cube=CUBE, store=store_factory)


@pytest.mark.parametrize("id_", ["seed", "enrich"])
def test_datasets_without_rows_are_not_written(driver, store_factory, id_):
    data = {**BOTH, id_: BOTH[id_].iloc[:0]}
    with aborts(store_factory, id_):
        driver.build_cube(data=data, cube=CUBE, store=store_factory)


def test_empty_frames_must_have_their_dimensions_too(driver, store_factory):
    with refuses(store_factory, ValueError, "seed", "x"):
        driver.build_cube(data=SEED[["p", "v1"]].iloc[:0], cube=CUBE, store=store_factory)


@pytest.mark.parametrize(
    "id_, df, fragments",
    [
        (
            "seed",
            frame(x=[7, 8, 7], p=[3, 3, 3], v1=["same", "other", "same"], v2=[41, 42, 43]),
            ["seed", "p, x", "3", "7", "v1", "same", "v2", "41", "43"],
        ),
        ("seed", frame(x=[7, 7], p=[3, 3], v1=[1, 1]), ["seed", "p, x", "3", "7", "v1"]),
        ("enrich", frame(x=[7, 7], p=[3, 3], v2=[51, 52]), ["enrich", "p, x", "3", "7", "v2", "51", "52"]),
    ],
    ids=["seed", "equal rows", "enrichment"],
)
def test_duplicate_cells_are_shown_and_refused(driver, store_factory, id_, df, fragments):
    data = {"seed": SEED, id_: df}
    if driver.checks_duplicates:
        with refuses(store_factory, ValueError, *fragments):
            driver.build_cube(data=data, cube=CUBE, store=store_factory)
    else:
        driver.build_cube(data=data, cube=CUBE, store=store_factory)
        stats = driver.collect_stats(cube=CUBE, store=store_factory)
        assert stats[id_]["rows"] == len(df)


@pytest.mark.parametrize(
    "values, dtype, equal",
    [
        ([None, None], "string", True),
        ([None, "a"], "string", False),
        ([None, None], "Int64", True),
        ([1, None], "Int64", False),
        ([None, None], "boolean", True),
        ([None, None], "Float64", True),
        ([float("nan"), float("nan")], "float64", True),
        ([None, None], "datetime64[ns]", True),
        ([None, [1]], object, False),
        ([[1, 2], [1, 2]], object, True),
        ([{"a": [1, 2]}, {"a": [1, 2]}], object, True),
        ([{"a": [1, 2]}, {"a": [1, 3]}], object, False),
    ],
)
def test_duplicate_cells_say_whether_missing_and_nested_payload_is_equal(store_factory, values, dtype, equal):
    df = frame(x=[0, 0], p=[0, 0], v1=pd.Series(values, dtype=dtype))
    with refuses(store_factory, ValueError, f"{'Equal' if equal else 'differing'} payload: v1"):
        api.build_cube(df, CUBE, store_factory)


def test_duplicate_cells_of_an_enrichment_are_those_of_its_own_dimensions(store_factory):
    cube = CUBE.copy(dimension_columns=["x", "y"])
    data = {"seed": SEED.assign(y=0), "enrich": frame(y=[1, 1], p=[0, 0], v2=[1, 2])}
    with refuses(store_factory, ValueError, "enrich", "p, y"):
        api.build_cube(data=data, cube=cube, store=store_factory)


def test_a_cell_may_occur_in_two_partitions(driver, store_factory):
    driver.build_cube(data=frame(x=[0, 0], p=[0, 1], v1=[1, 2]), cube=CUBE, store=store_factory)
    assert rows(driver.query_cube(cube=CUBE, store=store_factory)) == {"p": [0, 1], "v1": [1, 2], "x": [0, 0]}


@pytest.mark.parametrize(
    "enrich, fragments",
    [
        (ENRICH.rename(columns={"v2": "v1"}), ["v1", "enrich", "seed"]),
        (frame(x=["a"], p=[0], v2=[1]), ["x", "int64", "string"]),
        (frame(x=[0], p=["a"], v2=[1]), ["p", "int64", "string"]),
    ],
    ids=["payload twice", "dimension type", "partition type"],
)
def test_datasets_that_do_not_fit_are_rolled_back(driver, store_factory, enrich, fragments):
    with aborts(store_factory, *fragments):
        driver.build_cube(data={"seed": SEED, "enrich": enrich}, cube=CUBE, store=store_factory)
    assert dataset_ids(store_factory) == set()


# existing cubes ----------------------------------------------------------------------------------


@pytest.fixture
def built(driver, store_factory):
    """A store with a cube of two datasets."""
    driver.build_cube(
        data=BOTH, cube=CUBE.copy(index_columns=["v2"]), store=store_factory, metadata={"seed": {"old": 1}}
    )
    return store_factory


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("seed_exists", [True, False])
def test_no_partial_overwrite(driver, built, overwrite, seed_exists):
    if not seed_exists:
        built().delete(f"cube++seed{HEADER}json")
    with refuses(built, ValueError, "enrich"):
        driver.build_cube(data={"seed": SEED}, cube=CUBE, store=built, overwrite=overwrite)


def test_other_cubes_are_not_in_the_way(driver, built):
    before = snapshot(built)
    driver.build_cube(data=SEED, cube=CUBE.copy(uuid_prefix="cube2"), store=built)
    after = snapshot(built)
    assert {key: after[key] for key in before} == before


def test_overwrite_replaces_rows_schema_indices_and_metadata(driver, built):
    seed = frame(x=["a"], p=["b"], v3=[1.5])
    enrich = frame(x=["a"], p=["b"], v1=[True])
    data = {"seed": seed, "enrich": enrich, "new": frame(x=["a"], v4=[4])}
    driver.build_cube(
        data=data,
        cube=CUBE,
        store=built,
        overwrite=True,
        metadata={"seed": {"new": 2}},
        partition_on={"new": []},
    )
    found = rows(driver.query_cube(cube=CUBE, store=built))
    assert found == {"p": ["b"], "v1": [True], "v3": [1.5], "v4": [4], "x": ["a"]}
    assert index_columns(built, "cube++enrich") == set()
    stored = header(built, "cube++seed")["metadata"]
    assert stored["new"] == 2 and "old" not in stored
    check_integrity(built)


@pytest.mark.parametrize(
    "enrich, fragments",
    [
        (frame(x=["a"], p=[0], v2=[1]), ["x", "int64", "string"]),
        (ENRICH.rename(columns={"v2": "v1"}), ["v1"]),
    ],
    ids=["type", "payload"],
)
def test_failed_overwrite_restores_what_was_there(driver, built, enrich, fragments):
    cube = CUBE.copy(index_columns=["v2"])
    expected = rows(driver.query_cube(cube=cube, store=built))
    with aborts(built, *fragments):
        driver.build_cube(data={"seed": SEED, "enrich": enrich}, cube=CUBE, store=built, overwrite=True)
    check_integrity(built)
    assert rows(driver.query_cube(cube=cube, store=built)) == expected


def test_failed_overwrite_removes_the_datasets_that_are_new(driver, built):
    data = {"seed": SEED, "enrich": ENRICH, "new": frame(x=["a"], p=[0], v3=[1])}
    with aborts(built, "x"):
        driver.build_cube(data=data, cube=CUBE, store=built, overwrite=True)
    assert dataset_ids(built) == {"seed", "enrich"}


def test_the_cause_of_an_abort_is_kept(store_factory):
    with pytest.raises(MultiTableCommitAborted) as caught:
        api.build_cube(data=SEED.iloc[:0], cube=CUBE, store=store_factory)
    check_message(caught.value.__cause__, ("seed",))


def test_the_error_for_missing_partition_columns_tells_how_to_do_without():
    store = memory()
    data = {"seed": SEED, "enrich": ENRICH.drop(columns="p")}
    with pytest.raises(ValueError, match=r"unknown column p; .* With partition_on=\{'enrich': \[\]\} it is"):
        api.build_cube(data, CUBE, store)
    api.build_cube(data, CUBE, store, partition_on={"enrich": []})
    with pytest.raises(ValueError, match=r"unknown column p; available: v1, x$"):
        api.append_to_cube(SEED.drop(columns="p"), CUBE, store)
