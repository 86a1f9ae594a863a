"""Cubes as datasets of pyarrow: rows and types of DuckDB, Polars and Acero, what is read, memory."""

import datetime
import decimal
import itertools
import math
import operator
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from types import ModuleType
from typing import Any

import duckdb
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.api import cube as api
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components import scan
from kartothek_cube.io_components.arrow_dataset import LazyDataset
from kartothek_cube.serialization import parquet
from tests.support.cubes import memory
from tests.support.factories import local
from tests.support.predicates import COMPARE

CUBE = api.Cube(["x", "day"], ["p"], "sales")
DAYS = [datetime.datetime(2024, 1, day) for day in range(1, 5)]
NAN = math.nan


def seed(partitions=(0, 1, 2)) -> pa.Table:
    cells = [(x, day, p) for p in partitions for day in DAYS for x in range(3)]
    numbers = range(len(cells))
    return pa.table(
        {
            "x": pa.array([x for x, _, _ in cells], pa.int64()),
            "day": pa.array([day for _, day, _ in cells], pa.timestamp("us")),
            "p": pa.array([p for _, _, p in cells], pa.int64()),
            "qty": pa.array([None if i % 5 == 0 else i % 7 - 2 for i in numbers], pa.int64()),
            "temp": pa.array([(None, NAN, -0.0, 0.5, 1.5, math.inf)[i % 6] for i in numbers], pa.float64()),
            "city": pa.array([(None, "", "Bonn", "Bad Ems", 'Köln\'s "x"')[i % 5] for i in numbers]),
        }
    )


#: other cells, and fewer dimensions
ENRICH = pa.table(
    {
        "x": pa.array([0, 1, 2, 0, 2, 7], pa.int64()),
        "day": pa.array([DAYS[0], DAYS[0], DAYS[1], DAYS[2], DAYS[3], DAYS[0]], pa.timestamp("us")),
        "p": pa.array([0, 0, 0, 1, 1, 1], pa.int64()),
        "flag": [True, None, False, True, False, True],
        "price": pa.array(["0.50", None, "1.25", "-3.00", "0.50", "9.99"]).cast(pa.decimal128(10, 2)),
    }
)
OPENED = [datetime.date(2020, 1, 1), None, datetime.date(2021, 6, 1)]
SHOPS = pa.table({"x": [0, 1, 9], "opened": OPENED})


@pytest.fixture(scope="module")
def store():
    """A cube with overwritten cells, a removed partition, and datasets that lack cells."""
    factory = memory()
    api.build_cube({"seed": seed((0, 1)), "enrich": ENRICH}, CUBE, factory)
    api.extend_cube({"shops": SHOPS}, CUBE, factory, partition_on={"shops": []})
    api.append_to_cube(seed((2, 3)), CUBE, factory)
    again = seed((1,)).slice(2, 5).set_column(3, "qty", pa.array([100, None, -100, 4, 5], pa.int64()))
    api.append_to_cube(again, CUBE, factory)
    api.remove_partitions(CUBE, factory, api.C("p") == 3, datasets=["seed", "enrich"])
    return factory


@pytest.fixture(scope="module")
def whole(store):
    """All rows, by a query."""
    return api.query_cube_table(CUBE, store).cast(api.cube_dataset(CUBE, store).schema)


def built(table: Any, cube: api.Cube = CUBE) -> Any:
    """A memory store with a cube of one dataset."""
    factory = memory()
    api.build_cube(table, cube, factory)
    return factory


def rows(table: pa.Table | pl.DataFrame) -> list[tuple[Any, ...]]:
    """Rows in an order of their own; NaN equals NaN."""
    table = table.to_arrow() if isinstance(table, pl.DataFrame) else table
    columns = [["nan" if v != v else v for v in column.to_pylist()] for column in table.columns]
    return sorted(zip(*columns, strict=True), key=repr)


# rows and types ------------------------------------------------------------------------------------


