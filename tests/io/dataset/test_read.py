"""Reading datasets: rows, columns, types, order; one frame per partition or one for all."""

import datetime
import json
import math
from itertools import chain

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pyarrow as pa
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.core.errors import DatasetNotFoundError
from tests.support.stored_files import all_rows, frame, header, keys, rows
from tests.support.stores import CountingStore, ReadOnlyStore, Same, Wrapped

DAY, NEXT_DAY = datetime.date(2020, 1, 31), datetime.date(2020, 2, 1)
PARTS = [frame(z=[3, 1], p=[2, 2], y=["c", "a"], q=["a", "b"]), frame(z=[2], p=[1], y=["b"], q=["a"])]


@pytest.fixture
def parted(memory):
    """Partitions (p, q) = (2, a), (2, b), (1, a) with one row each."""
    api.store_dataframes_as_dataset(memory, "u", PARTS, partition_on=["p", "q"], secondary_indices=["y"])
    return memory


@pytest.fixture
def flat(memory):
    api.store_dataframes_as_dataset(memory, "u", [frame(y=["a", "b"], x=[1, 2]), frame(y=["c"], x=[3])])
    return memory


def test_frames_come_in_the_order_of_commit_with_all_columns(io, parted):
    assert [list(df.columns) for df in io.read(parted)] == [["p", "q", "z", "y"]] * 3
    assert list(api.read_table("u", parted).columns) == ["p", "q", "y", "z"]
    for df in io.read(parted):
        df.loc[0, "z"] = 7
        df["p"] = df["p"] + 1
    found = all_rows(io.read(parted, columns=["q"], predicates=[[("z", "<", 3), ("p", "==", 2)]]))
    assert found == [{"q": []}, {"q": ["b"]}]
    assert len(io.read(Wrapped(ReadOnlyStore, parted), predicates=[[("y", "==", "a")]])) == 1
    api.update_dataset_from_dataframes([frame(p=[0], q=["z"], y=["z"], z=[9])], parted, "u")
    assert [df["z"].tolist() for df in io.read(parted)] == [[3], [1], [2], [9]]
    assert api.read_table("u", parted)["z"].tolist() == [3, 1, 2, 9]


@pytest.mark.parametrize("predicates, counts", [(None, [2, 1]), ([[("x", ">", 1)]], [1, 1])])
def test_no_columns(io, flat, predicates, counts):
    frames = io.read(flat, columns=[], predicates=predicates)
    assert [df.shape for df in frames] == [(count, 0) for count in counts]
    assert api.read_table("u", flat, columns=[], predicates=predicates).shape == (sum(counts), 0)
    batches = api.read_dataset_as_record_batches("u", flat, columns=[], predicates=predicates)
    assert batches.read_all().shape == (sum(counts), 0)


@pytest.mark.parametrize("columns", [["x"], ["p"], []])
def test_rows_count_if_a_predicate_is_known_for_some_files_and_checked_in_others(io, memory, columns):
    io.store(memory, [frame(p=[1, 1, 2], x=[0, 1, 3])], partition_on="p")
    options = {"columns": columns, "predicates": [[("p", "==", 2)], [("x", "<", 1)]]}
    assert [df.shape for df in io.read(memory, **options)] == [(1, len(columns))] * 2
    assert api.read_table("u", memory, **options).shape == (2, len(columns))
    assert api.read_table_arrow("u", memory, **options).num_rows == 2


@pytest.mark.parametrize("value, other", [("a", "b"), (b"a", b"b"), (1, 2), (DAY, NEXT_DAY)], ids=str)
@pytest.mark.parametrize("columns", [["y"], ["x", "y"]])
def test_a_predicate_on_a_column_of_nulls_in_the_first_file_meets_rows_of_others(
    memory, value, other, columns
):
    empty = frame(x=pd.Series([None], dtype=object), y=[0])
    api.store_dataframes_as_dataset(memory, "u", [empty, frame(x=[value], y=[1]), frame(x=[other], y=[2])])
    for op, operand, found in [
        ("==", value, [1]),
        ("!=", other, [1]),
        (">=", value, [1, 2]),
        ("in", [value], [1]),
    ]:
        table = api.read_table("u", memory, columns=columns, predicates=[[("x", op, operand)]])
        assert table["y"].tolist() == found, op


