"""Queries over files of all kinds against brute force."""

import contextlib
import datetime
import functools
import itertools
import math
import tempfile
from unittest import mock

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storefact import get_store_from_url

from kartothek_cube.api import cube as api
from kartothek_cube.core import tuning
from kartothek_cube.io_components.write import table_writer
from kartothek_cube.serialization import ParquetSerializer
from tests.support.cubes import file_keys, memory, parquet_bytes

CUBE = api.Cube(dimension_columns=["x", "y"], partition_columns=["p"], uuid_prefix="cube")
XS = {
    "int": [1, 2, 3],
    "text": ["a", "b", "ü"],
    "float": [0.0, 1.5, math.nan],
    "day": [datetime.date(2020, 1, day) for day in (1, 2, 3)],
}
TYPES = {"int": pa.int64(), "text": pa.string(), "float": pa.float64(), "day": pa.date32()}
NARROW = {"int": pa.int8(), "text": pa.dictionary(pa.int8(), pa.string()), "float": pa.float32()}
CELLS = {"seed": ["x", "y"], "enrich": ["x", "y"], "extra": ["x"], "whole": ["y"]}
PAYLOAD = {"seed": "v", "enrich": "w", "extra": "u", "whole": "z"}
YS = [0, 1, 2]


@functools.cache
def store_of(kind, is_named):
    """Build a cube in which each partition may hold every cell; two datasets have two files in one.

    Names of its files may tell cells.
    """
    store = memory()
    # no NaN can be written, but files by others may have it
    xs = [2.5 if order_of(x)[0] else x for x in XS[kind]]
    grid = pd.DataFrame(list(itertools.product(xs, YS, [0, 1])), columns=["x", "y", "p"])
    datasets = {
        "seed": grid.assign(v=1.0),
        "enrich": grid.assign(w=1.0),
        "extra": grid[["x", "p"]].drop_duplicates().assign(u=1.0),
        "whole": grid[["y"]].drop_duplicates().assign(z=1.0),
    }
    again = {id_: datasets[id_][datasets[id_].p == 1] for id_ in ("seed", "enrich")}
    with contextlib.ExitStack() as stack:
        if not is_named:
            nothing = mock.Mock(side_effect=lambda dimensions, table, starts: [""] * len(starts))
            stack.enter_context(mock.patch.object(table_writer, "cells_suffixes", nothing))
        api.build_cube(data=datasets, cube=CUBE, store=lambda: store, partition_on={"whole": []})
        api.append_to_cube(data=again, cube=CUBE, store=lambda: store)
    return store


@st.composite
def file_rows(draw, kind, id_, base, is_named):
    """Rows of a file: often those of another one, or a part of them, in order or not, at times with nulls."""
    cells = draw(st.one_of(st.just(base), st.sets(st.sampled_from(base)).map(sorted_cells))) if base else []
    # a file whose name tells its cells, which do not repeat, may be replaced by one of other cells
    more = ["no"] if is_named else ["repeat"]
    change = draw(st.sampled_from(["no", "no", "no", "shuffle", "null", "zero", *more]))
    if change == "shuffle":
        cells = draw(st.permutations(cells))
    if change == "repeat":
        cells = cells + cells[:2]
    if change == "null":
        cells = [*cells, (None, *cells[0][1:])] if cells and id_ != "whole" else cells
    if change == "zero" and kind == "float":
        cells = [tuple(-0.0 if value == 0.0 else value for value in cell) for cell in cells]
    values = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, None]), min_size=len(cells), max_size=len(cells)))
    names = [*CELLS[id_], PAYLOAD[id_]]
    return [dict(zip(names, (*cell, value), strict=True)) for cell, value in zip(cells, values, strict=True)]


def order_of(value):
    """Sort values as queries do: NaN and null are last."""
    if value is None:
        return (2, 0)
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def sorted_cells(cells):
    return sorted(cells, key=lambda cell: [order_of(value) for value in cell])


def key_of(row, columns):
    return tuple(order_of(row[column]) for column in columns)


def write(store, key, rows, id_, kind, how):
    columns = {name: [row[name] for row in rows] for name in [*CELLS[id_], PAYLOAD[id_]]}
    types = {"x": TYPES[kind], "y": pa.int64()}
    table = pa.table({name: pa.array(v, types.get(name, pa.float64())) for name, v in columns.items()})
    if how == "narrow" and kind in NARROW and "x" in columns:
        dtype = NARROW[kind]
        x = table["x"].dictionary_encode() if kind == "text" else table["x"].cast(dtype)
        table = table.set_column(0, "x", x)
    if how == "ours":
        ParquetSerializer("ZSTD").store(store, key.removesuffix(".parquet"), table)
    else:
        store.put(key, parquet_bytes(table, row_group_size=2, compression="snappy"))


def meets(row, conditions):
    return all(row[column] is not None and test(row[column]) for column, test in conditions)