def test_is_a_dataset(store, whole):
    """Of which the rows are those of a query."""
    cube = api.cube_dataset(CUBE, store)
    assert isinstance(cube, pads.Dataset)
    assert cube.schema.names == ["x", "day", "p", "city", "flag", "opened", "price", "qty", "temp"]
    assert rows(cube.to_table()) == rows(whole)
    assert cube.to_table().schema.equals(cube.schema)
    assert cube.count_rows() == len(whole) == 36
    assert repr(cube).startswith("<cube sales>\nx: int64")
    assert rows(pa.table(cube)) == rows(whole)
    assert rows(pl.DataFrame(cube)) == rows(whole)
    assert pa.schema(cube).equals(cube.schema)
    with api.query_cube_as_record_batches(CUBE, store, api.C("qty") > 2, columns=["qty", "p"]) as reader:
        assert reader.schema.names == ["qty", "p"]
        assert rows(reader.read_all()) == rows(whole.filter(pc.field("qty") > 2).select(["qty", "p"]))
    assert cube.to_table(columns=["price", "x"]).schema.names == ["price", "x"]
    assert rows(cube.to_table(columns=["price", "x"])) == rows(whole.select(["price", "x"]))
    assert cube.to_table(columns=[]).num_rows == len(whole)
    computed = cube.to_table(columns={"twice": pc.field("qty") * 2, "city": pc.field("city")})
    expected = pa.table({"twice": pc.multiply(whole["qty"], 2), "city": whole["city"]})
    assert rows(computed) == rows(expected)
    with pytest.raises(ValueError, match=r"^no column 1, 2 in cube sales$"):
        cube.to_table(columns=["x", 2, 1])
    with pytest.raises(TypeError, match="a list of names"):
        cube.to_table(columns="x")
    twice = cube.filter(pc.field("x") == 1).filter(pc.field("p") > 0)
    assert rows(twice.to_table()) == rows(whole.filter((pc.field("x") == 1) & (pc.field("p") > 0)))
    assert cube.filter(pc.field("x") == 1).count_rows() == cube.count_rows(pc.field("x") == 1) == 12
    assert cube.take([0, 3], columns=["x"]).equals(cube.to_table(columns=["x"]).take([0, 3]))
    for count in (0, 1, 20, 1000):
        assert cube.head(count, columns=[]).num_rows == min(count, len(whole))
    assert cube.sort_by([("qty", "descending")]).head(1)["qty"].to_pylist() == [100]
    shops = api.cube_dataset(CUBE, store, dataset_id="shops")
    joined = cube.join(shops, ["x"], right_suffix="_r", join_type="inner").to_table()
    assert sorted(set(joined["x"].to_pylist())) == [0, 1]
    assert {batch.num_rows for batch in cube.to_batches(batch_size=5)} <= {1, 2, 3, 4, 5}
    scanner = cube.scanner(columns=["x"], batch_size=7)
    assert scanner.to_table().equals(scanner.to_table())
    assert scanner.projected_schema.names == ["x"]
    with pytest.raises(NotImplementedError, match="schema"):
        cube.replace_schema(cube.schema)
    assert rows(pickle.loads(pickle.dumps(cube)).to_table()) == rows(whole)


USES = [
    lambda cube: pads.Scanner.from_dataset(cube).to_table(),
    lambda cube: pads.dataset([cube]).to_table(),
    lambda cube: cube.get_fragments(),
]


@pytest.mark.parametrize("use", USES)
def test_what_reads_files_fails(store, use):
    """What needs the files themselves must not see a cube without rows."""
    with pytest.raises(NotImplementedError, match=r"files|schema"):
        use(api.cube_dataset(CUBE, store))


#: values of payload beside nulls
TYPES = (
    {"bool": pa.bool_(), "bytes": pa.binary(), "date": pa.date32(), "decimal": pa.decimal128(3, 2)}
    | {"double": pa.float64(), "float": pa.float32(), "int8": pa.int8(), "list": pa.list_(pa.int64())}
    | {"null": pa.null(), "record": pa.struct([("a", pa.int64()), ("b", pa.string())]), "string": pa.string()}
    | {"time": pa.time64("us"), "uint64": pa.uint64(), "zoned": pa.timestamp("us", "UTC")}
)
EXAMPLES = [True, b"a\0", datetime.date(9999, 1, 1), decimal.Decimal("1.50"), NAN, 1.1, -1, [1, None], None]
EXAMPLES += [{"a": 1, "b": "x"}, "ä", datetime.time(1, 2, 3), 2**64 - 1, DAYS[0].replace(tzinfo=datetime.UTC)]


def test_types():
    table = pa.table({"x": [1, 2], "day": pa.array(DAYS[:2], pa.timestamp("us")), "p": ["a", "b"]})
    for (name, dtype), value in zip(TYPES.items(), EXAMPLES, strict=True):
        table = table.append_column(name, pa.array([value, None], dtype))
    factory = built(table)
    cube = api.cube_dataset(CUBE, factory)
    assert cube.schema.field("day").type == pa.timestamp("us")
    nanoseconds = api.cube_dataset(CUBE, factory, timestamp_unit="ns").schema
    assert nanoseconds.field("zoned").type == pa.timestamp("ns", "UTC")
    expected = api.query_cube_table(CUBE, factory).cast(cube.schema)
    assert rows(cube.to_table()) == rows(expected)
    table = duckdb.sql("FROM cube").to_arrow_table()
    assert rows(table.drop_columns(["null"])) == rows(expected.drop_columns(["null"]))
    same = [name for name in cube.schema.names if name not in ("null", "zoned", "list", "record")]
    assert [table.schema.field(name).type for name in same] == [cube.schema.field(name).type for name in same]
    assert api.scan_cube(CUBE, factory).collect().equals(pl.DataFrame(expected))
    assert api.scan_cube(CUBE, factory).collect_schema() == pl.DataFrame(expected).schema
    assert rows(pl.scan_pyarrow_dataset(cube).collect()) == rows(pl.DataFrame(expected))


