"""Partition columns of cubes: none at all, and such that follow from dimensions."""

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.api import cube as api
from kartothek_cube.core.transforms import bucket, day, hash_values, hour, month, truncate, year
from kartothek_cube.io.eager import read_dataset_as_dataframes, update_dataset_from_dataframes
from tests.support.cubes import file_keys, frame, memory, refuses, rows
from tests.support.predicates import COMPARE

PLAIN = api.Cube(["x"], [], "cube", index_columns=["v2"])


DATA = {"seed": frame(x=[2, 0, 1], v1=[12, 10, 11]), "enrich": frame(x=[2, 0], v2=[22, 20])}


@pytest.fixture
def plain(driver, store_factory):
    """A store with a cube of two datasets without partition columns."""
    driver.build_cube(data=DATA, cube=PLAIN, store=store_factory)
    return store_factory


def test_a_cube_without_partition_columns_is_written_and_queried(driver, plain):
    assert api.discover_cube("cube", plain)[0] == PLAIN
    assert all("/" not in label for label in file_keys(plain, "cube++seed"))
    driver.append_to_cube(data=frame(x=[3, 2], v1=[13, -2]), cube=PLAIN, store=plain)
    expected = {"v1": [10, 11, -2, 13], "v2": [20, None, 22, None], "x": [0, 1, 2, 3]}
    assert rows(driver.query_cube(cube=PLAIN, store=plain)) == expected
    found = rows(driver.query_cube(cube=PLAIN, store=plain, conditions=api.C("v2") > 20))
    assert found == {"v1": [-2], "v2": [22], "x": [2]}
    driver.extend_cube(data={"other": frame(x=[1], v3=[31])}, cube=PLAIN, store=plain)
    frames = driver.query_cube(cube=PLAIN, store=plain, partition_by="x", payload_columns=["v3"])
    assert sorted(frame.iloc[0]["x"] for frame in frames) == [0, 1, 2, 3]
    assert driver.collect_stats(cube=PLAIN, store=plain)["seed"]["partitions"] == 1
    assert not api.verify_cube(PLAIN, plain).problems


def test_an_update_of_a_cube_without_partition_columns_replaces_all_rows(driver, plain):
    update = {"remove_conditions": "all", "ktk_cube_dataset_ids": ["seed"]}
    driver.update_cube(data={"seed": frame(x=[7], v1=[17])}, cube=PLAIN, store=plain, **update)
    assert rows(driver.query_cube(cube=PLAIN, store=plain)) == {"v1": [17], "v2": [None], "x": [7]}
    driver.remove_partitions(cube=PLAIN, store=plain, conditions="all")
    assert not driver.query_cube(cube=PLAIN, store=plain)


def test_files_of_a_cube_without_partition_columns_are_one_partition(store_factory):
    api.build_cube(DATA, PLAIN, store_factory)
    assert "partitioned by nothing" in repr(api.open_cube("cube", store_factory))
    with refuses(store_factory, ValueError, "none: all rows are one partition", ": x"):
        api.remove_partitions(PLAIN, store_factory, api.C("x") == 1)
    api.append_to_cube(frame(x=[2, 3], v1=[-2, 13]), PLAIN, store_factory)
    expected = api.query_cube(PLAIN, store_factory)
    counts = api.compact_cube(PLAIN, store_factory)["seed"]
    assert (counts["partitions"], counts["files_before"], counts["files_after"]) == (1, 2, 1)
    pd.testing.assert_frame_equal(*expected, *api.query_cube(PLAIN, store_factory))
    result = api.merge_into_cube(frame(x=[3, 4], v1=[-3, 14]), PLAIN, store_factory)
    found = (result.rows_updated, result.rows_inserted, len(file_keys(store_factory, "cube++seed")))
    assert found == (1, 1, 1)
    found = rows(api.query_cube(PLAIN, store_factory, api.C("x") > 1))
    assert found == {"v1": [-2, -3, 14], "v2": [22, None, None], "x": [2, 3, 4]}


# transforms ----------------------------------------------------------------------------------------

CUBE = api.Cube(["meter", "time"], [month("time")], "cube", suppress_index_on=["meter", "time"])
FEBRUARY, MARCH = pd.Timestamp("2024-02-01"), pd.Timestamp("2024-03-01")


def readings(*times: str, meter: int = 1) -> pd.DataFrame:
    """Give a frame of the seed with one row per time."""
    stamps = pd.DatetimeIndex([pd.Timestamp(time) for time in times])
    return pd.DataFrame({"meter": meter, "time": stamps, "v": np.arange(len(stamps))})


SEED = readings("2024-01-31 23:59:59.999999", "2024-02-01", "2024-02-29 12:00", "2024-03-01", "2024-03-31")


