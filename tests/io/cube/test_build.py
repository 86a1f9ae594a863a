"""Building a cube: input, what is stored, refusals, overwriting and rollback."""

import re

import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.serialization import ParquetSerializer
from tests.support import cubes
from tests.support.cube_facades import PARTS
from tests.support.cubes import BOTH, CUBE, ENRICH, SEED, aborts, frame, header, keys, refuses, rows, wrong

NAME = "[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{16}"
INDEX = r"indices/{}/\d{{4}}-\d\d-\d\dT\d\d%3A\d\d%3A\d\d(\.\d{{6}})?\.by-dataset-index\.parquet"


# what is stored ----------------------------------------------------------------------------------


def test_a_dataset_is_a_header_a_schema_indices_and_files(driver, store_factory):
    result = driver.build_cube(data=BOTH, cube=CUBE, store=store_factory)
    assert set(result) == {"seed", "enrich"}
    patterns = [r"cube\+\+seed/" + INDEX.format("x")]
    for id_, dataset in result.items():
        assert dataset == DatasetMetadata.load_from_store(f"cube++{id_}", store_factory())
        stored = header(store_factory, f"cube++{id_}")
        assert stored["dataset_uuid"] == f"cube++{id_}"
        assert stored["dataset_metadata_version"] == 4
        assert stored["partition_keys"] == ["p"]
        assert [set(part["files"]) for part in stored["partitions"].values()] == [{"table"}, {"table"}]
        names = [r"\.by-dataset-metadata\.json", "/table/_common_metadata"]
        names += [rf"/table/p={p}/{NAME}\.parquet" for p in (0, 1)]
        patterns += [rf"cube\+\+{id_}{name}" for name in names]
    found = keys(store_factory)
    assert len(found) == len(patterns)
    assert all(any(re.fullmatch(pattern, key) for key in found) for pattern in patterns)
    cubes.check_integrity(store_factory)


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
        ({"suppress_index_on": ["x"]}, None, {"y"}, set()),
        ({"suppress_index_on": ["x", "y"]}, None, set(), set()),
        ({"index_columns": ["v1", "v2"]}, None, {"x", "y", "v1"}, {"v2"}),
        ({"index_columns": ["v2", "v3"]}, {"enrich": ["p", "v2"]}, {"x", "y"}, {"v3"}),
    ],
)
def test_indices_of_datasets(driver, store_factory, changes, partition_on, seed_indices, enrich_indices):
    cube = CUBE.copy(dimension_columns=["x", "y"], **changes)
    data = {"seed": SEED.assign(y=[3, 4]), "enrich": ENRICH.assign(y=[3, 4], v3=[5, 6])}
    driver.build_cube(data=data, cube=cube, store=store_factory, partition_on=partition_on)
    assert cubes.index_columns(store_factory, "cube++seed") == seed_indices
    assert cubes.index_columns(store_factory, "cube++enrich") == enrich_indices
    cubes.check_integrity(store_factory, cube)


def test_rows_of_a_file_are_sorted_by_dimensions_in_cube_order(driver, store_factory):
    cube = CUBE.copy(dimension_columns=["y", "x"])
    seed = frame(v1=[1, 2, 3, 4], x=[1, 0, 1, 0], p=[0] * 4, y=[1, 1, 0, 0]).set_axis([7, 7, 3, 1])
    driver.build_cube(data=seed, cube=cube, store=store_factory)
    (content,) = cubes.file_contents(store_factory, "cube++seed")
    assert content == {"v1": [4, 3, 2, 1], "x": [0, 1, 0, 1], "y": [0, 0, 1, 1]}


def test_partition_columns_are_in_the_label_only(driver, store_factory):
    cube = CUBE.copy(partition_columns=["p", "q"])
    driver.build_cube(data=frame(x=[0], p=["a/b"], q=[1], v1=[1]), cube=cube, store=store_factory)
    ((label, content),) = cubes.files(store_factory, "cube++seed").items()
    assert re.fullmatch(f"p=a%2Fb/q=1/{NAME}", label)
    assert content == {"x": [0], "v1": [1]}


