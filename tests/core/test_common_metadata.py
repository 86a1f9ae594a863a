import copy
import datetime
import io
import itertools
import json
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartothek_cube.core import common_metadata
from kartothek_cube.core.common_metadata import SchemaWrapper, make_meta
from kartothek_cube.core.errors import CorruptDatasetError, SchemaConflictError
from kartothek_cube.core.schema import schema_file_from_bytes, schema_to_bytes

FRAME = pd.DataFrame(
    {"b": [1], "a": "x", "c": "x", "n": None, "l": None, "s": "x", "i": 1, "d": None, "t": 0}
)
FRAME["l"] = pd.Series([np.array([1], "int8")])
FRAME["d"] = pd.Series([datetime.date(2020, 1, 1)])
FRAME["t"] = pd.Series(["2020-01-01"], dtype="datetime64[us]")
FRAME = FRAME.astype({"b": "int8", "c": "category", "n": object, "s": "string", "i": "Int8"})
TYPES = {"s": pa.string(), "b": pa.int64(), "a": pa.string(), "c": pa.string(), "d": pa.date32()}
NS, CET = pa.timestamp("ns"), pa.timestamp("ns", "CET")
TYPES |= {"i": pa.int64(), "l": pa.list_(pa.int64()), "n": pa.null(), "t": pa.timestamp("ns")}


def schema(origin="o", **fields):
    return make_meta(pa.schema(list(fields.items())), origin)


def test_make_meta():
    meta = make_meta(FRAME, "o", ["s", "zz", "b"])
    assert dict(zip(meta.names, meta.types)) == TYPES
    assert meta.names == list(TYPES)
    assert meta.origin == {"o"}
    content = json.loads(meta.metadata[b"pandas"])
    assert [column["name"] for column in content["columns"]] == meta.names
    numpy_types = {column["name"]: column["numpy_type"] for column in content["columns"]}
    assert (numpy_types["s"], numpy_types["i"], numpy_types["c"]) == ("string", "int64", "object")
    assert content["index_columns"] == []


def test_make_meta_is_the_same_for_all_inputs():
    meta = make_meta(FRAME, "o")
    table = pa.Table.from_pandas(FRAME)
    for source in (table, table.schema, table.to_batches()[0], FRAME.set_index(pd.Index(["q"], name="idx"))):
        assert make_meta(source, "o").equals(meta, check_metadata=True)
    assert make_meta(meta, "other", ["t"]) is meta
    plain = make_meta(pa.schema([("b", pa.int8()), ("a", pa.large_string())]), "o")
    assert (plain.names, plain.types) == (["a", "b"], [pa.string(), pa.int64()])
    assert plain.pandas_metadata["columns"][1]["pandas_type"] == "int64"
    df = pd.DataFrame({"x": np.arange(3), "y": pd.Series(["a"] * 3, dtype="string")})
    assert make_meta(df.iloc[:0], "o") == make_meta(df, "o")
    assert make_meta(pd.DataFrame({"x": pd.Series([], dtype=object)}), "o").types == [pa.null()]


@pytest.mark.parametrize("wrong", [1, "x", None, [pa.field("x", pa.int64())]])
def test_make_meta_names_what_it_got(wrong):
    with pytest.raises(ValueError, match=type(wrong).__name__):
        make_meta(wrong, "o")


CATEGORY = pa.dictionary(pa.int8(), pa.large_string())
IN_UTC = "datetimetz", "datetime64[ns]", {"timezone": "UTC"}


