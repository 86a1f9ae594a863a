"""Types of query results do not depend on the data, and what comes out goes back in."""

import datetime
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.api import dataset as api
from kartothek_cube.api.cube import C, Cube, eager_cube, query_cube_dataframe
from kartothek_cube.core.arrow import widen
from kartothek_cube.io.arrow_cube import query_cube_arrow, query_cube_polars, query_cube_table
from tests.support.cubes import CUBE, build, frame, memory, refuses
from tests.support.stores import CountingStore, Same

DATE = datetime.date
LARGE = 2**60 + 1
BACKENDS = [None, "numpy_nullable", "pyarrow"]
#: for tests of each type
ALL_PAIRS = pytest.mark.slow("all pairs of a type and a backend")
BACKEND_OF_EACH = [None, *(pytest.param(backend, marks=ALL_PAIRS) for backend in BACKENDS[1:])]
FAR = DATE(9999, 12, 31)


def types_of(frames):
    return [df.dtypes.map(str).to_dict() for df in frames]


# one type per column -----------------------------------------------------------------------------


@pytest.fixture
def gaps(store_factory):
    """A cube of three partitions: one without gaps, one with, one without any row of the other dataset."""
    cube = CUBE.copy(dimension_columns=["x", "d"])
    seed = frame(
        x=[0, 1, 2, 3], d=DATE(2020, 1, 1), p=[0, 1, 1, 2], own=pd.array([1, 2, 3, None], "Int64"), n=1
    )
    enrich = seed[["x", "d", "p"]][:2].assign(id=LARGE, flag=[True, False], s=["a", "b"], f=[0.5, 1.5])
    build(store_factory, cube, seed=seed, enrich=enrich)
    return cube


SCHEMA_TYPES = {
    "numpy_nullable": {"d": "datetime64[s]", "f": "Float64", "flag": "boolean", "s": "string"}
    | dict.fromkeys(["id", "n", "own", "p", "x"], "Int64"),
    "pyarrow": {"d": "date32[day][pyarrow]", "f": "double[pyarrow]", "flag": "bool[pyarrow]"}
    | {"s": "string[pyarrow]", **dict.fromkeys(["id", "n", "own", "p", "x"], "int64[pyarrow]")},
}


@pytest.mark.parametrize("partition_by", [None, "p"])
@pytest.mark.parametrize("condition", [None, C("p") == 0, C("p") == 2])
@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_types_of_a_backend_are_those_of_the_schema(
    driver, store_factory, gaps, backend, condition, partition_by
):
    arguments = {"conditions": condition, "partition_by": partition_by, "dtype_backend": backend}
    found = driver.query_cube(cube=gaps, store=store_factory, **arguments)
    assert types_of(found) == [SCHEMA_TYPES[backend]] * len(found)
    assert found


@pytest.mark.parametrize("partition_by", [None, "p"])
@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_the_graph_of_dask_knows_the_types(store_factory, gaps, backend, partition_by):
    arguments = {"dtype_backend": backend, "payload_columns": ["f", "flag", "id", "n", "s"]}
    result = query_cube_dataframe(gaps, store_factory, partition_by=partition_by, **arguments)
    assert types_of([result]) == types_of([result.compute()])


@pytest.mark.parametrize("values", [[LARGE, -LARGE], [2**63 - 1, 1], [2**53 + 1, 0]])
def test_integers_next_to_gaps_keep_their_digits(driver, store_factory, values):
    build(store_factory, seed=frame(x=[0, 1, 2], p=[0, 0, 0]), enrich=frame(x=[0, 1], p=[0, 0], v=values))
    (result,) = driver.query_cube(cube=CUBE, store=store_factory)
    assert result["v"].dtype == "Int64"
    assert result["v"].tolist() == [*values, pd.NA]