@pytest.mark.parametrize(
    "narrow, wide, value",
    [("int8", "int64", 300), ("uint32", "uint64", 2**63), ("float32", "float64", 1e300)],
)
@pytest.mark.parametrize("columns", [["y"], ["x", "y"]])
@pytest.mark.parametrize("first", ["narrow", "wide"])
def test_a_predicate_that_the_type_of_one_file_cannot_meet_meets_rows_of_others(
    memory, narrow, wide, value, columns, first
):
    frames = [frame(x=np.array([1], narrow), y=[0]), frame(x=np.array([value], wide), y=[1])]
    for df in frames if first == "narrow" else frames[::-1]:
        api.update_dataset_from_dataframes([df], memory, "u")
    for op, operand in [("==", value), (">=", value), ("in", [value])]:
        table = api.read_table("u", memory, columns=columns, predicates=[[("x", op, operand)]])
        assert table["y"].tolist() == [1], op


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"columns": ["x", "zz"]}, ValueError, "columns.*unknown column zz; available: x, y"),
        ({"columns": ["X"]}, ValueError, "did you mean x"),
        ({"columns": "x"}, TypeError, "columns has to be a list"),
        ({"columns": ("x",)}, TypeError, "columns has to be a list"),
        ({"columns": ["x", "x"]}, ValueError, "duplicates"),
        ({"categoricals": "x"}, TypeError, "categoricals has to be a list"),
        ({"categoricals": ["zz"]}, ValueError, "categoricals.*unknown column zz"),
        ({"columns": ["x"], "categoricals": ["y"]}, ValueError, "categoricals.*unknown column y"),
        ({"predicates": []}, ValueError, "[Ee]mpty"),
        ({"predicates": [[]]}, ValueError, "empty"),
        ({"predicates": [("x", "==", 1)]}, ValueError, "list"),
        ({"predicates": [[("zz", "==", 1)]]}, ValueError, "zz"),
        ({"predicates": [[("x", "==", "1")]]}, TypeError, "'x'"),
        ({"predicates": [[("x", "~", 1)]]}, NotImplementedError, "~"),
        ({"predicates": [[("y", "==", b"\xff")]]}, ValueError, "'y': .* is no valid Unicode"),
        ({"predicates": [[("y", "in", ["a", "\ud800"])]]}, ValueError, "'y': .* is no valid Unicode"),
        ({"table_name": "core"}, RuntimeError, "unknown table core; available: table"),
    ],
)
def test_bad_arguments(io, flat, arguments, error, text):
    with pytest.raises(error, match=text):
        io.read(flat, **arguments)


@pytest.mark.parametrize("pushdown", [True, False])
@pytest.mark.parametrize(
    "predicates, found",
    [
        ([[("p", "==", 2)]], [[3], [1]]),
        ([[("p", "==", 2), ("q", "!=", "a")]], [[1]]),
        ([[("p", "==", 1)], [("q", "==", "b")]], [[1], [2]]),
        ([[("y", "==", "a")]], [[1]]),
        ([[("y", "in", ["a", "b"]), ("p", "<", 2)]], [[2]]),
        ([[("z", ">", 1)]], [[3], [], [2]]),
        ([[("z", ">", 1), ("p", "==", 2)], [("y", "==", "a")]], [[3], [1]]),
        ([[("p", "==", 2), ("z", "==", 3)], [("p", "==", 1)]], [[3], [], [2]]),
        ([[("p", "==", 7)]], []),
        ([[("y", "==", "zz")]], []),
        ([[("p", "in", [])]], []),
    ],
)
def test_predicates(io, parted, predicates, found, pushdown):
    options = {"predicates": predicates, "predicate_pushdown_to_io": pushdown}
    assert [df["z"].tolist() for df in io.read(parted, **options)] == found
    assert api.read_table("u", parted, **options)["z"].tolist() == list(chain.from_iterable(found))