@pytest.mark.parametrize(
    "given, expected",
    [
        ((pa.int8(), "int8", "int8"), (pa.int64(), "int64", "int64")),
        ((pa.uint16(), "uint16", "uint16"), (pa.uint64(), "uint64", "uint64")),
        ((pa.float32(), "float32", "float32"), (pa.float64(), "float64", "float64")),
        ((pa.list_(pa.int8()), "list[int8]", "object"), (pa.list_(pa.int64()), "list[int64]", "object")),
        ((CATEGORY, "categorical", "int8", {"num_categories": 1}), (pa.string(), "unicode", "object")),
        ((pa.dictionary(pa.int8(), pa.int16()), None, None), (pa.int64(), None, None)),
        ((pa.large_string(), "unicode", "string"), (pa.string(), "unicode", "string")),
        ((pa.null(), "empty", "object"), (pa.null(), "empty", "object")),
        ((pa.timestamp("us", "UTC"), *IN_UTC), (pa.timestamp("ns", "UTC"), *IN_UTC)),
    ],
)
def test_normalize_type(given, expected):
    given, expected = ((*kinds, None)[:4] for kinds in (given, expected))
    assert common_metadata.normalize_type(*given) == expected


def test_normalize_column_order():
    meta = schema(b=pa.int64(), a=pa.int64(), c=pa.int64())
    ordered = common_metadata.normalize_column_order(meta, ["c", "zz", "b"])
    assert ordered.names == ["c", "b", "a"]
    assert [column["name"] for column in ordered.pandas_metadata["columns"]] == ["c", "b", "a"]
    assert ordered.origin == {"o"}
    plain = pa.schema([("b", pa.int64()), ("a", pa.int64())])
    assert common_metadata.normalize_column_order(plain).names == ["a", "b"]


def test_wrapper_behaves_like_a_schema():
    wrapper = SchemaWrapper(pa.schema([("x", pa.int8()), ("y", pa.large_string())]), {"o", "p"})
    assert len(wrapper) == 2
    assert wrapper[0] == wrapper["x"] == pa.field("x", pa.int8())
    assert [field.name for field in wrapper] == wrapper.names == ["x", "y"]
    assert wrapper.internal().field("y").type == pa.string()
    assert repr(wrapper) == repr(wrapper.internal())
    assert not hasattr(wrapper, "foo")
    wrapper = schema(x=pa.int64())
    wrapper.origin.add("p")
    assert wrapper.origin == {"o"}
    assert wrapper.with_origin({"p", "q"}).origin == {"p", "q"}
    assert wrapper.remove_metadata().origin == {"o__no_metadata"}
    for wrong in (1, {1}, ["a", None]):
        with pytest.raises(TypeError):
            wrapper.with_origin(wrong)
    wrapper = schema(x=pa.int64(), y=pa.string())
    assert wrapper.remove(0).names == ["y"]
    changed = wrapper.set(1, pa.field("z", pa.date32()))
    assert (changed.names, changed.origin) == (["x", "z"], {"o"})
    assert [column["name"] for column in changed.pandas_metadata["columns"]] == ["x", "z"]
    assert wrapper.remove_metadata().metadata is None
    wrapper = make_meta(FRAME, {"o", "p"})
    restored = pickle.loads(pickle.dumps(wrapper))
    assert restored.equals(wrapper, check_metadata=True)
    assert restored.origin == {"o", "p"}


def test_wrapper_equality():
    wrapper = schema(x=pa.int64(), y=pa.string())
    plain = pa.schema([("x", pa.int64()), ("y", pa.large_string())])
    assert wrapper == plain
    assert wrapper == wrapper.remove_metadata()
    assert hash(wrapper) == hash(wrapper.remove_metadata())
    assert not wrapper.equals(plain, check_metadata=True)
    assert wrapper.equals(copy.deepcopy(wrapper), check_metadata=True)
    assert wrapper != wrapper.remove(0)
    assert wrapper != 1
    with pytest.raises(TypeError, match="int"):
        wrapper.equals(1)


def test_wrapper_drops_index_and_foreign_metadata():
    table = pa.Table.from_pandas(pd.DataFrame({"x": [1]}, index=pd.Index(["q"], name="idx")))
    wrapper = SchemaWrapper(table.schema.with_metadata({**table.schema.metadata, b"foo": b"bar"}), "o")
    assert wrapper.names == ["x"]
    assert list(wrapper.metadata) == [b"pandas"]
    two = pa.Table.from_pandas(pd.DataFrame({"x": [1], "p": ["a"], "q": ["b"]}).set_index(["p", "q"]))
    with pytest.raises(NotImplementedError, match="p, q"):
        SchemaWrapper(two.schema, "o")


