"""Published datasets, read by delta-rs and Polars; what other engines and collections must not do to them."""

import datetime as dt
import itertools
import json
import shutil
import warnings
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from plateau.io import eager as plateau
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.table import StaticTable

from kartothek_cube.api import cube as api
from kartothek_cube.api.dataset import (
    copy_dataset,
    delete_dataset,
    garbage_collect_dataset,
    list_dataset_garbage,
    publish_dataset,
    read_table_arrow,
    store_dataframes_as_dataset,
    unpublish_dataset,
    update_dataset_from_dataframes,
    update_dataset_schema,
    verify_dataset,
)
from kartothek_cube.core.errors import CorruptDatasetError, DatasetNotFoundError, PublicationWarning
from kartothek_cube.core.header import parse_record
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.maintenance import garbage
from kartothek_cube.io_components.publication import delta_log
from kartothek_cube.io_components.publication.delta_log import read_log
from kartothek_cube.serialization import CsvSerializer
from tests.support.crash import stores_after_faults
from tests.support.cubes import memory, snapshot
from tests.support.paths import files_below
from tests.support.servers import s3_url
from tests.support.stores import CountingStore, FaultyStore, MinimalStore, Same

CUBE = api.Cube(["x"], ["p"], "cube")


def on_disk(store, directory: Path) -> Path:
    for key in store.keys():
        file = directory / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(store.get(key))
    return directory


def rows(table: DeltaTable | Path, order: str = "x") -> list[dict]:
    opened = table if isinstance(table, DeltaTable) else DeltaTable(str(table))
    return opened.to_pyarrow_table().sort_by(order).to_pylist()


def iceberg(path: Path) -> str:
    return f"{path}/_delta_log/_iceberg"


def by_pyiceberg(path: Path) -> pa.Table:
    return StaticTable.from_metadata(iceberg(path)).scan().to_arrow()


def by_polars_as_iceberg(path: Path) -> pa.Table:
    version = Path(iceberg(path), "metadata/version-hint.text").read_text()
    with pytest.MonkeyPatch.context() as patch:
        # Polars' own planner is another package
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        return pl.scan_iceberg(f"{iceberg(path)}/metadata/v{version}.metadata.json").collect().to_arrow()


def by_datafusion(path: Path) -> pa.Table:
    query = QueryBuilder().register("t", DeltaTable(str(path))).execute("SELECT * FROM t")
    return pa.table(query.read_all())


READERS = {
    "delta-rs": lambda path: DeltaTable(str(path)).to_pyarrow_table(),
    "DataFusion": by_datafusion,
    "Polars": lambda path: pl.read_delta(str(path)).to_arrow(),
    "pyiceberg": by_pyiceberg,
    "Polars, Iceberg": by_polars_as_iceberg,
}


def seed(**values: list) -> pd.DataFrame:
    return pd.DataFrame({"x": [0, 1], "p": [0, 1], **values})


def cell(x: int, p: int | None = None, **values: object) -> pd.DataFrame:
    return pd.DataFrame({"x": [x], "p": [x if p is None else p], **{k: [v] for k, v in values.items()}})


