"""adopt_dataset: directories, Delta and Iceberg tables as datasets of a cube, and what is refused."""

import datetime
import json
import os
import shutil
from functools import partial
from pathlib import Path
from random import Random
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import deltalake
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core import arrow, errors
from kartothek_cube.core.history import operation_info
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager import read_table
from kartothek_cube.io_components.write import adopt, table_writer, write_commit
from tests.support.cubes import memory, refuses
from tests.support.servers import s3_url

CUBE = api.Cube(["SHOP", "DAY"], ["COUNTRY"], "sales", index_columns=["KIND"])
DAYS = [datetime.datetime(2024, 1, day) for day in (1, 2, 3)]
COUNTRIES = ["DE", "a b/ü=%25"]
SALES = pa.table(
    {
        "SHOP": pa.array([1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4], pa.int32()),
        "DAY": pa.array(DAYS * 4, pa.timestamp("us")),
        "COUNTRY": [COUNTRIES[0]] * 6 + [COUNTRIES[1]] * 6,
        "QTY": [float(i) for i in range(11)] + [None],
        "KIND": ["x", "y", "w", "x", "y", "z"] * 2,
    }
)
SHOPS = SALES.select(["SHOP", "COUNTRY"]).group_by(["SHOP", "COUNTRY"]).aggregate([])


def change(table: pa.Table = SALES, **columns) -> pa.Table:
    """The table with other columns, and without those that are None."""
    content = dict(zip(table.column_names, table.columns, strict=True)) | columns
    return pa.table({name: values for name, values in content.items() if values is not None})


def write_directory(table: pa.Table, path: Path, partition_by: list[str], **options) -> str:
    pads.write_dataset(
        table, path, format="parquet", partitioning=partition_by, partitioning_flavor="hive", **options,
        file_options=pads.ParquetFileFormat().make_write_options(version="2.6", coerce_timestamps="us"),
    )  # fmt: skip
    return str(path)


def write_delta(table: pa.Table, path: Path, partition_by: list[str]) -> str:
    deltalake.write_deltalake(str(path), table, partition_by=partition_by)
    return str(path)


def write_iceberg(table: pa.Table, path: Path, partition_by: list[str]) -> str:
    opened = create_iceberg(table.schema, path, partition_by)
    opened.append(table)
    return urlsplit(opened.metadata_location).path


#: open catalogs of the current test
CATALOGS = []


@pytest.fixture(autouse=True)
def close_catalogs():
    """Close the databases of catalogs: Python 3.13 warns of open ones that it collects, in any later test."""
    yield
    while CATALOGS:
        CATALOGS.pop().close()


def create_iceberg(schema: pa.Schema, path: Path, partition_by: list[str]):
    from pyiceberg.catalog.memory import InMemoryCatalog

    catalog = InMemoryCatalog("tests", warehouse=f"file://{path}")
    CATALOGS.append(catalog)
    catalog.create_namespace("shop")
    opened = catalog.create_table("shop.sales", schema=schema)
    with opened.update_spec() as update:
        for column in partition_by:
            update.add_identity(column)
    return opened