def test_compatible_types_are_collected():
    a = schema("a", x=pa.null(), y=pa.int64(), z=pa.null())
    b = schema("b", x=pa.string(), y=pa.null(), z=pa.null())
    for order in ([a, b], [b, a], [a, b, a]):
        result = common_metadata.validate_compatible(order)
        assert result.types == [pa.string(), pa.int64(), pa.null()]
        assert result.origin == {"a", "b"}
        assert [c["pandas_type"] for c in result.pandas_metadata["columns"]] == ["unicode", "int64", "empty"]
    known = make_meta(pd.DataFrame({"x": pd.Series(["a"], dtype="string")}), "b")
    result = common_metadata.validate_compatible([schema("a", x=pa.null()), known])
    assert common_metadata.empty_dataframe_from_schema(result).dtypes["x"] == "string"


def struct(**fields):
    return pa.struct(list(fields.items()))


INTS = pa.list_(pa.int64())


@pytest.mark.parametrize(
    "a, b, united",
    [
        (pa.list_(pa.null()), INTS, INTS),
        (pa.map_(pa.string(), pa.null()), pa.map_(pa.string(), NS), pa.map_(pa.string(), NS)),
        (struct(a=pa.list_(pa.null()), b=NS), struct(a=INTS, b=pa.null()), struct(a=INTS, b=NS)),
        (pa.list_(pa.null()), pa.int64(), None),
        (INTS, pa.list_(pa.list_(pa.null())), None),
        (struct(a=pa.null()), struct(b=pa.int64()), None),
        (struct(a=pa.null()), struct(a=pa.int64(), b=pa.int64()), None),
        (struct(a=pa.null(), b=pa.int64()), struct(a=pa.int64(), b=pa.string()), None),
    ],
    ids=str,
)
def test_nulls_in_nested_types_learn_a_type_and_hide_no_conflict(a, b, united):
    for order in ((a, b), (b, a), (a, b, a)):
        schemas = [schema(origin, x=dtype) for origin, dtype in zip("abc", order)]
        if united is None:
            with pytest.raises(SchemaConflictError):
                common_metadata.validate_compatible(schemas)
        else:
            assert common_metadata.validate_compatible(schemas).types == [united]


@pytest.mark.parametrize(
    "a, b",
    [
        (pa.int8(), pa.int64()),
        (pa.dictionary(pa.int8(), pa.string()), pa.large_string()),
        (pa.timestamp("us"), pa.timestamp("ns")),
        (pa.list_(pa.field("element", pa.int8())), pa.list_(pa.int64())),
    ],
)
def test_compatible_flavours(a, b):
    raw = [pa.schema([("x", a)]), pa.schema([("x", b)])]
    both = common_metadata.validate_compatible([SchemaWrapper(s, o) for s, o in zip(raw, "ab")])
    assert both.origin == {"a", "b"}
    common_metadata.validate_shared_columns(raw)


@pytest.mark.parametrize(
    "fields, differing",
    [
        ({"x": pa.float64(), "y": pa.string()}, [("x", {"int64", "double"})]),
        ({"x": pa.string(), "y": pa.string()}, [("x", {"int64", "string"})]),
        ({"x": pa.int64()}, [("y", {"string", "-"})]),
        ({"x": pa.int64(), "y": pa.string(), "z": pa.int64()}, [("z", {"int64", "-"})]),
        ({"x": pa.int64(), "y": pa.binary()}, [("y", {"string", "binary"})]),
    ],
)
def test_incompatible(fields, differing):
    schemas = [schema("right", **fields), schema("left", x=pa.int64(), y=pa.string())]
    with pytest.raises(SchemaConflictError, match=r"{left}.*{right}|{right}.*{left}") as error:
        common_metadata.validate_compatible(schemas)
    head, *rows = (line.split() for line in str(error.value).splitlines()[1:])
    assert head[:3] == ["column", "first", "second"]
    # which of them comes first does not depend on their names
    assert [(row[0], {*row[1:3]}) for row in rows] == differing
    assert all(row[3:] for row in rows)


