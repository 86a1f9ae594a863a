"""Build and query the cube. usage: cube.py PACKAGE STORE_DIR OUT.json [build|query|build,query] [REPEATS].

PACKAGE is kartothek_cube, or kartothek (Python 3.8, kartothek 5.3, pandas < 1.4, pyarrow < 7).
"""

from __future__ import annotations

import importlib
import operator
import sys

import _common
import pandas as pd
from _common import workload as w
from storefact import get_store_from_url

OPERATORS = {
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "in": lambda column, values: column.isin(values),
}


def build(eager, cube, store):
    """Seconds to build two datasets and to add more."""
    data, more = w.build_data()
    seconds, _ = _common.median_seconds(
        lambda: eager.build_cube(data=data, cube=cube, store=store, overwrite=True), 1
    )
    if not more:
        return {"build": {"s": seconds}}
    extend, _ = _common.median_seconds(
        lambda: eager.extend_cube(
            data=more, cube=cube, store=store, partition_on={"cal": []}, overwrite=True
        ),
        1,
    )
    return {"build": {"s": seconds}, "extend": {"s": extend}}


def conditions_of(column_class, triples):
    """Conjunction of (column, operator, value) triples; None if there are none."""
    result = None
    for column, op, value in triples:
        value = pd.Timestamp(value) if column == "y" else value
        condition = OPERATORS[op](column_class(column), value)
        result = condition if result is None else result & condition
    return result


def query(eager, column_class, cube, store, repeats):
    """Time and summary of every query."""
    result = {}
    for name, (columns, triples, by) in w.QUERIES.items():
        arguments = {
            "cube": cube,
            "store": store,
            "payload_columns": columns,
            "conditions": conditions_of(column_class, triples),
            "partition_by": by,
        }
        seconds, frames = _common.median_seconds(lambda: eager.query_cube(**arguments), repeats)  # noqa: B023
        result[name] = _common.summary(seconds, frames)
    return result


def main(package, root, out, what="build,query", repeats=3):
    """Run the selected steps and write the result."""
    cube_class = importlib.import_module(package + ".core.cube.cube").Cube
    column_class = importlib.import_module(package + ".core.cube.conditions").C
    eager = importlib.import_module(package + ".io.eager_cube")
    cube = cube_class(uuid_prefix="bench", dimension_columns=w.DIMENSIONS, partition_columns=["p"])
    store = get_store_from_url(f"hfs://{root}?create_if_missing=true")
    result = {}
    if "build" in what:
        result.update(build(eager, cube, store))
    if "query" in what:
        result.update(query(eager, column_class, cube, store, int(repeats)))
    _common.write(out, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