def log_of(path: Path, uuid: str = "cube++seed") -> list[list[dict]]:
    files = sorted((path / uuid / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def column(table: DeltaTable | Path, name: str = "x") -> list:
    return [row[name] for row in rows(table)]


def logs(store_or_path) -> list[str]:
    keys = files_below(store_or_path) if isinstance(store_or_path, Path) else store_or_path.keys()
    return [key for key in keys if "_delta_log" in key]


def store_published(store, dfs=None, format="delta", on_commit=None, **options) -> None:
    store_dataframes_as_dataset(store, "u", [seed()] if dfs is None else dfs, **options)
    publish_dataset("u", store, format=format, on_commit=on_commit)


def build_published(store, data=None, format="delta", on_commit=None, **options) -> None:
    api.build_cube(seed() if data is None else data, CUBE, store, **options)
    api.publish_cube(CUBE, store, format=format, on_commit=on_commit)


def problems(store) -> list[str]:
    return [problem.kind for problem in api.verify_cube(CUBE, store).problems]


@pytest.fixture
def published(url):
    build_published(url)
    return url


# stores, increments -----------------------------------------------------------------------------


def test_each_state_is_a_version(store_factory, tmp_path):
    store_dataframes_as_dataset(store_factory, "u", [seed()], partition_on=["p"])
    assert publish_dataset("u", store_factory) == {"version": 0, "files": 2, "added": 2, "removed": 0}
    assert publish_dataset("u", store_factory) == {"version": 0, "files": 2, "added": 0, "removed": 0}
    update_dataset_from_dataframes([cell(2, 1)], store_factory, "u", delete_scope=[{"p": 1}])
    assert publish_dataset("u", store_factory) == {"version": 1, "files": 2, "added": 1, "removed": 1}
    table = DeltaTable(str(on_disk(store_factory(), tmp_path / "files") / "u"))
    assert rows(table) == [{"p": 0, "x": 0}, {"p": 1, "x": 2}]
    table.load_as_version(0)
    assert rows(table) == [{"p": 0, "x": 0}, {"p": 1, "x": 1}]


def test_only_the_footers_of_new_files_are_read():
    store = CountingStore(memory())
    store_published(Same.of(store), [seed() for _ in range(20)], partition_on=["p"])
    update_dataset_from_dataframes([seed()], Same.of(store), "u")
    store.reset()
    assert publish_dataset("u", Same.of(store))["added"] == 2
    assert len({key for _, key in store.log if str(key).endswith(".parquet")}) == 2


def test_nothing_is_written_for_the_same_state():
    store = CountingStore(memory())
    build_published(Same.of(store))
    api.cleanup_cube(CUBE, Same.of(store))
    store.reset()
    api.publish_cube(CUBE, Same.of(store))
    assert not {"put", "delete"} & set(store.counts)


def test_the_log_names_the_state_of_the_dataset(url, path):
    dataset = api.build_cube(seed(), CUBE, url)["seed"]
    api.publish_cube(CUBE, url)
    [entry] = DeltaTable(str(path / "cube++seed")).history()
    assert entry["operation"] == "PUBLISH"
    assert entry["operationParameters"]["commit"] == parse_record(dataset.extra).commit


def test_a_checkpoint_shortens_the_log(url, path):
    """Readers and publishers start at the newest one."""
    store_dataframes_as_dataset(url, "u", [seed()])
    for number in range(45):
        update_dataset_from_dataframes([cell(10 + number, 2)], url, "u")
        publish_dataset("u", url)
    log = path / "u/_delta_log"
    assert sorted(file.name[:20] for file in log.glob("*.parquet")) == [f"{n:020d}" for n in (20, 40)]
    for number in range(40):
        (log / f"{number:020d}.json").unlink()
    assert len(rows(path / "u")) == 47
    assert publish_dataset("u", url) == {"version": 44, "files": 46, "added": 0, "removed": 0}
    update_dataset_from_dataframes([seed()], url, "u", delete_scope=[{}])
    assert publish_dataset("u", url) == {"version": 45, "files": 1, "added": 1, "removed": 46}
    assert len(log_of(path, "u")[-1]) == 1 + 46 + 1


def test_a_checkpoint_of_others_is_read(published, path):
    DeltaTable(str(path / "cube++seed")).create_checkpoint()
    api.append_to_cube(cell(2), CUBE, published)
    counts = {"version": 1, "files": 3, "added": 1, "removed": 0}
    assert api.publish_cube(CUBE, published)["seed"] == counts
    # nor are protocol and schema written again
    assert [set(action) for action in log_of(path)[1]] == [{"commitInfo"}, {"add"}]


def test_readers_of_object_stores():
    """delta-rs, Polars, pyiceberg and, by Arrow, DuckDB read the table in its bucket."""
    url = s3_url(prefix="/some/where")
    build_published(url, seed(k="a b%c").assign(p=["a b%c", "d"]), "iceberg")
    parts = urlsplit(url)
    options = {
        "endpoint": parse_qs(parts.query)["endpoint"][0],
        "region": "us-east-1",
        "access-key-id": "testing",
        "secret-access-key": "secret_of_tests",
    }
    location = f"s3://{parts.netloc}/some/where/cube++seed"
    metadata = f"{iceberg(location)}/metadata/v1.metadata.json"
    shown = StaticTable.from_metadata(metadata, {f"s3.{name}": value for name, value in options.items()})
    options = {f"AWS_{name.upper().replace('-', '_')}": value for name, value in options.items()}
    options["AWS_ALLOW_HTTP"] = "true"
    table = DeltaTable(location, storage_options=options)
    for read in (shown.scan().to_arrow(), table.to_pyarrow_table()):
        assert [row["p"] for row in plain(read)] == ["a b%c", "d"]
    frame = pl.scan_delta(location, storage_options=options).filter(pl.col("p") == "a b%c").collect()
    assert frame["x"].to_list() == [0]
    files = table.to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.register("files", files)
    assert connection.sql("SELECT x FROM files WHERE p = 'd'").fetchall() == [(1,)]


def test_commits_after_the_files_were_looked_at_are_published():
    """The first version is staged when others commit; what was found out about other files still counts."""
    store = memory()
    api.build_cube(seed(), CUBE, Same.of(store))
    api.append_to_cube(cell(5, 0), CUBE, Same.of(store))

    def commit():
        api.append_to_cube(cell(6, 0), CUBE, Same.of(store))
        api.remove_partitions(CUBE, Same.of(store), api.C("p") == 1)

    counts = api.publish_cube(CUBE, Same.of(FaultyStore(store).fail("put", key="_staged", error=commit)))
    assert counts["seed"] == {"version": 0, "files": 3, "added": 3, "removed": 0}
    assert not problems(store)


@pytest.mark.filterwarnings("ignore::kartothek_cube.core.store.NoCompareAndSwapWarning")
def test_stores_without_put_if_absent(tmp_path):
    store = MinimalStore()
    build_published(Same.of(store))
    api.append_to_cube(cell(2), CUBE, Same.of(store))
    assert api.publish_cube(CUBE, Same.of(store))["seed"]["version"] == 1
    assert len(rows(on_disk(store, tmp_path) / "cube++seed")) == 3


# values -------------------------------------------------------------------------------------------

COLUMNS = {
    "int8": pa.array([1, None], pa.int8()),
    "int64": pa.array([-(2**63), 2**63 - 1]),
    "uint8": pa.array([255, None], pa.uint8()),
    "uint32": pa.array([2**32 - 1, 2], pa.uint32()),
    "float32": pa.array([1.5, None], pa.float32()),
    "float64": pa.array([float("inf"), -0.0]),
    "bool": pa.array([True, None]),
    "string": pa.array(["ä\n\"'", None]),
    "large_string": pa.array(["x" * 1000, ""], pa.large_string()),
    "dictionary": pa.array(["p", "q"]).dictionary_encode(),
    "binary": pa.array([b"\x00\xff", b""]),
    "fixed binary": pa.array([b"ab", b"cd"], pa.binary(2)),
    "date": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": pa.array(
        [dt.datetime(1677, 10, 1, 0, 0, 0, 1), dt.datetime(2262, 1, 1)], pa.timestamp("us")
    ),
    "time zone": pa.array([dt.datetime(2020, 6, 1), None], pa.timestamp("us", "Europe/Berlin")),
    "decimal": pa.array([Decimal("1.25"), None], pa.decimal128(38, 2)),
    "list": pa.array([[1, None], None], pa.list_(pa.int32())),
    "empty lists": pa.array([[], None], pa.list_(pa.null())),
    "list of times": pa.array([[dt.datetime(9999, 1, 1)], None], pa.list_(pa.timestamp("us"))),
    "struct": pa.array([{"a": 1, "b": ["x"], "t": dt.datetime(2020, 1, 1)}, None]),
    "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    "null": pa.nulls(2),
    "a b,;{}()=\t": pa.array([1, 2]),
}


def plain(table: pa.Table) -> list[dict]:
    """Rows by x, times in microseconds and UTC, as tables have them."""
    columns = {}
    for name in table.column_names:
        values = table.column(name)
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us", "UTC" if values.type.tz else None))
        columns[name] = values
    # Arrow does not sort all types of strings
    return sorted(pa.table(columns).to_pylist(), key=lambda row: row["x"])


#: what pyiceberg does not read, also from tables of others
UNREADABLE = {
    "fixed binary": ResolveError,
    "time zone": UnsupportedPyArrowTypeException,
    "null": ValueError,
    "empty lists": ValueError,
}


@pytest.mark.parametrize("name", COLUMNS)
def test_types_of_columns(name, url, path):
    store_published(url, [pa.table({"x": [1, 2], name: COLUMNS[name]})], format="iceberg")
    stored = read_table_arrow("u", url)
    # a column without any value has no type so far
    shown = stored.drop_columns([name]) if name in ("null", "empty lists") else stored
    for reader, read in READERS.items():
        if reader == "pyiceberg" and name in UNREADABLE:
            with pytest.raises(UNREADABLE[name]):
                read(path / "u")
        else:
            assert plain(read(path / "u").select(shown.column_names)) == plain(shown), reader


def test_fields_without_a_value_so_far_are_left_out(url, path):
    """Not the other ones of their struct."""
    fields = [{"a": None, "b": 1}, None]
    data = pa.table({"x": [1, 2], "s": fields, "l": [[fields[0]], [None]]})
    store_published(url, [data], format="iceberg")
    readers = [read for name, read in READERS.items() if name != "pyiceberg"]
    for read in readers:
        columns = plain(read(path / "u"))
        assert [row["s"] for row in columns] == [{"b": 1}, None]
        assert [row["l"] for row in columns] == [[{"b": 1}], [None]]
    update_dataset_from_dataframes([pa.table({"x": [3], "s": [{"a": "z", "b": 1}], "l": [[]]})], url, "u")
    publish_dataset("u", url)
    for read in readers:
        assert [row["s"] for row in plain(read(path / "u"))] == [*fields, {"a": "z", "b": 1}]


def test_numbers_above_those_of_signed_types(url, path):
    store_published(url, [pa.table({"x": pa.array([2**64 - 1], pa.uint64())})])
    assert rows(path / "u") == [{"x": Decimal(2**64 - 1)}]


@pytest.mark.parametrize(
    "columns, options, message",
    [
        ({"v": pa.array([dt.time(1)])}, {}, "column v is time64[us], a type that Delta tables do not"),
        ({"v": pa.array([[dt.time(1)]])}, {}, "with time64[us], a type that Delta tables do not have"),
        ({"v": pa.array([Decimal(1)], pa.decimal256(50, 2))}, {}, "column v is decimal256(50, 2), a type"),
        ({"Qty": [1], "qty": [2]}, {}, "columns Qty and qty differ in case only"),
        ({"x": pa.nulls(1), "p": [1]}, {"partition_on": "p"}, "no column in its files has a value so far"),
        ({"x": [1], "k": [b"a"]}, {"partition_on": "k"}, "partition key k is binary"),
        ({"x": [1], "k": [""]}, {"partition_on": "k"}, "partition key k has an empty text, which readers of"),
        ({"x": [1], "k": pa.array([2**63], pa.uint64())}, {"partition_on": "k"}, "has numbers above 9,223,"),
        ({"x": [1]}, {"df_serializer": CsvSerializer()}, "no Parquet file, and a Delta table has no others"),
    ],
)
def test_what_delta_tables_cannot_show(columns, options, message, url, path):
    store_dataframes_as_dataset(url, "u", [pa.table(columns)], **options)
    with pytest.raises(ValueError, match="Dataset 'u' cannot be published") as error:
        publish_dataset("u", url)
    assert message in str(error.value)
    assert not (path / "u/_delta_log").exists()


KEYS = {
    "int": pa.array([1, -2], pa.int8()),
    "uint": pa.array([1, 2], pa.uint64()),
    "float": pa.array([1.5, 1e300]),
    "infinite": pa.array([float("inf"), 0.0]),
    "bool": pa.array([True, False]),
    "text": pa.array(["ä b/c%=+&?#'\"\\", "x:y\n%20"]),
    "None": pa.array(["None", "nan"]),
    "dictionary": pa.array(["p", "q"]).dictionary_encode(),
    "date": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": pa.array([dt.datetime(1700, 1, 1, 0, 0, 0, 1), dt.datetime(2200, 1, 1)], pa.timestamp("us")),
    "zone": pa.array(
        [dt.datetime(2020, 1, 1, 0, 0, 0, 1), dt.datetime(2020, 6, 1)], pa.timestamp("us", "Europe/Berlin")
    ),
    "decimal": pa.array([Decimal("1.25"), Decimal("17")], pa.decimal128(10, 2)),
    "a%20b c": pa.array([1, 2]),
}


@pytest.mark.parametrize("name", KEYS)
def test_partition_keys(name, url, path):
    """Values that files do not have, as they are in paths."""
    is_float = name in ("float", "infinite")
    options = {"partition_on": [name], "format": "delta" if is_float else "iceberg"}
    store_published(url, [pa.table({"x": [1, 2], name: KEYS[name]})], **options)
    assert DeltaTable(str(path / "u")).metadata().partition_columns == [name]
    stored = plain(read_table_arrow("u", url))
    for reader, read in READERS.items():
        if "berg" in reader and is_float:
            continue
        if reader == "Polars" and name == "a%20b c":
            # takes the values out of the path, and does not decode names
            with pytest.raises(pl.exceptions.SchemaFieldNotFoundError):
                read(path / "u")
            continue
        assert plain(read(path / "u").select([name, "x"])) == stored, reader
    if name != "a%20b c":
        # by its partition values, one of the files is left out
        value = next(row[name] for row in stored if row["x"] == 1)
        found = pl.scan_delta(str(path / "u")).filter(pl.col(name) == value).collect()
        assert found["x"].to_list() == [1]


def test_files_with_other_types_and_order(url, path):
    """A column is as wide as the widest of its files; a null column has the type of others."""
    first = pa.table({"x": pa.array([1], pa.int8()), "f": pa.array([1.5], pa.float32()), "n": pa.nulls(1)})
    store_published(url, [first])
    types = {field.name: field.type.type for field in DeltaTable(str(path / "u")).schema().fields}
    assert types == {"f": "float", "x": "byte"}
    second = pa.table({"n": ["a"], "f": [2.5], "x": pa.array([300], pa.int16())})
    update_dataset_from_dataframes([second], url, "u")
    publish_dataset("u", url)
    types = {field.name: field.type.type for field in DeltaTable(str(path / "u")).schema().fields}
    assert types == {"f": "double", "n": "string", "x": "short"}
    expected = [{"f": 1.5, "n": None, "x": 1}, {"f": 2.5, "n": "a", "x": 300}]
    assert rows(path / "u") == expected
    assert pl.read_delta(str(path / "u")).sort("x").to_dicts() == expected


def test_statistics_of_footers(url, path):
    data = pa.table(
        {
            "x": [1, 5],
            "s": ["a", None],
            "f": [1.0, float("nan")],
            "d": [dt.date(2020, 1, 1)] * 2,
            "t": pa.array([dt.datetime(2020, 1, 1, 0, 0, 0, 1)] * 2, pa.timestamp("us")),
            "long": ["y" * 1000] * 2,
            "l": [[1], []],
        }
    )
    store_published(url, [data])
    [add] = [action["add"] for action in log_of(path, "u")[0] if "add" in action]
    day, moment = "2020-01-01", "2020-01-01T00:00:00.000001"
    # NaN is not part of footers: there may be a larger one than the maximum
    assert json.loads(add["stats"]) == {
        "numRecords": 2,
        "minValues": {"x": 1, "s": "a", "f": 1.0, "d": day, "t": moment},
        "maxValues": {"x": 5, "s": "a", "d": day, "t": moment},
        "nullCount": {"x": 0, "s": 1, "f": 0, "d": 0, "t": 0, "long": 0},
    }


@pytest.mark.parametrize("column", ["x", "t", "s", "d"])
def test_filters_prune_by_statistics(column, url, path):
    """Rows are found, and files left out, by the bounds of each type."""
    days = [dt.datetime(2020, 1, 1 + n, 0, 0, 0, 1) for n in range(4)]
    data = [pa.table({"x": [n], "t": [day], "s": [f"s{n}"], "d": [day.date()]}) for n, day in enumerate(days)]
    store_published(url, data)
    value = data[2].column(column)[0].as_py()
    table = DeltaTable(str(path / "u"))
    assert len(list(table.to_pyarrow_dataset().get_fragments(pads.field(column) == value))) == 1
    assert pl.scan_delta(str(path / "u")).filter(pl.col(column) == value).collect()["x"].to_list() == [2]


WITHOUT_BOUNDS = {
    "decimal": ([Decimal("1.25"), None], [Decimal("7.50"), Decimal("9.25")]),
    "bool": ([False, False], [True, None]),
    "float": ([1.5, float("nan")], [2.5, 3.5]),
    "text": (["a", "b"], ["c" * 100, "d"]),
    "new": (None, [5, None]),
    "a`b c": ([1, 2], [3, 4]),
}


@pytest.mark.parametrize("name", WITHOUT_BOUNDS)
def test_filters_find_rows_of_files_without_bounds(name, url, path):
    """delta-rs leaves out files that lack bounds of a column, in filters of PyArrow."""
    first, second = WITHOUT_BOUNDS[name]
    old = {"x": [0, 1], "p": [0, 0]} | ({} if first is None else {name: first})
    build_published(url, pa.table(old))
    new = {"x": [2, 3], "p": [0, 0], name: second}
    api.append_to_cube(pa.table(new), CUBE, url, schema_mode="merge")
    api.publish_cube(CUBE, url)
    shown, field = DeltaTable(str(path / "cube++seed")).to_pyarrow_dataset(), pads.field(name)
    for condition in (field == second[0], field > second[0], field.is_null()):
        expected = shown.to_table().filter(condition)["x"].to_pylist()
        assert shown.to_table(filter=condition)["x"].to_pylist() == expected
    # files are left out by columns with bounds
    assert len(list(shown.get_fragments(pads.field("x") == 3))) == 1


# schema evolution ---------------------------------------------------------------------------------


def test_columns_that_older_files_lack_or_have_beside(url, path):
    build_published(url, seed(a=[1, 2], b=[1, 2]), "iceberg")
    update_dataset_schema("cube++seed", url, add={"new": "string"}, drop="b")
    api.publish_cube(CUBE, url)
    api.append_to_cube(cell(2, a=3, new="n"), CUBE, url)
    api.publish_cube(CUBE, url)
    old = seed(a=[1, 2], new=[None, None]).to_dict("records")
    for read in READERS.values():
        assert plain(read(path / "cube++seed")) == [*old, {"p": 2, "a": 3, "new": "n", "x": 2}]


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"rename": {"a": "c"}}, "column c has its former name a"),
        ({"add": {"c": "int64"}, "defaults": {"c": 7}}, "column c is missing, and its default is not null"),
        ({"widen": {"a": "float64"}}, "column a has integers"),
    ],
)
@pytest.mark.parametrize("compact", [False, True])
def test_older_files_that_others_would_misread(change, problem, compact, url, path):
    """Published before or not; a compaction rewrites them."""
    build_published(url, seed(a=[1, 2]))
    update_dataset_schema("cube++seed", url, **change)
    with pytest.raises(ValueError, match=problem) as error:
        api.publish_cube(CUBE, url)
    assert "compact_cube with min_files=1" in str(error.value)
    assert len(log_of(path)) == 1
    if not compact:
        api.compact_cube(CUBE, url, min_files=1)
    api.publish_cube(CUBE, url, compact=compact)
    expected = api.query_cube(CUBE, url)[0].sort_values("x").to_dict("records")
    in_order = [{name: row[name] for name in sorted(row, key="p".__ne__)} for row in expected]
    assert rows(path / "cube++seed") == in_order


