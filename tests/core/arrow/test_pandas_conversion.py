import datetime
import decimal
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.core import pandas_conversion
from kartothek_cube.core.pandas_conversion import _split_large, extension_dtypes, index_columns

DAY = datetime.date(2020, 1, 1)


def obj(*values):
    return pd.Series(values, dtype=object)


@pytest.mark.parametrize(
    "column, dtype",
    [
        (pd.Series([1], dtype="int8"), pa.int8()),
        *((pd.Series([1.0], dtype=dtype), pa.float32()) for dtype in ("float32", "float16")),
        *((pd.Series(["a"], dtype=dtype), pa.string()) for dtype in ("str", "string")),
        (pd.Series(["a"], dtype=pd.ArrowDtype(pa.large_string())), pa.string()),
        (obj("a", None), pa.string()),
        (pd.Categorical(["a", "b"]), pa.string()),
        (pd.Categorical([1, 2]), pa.int64()),
        (obj(b"a"), pa.binary()),
        *((column, pa.null()) for column in (obj(None), obj(np.nan), obj())),
        (pd.Series([], dtype="string"), pa.string()),
        (obj(True, None), pa.bool_()),
        (pd.Series([np.nan]), pa.float64()),
        (pd.Series([1, None], dtype="Int8"), pa.int8()),
        (pd.Series([True], dtype="boolean"), pa.bool_()),
        (obj(DAY), pa.date32()),
        (pd.Series(["2020-01-01"], dtype="datetime64[s]"), pa.timestamp("ns")),
        (pd.Series(["2020-01-01"], dtype="datetime64[us, UTC]"), pa.timestamp("ns", "UTC")),
        (obj(datetime.time(1)), pa.time64("us")),
        (obj(decimal.Decimal("1.5")), pa.decimal128(2, 1)),
        (obj(np.array([1], "int8")), pa.list_(pa.int8())),
        (obj(["a"]), pa.list_(pa.string())),
        (obj({"a": "b"}), pa.struct([("a", pa.string())])),
    ],
)
def test_from_pandas_types(column, dtype):
    table = pandas_conversion.from_pandas(pd.DataFrame({"x": column}))
    assert table.schema.types == [dtype]
    assert table.num_rows == len(column)


def test_from_pandas_metadata():
    df = pd.DataFrame({"x": pd.Series([1], dtype="Int64"), "y": pd.Series(["a"], dtype="string"), "z": ["a"]})
    table = pandas_conversion.from_pandas(df.set_index(pd.Index([7], name="p")))
    assert table.column_names == ["x", "y", "z"]
    assert list(table.schema.metadata) == [b"pandas"]
    content = json.loads(table.schema.metadata[b"pandas"])
    assert content["index_columns"] == []
    assert json.dumps(content, sort_keys=True).encode() == table.schema.metadata[b"pandas"]
    columns = {c["name"]: (c["field_name"], c["pandas_type"], c["numpy_type"]) for c in content["columns"]}
    types = {"x": ("int64", "Int64"), "y": ("unicode", "string"), "z": ("unicode", "object")}
    assert columns == {name: (name, *kinds) for name, kinds in types.items()}
    df = pd.DataFrame([[1, 2, 3]], columns=[0, b"b", "c"])
    assert pandas_conversion.from_pandas(df).column_names == ["0", "b", "c"]
    assert list(df.columns) == [0, b"b", "c"]


TIMES = pa.array([0, 1000], pa.timestamp("ns"))
STORABLE = pa.table({"x": pa.array([1, None], pa.int8()), "y": ["a", "b"], "t": TIMES})


@pytest.mark.parametrize("source", [[1], pd.Series([1]), pa.chunked_array([[1]]), None])
def test_as_table_names_what_it_got(source):
    with pytest.raises(TypeError, match=f"got {type(source).__name__}"):
        pandas_conversion.as_table(source)


def test_to_storage_drops_unnamed_index_and_copies_nothing_that_fits():
    table = pa.Table.from_pandas(pd.DataFrame({"x": [1]}, index=[7]))
    assert table.column_names == ["x", "__index_level_0__"]
    assert pandas_conversion.to_storage(table).column_names == ["x"]
    stored = pandas_conversion.to_storage(STORABLE)
    addresses = [[b and b.address for b in t["x"].chunk(0).buffers()] for t in (STORABLE, stored)]
    assert addresses[0] == addresses[1]


def test_split_large_strings():
    column = pa.chunked_array([["a" * 10] * 20, ["b"]], pa.large_string())
    split = _split_large(column, limit=100)
    assert split.equals(column)
    assert max(chunk.nbytes for chunk in split.chunks if len(chunk) > 1) <= 100
    assert _split_large(column).num_chunks == 2


def test_pandas_round_trip():
    columns = {"int8": [1, 2], "uint64": [0, 2**64 - 1], "float32": [1.5, np.nan], "bool": [True, False]}
    columns |= {"string": ["a", None]}
    columns |= {"Int64": [2**62 + 1, None], "Float32": [1.5, None], "boolean": [True, None]}
    columns |= dict.fromkeys(("datetime64[ns]", "datetime64[ns, Europe/Berlin]"), ("2020-01-01", None))
    df = pd.DataFrame({dtype: pd.Series(values, dtype=dtype) for dtype, values in columns.items()})
    df = df.assign(s=["a", "ü"], y=obj(b"\xff", None))
    pd.testing.assert_frame_equal(pandas_conversion.to_pandas(pandas_conversion.from_pandas(df)), df)