FLOATS = 'df["x"].astype("float64"), which rounds integers beyond 2**53'
WHOLE = 'widen payload with update_schema, or df["x"].astype("Int64") if all are whole numbers'
DIGITS = (
    'df["x"].astype(pd.ArrowDtype(pa.decimal128(3, 2))), if that holds all values: a dataset keeps the '
    "digits of its first write"
)
LOCAL = 'df["x"].dt.tz_convert("UTC").dt.tz_localize(None), if times of the dataset are those of UTC'


@pytest.mark.parametrize(
    "stored, given, remedy",
    [
        (pa.int64(), pa.float64(), WHOLE),
        (pa.int64(), pa.string(), 'df["x"].astype("Int64")'),
        (pa.float64(), pa.int64(), FLOATS),
        (pa.bool_(), pa.string(), 'df["x"].astype("boolean") keeps gaps in booleans'),
        (pa.string(), pa.int64(), 'df["x"].astype("string")'),
        (NS, CET, LOCAL),
        (CET, NS, "df[\"x\"].dt.tz_localize('CET'), if it holds times of this zone"),
        (pa.timestamp("ns", "UTC"), CET, "df[\"x\"].dt.tz_convert('UTC')"),
        (NS, pa.string(), 'pd.to_datetime(df["x"])'),
        (pa.date32(), NS, 'df["x"].dt.date'),
        (pa.date32(), CET, 'df["x"].dt.tz_convert("UTC").dt.date, for days of UTC'),
        (pa.decimal128(3, 2), pa.decimal128(5, 2), DIGITS),
        (pa.binary(), pa.int64(), "make it binary"),
    ],
)
@pytest.mark.parametrize("first", ["a", "z"])
def test_conflict_with_a_stored_schema_says_what_to_do(stored, given, remedy, first):
    schemas = [schema("u/table/_common_metadata", x=stored), schema(first, x=given)]
    with pytest.raises(SchemaConflictError) as error:
        common_metadata.validate_compatible(schemas)
    title, head, row = str(error.value).splitlines()
    assert title == f"Schema violation: the columns of {first} do not fit those of the dataset."
    assert head.split() == ["column", "stored", "given", "what", "to", "do"]
    assert row.startswith(f"x       {stored}")
    assert row.endswith(f"  {given}  {remedy}".replace('"x"', "'x'"))


@pytest.mark.parametrize(
    "narrow, wide, remedy",
    [
        (pa.int64(), pa.float64(), FLOATS),
        (pa.date32(), NS, 'pd.to_datetime(df["x"])'),
    ],
    ids=str,
)
def test_a_conflict_of_inputs_is_the_same_whatever_their_files_are_called(narrow, wide, remedy):
    """The advice keeps the values of both inputs."""
    rows = set()
    for order in itertools.permutations("abc"):
        types = dict(zip(order, [narrow, wide, pa.uint64()]))
        with pytest.raises(SchemaConflictError) as error:
            common_metadata.validate_compatible([schema(origin, x=types[origin]) for origin in "abc"])
        rows.add(str(error.value).splitlines()[2])
    (row,) = rows
    assert {str(narrow), str(wide)} <= set(row.split())
    assert row.endswith(f"  {remedy}".replace('"x"', "'x'"))


def test_incompatible_order():
    fields = [("y", pa.string()), ("x", pa.int64())]
    schemas = [pa.schema(fields), pa.schema(fields[::-1])]
    with pytest.raises(ValueError, match=r"\(order\) +x, y +y, x +reorder the columns"):
        common_metadata.validate_compatible([SchemaWrapper(s, origin) for s, origin in zip(schemas, "ab")])


