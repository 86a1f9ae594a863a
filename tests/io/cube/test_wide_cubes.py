"""Cubes with thousands of columns: the work grows with the number of columns, not with its square."""

import ast
import datetime
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import kartothek_cube
from kartothek_cube.api import cube as api
from kartothek_cube.io_components.runtime import limit_threads
from tests.support.cubes import memory

CUBE = api.Cube(["X"], ["P"], "wide")
VALUES = [[1.5, 2.5], ["a", "b"], [datetime.date(2020, 1, 1)] * 2, [None, None], [[1], [2]]]
VALUES += [pd.array([1, None], dtype="Int64"), pd.Categorical(["u", "v"])]


def wide_frame(n_columns: int, first: int = 1) -> pd.DataFrame:
    payload = {f"c{i}": VALUES[i % len(VALUES)] for i in range(n_columns)}
    return pd.DataFrame({"X": [first, first + 1], "P": ["a", "b"]} | payload)


def evolved(n_columns: int):
    api.build_cube(wide_frame(n_columns), CUBE, store := memory())
    api.update_schema(CUBE, store, "seed", add={f"n{i}": pa.int64() for i in range(n_columns)})
    return store


def built(n_columns: int):
    api.build_cube(wide_frame(n_columns), CUBE, store := memory())
    return store


def sql(store) -> object:
    with api.connect(CUBE, store) as connection:
        connection.execute("SET threads = 1")
        return connection.execute("SELECT * FROM wide").fetchall()


def show(shown) -> tuple[str, ...]:
    return repr(shown), str(shown), shown._repr_html_()


OPERATIONS = {
    "build": lambda store, n: api.build_cube(wide_frame(n), CUBE, memory()),
    "query": lambda store, n: api.query_cube(CUBE, store),
    "conditions": lambda store, n: api.query_cube(CUBE, store, conditions=api.C("c0") > 1),
    "groups": lambda store, n: api.query_cube(CUBE, store, partition_by="X"),
    "pyarrow": lambda store, n: api.query_cube(CUBE, store, dtype_backend="pyarrow"),
    "table": lambda store, n: api.query_cube_table(CUBE, store),
    "sql": lambda store, n: sql(store),
    "append": lambda store, n: api.append_to_cube(wide_frame(n, first=3), CUBE, store, schema_mode="merge"),
    "merge": lambda store, n: api.merge_into_cube(wide_frame(n, first=2), CUBE, store, "seed"),
    "verify": lambda store, n: api.verify_cube(CUBE, store),
    "discover": lambda store, n: api.discover_cube("wide", store),
    "explain": lambda store, n: show(api.explain_query(CUBE, store)),
    "open": lambda store, n: show(api.open_cube("wide", store)),
}


def count_calls(function: Callable[[], object]) -> int:
    """Calls of functions in Python and C, in this thread."""
    events, before = [], sys.getprofile()
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        function()
    finally:
        sys.setprofile(before)
    return events.count("call") + events.count("c_call")


@pytest.mark.slow("counts the work of wide cubes, of two sizes")
@pytest.mark.parametrize("make_store", [built, evolved])
@pytest.mark.parametrize("name", OPERATIONS)
def test_twice_the_columns_are_at_most_twice_the_work(name, make_store):
    run = OPERATIONS[name]
    with limit_threads(1):
        # the first run imports modules, and fills caches of types
        run(make_store(10), 10)
        calls = [count_calls(partial(run, make_store(n), n)) for n in (100, 200)]
    assert calls[1] < 2.2 * calls[0]


def _loops(tree: ast.AST) -> Iterator[tuple[str, list[ast.AST]]]:
    """What loops and comprehensions iterate over, and the code that they repeat."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            yield ast.unparse(node.iter), [*node.body, *node.orelse]
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            repeated = [*elements, *(test for part in node.generators for test in part.ifs)]
            yield ast.unparse(node.generators[0].iter), repeated


#: loops over few columns
FEW = re.compile("key|cell|dimension|partition|not_null|indices|index_columns|dispatch_by|categories")


def test_names_of_tables_are_not_searched_in_loops():
    """pyarrow makes a new list of all names for each access, so that a search in a loop is quadratic."""
    found = []
    for path in Path(kartothek_cube.__file__).parent.rglob("*.py"):
        for iterated, repeated in _loops(ast.parse(path.read_text())):
            if FEW.search(iterated):
                continue
            for node in (inner for part in repeated for inner in ast.walk(part)):
                if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                    searched = node.comparators[0]
                    if isinstance(searched, ast.Attribute) and searched.attr in ("names", "column_names"):
                        found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "make a set before the loop"
