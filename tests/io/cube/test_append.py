"""Appending partitions to the datasets of a cube."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.arrow import same_type
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import SchemaConflictError
from kartothek_cube.io.eager import build_dataset_indices
from tests.support import cubes
from tests.support.cube_facades import FACADES, PARTS, SPARK, open_facade
from tests.support.cubes import CUBE, ENRICH, SEED, file_keys, frame, header, refuses, rows, wrong
from tests.support.factories import STORES

MORE = frame(x=[2], p=[2], v2=[22])


def test_append_adds_partitions_at_the_end_of_the_header(driver, built):
    before = list(file_keys(built, "cube++seed").items())
    result = driver.append_to_cube(data=frame(x=[2, 3], p=[0, 2], v1=[12, 13]), cube=CUBE, store=built)
    after = list(file_keys(built, "cube++seed").items())
    assert after[:2] == before and [label.split("/")[0] for label, _ in after[2:]] == ["p=0", "p=2"]
    assert result == {"seed": DatasetMetadata.load_from_store("cube++seed", built())}
    found = rows(driver.query_cube(cube=CUBE, store=built))
    assert found == {"p": [0, 1, 0, 2], "v1": [10, 11, 12, 13], "v2": [20, 21, None, None], "x": [0, 1, 2, 3]}


def test_only_the_given_datasets_are_touched(driver, built):
    untouched = {key: data for key, data in cubes.snapshot(built).items() if "seed" in key}
    assert set(driver.append_to_cube(data={"enrich": MORE}, cube=CUBE, store=built)) == {"enrich"}
    assert {key: data for key, data in cubes.snapshot(built).items() if "seed" in key} == untouched


def test_metadata_is_merged(driver, built):
    created = header(built, "cube++seed")["metadata"]["creation_time"]
    data = {"seed": frame(x=[2], p=[2], v1=[12]), "enrich": MORE}
    given = {"seed": {"b": 20, "d": 4}}
    driver.append_to_cube(data=data, cube=CUBE, store=built, metadata=given)
    seed = header(built, "cube++seed")["metadata"]
    assert (seed["a"], seed["b"], seed["d"], seed["creation_time"]) == (1, 20, 4, created)
    assert seed["ktk_cube_is_seed"] is True
    assert header(built, "cube++enrich")["metadata"]["c"] == 3
    assert given == {"seed": {"b": 20, "d": 4}}


def test_a_specification_that_is_lost_is_stored_again(driver, built):
    """build_dataset_indices of kartothek drops all metadata; its appends store the specification."""
    cubes.edit_header(built, "cube++seed", lambda content: content.pop("metadata"))
    with pytest.raises(ValueError, match="seed"):
        api.discover_cube("cube", built)
    driver.append_to_cube(data=frame(x=[2], p=[2], v1=[12]), cube=CUBE, store=built)
    assert api.discover_cube("cube", built)[0] == CUBE


@pytest.mark.parametrize("index_columns", [[], ["v1", "v2"]], ids=["not named by the cube", "named"])
def test_existing_indices_are_extended(driver, store_factory, index_columns):
    full = CUBE.copy(index_columns=["v1", "v2"])
    driver.build_cube(data={"seed": SEED, "enrich": ENRICH}, cube=full, store=store_factory)
    data = {"seed": frame(x=[1], p=[1], v1=[12]), "enrich": frame(x=[1], p=[1], v2=[22])}
    driver.append_to_cube(data=data, cube=CUBE.copy(index_columns=index_columns), store=store_factory)
    assert cubes.index_columns(store_factory, "cube++seed") == {"x", "v1"}
    assert list(cubes.index(store_factory, "cube++seed", "v1")) == [10, 11, 12]
    cubes.check_integrity(store_factory)


@pytest.mark.parametrize("first, second", [(["a", "b"], [None, None]), ([None, None], ["a", "b"])])
def test_columns_without_values_fit_any_type(driver, store_factory, first, second):
    def part(x, values):
        return pd.DataFrame({"x": x, "p": 0, "v1": pd.Series(values, dtype=object)})

    driver.build_cube(data=part([0, 1], first), cube=CUBE, store=store_factory)
    driver.append_to_cube(data=part([2, 3], second), cube=CUBE, store=store_factory)
    schema = DatasetMetadata.load_from_store("cube++seed", store_factory())
    assert rows(driver.query_cube(cube=CUBE, store=store_factory))["v1"] == first + second
    with refuses(store_factory, ValueError, "v1", garbage=True):
        driver.append_to_cube(data=part([4], [1]), cube=CUBE, store=store_factory)
    assert schema == DatasetMetadata.load_from_store("cube++seed", store_factory())


MIDNIGHT, DAY = pd.Timestamp("2024-01-31"), datetime.date(2024, 1, 31)
EXACT = pa.table(
    {"x": [0], "p": [0], "f": [0.5], "t": pa.array([MIDNIGHT]), "d": pa.array([decimal.Decimal("123.45")])}
    | {"i": [1], "u": pa.array([1], pa.uint64())}
)
#: columns of other types that the cube holds exactly
FITTING = pa.table(
    {"x": [1], "p": [0], "f": [2**60], "t": pa.array([DAY]), "d": pa.array([decimal.Decimal("1.5")])}
    | {"i": pa.array([3], pa.int8()), "u": pa.array([3], pa.int16())}
)


@pytest.mark.parametrize("name", [*FACADES, SPARK])
@pytest.mark.parametrize("write", ["append_to_cube", "update_cube"])
def test_values_of_other_types_are_stored_in_those_of_the_dataset(tmp_path, name, write):
    driver, store = open_facade(name), STORES["local" if name == SPARK else "memory"](tmp_path)
    # Spark has no unsigned integers
    first, more = (t.drop_columns("u") if name == SPARK else t for t in (EXACT, FITTING))
    if name == SPARK or name == "dataframe":
        first, more = (t.to_pandas(date_as_object=True) for t in (first, more))
    api.build_cube(first, CUBE, store)
    before = DatasetMetadata.load_from_store("cube++seed", store()).schema.internal()
    arguments = {"remove_conditions": "all", "datasets": ["seed"]} if write == "update_cube" else {}
    getattr(driver, write)(data={"seed": more}, cube=CUBE, store=store, **arguments)
    assert DatasetMetadata.load_from_store("cube++seed", store()).schema.internal() == before
    for key in file_keys(store, "cube++seed").values():
        stored = pq.read_schema(pa.BufferReader(store().get(key)))
        assert all(same_type(field.type, before.field(field.name).type) for field in stored)
    df = api.query_cube_df(CUBE, store).sort_values("x").tail(1)
    # in pandas 2.2.0, times are numbers in DataFrame.to_dict
    found = {name: df[name].tolist() for name in ("f", "t", "d", "i")}
    assert found == {"f": [2.0**60], "t": [MIDNIGHT], "d": [decimal.Decimal("1.50")], "i": [3]}


@pytest.mark.parametrize(
    "column, value, dtype",
    [
        ("f", 2**53 + 1, "int64"),
        ("f", 2**64 - 1, "uint64"),
        ("f", True, "bool"),
        ("t", datetime.date(2300, 1, 1), "date32"),
        ("t", MIDNIGHT.tz_localize("UTC"), pa.timestamp("ns", "UTC")),
        ("d", decimal.Decimal("1.505"), pa.decimal128(4, 3)),
        ("d", decimal.Decimal("1234.5"), pa.decimal128(5, 1)),
        ("i", 1.5, "float64"),
        ("i", 2**63, "uint64"),
        ("u", -1, "int64"),
    ],
)
def test_values_that_would_change_are_refused(tmp_path, column, value, dtype):
    api.build_cube(EXACT, CUBE, store := STORES["memory"](tmp_path))
    values, position = pa.array([value], dtype), FITTING.column_names.index(column)
    with refuses(store, SchemaConflictError, f"\n{column} "):
        api.append_to_cube(FITTING.set_column(position, column, values), CUBE, store)


def test_merged_values_are_stored_in_the_types_of_the_dataset(tmp_path):
    api.build_cube(EXACT, CUBE, store := STORES["memory"](tmp_path))
    api.merge_into_cube(pa.table({"x": [0], "p": [0], "f": [7], "t": pa.array([DAY])}), CUBE, store)
    df = api.query_cube_df(CUBE, store)
    assert (df["f"].tolist(), df["t"].tolist()) == ([7.0], [MIDNIGHT])
    with refuses(store, SchemaConflictError, "\nf "):
        api.merge_into_cube(pa.table({"x": [0], "p": [0], "f": [2**53 + 1]}), CUBE, store)


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "values, fits", [([2, 3, None], True), ([2, 3, 4], False), ([2.5, 3, None], False)], ids=str
)
def test_frames_of_a_dataset_are_converted_as_one(tmp_path, split, order, values, fits):
    """Also if the only gap is in one of them."""
    api.build_cube(EXACT.select(["x", "p", "i"]), CUBE, store := STORES["memory"](tmp_path))
    more = frame(x=[1, 2, 3], p=[0] * 3, i=[float("nan") if v is None else float(v) for v in values])
    data = [more[:split], more[split:]][::order]
    if not fits:
        with refuses(store, SchemaConflictError, "\ni "):
            api.append_to_cube(data, CUBE, store)
        return
    api.append_to_cube(data, CUBE, store)
    found = api.query_cube_table(CUBE, store)["i"]
    assert (found.type, found.to_pylist()) == (pa.int64(), [1, *values])


@pytest.mark.parametrize("dtype", ["Int64", "int32", "UInt8"])
def test_integers_of_pandas_become_floats_of_the_dataset(dtype):
    store = cubes.memory()
    api.build_cube(frame(x=[0], p=[0], f=[0.5]), CUBE, store)
    api.append_to_cube(frame(x=[1], p=[0], f=pd.array([3], dtype)), CUBE, store)
    df = api.query_cube_df(CUBE, store)
    assert df["f"].tolist() == [0.5, 3.0] and df["f"].dtype == np.float64


# refusals ----------------------------------------------------------------------------------------

NO_APPEND = {
    "unknown": wrong("a, b", data={"b": MORE, "a": MORE}),
    "unknown next to known": wrong("b", data={"b": MORE, "enrich": MORE}),
    "index missing": wrong("v2", "enrich", data={"enrich": MORE}, cube=CUBE.copy(index_columns=["v2"])),
    "unfit cube": wrong("x", data={"enrich": MORE}, cube=CUBE.copy(dimension_columns=["y"])),
    "no partition": wrong("enrich", "p", data={"enrich": MORE.drop(columns="p")}),
    "metadata of others": wrong("a, seed", data={"enrich": MORE}, metadata={"seed": {}, "a": {}}),
}


@pytest.mark.parametrize("expected, arguments", NO_APPEND.values(), ids=NO_APPEND)
def test_wrong_input_is_refused_before_anything_is_written(driver, built, expected, arguments):
    with refuses(built, *expected):
        driver.append_to_cube(**{"cube": CUBE, "store": built, **arguments})


@pytest.mark.parametrize(
    "more, fragments",
    [
        (frame(x=[2], p=[2]), ["v2"]),
        (frame(x=[2], p=[2], v2=[22], v3=[1]), ["v3"]),
        (frame(x=[2], p=[2], v2=["a"]), ["v2", "string"]),
        (frame(x=[2], p=[2], v2=[1.5]), ["v2", "double"]),
        (frame(x=[2], p=["a"], v2=[22]), ["p", "string"]),
    ],
)
def test_a_conflict_leaves_all_datasets_as_they_were(driver, built, more, fragments):
    with refuses(built, ValueError, "cube++enrich", *fragments, garbage=True):
        driver.append_to_cube(data={"seed": SEED, "enrich": more}, cube=CUBE, store=built)


def test_datasets_without_rows(driver, built):
    with cubes.unchanged(built):
        assert driver.append_to_cube(data={}, cube=CUBE, store=built) == {}
        result = driver.append_to_cube(data={"enrich": ENRICH.iloc[:0]}, cube=CUBE, store=built)
    assert set(result) == {"enrich"}
    data = {"seed": frame(x=[7], p=[7], v1=[17]), "enrich": ENRICH.iloc[:0]}
    assert set(driver.append_to_cube(data=data, cube=CUBE, store=built)) == {"enrich", "seed"}
    assert 17 in driver.query_cube(cube=CUBE, store=built)[0]["v1"].tolist()


@pytest.mark.parametrize(
    "batches", [["empty"], ["empty", "rows", "empty"], ["untyped", "rows", "other types"], []], ids=" ".join
)
@pytest.mark.parametrize("facade_of_parts", [None, *PARTS])
def test_batches_without_rows(facade_of_parts, batches):
    """They change nothing, also if their types are unknown, and do not hinder others."""
    store = cubes.memory()
    api.build_cube(SEED, CUBE, store)
    known = {"rows": frame(x=[7], p=[7], v1=[17]), "empty": SEED[:0], "untyped": SEED[:0].astype(object)}
    # the types of pandas.DataFrame({"x": []})
    known["other types"] = SEED[:0].astype("float64")
    parts, arguments = [known[name] for name in batches], {"cube": CUBE, "store": lambda: store}
    if facade_of_parts:
        PARTS[facade_of_parts]("append_to_cube", parts, datasets=["seed"], **arguments)
    else:
        api.append_to_cube(parts, **arguments)
    expected = [*SEED["x"], *([7] if "rows" in batches else [])]
    assert api.query_cube_df(CUBE, store)["x"].tolist() == expected


@pytest.mark.parametrize("content", [None, b"no schema"])
def test_a_lost_or_damaged_schema_file_is_written_again(content):
    """Queries and writes take the schema in the header."""
    store = cubes.memory()
    api.build_cube(SEED, CUBE, store)
    key = "cube++seed/table/_common_metadata"
    store.delete(key) if content is None else store.put(key, content)
    api.append_to_cube(frame(x=[7], p=[7], v1=[17]), CUBE, store)
    assert 17 in api.query_cube_df(CUBE, store)["v1"].tolist()
    assert api.verify_cube(CUBE, store).ok


@pytest.mark.parametrize("content", [None, b"no schema"])
def test_a_lost_or_damaged_schema_file_stops_neither_a_copy_nor_an_index(content):
    store, backup = cubes.memory(), cubes.memory()
    api.build_cube(SEED, CUBE, store)
    key = "cube++seed/table/_common_metadata"
    store.delete(key) if content is None else store.put(key, content)
    api.copy_cube(CUBE, store, backup)
    assert api.verify_cube(CUBE, backup).ok
    build_dataset_indices(store, "cube++seed", ["v1"])
    assert api.verify_cube(CUBE, store).ok