@pytest.mark.parametrize(
    "serializer, compression, row_groups",
    [(None, "ZSTD", 1), (ParquetSerializer(compression="SNAPPY", chunk_size=1), "SNAPPY", 2)],
)
def test_serializer(driver, store_factory, serializer, compression, row_groups):
    seed = frame(x=[0, 1], p=[0, 0], v1=[1, 2])
    driver.build_cube(data=seed, cube=CUBE, store=store_factory, df_serializer=serializer)
    (key,) = cubes.file_keys(store_factory, "cube++seed").values()
    footer = cubes.read_parquet(store_factory, key).metadata
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
    assert {label.rpartition("/")[0] for label in cubes.file_keys(store_factory, "cube++enrich")} == labels


def test_seed_may_have_another_name(driver, store_factory):
    cube = CUBE.copy(seed_dataset="main")
    driver.build_cube(data={"main": SEED, "seed": ENRICH}, cube=cube, store=store_factory)
    for id_ in ("main", "seed"):
        assert header(store_factory, f"cube++{id_}")["metadata"]["ktk_cube_is_seed"] == (id_ == "main")
    # a single frame is the seed
    other = cube.copy(uuid_prefix="other")
    assert set(driver.build_cube(data=SEED, cube=other, store=store_factory)) == {"main"}


LISTS = pa.list_(pa.int64())


@pytest.mark.parametrize("build", PARTS)
@pytest.mark.parametrize(
    "empty, value, dtype",
    [
        ([], [1], LISTS),
        ([[]], [["a"]], pa.list_(pa.list_(pa.string()))),
        ({"a": None, "b": [2]}, {"a": 1, "b": []}, pa.struct([("a", pa.int64()), ("b", LISTS)])),
    ],
    ids=["list", "lists", "struct"],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_part_of_the_input_may_lack_the_types_of_nested_values(
    store_factory, build, empty, value, dtype, order
):
    """Its file has another type than the schema, which reads, checks and later writes do not show."""
    parts = [pd.DataFrame({"x": [x], "p": 0, "v1": [v]}) for x, v in enumerate([empty, value])]
    PARTS[build]("build_cube", parts[::order], cube=CUBE, store=store_factory)

    def check(values):
        assert api.verify_cube(CUBE, store_factory).ok
        for condition in (None, api.C("x") == 0, api.C("x") == 1):
            table = api.query_cube_table(CUBE, store_factory, condition)
            assert table.schema.field("v1").type == dtype
            assert table["v1"].to_pylist() == [
                v for x, v in enumerate(values) if condition is None or condition.value == x
            ]

    check([empty, value])
    api.append_to_cube(parts[0].assign(x=2), CUBE, store_factory)
    api.merge_into_cube(parts[1].assign(x=0), CUBE, store_factory)
    check([value, value, empty])
    api.compact_cube(CUBE, store_factory, min_files=1)
    check([value, value, empty])


# input of the eager façade -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        BOTH,
        [BOTH],
        [{"seed": SEED}, {"enrich": ENRICH}],
        [SEED, {"enrich": ENRICH}],
        [None, {"seed": SEED}, None, {"enrich": ENRICH, "seed": None}],
        [SEED.iloc[:0], {"enrich": ENRICH, "seed": SEED}, {"enrich": ENRICH.iloc[:0]}],
        [SEED[["p", "x", "v1"]].iloc[:1], SEED.iloc[1:], {"enrich": ENRICH}],
        {"seed": [SEED[:1], SEED[1:]], "enrich": [None, ENRICH]},
    ],
    ids=["dict", "list", "split", "frame", "none", "empty", "column order", "lists in a dict"],
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


# refusals ----------------------------------------------------------------------------------------