def test_a_dataset_of_no_cube_with_older_files_is_overwritten_by_its_rows(url, path):
    store_published(url, [seed()], partition_on=["p"])
    update_dataset_schema("u", url, add={"c": "int64"}, defaults={"c": 7})
    with pytest.raises(ValueError, match=r"column c is missing.*store the dataset again with overwrite=True"):
        publish_dataset("u", url)
    store_published(url, [read_table_arrow("u", url)], partition_on=["p"], overwrite=True)
    assert [row["c"] for row in rows(path / "u")] == [7, 7]


def test_an_overwrite_with_another_schema(url, path):
    store_published(url, [seed(v=[1, 2])], partition_on=["p"], format="iceberg")
    table_uuid = StaticTable.from_metadata(iceberg(path / "u")).metadata.table_uuid
    store_published(url, [seed(v=["a", "b"])], partition_on=["v"], overwrite=True)
    for read in READERS.values():
        assert plain(read(path / "u")) == [{"v": "a", "p": 0, "x": 0}, {"v": "b", "p": 1, "x": 1}]
    assert StaticTable.from_metadata(iceberg(path / "u")).metadata.table_uuid == table_uuid


def test_a_dataset_without_rows(url, path):
    store_published(url, [seed()], partition_on=["p"], format="iceberg")
    update_dataset_from_dataframes([], url, "u", delete_scope=[{}])
    assert publish_dataset("u", url)["files"] == 0
    for read in READERS.values():
        assert read(path / "u").num_rows == 0


