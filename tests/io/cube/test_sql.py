"""connect: a cube and its datasets as views of DuckDB."""

import sys

import duckdb
import pandas as pd
import pytest

from kartothek_cube.api.cube import Cube, append_to_cube, build_cube, connect, keep_cube_history
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
    found = fetch(connection, "SELECT x, qty, w FROM sales ORDER BY x")
    assert found == [(1, 5, "a"), (2, 6, None), (3, 7, None)]
    assert fetch(connection, "SELECT x FROM sales.enrich ORDER BY x") == [(1,), (9,)]
    assert fetch(connection, "SELECT sales.x FROM sales WHERE sales.w IS NULL ORDER BY 1") == [(2,), (3,)]
    joined = "SELECT count(*) FROM sales.seed s JOIN sales.enrich e USING (x) WHERE s.qty < 6"
    assert fetch(connection, joined) == [(1,)]


def test_views_show_the_newest_state_or_an_older_one(store):
    keep_cube_history(CUBE, store, 5)
    connection, older = connect(CUBE, store), connect(CUBE, store, as_of=pd.Timestamp.now("UTC"))
    append_to_cube(pd.DataFrame({"x": [1, 4], "p": [0, 2], "qty": [50, 8]}), CUBE, store)
    assert fetch(connection, "SELECT sum(qty) FROM sales") == [(71,)]
    assert fetch(connection, "SELECT sum(qty) FROM sales.seed") == [(71,)]
    for name in ("sales", "sales.seed"):
        assert fetch(older, f"SELECT sum(qty) FROM {name}") == [(18,)]


@pytest.mark.parametrize("prefix", ["select", "a-b", "Sales2024"])
def test_names_are_quoted(prefix):
    cube, factory = Cube(["x"], ["p"], prefix), memory()
    build_cube({"seed": SEED, "group": ENRICH}, cube, factory)
    connection = connect(cube, factory)
    name = f'"{cube.uuid_prefix}"'
    assert fetch(connection, f"SELECT count(*) FROM {name}") == [(3,)]
    assert fetch(connection, f'SELECT count(*) FROM {name}."group"') == [(2,)]


def cells(**columns):
    return pd.DataFrame({"x": [1, 2], "p": [0, 1], **columns})


@pytest.mark.parametrize(
    "data, message",
    [
        ({"seed": cells(v=1, V=2)}, "V and v of cube 'sales'"),
        ({"seed": cells(X=1)}, "x and X of cube 'sales'|X and x of cube 'sales'"),
        ({"seed": cells(v=1), "more": cells(V=2)}, "V and v of cube 'sales'"),
        ({"seed": cells(s=[{"A": 1, "a": 2}] * 2)}, r"s\.A and s\.a of cube 'sales'"),
        ({"seed": cells(l=[[{"A": 1, "a": 2}]] * 2)}, r"l\.\w+\.A and l\.\w+\.a of cube 'sales'"),
        (
            {"seed": cells(), "ex": cells(v=1), "EX": cells(w=2)},
            "dataset 'EX' of cube 'sales' and dataset 'ex' of cube 'sales'",
        ),
    ],
)
def test_names_that_differ_in_case_only_are_refused_together(data, message):
    factory = memory()
    build_cube(data, CUBE, factory)
    with duckdb.connect() as mine, pytest.raises(ValueError, match=message):
        try:
            connect(CUBE, factory, connection=mine)
        finally:
            assert fetch(mine, "SELECT count(*) FROM duckdb_views() WHERE NOT internal") == [(0,)]


def test_cases_of_other_letters_are_told_apart():
    factory = memory()
    build_cube(cells(ä=[1, 2], Ä=[3, 4]), CUBE, factory)
    connection = connect(CUBE, factory)
    assert fetch(connection, 'SELECT "ä", "Ä" FROM sales WHERE "Ä" = 3') == [(1, 3)]


@pytest.mark.parametrize("one, other", ["aA", "Aa"])
def test_cubes_that_differ_in_case_only_need_a_connection_each(one, other):
    first, second, factory = Cube(["x"], ["p"], one), Cube(["x"], ["p"], other), memory()
    build_cube(cells(v=[1, 1]), first, factory)
    build_cube(cells(v=[2, 2]), second, factory)
    connection = connect(first, factory)
    with pytest.raises(ValueError, match=f"cube '{one}' and cube '{other}'"):
        connect(second, factory, connection=connection)
    assert fetch(connection, "SELECT v FROM a.seed") == [(1,), (1,)]
    assert fetch(connect(second, factory), "SELECT v FROM a") == [(2,), (2,)]


def test_a_dataset_is_not_taken_for_a_cube(store):
    main = Cube(["x"], ["p"], "main")
    build_cube({"seed": cells(), "sales": cells(v=1)}, main, store)
    assert fetch(connect(main, store), "SELECT v FROM main.sales") == [(1,), (1,)]
    with pytest.raises(ValueError, match="not distinguish cube 'sales' and dataset 'sales' of cube 'main':"):
        connect(main, store, connection=connect(CUBE, store))


@pytest.mark.parametrize("prefix", ["information_schema", "pg_catalog", "temp", "System", "memory", "files"])
def test_names_of_duckdb_are_refused_in_a_sentence(prefix, tmp_path):
    cube, factory = Cube(["x"], ["p"], prefix), memory()
    build_cube(SEED, cube, factory)
    with duckdb.connect(tmp_path / "files.db" if prefix == "files" else ":memory:") as mine:
        with pytest.raises(ValueError, match=f"Cube '{prefix}' cannot be opened in SQL: DuckDB has"):
            connect(cube, factory, connection=mine)
        assert fetch(mine, "SELECT count(*) FROM duckdb_views() WHERE NOT internal") == [(0,)]


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
        connect(5, store)
    with pytest.raises(TypeError, match=r"such as duckdb.connect\(path\), got 'sales.db'$"):
        connect(CUBE, store, connection="sales.db")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ImportError, match="kartothek_cube\\[sql\\]"):
        connect(CUBE, store)