def test_integers_in_lists_and_times_in_structs_keep_their_values(store_factory):
    stamp = pd.Timestamp("2020-01-01 05:00")
    table = pa.table({"x": [0], "p": [0], "v": [[LARGE, None]], "s": [{"at": stamp}]})
    eager_cube.build_cube(table, CUBE, store_factory)
    (result,) = eager_cube.query_cube(CUBE, store_factory)
    assert result["v"].tolist() == [[LARGE, None]]
    assert result["s"].tolist() == [{"at": stamp}]


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_types_of_reads_do_not_depend_on_values(store_factory, backend):
    narrow = frame(v=np.array([1], "int8"), d=[DATE(2020, 1, 1)], c=["a"])
    gap = frame(v=pd.array([None], "Int8"), d=[FAR], c=["b"])
    api.store_dataframes_as_dataset(store_factory, "ds", [narrow, gap])
    args = {"dataset_uuid": "ds", "store": store_factory, "dtype_backend": backend, "dates_as_object": False}
    frames = [*api.read_dataset_as_dataframes(**args), api.read_table(**args)]
    frames.append(api.read_table(**args, predicates=[[("c", "==", "z")]]))
    expected = {name: SCHEMA_TYPES[backend][like] for name, like in {"v": "n", "d": "d", "c": "s"}.items()}
    expected["v"] = {"numpy_nullable": "Int8", "pyarrow": "int8[pyarrow]"}[backend]
    assert types_of(frames) == [{name: expected[name] for name in df} for df in frames]
    assert api.read_table(**args, categoricals=["c"])["c"].dtype == "category"


@pytest.mark.parametrize("backend", ["numpy", "", 1, pd.Series(["pyarrow"])])
def test_unknown_backend(driver, store_factory, gaps, backend):
    with pytest.raises(ValueError, match="dtype_backend is 'numpy_nullable', 'pyarrow' or None, got"):
        driver.query_cube(cube=gaps, store=store_factory, dtype_backend=backend)
    with pytest.raises(ValueError, match="dtype_backend is"):
        api.read_table("cube++seed", store_factory, dtype_backend=backend)


# round trips -------------------------------------------------------------------------------------


def widened(table, like):
    """Integers next to missing values are floats in pandas, which do not tell their width."""
    return table.cast(pa.schema([(field.name, widen(field.type)) for field in like.schema]))


DAYS = st.dates(DATE(1, 1, 1), DATE(9999, 12, 31))
STAMPS = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
DECIMALS = st.decimals(-999, 999, places=2)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
#: stored types, and their values
KINDS = {
    "int64": (pa.int64(), INT64),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "float64": (pa.float64(), FLOATS),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=3)),
    "category": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b"])),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "date": (pa.date32(), DAYS),
    "time": (pa.time64("us"), st.times()),
    "timestamp": (pa.timestamp("ns"), STAMPS),
    "any year": (pa.timestamp("us"), st.datetimes()),
    "zoned": (pa.timestamp("ns", "Europe/Berlin"), STAMPS),
    "decimal": (pa.decimal128(10, 2), DECIMALS),
    "ints": (pa.list_(pa.int64()), st.lists(st.none() | INT64, max_size=3)),
    "floats": (pa.list_(pa.float64()), st.lists(FLOATS, max_size=3)),
    "strings": (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=3), max_size=3)),
    "dates": (pa.list_(pa.date32()), st.lists(st.none() | DAYS, max_size=3)),
    "decimals": (pa.list_(pa.decimal128(10, 2)), st.lists(DECIMALS, max_size=3)),
    "lists": (pa.list_(pa.list_(pa.int64())), st.lists(st.lists(INT64, max_size=2), max_size=2)),
    "struct": (
        pa.struct([("a", pa.int64()), ("d", pa.date32())]),
        st.fixed_dictionaries({"a": INT64, "d": st.none() | st.dates(DATE(1700, 1, 1), DATE(2200, 1, 1))}),
    ),
    "map": (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(st.text(max_size=2), INT64), max_size=2)),
    "null": (pa.null(), st.none()),
}


@pytest.mark.slow("15 random cubes of each type")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_what_comes_out_goes_back_in(kind, backend, data):
    dtype, values = KINDS[kind]
    column = data.draw(st.lists(st.none() | values, min_size=1, max_size=4), label="values")
    days = [DATE(2020, 1, 1)] * len(column)
    cube, store = Cube(["x", "DAY"], ["p"], "cube"), memory()
    keys = {"x": range(len(column)), "DAY": days, "p": [0] * len(column)}
    table = pa.table({**keys, "v": pa.array(column, dtype)})
    eager_cube.build_cube(table, cube, store)
    before = query_cube_table(cube, store)
    (result,) = eager_cube.query_cube(cube, store, dtype_backend=backend)
    eager_cube.append_to_cube(result, cube, store)
    assert widened(query_cube_table(cube, store), before).equals(widened(before, before))
    (again,) = eager_cube.query_cube(cube, store, dtype_backend=backend)
    assert len(again) == len(column)


