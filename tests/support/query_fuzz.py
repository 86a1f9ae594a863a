"""Random cubes, written by random operations, and random queries of them on all façades, against a model.

A case is a number: it tells all there is in the cube and all queries. Constants that decide which way data
goes through the library by its size are lowered at random, so that few rows go every way.
"""

import datetime
import itertools
import math
import pickle
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kartothek_cube.api.discover import discover_datasets
from kartothek_cube.core.cube.conditions import C, Condition, Conjunction
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.pruning import STATISTICS
from kartothek_cube.io import eager, eager_cube, iter_cube
from kartothek_cube.io.arrow_cube import query_cube_arrow
from kartothek_cube.io.dask.dataframe_cube import query_cube_dataframe
from kartothek_cube.io_components.query.executor import run_frames, run_task
from kartothek_cube.io_components.query.logical_plan import QueryFrames
from kartothek_cube.io_components.query.physical_plan import plan_query, split_into_tasks
from kartothek_cube.io_components.runtime import limit_threads
from kartothek_cube.serialization import ParquetSerializer
from tests.support import cube_model
from tests.support.cube_facades import FACADES
from tests.support.factories import local, memory
from tests.support.predicates import COMPARE

TUNING = "kartothek_cube.core.tuning."
#: constant -> values to try, besides its own
THRESHOLDS = {
    TUNING + "BLOCK_BYTES": (1, 5000),
    TUNING + "MAX_RESTRICTING_CELLS": (0, 20),
    TUNING + "SMALL_FRAME_ROWS": (0, 3),
    "kartothek_cube.io_components.query.frame_conversion.MAX_COLUMNS": (3,),
    TUNING + "TABLE_CODES_PER_ROW": (0, 32),
    "kartothek_cube.io_components.kernels.MAX_CODE": (2, 30),
    TUNING + "MIN_TASK_BYTES": (1, 5000),
    "kartothek_cube.io_components.runtime.available_cores": (lambda: 3,),
}
KEYS = [name for name, kind in cube_model.KINDS.items() if kind.is_key]
NAMES = ("x", "y", "z", "p", "q", "i1", "i2", "i3", "k1", "k2", "v1", "v2", "v3", "v4", "v5", "v6")
#: of some names
ENDINGS = (".element", ".", " a", "=1/b", "%20", "ä", "\U0001f600", "'\"", "[0]", ":", "__")
#: more values of some kinds, for cells
WIDE = {
    "int": range(-5, 40),
    "str": [f"s{n}" for n in range(40)],
    "date": [datetime.date(2020, 1, 31) + datetime.timedelta(n) for n in range(-5, 40)],
    "timestamp": [cube_model.stamp("2020-01-31") + pd.Timedelta(n, "h") for n in range(-5, 40)],
}
#: Arrow type -> types of input that mean the same
ARROW = {
    "string": [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())],
    "large_string": [pa.string(), pa.large_string(), pa.string_view()],
    "timestamp[ns]": [pa.timestamp("us"), pa.timestamp("ns")],
    "date32[day]": [pa.date32(), pa.date64()],
    "list<item: string>": [pa.list_(pa.large_string()), pa.large_list(pa.string())],
    "list<item: int64>": [pa.list_(pa.int64()), pa.large_list(pa.int64())],
    "binary": [pa.binary(), pa.large_binary()],
}


@contextmanager
def lower_thresholds(draw: random.Random) -> Iterator[None]:
    chosen = {}
    if draw.random() < 0.8:
        chosen = {name: draw.choice(values) for name, values in THRESHOLDS.items() if draw.random() < 0.4}
    with ExitStack() as stack:
        for name, value in chosen.items():
            stack.enter_context(mock.patch(name, value))
        # threads take most of the time of a query of few rows
        stack.enter_context(limit_threads(draw.choice([1, 1, 1, None])))
        yield


# cubes -------------------------------------------------------------------------------------------


def list_forms(kind: cube_model.Kind, values: Sequence[Any], narrow: bool) -> list[Any]:
    """Give the dtypes of input that hold some values."""
    forms = list(kind.forms)
    if narrow and kind.narrow and all(v is None or -128 <= v <= 127 for v in values):
        forms += kind.narrow
    if None in values:
        forms = [form for form in forms if form not in ("bool", "int8", "int32", "int64", "uint64")]
    if all(v is None for v in values):
        forms = [form for form in forms if form != "category"]
    elif not kind.is_key and not any(values):
        # lists that are all empty tell pandas no type, and do not go with lists of a type
        forms = [form for form in forms if form != "object"]
    return forms


