"""Input that no cube can hold: each kind of mistake has its own answer, and leaves the store empty."""

import datetime

import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.api.discover import discover_datasets
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io import eager_cube
from kartothek_cube.io.arrow import read_table_arrow
from kartothek_cube.io.arrow_cube import query_cube_arrow
from kartothek_cube.io.eager import store_dataframes_as_dataset
from kartothek_cube.io.opened_cube import open_cube
from tests.support.cubes import CUBE, frame, refuses, unchanged

DATE = datetime.date(2020, 1, 1)
FRAME = pd.DataFrame({"x": [0, 1], "p": [0, 0], "v1": [1, 2]})


@pytest.mark.parametrize(
    "data, exception, fragment",
    [
        (FRAME.assign(v1=[1j, 2j]), TypeError, "^Column 'v1' of type complex128 cannot be stored"),
        (FRAME.assign(v1=[1, "a"]), ValueError, "^Column 'v1' holds values of several types"),
        (FRAME.assign(v1=pd.to_timedelta([1, 2], unit="s")), TypeError, "v1"),
        (FRAME.assign(v1=[DATE, datetime.datetime(2020, 1, 2, 5)]), ValueError, "'v1' mixes dates with"),
        (FRAME.assign(x=[DATE, pd.Timestamp(DATE, tz="UTC")]), ValueError, "'x' mixes dates with"),
        (
            FRAME.assign(v1=[{"a": [DATE]}, {"a": [datetime.datetime(2020, 1, 2, 5)]}]),
            ValueError,
            "'v1.a' mixes dates with",
        ),
        (
            FRAME.assign(v1=[{"a": {"b": DATE}}, {b"a": {b"b": datetime.datetime(2020, 1, 2, 5)}}]),
            ValueError,
            "'v1.a.b' mixes dates with",
        ),
        (FRAME.assign(v1=[{DATE}, {datetime.datetime(2020, 1, 2, 5)}]), ValueError, "'v1' mixes dates with"),
        (
            FRAME.assign(v1=pd.Categorical([DATE, datetime.datetime(2020, 1, 2, 5)])),
            ValueError,
            "'v1' mixes dates with",
        ),
        (
            FRAME.assign(v1=[[pd.Timestamp(DATE, tz="UTC")], [pd.Timestamp(DATE)]]),
            ValueError,
            "'v1' mixes timestamps with and without time zone",
        ),
        (FRAME.assign(v1=[-1, 2**63]), ValueError, "'v1' has integers that no type of 64 bits"),
        (FRAME.assign(v1=[[1], [2**64]]), ValueError, "'v1' has integers that no type of 64 bits"),
        (FRAME.assign(p=[[1], [2]]), TypeError, 'partition column "p"'),
        (FRAME.assign(x=[[1], [2]]), TypeError, 'dimension column "x"'),
        ({"seed": FRAME["x"]}, TypeError, "Series"),
        ({"seed": {"x": [1]}}, TypeError, "dict"),
        ("seed", TypeError, "str"),
        (3, TypeError, "int"),
    ],
    ids=[
        "complex",
        "mixed",
        "duration",
        "date and time",
        "date and zone",
        "date and time in record",
        "date and time by bytes",
        "date and time in set",
        "date and time in categories",
        "zones in list",
        "both signs",
        "large in list",
        "nested partition",
        "nested dimension",
        "series",
        "dict",
        "text",
        "number",
    ],
)
def test_wrong_values(store_factory, data, exception, fragment):
    with pytest.raises(exception, match=fragment):
        eager_cube.build_cube(data, CUBE, store_factory)
    assert open_blobs(store_factory).list("") == []


@pytest.mark.parametrize(
    "operation",
    [
        lambda cube, store: eager_cube.build_cube(FRAME, cube, store),
        lambda cube, store: eager_cube.query_cube(cube, store),
        lambda cube, store: eager_cube.remove_partitions(cube, store),
        lambda cube, store: eager_cube.delete_cube(cube, store),
        lambda cube, store: eager_cube.cleanup_cube(cube, store),
        lambda cube, store: eager_cube.collect_stats(cube, store),
        lambda cube, store: discover_datasets(cube, store),
        lambda cube, store: open_cube(cube, store),
    ],
    ids=["build", "query", "remove", "delete", "cleanup", "stats", "discover", "open"],
)
def test_what_is_no_cube(store_factory, operation):
    with pytest.raises(TypeError, match="expected a Cube or the name of a stored one, got int"):
        operation(5, store_factory)


def test_an_index_of_several_levels_is_ignored_like_any_other(store_factory):
    df = FRAME.set_index(pd.MultiIndex.from_tuples([("a", 1), ("b", 2)]))
    eager_cube.build_cube(df, Cube(["x"], ["p"], "cube"), store_factory)
    assert eager_cube.query_cube(CUBE, store_factory)[0]["v1"].tolist() == [1, 2]