#: one value of each kind that is stored and compared in a way of its own
EXAMPLES = {
    "int64": LARGE,
    "uint64": 2**64 - 1,
    "int8": -128,
    "float64": 1.5,
    "float32": 0.5,
    "bool": True,
    "string": "ä'\0",
    "category": "b",
    "binary": b"\xff",
    "date": FAR,
    "time": datetime.time(1, 2, 3, 4),
    "timestamp": pd.Timestamp("2020-01-01 01:02:03.000004"),
    "any year": datetime.datetime.max,
    "zoned": pd.Timestamp("2020-10-25 01:30", tz="UTC").tz_convert("Europe/Berlin"),
    "decimal": decimal.Decimal("-1.10"),
    "ints": [LARGE, None],
    "dates": [FAR, None],
    "struct": {"a": LARGE, "d": None},
    "map": [("a", LARGE)],
    "null": None,
}
NESTED = {"ints", "dates", "struct", "map", "null"}


@pytest.fixture
def sparse(request):
    """Partitions with a value, with a value and a null, with nulls only, and without the other dataset."""
    dtype, value = KINDS[request.param][0], EXAMPLES[request.param]
    cube, store = Cube(["x"], ["p"], "cube"), memory()
    keys = {"x": [0, 1, 2, 3, 4], "p": [0, 1, 1, 2, 3]}
    v = pa.array([value, value, None, None], dtype)
    values = pa.table({name: column[:4] for name, column in keys.items()}).append_column("v", v)
    eager_cube.build_cube({"seed": pa.table(keys), "enrich": values}, cube, store)
    return cube, store, value


@pytest.mark.parametrize("backend", BACKEND_OF_EACH)
@pytest.mark.parametrize("sparse", EXAMPLES, indirect=True)
def test_groups_and_empty_frames_go_back_in(sparse, backend):
    cube, store, _ = sparse
    before = query_cube_table(cube, store)
    arguments = {"cube": cube, "store": store, "dtype_backend": backend}
    frames = [
        *eager_cube.query_cube(**arguments, partition_by="p", conditions=C("p") < 3),
        eager_cube.query_cube_df(**arguments, conditions=C("p") < 3, limit=2),
        eager_cube.query_cube_df(**arguments, conditions=C("p") == 9),
        query_cube_polars(cube, store, C("p") < 3),
    ]
    for df in frames:
        eager_cube.append_to_cube({"enrich": df}, cube, store)
    assert widened(query_cube_table(cube, store), before).equals(widened(before, before))