@dataclass
class FuzzedCube:
    """A cube in a store, and in the model."""

    draw: random.Random
    store: Callable[[], Any]
    cube: Cube
    #: values of the columns that make cells
    pools: dict[str, tuple[Any, ...]]
    kinds: dict[str, str]
    large: bool
    datasets: dict[str, cube_model.Dataset] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def write(self, operation: str, elements: list[dict[str, list[cube_model.Row]]], **kwargs: Any) -> None:
        """Write rows eagerly, or several elements one by one: then a cell may occur in each of them."""
        pieces = elements
        if len(elements) == 1 and self.draw.random() < 0.2:
            pieces = [
                {name: rows[::2] for name, rows in elements[0].items()},
                {name: rows[1::2] for name, rows in elements[0].items() if len(rows) > 1},
            ]
        frames = [{name: self.make_frame(name, rows) for name, rows in data.items()} for data in pieces]
        serializer = None
        if self.draw.random() < 0.4:
            serializer = ParquetSerializer(chunk_size=self.draw.choice([1, 3, 1000]))
        self.log.append(f"{operation} {kwargs}")
        for data in frames:
            for name, df in data.items():
                if isinstance(df, pd.DataFrame):
                    types, rows = df.dtypes.astype(str).to_dict(), df.to_dict("list")
                else:
                    types, rows = dict(zip(df.column_names, df.schema.types)), df.to_pydict()
                self.log.append(f"  {name} {types} {len(df) if self.large else rows}")
        kwargs |= {"cube": self.cube, "store": self.store, "df_serializer": serializer}
        if len(elements) == 1:
            getattr(eager_cube, operation)(data=frames[0] if len(frames) == 1 else frames, **kwargs)
        else:
            names = {name for data in frames for name in data}
            kwargs = {"ktk_cube_dataset_ids": names, **kwargs}
            getattr(iter_cube, operation + "__iter")(data=iter(frames), **kwargs)
        for data in elements:
            for name, rows in data.items():
                self.datasets[name].add(rows)

    def draw_elements(self, names: Sequence[str], share: float) -> list[dict[str, list[cube_model.Row]]]:
        """Draw rows of some datasets, seldom in several elements."""
        times = 1 if self.large or self.draw.random() < 0.8 else self.draw.randint(2, 3)
        return [{name: self.draw_rows(name, share) for name in names} for _ in range(times)]

    def make_frame(self, name: str, rows: list[cube_model.Row]) -> pd.DataFrame | pa.Table:
        """Make a frame of rows, with any fitting types of columns, in any order."""
        columns = list(self.datasets[name].kinds)
        self.draw.shuffle(columns)
        data = {}
        for column in columns:
            kind = cube_model.KINDS[self.datasets[name].kinds[column]]
            values = [row[column] for row in rows]
            form = self.draw.choice(list_forms(kind, values, self.draw.random() < 0.3))
            values = [list(v) if isinstance(v, tuple) else v for v in values]
            is_text = isinstance(form, str) and form in ("category", "Int64", "UInt64", "boolean", "Float64")
            series = pd.Series(values, dtype=object if is_text else form)
            data[column] = series.astype(form) if is_text else series
            if form != "object" or any(v is not None for v in values):
                ds = self.datasets[name]
                ds.typed.add(column)
                bits = re.search(r"(?<=nt|at)\d+$", str(form))
                ds.bits[column] = max(ds.bits.get(column, 0), int(bits[0]) if bits else 64)
        df = pd.DataFrame(data)
        if self.draw.random() < 0.3:
            texts = [f"row {n}" for n in range(len(df))]
            df.index = self.draw.choice([[7] * len(df), texts, range(len(df), 0, -1)])
        return self.make_table(df) if self.draw.random() < 0.2 else df

    def make_table(self, df: pd.DataFrame) -> pa.Table:
        """Make an Arrow table of a frame, with other types that mean the same."""
        table = pa.Table.from_pandas(df, preserve_index=False)
        for n, name in enumerate(table.column_names):
            column = table.column(n)
            if pa.types.is_floating(column.type) and self.draw.random() < 0.5:
                column = pc.fill_null(column, float("nan"))
            for dtype in self.draw.sample(ARROW.get(str(column.type), [column.type]), 1):
                table = table.set_column(n, name, column.cast(dtype))
        return table

    def draw_rows(self, name: str, share: float) -> list[cube_model.Row]:
        """Draw rows of a dataset: part of all its cells, of those of the seed, or of those it has."""
        draw, ds = self.draw, self.datasets[name]
        cell = [c for c in ds.kinds if c in self.pools]
        mode = draw.random()
        model = self.datasets[self.cube.seed_dataset].rows if mode < 0.6 else ds.rows if mode < 0.75 else []
        if model and set(cell) <= set(model[0]):
            cells = sorted({tuple(row[c] for c in cell) for row in model})
        else:
            count = draw.choice([50, 3000]) if self.large else draw.choice([1, 5, 9, 20, 60])
            pools = [dict.fromkeys(self.pools[c]) for c in cell]  # 0.0 and -0.0 are one
            if self.large and draw.random() < 0.5 and math.prod(map(len, pools)) <= 6000:
                cells = list(itertools.product(*pools))
            else:
                cells = sorted({tuple(draw.choice(self.pools[c]) for c in cell) for _ in range(count)})
        if draw.random() > share:
            cells = draw.sample(cells, draw.randint(1, len(cells)))
        draw.shuffle(cells)
        payload = [c for c in ds.kinds if c not in cell]
        fixed = {c: self.draw_value(ds, c) for c in payload if draw.random() < 0.1}
        return [
            dict(zip(cell, values)) | {c: fixed[c] if c in fixed else self.draw_value(ds, c) for c in payload}
            for values in cells
        ]

    def draw_value(self, ds: cube_model.Dataset, column: str) -> Any:
        values = cube_model.KINDS[ds.kinds[column]].values
        required = column in ds.partition_on or column in self.cube.index_columns
        if not required and self.draw.random() < 0.15:
            return None
        if self.large and ds.kinds[column] == "float":
            return self.draw.random()  # cannot be compressed: makes large files
        return self.draw.choice(values)