# overwritten cells --------------------------------------------------------------------------------


def test_appended_cells_need_no_compaction(published, path):
    """Several files of a partition without a common cell, told apart by footers or by their rows."""
    api.append_to_cube(pd.DataFrame({"x": [10, 12], "p": [0, 0]}), CUBE, published)
    api.append_to_cube(cell(11, 0), CUBE, published)
    assert api.publish_cube(CUBE, published)["seed"]["files"] == 4
    assert column(path / "cube++seed") == [0, 1, 10, 11, 12]


def test_only_partitions_with_overwritten_cells_are_compacted(url, path):
    """Without compaction, all datasets are published or none."""
    api.build_cube({"seed": seed(v=[1, 2]), "more": seed(w=[1, 2])}, CUBE, url)
    api.append_to_cube({"seed": pd.DataFrame({"x": [0, 9], "p": [0, 1], "v": [7, 9]})}, CUBE, url)
    api.append_to_cube({"more": cell(9, 1, w=9)}, CUBE, url)
    problem = r"(?s)1 row of partition cube\+\+seed/table/p=0 has a newer version.*compact_cube"
    for publish, target in ((api.publish_cube, CUBE), (publish_dataset, "cube++seed")):
        with pytest.raises(ValueError, match=problem):
            publish(target, url)
    assert not logs(path)
    before = files_below(path / "cube++seed/table/p=1") | files_below(path / "cube++more/table")
    counts = {"version": 0, "files": 3, "added": 3, "removed": 0}
    assert api.publish_cube(CUBE, url, compact=True) == {"more": counts, "seed": counts}
    assert files_below(path / "cube++seed/table/p=1") | files_below(path / "cube++more/table") == before
    assert column(path / "cube++seed", "v") == [7, 2, 9]
    # nothing to compact
    files = files_below(path)
    api.publish_cube(CUBE, url, compact=True)
    assert files_below(path) == files