def test_a_read_opens_header_needed_indices_and_needed_files(parted):
    counting = CountingStore(parted())
    assert api.read_dataset_as_dataframes("u", counting, predicates=[[("y", "==", "zz")]]) == []
    read = ["u.by-dataset-metadata.json", header(parted)["indices"]["y"]]
    assert counting.log == [("get", key) for key in read]
    counting.reset()
    api.read_table("u", counting, predicates=[[("p", "==", 2), ("y", "==", "a")]])
    [opened] = [key for _, key in counting.log if "/table/p=" in key]
    assert opened.startswith("u/table/p=2/q=b/")


@pytest.mark.parametrize("as_object", [True, False])
def test_dates(io, memory, as_object):
    df = frame(p=[DAY, NEXT_DAY], d=[DAY, None], x=[1, 2])
    io.store(memory, [df], partition_on="p", secondary_indices="d")
    expected = [DAY, NEXT_DAY] if as_object else [pd.Timestamp(DAY), pd.Timestamp(NEXT_DAY)]
    for dispatch_by in (None, "p"):
        frames = io.read(memory, dates_as_object=as_object, dispatch_by=dispatch_by)
        assert [df["p"][0] for df in frames] == expected
        assert frames[0]["d"][0] == expected[0]
        assert pd.isna(frames[1]["d"][0])
    table = api.read_table("u", memory, dates_as_object=as_object)
    assert table.dtypes["p"] == (object if as_object else "datetime64[ns]")
    found = api.read_table("u", memory, dates_as_object=as_object, predicates=[[("d", "==", DAY)]])
    assert found["x"].tolist() == [1]


FAR, OLD = datetime.date(9999, 12, 31), datetime.date(1, 1, 1)


@pytest.mark.parametrize("as_object", [True, False])
@pytest.mark.parametrize("dispatch_by", [None, "p", "i"])
def test_dates_that_nanoseconds_do_not_hold(io, memory, as_object, dispatch_by):
    df = frame(p=[DAY, FAR, OLD], i=[OLD, DAY, FAR], d=[FAR, None, DAY])
    io.store(memory, [df], partition_on="p", secondary_indices="i")
    frames = io.read(memory, dates_as_object=as_object, dispatch_by=dispatch_by)
    frames.append(api.read_table("u", memory, dates_as_object=as_object, categoricals=["p"]))
    for column in ("p", "i", "d"):
        values = [v for f in frames for v in f[column] if not pd.isna(v)]
        assert {type(v) for v in values} == {datetime.date if as_object else pd.Timestamp}
        days = values if as_object else [v.date() for v in values]
        assert sorted(days) == sorted([*df[column].dropna()] * 2)
    eager = api.read_dataset_as_dataframes("u", memory, dates_as_object=as_object)
    assert {str(dtype) for f in eager for dtype in f.dtypes} == {"object" if as_object else "datetime64[s]"}
    for predicate, count in ((("p", "==", FAR), 1), (("i", ">", DAY), 1), (("d", "in", [FAR, DAY]), 2)):
        assert len(api.read_table("u", memory, dates_as_object=as_object, predicates=[[predicate]])) == count


@pytest.mark.parametrize("as_object", [True, False])
def test_indices_of_dates_that_nanoseconds_do_not_hold(memory, as_object):
    df = frame(p=[DAY, FAR], i=[OLD, DAY])
    api.store_dataframes_as_dataset(memory, "u", [df], partition_on="p", secondary_indices="i")
    factory = api.DatasetFactory("u", memory).load_all_indices()
    for column, days in (("p", [DAY, FAR]), ("i", [OLD, DAY])):
        expected = days if as_object else [pd.Timestamp(day) for day in days]
        index = factory.indices[column]
        assert [v if as_object else pd.Timestamp(v) for v in index.observed_values(as_object)] == expected
        assert index.as_flat_series(date_as_object=as_object).index.tolist() == expected
        assert sorted(factory.get_indices_as_dataframe(date_as_object=as_object)[column]) == expected