def latest(parts, id_, conditions):
    """Give the rows of a partition, each cell in its last version, by key."""
    own = {*CELLS[id_], PAYLOAD[id_]}
    conditions = [(column, test) for column, test in conditions if column in own]
    stable = [c for c in conditions if len(parts) == 1 or c[0] in CELLS[id_]]
    found = {}
    for row in itertools.chain.from_iterable(parts):
        if meets(row, stable):
            found.pop(key_of(row, CELLS[id_]), None)
            found[key_of(row, CELLS[id_])] = row
    return {key: row for key, row in found.items() if meets(row, conditions)}


def expected_rows(content, conditions):
    """Join by brute force."""
    result = []
    restricted = {id_ for id_, name in PAYLOAD.items() if any(column == name for column, _ in conditions)}
    for p in (0, 1):
        found = {id_: latest(content[id_][0 if id_ == "whole" else p], id_, conditions) for id_ in CELLS}
        for row in found["seed"].values():
            joined = {**row, "p": p}
            for id_ in ("enrich", "extra", "whole"):
                partner = found[id_].get(key_of(row, CELLS[id_]))
                if partner is None and id_ in restricted:
                    break
                joined[PAYLOAD[id_]] = partner[PAYLOAD[id_]] if partner else None
            else:
                result.append(joined)
    return sorted(result, key=lambda row: (*key_of(row, ["x", "y"]), row["p"]))


def plain(value):
    if value is None or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    return value.date() if isinstance(value, pd.Timestamp) else value


CONDITIONS = {
    "nothing": ((), []),
    "seed": ((api.C("v") > 0.5,), [("v", lambda v: v > 0.5)]),
    "enrichment": ((api.C("w") > 0.5,), [("w", lambda v: v > 0.5)]),
    "dimension": ((api.C("y") < 2,), [("y", lambda v: v < 2)]),
    "all": (
        (api.C("v") < 1.5, api.C("w") > 0.5, api.C("y") != 0),
        [("v", lambda v: v < 1.5), ("w", lambda v: v > 0.5), ("y", lambda v: v != 0)],
    ),
    "shared": ((api.C("z") > 0.5, api.C("u") < 1.5), [("z", lambda v: v > 0.5), ("u", lambda v: v < 1.5)]),
    "none": ((api.C("v") > 9.0,), [("v", lambda v: v > 9)]),
}


@contextlib.contextmanager
def copy_of(store, where):
    """Give a copy of a store, in memory or in a directory."""
    with tempfile.TemporaryDirectory() as directory:
        copy = memory() if where == "memory" else get_store_from_url(f"hfs://{directory}")
        for key in store.keys():
            copy.put(key, store.get(key))
        yield copy


@pytest.mark.slow("120 random cubes of each type")
@pytest.mark.parametrize("kind", XS)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_queries_against_brute_force(kind, data):
    is_named = data.draw(st.booleans(), label="names tell cells")
    store = store_of(kind, is_named)
    content, how = {}, {}
    grid = list(itertools.product(XS[kind], YS))
    base = {"enrich": grid, "extra": [(x,) for x in XS[kind]], "whole": [(y,) for y in YS]}
    for id_ in CELLS:
        content[id_] = [[], []]
        for p, count in [(0, 1)] if id_ == "whole" else [(0, 1), (1, 2 if id_ in ("seed", "enrich") else 1)]:
            for _ in range(count):
                rows = data.draw(file_rows(kind, id_, base.get(id_, grid), is_named), label=id_)
                content[id_][p].append(rows)
        how[id_] = data.draw(st.sampled_from(["ours", "ours", "foreign", "narrow"]))
    if data.draw(st.booleans(), label="the same cells"):
        for p in (0, 1):
            for number, rows in enumerate(content["seed"][p]):
                same = [{"x": row["x"], "y": row["y"], "w": float(n % 3)} for n, row in enumerate(rows)]
                content["enrich"][p][number] = same
    name = data.draw(st.sampled_from(sorted(CONDITIONS)))
    conditions, tests = CONDITIONS[name]
    block, restricting = data.draw(st.sampled_from([(0.1, 0), (0.1, 1 << 16), (1 << 20, 1 << 16)]))
    partition_by = data.draw(st.sampled_from([None, "p", "y"]))
    with (
        copy_of(store, data.draw(st.sampled_from(["memory", "disk"]))) as copy,
        mock.patch.object(tuning, "BLOCK_BYTES", block),
        mock.patch.object(tuning, "MAX_RESTRICTING_CELLS", restricting),
    ):
        for id_ in CELLS:
            keys = file_keys(lambda: copy, f"cube++{id_}").values()
            for key, rows in zip(keys, itertools.chain(*content[id_]), strict=True):
                write(copy, key, rows, id_, kind, how[id_])
        found = api.query_cube(CUBE, lambda: copy, conditions, partition_by=partition_by)
    expected = expected_rows(content, tests)
    if partition_by:
        expected = sorted(expected, key=lambda row: row[partition_by])
    names = ["x", "y", "p", "v", "w", "u", "z"]
    rows = [row for df in found for row in df[names].itertuples(index=False)]
    found = [[*map(plain, row)] for row in rows]
    assert found == [[plain(row[name]) for name in names] for row in expected]