def test_to_pandas_nulls_and_no_rows():
    table = pa.table({"i": [1, None], "b": [True, None], "s": ["a", None], "n": pa.nulls(2)})
    df = pandas_conversion.to_pandas(table)
    assert [str(dtype) for dtype in df.dtypes] == ["float64", "object", str(pd.Series(["a"]).dtype), "object"]
    assert df["b"].tolist() == [True, None]
    assert df["i"].isna().tolist() == df["s"].isna().tolist() == [False, True]
    categories = pandas_conversion.to_pandas(table, categories=["n"])["n"].cat.categories
    assert len(categories) == 0
    with pytest.raises(ValueError, match="categorical do not exist: zz"):
        pandas_conversion.to_pandas(table, categories=["zz"])
    schema = pa.schema([("s", pa.string()), ("d", pa.date32()), ("n", pa.null())])
    df = pandas_conversion.to_pandas(schema.empty_table())
    assert len(df) == 0
    assert [str(dtype) for dtype in df.dtypes] == [str(pd.Series(["a"]).dtype), "datetime64[ns]", "object"]


@pytest.mark.parametrize("as_object", [False, True])
def test_to_pandas_dates(as_object):
    table = pa.table({"d": [DAY, None], "l": [[DAY], []], "c": [DAY, DAY]})
    df = pandas_conversion.to_pandas(table, dates_as_object=as_object, categories=["c"])
    expected = DAY if as_object else pd.Timestamp(DAY)
    assert str(df["d"].dtype) == ("object" if as_object else "datetime64[ns]")
    assert df["d"][0] == expected
    assert df["l"][0].dtype == (object if as_object else "datetime64[ns]")
    assert df["c"].cat.categories.tolist() == [expected]


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_to_pandas_time_stamps_are_nanoseconds(unit, zone):
    df = pandas_conversion.to_pandas(pa.table({"t": pa.array([1, None], pa.timestamp(unit, zone))}))
    assert str(df["t"].dtype) == ("datetime64[ns]" if zone is None else f"datetime64[ns, {zone}]")


def test_range_of_nanoseconds():
    with pytest.raises(ValueError, match="'t'"):
        pandas_conversion.to_pandas(pa.table({"x": [1], "t": pa.array([2**62], pa.timestamp("ms"))}))
    days = pa.array([datetime.date(1677, 9, 22), datetime.date(2262, 4, 11)])
    assert pandas_conversion.to_pandas(pa.table({"d": days})).dtypes["d"] == "datetime64[ns]"


@pytest.mark.parametrize("far", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)])
@pytest.mark.parametrize("as_object", [False, True])
def test_to_pandas_dates_that_nanoseconds_do_not_hold(as_object, far):
    days = pa.array([DAY, None, far])
    table = pa.table({"d": days, "near": [DAY] * 3, "l": [[far], [], None], "c": days})
    table = table.append_column("e", days.cast("date64"))
    df = pandas_conversion.to_pandas(table, dates_as_object=as_object, categories=["c"])
    kinds = {name: str(df[name].dtype) for name in ("d", "near", "e")}
    if as_object:
        assert set(kinds.values()) == {"object"}
        expected = [DAY, None, far]
    else:
        assert kinds == {"d": "datetime64[s]", "near": "datetime64[ns]", "e": "datetime64[s]"}
        expected = [pd.Timestamp(DAY), None, pd.Timestamp(far)]
    for name in ("d", "c", "e"):
        assert df[name].astype(object).where(df[name].notna(), None).tolist() == expected
    assert df["l"][0].astype("datetime64[D]").tolist() == [far]


@pytest.mark.parametrize("dtype", [pa.string(), pa.int64(), pa.timestamp("ns"), pa.float64(), pa.bool_()])
def test_categories_have_a_type_even_if_there_are_none(dtype):
    tables = [pa.table({"a": pa.array([value], dtype)}) for value in (None, pa.scalar(1).cast(dtype).as_py())]
    empty, one = (pandas_conversion.to_pandas(t, categories=["a"])["a"].cat.categories for t in tables)
    assert (len(empty), len(one)) == (0, 1)
    assert empty.dtype == one.dtype


@pytest.mark.parametrize("dtype", [pa.int64(), pa.float64(), pa.timestamp("us", "UTC"), pa.bool_()])
@pytest.mark.parametrize("width", [1, 2])
def test_to_pandas_columns_can_be_written(dtype, width):
    table = pa.table({f"x{i}": pa.array([0, 1], pa.int64()).cast(dtype) for i in range(width)})
    df = pandas_conversion.to_pandas(table)
    df.loc[0, "x0"] = df.loc[1, "x0"]
    array = df["x0"].array
    array[1] = array[0]
    assert table["x0"].combine_chunks().equals(pa.array([0, 1], pa.int64()).cast(dtype))


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"columns": 1, "index_columns": 1}',
        b'{"columns": [1, {"name": 1, "numpy_type": "Int64"}, {"name": "x", "numpy_type": 1}]}',
        b'{"index_columns": [1, {}]}',
        b'{"columns": [{"name": "x", "numpy_type": "string"}, {"name": "y", "numpy_type": "string"}]}',
        b'{"columns": [{"name": "x", "numpy_type": "Sparse[int]"}], "index_columns": ["zz"]}',
    ],
)
def test_foreign_pandas_metadata_is_not_trusted(metadata):
    table = pa.table({"x": [1]}).replace_schema_metadata({"pandas": metadata})
    assert extension_dtypes(table.schema) == {}
    assert index_columns(table.schema) == []
    assert pandas_conversion.to_pandas(table).to_dict("list") == {"x": [1]}