def test_cells_of_datasets_with_other_partition_keys(url):
    """Cells are those of a partition of the cube, whatever else a dataset is partitioned by."""
    data = {"seed": seed(), "more": pd.DataFrame({"x": [0, 1], "p": [0, 1], "k": ["a", "b"]})}
    api.build_cube(data, CUBE, url, partition_on={"more": ["p", "k"]})
    api.append_to_cube({"more": cell(0, k="b")}, CUBE, url)
    with pytest.raises(ValueError, match=r"cube\+\+more.*newer version"):
        api.publish_cube(CUBE, url)
    # a dataset that is no part of a cube shows all of its rows
    store_dataframes_as_dataset(url, "u", [seed(), seed()], partition_on=["p"])
    assert publish_dataset("u", url)["files"] == 4


def test_a_partition_that_is_one_cell(url, path):
    """All dimensions of the dataset are partition keys."""
    build_published(url, {"seed": seed(), "more": seed(v=[1, 1])}, partition_on={"more": ["p", "x"]})
    api.append_to_cube({"more": cell(0, v=2)}, CUBE, url)
    with pytest.raises(ValueError, match=r"cube\+\+more.*1 row of partition .*/p=0/x=0 has a newer version"):
        api.publish_cube(CUBE, url)
    api.publish_cube(CUBE, url, compact=True)
    assert column(path / "cube++more", "v") == [2, 1]


def test_publication_of_some_datasets(url, path):
    api.build_cube({"seed": seed(), "more": seed().assign(w=1)}, CUBE, url)
    assert list(api.publish_cube(CUBE, url, "more")) == ["more"]
    assert not (path / "cube++seed/_delta_log").exists()
    for operation in (api.publish_cube, api.unpublish_cube):
        with pytest.raises(ValueError, match=r"Could not find datasets of cube cube: .*other"):
            operation(CUBE, url, ["other"])


# guards -------------------------------------------------------------------------------------------


WRITES = {
    "append": lambda table: write_deltalake(table, table.to_pyarrow_table(), mode="append"),
    "overwrite": lambda table: write_deltalake(table, table.to_pyarrow_table(), mode="overwrite"),
    "delete": lambda table: table.delete("x = 0"),
    "update": lambda table: table.update({"x": "7"}),
    "optimize": lambda table: table.optimize.compact(),
    "vacuum": lambda table: table.vacuum(0, False, False, full=True),
    "properties": lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
}


@pytest.mark.parametrize("with_times", [False, True], ids=["", "timestamps"])
@pytest.mark.parametrize("write", WRITES)
def test_others_cannot_write(write, with_times, url, path):
    """delta-rs refuses a table with a feature that it does not know; a vacuum deletes none of our files."""
    data = seed(t=pd.Timestamp("2020-01-01")) if with_times else seed()
    api.build_cube(data, CUBE, url)
    api.keep_cube_history(CUBE, url, 5)
    api.append_to_cube(data.assign(x=[5, 6]), CUBE, url)
    api.publish_cube(CUBE, url)
    before = files_below(path)
    with pytest.raises(CommitFailedError, match="kartothekCube"):
        WRITES[write](DeltaTable(str(path / "cube++seed")))
    assert before <= files_below(path)
    assert api.verify_cube(CUBE, url).ok
    assert len(api.query_cube(CUBE, url)[0]) == 4


def test_a_vacuum_by_default_deletes_nothing(published, path):
    """Tables keep files for a hundred years, for writers that do not look for features."""
    table = DeltaTable(str(path / "cube++seed"))
    before = files_below(path)
    # up to version 1.1, delta-rs refused even if there was nothing to delete
    with suppress(CommitFailedError):
        assert table.vacuum(dry_run=False, full=True) == []
    assert files_below(path) == before
    assert table.metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 36500 days"


def test_no_feature_of_readers_without_local_times(published, path):
    """Then readers of the first version of the protocol will do."""

    def protocol() -> tuple:
        found = DeltaTable(str(path / "cube++seed")).protocol()
        return found.min_reader_version, found.reader_features

    assert protocol() == (1, None)
    timed = seed(t=pd.Timestamp("2020-01-01")).assign(x=[5, 6])
    api.append_to_cube(timed, CUBE, published, schema_mode="merge")
    api.publish_cube(CUBE, published)
    assert protocol() == (3, ["timestampNtz"])
    # older versions still have such a column
    build_published(published, seed(), overwrite=True)
    assert protocol() == (3, ["timestampNtz"])


# collections --------------------------------------------------------------------------------------


def test_a_cleanup_keeps_what_the_table_shows(store_factory, tmp_path):
    """Files that were replaced are deleted once the table does not show them any more."""
    build_published(store_factory)
    api.remove_partitions(CUBE, store_factory, api.C("p") == 1)
    api.cleanup_cube(CUBE, store_factory)
    garbage_collect_dataset("cube++seed", store_factory)
    assert column(on_disk(store_factory(), tmp_path / "files") / "cube++seed") == [0, 1]
    api.publish_cube(CUBE, store_factory)
    data = {key for key in store_factory().keys() if "/p=1/" in key}
    assert {blob.key for blob in api.list_cube_garbage(CUBE, store_factory)} == data
    assert {blob.key for blob in list_dataset_garbage("cube++seed", store_factory)} == data
    api.cleanup_cube(CUBE, store_factory)
    assert not data & set(store_factory().keys())
    assert column(on_disk(store_factory(), tmp_path / "more") / "cube++seed") == [0]


def test_a_history_keeps_older_versions_of_the_table(url, path):
    api.build_cube(seed(v=[1, 2]), CUBE, url)
    api.keep_cube_history(CUBE, url, 5)
    api.publish_cube(CUBE, url)
    api.update_cube(cell(0, v=7), CUBE, url, api.C("p") == 0, ["seed"])
    api.publish_cube(CUBE, url)
    api.cleanup_cube(CUBE, url)
    table = DeltaTable(str(path / "cube++seed"))
    assert column(table, "v") == [7, 2]
    table.load_as_version(0)
    assert column(table, "v") == [1, 2]
    # without a history they are gone
    api.keep_cube_history(CUBE, url, 0)
    api.cleanup_cube(CUBE, url)
    with pytest.raises(FileNotFoundError):
        rows(table)
    assert column(path / "cube++seed", "v") == [7, 2]


@pytest.mark.parametrize(
    "collect",
    [lambda url: api.cleanup_cube(CUBE, url), lambda url: garbage_collect_dataset("cube++seed", url)],
    ids=["cube", "dataset"],
)
def test_a_staged_version_keeps_its_files(collect, published, path):
    """That of a publisher which died, until its number is taken."""
    api.append_to_cube(cell(2), CUBE, published)
    api.publish_cube(CUBE, published)
    log = path / "cube++seed/_delta_log"
    newest = log / f"{1:020d}.json"
    staged = log / "_staged" / f"{1:020d}.abc.json"
    staged.parent.mkdir(exist_ok=True)
    newest.rename(staged)
    api.remove_partitions(CUBE, published, api.C("p") == 2)
    collect(published)
    assert list((path / "cube++seed/table/p=2").glob("*"))
    # readers ignore it
    assert len(rows(path / "cube++seed")) == 2
    api.append_to_cube(cell(3), CUBE, published)
    api.publish_cube(CUBE, published)
    collect(published)
    assert not staged.exists()
    assert not list((path / "cube++seed/table/p=2").glob("*"))