@pytest.mark.parametrize("index", [None, "i"])
def test_dask_puts_far_dates_together(memory, index):
    df = frame(p=[DAY, FAR, OLD], i=[OLD, DAY, FAR])
    api.store_dataframes_as_dataset(memory, "u", [df], partition_on="p", secondary_indices="i")
    ddf = api.read_dataset_as_ddf("u", memory, dates_as_object=False, dask_index_on=index)
    result = ddf.compute(scheduler="sync").reset_index()
    assert sorted(result["i"]) == [pd.Timestamp(day) for day in (OLD, DAY, FAR)]
    assert sorted(result["p"]) == [pd.Timestamp(day) for day in (OLD, DAY, FAR)]


@pytest.mark.parametrize("dtype_backend", [None, "numpy_nullable", "pyarrow"])
def test_dask_puts_categories_of_far_dates_together(memory, dtype_backend):
    df = frame(p=[1, 2, 3], d=[DAY, FAR, None])
    api.store_dataframes_as_dataset(memory, "u", [df], partition_on="p")
    options = {"categoricals": ["d"], "dates_as_object": False, "dtype_backend": dtype_backend}
    result = api.read_dataset_as_ddf("u", memory, **options).compute(scheduler="sync")["d"]
    assert result.cat.categories.tolist() == [pd.Timestamp(DAY), pd.Timestamp(FAR)]
    assert result.isna().tolist() == [False, False, True]


def test_extension_types_come_back(io, memory):
    df = frame(s=["a", None], i=[1, None], b=[True, None]).astype(
        {"s": "string", "i": "Int8", "b": "boolean"}
    )
    api.store_dataframes_as_dataset(memory, "u", [df, df])
    for found in (io.read(memory)[0], api.read_table("u", memory)[df.columns][:2]):
        pdt.assert_frame_equal(found, df)


@pytest.mark.parametrize("predicates", [None, [[("x", ">", 7)]]], ids=str)
def test_extension_types_of_partition_keys_come_back(io, memory, predicates):
    df = frame(s=["a", "b"], b=[True, False], x=[1, 2]).astype({"s": "string", "b": "boolean"})
    api.store_dataframes_as_dataset(memory, "u", [df], partition_on=["s", "b"])
    table = api.read_table("u", memory, predicates=predicates)
    for found in (*io.read(memory, predicates=predicates), table):
        assert found.dtypes.equals(df.dtypes)


def test_categories_per_partition(io, memory):
    io.store(memory, [frame(x=["b", "a", "b"]), frame(x=["c", None, "a"])])
    frames = io.read(memory, categoricals=["x"])
    assert [df["x"].cat.categories.tolist() for df in frames] == [["b", "a"], ["c", "a"]]
    assert not any(df["x"].cat.ordered for df in frames)
    assert rows(frames[1]) == {"x": ["c", None, "a"]}


def test_categories_of_everything(io, memory):
    io.store(memory, [frame(x=["z"]), frame(x=["c", "b", "c"]), frame(x=["d", "a"])])
    table = api.read_table("u", memory, categoricals=["x"])
    assert table["x"].cat.categories.tolist() == ["c", "b", "a", "d", "z"]
    assert table["x"].tolist() == ["z", "c", "b", "c", "d", "a"]
    (df,) = io.read(memory, categoricals=["x"], dispatch_by=[])
    pdt.assert_frame_equal(df, table)