def make_cube(draw: random.Random, store: Callable[[], Any]) -> FuzzedCube:
    large = draw.random() < 0.02
    odd = draw.choice([0, 0, 0.5])
    x, y, z, p, q, *free = (c + draw.choice(ENDINGS) if draw.random() < odd else c for c in NAMES)
    dimensions = [x, y, z][: draw.choice([1, 1, 2, 2, 2, 3])]
    partitions = [p, q][: draw.choice([1, 1, 1, 2])]
    draw.shuffle(dimensions)
    draw.shuffle(partitions)
    kinds = {
        c: draw.choice(["int", "str", "date", "timestamp"] if draw.random() < 0.6 else KEYS)
        for c in [*dimensions, *partitions]
    }
    pools = {}
    for column, kind in kinds.items():
        values = WIDE[kind] if kind in WIDE and draw.random() < 0.5 else cube_model.KINDS[kind].values
        pools[column] = tuple(draw.sample(values, min(len(values), draw.choice([1, 2, 3, 4, 20]))))
    if large:
        kinds |= {dimensions[0]: "int"}
        pools |= {dimensions[0]: tuple(range(draw.choice([600, 20_000])))}
    index_columns = [c for c in free if c[0] != "v" and draw.random() < 0.4]
    suppressed = [c for c in dimensions if draw.random() < 0.2]
    cube = Cube(dimensions, partitions, "cube", index_columns=index_columns, suppress_index_on=suppressed)
    fuzzed = FuzzedCube(draw, store, cube, pools, kinds, large)
    for name in ["seed", "enrich", "extra", "more"][: draw.choice([1, 2, 2, 3, 3, 4])]:
        fuzzed.datasets[name] = make_dataset(fuzzed, name, free)
    fuzzed.log.append(f"{cube!r} {fuzzed.datasets}")
    return fuzzed