def test_units_of_timestamps(store):
    cube = api.cube_dataset(CUBE, store, timestamp_unit="s")
    assert cube.to_table()["day"].to_pylist()[0] == DAYS[0]
    other = api.Cube(["t"], ["p"], "fine")
    fine = built(pd.DataFrame({"t": [pd.Timestamp("2024-01-01 00:00:00.5")], "p": [0]}), other)
    with pytest.raises(TypeError, match=r"'t'.*without loss"):
        api.cube_dataset(other, fine, timestamp_unit="s").to_table()
    with pytest.raises(ValueError, match=r"^timestamp_unit is one of 's', 'ms', 'us', 'ns', got 'min'$"):
        api.cube_dataset(CUBE, store, timestamp_unit="min")


def test_one_dataset_of_a_cube(store):
    assert api.cube_dataset(CUBE, store, dataset_id="seed").count_rows() == 36
    enrich = api.cube_dataset(CUBE, store, dataset_id="enrich")
    assert rows(enrich.to_table().select(ENRICH.column_names)) == rows(ENRICH)
    shops = api.cube_dataset(CUBE, store, dataset_id="shops")
    assert rows(shops.to_table(filter=pc.field("x") != 1)) == rows(SHOPS.filter(pc.field("x") != 1))
    assert shops.schema.names == ["x", "opened"]
    with pytest.raises(ValueError, match="unknown dataset enrihc; did you mean enrich"):
        api.cube_dataset(CUBE, store, dataset_id="enrihc")
    with pytest.raises(ValueError, match=r"'enrich' is no condition: .*by dataset_id='enrich'$"):
        api.cube_dataset(CUBE, store, "enrich")
    with pytest.raises(ValueError, match="Pass either dataset_id"):
        api.cube_dataset(CUBE, store, api.C("x") > 1, dataset_id="seed")


def test_conditions_and_datasets(store, whole):
    cube = api.cube_dataset(CUBE, store, api.C("qty") > 1, ["seed", "enrich"])
    assert "opened" not in cube.schema.names
    expected = whole.filter((pc.field("qty") > 1) & (pc.field("x") == 1)).select(["x", "qty"])
    assert rows(cube.to_table(columns=["x", "qty"], filter=pc.field("x") == 1)) == rows(expected)
    assert cube.count_rows() == whole.filter(pc.field("qty") > 1).num_rows
    with pytest.raises(TypeError, match="does not fit column"):
        api.cube_dataset(CUBE, store, api.C("qty") == "a")
    with pytest.raises(TypeError, match="expected a Cube"):
        api.cube_dataset(5, store)


# filters -------------------------------------------------------------------------------------------

#: values of filters by column; some are in no row
VALUES: dict[str, list[Any]] = {
    "x": [-1, 0, 1, 2, 8],
    "p": [0, 1, 2, 7],
    "day": [*DAYS, datetime.datetime(2024, 1, 2, 12)],
    "qty": [-100, -1, 0, 3, 100],
    "temp": [-0.0, 0.0, 0.5, 1.0, math.inf, NAN],
    "city": ["", "Bonn", "Bad", 'Köln\'s "x"', "z"],
    "price": [decimal.Decimal("0.50"), decimal.Decimal("-3.00"), decimal.Decimal("1.00")],
    "opened": [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)],
}
COMPARISONS = {{"==": "=", "!=": "<>"}.get(op, op): compare for op, compare in COMPARE.items()}

Filter = tuple[str, pc.Expression, pl.Expr]


def sql_value(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value}'"
    if isinstance(value, float):
        return f"'{value}'::DOUBLE"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def compare(column: str, op: str, value: Any) -> Filter:
    """The same filter in SQL, Arrow and Polars."""
    apply = COMPARISONS[op]
    arrow, polars = apply(pc.field(column), pa.scalar(value)), apply(pl.col(column), value)
    return f"{column} {op} {sql_value(value)}", arrow, polars


def is_in(column: str, values: list[Any]) -> Filter:
    text = ", ".join(map(sql_value, values))
    return f"{column} IN ({text})", pc.field(column).isin(values), pl.col(column).is_in(values)