def test_long_origins_are_cut():
    with pytest.raises(ValueError) as error:
        common_metadata.validate_compatible([schema("a" * 1000, x=pa.int64()), schema("b", x=pa.string())])
    assert "a" * 190 in str(error.value)
    assert "a" * 201 not in str(error.value)


@pytest.mark.parametrize("function", ["validate_compatible", "validate_shared_columns"])
def test_schemas_with_and_without_pandas(function):
    validate, meta = getattr(common_metadata, function), schema(x=pa.int64())
    mixed = [meta, meta.remove_metadata()]
    with pytest.raises(ValueError, match="ignore_pandas=True"):
        validate(mixed)
    validate(mixed, ignore_pandas=True)


def test_shared_columns_and_no_schemas():
    a, b = schema("a", x=pa.int64(), y=pa.string()), schema("b", x=pa.null(), z=pa.string())
    common_metadata.validate_shared_columns([a, b])
    with pytest.raises(SchemaConflictError, match=r"'x' is int64 in \{a\} but string in \{c\}"):
        common_metadata.validate_shared_columns([b, schema("c", x=pa.string()), a])
    assert common_metadata.validate_compatible([]) is None
    assert common_metadata.validate_shared_columns([]) is None


def test_empty_dataframe():
    meta = make_meta(FRAME, "o", ["s"])
    df = common_metadata.empty_dataframe_from_schema(meta)
    text = str(pd.Series(["a"]).dtype)
    assert df.index.equals(pd.RangeIndex(0))
    assert df.dtypes.map(str).to_dict() == {
        "s": "string", "a": text, "b": "int64", "c": text, "d": "datetime64[ns]", "i": "int64", "l": "object",
        "n": "object", "t": "datetime64[ns]",
    }  # fmt: skip
    chosen = common_metadata.empty_dataframe_from_schema(meta, ["t", "d"], date_as_object=True)
    assert chosen.dtypes.map(str).to_dict() == {"t": "datetime64[ns]", "d": "object"}
    with pytest.raises(ValueError, match="zz"):
        common_metadata.empty_dataframe_from_schema(meta, ["d", "zz"])


def test_schema_file():
    meta = make_meta(FRAME, "o")
    content = schema_to_bytes(meta)
    footer = pq.read_metadata(io.BytesIO(content))
    assert (footer.num_rows, footer.num_row_groups) == (0, 0)
    assert footer.schema.to_arrow_schema().field("t").type == pa.timestamp("us")
    assert "item" in [footer.schema.column(i).path.split(".")[-1] for i in range(footer.num_columns)]
    restored = schema_file_from_bytes(content, "key").schema
    assert restored.equals(meta, check_metadata=True)
    assert restored.origin == {"key"}
    content = schema_to_bytes(pa.schema([("x", pa.int8())]))
    restored = schema_file_from_bytes(content, "key").schema
    assert restored.pandas_metadata["columns"][0]["pandas_type"] == "int8"


def twice():
    sink = io.BytesIO()
    pq.write_metadata(pa.schema([("x", pa.int64()), ("x", pa.int64())]), sink)
    return sink.getvalue()


GOOD = schema_to_bytes(pa.schema([("x", pa.int64())]))


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1", b"x" * 100, GOOD[:-1], GOOD[-40:], GOOD[:20] + b"\xff" * 20 + GOOD[40:], twice()],
)
def test_schema_file_that_is_corrupt(content):
    with pytest.raises(CorruptDatasetError, match="'u/table/_common_metadata'"):
        schema_file_from_bytes(content, "u/table/_common_metadata")


@pytest.mark.parametrize("position", range(8, len(GOOD) - 8, 7))
def test_schema_file_with_a_flipped_byte(position):
    damaged = bytearray(GOOD)
    damaged[position] ^= 0xFF
    try:
        assert isinstance(schema_file_from_bytes(bytes(damaged), "key").schema, SchemaWrapper)
    except CorruptDatasetError:
        pass