def partitions(store_factory, uuid: str = "cube++seed") -> list[str]:
    """Give the folders of the data files, sorted."""
    return sorted({label.rpartition("/")[0] for label in file_keys(store_factory, uuid)})


def test_the_partition_column_is_derived_from_the_dimension(driver, store_factory):
    driver.build_cube(data={"seed": SEED}, cube=CUBE, store=store_factory)
    assert partitions(store_factory) == ["time_month=2024-01", "time_month=2024-02", "time_month=2024-03"]
    assert api.discover_cube("cube", store_factory)[0] == CUBE
    (result,) = driver.query_cube(cube=CUBE, store=store_factory)
    assert result["time_month"].tolist() == ["2024-01", "2024-02", "2024-02", "2024-03", "2024-03"]
    condition = api.C("time").in_interval(FEBRUARY, MARCH)
    assert rows(driver.query_cube(cube=CUBE, store=store_factory, conditions=condition))["v"] == [1, 2]
    assert api.explain_query(CUBE, store_factory, condition).read_files == 1

    # what a query returns can be written, also to another dataset of the cube
    driver.append_to_cube(data=result.assign(v=result.v + 10), cube=CUBE, store=store_factory)
    driver.extend_cube(data={"more": SEED.assign(w=1).drop(columns="v")}, cube=CUBE, store=store_factory)
    update = {"remove_conditions": api.C("time_month") == "2024-02", "ktk_cube_dataset_ids": ["seed"]}
    driver.update_cube(data={"seed": readings("2024-02-02")}, cube=CUBE, store=store_factory, **update)
    (result,) = driver.query_cube(cube=CUBE, store=store_factory)
    assert result["v"].tolist() == [10, 0, 13, 14]
    assert api.explain_query(CUBE, store_factory, condition).read_files == 2
    assert not api.verify_cube(CUBE, store_factory).problems


def test_a_partition_column_with_other_values_is_refused(driver, store_factory):
    driver.build_cube(data={"seed": SEED}, cube=CUBE, store=store_factory)
    wrong = SEED.assign(time_month=["2024-01", "2024-02", "2024-03", "2024-03", "2024-03"])
    texts = ["'seed'", "time_month", "1 of", "'2024-03' where time is", "2024-02-29", "gives '2024-02'"]
    with refuses(store_factory, ValueError, *texts):
        driver.append_to_cube(data={"seed": wrong}, cube=CUBE, store=store_factory)


def test_nulls_of_the_dimension_are_refused(driver, store_factory):
    missing = SEED.assign(time=SEED.time.where(SEED.v > 0))
    with refuses(store_factory, ValueError, 'dimension column "time"', "1 of"):
        driver.build_cube(data={"seed": missing}, cube=CUBE, store=store_factory)


def test_the_record_of_the_cube_counts_for_writes(store_factory):
    api.build_cube(SEED, CUBE, store_factory)
    plain = CUBE.copy(partition_columns=["time_month"])
    assert rows(api.query_cube(plain, store_factory))["v"] == [0, 1, 2, 3, 4]
    api.append_to_cube(readings("2024-05-01"), plain, store_factory)
    assert partitions(store_factory)[-1] == "time_month=2024-05"
    other = CUBE.copy(partition_columns=[day("time", name="time_month")])
    with refuses(store_factory, ValueError, "month('time')", "day('time', name='time_month')"):
        api.append_to_cube(SEED, other, store_factory)


def test_a_dataset_without_the_dimension_needs_partition_columns_of_its_own(store_factory):
    meters = pd.DataFrame({"meter": [1], "place": "Rom"})
    with refuses(store_factory, ValueError, "'meters'", "month('time') needs time"):
        api.build_cube({"seed": SEED, "meters": meters}, CUBE, store_factory)
    api.build_cube({"seed": SEED, "meters": meters}, CUBE, store_factory, partition_on={"meters": []})
    assert api.query_cube(CUBE, store_factory, api.C("time") > MARCH)[0]["place"].tolist() == ["Rom"]


@pytest.mark.parametrize("is_flagged", [False, True])
def test_merges_derive_the_partition_column(store_factory, is_flagged):
    api.build_cube(SEED, CUBE, store_factory)
    changes = readings("2024-02-01", "2024-06-01").assign(is_gone=[is_flagged, False])
    result = api.merge_into_cube(changes, CUBE, store_factory, delete_column="is_gone")
    assert (result.rows_inserted, result.rows_updated + result.rows_deleted) == (1, 1)
    assert result.partitions["partition"].to_pylist() == ["time_month=2024-02", "time_month=2024-06"]
    assert not api.verify_cube(CUBE, store_factory).problems