NO_DICT = "metadata should be a dict of dataset id to dict, but is list"
NO_JSON = "metadata for dataset seed cannot be stored as JSON"
REPEATED = frame(x=[7, 8, 7], p=[3, 3, 3], v1=["same", "other", "same"], v2=[41, 42, 43])
EQUAL, DIFFERENT = frame(x=[7, 7], p=[3, 3], v1=[1, 1]), frame(x=[7, 7], p=[3, 3], v2=[51, 52])
REPEATED_Y = {"seed": SEED.assign(y=0), "enrich": frame(y=[1, 1], p=[0, 0], v2=[1, 2])}
NULL_IN_INDEX = {"seed": SEED, "enrich": ENRICH.assign(v2=["a", None])}
NO_BUILD = {
    "seed missing": wrong("seed", data={"enrich": ENRICH}),
    "nothing": wrong("seed", data=[]),
    "sparse": wrong("parse", error=TypeError, data=SEED.assign(v1=pd.arrays.SparseArray([0, 1]))),
    "duplicate columns": wrong(
        "seed", "v1", data=pd.DataFrame([[1, 2, 3, 4]], columns=["x", "p", "v1", "v1"])
    ),
    "seed without dimension": wrong("seed", "x", data=frame(p=[1], v1=[1])),
    "empty seed without dimension": wrong("seed", "x", data=SEED[["p", "v1"]].iloc[:0]),
    "enrichment without dimension": wrong("enrich", "x", data={"seed": SEED, "enrich": frame(p=[1], v2=[1])}),
    "partition column missing": wrong("seed", "p", data=frame(x=[1], v1=[1])),
    "partition_on column missing": wrong("enrich", "q", data=BOTH, partition_on={"enrich": ["p", "q"]}),
    "partition column not in partition_on": wrong("enrich", "p", data=BOTH, partition_on={"enrich": []}),
    "seed partitioned otherwise": wrong("seed", "p", data=SEED, partition_on={"seed": ["p", "v1"]}),
    "null in dimension": wrong("dimension", "x", "seed", data=frame(x=[1, None], p=[0, 0])),
    "null in partition": wrong("partition", "p", "seed", data=frame(x=[1, 2], p=["a", None])),
    "null in index": wrong("index", "v2", "enrich", data=NULL_IN_INDEX, cube=CUBE.copy(index_columns=["v2"])),
    "metadata not a dict": wrong(NO_DICT, error=TypeError, data=SEED, metadata=[("seed", {})]),
    "of a dataset": wrong(
        "for dataset seed should be a dict, but", error=TypeError, data=SEED, metadata={"seed": 1}
    ),
    "metadata of unknown datasets": wrong("a, b", data=SEED, metadata={"b": {}, "a": {}}),
    "metadata that JSON does not know": wrong(
        NO_JSON, error=TypeError, data=SEED, metadata={"seed": {"a": {1}}}
    ),
    "duplicate cells": wrong("seed", "p, x", "3", "7", "v1", "same", "v2", "41", "43", data=REPEATED),
    "equal rows": wrong("seed", "p, x", "3", "7", "v1", data=EQUAL),
    "duplicate cells of an enrichment": wrong(
        *("enrich", "p, x", "3", "7", "v2", "51", "52"), data={"seed": SEED, "enrich": DIFFERENT}
    ),
    "duplicate cells of its own dimensions": wrong(
        "enrich", "p, y", data=REPEATED_Y, cube=CUBE.copy(dimension_columns=["x", "y"])
    ),
    "illegal dataset id": wrong("a/b", data={"seed": SEED, "a/b": ENRICH}),
    "separator in dataset id": wrong("a++b", data={"seed": SEED, "a++b": ENRICH}),
}


@pytest.mark.parametrize("expected, arguments", NO_BUILD.values(), ids=NO_BUILD.keys())
def test_wrong_input_is_refused_before_anything_is_written(driver, store_factory, expected, arguments):
    with refuses(store_factory, *expected):
        driver.build_cube(**{"cube": CUBE, "store": store_factory, **arguments})


def test_frames_of_a_dataset_must_have_equal_columns(store_factory):
    with refuses(store_factory, ValueError, "seed", "v1", "v2"):
        api.build_cube(data=[SEED, SEED.rename(columns={"v1": "v2"})], cube=CUBE, store=store_factory)


