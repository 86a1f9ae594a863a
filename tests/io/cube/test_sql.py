"""connect: a cube and its datasets as views of DuckDB."""

from __future__ import annotations

import sys

import duckdb
import pandas as pd
import pytest

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, keep_cube_history
from kartothek_cube.io.sql import connect
from tests.support.cubes import memory

CUBE = Cube(["x"], ["p"], "sales")
SEED = pd.DataFrame({"x": [1, 2, 3], "p": [0, 0, 1], "qty": [5, 6, 7]})
ENRICH = pd.DataFrame({"x": [1, 9], "p": [0, 1], "w": ["a", "b"]})


@pytest.fixture
def store():
    factory = memory()
    build_cube({"seed": SEED, "enrich": ENRICH}, CUBE, factory)
    return factory


def fetch(connection, statement):
    return connection.sql(statement).fetchall()


def test_views(store):
    connection = connect(CUBE, store)
    assert fetch(connection, "SELECT x, qty, w FROM sales ORDER BY x") == [
        (1, 5, "a"),
        (2, 6, None),
        (3, 7, None),
    ]
    assert fetch(connection, "SELECT x FROM sales.enrich ORDER BY x") == [(1,), (9,)]
    assert fetch(connection, "SELECT sales.x FROM sales WHERE sales.w IS NULL ORDER BY 1") == [(2,), (3,)]
    joined = "SELECT count(*) FROM sales.seed s JOIN sales.enrich e USING (x) WHERE s.qty < 6"
    assert fetch(connection, joined) == [(1,)]


def test_views_show_the_newest_state(store):
    connection = connect(CUBE, store)
    append_to_cube(pd.DataFrame({"x": [1, 4], "p": [0, 2], "qty": [50, 8]}), CUBE, store)
    assert fetch(connection, "SELECT sum(qty) FROM sales") == [(71,)]
    assert fetch(connection, "SELECT sum(qty) FROM sales.seed") == [(71,)]


def test_as_of(store):
    keep_cube_history(CUBE, store, 5)
    older = connect(CUBE, store, as_of=pd.Timestamp.now("UTC"))
    append_to_cube(pd.DataFrame({"x": [4], "p": [2], "qty": [8]}), CUBE, store)
    assert fetch(older, "SELECT count(*) FROM sales") == [(3,)]
    assert fetch(older, "SELECT count(*) FROM sales.seed") == [(3,)]
    assert fetch(connect(CUBE, store), "SELECT count(*) FROM sales") == [(4,)]


@pytest.mark.parametrize("prefix", ["select", "a-b", "Sales2024"])
def test_names_are_quoted(prefix):
    cube, factory = Cube(["x"], ["p"], prefix), memory()
    build_cube({"seed": SEED, "group": ENRICH}, cube, factory)
    connection = connect(cube, factory)
    name = f'"{cube.uuid_prefix}"'
    assert fetch(connection, f"SELECT count(*) FROM {name}") == [(3,)]
    assert fetch(connection, f'SELECT count(*) FROM {name}."group"') == [(2,)]


def test_several_cubes_in_one_connection(store):
    other = Cube(["x"], ["p"], "stock")
    build_cube(pd.DataFrame({"x": [2], "p": [0], "n": [3]}), other, store)
    with duckdb.connect() as mine:
        assert connect(CUBE, store, connection=mine) is mine
        connect(other, store, connection=mine)
        connect(other, store, connection=mine)
        assert fetch(mine, "SELECT qty * n FROM sales JOIN stock USING (x, p)") == [(18,)]


def test_errors(store, monkeypatch):
    with pytest.raises(ValueError, match="nope"):
        connect(Cube(["x"], ["p"], "nope"), store)
    with pytest.raises(TypeError, match="expected a Cube"):
        connect("sales", store)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ImportError, match="kartothek_cube\\[sql\\]"):
        connect(CUBE, store)