@pytest.mark.parametrize("partition_columns", [[], [month("time")], [day("time"), bucket(2, "meter")]])
def test_operations_know_partition_columns_of_all_kinds(store_factory, partition_columns):
    cube = CUBE.copy(partition_columns=partition_columns)
    api.build_cube(SEED, cube, store_factory)
    n_partitions = len(partitions(store_factory))

    def double(cells: pd.DataFrame) -> pd.DataFrame:
        return cells[["meter", "time"]].assign(double=2 * cells["v"])

    assert api.compute_dataset(double, cube, store_factory, "computed").n_partitions == n_partitions
    api.append_to_cube(SEED[:1].assign(v=7), cube, store_factory)
    assert api.compute_dataset(double, cube, store_factory, "computed").n_partitions == 1
    api.delete_rows(cube, store_factory, api.C("time").in_interval(FEBRUARY, MARCH))
    result = api.query_cube_df(cube, store_factory)
    assert (result["v"].tolist(), result["double"].tolist()) == ([7, 3, 4], [14, 6, 8])
    assert not api.verify_cube(cube, store_factory).problems


def test_rows_that_other_software_has_put_into_a_wrong_partition_are_found(store_factory):
    api.build_cube(SEED, CUBE, store_factory)
    wrong = SEED.assign(time_month="2024-01")
    update_dataset_from_dataframes([wrong], store_factory, "cube++seed")
    problems = api.verify_cube(CUBE, store_factory).problems
    assert {"wrong-partition"} <= {problem.kind for problem in problems}
    assert "2024-01" in next(p.message for p in problems if p.kind == "wrong-partition")


@pytest.mark.parametrize("engine", ["polars", "sql", "arrow", "dataset"])
def test_filters_of_datasets_and_other_engines_prune_partitions(tmp_path, engine):
    store = f"hfs://{tmp_path}"
    api.build_cube(SEED, CUBE, store)
    # no query may open them
    for file in (tmp_path / "cube++seed").rglob("*.parquet"):
        if "time_month=2024-02" not in str(file) and "table" in str(file):
            file.write_bytes(b"")
    condition = (pl.col("time") >= FEBRUARY) & (pl.col("time") < MARCH)
    if engine == "polars":
        values = api.scan_cube(CUBE, store).filter(condition).collect()["v"].to_list()
    elif engine == "arrow":
        field = pa.compute.field("time")
        table = api.cube_dataset(CUBE, store).to_table(filter=(field >= FEBRUARY) & (field < MARCH))
        values = table["v"].to_pylist()
    elif engine == "dataset":
        predicates = [[("time", ">=", FEBRUARY), ("time", "<", MARCH)]]
        (df,) = read_dataset_as_dataframes("cube++seed", store, predicates=predicates)
        values = df["v"].tolist()
    else:
        query = "SELECT v FROM cube WHERE time >= '2024-02-01' AND time < '2024-03-01' ORDER BY v"
        values = api.connect(CUBE, store).sql(query).fetchnumpy()["v"].tolist()
    assert values == [1, 2]


def test_a_shuffle_of_dask_collects_the_rows_of_a_partition(store_factory):
    data = dd.from_pandas(pd.concat([SEED, SEED.assign(meter=2)], ignore_index=True), npartitions=3)
    dask.compute(api.build_cube_from_dataframe(data, CUBE, store_factory, shuffle=True), scheduler="sync")
    assert len(file_keys(store_factory, "cube++seed")) == 3
    assert not api.verify_cube(CUBE, store_factory).problems


# a cube with transforms, and one whose partition columns are made by hand -------------------------

DAYS = pd.date_range("2023-11-15", periods=40, freq="53h")
NAMES = ["", "a", "ab", "abc", "abd", "b", "ba", "Köln", "Kö", "z" * 9]


def _hash(text: str, n: int) -> int:
    return int(hash_values(pa.array([text]))[0] & 0x7FFFFFFF) % n


TRANSFORMS = {
    year("time"): lambda df: df.time.dt.year,
    month("time"): lambda df: df.time.dt.strftime("%Y-%m"),
    day("time"): lambda df: df.time.dt.date,
    hour("time"): lambda df: df.time.dt.strftime("%Y-%m-%dT%H"),
    truncate(10, "number"): lambda df: df.number // 10 * 10,
    truncate(2, "name"): lambda df: df.name_.str[:2],
    bucket(4, "name"): lambda df: [_hash(text, 4) for text in df["name"]],
    bucket(4, "number"): lambda df: [int(bucket(4, "n").apply(pa.array([n]))[0].as_py()) for n in df.number],
}
VALUES = {
    "time": st.sampled_from([*DAYS, MARCH, FEBRUARY, pd.Timestamp("2024-01-01")]),
    "number": st.integers(-30, 95),
    "name": st.sampled_from([*NAMES, "K", "zz"]),
}
DIMENSIONS = list(VALUES)