@pytest.mark.parametrize("backend", BACKEND_OF_EACH)
@pytest.mark.parametrize("sparse", sorted(set(EXAMPLES) - NESTED), indirect=True)
def test_values_of_a_result_are_values_of_conditions(sparse, backend):
    cube, store, value = sparse
    found = eager_cube.query_cube_df(cube, store, dtype_backend=backend)["v"].dropna()
    assert len(found) == 2
    for one in (found.iloc[0], found.tolist()[0], value):
        for condition in (C("v") == one, C("v") >= one, C("v").isin([one]), C("v").between(one, one)):
            assert eager_cube.query_cube_df(cube, store, condition, limit=9)["x"].tolist() == [0, 1]
    arrow, polars = (
        query_cube_table(cube, store)["v"].drop_null(),
        query_cube_polars(cube, store)["v"].drop_nulls(),
    )
    assert eager_cube.query_cube_df(cube, store, C("v") == arrow[0])["x"].tolist() == [0, 1]
    for many in (found, found.tolist(), found.unique(), arrow, polars):
        assert eager_cube.query_cube_df(cube, store, C("v").isin(many))["x"].tolist() == [0, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_frames_of_all_facades_go_back_in(driver, store_factory, backend):
    values = {"v": pd.array([1, None], "Int64"), "w": [DATE(2200, 1, 1), None]}
    build(store_factory, seed=frame(x=[DATE(2020, 1, 1), DATE(2020, 1, 2)], p=[0, 1], **values))
    before = query_cube_arrow(CUBE, store_factory)
    options = {"dtype_backend": backend} if backend else {}
    (result,) = driver.query_cube(cube=CUBE, store=store_factory, **options)
    if driver.groups_share_types:
        # Spark itself has integers with gaps; pandas makes floats of what the driver returns
        result = result.astype({"v": "Int64"})
    driver.append_to_cube(data=result, cube=CUBE, store=store_factory)
    assert query_cube_arrow(CUBE, store_factory) == before


def test_times_of_day_are_no_dates_in_any_facade(driver, store_factory):
    build(store_factory, seed=frame(x=[0], p=[0], v=[DATE(2020, 1, 1)]))
    more = frame(x=[1, 2], p=[0, 0], v=pd.to_datetime(["2020-01-01 00:00", "2020-01-01 05:00"]))
    with refuses(store_factory, ValueError, "v", "timestamp", "date32", garbage=True):
        driver.append_to_cube(data=more, cube=CUBE, store=store_factory)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dates_as_object", [True, False])
def test_reads_of_datasets_go_back_in(store_factory, backend, dates_as_object):
    numbers = pa.array([decimal.Decimal("1.10"), None], pa.decimal128(9, 2))
    data = pa.table({"d": [DATE(2020, 1, 1), FAR], "i": [LARGE, None], "n": numbers})
    api.store_dataframes_as_dataset(store_factory, "ds", [data])
    result = api.read_table("ds", store_factory, dtype_backend=backend, dates_as_object=dates_as_object)
    api.update_dataset_from_dataframes([result], store_factory, "ds")
    found = pa.table(api.read_table("ds", store_factory, dtype_backend="pyarrow"))
    assert found.sort_by("d").to_pylist() == [row for row in data.to_pylist() for _ in range(2)]


# one frame ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("condition", [C("x") == 9, C("n") == 9, C("p") == 9])
def test_an_empty_answer_has_columns_and_types(store_factory, gaps, condition, backend):
    empty = eager_cube.query_cube_df(gaps, store_factory, condition, dtype_backend=backend)
    full = eager_cube.query_cube_df(gaps, store_factory, C("p") == 0, dtype_backend=backend)
    assert len(empty) == 0
    assert list(empty.columns) == ["x", "d", "p", "f", "flag", "id", "n", "own", "s"]
    expected = types_of([full])[0]
    if backend is None:
        expected["own"] = "int64"
    assert types_of([empty]) == [expected]
    assert (
        query_cube_table(gaps, store_factory, condition).schema
        == query_cube_table(gaps, store_factory).schema
    )


@pytest.mark.parametrize("function", [eager_cube.query_cube_df, query_cube_table, query_cube_polars])
def test_arguments_of_one_frame(store_factory, gaps, function):
    with pytest.raises(ValueError, match="columns or payload_columns, not both"):
        function(gaps, store_factory, columns=["f"], payload_columns=["f"])
    with pytest.raises(ValueError, match="nowhere"):
        function(gaps, store_factory, columns=["nowhere"])
    frames = (function(gaps, store_factory, **{name: ["s", "f"]}) for name in ("columns", "payload_columns"))
    assert next(frames).equals(next(frames))
    for limit in (-1, 1.5, True, "3"):
        with pytest.raises(ValueError, match="limit is a number of rows"):
            function(gaps, store_factory, limit=limit)


def test_polars(store_factory, gaps):
    found = query_cube_polars(gaps, store_factory, columns=["id", "flag"])
    assert found.schema == {"x": pl.Int64, "d": pl.Date, "p": pl.Int64, "id": pl.Int64, "flag": pl.Boolean}
    assert found["id"].to_list() == [LARGE, LARGE, None, None]
    assert query_cube_polars(gaps, store_factory, C("x") == 9).schema["id"] == pl.Int64


@pytest.mark.parametrize("limit, n_files", [(0, 0), (1, 1), (2, 1), (3, 2), (5, 4), (2**70, 20)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_limit_stops_reading(limit, n_files, backend):
    store = Same.of(CountingStore(memory()))
    build(store, seed=frame(x=range(40), p=[x % 20 for x in range(40)], v=range(40)))
    store().reset()
    found = eager_cube.query_cube_df(CUBE, store, limit=limit, dtype_backend=backend)
    assert len({key for _, key in store().log if "/table/p=" in key}) == n_files
    assert len(found) == min(limit, 40)
    assert found["x"].is_monotonic_increasing
    assert (found["x"] == found["v"]).all()


def test_limit_keeps_conditions(store_factory):
    build(store_factory, seed=frame(x=range(9), p=[x % 3 for x in range(9)], v=range(9)))
    found = eager_cube.query_cube_df(CUBE, store_factory, C("v") >= 7, limit=5)
    assert sorted(found["v"]) == [7, 8]
