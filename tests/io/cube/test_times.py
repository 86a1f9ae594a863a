"""Timestamps of any year: nanoseconds as far as they hold the values, else microseconds."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pandas.testing import assert_frame_equal

from kartothek_cube.api import dataset as api
from kartothek_cube.api.cube import C, Cube, eager_cube, query_cube_dataframe
from kartothek_cube.io.arrow_cube import cube_dataset, query_cube_arrow, query_cube_polars, query_cube_table
from kartothek_cube.io_components import scan
from tests.support.cubes import file_keys, memory

NEAR, FIRST, LAST = "2020-01-01 12:00:00.000001", "0001-01-01", "9999-12-31 23:59:59.999999"
#: a cube with times in each kind of column
#: Polars does not know all of these zones
ZONES = ["UTC", "Europe/Berlin", "+02:00", "-03:30"]
CUBES = {
    "payload": Cube(["x"], ["p"], "cube"),
    "dimension": Cube(["t"], ["p"], "cube"),
    "partition": Cube(["x"], ["t"], "cube"),
    "index": Cube(["x"], ["p"], "cube", index_columns=["t"]),
}
BACKENDS = [None, "numpy_nullable", "pyarrow"]


def rows(*times, unit="us", x=0):
    return pd.DataFrame({"x": range(x, x + len(times)), "p": "a", "t": np.array(times, f"M8[{unit}]")})


def texts(frames):
    return sorted(str(stamp) for df in frames for stamp in df["t"].tolist())


def units(frames):
    return {str(df["t"].dtype) for df in frames}


@pytest.fixture(params=sorted(CUBES))
def cube(request):
    return CUBES[request.param]


@pytest.mark.parametrize("grouped", [False, True])
def test_times_of_any_year_come_back_in_all_facades(driver, store_factory, cube, grouped):
    driver.build_cube(data=rows(NEAR, FIRST, LAST), cube=cube, store=store_factory)
    groups = ["p"] if cube is CUBES["payload"] else ["t"]
    frames = driver.query_cube(cube=cube, store=store_factory, partition_by=groups if grouped else None)
    assert units(frames) == {"datetime64[us]"}
    assert texts(frames) == sorted(map(str, map(pd.Timestamp, [NEAR, FIRST, LAST])))


def test_files_from_before_times_of_any_year_are_no_problem():
    """The names of files tell of their cells, in the unit that these had."""
    cube, store = CUBES["dimension"], memory()
    times = ["2020-01-01", "2020-01-02"]
    eager_cube.build_cube(rows(*times, unit="ns"), cube, store)
    eager_cube.append_to_cube(rows(LAST), cube, store)
    eager_cube.append_to_cube(rows(*times, unit="ns", x=5), cube, store)
    assert eager_cube.verify_cube(cube, store).problems == ()
    assert eager_cube.query_cube_df(cube, store)["x"].tolist() == [5, 6, 0]


t, NANOSECOND = C("t"), pd.Timedelta(1, "ns")
CONDITIONS = [
    *(
        (t >= datetime.datetime(9999, 1, 1), [LAST]),
        (t == datetime.datetime.max, [LAST]),
        (t > "9999-12-31", [LAST]),
    ),
    *((t < pd.Timestamp("1900"), [FIRST]), (t == pd.Timestamp(FIRST).as_unit("us"), [FIRST])),
    *((t < datetime.date(1, 1, 2), [FIRST]), (t != np.datetime64(LAST), [NEAR, FIRST])),
    *((t == pd.Timestamp(NEAR), [NEAR]), (t == pd.Timestamp(NEAR) + NANOSECOND, [])),
    (t > pd.Timestamp(NEAR) - NANOSECOND, [NEAR, LAST]),
    (t.isin([datetime.datetime.max, datetime.datetime.min]), [LAST, FIRST]),
]


@pytest.mark.parametrize("condition, expected", CONDITIONS)
def test_conditions_with_times_of_any_year(driver, store_factory, cube, condition, expected):
    eager_cube.build_cube(rows(NEAR, FIRST, LAST), cube, store_factory)
    frames = driver.query_cube(cube=cube, store=store_factory, conditions=condition)
    assert units(frames) <= {"datetime64[us]"}
    assert texts(frames) == sorted(map(str, map(pd.Timestamp, expected)))


@pytest.mark.parametrize("first, then", [([NEAR], [LAST]), ([LAST], [NEAR])])
def test_the_first_far_time_makes_the_column_microseconds(driver, store_factory, cube, first, then):
    driver.build_cube(data=rows(*first), cube=cube, store=store_factory)
    driver.append_to_cube(data=rows(*then, x=5), cube=cube, store=store_factory)
    frames = driver.query_cube(cube=cube, store=store_factory)
    assert (units(frames), len(texts(frames))) == ({"datetime64[us]"}, 2)
    # also of a result without far times
    near = driver.query_cube(cube=cube, store=store_factory, conditions=C("t") < pd.Timestamp("2021"))
    assert (units(near), texts(near)) == ({"datetime64[us]"}, [str(pd.Timestamp(NEAR))])


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_times_in_the_range_of_nanoseconds_are_nanoseconds(driver, store_factory, cube, unit):
    driver.build_cube(data=rows(NEAR, "2262-04-11", "1677-09-22", unit=unit), cube=cube, store=store_factory)
    # frames of Spark have microseconds always
    expected = "datetime64[us]" if driver.name == "spark" else "datetime64[ns]"
    assert units(driver.query_cube(cube=cube, store=store_factory)) == {expected}


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_readers_agree_on_the_type(store_factory, backend):
    cube = CUBES["payload"]
    eager_cube.build_cube(rows(NEAR, LAST), cube, store_factory)
    for condition in (None, C("t") < pd.Timestamp("2021"), C("x") == 9):
        args = {"cube": cube, "store": store_factory, "conditions": condition}
        assert query_cube_table(**args).schema.field("t").type == pa.timestamp("us")
        assert {table.schema.field("t").type for table in query_cube_arrow(**args)} <= {pa.timestamp("us")}
        assert query_cube_polars(**args).schema["t"].time_unit == "us"
        expected = "timestamp[us][pyarrow]" if backend == "pyarrow" else "datetime64[us]"
        assert str(eager_cube.query_cube_df(**args, dtype_backend=backend)["t"].dtype) == expected
        lazy = query_cube_dataframe(**args, dtype_backend=backend)
        assert str(lazy["t"].dtype) == str(lazy.compute()["t"].dtype) == expected
    dataset = cube_dataset(cube, store_factory)
    assert dataset.to_table(filter=pads.field("t") > datetime.datetime(9999, 1, 1)).num_rows == 1
    with pytest.raises(TypeError, match=r"'t'.*9999.*timestamp\[ns\]"):
        cube_dataset(cube, store_factory, timestamp_unit="ns").to_table()


def test_datasets_with_and_without_far_times_are_joined():
    cube, store = Cube(["t"], ["p"], "cube"), memory()
    seed = rows(NEAR, "2020-01-02").assign(v=[1, 2])
    other = rows(NEAR, LAST, "2020-01-02").drop(columns="x").assign(w=[3, 4, 5])
    eager_cube.build_cube({"seed": seed, "other": other}, cube, store)
    (df,) = eager_cube.query_cube(cube, store)
    assert df["w"].tolist() == [3, 5]
    (df,) = eager_cube.query_cube(cube, store, conditions=C("w") > 3)
    assert df["v"].tolist() == [2]


def test_nested_far_times_come_back():
    cube, store = CUBES["payload"], memory()
    far = datetime.datetime.max
    table = pa.table({"x": [0], "p": ["a"], "l": [[far]], "s": [{"at": far}]})
    eager_cube.build_cube(table, cube, store)
    assert query_cube_table(cube, store).select(["l", "s"]).to_pylist() == [{"l": [far], "s": {"at": far}}]
    (df,) = eager_cube.query_cube(cube, store)
    assert (df["l"][0][0], df["s"][0]["at"]) == (np.datetime64(far), far)


def test_updates_and_maintenance_keep_far_times(driver, store_factory, cube):
    build = rows(NEAR, LAST)
    driver.build_cube(data=build, cube=cube, store=store_factory)
    (found,) = driver.query_cube(cube=cube, store=store_factory)[:1]
    driver.append_to_cube(data=found, cube=cube, store=store_factory)
    conditions = C("t") == pd.Timestamp(FIRST) if cube is CUBES["partition"] else C("p") == "b"
    update = {"remove_conditions": conditions, "ktk_cube_dataset_ids": ["seed"]}
    driver.update_cube(data=rows(FIRST, x=7).assign(p="b"), cube=cube, store=store_factory, **update)
    eager_cube.compact_cube(cube, store_factory)
    expected = sorted(str(pd.Timestamp(time)) for time in (NEAR, LAST, FIRST))
    assert texts(driver.query_cube(cube=cube, store=store_factory)) == expected
    assert eager_cube.verify_cube(cube, store_factory).ok


@pytest.mark.parametrize("first, then", [(NEAR, LAST), (LAST, NEAR)])
def test_merges_compare_times_of_both_units(cube, first, then):
    store = memory()
    eager_cube.build_cube(rows("1999", first), cube, store)
    eager_cube.merge_into_cube(rows("1999", then).assign(x=[0, 5]), cube, store)
    frames = eager_cube.query_cube(cube, store)
    assert texts(frames) == sorted(str(pd.Timestamp(time)) for time in ("1999", first, then))


def test_labels_with_nanoseconds_and_far_times_are_not_mixed():
    cube, store = CUBES["partition"], memory()
    fine = pd.DataFrame({"x": [1], "t": pd.to_datetime(["2020-01-01 00:00:00.000000001"])})
    eager_cube.build_cube(fine, cube, store)
    with pytest.raises(ValueError, match=r"'cube\+\+seed': partition column t has nanoseconds.*floor"):
        eager_cube.append_to_cube(rows(LAST).drop(columns="p"), cube, store)
    (df,) = eager_cube.query_cube(cube, store)
    assert df["t"].tolist() == fine["t"].tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_datasets_hold_far_times(store_factory, backend):
    parts = [rows(NEAR), rows(LAST)]
    api.store_dataframes_as_dataset(store_factory, "ds", parts, secondary_indices=["t"])
    args = {"dataset_uuid": "ds", "store": store_factory, "dtype_backend": backend}
    expected = "timestamp[us][pyarrow]" if backend == "pyarrow" else "datetime64[us]"
    frames = [*api.read_dataset_as_dataframes(**args), api.read_table(**args)]
    assert units(frames) == {expected}
    dataset = api.update_dataset_from_dataframes([rows(FIRST, x=5)], store_factory, "ds")
    index = dataset.load_all_indices(store_factory).indices["t"]
    assert len(index.query(datetime.datetime.max)) == len(index.query(pd.Timestamp(FIRST))) == 1
    old = api.read_table(**args, predicates=[[("t", "<", pd.Timestamp("1900"))]])
    assert texts([old]) == ["0001-01-01 00:00:00"]


@pytest.mark.parametrize("zone", ZONES)
def test_zoned_times_keep_their_zone_in_all_facades(driver, store_factory, cube, zone):
    data = rows("2020-10-25 00:30", "2020-10-25 01:30")
    data["t"] = data["t"].dt.tz_localize("UTC").dt.tz_convert(zone)
    driver.build_cube(data=data, cube=cube, store=store_factory)
    instant = pd.Timestamp("2020-10-25 00:30", tz="UTC")
    frames = driver.query_cube(cube=cube, store=store_factory, conditions=C("t") == instant)
    assert [time for df in frames for time in df["t"].tolist()] == [instant]
    # Spark has instants
    expected = "UTC" if driver.name == "spark" else zone
    # with pandas 2, Arrow names offsets in its own way
    zoned = pa.array([instant], pa.timestamp("us", expected)).to_pandas()
    assert {str(df["t"].dt.tz) for df in frames} == {str(zoned.dt.tz)}


@pytest.fixture(params=["Polars", "pyarrow"])
def reader(request, monkeypatch):
    if request.param == "pyarrow":
        monkeypatch.setenv(scan.CHECK_PAGES, "1")


def rewrite_with_zone(store, key, zone):
    """Write a file as other software, with the same instants in another zone, or in UTC without one."""
    file = pq.read_table(pa.BufferReader(store.get(key)))
    position = file.schema.get_field_index("t")
    changed = file.set_column(position, "t", file["t"].cast(pa.timestamp("us", zone)))
    sink = pa.BufferOutputStream()
    pq.write_table(changed, sink)
    store.put(key, sink.getvalue().to_pybytes())


# Polars lacks the last zone
FOREIGN = [(zone, other, "p=b") for zone in ZONES for other in ("Asia/Tokyo", "+01:00", "+05:30")]
UNZONED = [("UTC", None), ("Europe/Berlin", None), (None, "UTC"), (None, "+01:00")]


@pytest.mark.parametrize(
    "zone, other, partition", [*FOREIGN, *((*zones, p) for zones in UNZONED for p in ("p=a", "p=b"))]
)
@pytest.mark.parametrize("name", ["payload", "dimension"])
@pytest.mark.usefixtures("reader")
def test_files_of_other_zones_have_the_times_of_the_schema(name, zone, other, partition):
    """Other software may write the same instants in another zone, or without one: these are of UTC."""
    cube, store = CUBES[name], memory()
    data = rows("2020-10-25 00:30", "2020-10-25 01:30").assign(p=["a", "b"])
    # with pandas 2, Arrow names offsets in its own way
    data["t"] = pa.array(data["t"].dt.tz_localize("UTC"), pa.timestamp("ns", zone)).to_pandas()
    eager_cube.build_cube(data, cube, store)
    (key,) = [key for key in file_keys(lambda: store, "cube++seed").values() if partition in key]
    rewrite_with_zone(store, key, other)
    assert_frame_equal(eager_cube.query_cube_df(cube, store)[data.columns], data)
    assert eager_cube.query_cube_df(cube, store, C("t") >= data["t"][1])["x"].tolist() == [1]
    assert api.read_table("cube++seed", store)["t"].tolist() == data["t"].tolist()
    expected = [] if zone and other else [("file-schema", key, "t")]
    for deep in (True, False):
        problems = eager_cube.verify_cube(cube, store, deep=deep).problems
        assert [(problem.kind, problem.key, problem.column) for problem in problems] == expected
    assert eager_cube.merge_into_cube(data, cube, store).rows_updated == 2
    assert eager_cube.verify_cube(cube, store).ok