# elements in another order than the rows, shared ones, and some that no row has
VIEWS = pa.table(
    {
        "x": pa.array([0, 1, 2]),
        "p": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([0, 1])),
        "v1": pa.ListViewArray.from_arrays([4, 0, 1], [1, 2, 2], [1, 2, 3, 4, 5]),
        "v2": pa.array([[1.5], None, []], pa.large_list_view(pa.float64())),
        "v3": pa.array([{"a": ["b"]}, None, {"a": None}], pa.struct([("a", pa.list_view(pa.string_view()))])),
    }
)


@pytest.mark.parametrize("form", [lambda t: t, lambda t: t.to_batches()[0], lambda t: t.to_reader()])
def test_views_and_runs_are_stored_as_what_they_show(store_factory, form):
    expected = VIEWS.to_pylist()
    eager_cube.build_cube(form(VIEWS), CUBE, store_factory)
    assert query_cube_arrow(CUBE, store_factory)[0].select(VIEWS.column_names).to_pylist() == expected
    store_dataframes_as_dataset(store_factory, "u", [form(VIEWS)], partition_on=["p"])
    assert read_table_arrow("u", store_factory).select(VIEWS.column_names).to_pylist() == expected


def test_dates_among_midnights_are_dates(store_factory):
    days = [DATE, pd.Timestamp("2020-01-02"), datetime.datetime(2020, 1, 3), pd.NaT]
    eager_cube.build_cube(pd.DataFrame({"x": range(4), "p": 0, "v1": days}), CUBE, store_factory)
    found = query_cube_arrow(CUBE, store_factory)[0]["v1"].to_pylist()
    assert found == [datetime.date(2020, 1, day) for day in (1, 2, 3)] + [None]


def test_a_view_is_no_key(store_factory):
    data = pa.table({"x": VIEWS["v1"], "p": [0, 0, 1]})
    with pytest.raises(TypeError, match='dimension column "x"'):
        eager_cube.build_cube(data, CUBE, store_factory)
    assert open_blobs(store_factory).list("") == []


def test_zones_in_maps_are_not_mixed(store_factory):
    times = pa.map_(pa.string(), pa.timestamp("us", "UTC"))
    stamp = pd.Timestamp(DATE)
    table = pa.table({"x": [0], "p": [0], "v1": pa.array([[("a", stamp)]], times)})
    eager_cube.build_cube(table, CUBE, store_factory)
    mixed = FRAME.assign(v1=[[("a", stamp.tz_localize("UTC"))], {"a": stamp}])
    with pytest.raises(ValueError, match=r"'v1\.value' mixes timestamps with and without time zone"):
        eager_cube.append_to_cube(mixed, CUBE, store_factory)


@pytest.mark.parametrize(
    "metadata, problem",
    [
        ([("seed", {})], "metadata should be a dict of dataset id to dict, but is list"),
        ({"seed": [1]}, "metadata for dataset seed should be a dict, but is list"),
        ({"seed": {"a": object()}}, "metadata for dataset seed cannot be stored as JSON"),
    ],
)
def test_metadata_that_are_no_dict(store_factory, metadata, problem):
    with refuses(store_factory, TypeError, problem):
        eager_cube.build_cube(FRAME, CUBE, store_factory, metadata=metadata)


@pytest.mark.parametrize("name", ["__v", "__", "KLEE_TS"])
def test_columns_that_no_query_shows_are_refused(driver, store_factory, name):
    seed, other = frame(x=[0], p=[0], v1=[1]), frame(x=[0], p=[0], v2=[1])
    arguments, hidden = {"cube": CUBE, "store": store_factory}, {name: [1]}
    expected = f"dataset '{{}}': {name}. No query shows columns that begin with two underscores, and KLEE_TS"
    with refuses(store_factory, ValueError, expected.format("seed")):
        driver.build_cube(data=seed.assign(**hidden), **arguments)
    driver.build_cube(data=seed, **arguments)
    with refuses(store_factory, ValueError, expected.format("other")):
        driver.extend_cube(data={"other": other.assign(**hidden)}, **arguments)
    with refuses(store_factory, ValueError, expected.format("seed")):
        driver.append_to_cube(data=seed.assign(**hidden), schema_mode="merge", **arguments)
    with refuses(store_factory, ValueError, expected.format("seed")):
        driver.update_cube(
            data=seed.assign(**hidden), remove_conditions=None, ktk_cube_dataset_ids=["seed"], **arguments
        )


@pytest.mark.parametrize("data", [[{"x": 2, "p": 0}], {"x": [2], "p": [0]}, {"seed": [{"x": 2, "p": 0}]}])
@pytest.mark.parametrize("operation", ["append_to_cube", "build_cube", "extend_cube", "update_cube"])
def test_rows_and_columns_as_dicts(operation, data, store_factory):
    eager_cube.build_cube(FRAME, CUBE, store_factory)
    arguments = {"remove_conditions": None, "datasets": "seed"} if operation == "update_cube" else {}
    cube = CUBE.copy(uuid_prefix="new") if operation == "build_cube" else CUBE
    remedy = r"Expected a pandas.DataFrame .* pass pandas\.DataFrame\(\.\.\.\) of them$"
    with unchanged(store_factory), pytest.raises(TypeError, match=remedy):
        getattr(eager_cube, operation)(data, cube, store_factory, **arguments)