@pytest.mark.parametrize("as_object", [True, False])
@pytest.mark.parametrize(
    "values",
    [
        *([1, 2], [1.5, 2.5], [True, False], [DAY, NEXT_DAY], ["a", "b"], [b"a", b"b"]),
        pd.to_datetime(["2020-01-31", "2020-02-01"]),
        pd.to_datetime(["2020-07-01 12:00", "2020-12-01 12:00"]).tz_localize("Europe/Berlin"),
        pd.DatetimeIndex(["2020-01-31", "9999-12-31"], dtype="datetime64[us]"),
        pd.DatetimeIndex(["2020-01-31", "9999-12-31"], dtype="datetime64[us, Europe/Berlin]"),
    ],
)
def test_categories_of_every_type(io, memory, values, as_object):
    df = frame(p=values, x=values)
    io.store(memory, [df], partition_on="p")
    options = {"categoricals": ["p", "x"], "dates_as_object": as_object}
    plain = api.read_table("u", memory, dates_as_object=as_object)
    table = api.read_table("u", memory, **options)
    assert [str(dtype) for dtype in table.dtypes] == ["category", "category"]
    pdt.assert_frame_equal(table.astype(plain.dtypes), plain)
    assert table["x"].cat.categories.dtype == plain["x"].dtype
    pdt.assert_frame_equal(io.read(memory, **options)[0].astype(plain.dtypes), plain[:1])


@pytest.mark.parametrize("index", [None, "x"])
def test_categories_have_one_zero_and_no_nan(io, memory, index):
    table = pa.table({"x": pa.array([0.0, -0.0, math.nan, None, 1.5], from_pandas=False)})
    io.store(memory, [table], secondary_indices=index)
    ddf = api.read_dataset_as_ddf("u", memory, categoricals=["x"])
    frames = [api.read_table("u", memory, categoricals=["x"]), ddf.compute(scheduler="sync")]
    for df in [*io.read(memory, categoricals=["x"]), *frames]:
        assert df["x"].cat.categories.tolist() == [0, 1.5]
        assert df["x"].dropna().tolist() == [0, 0, 1.5]


@pytest.mark.parametrize("options", [{"secondary_indices": "x"}, {"partition_on": "x"}], ids=["index", "key"])
def test_categories_have_one_zero_if_another_write_has_the_other_one(io, memory, options):
    io.store(memory, [frame(x=[-0.0], y=[1])], **options)
    io.update(memory, [frame(x=[0.0], y=[2])])
    frames = [*io.read(memory, categoricals=["x"]), api.read_table("u", memory, categoricals=["x"])]
    assert [df["x"].tolist() for df in frames] == [[0], [0], [0, 0]]


@pytest.mark.parametrize("value", [[1], {"a": 1}], ids=["list", "struct"])
def test_nested_columns_cannot_be_categorical(io, memory, value):
    io.store(memory, [frame(x=pd.Series([value]), y=[1])])
    with pytest.raises(TypeError, match=r"'x'.*cannot be categorical"):
        io.read(memory, categoricals=["y", "x"])
    with pytest.raises(TypeError, match=r"'x'.*cannot be categorical"):
        api.read_dataset_as_ddf("u", memory, categoricals=["y", "x"])  # without compute


def test_categories_of_nothing(memory):
    api.store_dataframes_as_dataset(memory, "u", [frame(x=["a"], y=[1])], secondary_indices="x")
    empty = api.read_table("u", memory, predicates=[[("x", "==", "b")]], categoricals=["x", "y"])
    assert [str(dtype) for dtype in empty.dtypes] == ["category", "category"]
    api.store_dataframes_as_dataset(memory, "v", [frame(x=pd.Series([None], dtype=object))])
    assert api.read_table("v", memory, categoricals=["x"])["x"].isna().tolist() == [True]