# plateau and its stores warn about themselves
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_plateau_keeps_the_log(url, path):
    store_published(url, partition_on=["p"])
    plateau.garbage_collect_dataset(dataset_uuid="u", store=url)
    assert len(rows(path / "u")) == 2
    plateau.update_dataset_from_dataframes([seed()], store=url, dataset_uuid="u")
    assert [problem.kind for problem in verify_dataset("u", url).problems] == ["publication"]
    assert publish_dataset("u", url) == {"version": 1, "files": 4, "added": 2, "removed": 0}
    assert len(rows(path / "u")) == 4


def test_a_log_that_others_deleted_starts_again(published, path):
    """As ``cleanup_cube`` of kartothek 5.3 does, which takes it for garbage."""
    api.append_to_cube(cell(2), CUBE, published)
    api.publish_cube(CUBE, published)
    shutil.rmtree(path / "cube++seed/_delta_log")
    assert not problems(published)
    counts = {"version": 0, "files": 3, "added": 3, "removed": 0}
    assert api.publish_cube(CUBE, published)["seed"] == counts
    assert len(rows(path / "cube++seed")) == 3


def test_files_get_the_type_of_a_column_by_a_merge(url, path):
    """Spark cannot read texts from a file that was written when the column had no value yet."""
    api.build_cube(cell(1, v=None), CUBE, url)
    api.append_to_cube(cell(2, v="a"), CUBE, url)
    api.merge_into_cube(cell(1, v=None), CUBE, url)
    api.publish_cube(CUBE, url)
    files = [path / "cube++seed" / action["add"]["path"] for action in log_of(path)[0] if "add" in action]
    assert {str(pq.read_schema(file).field("v").type) for file in files} == {"string"}


@pytest.mark.parametrize(
    "content",
    ["{", "1", '{"add": 1}', '{"add": {}}', '{"add":' * 100_000, '{"metaData": {"configuration": [1]}}'],
)
def test_a_damaged_log_stops_a_cleanup(published, path, content):
    """It does not tell which files the table shows."""
    (path / "cube++seed/_delta_log" / f"{0:020d}.json").write_text(content)
    for operation in (api.cleanup_cube, api.publish_cube):
        with pytest.raises(CorruptDatasetError, match="unpublish the dataset"):
            operation(CUBE, published)
    assert problems(published) == ["publication-log"]
    api.delete_cube(CUBE, published)
    assert files_below(path) == set()


def test_a_damaged_checkpoint_stops_a_cleanup(published, path):
    parts = {name: [{"size": 1}] for name in ("add", "metaData", "protocol")}
    pq.write_table(pa.table(parts), path / "cube++seed/_delta_log" / f"{0:020d}.checkpoint.parquet")
    with pytest.raises(CorruptDatasetError, match="no checkpoint of a Delta log; unpublish the dataset"):
        api.cleanup_cube(CUBE, published)


# publication by commits -----------------------------------------------------------------------------

PUBLISHED = {"kartothek_cube_publish": "delta"}


def test_each_commit_publishes(driver, store_factory, tmp_path):
    """With any façade, once the datasets are published so, or built so; new datasets do as the seed."""
    driver.build_cube(data=seed(), cube=CUBE, store=store_factory, metadata={"seed": PUBLISHED})
    driver.extend_cube(data={"more": seed(w=[1, 2])}, cube=CUBE, store=store_factory)
    driver.append_to_cube(data=seed().assign(x=[2, 3]), cube=CUBE, store=store_factory)
    files = on_disk(store_factory(), tmp_path / "files")
    assert [len(rows(files / name)) for name in ("cube++seed", "cube++more")] == [4, 2]
    driver.remove_partitions(cube=CUBE, store=store_factory, conditions=api.C("p") == 1)
    files = on_disk(store_factory(), tmp_path / "later")
    assert [column(files / name) for name in ("cube++seed", "cube++more")] == [[0, 2], [0]]
    assert not problems(store_factory)


def test_each_commit_to_a_dataset_publishes(url, path):
    store_published(url, on_commit=True)
    update_dataset_from_dataframes([seed()], url, "u")
    assert len(rows(path / "u")) == 4
    store_dataframes_as_dataset(url, "u", [seed()], overwrite=True)
    assert len(rows(path / "u")) == 2
    copy_dataset("u", url, "copy")
    assert len(rows(path / "copy")) == 2
    assert verify_dataset("u", url).ok


def test_all_kinds_of_commits_to_a_cube_publish(url, tmp_path):
    build_published(url, seed(v=[1, 2]), on_commit=True)
    other = f"hfs://{tmp_path}/other?create_if_missing=true"
    for change in (
        lambda: api.merge_into_cube(seed(v=[3, 4]), CUBE, url),
        lambda: api.update_cube(cell(0, v=7), CUBE, url, api.C("p") == 0, ["seed"]),
        lambda: api.update_schema(CUBE, url, add={"new": "string"}),
        lambda: api.rollback_cube(CUBE, url, 1),
        lambda: api.build_cube(seed(), CUBE, url, overwrite=True),
    ):
        change()
        assert not problems(url)
    api.copy_cube(CUBE, url, other)
    api.append_to_cube(seed().assign(x=[4, 5]), CUBE, other)
    assert not problems(other)
    assert len(rows(tmp_path / "other/cube++seed")) == 4


@pytest.mark.parametrize("on_commit", [True, None])
def test_the_table_of_a_dataset_that_a_rollback_hides_has_no_rows(url, path, on_commit):
    """From the commit on, or from the next publication."""

    def publish():
        if not on_commit:
            api.publish_cube(CUBE, url)
        assert not problems(url)

    build_published(url, on_commit=on_commit)
    built = api.list_cube_history(CUBE, url)[-1]
    api.extend_cube({"more": seed(w=[1, 2]), "other": seed(y=[1, 2])}, CUBE, url)
    extended = api.list_cube_history(CUBE, url)[-1]
    api.publish_cube(CUBE, url, "more")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PublicationWarning)
        api.rollback_cube(CUBE, url, built.version)
        publish()
        assert rows(path / "cube++more") == []
        api.rollback_cube(CUBE, url, extended.version)
        publish()
        assert column(path / "cube++more", "w") == [1, 2]
        api.rollback_cube(CUBE, url, built.version)
        api.unpublish_cube(CUBE, url)
    assert not list(path.glob("*/_delta_log/*.json"))
    assert sorted(api.discover_datasets(CUBE, url)) == ["seed"]


def test_a_commit_that_cannot_be_published_is_done(url, path):
    """A warning says so, and ``verify``; the next commit that can catches up."""
    build_published(url, seed(v=[1, 2]), on_commit=True)
    with pytest.warns(PublicationWarning, match="the commit is done, but not published .*a newer version"):
        api.append_to_cube(seed(v=[3, 4]), CUBE, url)
    assert api.query_cube(CUBE, url)[0]["v"].tolist() == [3, 4]
    assert column(path / "cube++seed", "v") == [1, 2]
    assert problems(url) == ["publication"]
    api.compact_cube(CUBE, url)
    assert column(path / "cube++seed", "v") == [3, 4]