def fill(fuzzed: FuzzedCube) -> None:
    """Write the cube, in several operations."""
    build(fuzzed)
    index_more(fuzzed)
    for _ in range(fuzzed.draw.choice([0, 0, 1, 2, 3, 5])):
        change(fuzzed)


def make_dataset(fuzzed: FuzzedCube, name: str, free: list[str]) -> cube_model.Dataset:
    """Draw the columns and partition keys of a dataset; its payload is taken from the free columns."""
    draw, cube = fuzzed.draw, fuzzed.cube
    own, aligned = list(cube.dimension_columns), list(cube.partition_columns)
    if name != "seed":
        own = draw.sample(own, draw.randint(1, len(own)))
        if draw.random() < 0.4:
            aligned = draw.sample(aligned, draw.randint(0, len(aligned)))
    kinds = {c: fuzzed.kinds[c] for c in [*own, *aligned]}
    partition_on = list(aligned)
    for _ in range(min(len(free), draw.randint(0 if name == "seed" else 1, 3))):
        column = free.pop(draw.randrange(len(free)))
        kinds[column] = draw.choice(list(cube_model.KINDS) if column[0] == "v" else KEYS)
        if fuzzed.large and column[0] != "i" and draw.random() < 0.5:
            kinds[column] = "float"
        elif name != "seed" and column[0] == "k":
            partition_on.insert(draw.randint(0, len(partition_on)), column)
    # a column has to remain for the files
    if name != "seed" and not fuzzed.large and draw.random() < 0.1 and len(kinds) > len(partition_on) + 1:
        partition_on.append(draw.choice(own))
    indexed = set(cube.index_columns)
    if name == "seed":
        indexed |= set(cube.dimension_columns) - set(cube.suppress_index_on)
    return cube_model.Dataset(kinds, tuple(partition_on), indexed=frozenset(indexed & set(kinds)))


def build(fuzzed: FuzzedCube) -> None:
    names = list(fuzzed.datasets)
    fuzzed.draw.shuffle(names)
    at_once = [name for name in names if name == "seed" or fuzzed.draw.random() < 0.7]
    later = [("extend_cube", [name]) for name in names if name not in at_once]
    for operation, some in (("build_cube", at_once), *later):
        keys = {name: list(fuzzed.datasets[name].partition_on) for name in some}
        # every other cube has statistics of all columns; drawn without a change of the other choices
        columns = {name: {STATISTICS: list(fuzzed.datasets[name].kinds)} for name in some}
        metadata = columns if len(fuzzed.log[0]) % 2 else None
        fuzzed.write(operation, fuzzed.draw_elements(some, 0.5), partition_on=keys, metadata=metadata)


def index_more(fuzzed: FuzzedCube) -> None:
    """Build an index that the cube did not ask for, sometimes of a column with nulls."""
    for name, ds in fuzzed.datasets.items():
        known = {*ds.indexed, *ds.partition_on}
        columns = [c for c, kind in ds.kinds.items() if kind in KEYS and c not in known and c in ds.typed]
        if columns and fuzzed.draw.random() < 0.15:
            column = fuzzed.draw.choice(columns)
            fuzzed.log.append(f"index {name} {column}")
            eager.build_dataset_indices(fuzzed.store, fuzzed.cube.ktk_dataset_uuid(name), [column])
            ds.indexed |= {column}
            if column not in fuzzed.pools:
                fuzzed.cube = fuzzed.cube.copy(index_columns=fuzzed.cube.index_columns | {column})


