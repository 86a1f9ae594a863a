"""Input that no cube can hold: each kind of mistake has its own answer, and leaves the store empty."""

import datetime
import uuid

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from kartothek_cube.api.cube import Cube, eager_cube, query_cube_arrow
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.arrow import read_table_arrow
from kartothek_cube.io.eager import store_dataframes_as_dataset
from tests.support.cubes import CUBE, frame, refuses, unchanged

DATE = datetime.date(2020, 1, 1)
FRAME = pd.DataFrame({"x": [0, 1], "p": [0, 0], "v1": [1, 2]})


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
TIME, ZONED = datetime.datetime(2020, 1, 2, 5), pd.Timestamp(DATE, tz="UTC")
#: values of a payload column, and what is said of them
MIXED = [
    ([DATE, TIME], "'v1' mixes dates with"),
    ([{"a": [DATE]}, {"a": [TIME]}], "'v1.a' mixes dates with"),
    ([{"a": {"b": DATE}}, {b"a": {b"b": TIME}}], "'v1.a.b' mixes dates with"),
    ([{DATE}, {TIME}], "'v1' mixes dates with"),
    (pd.Categorical([DATE, TIME]), "'v1' mixes dates with"),
    ([[ZONED], [pd.Timestamp(DATE)]], "'v1' mixes timestamps with and without time zone"),
    (pd.Series([pd.Timestamp(1)] * 2, dtype=object), "'v1' holds timestamps with nanoseconds"),
    ([{"a": [pd.Timestamp(1)]}] * 2, "'v1.a' holds timestamps with nanoseconds"),
    (["a", b"b"], "'v1' mixes text and bytes"),
    ([{"a": b"a"}, {"a": "b"}], "'v1.a' mixes text and bytes"),
    ([["a", b"\xff"], []], "'v1' mixes text and bytes"),
    ([1, "a"], "^Column 'v1' holds values of several types"),
    ([-1, 2**63], "'v1' has integers that no type of 64 bits"),
    ([[1], [2**64]], "'v1' has integers that no type of 64 bits"),
]


def rows_of(**columns):
    return pa.table({"x": [0], "p": [0], **columns})


MONTHS = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
NANOSECONDS = pa.array([{"a": 5}], pa.struct({"a": pa.timestamp("ns")}))
DaskFrame = type("DataFrame", (set,), {"__module__": "dask.dataframe"})
OBJECTS = pl.Series([uuid.UUID(int=1)] * 2)
#: pandas 2.2 has a text for it, as a label of which the time cannot be read
YEAR_10000 = pa.array([253402318799999999], pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    "data, exception, fragment",
    [
        *((FRAME.assign(v1=values), ValueError, text) for values, text in MIXED),
        (rows_of(v1=NANOSECONDS), ValueError, "Column 'v1' holds timestamps with nanoseconds"),
        (rows_of(v1=MONTHS), TypeError, "Column 'v1' of type month_day_nano_interval cannot be stored"),
        (FRAME.assign(v1=pd.Series(["a", "\ud800"], dtype=object)), ValueError, "'v1' .* no valid Unicode"),
        (rows_of(p=YEAR_10000), ValueError, "partition column"),
        (FRAME.assign(v1=[1j, 2j]), TypeError, "^Column 'v1' of type complex128 cannot be stored"),
        (FRAME.assign(v1=pd.to_timedelta([1, 2], unit="s")), TypeError, "v1"),
        (
            FRAME.assign(v1=[uuid.UUID(int=1)] * 2),
            (TypeError, ValueError),
            "^Column 'v1' .* cannot be stored",
        ),
        (FRAME.assign(x=[DATE, ZONED]), ValueError, "'x' mixes dates with"),
        (FRAME.assign(p=[[1], [2]]), TypeError, 'partition column "p"'),
        (FRAME.assign(x=[[1], [2]]), TypeError, 'dimension column "x"'),
        (pa.table({"x": VIEWS["v1"], "p": [0, 0, 1]}), TypeError, 'dimension column "x"'),
        (pl.from_pandas(FRAME).with_columns(v1=OBJECTS), TypeError, "^Column 'v1' of type Object cannot be"),
        (pl.Series([1]), ValueError, "Series cannot be read as an Arrow table"),
        ({"seed": FRAME["x"]}, TypeError, "Series"),
        ({"seed": {"x": [1]}}, TypeError, "dict"),
        (pa.array([1]), TypeError, "got Int64Array"),
        (DaskFrame(["x"]), TypeError, "got DataFrame of dask"),
        (["seed"], TypeError, "got str"),
        ("seed", TypeError, "str"),
        (3, TypeError, "int"),
    ],
)
def test_wrong_values(store_factory, data, exception, fragment):
    with pytest.raises(exception, match=fragment):
        eager_cube.build_cube(data, CUBE, store_factory)
    assert open_blobs(store_factory).list("") == []


def test_an_index_of_several_levels_is_ignored_like_any_other(store_factory):
    df = FRAME.set_index(pd.MultiIndex.from_tuples([("a", 1), ("b", 2)]))
    eager_cube.build_cube(df, Cube(["x"], ["p"], "cube"), store_factory)
    assert eager_cube.query_cube(CUBE, store_factory)[0]["v1"].tolist() == [1, 2]


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


def test_zones_in_maps_are_not_mixed(store_factory):
    times = pa.map_(pa.string(), pa.timestamp("us", "UTC"))
    stamp = pd.Timestamp(DATE)
    table = pa.table({"x": [0], "p": [0], "v1": pa.array([[("a", stamp)]], times)})
    eager_cube.build_cube(table, CUBE, store_factory)
    mixed = FRAME.assign(v1=[[("a", stamp.tz_localize("UTC"))], {"a": stamp}])
    with pytest.raises(ValueError, match=r"'v1\.value' mixes timestamps with and without time zone"):
        eager_cube.append_to_cube(mixed, CUBE, store_factory)