@pytest.mark.parametrize("lasting", [False, True])
def test_a_store_that_fails_after_the_commit(lasting):
    """At each call of the publication: a warning, and a table of the old or the new state."""
    for at in itertools.count(1):
        store = memory()
        store_published(Same.of(store), on_commit=True)
        faulty = FaultyStore(store).fail("any", at=at, key="_delta_log", lasting=lasting)
        with warnings.catch_warnings(record=True, action="always") as caught:
            update_dataset_from_dataframes([seed()], Same.of(faulty), "u")
        assert len(read_table_arrow("u", store)) == 4
        if not faulty.happened:
            break
        assert all(warning.category is PublicationWarning for warning in caught)
        assert len(read_log(open_blobs(store), "u").files) in (1, 2)
        update_dataset_from_dataframes([seed()], Same.of(store), "u")
        assert verify_dataset("u", store).ok
    assert at > 4


def test_the_end_of_publication_by_commits(url):
    build_published(url, on_commit=True)
    api.unpublish_cube(CUBE, url)
    api.append_to_cube(seed().assign(x=[2, 3]), CUBE, url)
    assert api.unpublish_cube(CUBE, url) == {"seed": {"files": 0}}
    api.publish_cube(CUBE, url, on_commit=True)
    api.publish_cube(CUBE, url)
    api.append_to_cube(seed().assign(x=[4, 5]), CUBE, url)
    assert not problems(url)
    api.publish_cube(CUBE, url, on_commit=False)
    api.append_to_cube(seed().assign(x=[6, 7]), CUBE, url)
    [problem] = api.verify_cube(CUBE, url).problems
    assert (problem.kind, problem.remedy) == ("publication", "Publish the dataset again.")


def test_a_publication_that_fails_does_not_mark_the_dataset(url):
    api.build_cube(seed(), CUBE, url)
    api.append_to_cube(seed(), CUBE, url)
    with pytest.raises(ValueError, match="newer version"):
        api.publish_cube(CUBE, url, on_commit=True)
    # no warning
    api.append_to_cube(seed(), CUBE, url)


def test_metadata_with_an_unknown_format(url, path):
    with pytest.raises(ValueError, match=r"_publish' .* \('delta', 'iceberg'\), or None; it is 'hudi'"):
        api.build_cube(seed(), CUBE, url, metadata={"seed": {"kartothek_cube_publish": "hudi"}})
    assert not files_below(path)


# the end of a publication --------------------------------------------------------------------------


def test_an_unpublished_or_deleted_dataset_is_no_table(store_factory, tmp_path):
    """Its data stay, and what only the table showed is garbage."""
    api.build_cube(seed(), CUBE, store_factory)
    store_dataframes_as_dataset(store_factory, "u", [seed()])
    api.publish_cube(CUBE, store_factory)
    publish_dataset("u", store_factory)
    api.remove_partitions(CUBE, store_factory, api.C("p") == 1)
    api.cleanup_cube(CUBE, store_factory)
    assert api.unpublish_cube(CUBE, store_factory) == {"seed": {"files": 1}}
    assert unpublish_dataset("u", store_factory) == {"files": 1}
    assert api.unpublish_cube(CUBE, store_factory, "seed") == {"seed": {"files": 0}}
    assert not logs(store_factory())
    assert not problems(store_factory)
    assert len(api.query_cube(CUBE, store_factory)[0]) == 1
    api.cleanup_cube(CUBE, store_factory)
    assert not [key for key in store_factory().keys() if "/p=1/" in key]
    # a later publication starts again
    assert api.publish_cube(CUBE, store_factory)["seed"]["version"] == 0
    assert len(rows(on_disk(store_factory(), tmp_path / "files") / "cube++seed")) == 1
    # a deletion takes the log along, and files that only the table shows
    publish_dataset("u", store_factory)
    api.remove_partitions(CUBE, store_factory, api.C("p") == 0)
    api.cleanup_cube(CUBE, store_factory)
    assert [key for key in store_factory().keys() if "/p=0/" in key]
    api.delete_cube(CUBE, store_factory)
    delete_dataset("u", store_factory)
    assert list(store_factory().keys()) == []


def test_an_unpublication_that_dies_shows_no_older_state(tmp_path):
    """At each request: readers find the newest state, or no table; a publication or a repetition goes on."""
    build = memory()
    store_dataframes_as_dataset(Same.of(build), "u", [seed()])
    for number in range(22):
        update_dataset_from_dataframes([cell(10 + number, 2)], Same.of(build), "u")
        publish_dataset("u", Same.of(build))
    ended = 0
    stores = stores_after_faults(snapshot(Same.of(build)), lambda dying: unpublish_dataset("u", dying))
    assert len(stores) >= len(logs(build))
    for at, store in enumerate(stores, 1):
        log = read_log(open_blobs(store), "u")
        assert len(log.files) in (0, 23)
        with suppress(DeltaError):
            assert len(rows(on_disk(store, tmp_path / str(at)) / "u")) == 24
            assert log.files
        ended += not log.files
        garbage_collect_dataset("u", store)
        if at % 2:
            unpublish_dataset("u", store)
            assert not logs(store)
        assert publish_dataset("u", store)["version"] == (21 if log.files and not at % 2 else 0)
        assert len(read_log(open_blobs(store), "u").files) == 23
    assert ended


def test_an_unpublication_beside_a_publication_leaves_no_part_of_a_log(monkeypatch):
    """The log disappears after a publisher has read it, which takes its version back and starts again."""
    store = memory()
    store_published(Same.of(store))
    update_dataset_from_dataframes([cell(2)], Same.of(store), "u")
    stage = delta_log.stage_version

    def unpublish_before_stage(*args):
        if unpublish_dataset("u", Same.of(store))["files"]:
            assert args[2] == 1
        return stage(*args)

    monkeypatch.setattr(delta_log, "stage_version", unpublish_before_stage)
    assert publish_dataset("u", Same.of(store)) == {"version": 0, "files": 2, "added": 2, "removed": 0}
    assert len(read_log(open_blobs(store), "u").files) == 2


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_publisher_that_is_overtaken_overwrites_nothing(monkeypatch, format):
    """Another publisher shows the same state while its version is staged."""
    monkeypatch.setattr(delta_log, "store_location", lambda blobs, uuid: "memory://")
    store, published = memory(), {}
    store_published(Same.of(store), format=format, partition_on=["p"])
    update_dataset_from_dataframes([seed()], Same.of(store), "u")
    stage = delta_log.stage_version

    def publish_after_stage(*args):
        key = stage(*args)
        if not published:
            published[key] = b""
            assert publish_dataset("u", Same.of(store), format=format)["added"] == 2
            published.update(snapshot(Same.of(store)))
            del published[key]
        return key

    monkeypatch.setattr(delta_log, "stage_version", publish_after_stage)
    counts = {"version": 1, "files": 4, "added": 0, "removed": 0}
    assert publish_dataset("u", Same.of(store), format=format) == counts
    assert published.items() <= snapshot(Same.of(store)).items()