@pytest.mark.parametrize("as_object", [True, False])
@pytest.mark.parametrize("columns", [None, ["d", "p"], []])
def test_empty_table_has_the_types_of_other_results(io, memory, as_object, columns):
    df = frame(p=[1], i=1, f=1, d=DAY, s="a", t=pd.Timestamp(0)).astype({"i": "int8", "f": "float32"})
    io.store(memory, [df], partition_on="p")
    options = {"predicates": [[("p", "==", 7)]], "columns": columns, "dates_as_object": as_object}
    assert io.read(memory, **options) == []
    expected = {"p": "int64", "d": "object" if as_object else "datetime64[ns]", "f": "float32", "i": "int8"}
    expected |= {"s": str(df.dtypes["s"]), "t": "datetime64[ns]"}
    empty = api.read_table("u", memory, **options)
    wanted = list(expected) if columns is None else columns
    assert empty.dtypes.astype(str).to_dict() == {name: expected[name] for name in wanted}
    assert list(empty.columns) == wanted
    assert isinstance(empty.index, pd.RangeIndex)


def test_missing_datasets_and_files(io, parted):
    with pytest.raises(DatasetNotFoundError, match=r"'v.by-dataset-metadata.json' nor 'v.by.*msgpack.zstd'"):
        io.read(parted, "v")
    key = next(key for key in keys(parted) if key.startswith("u/table/p=1"))
    parted().delete(key)
    with pytest.raises(KeyError, match=key):
        io.read(parted)


@pytest.mark.parametrize("kind", ["text", "metadata"])
def test_what_is_no_factory(io, flat, kind):
    factory = "u" if kind == "text" else api.DatasetMetadata.load_from_store("u", flat)
    with pytest.raises(TypeError, match="factory is a DatasetFactory"):
        io.read(None, None, factory=factory)


def test_factory(io, parted):
    counting = CountingStore(parted())
    factory = api.DatasetFactory("u", Same.of(counting))
    predicates = [[("y", "==", "a")]]
    first = io.read(None, None, factory=factory, predicates=predicates)
    counting.reset()
    assert all_rows(io.read(None, None, factory=factory, predicates=predicates)) == all_rows(first)
    # header and index are known by now
    assert [key for _, key in counting.log if "/table/p=" not in key] == []


def test_factory_without_schema(io, parted):
    factory = api.DatasetFactory("u", parted, load_schema=False)
    [df] = io.read(None, None, factory=factory, predicates=[[("p", "==", 1)]])
    assert df["z"].tolist() == [2]
    io.update(None, [], None, factory=factory, delete_scope=[{"p": "2"}])
    assert len(io.read(parted)) == 1


def test_an_iterator_reads_when_it_is_advanced(parted):
    missing = api.read_dataset_as_dataframes__iterator("v", parted)
    with pytest.raises(KeyError):
        next(missing)
    counting = CountingStore(parted())
    frames = api.read_dataset_as_dataframes__iterator("u", counting)
    for count in range(3):
        assert sum("/table/p=" in key for _, key in counting.log) == count
        next(frames)


def test_keys_of_other_names(io, memory):
    """A header may name its files as it likes, within the dataset."""
    io.store(memory, [frame(x=[1])])
    content = header(memory)
    (label,) = content["partitions"]
    store = memory()
    store.put("u/table/other.parquet", store.get(f"u/table/{label}.parquet"))
    content["partitions"] = {"a label": {"files": {"table": "u/table/other.parquet"}}}
    store.put("u.by-dataset-metadata.json", json.dumps(content).encode())
    assert all_rows(io.read(memory)) == [{"x": [1]}]
    assert all_rows(io.read(memory, dispatch_by=[])) == [{"x": [1]}]


def test_columns_in_another_order(memory):
    api.store_dataframes_as_dataset(memory, "u", [frame(x=[1], y=["a"]), frame(y=["b"], x=[2])])
    assert rows(api.read_table("u", memory)) == {"x": [1, 2], "y": ["a", "b"]}
    (df,) = api.read_dataset_as_dataframes("u", memory, dispatch_by=[])
    assert rows(df) == {"x": [1, 2], "y": ["a", "b"]}