def negate(one: Filter) -> Filter:
    return f"NOT ({one[0]})", ~one[1], ~one[2]


def join(word: str, parts: list[Filter]) -> Filter:
    combine = operator.and_ if word == "and" else operator.or_
    texts, arrow, polars = zip(*parts)
    return f" {word} ".join(f"({text})" for text in texts), reduce(combine, arrow), reduce(combine, polars)


QTY, CITY = pc.field("qty"), pc.field("city")
OTHERS = [
    *((f"{c} IS NULL", pc.field(c).is_null(), pl.col(c).is_null()) for c in VALUES),
    *((f"{c} IS NOT NULL", pc.field(c).is_valid(), pl.col(c).is_not_null()) for c in VALUES),
    ("flag", pc.field("flag"), pl.col("flag")),
    *((f"qty % {n} = 0", QTY / n * n == QTY, pl.col("qty") % n == 0) for n in (2, 3)),
    *((f"coalesce(qty, 0) = {n}", pc.coalesce(QTY, 0) == n, pl.coalesce("qty", 0) == n) for n in (0, 3)),
]
for prefix in ("", "B", "Bad", "K"):
    starts = pc.starts_with(CITY, prefix), pl.col("city").str.starts_with(prefix)
    OTHERS.append((f"city LIKE '{prefix}%'", *starts))
literals = st.one_of(
    *(
        st.builds(compare, st.just(c), st.sampled_from(sorted(COMPARISONS)), st.sampled_from(v))
        | st.builds(is_in, st.just(c), st.lists(st.sampled_from(v), min_size=1, max_size=3))
        for c, v in VALUES.items()
    ),
    st.sampled_from(OTHERS),
)
filters = st.recursive(
    literals,
    lambda inner: (
        st.builds(negate, inner)
        | st.builds(join, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3))
    ),
    max_leaves=6,
)
projections = st.one_of(st.none(), st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True))


def run_sql(statement: str, source: LazyDataset | pa.Table) -> pa.Table:
    """Rows of a statement by DuckDB."""
    return duckdb.sql(statement).to_arrow_table()


def select_by_duckdb(source, node, columns):
    return run_sql(f"SELECT {', '.join(columns or ['*'])} FROM source WHERE {node[0]}", source)


def select_by_polars(source, node, columns, engine="in-memory"):
    source = source.lazy().filter(node[2])
    return (source if columns is None else source.select(columns)).collect(engine=engine)


@pytest.mark.slow("many random filters")
@pytest.mark.parametrize("engine", ["acero", "duckdb", "in-memory", "streaming"])
@settings(max_examples=50, deadline=None)
@given(node=filters, columns=projections)
def test_engines_agree(store, whole, engine, node, columns):
    cube = api.cube_dataset(CUBE, store)
    if engine == "acero":
        found, expected = cube.to_table(columns=columns, filter=node[1]), whole.filter(node[1])
        expected = expected if columns is None else expected.select(columns)
    elif engine == "duckdb":
        found, expected = (select_by_duckdb(source, node, columns) for source in (cube, whole))
    else:
        found = select_by_polars(api.scan_cube(CUBE, store), node, columns, engine)
        expected = select_by_polars(pl.DataFrame(whole), node, columns)
        assert found.columns == (whole.column_names if columns is None else columns)
    assert rows(found) == rows(expected)


@st.composite
def random_cubes(draw):
    """Rows of a seed with repeated cells in several writes, and of another dataset."""
    cell = st.tuples(st.integers(0, 3), st.sampled_from(DAYS), st.integers(0, 2))
    value = st.one_of(st.none(), st.integers(-2, 2))
    row = st.lists(st.tuples(cell, value), min_size=1, max_size=8, unique_by=lambda pair: pair[0])
    return draw(st.lists(row, min_size=1, max_size=3)), draw(row)


def as_table(pairs: list[Any], column: str) -> pa.Table:
    cells = [cell for cell, _ in pairs]
    return pa.table(
        {
            "x": pa.array([x for x, _, _ in cells], pa.int64()),
            "day": pa.array([day for _, day, _ in cells], pa.timestamp("us")),
            "p": pa.array([p for _, _, p in cells], pa.int64()),
            column: pa.array([value for _, value in pairs], pa.int64()),
        }
    )


CLAUSES = ["true", "w > 0", "w IS NULL", "NOT (w > 0 AND x = 1)", "w = 1 OR qty = 1"]
CLAUSES += ["p IN (0, 2) AND qty < 1", "coalesce(w, 0) = 0", "day > TIMESTAMP '2024-01-02'"]
CLAUSES += ["qty IS DISTINCT FROM w"]
SELECTED = ["*", "w", "x, qty", "count(*) AS n"]