@pytest.mark.parametrize(
    "values, dtype, equal",
    [
        *(
            ([None, None], dtype, True)
            for dtype in ("string", "Int64", "boolean", "Float64", "datetime64[ns]")
        ),
        ([None, "a"], "string", False),
        ([1, None], "Int64", False),
        ([float("nan"), float("nan")], "float64", True),
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


def test_a_cell_may_occur_in_two_partitions(driver, store_factory):
    driver.build_cube(data=frame(x=[0, 0], p=[0, 1], v1=[1, 2]), cube=CUBE, store=store_factory)
    assert rows(driver.query_cube(cube=CUBE, store=store_factory)) == {"p": [0, 1], "v1": [1, 2], "x": [0, 0]}


UNFIT = {
    "payload twice": ({"enrich": ENRICH.rename(columns={"v2": "v1"})}, ["v1", "enrich", "seed"]),
    "dimension type": ({"enrich": frame(x=["a"], p=[0], v2=[1])}, ["x", "int64", "string"]),
    "partition type": ({"enrich": frame(x=[0], p=["a"], v2=[1])}, ["p", "int64", "string"]),
    "no rows": ({"enrich": ENRICH.iloc[:0]}, ["enrich"]),
    "no rows of the seed": ({"seed": SEED.iloc[:0]}, ["seed"]),
}


@pytest.mark.parametrize("unfit, fragments", UNFIT.values(), ids=UNFIT)
def test_datasets_that_do_not_fit_are_rolled_back(driver, store_factory, unfit, fragments):
    with aborts(store_factory, *fragments):
        driver.build_cube(data={**BOTH, **unfit}, cube=CUBE, store=store_factory)


# existing cubes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("seed_exists", [True, False])
def test_no_partial_overwrite(driver, built, overwrite, seed_exists):
    if not seed_exists:
        built().delete(f"cube++seed{cubes.HEADER}json")
    with refuses(built, ValueError, "enrich"):
        driver.build_cube(data={"seed": SEED}, cube=CUBE, store=built, overwrite=overwrite)


def test_other_cubes_are_not_in_the_way(driver, built):
    before = cubes.snapshot(built)
    driver.build_cube(data=SEED, cube=CUBE.copy(uuid_prefix="cube2"), store=built)
    after = cubes.snapshot(built)
    assert {key: after[key] for key in before} == before


def test_overwrite_replaces_rows_schema_indices_and_metadata(driver, built):
    indexed = CUBE.copy(index_columns=["v2"])
    driver.build_cube(data=BOTH, cube=indexed, store=built, overwrite=True, metadata={"seed": {"old": 1}})
    key = {"x": ["a"], "p": ["b"]}
    data = {"seed": frame(**key, v3=[1.5]), "enrich": frame(**key, v1=[True]), "new": frame(x=["a"], v4=[4])}
    arguments = {"overwrite": True, "metadata": {"seed": {"new": 2}}, "partition_on": {"new": []}}
    driver.build_cube(data=data, cube=CUBE, store=built, **arguments)
    found = rows(driver.query_cube(cube=CUBE, store=built))
    assert found == {"p": ["b"], "v1": [True], "v3": [1.5], "v4": [4], "x": ["a"]}
    assert cubes.index_columns(built, "cube++enrich") == set()
    stored = header(built, "cube++seed")["metadata"]
    assert stored["new"] == 2 and "old" not in stored
    cubes.check_integrity(built)


@pytest.mark.parametrize("unfit, fragments", [UNFIT["dimension type"], UNFIT["payload twice"]])
def test_failed_overwrite_restores_what_was_there(driver, built, unfit, fragments):
    expected = rows(driver.query_cube(cube=CUBE, store=built))
    data = {**BOTH, **unfit, "new": frame(x=[0], p=[0], v3=[1])}
    with aborts(built, *fragments):
        driver.build_cube(data=data, cube=CUBE, store=built, overwrite=True)
    assert rows(driver.query_cube(cube=CUBE, store=built)) == expected


def test_the_error_for_missing_partition_columns_tells_how_to_do_without():
    store = cubes.memory()
    data = {"seed": SEED, "enrich": ENRICH.drop(columns="p")}
    text = r"unknown column p; .* A build or extension with partition_on=\{'enrich': \[\]\} needs none"
    with pytest.raises(ValueError, match=text):
        api.build_cube(data, CUBE, store)
    api.build_cube(data, CUBE, store, partition_on={"enrich": []})
    with pytest.raises(ValueError, match=r"unknown column p; available: v1, x$"):
        api.append_to_cube(SEED.drop(columns="p"), CUBE, store)