def test_an_unpublication_beside_the_first_publication_by_a_commit_deletes_its_log(monkeypatch):
    """There was no log to delete when the commit found the dataset marked."""
    store, add = memory(), delta_log.add_version
    store_dataframes_as_dataset(Same.of(store), "u", [seed()], metadata=PUBLISHED)
    unpublish_dataset("u", Same.of(store))
    end = partial(unpublish_dataset, "u", Same.of(store))
    monkeypatch.setattr(delta_log, "add_version", lambda *args: end() and add(*args))
    update_dataset_from_dataframes([seed()], Same.of(store), "u", metadata=PUBLISHED)
    assert not logs(store)


def test_files_of_a_version_that_is_added_while_the_log_is_read_are_published(monkeypatch):
    store, list_log, done = memory(), delta_log.list_log, []
    store_published(Same.of(store))
    update_dataset_from_dataframes([seed()], Same.of(store), "u")

    def publish_after_listing(*args):
        names = list_log(*args)
        if not done:
            done.append(True)
            assert publish_dataset("u", Same.of(store))["added"] == 1
        return names

    monkeypatch.setattr(delta_log, "list_log", publish_after_listing)
    assert len(delta_log.published_keys(open_blobs(Same.of(store)), "u")) == 2


def test_a_publisher_that_dies_leaves_no_checkpoint_without_its_version():
    """Readers take a checkpoint for the newest version."""
    build = memory()
    store_dataframes_as_dataset(Same.of(build), "u", [seed()])
    for number in range(20):
        publish_dataset("u", Same.of(build))
        update_dataset_from_dataframes([cell(10 + number, 2)], Same.of(build), "u")
    stores = stores_after_faults(snapshot(Same.of(build)), lambda dying: publish_dataset("u", dying))
    for store in stores:
        checkpoints = [key for key in logs(store) if key.endswith(".checkpoint.parquet")]
        assert {key.replace(".checkpoint.parquet", ".json") for key in checkpoints} <= {*logs(store)}
    assert len(checkpoints) == 1


# deletion, copy -----------------------------------------------------------------------------------


def test_a_deletion_that_dies_half_way():
    """At each call: the dataset lives with a table that is whole, or is gone and can be deleted again."""
    build = memory()
    store_published(Same.of(build), partition_on=["p"])
    stores = stores_after_faults(snapshot(Same.of(build)), lambda dying: delete_dataset("u", dying))
    assert len(stores) >= 5
    for store in stores:
        if "u.by-dataset-metadata.json" in store:
            assert len(read_log(open_blobs(store), "u").files) == 2
            assert verify_dataset("u", store).ok
            delete_dataset("u", store)
        else:
            with suppress(DatasetNotFoundError):
                delete_dataset("u", store)
        assert list(store.keys()) == []


def test_files_that_are_published_after_a_cleanup_has_listed_them_stay(url, path):
    """They are in use again after a rollback; the table shows them, whatever is removed later."""
    api.build_cube(seed(), CUBE, url)
    built = api.list_cube_history(CUBE, url)[-1]
    api.remove_partitions(CUBE, url, api.C("p") == 1)
    listed = [blob.key for blob in api.list_cube_garbage(CUBE, url)]
    assert any("/p=1/" in key for key in listed)
    api.rollback_cube(CUBE, url, built.version)
    api.publish_cube(CUBE, url)
    api.remove_partitions(CUBE, url, api.C("p") == 1)
    garbage.delete_garbage(url, listed)
    assert len(rows(path / "cube++seed")) == 2


def test_a_copy_is_not_published(published, path, tmp_path):
    other = f"hfs://{tmp_path}/other?create_if_missing=true"
    api.copy_cube(CUBE, published, other)
    copy_dataset("cube++seed", published, "copy")
    assert not [name for name in logs(tmp_path) if "store/cube++" not in name]
    assert not problems(other)
    # over a published one: its table shows what it was, until it is published again
    api.publish_cube(CUBE, other)
    api.append_to_cube(cell(2), CUBE, published)
    api.copy_cube(CUBE, published, other, overwrite=True)
    assert len(rows(tmp_path / "other/cube++seed")) == 2
    api.publish_cube(CUBE, other)
    assert len(rows(tmp_path / "other/cube++seed")) == 3


# verify -------------------------------------------------------------------------------------------


def test_verify_tells_files_that_the_table_lacks(published, path):
    api.remove_partitions(CUBE, published, api.C("p") == 1)
    [file] = (path / "cube++seed/table/p=1").glob("*")
    file.unlink()
    api.cleanup_cube(CUBE, published)
    messages = [problem.message for problem in api.verify_cube(CUBE, published).problems]
    assert len(messages) == 2
    assert messages[1] == "the published table shows this file, but it does not exist"


# errors -------------------------------------------------------------------------------------------


def test_bad_arguments(url, path):
    api.build_cube(seed(), CUBE, url)
    for publish, target in ((api.publish_cube, CUBE), (publish_dataset, "cube++seed")):
        with pytest.raises(ValueError, match="format is 'delta' or 'iceberg', got 'hudi'"):
            publish(target, url, format="hudi")
    for operation in (publish_dataset, unpublish_dataset):
        with pytest.raises(DatasetNotFoundError):
            operation("u", url)
    with pytest.raises(TypeError, match="cube"):
        api.publish_cube(5, url)
    assert not logs(path)


@pytest.mark.parametrize(
    "several, problem", [(False, "its header does not list its files"), (True, "it has several tables")]
)
def test_headers_that_delta_tables_cannot_show(url, path, several, problem):
    """Without a list of files, all Parquet files are partitions, and checkpoints of a log would be, too."""
    store_dataframes_as_dataset(url, "u", [seed()])
    header = path / "u.by-dataset-metadata.json"
    fields = json.loads(header.read_text())
    if several:
        (path / "u/other").mkdir()
        (path / "u/other/_common_metadata").write_bytes((path / "u/table/_common_metadata").read_bytes())
        for partition in fields["partitions"].values():
            partition["files"]["other"] = partition["files"]["table"]
    else:
        del fields["partitions"]
    header.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=problem):
        publish_dataset("u", url)


def test_a_column_whose_values_were_removed(url, path):
    """It has the type of the schema, which the files do not tell any more."""
    api.build_cube(seed(v=["a", None]), CUBE, url)
    api.remove_partitions(CUBE, url, api.C("p") == 0)
    api.publish_cube(CUBE, url)
    assert rows(path / "cube++seed") == [{"p": 1, "v": None, "x": 1}]
    types = {field.name: field.type.type for field in DeltaTable(str(path / "cube++seed")).schema().fields}
    assert types["v"] == "string"