@pytest.mark.parametrize(
    "stored, given",
    [
        ([1], [1.5]),
        ([1], np.array([1.5])),
        ([1], [True]),
        ([1], b"a"),
        (["a"], [b"a"]),
        (["a"], "a"),
        ([pd.Timestamp(DATE)], [ZONED]),
        ([datetime.time(1)], [5]),
        ({"a": 1}, {"a": 1.5}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([{"a": {"b": 1}}], [{"a": {"b": 1, "c": 2}}]),
        ({"a": 1}, [("a", 1)]),
    ],
    ids=repr,
)
def test_nested_values_that_the_stored_type_would_change_are_refused(store_factory, stored, given):
    df = pd.DataFrame({"x": [0], "p": [0], "v1": pd.Series([stored], dtype=object)})
    eager_cube.build_cube(df, CUBE, store_factory)
    with unchanged(store_factory), pytest.raises(ValueError, match="v1"):
        eager_cube.append_to_cube(df.assign(v1=pd.Series([given], dtype=object)), CUBE, store_factory)


@pytest.mark.parametrize(
    "stored, given, expected",
    [
        ([1], [2.0], [2]),
        ([1], np.array([2, np.nan]), [2, None]),
        ([1.5], [2], [2.0]),
        ({"a": 1, "b": "x"}, {"b": "y"}, {"a": None, "b": "y"}),
        ({"a": 1, "b": "x"}, {"b": "y", "a": 2, "c": None}, {"a": 2, "b": "y"}),
        ({"a": 1}, {b"a": 2}, {"a": 2}),
        ([pd.Timestamp(DATE)], [DATE, pd.NaT], [pd.Timestamp(DATE), None]),
    ],
    ids=repr,
)
def test_nested_values_get_the_stored_type_if_they_stay_the_same(store_factory, stored, given, expected):
    df = pd.DataFrame({"x": [0], "p": [0], "v1": pd.Series([stored], dtype=object)})
    eager_cube.build_cube(df, CUBE, store_factory)
    eager_cube.append_to_cube(df.assign(v1=pd.Series([given], dtype=object)), CUBE, store_factory)
    assert query_cube_arrow(CUBE, store_factory)[0]["v1"].to_pylist() == [expected]


def test_fields_of_arrow_structs_get_the_stored_types(store_factory):
    stored, given = (pa.table({"x": [0], "p": [0], "v1": [{"a": a, "b": "x"}]}) for a in (1, 2.0))
    eager_cube.build_cube(stored, CUBE, store_factory)
    eager_cube.append_to_cube(given, CUBE, store_factory)
    assert query_cube_arrow(CUBE, store_factory)[0]["v1"].type == stored["v1"].type


def test_columns_that_no_query_shows_are_refused(driver, store_factory):
    seed, other = frame(x=[0], p=[0], v1=[1]), frame(x=[0], p=[0], v2=[1])
    arguments = {"cube": CUBE, "store": store_factory}
    hidden = dict.fromkeys(("__v", "_v", "KLEE_TS", "__"), 1)
    text = "': KLEE_TS, __, __v. No query shows columns that begin with two underscores, and KLEE_TS"
    with refuses(store_factory, ValueError, f"dataset 'seed{text}"):
        driver.build_cube(data=seed.assign(**hidden), **arguments)
    driver.build_cube(data=seed, **arguments)
    with refuses(store_factory, ValueError, f"dataset 'other{text}"):
        driver.extend_cube(data={"other": other.assign(**hidden)}, **arguments)
    removal = {"remove_conditions": None, "ktk_cube_dataset_ids": ["seed"]}
    for write, more in ((driver.append_to_cube, {"schema_mode": "merge"}), (driver.update_cube, removal)):
        with refuses(store_factory, ValueError, f"dataset 'seed{text}"):
            write(data=seed.assign(**hidden), **more, **arguments)


@pytest.mark.parametrize("data", [[{"x": 2, "p": 0}], {"x": [2], "p": [0]}, {"seed": [{"x": 2, "p": 0}]}])
@pytest.mark.parametrize("operation", ["append_to_cube", "build_cube", "extend_cube", "update_cube"])
def test_rows_and_columns_as_dicts(operation, data, store_factory):
    eager_cube.build_cube(FRAME, CUBE, store_factory)
    arguments = {"remove_conditions": None, "datasets": "seed"} if operation == "update_cube" else {}
    cube = CUBE.copy(uuid_prefix="new") if operation == "build_cube" else CUBE
    remedy = r"Expected a pandas.DataFrame .* pass pandas\.DataFrame\(\.\.\.\) of them$"
    with unchanged(store_factory), pytest.raises(TypeError, match=remedy):
        getattr(eager_cube, operation)(data, cube, store_factory, **arguments)


@pytest.mark.parametrize("limit", [float("inf"), {1: "a", "1": "b"}, [{None: "a", "null": "b"}]])
def test_metadata_without_a_form_in_json_are_refused(store_factory, limit):
    metadata = {"seed": {"limit": limit}}
    with refuses(store_factory, TypeError, "cannot be stored as JSON"):
        eager_cube.build_cube(FRAME, CUBE, store_factory, metadata)
    with refuses(store_factory, TypeError, "'limit' is not JSON serializable"):
        store_dataframes_as_dataset(store_factory, "u", [FRAME], metadata=metadata["seed"])