@pytest.mark.slow("many random filters")
@settings(max_examples=40, deadline=None)
@given(contents=random_cubes(), where=st.sampled_from(CLAUSES), columns=st.sampled_from(SELECTED))
def test_random_cubes(contents, where, columns):
    writes, other = contents
    factory = memory()
    api.build_cube({"seed": as_table(writes[0], "qty"), "enrich": as_table(other, "w")}, CUBE, factory)
    for more in writes[1:]:
        api.append_to_cube(as_table(more, "qty"), CUBE, factory)
    whole = api.query_cube_table(CUBE, factory)
    cube = api.cube_dataset(CUBE, factory, timestamp_unit="ns")
    statement = f"SELECT {columns} FROM source WHERE {where}"
    assert rows(run_sql(statement, cube)) == rows(run_sql(statement, whole))
    assert cube.count_rows() == len(whole)
    latest = {cell: value for write in writes for cell, value in write}
    versions = api.cube_dataset(CUBE, factory, dataset_id="seed")
    expected = as_table(list(latest.items()), "qty")
    assert rows(versions.to_table().select(["x", "day", "p", "qty"])) == rows(expected)


# what is read --------------------------------------------------------------------------------------


class ReadFiles:
    """Files that were opened, by dataset, and columns that were decoded."""

    def __init__(self, monkeypatch) -> None:
        self.keys: set[str] = set()
        #: those of which more than the footer was read
        self.scanned: set[str] = set()

        def record(module: ModuleType, name: str, *opened: set[str]) -> None:
            function = getattr(module, name)

            def recording(blobs: Any, files: str | Sequence[scan.Scan], *args: Any, **kwargs: Any) -> Any:
                keys = [files] if isinstance(files, str) else [key for one in files for key in one.keys]
                for found in opened:
                    found.update(keys)
                return function(blobs, files, *args, **kwargs)

            monkeypatch.setattr(module, name, recording)

        record(scan, "_run_all", self.keys, self.scanned)
        record(parquet, "read_footer", self.keys)

    def count(self) -> dict[str, int]:
        """Opened files by dataset, since the last call."""
        ids = [key.partition("/")[0].partition("++")[2] for key in self.keys]
        self.keys.clear()
        return {name: ids.count(name) for name in sorted(set(ids))}


@pytest.fixture
def read_files(monkeypatch):
    return ReadFiles(monkeypatch)


@pytest.fixture
def many(tmp_path):
    """Twenty partitions of two datasets and one without partitions, in a directory."""
    factory = local(tmp_path)
    table = seed(range(20))
    enrich = table.select(["x", "day", "p"]).append_column("w", table["x"])
    api.build_cube({"seed": table, "enrich": enrich}, CUBE, factory)
    api.extend_cube({"shops": SHOPS}, CUBE, factory, partition_on={"shops": []})
    return factory


P = pl.col("p")


@pytest.mark.parametrize(
    "query, opened",
    [
        ("SELECT sum(qty) FROM source", {"seed": 20}),
        ("SELECT sum(w) FROM source", {"enrich": 20, "seed": 20}),
        ("SELECT count(opened) FROM source WHERE p = 3", {"seed": 1, "shops": 1}),
        ("SELECT qty FROM source WHERE p IN (3, 4)", {"seed": 2}),
        ("SELECT qty FROM source WHERE p = 3 OR p = 5", {"seed": 2}),
        ("SELECT qty FROM source WHERE NOT (p <> 3)", {"seed": 1}),
        ("SELECT qty FROM source WHERE p > 17 AND w IS NULL", {"enrich": 2, "seed": 2}),
        ("SELECT qty FROM source WHERE p >= 3 AND p < 5 AND qty % 2 = 0", {"seed": 2}),
        ("SELECT qty FROM source WHERE day > TIMESTAMP '2025-01-01'", {}),
        ("SELECT qty FROM source WHERE x = 77", {}),
        (P.is_in([3, 4]), {"seed": 2}),
        ((P < 2) | (P == 7), {"seed": 3}),
        (~(P != 3), {"seed": 1}),
        (P.is_between(3, 5, closed="left"), {"seed": 2}),
        ((P == 3) & (pl.col("qty") % 2 == 0), {"seed": 1}),
        (P.eq(3) & pl.col("w").is_null(), {"enrich": 1, "seed": 1}),
        (pl.col("day") > datetime.datetime(2025, 1, 1), {}),
        (pl.lit(value=False), {}),
    ],
    ids=str,
)
def test_duckdb_and_polars_open_what_they_need(many, read_files, query, opened):
    source = api.cube_dataset(CUBE, many)  # noqa: F841 - statements refer to it
    frame = api.scan_cube(CUBE, many)
    read_files.count()
    if isinstance(query, str):
        with duckdb.connect() as connection:
            connection.sql(query).fetchall()
    else:
        frame.filter(query).select("qty").collect()
    assert read_files.count() == opened