def change(fuzzed: FuzzedCube) -> None:
    draw, cube, datasets = fuzzed.draw, fuzzed.cube, fuzzed.datasets
    names = draw.sample(list(datasets), draw.randint(1, len(datasets)))
    literals = [
        (column, draw.choice(list(COMPARE)), draw.choice(fuzzed.pools[column]))
        for column in cube.partition_columns
        if draw.random() < 0.6
    ]
    conditions = [make_condition(draw, literal) for literal in literals] or None
    operation = draw.choice(["append"] * 4 + ["update"] * 2 + ["remove", "compact", "replace"])
    if operation == "append":
        fuzzed.write("append_to_cube", fuzzed.draw_elements(names, 0.3))
    elif operation == "update":
        elements = fuzzed.draw_elements(names, 0.3)
        if conditions:
            for name in names:
                datasets[name].remove(cube, literals)
        options = {"ktk_cube_dataset_ids": names, "rows_outside": "append"}
        fuzzed.write("update_cube", elements, remove_conditions=conditions, **options)
    elif operation == "remove" and conditions:
        fuzzed.log.append(f"remove {conditions} {names}")
        eager_cube.remove_partitions(cube, fuzzed.store, conditions, names)
        for name in names:
            datasets[name].remove(cube, literals)
    elif operation == "replace" and names[0] != "seed":
        ds = datasets[names[0]]
        ds.rows, ds.typed, ds.indexed = [], set(), frozenset(cube.index_columns & set(ds.kinds))
        ds.bits = {}
        elements, keys = fuzzed.draw_elements(names[:1], 0.5), {names[0]: list(ds.partition_on)}
        fuzzed.write("extend_cube", elements, partition_on=keys, overwrite=True)
    elif operation == "compact":
        fuzzed.log.append(f"compact {names}")
        eager_cube.compact_cube(cube, fuzzed.store, ktk_cube_dataset_ids=names)


# queries -----------------------------------------------------------------------------------------


def make_query(fuzzed: FuzzedCube) -> cube_model.Query:
    draw, cube = fuzzed.draw, fuzzed.cube
    names = None
    if draw.random() < 0.25:
        names = ("seed", *(name for name in fuzzed.datasets if name != "seed" and draw.random() < 0.5))
    chosen = {name: ds for name, ds in fuzzed.datasets.items() if names is None or name in names}
    kinds = {c: kind for ds in chosen.values() for c, kind in ds.kinds.items()}
    columns = sorted(kinds)
    dimensions = None
    if draw.random() < 0.3:
        dimensions = tuple(draw.sample(cube.dimension_columns, draw.randint(1, len(cube.dimension_columns))))
    dropped = set(cube.dimension_columns) - set(dimensions or cube.dimension_columns)
    partition_by: tuple[str, ...] = ()
    if draw.random() < 0.45:
        known = [c for c in columns if any(c in ds.indexed or c in ds.partition_on for ds in chosen.values())]
        partition_by = tuple(draw.sample(known, min(len(known), draw.choice([1, 1, 1, 2, 3]))))
    payload: tuple[str, ...] | None = None
    if dropped or draw.random() < 0.5:
        candidates = columns
        if dropped and draw.random() < 0.9:
            hidden = {c for ds in chosen.values() if dropped & set(ds.kinds) for c in ds.kinds}
            candidates = [c for c in columns if c not in hidden - set(cube.partition_columns)]
        payload = tuple(c for c in candidates if draw.random() < 0.4)
        if dropped and draw.random() < 0.9:
            partition_by = tuple(c for c in partition_by if c in {*candidates, *cube.dimension_columns})
    literals = []
    for _ in range(draw.choice([0, 0, 1, 1, 1, 2, 3])):
        usable = [c for c in columns if kinds[c] not in ("ints", "strs")]
        if dropped and draw.random() < 0.9:
            usable = [c for c in usable if c in {*candidates, *cube.dimension_columns}]
        if usable:
            literals.append(make_literal(fuzzed, draw.choice(usable), kinds))
    return cube_model.Query(tuple(literals), names, dimensions, partition_by, payload)


def make_literal(fuzzed: FuzzedCube, column: str, kinds: dict[str, str]) -> cube_model.Literal:
    draw = fuzzed.draw
    values = fuzzed.pools.get(column) or cube_model.KINDS[kinds[column]].values
    if kinds[column] == "null":
        values = (1, "a")
    elif draw.random() < 0.8:
        name = draw.choice([name for name, ds in fuzzed.datasets.items() if column in ds.kinds])
        stored = [row[column] for row in fuzzed.datasets[name].rows if row[column] is not None]
        values = stored or values
    op = draw.choice([*COMPARE, "in", "interval"])
    if op == "in":
        return column, op, tuple(draw.choice(values) for _ in range(draw.choice([0, 1, 2, 3])))
    if op == "interval":
        return column, op, tuple(draw.choice([None, draw.choice(values)]) for _ in range(2))
    return column, op, draw.choice(values)