def put(table: pa.Table, path: Path, **options) -> Path:
    """Write a file below new directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


WRITERS = {"directory": write_directory, "delta": write_delta, "iceberg": write_iceberg}


@pytest.fixture(params=WRITERS)
def write(request, tmp_path):
    """Write a table of one kind, partitioned by COUNTRY unless told otherwise; returns what to adopt."""

    def write(table, partition_by=("COUNTRY",), name="source"):
        return WRITERS[request.param](table, tmp_path / name, list(partition_by))

    write.kind = request.param
    return write


def rows(table: pa.Table) -> list[dict]:
    found = table.select(sorted(table.column_names)).to_pylist()
    return sorted(found, key=lambda row: [*map(str, row.values())])


def files_below(path: Path) -> dict[Path, tuple]:
    files = [file for file in path.rglob("*") if file.is_file()]
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def check_adoption(source, table=SALES, store=None, cube=CUBE, **options):
    """Adopt a source as the seed of a new cube: it has the rows of the table, and no problem."""
    store = memory() if store is None else store
    done = api.adopt_dataset(source, cube, store, "seed", **options)
    assert rows(api.query_cube_table(cube, store)) == rows(table)
    assert api.verify_cube(cube, store).ok
    return done


NOT_IN_TABLE = "is not in the directory of the table"


def refuse_adoption(source, text=NOT_IN_TABLE, error=(ValueError, OSError), store=None, **options):
    """An adoption that fails leaves nothing behind."""
    store = memory() if store is None else store
    with pytest.raises(error, match=text):
        api.adopt_dataset(source, CUBE, store, "seed", **options)
    assert open_blobs(store).list("") == []


# -- all sources -------------------------------------------------------------------------------------


def test_a_table_becomes_the_seed(write, store_factory, tmp_path):
    source = write(SALES)
    before = files_below(tmp_path / "source")
    done = check_adoption(source, store=store_factory, metadata={"note": 1})
    assert files_below(tmp_path / "source") == before
    assert (done.n_rows, done.n_linked + done.n_copied + done.n_rewritten) == (12, 2)
    assert done.dataset.metadata["note"] == 1
    assert api.list_cube_garbage(CUBE, store_factory) == []
    # what is built has the same schema, keys, indices and metadata
    other = memory()
    built = api.build_cube(SALES, CUBE, other, metadata={"seed": {"note": 1}})["seed"]
    assert done.dataset.schema.equals(built.schema)
    assert done.dataset.partition_keys == built.partition_keys
    assert set(done.dataset.indices) == set(built.indices) == {"SHOP", "DAY", "KIND"}
    assert {**done.dataset.metadata, "creation_time": 0} == {**built.metadata, "creation_time": 0}
    assert api.query_cube(CUBE, store_factory, api.C("KIND") == "z")[0]["SHOP"].tolist() == [2, 4]


def test_the_cube_goes_on(write, store_factory):
    api.adopt_dataset(write(SALES), CUBE, store_factory, "seed")
    api.append_to_cube(change(SALES.slice(0, 1), QTY=[100.0]), CUBE, store_factory)
    api.extend_cube({"prices": SHOPS.append_column("PRICE", [[1.0, 2.0, 3.0, 4.0]])}, CUBE, store_factory)
    assert api.compact_cube(CUBE, store_factory)["seed"]["files_after"] == 1
    api.cleanup_cube(CUBE, store_factory)
    found = api.query_cube(CUBE, store_factory, payload_columns=["QTY", "PRICE"])[0]
    assert len(found) == 12 and found["QTY"].max() == 100.0 and found["PRICE"].notna().all()
    assert api.verify_cube(CUBE, store_factory).ok


def test_a_table_becomes_an_enrichment(write, store_factory):
    api.build_cube(SALES, CUBE, store_factory)
    names = SHOPS.append_column("NAME", [["A", "B", "C", "D"]])
    api.adopt_dataset(write(names), CUBE, store_factory, "names")
    owners = write(pa.table({"SHOP": [1, 2, 3, 4], "OWNER": ["E", "F", "E", "F"]}), [], "owners")
    assert api.adopt_dataset(owners, CUBE, store_factory, "owners", partition_on=[]).n_rewritten == 0
    found = api.query_cube_df(CUBE, store_factory).groupby(["COUNTRY", "SHOP"]).first()
    assert found["NAME"].tolist() == ["A", "B", "C", "D"]
    assert found["OWNER"].tolist() == ["E", "F", "E", "F"]
    with pytest.raises(errors.DatasetExistsError):
        api.adopt_dataset("not read", CUBE, store_factory, "names")


SHUFFLED = SALES.take([7, 3, 0, 11, 5, 1, 2, 10, 9, 8, 4, 6])


@pytest.mark.parametrize(
    "table, keys, n_rewritten", [(SHUFFLED, ["COUNTRY"], 2), (SALES, ["KIND"], 4), (SALES, [], 1)]
)
def test_rows_in_another_order_or_partition_are_written_again(write, table, keys, n_rewritten):
    done = check_adoption(write(table, keys))
    assert (done.n_rewritten, len(done.dataset.partition_table)) == (n_rewritten, 2)


@pytest.mark.parametrize(
    "cube",
    [
        api.Cube(["SHOP"], ["DAY"], "far"),
        api.Cube(["SHOP"], [], "far", index_columns=["DAY"]),
        api.Cube(["SHOP"], [], "far"),
    ],
    ids=["partition", "index", "payload"],
)
@pytest.mark.parametrize("partition_by", [["DAY"], ["COUNTRY"]], ids=str)
def test_times_that_nanoseconds_do_not_hold_are_adopted(write, cube, partition_by):
    days = [datetime.datetime(9999, 12, 31), DAYS[0], datetime.datetime(1, 1, 1)]
    table = change(SALES.take([6, 5, 0]), DAY=pa.array(days, pa.timestamp("us")))
    check_adoption(write(table, partition_by), table, cube=cube)


NULL_KEY, NULL_INDEX = pa.array([None, *range(11)], pa.int32()), pa.array([None, *"abcdefghijk"])
REPEATED = pa.concat_tables([SALES, SALES.slice(2, 1)])
MISTAKES = {
    "null in a key": (change(SHOP=NULL_KEY), ValueError, "Found NULL-values"),
    "null in an index": (change(KIND=NULL_INDEX), ValueError, "Found NULL-values"),
    "duplicate cells": (REPEATED, errors.DuplicateCellsError, "SHOP"),
    "missing dimension": (change(DAY=None), ValueError, "Missing dimension columns"),
    "nested key": (change(SHOP=[[1]] * 12), TypeError, "nested type"),
    "no rows": (SALES.slice(0, 0), errors.MultiTableCommitAborted, "Cannot write empty datasets: seed"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_leave_nothing_behind(write, store_factory, mistake, tmp_path):
    table, error, text = MISTAKES[mistake]
    if write.kind == "directory" and mistake == "no rows":
        error, text = ValueError, "has no Parquet files"
        (tmp_path / "source").mkdir()
    refuse_adoption(write(table), text, error, store_factory)


def test_types_and_payload_of_the_cube(write, store_factory):
    api.build_cube(SALES, CUBE, store_factory)
    with refuses(store_factory, ValueError, "already present in cube: KIND"):
        api.adopt_dataset(write(SALES), CUBE, store_factory, "names")
    other = pa.table({"SHOP": ["1"], "COUNTRY": ["DE"], "NAME": ["A"]})
    with refuses(store_factory, errors.MultiTableCommitAborted, "'SHOP' is int64 in the cube but string"):
        api.adopt_dataset(write(other, name="other"), CUBE, store_factory, "names")


def write_twice(write, first, second, tmp_path):
    """What to adopt: partitions of which two commits have written files."""
    if write.kind == "iceberg":
        table = create_iceberg(SALES.schema, tmp_path / "source", ["COUNTRY"])
        table.append(first)
        table.append(second)
        return table
    source = write(first)
    if write.kind == "delta":
        deltalake.write_deltalake(source, second, mode="append")
    else:
        options = {"basename_template": "more-{i}.parquet", "existing_data_behavior": "overwrite_or_ignore"}
        write_directory(second, source, ["COUNTRY"], **options)
    return source


def test_cells_in_two_files_of_a_partition(write, store_factory, tmp_path):
    adopted = write_twice(write, SALES.slice(0, 6), SALES.slice(5, 1), tmp_path)
    refuse_adoption(adopted, ".", errors.DuplicateCellsError, store_factory)


def test_several_files_of_a_partition(write, store_factory, tmp_path):
    adopted = write_twice(write, SALES.slice(0, 4), SALES.slice(4), tmp_path)
    done = check_adoption(adopted, store=store_factory)
    # rows that are written again are merged
    assert len(done.dataset.partition_table) == (2 if write.kind == "iceberg" else 3)


def test_a_task_that_fails_leaves_nothing_behind(write, store_factory, monkeypatch):
    """Files that were copied, and linked, before the commit fails, are deleted."""

    def fail(*args):
        keys = [blob.key for blob in open_blobs(store_factory).list("")]
        assert len([key for key in keys if key.endswith(".parquet")]) == 2
        raise OSError("the store is gone")

    source = write(SALES)
    monkeypatch.setattr(write_commit, "finish_write", fail)
    refuse_adoption(source, "gone", OSError, store_factory)


def test_a_killed_process_leaves_garbage_only(write, store_factory, monkeypatch):
    api.build_cube(SALES, CUBE, store_factory)
    source = write(pa.table({"SHOP": [1], "COUNTRY": ["DE"], "NAME": ["A"]}))
    monkeypatch.setattr(table_writer, "delete_attempts", lambda plan: None)
    with monkeypatch.context() as patch:
        patch.setattr(write_commit, "finish_write", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            api.adopt_dataset(source, CUBE, store_factory, "names")
    assert len(api.list_cube_garbage(CUBE, store_factory)) == 1
    api.cleanup_cube(CUBE, store_factory, retention=None)
    assert api.list_cube_garbage(CUBE, store_factory) == []
    api.adopt_dataset(source, CUBE, store_factory, "names")
    assert api.verify_cube(CUBE, store_factory).ok


def test_overwrite(write):
    """The history tells the operation."""
    api.build_cube(SALES.slice(0, 3), CUBE, store := memory())
    done = check_adoption(write(SALES), store=store, overwrite=True)
    assert operation_info(done.dataset).name == "adopt"


# -- links -------------------------------------------------------------------------------------------


def _inodes(path: Path) -> set[int]:
    return {file.stat().st_ino for file in path.rglob("*.parquet")}


@pytest.mark.parametrize("link", [None, True, False])
@pytest.mark.parametrize("kind", ["directory", "delta"])
def test_links(tmp_path, kind, link):
    source = WRITERS[kind](SALES, tmp_path / "source", ["COUNTRY"])
    done = check_adoption(source, store=tmp_path / "store", link=link)
    is_linked = link if link is not None else kind == "delta"
    assert (done.n_linked, done.n_copied) == ((2, 0) if is_linked else (0, 2))
    shared = _inodes(tmp_path / "source") & _inodes(tmp_path / "store" / "sales++seed" / "table")
    assert len(shared) == (2 if is_linked else 0)
    for file in (tmp_path / "source").rglob("*.parquet"):
        file.unlink()
    assert rows(api.query_cube_table(CUBE, tmp_path / "store")) == rows(SALES)


def test_file_systems_without_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(18, "Invalid cross-device link")))
    source = WRITERS["delta"](SALES, tmp_path / "source", ["COUNTRY"])
    done = check_adoption(source, store=tmp_path / "store")
    assert (done.n_linked, done.n_copied) == (0, 2)


@pytest.mark.parametrize("link", [True, False])
def test_a_file_that_changes_meanwhile(tmp_path, monkeypatch, link):
    source = write_directory(SALES, tmp_path / "source", ["COUNTRY"])
    original = adopt._adopt_as_is

    def change(write, table, file, parquet):
        result = original(write, table, file, parquet)
        os.utime(file.path, ns=(0, 0))
        return result

    monkeypatch.setattr(adopt, "_adopt_as_is", change)
    refuse_adoption(source, "was changed while it was read", ValueError, tmp_path / "store", link=link)
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


# -- directories -------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [range(7, 19), "SHOP"], ids=["numbers", "column"])
def test_directories_of_pandas(tmp_path, index):
    """A named index is a column."""
    frame = SALES.to_pandas()
    frame = frame.set_index(index) if index == "SHOP" else frame.set_axis(index)
    frame.to_parquet(tmp_path / "source", partition_cols=["COUNTRY"])
    # texts of pandas 3 are stored as large strings
    is_rewritten = index == "SHOP" or int(pd.__version__.split(".")[0]) >= 3
    assert check_adoption(tmp_path / "source").n_rewritten == 2 * is_rewritten


def spark_directory(path: Path, table: pa.Table = SALES) -> Path:
    """As Spark writes it: timestamps of 96 bits, and files that are none of the table."""
    for number, country in enumerate(dict.fromkeys(table["COUNTRY"].to_pylist())):
        escaped = country.replace("%", "%25").replace("/", "%2F").replace("=", "%3D")
        folder = path / f"COUNTRY={escaped}"
        part = table.filter(pc.field("COUNTRY") == country).drop_columns(["COUNTRY"])
        name = f"part-0000{number}-0f1c.c000.snappy.parquet"
        put(part, folder / name, use_deprecated_int96_timestamps=True)
        (folder / f".{name}.crc").write_bytes(b"crc")
    (path / "_SUCCESS").touch()
    temporary = path / "_temporary" / "0"
    temporary.mkdir(parents=True)
    (temporary / "part-00000.parquet").write_bytes(b"PAR1")
    return path


def test_directories_of_spark(tmp_path, store_factory):
    assert check_adoption(spark_directory(tmp_path / "source"), store=store_factory).n_rewritten == 2


@pytest.mark.parametrize(
    "texts, values",
    [
        (["-1", "20"], [-1, 20]),
        (["1", "-9223372036854775808"], [1, -(2**63)]),
        (["1", "9223372036854775808"], ["1", "9223372036854775808"]),
        (["1", "007"], ["1", "007"]),
        (["1", "a"], ["1", "a"]),
        (["1.5", "2.5"], ["1.5", "2.5"]),
        (["2024-01-31", "2024-02-01"], [datetime.date(2024, 1, 31), datetime.date(2024, 2, 1)]),
        (["2024-02-30", "2024-02-01"], ["2024-02-30", "2024-02-01"]),
        (["2024-01-31 12%3A00%3A00"], [datetime.datetime(2024, 1, 31, 12)]),
        (["99999999999999999999"], ["99999999999999999999"]),
        (["a%2Fb", "ü", "c%3Dd", "e+f", "%25"], ["a/b", "ü", "c=d", "e+f", "%"]),
    ],
)
def test_types_of_directories(tmp_path, texts, values):
    for i, text in enumerate(texts):
        put(pa.table({"X": [2 * i, 2 * i + 1]}), tmp_path / "source" / f"P={text}" / "0.parquet")
    table = pa.table({"X": range(2 * len(texts)), "P": [value for value in values for _ in range(2)]})
    done = check_adoption(tmp_path / "source", table, cube=api.Cube(["X"], ["P"], "c"))
    assert done.n_copied == len(values)


def test_types_of_directories_that_are_given(tmp_path):
    store = memory()
    source = write_directory(change(COUNTRY=["1"] * 6 + ["2"] * 6), tmp_path / "s", ["COUNTRY"])
    for refused, column, dtype, text in [
        (spark_directory(tmp_path / "d"), "COUNTRY", "double", "no value of type double"),
        (source, "QTY", "int64", r"No directory of .* has a value of column QTY"),
        (source, "COUNTRY", "whole", "'whole' of column 'COUNTRY' is no type"),
    ]:
        refuse_adoption(refused, text, ValueError, types={column: dtype})
    api.adopt_dataset(source, CUBE, store, "seed", types={"COUNTRY": pa.string()})
    assert api.query_cube(CUBE, store)[0]["COUNTRY"].unique().tolist() == ["1", "2"]
    # an enrichment takes the types of the cube
    names = pa.table({"SHOP": [1, 3], "COUNTRY": ["1", "2"], "NAME": ["A", "B"]})
    api.adopt_dataset(write_directory(names, tmp_path / "n", ["COUNTRY"]), CUBE, store, "names")
    assert api.query_cube(CUBE, store)[0]["NAME"].notna().sum() == 6


def test_directories_of_nan_are_refused_as_keys_only(tmp_path):
    source = write_directory(change(QTY=[float("nan")] * 6 + [0.5] * 6), tmp_path / "a", ["COUNTRY", "QTY"])
    types = {"QTY": "float64"}
    with pytest.raises(ValueError, match='NULL-values in partition column "QTY"'):
        api.adopt_dataset(source, api.Cube(["SHOP"], ["QTY"], "cube"), memory(), "seed", types=types)
    store = memory()
    api.adopt_dataset(source, CUBE, store, "seed", types=types)
    assert api.query_cube(CUBE, store)[0]["QTY"].isna().sum() == 6


def test_null_directories(tmp_path):
    source = write_directory(change(COUNTRY=[None] * 6 + ["DE"] * 6), tmp_path / "a", ["COUNTRY"])
    refuse_adoption(source, 'NULL-values in partition column "COUNTRY"', ValueError)
    # null is a value of other columns
    table = change(QTY=[None] * 6 + [1, 2, 3, 4, 5, 6])
    source = write_directory(table, tmp_path / "b", ["COUNTRY", "QTY"])
    assert check_adoption(source, table).n_rewritten == 7


INSTANT = pa.array([pd.Timestamp("2020-10-25")] * 2, pa.timestamp("us"))
ZONED, BERLIN, INDIA = (INSTANT.cast(pa.timestamp("us", zone)) for zone in ("UTC", "Europe/Berlin", "+05:30"))
HALVES, INTEGERS = pa.array([0.5, None]), pa.array([2**53, 3])


@pytest.mark.parametrize(
    "values, shops, dtype, n_rewritten",
    [
        ([None, HALVES], pa.int64(), pa.float64(), 1),
        # pandas writes floats for integers in files where one of them is missing
        ([pa.array([1, 2], pa.int8()), HALVES, INTEGERS], pa.int32(), pa.float64(), 2),
        ([pa.array([[], []]), pa.array([[1], None])], pa.int32(), pa.list_(pa.int64()), 2),
        ([ZONED, BERLIN], pa.int32(), ZONED.type, 0),
        ([BERLIN, ZONED, INDIA], pa.int32(), ZONED.type, 0),
    ],
    ids=["no such column", "integers beside floats", "empty lists", "two time zones", "three time zones"],
)
def test_files_with_columns_that_differ(tmp_path, values, shops, dtype, n_rewritten):
    for number, column in enumerate(values):
        part = change(SALES.slice(2 * number, 2), COUNTRY=None, QTY=column)
        part = change(part, SHOP=part["SHOP"].cast(shops)) if number == 0 else part
        put(part, tmp_path / f"COUNTRY={number}" / "0.parquet")
    quantities = [value for column in values for value in (column or pa.nulls(2)).to_pylist()]
    countries = [number // 2 for number in range(len(quantities))]
    table = change(SALES.slice(0, len(countries)), COUNTRY=countries, QTY=pa.array(quantities, dtype))
    done = check_adoption(tmp_path, table, store := memory())
    assert (done.n_copied, done.n_rewritten) == (len(values) - n_rewritten, n_rewritten)
    assert api.query_cube_table(CUBE, store)["QTY"].type == arrow.storage_type(dtype)
    if not pa.types.is_nested(dtype):
        assert len(api.query_cube_df(CUBE, store, api.C("QTY") > max(filter(None, quantities)))) == 0


@pytest.mark.parametrize(
    "values, text",
    [
        (([1.0] * 2, ["a"] * 2), r"'QTY' is double in .*0\.parquet but string in .*1\.parquet"),
        ((INSTANT, ZONED), r"'QTY' is timestamp\[ns.* in .*0\.parquet but timestamp"),
        ((ZONED, INSTANT), r"'QTY' is timestamp\[ns.* in .*0\.parquet but timestamp"),
        (
            ([2**53 + 1, 1], HALVES),
            "'QTY' of .*0.parquet cannot be converted from int64 to double: .*9007199254740993",
        ),
    ],
    ids=["type", "with zone", "without zone", "integers that no float holds"],
)
def test_files_with_types_that_do_not_fit(tmp_path, values, text):
    for number, column in enumerate(values):
        put(change(SALES.slice(2 * number, 2), QTY=column), tmp_path / f"{number}.parquet")
    refuse_adoption(tmp_path, text, errors.SchemaConflictError)


def test_a_file_without_rows_decides_no_type(tmp_path):
    write_directory(SALES, tmp_path, ["COUNTRY"])
    empty = pa.table({name: pa.array([], pa.float64()) for name in ["SHOP", "DAY", "QTY", "KIND", "MORE"]})
    put(empty, tmp_path / "COUNTRY=DE" / "-first.parquet")
    check_adoption(tmp_path, change(MORE=pa.nulls(12)))


def test_a_partition_column_that_is_in_the_files(tmp_path):
    put(SALES.slice(0, 6), tmp_path / "source" / "COUNTRY=DE" / "0.parquet")
    store = memory()
    assert check_adoption(tmp_path / "source", SALES.slice(0, 6), store).n_rewritten == 1
    [key] = [key for key in store.keys() if key.startswith("sales++seed/table/") and key.endswith(".parquet")]
    assert "COUNTRY" not in pq.read_schema(pa.BufferReader(store.get(key))).names


@pytest.mark.parametrize(
    "options, copied",
    [
        ({"compression": "snappy"}, True),
        ({"compression": "none", "use_dictionary": False}, True),
        ({"compression": "lz4"}, False),
        ({"use_dictionary": False, "column_encoding": {"SHOP": "DELTA_BINARY_PACKED"}}, True),
        ({"use_dictionary": False, "column_encoding": {"KIND": "DELTA_BYTE_ARRAY"}}, False),
        ({"coerce_timestamps": None, "store_schema": False}, True),
    ],
)
def test_forms_that_old_readers_lack_are_written_again(tmp_path, options, copied):
    put(change(SALES.slice(0, 6), COUNTRY=None), tmp_path / "COUNTRY=DE" / "0.parquet", **options)
    assert check_adoption(tmp_path, SALES.slice(0, 6)).n_copied == copied


@pytest.mark.parametrize(
    "dtype, value",
    [
        (pa.timestamp("ns"), 1_000),
        (pa.time32("ms"), 5),
        (pa.date64(), 86_400_000),
        (pa.list_(pa.int64()), [1, 2]),
        (pa.struct([("a", pa.int8())]), {"a": 1}),
        (pa.dictionary(pa.int8(), pa.string()), "a"),
        (pa.decimal128(10, 2), None),
        (pa.binary(), b"\xff"),
        (pa.timestamp("us", "UTC"), 5),
        (pa.null(), None),
    ],
)
def test_payload_types(tmp_path, dtype, value):
    """Whatever the form in the file, the dataset is the one that build_cube makes of the table."""
    values = pa.array([value, None], pa.int64() if isinstance(value, int) else dtype)
    values = values.cast(pa.int32()) if pa.types.is_time32(dtype) else values
    table = change(SALES.slice(0, 2), QTY=values.cast(dtype))
    put(change(table, COUNTRY=None), tmp_path / "COUNTRY=DE" / "0.parquet")
    adopted, built = memory(), memory()
    api.adopt_dataset(tmp_path, CUBE, adopted, "seed")
    api.build_cube(table, CUBE, built)
    assert api.query_cube_table(CUBE, adopted).equals(api.query_cube_table(CUBE, built))
    assert api.verify_cube(CUBE, adopted).ok


def test_a_dimension_that_is_a_directory(tmp_path):
    days = change(DAY=SALES["DAY"].cast(pa.date32()))
    cube = api.Cube(["SHOP", "DAY"], ["KIND"], "kinds")
    assert check_adoption(write_directory(days, tmp_path, ["DAY"]), days, cube=cube).n_rewritten == 3


def test_directories_of_a_dataset(tmp_path):
    """Those of a dataset of a cube are Hive-partitioned as well."""
    api.build_cube(SALES, CUBE, tmp_path / "store")
    assert check_adoption(tmp_path / "store" / "sales++seed" / "table").n_copied == 2


def test_directories_that_are_none(tmp_path):
    refuse_adoption(tmp_path / "nowhere", r"There is no table in .*nowhere", FileNotFoundError)
    refuse_adoption("gopher://table", "cannot be opened", ValueError)
    refuse_adoption("s3://", r"s3:// has no path|cannot be opened", ValueError)
    refuse_adoption("", "^source is an empty path$", ValueError)
    refuse_adoption(5, "got int", TypeError)
    for snapshot in (-1, "1", True):
        refuse_adoption(tmp_path, "snapshot is the number", ValueError, snapshot=snapshot)
    (tmp_path / "empty" / "_temporary").mkdir(parents=True)
    refuse_adoption(tmp_path / "empty", "has no Parquet files", ValueError)
    mixed = tmp_path / "mixed"
    write_directory(SALES, mixed, ["COUNTRY"])
    refuse_adoption(mixed, "has no snapshots", ValueError, snapshot=1)
    (mixed / "README.txt").write_text("sales of all shops")
    refuse_adoption(mixed, r"directories of COUNTRY, but .*README.txt in those of no column", ValueError)
    (mixed / "README.txt").rename(mixed / "COUNTRY=DE" / "README.txt")
    refuse_adoption(mixed, r"README\.txt is no Parquet file", ValueError)
    (mixed / "COUNTRY=DE" / "README.txt").write_bytes(b"PAR1" + bytes([255] * 8) + b"\x08\0\0\0PAR1")
    refuse_adoption(mixed, r"README\.txt is no Parquet file", ValueError)


SHOP_TWICE = pa.table([[1], [2], [3]], ["SHOP", "QTY", "QTY"])
NANOSECONDS = change(DAY=pa.array(range(1, 13), pa.timestamp("ns")))


@pytest.mark.parametrize(
    "name, table, text",
    [
        ("a.parquet", SHOP_TWICE, "^Column 'QTY' is twice in .*a.parquet$"),
        ("a.parquet", NANOSECONDS, "holds timestamps with nanoseconds"),
        ("COUNTRY=%FC/0.parquet", SALES, "percent-encoded UTF-8"),
        ("KIND=x/KIND=y/0.parquet", change(KIND=None), "Column 'KIND' is twice in the directories of"),
        ("KIND=x/%4bIND=x/0.parquet", change(KIND=None), "Column 'KIND' is twice in the directories of"),
        ("COUNTRY=XX/0.parquet", SALES, "^Column 'COUNTRY' of .* other values than 'XX', the one of its dir"),
    ],
    ids=[
        "column twice",
        "nanoseconds",
        "Latin-1",
        "dir twice",
        "dir twice in two spellings",
        "dir of others",
    ],
)
def test_files_and_names_of_directories_that_are_refused(tmp_path, name, table, text):
    file = put(table, tmp_path / name)
    refuse_adoption(tmp_path if "/" in name else file, text, ValueError)


# -- object stores -----------------------------------------------------------------------------------


@pytest.fixture
def bucket(monkeypatch):
    """URL and name of a new bucket, and the endpoint; credentials are in the environment."""
    full_url = s3_url()
    url = urlsplit(full_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret_of_tests")
    return full_url, url.netloc, parse_qs(url.query)["endpoint"][0]


def test_a_directory_in_an_object_store(bucket, tmp_path):
    url, name, endpoint = bucket
    write_directory(SALES.slice(0, 6), tmp_path, ["COUNTRY"])
    # not by pyarrow: the server takes its uploads for empty files
    open_blobs(url).put("raw/COUNTRY=DE/0.parquet", (tmp_path / "COUNTRY=DE" / "part-0.parquet").read_bytes())
    source = f"s3://{name}/raw?endpoint_override={urlsplit(endpoint).netloc}&scheme=http&region=us-east-1"
    assert check_adoption(source, SALES.slice(0, 6)).n_copied == 1


def test_credentials_in_the_url_of_a_source_are_not_shown(bucket):
    _, name, endpoint = bucket
    source = (
        f"s3://testing:secret_of_tests@{name}/raw?endpoint_override={urlsplit(endpoint).netloc}&scheme=http"
    )
    refuse_adoption(source, rf"There is no table in s3://\*\*\*@{name}/raw$", FileNotFoundError)


def test_a_delta_table_in_an_object_store(bucket, tmp_path):
    _, name, endpoint = bucket
    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    options["aws_conditional_put"] = "etag"
    deltalake.write_deltalake(f"s3://{name}/raw", SALES, partition_by=["COUNTRY"], storage_options=options)
    table = deltalake.DeltaTable(f"s3://{name}/raw", storage_options=options)
    done = check_adoption(table, store=tmp_path / "store")
    assert (done.n_linked, done.n_copied) == (0, 2)


# -- Delta -------------------------------------------------------------------------------------------


def test_versions_of_a_delta_table(tmp_path):
    source = write_delta(SALES.slice(0, 6), tmp_path / "source", ["COUNTRY"])
    deltalake.write_deltalake(source, SALES.slice(6), mode="append")
    deltalake.DeltaTable(source).delete("COUNTRY = 'DE'")
    for version, table in [(0, SALES.slice(0, 6)), (1, SALES), (None, SALES.slice(6))]:
        check_adoption(source, table, snapshot=version)
    refuse_adoption(source, "types are those of directories", ValueError, types={"COUNTRY": "string"})
    opened = deltalake.DeltaTable(source, version=0)
    check_adoption(opened, SALES.slice(0, 6))
    refuse_adoption(opened, "open at version 0, not 1", ValueError, snapshot=1)
    refuse_adoption(source, "cannot be opened", ValueError, snapshot=9)


def _edit_log(source, edit):
    path = Path(source, "_delta_log", f"{0:020}.json")
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        edit(action)
    path.write_text("\n".join(map(json.dumps, actions)))


def _with_features(action, *features):
    if "protocol" in action:
        known = {f"{role}Features": ["timestampNtz", *features] for role in ("reader", "writer")}
        action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **known}


def _add_deletion_vector(action, features=("deletionVectors",)):
    _with_features(action, *features)
    if "add" in action:
        vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"}
        action["add"]["deletionVector"] = {**vector, "offset": 4, "sizeInBytes": 40, "cardinality": 1}


def _map_columns(action):
    _with_features(action, "columnMapping")
    if "metaData" in action:
        mode = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
        action["metaData"]["configuration"] = mode
        schema = json.loads(action["metaData"]["schemaString"])
        for i, field in enumerate(schema["fields"]):
            name = {"delta.columnMapping.physicalName": field["name"]}
            field["metadata"] = {"delta.columnMapping.id": i, **name}
        action["metaData"]["schemaString"] = json.dumps(schema)


NAIVE = pa.array(DAYS[:2], pa.timestamp("us"))


@pytest.mark.parametrize(
    "name, stored, shown",
    [
        ("double", pa.array([2**24 + 1, 2], pa.int32()), pa.array([2.0**24 + 1, 2.0])),
        ("decimal(12,2)", pa.array([1, 2], pa.int32()), pa.array([1, 2], pa.decimal128(12, 2))),
        ("decimal(12,2)", pa.array([1, 2], pa.decimal128(9, 1)), pa.array([1, 2], pa.decimal128(12, 2))),
        ("long", pa.array([2**32 - 1, 2], pa.uint32()), pa.array([2**32 - 1, 2])),
        ("timestamp_ntz", pa.array([day.date() for day in DAYS[:2]]), NAIVE),
        ("timestamp", NAIVE, NAIVE.cast(pa.timestamp("us", "UTC"))),
        ("timestamp", NAIVE.cast(pa.timestamp("us", "Europe/Berlin")), NAIVE.cast(pa.timestamp("us", "UTC"))),
    ],
    ids=["double", "decimal", "scale", "unsigned", "date", "96 bits", "zone"],
)
def test_files_with_other_types_than_their_delta_table(tmp_path, name, stored, shown):
    """As after type widening, and as Spark writes times, which are instants, by default."""
    source = Path(write_delta(pa.table({"SHOP": [1, 2], "V": [b"", b""]}), tmp_path / "s", []))
    _edit_log(source, partial(_replace_type, name=name))
    [file] = source.glob("*.parquet")
    pq.write_table(
        pa.table({"SHOP": [1, 2], "V": stored}), file, use_deprecated_int96_timestamps=stored is NAIVE
    )
    cube, store = api.Cube(["SHOP"], [], "c"), memory()
    api.adopt_dataset(str(source), cube, store, "seed")
    found = api.query_cube_table(cube, store)["V"]
    assert found.to_pylist() == shown.cast(found.type).to_pylist()
    assert found.type == arrow.storage_type(shown.type)
    assert api.query_cube_table(cube, store, api.C("V") == shown[1])["SHOP"].to_pylist() == [2]
    assert api.verify_cube(cube, store, deep=True).problems == ()


def _replace_type(action, name):
    if "metaData" in action:
        fields = json.loads(action["metaData"]["schemaString"])
        fields["fields"][1]["type"] = name
        action["metaData"]["schemaString"] = json.dumps(fields)
    _with_features(action)
    action.get("add", {}).pop("stats", None)


def test_mapped_columns_of_delta_are_refused(tmp_path):
    _edit_log(source := write_delta(SALES, tmp_path / "source", []), _map_columns)
    refuse_adoption(source, r"uses column mapping \(name\)", ValueError)


def test_a_delta_table_that_may_have_deletion_vectors(tmp_path):
    source = write_delta(SALES, tmp_path / "source", ["COUNTRY"])
    _edit_log(source, lambda action: _with_features(action, "deletionVectors"))
    check_adoption(source)


def test_a_version_without_rows(tmp_path):
    source = write_delta(SALES, tmp_path / "a table", ["COUNTRY"])
    deltalake.DeltaTable(source).delete()
    refuse_adoption(source, "at version 1 has no rows", errors.MultiTableCommitAborted)
    check_adoption(f"{source}/", snapshot=0)


# -- Iceberg -----------------------------------------------------------------------------------------


def test_snapshots_of_an_iceberg_table(tmp_path):
    table = create_iceberg(SALES.schema, tmp_path / "source", ["COUNTRY"])
    table.append(SALES.slice(0, 6))
    first = table.current_snapshot().snapshot_id
    table.append(SALES.slice(6))
    second = table.current_snapshot().snapshot_id
    table.delete("SHOP == 1")
    for snapshot, rows_ in [(first, SALES.slice(0, 6)), (second, SALES), (None, SALES.slice(3))]:
        check_adoption(table, rows_, snapshot=snapshot)
    refuse_adoption(table, "5", ValueError, snapshot=5)
    root = Path(urlsplit(table.metadata_location).path).parent.parent
    refuse_adoption(root, "pass the path of its current metadata file", ValueError)


@pytest.mark.parametrize("kind", ["relative", "URL"])
def test_locations_of_an_iceberg_table(tmp_path, monkeypatch, kind):
    path = write_iceberg(SALES, tmp_path / "source", ["COUNTRY"])
    monkeypatch.chdir(tmp_path)
    check_adoption(os.path.relpath(path) if kind == "relative" else f"file://{path}")


def test_columns_that_changed_their_names(tmp_path):
    """Only the ids of columns tell that a and b have swapped their names since the file was written."""
    api.build_cube(SALES, CUBE, store := memory())
    names = pa.table({"SHOP": [1, 2, 3, 4], "A": ["a"] * 4, "B": ["b"] * 4, "C": ["c"] * 4})
    table = create_iceberg(names.schema, tmp_path / "source", [])
    table.append(names)
    with table.update_schema() as update:
        update.rename_column("A", "T")
    with table.update_schema() as update:
        update.rename_column("B", "A")
    with table.update_schema() as update:
        update.rename_column("T", "B")
        update.delete_column("C")
        update.add_column("D", table.schema().find_type("A"))
    assert api.adopt_dataset(table, CUBE, store, "names", partition_on=[]).n_rewritten == 1
    found = api.query_cube(CUBE, store)[0]
    assert set(found["A"]) == {"b"} and set(found["B"]) == {"a"} and found["D"].isna().all()
    assert "C" not in found


# -- hostile tables ----------------------------------------------------------------------------------


def _encode_some(random: Random, text: str) -> str:
    """Percent-encode some characters, up to twice."""
    for _ in range(random.randint(0, 2)):
        text = "".join(f"%{ord(c):02x}" if random.random() < 0.3 else c for c in text)
    return text


def _spellings(root: Path, outside: Path) -> list[str]:
    """Names of a file outside of a table, as its metadata could have them."""
    up = os.path.relpath(outside, root)
    spellings = [
        up, f"./{up}", f"p=1/../{up}", f"p=1/..//{up}", f"{root}/{up}", f"file://{root}/{up}", f"{outside}",
        f"/{outside}", f"file:{outside}", f"file://{outside}", f"FILE://{outside}", f"file://localhost{outside}",
        f"file://{str(outside)[1:]}", f"s3://bucket{outside}", f"local:{outside}", f"~/{up}", f"\n{outside}",
        f"{outside}\0.parquet", f"{outside}?x", f"{outside}#x",
    ]  # fmt: skip
    spellings += [text.replace("/", "\\") for text in spellings]
    spellings += [text.replace("/", "%2F") for text in spellings] + [
        text.replace("..", dots) for text in spellings for dots in ("%2e%2e", "%2E.", "%252e%252e")
    ]
    random = Random(1)
    return list(dict.fromkeys([*spellings, *(_encode_some(random, text) for text in spellings * 3)]))


@pytest.mark.slow("many paths")
def test_paths_in_a_delta_log_do_not_lead_out_of_the_table(tmp_path):
    root = Path(write_delta(SALES, tmp_path / "source", []))
    add = pa.table(deltalake.DeltaTable(root).get_add_actions())["path"][0].as_py()
    outside = (root / add).rename(tmp_path / "secret.parquet")
    for spelling in _spellings(root, outside):
        _edit_log(root, lambda a, path=spelling: "add" in a and a["add"].update(path=path))
        # the others are names of files in the table, which do not exist
        refuse_adoption(root, f"{NOT_IN_TABLE}|No such file or directory: '{root}/")
    _edit_log(root, lambda a: "add" in a and a["add"].update(path="../secret.parquet"))
    refuse_adoption(deltalake.DeltaTable(root))


def test_sidecars_of_a_delta_table_are_in_its_log(tmp_path):
    root = Path(write_delta(SALES, tmp_path / "source", []))
    deltalake.DeltaTable(root).create_checkpoint()
    log, outside = root / "_delta_log", tmp_path / "secret.parquet"
    checkpoint, commit = (log / f"{0:020}.{name}" for name in ("checkpoint.parquet", "json"))
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    actions = [action for action in actions if "protocol" in action or "metaData" in action]
    for action in actions:
        _with_features(action, "v2Checkpoint")
    (log / "_sidecars").mkdir()
    for path in (outside, log / "_sidecars" / "0.parquet"):
        pq.write_table(pq.read_table(checkpoint, columns=["add"]), path)
    for path in (checkpoint, commit, log / "_last_checkpoint"):
        path.unlink()
    for path in ["0.parquet", *_spellings(log / "_sidecars", outside)]:
        sidecar = {"path": path, "sizeInBytes": outside.stat().st_size, "modificationTime": 0}
        lines = [{"checkpointMetadata": {"version": 0}}, *actions, {"sidecar": sidecar}]
        v2 = log / f"{0:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
        v2.write_text("\n".join(map(json.dumps, lines)))
        if path == "0.parquet":
            check_adoption(root)
        else:
            refuse_adoption(root)


@pytest.mark.parametrize("line", ["1", "null", "[]", '{"sidecar": 1}', '{"add": {}}', '{"add":' * 100_000])
def test_a_malformed_line_of_a_delta_log_is_an_error_with_its_file(tmp_path, line):
    """Also in an older checkpoint, which deltalake does not read."""
    source = write_delta(SALES, tmp_path / "source", [])
    deltalake.write_deltalake(source, SALES, mode="append")
    deltalake.DeltaTable(source).create_checkpoint()
    name = f"{0:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (tmp_path / "source" / "_delta_log" / name).write_text(line)
    refuse_adoption(source, f"{name} is no part of a Delta log", ValueError)


def test_a_damaged_file_of_a_delta_table_is_named(tmp_path):
    source = write_delta(SALES, tmp_path / "source", [])
    (file,) = (tmp_path / "source").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-9])
    refuse_adoption(source, f"{file.name} is no Parquet file", ValueError)


@pytest.mark.parametrize("features, checkpoint", [((), True), (("deletionVectors",), False)])
@pytest.mark.parametrize(
    "storage, vector", [("p", "file:///secret.bin"), ("u", "../ab^-aqEH.-t@S}K{vb[*k^"), ("i", "w")]
)
def test_deletion_vectors_are_refused_without_reading_them(tmp_path, features, storage, vector, checkpoint):
    """Also those that the protocol of the table does not declare."""
    source = write_delta(SALES, tmp_path / "source", [])

    def edit(action):
        _add_deletion_vector(action, features)
        if "add" in action:
            action["add"]["deletionVector"].update(storageType=storage, pathOrInlineDv=vector)

    _edit_log(source, edit)
    deltalake.write_deltalake(source, SALES.slice(0, 1), mode="append")
    if checkpoint:
        deltalake.DeltaTable(source).create_checkpoint()
        for version in (0, 1):
            Path(source, "_delta_log", f"{version:020}.json").unlink()
    refuse_adoption(source, "at version 1 has deletion vectors: its files have rows that were deleted")


def test_files_that_were_written_again_without_deletion_vectors(tmp_path):
    _edit_log(source := write_delta(SALES, tmp_path / "source", []), _add_deletion_vector)
    log = Path(source, "_delta_log")
    actions = map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
    (add,) = [action["add"] for action in actions if "add" in action]
    remove = {"path": add["path"], "deletionTimestamp": 0, "dataChange": False}
    remove["deletionVector"] = add.pop("deletionVector")
    (log / f"{1:020}.json").write_text(f"{json.dumps({'add': add})}\n{json.dumps({'remove': remove})}")
    check_adoption(source)
    refuse_adoption(deltalake.DeltaTable(source, version=0), "has deletion vectors")


def _iceberg_with(spelling: str, target: str, table) -> str:
    """Metadata file of a table, with another location of a data file, manifest or list of manifests."""
    from pyiceberg.manifest import write_manifest, write_manifest_list

    snapshot = table.current_snapshot()
    (manifest,) = snapshot.manifests(table.io)
    source = urlsplit(table.metadata_location).path
    if target == "list":
        metadata = json.loads(Path(source).read_text())
        metadata["snapshots"][-1]["manifest-list"] = spelling
        Path(source).write_text(json.dumps(metadata))
        return source
    if target == "data":
        (entry,) = manifest.fetch_manifest_entry(table.io)
        entry.data_file._data[1] = spelling
        output = table.io.new_output(manifest.manifest_path)
        with write_manifest(2, table.spec(), table.schema(), output, snapshot.snapshot_id, "null") as writer:
            writer.add_entry(entry)
    else:
        manifest._data[0] = spelling
        output = table.io.new_output(snapshot.manifest_list)
        with write_manifest_list(2, output, snapshot.snapshot_id, None, 1, "null") as writer:
            writer.add_manifests([manifest])
    return source


@pytest.mark.slow("tables that pyiceberg writes")
@pytest.mark.parametrize("target", ["list", "manifest", "data"])
def test_locations_in_iceberg_metadata_do_not_lead_out_of_the_table(tmp_path, target):
    table = create_iceberg(SALES.schema, tmp_path / "source", [])
    table.append(SALES)
    snapshot = table.current_snapshot()
    (manifest,) = snapshot.manifests(table.io)
    (entry,) = manifest.fetch_manifest_entry(table.io)
    locations = {"list": snapshot.manifest_list, "manifest": manifest.manifest_path}
    root = Path(urlsplit(table.location()).path)
    original = Path(urlsplit(locations.get(target, entry.data_file.file_path)).path)
    up = f"file://{root}/../{root.name}/{original.relative_to(root)}"
    for inside in (str(original), f"file:{original}", up):
        check_adoption(_iceberg_with(inside, target, table))
    outside = shutil.copyfile(original, tmp_path / f"secret{original.suffix}")
    # some are names of files in the table, which do not exist
    text = f"{NOT_IN_TABLE}|No such file or directory|Cannot open"
    for spelling in _spellings(root, outside):
        refuse_adoption(_iceberg_with(spelling, target, table), text)


def test_an_iceberg_table_does_not_name_the_code_that_reads_it(tmp_path, monkeypatch):
    source = Path(write_iceberg(SALES, tmp_path / "source", []))
    (tmp_path / "evil.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    metadata = json.loads(source.read_text())
    metadata["properties"]["py-io-impl"] = "evil.IO"
    source.write_text(json.dumps(metadata))
    check_adoption(source)


@pytest.mark.parametrize("name", ["file", "directory"])
def test_links_do_not_lead_out_of_the_table(write, tmp_path, name):
    source = Path(write(SALES))
    root = source if source.is_dir() else source.parent.parent
    file = min(root.rglob("*.parquet"))
    moved = file if name == "file" else file.parent
    inside = moved.rename(moved.with_name("_moved"))
    moved.symlink_to(inside)
    if write.kind == "directory" and name == "directory":
        refuse_adoption(source, "is a link, but not to a file")
    else:
        check_adoption(source)
    moved.unlink()
    moved.symlink_to(inside.rename(tmp_path / "outside"))
    refuse_adoption(source)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_metadata_of_a_table_are_no_links_out_of_it(tmp_path, kind):
    source = Path(WRITERS[kind](SALES, tmp_path / "source", []))
    folder = source / "_delta_log" if kind == "delta" else source.parent
    files = [path for path in folder.iterdir() if path.suffix != ".json" or kind == "delta" or path == source]
    for path in [*files, folder]:
        moved = path.rename(tmp_path / "outside")
        path.symlink_to(moved)
        refuse_adoption(source)
        path.unlink()
        moved.rename(path)
    check_adoption(source)


def test_links_in_a_cycle_are_not_followed(tmp_path):
    source = Path(write_directory(SALES, tmp_path / "source", ["COUNTRY"]))
    for name in ("a", "b"):
        (source / name).symlink_to(source)
    refuse_adoption(source, "is not in the directory of the table|is a link, but not to a file")


# -- other libraries ---------------------------------------------------------------------------------


# plateau and its stores warn about themselves
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_plateau_reads_adopted_files(write, tmp_path):
    from plateau.io.eager import read_table as plateau_read_table

    api.adopt_dataset(write(SALES), CUBE, tmp_path / "store", "seed")
    url = f"hfs://{tmp_path / 'store'}"
    ours = read_table("sales++seed", tmp_path / "store")
    theirs = plateau_read_table("sales++seed", store=url)
    assert set(theirs.columns) == set(ours.columns)
    keys = ["COUNTRY", "SHOP", "DAY"]
    ours, theirs = (df[sorted(ours)].sort_values(keys, ignore_index=True) for df in (ours, theirs))
    pd.testing.assert_frame_equal(ours.astype(object), theirs.astype(object))


def test_files_of_one_month_are_copied_to_a_cube_that_is_partitioned_by_months(tmp_path):
    cube = api.Cube(["SHOP", "DAY"], [api.month("DAY")], "sales")
    days = [datetime.datetime(2024, 1, 1) + datetime.timedelta(n) for n in range(40)]
    table = pa.table({"SHOP": [1] * 40, "DAY": pa.array(days, pa.timestamp("us")), "QTY": range(40)})
    for number in range(2):
        put(table.slice(20 * number, 20), tmp_path / f"{number}.parquet", compression="zstd")
    months = [f"{day:%Y-%m}" for day in days]
    adopted = check_adoption(tmp_path, change(table, DAY_month=months), store := memory(), cube)
    assert (adopted.n_copied, adopted.n_rewritten) == (1, 1)
    found = sorted({label.partition("/")[0] for label in adopted.dataset.partitions})
    assert found == ["DAY_month=2024-01", "DAY_month=2024-02"]
    assert len(api.query_cube(cube, store, api.C("DAY") < "2024-02-01")[0]) == 31