def test_limits_stop_reading_after_the_first_rows(many, read_files):
    cube = api.cube_dataset(CUBE, many)
    cube.scanner(filter=pc.field("qty") > 1)
    api.scan_cube(CUBE, many).filter(pl.col("qty") > 1)
    assert read_files.count() == {}
    assert cube.head(3).num_rows == 3
    assert read_files.count() == {"enrich": 1, "seed": 1, "shops": 1}
    assert cube.head(13, columns=["qty"]).num_rows == 13
    assert read_files.count() == {"seed": 2}
    assert cube.head(0).num_rows == 0
    assert read_files.count() == {}
    assert api.scan_cube(CUBE, many).select("qty").head(3).collect().height == 3
    assert read_files.count() == {"seed": 1}
    next(cube.to_batches(columns=["qty"]))
    assert read_files.count() == {"seed": 1}
    columns = ["x", "day", "p", "w"]
    assert cube.head(100, columns).equals(cube.to_table(columns).slice(0, 100))
    assert cube.head(5, filter=pc.field("qty") == 3)["qty"].to_pylist() == [3] * 5


def test_counts_are_read_from_footers(many, read_files):
    cube = api.cube_dataset(CUBE, many)
    api.append_to_cube(seed((3,)).slice(0, 2), CUBE, many)
    assert cube.count_rows() == 240
    assert read_files.count() == {"seed": 21}
    assert len(read_files.scanned) <= 2


# snapshots -----------------------------------------------------------------------------------------


def test_each_scan_sees_one_snapshot():
    factory = built(seed((0, 1)))
    cube = api.cube_dataset(CUBE, factory)
    scanner = cube.scanner()
    batches = cube.to_batches()
    next(batches)
    api.append_to_cube(seed((2,)), CUBE, factory)
    assert scanner.to_table().num_rows == scanner.count_rows() == 24
    assert sum(batch.num_rows for batch in batches) == 12
    assert cube.count_rows() == duckdb.sql("SELECT count(*) FROM cube").fetchall()[0][0] == 36


def test_as_of():
    factory = built(seed((0,)))
    api.keep_cube_history(CUBE, factory, 5)
    api.append_to_cube(seed((1,)), CUBE, factory)
    assert api.cube_dataset(CUBE, factory).count_rows() == 24
    older = api.cube_dataset(CUBE, factory, as_of=1)
    assert older.count_rows() == older.to_table().num_rows == 12
    assert api.scan_cube(CUBE, factory, as_of=1).collect().height == 12
    assert api.cube_dataset(CUBE, factory, dataset_id="seed", as_of=1).count_rows() == 12


# engines -------------------------------------------------------------------------------------------


def test_polars_operations(store, whole):
    """Slices, counts and projections, which IO plugins of polars had wrong in some versions."""
    frame, expected = api.scan_cube(CUBE, store), pl.DataFrame(whole)
    for engine in ("in-memory", "streaming"):
        assert frame.select(pl.len()).collect(engine=engine).item() == 36
        assert frame.filter(pl.col("x") == 1).select(pl.len()).collect(engine=engine).item() == 12
        assert frame.select("temp", "x").collect(engine=engine).columns == ["temp", "x"]
        head = frame.head(2).filter(pl.col("x") == 0).collect(engine=engine)
        assert head.equals(frame.collect().head(2).filter(pl.col("x") == 0))
        assert frame.head(2).filter(pl.col("x") == 1).collect(engine=engine).height == 0
        assert frame.filter(pl.col("x") == 1).head(2).collect(engine=engine).height == 2
        assert frame.filter(pl.col("x") == 9).collect(engine=engine).schema == expected.schema
        assert rows(frame.tail(36).collect(engine=engine)) == rows(expected)
        assert frame.slice(3, 4).collect(engine=engine).equals(frame.collect().slice(3, 4))
        assert frame.with_row_index().filter(pl.col("x") == 1).collect(engine=engine).height == 12
        assert frame.join(frame, on=["x", "day", "p"]).collect(engine=engine).height == 36
        sums = frame.group_by("p").agg(pl.col("qty").sum()).sort("p")
        assert sums.collect(engine=engine).equals(expected.group_by("p").agg(pl.col("qty").sum()).sort("p"))
        assert frame.select(pl.col("qty").max()).collect(engine=engine).item() == 100