def vary_value(draw: random.Random, value: Any) -> Any:
    """Give a value in another form that means the same."""
    if draw.random() < 0.6 or value is None:
        return value
    if isinstance(value, pd.Timestamp) and value.tzinfo is None:
        return draw.choice([value.to_datetime64(), value.to_pydatetime(), value.as_unit("us")])
    if type(value) is datetime.date:
        return draw.choice([value.isoformat(), value.isoformat().encode()])
    if isinstance(value, str):
        return draw.choice([value.encode(), np.str_(value)])
    if isinstance(value, bool):
        return np.bool_(value)
    return np.float64(value) if isinstance(value, float) else value


def make_condition(draw: random.Random, literal: cube_model.Literal) -> Condition:
    column, op, value = literal
    if op == "in":
        return C(column).isin(draw.choice([list, tuple])(vary_value(draw, v) for v in value))
    if op == "interval":
        return C(column).in_interval(*(vary_value(draw, v) for v in value))
    return COMPARE[op](C(column), vary_value(draw, value))


def make_arguments(fuzzed: FuzzedCube, query: cube_model.Query) -> dict[str, Any]:
    draw = fuzzed.draw
    conditions: Any = [make_condition(draw, literal) for literal in query.literals]
    form = draw.random()
    if form < 0.3:
        conditions = Conjunction(conditions)
    elif form < 0.5 and len(conditions) > 1:
        whole = conditions[0]
        for more in conditions[1:]:
            whole = whole & more
        conditions = whole
    elif form < 0.7 and len(conditions) == 1:
        conditions = conditions[0]
    elif not conditions and form < 0.9:
        conditions = None
    datasets: Any = query.datasets
    if datasets is not None:
        form = draw.random()
        if form < 0.4:
            datasets = discover_datasets(fuzzed.cube, fuzzed.store, set(datasets))
        elif form < 0.7:
            datasets = set(datasets)
        elif len(datasets) == 1:
            datasets = datasets[0]
    payload: Any = query.payload
    if payload is not None:
        is_text = len(payload) == 1 and draw.random() < 0.5
        payload = payload[0] if is_text else draw.choice([set, list])(payload)
    by: Any = query.partition_by or None
    if by and len(by) == 1 and draw.random() < 0.5:
        by = by[0]
    return {
        "cube": fuzzed.cube,
        "store": fuzzed.store,
        "conditions": conditions,
        "datasets": datasets,
        "dimension_columns": query.dimensions,
        "partition_by": by,
        "payload_columns": payload,
    }


# façades -----------------------------------------------------------------------------------------


def query_by_tasks(**kwargs: Any) -> list[pd.DataFrame]:
    """Query with one task per group, each as another process gets it."""
    plan = plan_query(QueryFrames(**kwargs))
    context = pickle.loads(pickle.dumps(plan.context))
    return [df for task in plan.tasks() for df in run_frames(context, pickle.loads(pickle.dumps(task)))]


def query_by_packs(**kwargs: Any) -> list[pa.Table]:
    """Query with tasks of about equal size, as on a cluster; their order does not matter."""
    plan = plan_query(QueryFrames(**kwargs))
    tables = []
    for task in split_into_tasks(plan, 2, 2):
        context, task = pickle.loads(pickle.dumps((plan.context, task)))
        tables += run_task(context, task)
    return tables


def compare_packs(tables: list[pa.Table], expected: cube_model.Answer) -> str | None:
    """Compare the rows of all tasks, in any order."""
    got = sorted(repr([_repr(row[c]) for c in expected.columns]) for t in tables for row in t.to_pylist())
    rows = [row for group in expected.groups for row in group]
    wanted = sorted(repr([_repr(row[c]) for c in expected.columns]) for row in rows)
    return None if got == wanted else f"rows are {got[:20]} instead of {wanted[:20]}"