@st.composite
def conditions(draw, depth: int = 2):
    """Random conditions on the dimensions."""
    if depth and draw(st.booleans()):
        left, right = draw(conditions(depth=depth - 1)), draw(conditions(depth=depth - 1))
        return left & right if draw(st.booleans()) else left | right
    column = draw(st.sampled_from(DIMENSIONS))
    first, second = draw(VALUES[column]), draw(VALUES[column])
    c = api.C(column)
    made = [compare(c, first) for compare in COMPARE.values()]
    made += [
        c.isin([first, second]),
        c.between(first, second),
        c.in_interval(first, second),
        ~c.isin([first]),
    ]
    return draw(st.sampled_from(made))


@pytest.fixture(scope="module")
def twins():
    """For each transform a store with a cube, and one with the same cube without the transform."""
    df = pd.DataFrame({"time": DAYS, "number": np.arange(len(DAYS)) * 7 % 120 - 25})
    df["name"] = [NAMES[i % len(NAMES)] for i in range(len(df))]
    df["v"] = np.arange(len(df))
    store = memory()
    cubes = {}
    for number, (transform, make) in enumerate(TRANSFORMS.items()):
        cube = api.Cube(DIMENSIONS, [transform], f"derived{number}", suppress_index_on=DIMENSIONS)
        by_hand = api.Cube(DIMENSIONS, [transform.name], f"made{number}", suppress_index_on=DIMENSIONS)
        api.build_cube(df, cube, store)
        api.build_cube(df.assign(**{transform.name: make(df.assign(name_=df["name"]))}), by_hand, store)
        cubes[transform] = cube, by_hand
    return store, cubes


@pytest.mark.slow("many random queries")
@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
@settings(max_examples=40)
@given(condition=conditions())
def test_queries_give_the_rows_of_a_cube_whose_partition_column_is_made_by_hand(twins, transform, condition):
    store, cubes = twins
    cube, by_hand = cubes[transform]
    expected = api.query_cube_df(by_hand, store, condition)
    pd.testing.assert_frame_equal(api.query_cube_df(cube, store, condition), expected)
    read = api.explain_query(cube, store, condition).read_files
    limit = api.explain_query(by_hand, store, condition).read_files
    assert expected[transform.name].nunique() <= read <= limit


TIME, NUMBER, NAME = map(api.C, ("time", "number", "name"))
PRUNING = [
    (year("time"), TIME < "2024-01-01"),
    (month("time"), TIME.in_interval("2023-12-01", "2024-02-01")),
    (month("time"), (TIME < "2023-12-01") | (TIME >= "2024-01-31")),
    (day("time"), TIME.between("2024-01-01", "2024-01-05 23:59")),
    (hour("time"), TIME.isin([DAYS[7]])),
    (truncate(10, "number"), (NUMBER >= 10) & (NUMBER < 30)),
    *((truncate(2, "name"), NAME.startswith("ab")), (truncate(2, "name"), NAME == "abc")),
    *((bucket(4, "name"), NAME == "abc"), (bucket(4, "number"), NUMBER == 17)),
]


@pytest.mark.parametrize("transform, condition", PRUNING, ids=str)
def test_only_files_are_read_that_can_have_rows(twins, transform, condition):
    store, cubes = twins
    cube, by_hand = cubes[transform]
    explained = api.explain_query(cube, store, condition)
    expected = api.query_cube_df(by_hand, store, condition)[transform.name].nunique()
    assert explained.read_files == expected < api.explain_query(by_hand, store, condition).read_files
    assert "partition key" in {pruning.by for pruning in explained.datasets[0].conditions}


def test_a_merge_names_the_dimension_of_which_a_column_is_derived():
    cube, store = api.Cube(["x", "t"], [month("t")], "cube"), memory()
    data = frame(x=[0], t=pd.to_datetime(["2024-01-31"]), v=[1])
    api.build_cube(data, cube, store)
    with refuses(lambda: store, ValueError, "unknown column t; available: v, x. A merge may leave out"):
        api.merge_into_cube(data.drop(columns="t"), cube, store)
    others = {"collect": pl.from_pandas(data).lazy(), "to_table": pads.dataset(pa.Table.from_pandas(data))}
    for method, other in others.items():
        with refuses(lambda: store, TypeError, f"but got {type(other).__name__}; call {method}()"):
            api.append_to_cube(other, cube, store)