@pytest.mark.parametrize("name", ["*", "^.*$", "^x"])
def test_names_are_not_patterns_of_polars(name):
    cube = api.Cube(["x"], ["p"], "cube")
    store = built(pd.DataFrame({"x": [1, 2], "p": [1, 1], name: [7, 8]}), cube)
    column = pl.selectors.by_name(name).as_expr()
    rows = api.scan_cube(cube, store)
    assert rows.filter(column > 7).collect().rows() == [(2, 1, 8)]
    assert rows.select(column).collect().rows() == [(7,), (8,)]
    assert api.open_cube(cube, store).query(columns=[name]).lazy().collect().columns == ["x", "p", name]
    assert api.query_cube_df(cube, store, api.C(name) > 7).to_numpy().tolist() == [[2, 1, 8]]


TEMP, PRICE, TAGS = pl.col("temp"), pl.col("price") > 0, pl.col("tags")


@pytest.mark.parametrize(
    "predicate",
    [
        *(TEMP > 1, TEMP == NAN, TEMP <= NAN, ~(TEMP > NAN), TEMP.is_in([0.0, 1.5]), ~TEMP.is_in([0.0, 1.5])),
        *(PRICE, PRICE & (pl.col("p") == 1), TAGS.eq(pl.lit(["a"])), TAGS.is_in([["a"], ["b"]])),
    ],
    ids=str,
)
def test_polars_compares_otherwise_than_arrow(predicate):
    """NaN equals itself, and is the greatest number; 0.0 is in lists with -0.0; decimals, lists compare."""
    tags = pa.array([["a"], None, [], ["a", "b"], ["b"], ["a"]])
    temperatures = pa.array([NAN, None, -0.0, 0.0, 1.5, -1.0])
    table = ENRICH.select(["x", "day", "p", "price"])
    factory = built(table.append_column("temp", temperatures).append_column("tags", tags))
    expected = api.scan_cube(CUBE, factory).collect().filter(predicate)
    assert 0 < expected.height < table.num_rows
    found = api.scan_cube(CUBE, factory).filter(predicate)
    assert rows(found.collect()) == rows(expected)
    assert found.select(pl.len()).collect().item() == expected.height


NANOSECOND = pl.Series([1_704_067_200_000_000_001], dtype=pl.Datetime("ns")).implode()


@pytest.mark.parametrize("where", [pc.field("f").isin([0.1]), ~pl.col("day").is_in(NANOSECOND)], ids=str)
def test_lists_of_other_types_than_the_column_select_the_same_rows_as_in_memory(where):
    table = pa.table({"x": [0, 1], "day": pa.array(DAYS[:2], pa.timestamp("us")), "p": [0, 1]})
    factory = built(table.append_column("f", pa.array([0.1, 0.5], pa.float32())))
    cube = api.cube_dataset(CUBE, factory)
    if isinstance(where, pl.Expr):
        found = api.scan_cube(CUBE, factory).filter(where).collect()
        assert rows(found) == rows(pl.DataFrame(cube).filter(where))
    else:
        assert rows(cube.to_table(filter=where)) == rows(cube.to_table().filter(where))