def _repr(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(value, float):
        return None if math.isnan(value) else value + 0.0  # -0.0 is 0.0
    is_stamp = hasattr(value, "hour") and hasattr(value, "year")
    return pd.Timestamp(value).as_unit("ns").value if is_stamp else value


def query_columns(columns: list[str], **kwargs: Any) -> list[pd.DataFrame]:
    """Query by a dask DataFrame of which only some columns are asked for."""
    ddf = query_cube_dataframe(**kwargs)[columns]
    parts = [ddf.partitions[n].compute(scheduler="sync") for n in range(ddf.npartitions)]
    return [df for df in parts if len(df)]


def check_query(fuzzed: FuzzedCube, query: cube_model.Query, counts: Counter[str], share: float) -> None:
    """Run a query on some façades, and compare the answers with that of the model."""
    draw = fuzzed.draw
    expected = cube_model.answer_query(fuzzed.cube, fuzzed.datasets, query)
    others = ("delayed", "bag_bs1", "bag_bs3", "dataframe", "arrow", "tasks", "packs", "columns")
    for name in ("eager", "iter", *[name for name in others if draw.random() < share]):
        kwargs = make_arguments(fuzzed, query)
        counts[name] += 1
        if expected is None:
            counts["refused"] += 1
            with pytest.raises(ValueError):
                run(name, kwargs, [])
            continue
        asked = expected.columns
        if name == "columns":
            asked = draw.sample(asked, draw.randint(1, len(asked)))
        with lower_thresholds(draw):
            found = run(name, kwargs, asked)
        wrong = compare_all(name, found, expected, asked)
        if name == "dataframe":
            wrong = wrong or compare_meta(query_cube_dataframe(**kwargs), expected)
        if wrong:
            raise AssertionError(f"{name}: {wrong}\n{query}\n{kwargs}")


def run(name: str, kwargs: dict[str, Any], asked: list[str]) -> list[Any]:
    if name in FACADES:
        return FACADES[name]().query_cube(**kwargs)
    if name == "columns":
        return query_columns(asked, **kwargs)
    return {"arrow": query_cube_arrow, "tasks": query_by_tasks, "packs": query_by_packs}[name](**kwargs)


def compare_all(name: str, found: list[Any], expected: cube_model.Answer, asked: Sequence[str]) -> str | None:
    if name == "packs":
        return compare_packs(found, expected)
    if len(found) != len(expected.groups):
        return f"{len(found)} groups instead of {len(expected.groups)}: {found} instead of {expected.groups}"
    expected = cube_model.Answer(list(asked), expected.kinds, expected.bits, expected.groups)
    for number, part in enumerate(found):
        compare_one = cube_model.compare_table if name == "arrow" else cube_model.compare
        wrong = compare_one(part, expected, number)
        if wrong:
            return f"group {number}: {wrong}"
        if isinstance(part, pd.DataFrame) and number == 0 and len(found) > 1:
            overwrite(part)  # what follows must not change with it
    return None


def compare_meta(ddf: Any, expected: cube_model.Answer) -> str | None:
    """Compare the types that a dask DataFrame announces with those of the schema."""
    got = {str(column): str(dtype) for column, dtype in ddf.dtypes.items()}
    wanted = {column: cube_model.type_of(expected, column) for column in expected.columns}
    same = all(got.get(c) in {dtype, cube_model.nullable_type(dtype)} for c, dtype in wanted.items())
    if same and got.keys() == wanted.keys():
        return None
    return f"the types are announced as {got} instead of {wanted}"


def overwrite(df: pd.DataFrame) -> None:
    for column in df.columns:
        if isinstance(df[column].dtype, np.dtype) and df[column].dtype.kind in "iuf":
            df.loc[:, column] = df[column].to_numpy()[::-1].copy()
        elif df[column].dtype == "datetime64[ns]":
            df.loc[:, column] = df[column].array[::-1].copy()


def run_case(number: int, directory: Path, counts: Counter[str], queries: int, share: float) -> None:
    """
    Make the cube of a number, and query it: eagerly and by iterators, by a share of them all other ways.

    Cubes with even numbers are in a directory of their own, below the given one, others in memory.
    """
    draw = random.Random(number)
    place = directory / str(number)
    store = memory(place) if number % 2 else local(place)
    fuzzed = make_cube(draw, store)
    counts["cubes"] += 1
    try:
        with limit_threads(1):
            fill(fuzzed)
        for _ in range(queries):
            counts["queries"] += 1
            check_query(fuzzed, make_query(fuzzed), counts, share)
    except BaseException as error:
        error.add_note(f"case {number}\n" + "\n".join(fuzzed.log))
        raise
    opened = store()  # many cubes would fill the memory
    for key in list(opened.keys()):
        opened.delete(key)