def test_duckdb_join_with_itself_on_many_threads(store):
    cube = api.cube_dataset(CUBE, store)
    statement = "SELECT count(*) FROM cube a JOIN cube b USING (x, day, p) WHERE a.qty IS NOT NULL"
    expected = cube.filter(pc.field("qty").is_valid()).count_rows()

    def run(_number: int) -> list[Any]:
        with duckdb.connect(config={"threads": 4}) as connection:
            connection.register("cube", cube)
            return [connection.sql(statement).fetchall()[0] for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        results = list(itertools.chain(*pool.map(run, range(4))))
    assert results == [(expected,)] * 20


def test_errors_in_a_scan_reach_the_engine(many):
    cube = api.cube_dataset(CUBE, many)
    scanner = cube.scanner()
    blobs = open_blobs(many)
    blobs.delete([blob.key for blob in blobs.list("sales++seed/table/p=11")])
    with pytest.raises(KeyError, match="p=11"):
        scanner.to_table()
    with pytest.raises(duckdb.Error, match="p=11"):
        duckdb.sql("SELECT sum(qty) FROM cube").fetchall()


@pytest.mark.parametrize("mistake", [pc.field("nope") == 1, pc.field("city") == 1])
def test_a_mistake_in_a_filter_is_an_error_also_if_no_partition_is_left(store, mistake):
    cube = api.cube_dataset(CUBE, store)
    for where in (mistake, mistake & (pc.field("p") == 99)):
        for use in (cube.count_rows, partial(cube.to_table, None)):
            with pytest.raises((ValueError, pa.ArrowNotImplementedError), match=r"no column nope|no kernel"):
                use(where)


def test_a_mistake_in_a_predicate_of_polars_is_an_error_also_if_no_partition_is_left(store):
    frame = api.scan_cube(CUBE, store)
    for where in (pl.col("city") == 1, (pl.col("city") == 1) & (pl.col("p") == 99)):
        with pytest.raises(pl.exceptions.ComputeError, match="cannot compare string with numeric"):
            frame.filter(where).collect()


def test_prefixes_of_binary_values_need_not_be_text():
    table = pa.table({"x": [0, 1], "day": [DAYS[0]] * 2, "p": [0, 0], "key": [b"\xff\x01", b"a"]})
    found = api.cube_dataset(CUBE, built(table)).to_table(filter=pc.starts_with(pc.field("key"), b"\xff"))
    assert found["x"].to_pylist() == [0]


MEMORY = """
import sys
import pyarrow as pa
import pyarrow.compute as pc
from kartothek_cube.api.cube import Cube, cube_dataset, scan_cube

def peak_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))

cube = Cube(["x"], ["p"], "large", suppress_index_on=["x"])
url, engine = sys.argv[1], sys.argv[2]
dataset = cube_dataset(cube, url)
if engine == "duckdb":
    import duckdb
    connection = duckdb.connect(config={"threads": 1, "memory_limit": "50MB"})
    connection.sql("SELECT 1").fetchall()
if engine == "polars":
    import polars as pl
    pl.DataFrame({"a": [1]}).lazy().select(pl.col("a").sum()).collect(engine="streaming")
dataset.head(1)
before = peak_bytes()
if engine == "arrow":
    total = sum(pc.sum(batch.column("v")).as_py() for batch in dataset.to_batches())
elif engine == "duckdb":
    total = connection.sql("SELECT sum(v), max(COLUMNS('w.*')) FROM dataset").fetchall()[0][0]
else:
    frame = scan_cube(cube, url).select(pl.col("v").sum(), pl.col("^w.*$").max())
    total = frame.collect(engine="streaming")["v"].item()
print(total, peak_bytes() - before)
"""

#: bytes that a scan may take
MEMORY_LIMIT = 100 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A cube with ten times the memory of a scan: URL and number of rows."""
    path = tmp_path_factory.mktemp("large")
    cube = api.Cube(["x"], ["p"], "large", suppress_index_on=["x"])
    url = f"hfs://{path}?create_if_missing=true"
    n_rows, tables = 250_000, []
    while sum(table.nbytes for table in tables) < 10 * MEMORY_LIMIT:
        p = len(tables)
        x = np.arange(n_rows) + p * n_rows
        part = {f"w{i}": x + i for i in range(5)}
        tables.append(pa.table({"x": x, "p": np.full(n_rows, p), "v": np.ones(n_rows, np.int64), **part}))
    api.build_cube__iter(tables, cube, url)
    return url, n_rows * len(tables)


@pytest.mark.slow("measures processes with large data")
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="measures memory as Linux does")
@pytest.mark.parametrize("engine", ["arrow", "duckdb", "polars"])
def test_memory_is_bounded(large, engine):
    """A scan of all columns takes a tenth of the memory of the rows: its peak, not its reserved addresses."""
    url, expected = large
    command = [sys.executable, "-c", MEMORY, url, engine]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    peaks = []
    # allocators differ by 30 MB from run to run; a scan that keeps its rows takes a GB in each of them
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        # DuckDB prints a bar of progress if it takes long
        total, peak_bytes = map(int, done.stdout.split()[-2:])
        assert total == expected
        peaks.append(peak_bytes)
        if peak_bytes < MEMORY_LIMIT:
            break
    assert min(peaks) < MEMORY_LIMIT


def test_narwhals(store, whole):
    """By the Arrow C stream, as LazyFrame of polars, and as relation of DuckDB."""
    expected = pc.sum(whole.filter(pc.field("p") == 1)["qty"]).as_py()
    frames = [
        nw.from_arrow(api.cube_dataset(CUBE, store), backend="pyarrow").lazy(),
        nw.from_native(api.scan_cube(CUBE, store)),
        nw.from_native(api.connect(CUBE, store).sql("FROM sales")),
    ]
    for frame in frames:
        result = frame.filter(nw.col("p") == 1).select(nw.col("qty").sum()).collect()
        assert int(result["qty"][0]) == expected


def test_files_can_be_written(store, whole, tmp_path):
    """By pyarrow.dataset.write_dataset, which takes the stream."""
    dataset = api.cube_dataset(CUBE, store)
    pads.write_dataset(dataset.scanner().to_reader(), tmp_path / "reader", format="parquet")
    pads.write_dataset(dataset, tmp_path / "dataset", format="parquet")
    assert rows(pads.dataset(tmp_path / "dataset").to_table()) == rows(whole)
    assert rows(pads.dataset(tmp_path / "reader").to_table()) == rows(whole)
