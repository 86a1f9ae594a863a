"""Random sequences of operations on a cube beside a model in plain Python: newest, older and staged states.

Each operation calls a function of cubes and changes the model. Then the newest state, older ones by version,
time and token, the changes since these, and a query with a condition are compared with the model, and the
cube is verified. ``KARTOTHEK_CUBE_HISTORIES`` sets the number of sequences.
"""

import copy
import datetime
import operator
import os
import pickle
import random
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
import pytest

from kartothek_cube import ensure_store, read_table
from kartothek_cube.api import cube as api
from kartothek_cube.core.errors import MultiTableCommitAborted

HISTORIES, OPERATIONS = int(os.environ.get("KARTOTHEK_CUBE_HISTORIES", "100")), 16
DTYPES = {"int": "Int64", "float": "float64", "text": object, "time": "datetime64[ns]"}
VALUES = {
    "int": range(-3, 9),
    "float": (-1.5, 0.0, 2.25, 7.0),
    "text": ("", "a", "bb", "zé"),
    "time": tuple(pd.date_range("2020-01-01", periods=9, freq="7h")),
}
#: payload of the datasets; "wide" lacks a dimension, "computed" follows from the seed
PAYLOAD = {
    "seed": {"v": "int", "t": "text"},
    "enrich": {"w": "float", "s": "time"},
    "wide": {"k": "text"},
    "computed": {"c": "float"},
}
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.ge)

Cell = tuple[Any, ...]
Values = dict[str, Any]


class Dataset:
    """Key columns, payload columns by kind, and the newest values of each cell."""

    def __init__(self, name: str, partition_columns: list[str], rows: dict[Cell, Values]) -> None:
        self.keys = ["x", *(["y"] if name != "wide" else []), *partition_columns]
        self.columns, self.rows = dict(PAYLOAD[name]), rows

    def project(self, row: Values) -> Cell:
        return tuple(row[key] for key in self.keys)

    def frame(self, cells: dict[Cell, Values], columns: Iterable[str]) -> pd.DataFrame:
        data = {key: [cell[i] for cell in cells] for i, key in enumerate(self.keys)}
        payload = {c: [row[c] for row in cells.values()] for c in columns}
        series = {c: pd.Series(v, dtype=DTYPES[self.columns[c]]) for c, v in payload.items()}
        return pd.DataFrame(data | series)


Model = dict[str, Dataset]


def plain(value: Any) -> Any:
    return None if pd.isna(value) else pd.Timestamp(value) if hasattr(value, "year") else value


def joined(model: Model) -> list[Values]:
    rows = []
    for cell, payload in model["seed"].rows.items():
        row = dict(zip(model["seed"].keys, cell, strict=True)) | payload
        for dataset in (dataset for name, dataset in model.items() if name != "seed"):
            row |= dataset.rows.get(dataset.project(row)) or dict.fromkeys(dataset.columns)
        rows.append({column: plain(value) for column, value in row.items()})
    return sorted(rows, key=lambda row: (row["x"], row["y"]))


def records(df: pd.DataFrame) -> list[Values]:
    rows = [{c: plain(v) for c, v in row.items()} for row in df.astype(object).to_dict("records")]
    return sorted(rows, key=lambda row: (row["x"], row["y"]))


def double(df: pd.DataFrame) -> pd.DataFrame:
    return df.assign(c=df.pop("v").astype("Float64") * 2)


class History:
    """A cube, its model, and the states to which later ones are compared."""

    def __init__(self, seed: int, directory: str) -> None:
        self.random = random.Random(seed)
        self.partition_columns = self.random.choice([["p"], ["p", "q"]])
        self.ys = self.random.choice(["abcd", [datetime.date(2020, 1, day) for day in range(1, 5)]])
        url = self.random.choice(["hmemory://", f"hfs://{directory}?create_if_missing=true"])
        self.cube, self.store = api.Cube(["x", "y"], self.partition_columns, "cube"), ensure_store(url)
        self.model: Model = {}
        #: argument `as_of`, and the model
        self.states: list[tuple[Any, Model]] = []
        self.n_columns = 0
        self.build()

    def cells(self, name: str, columns: dict[str, str] | None = None) -> dict[Cell, Values]:
        """Random cells, some of them stored ones."""
        dataset = self.model.get(name) or Dataset(name, self.partition_columns, {})
        cells = {}
        for _ in range(self.random.randrange(1, 9)):
            x = self.random.randrange(6)
            # a cell lies in one partition
            cell = dataset.project({"x": x, "y": self.random.choice(self.ys), "p": x % 3, "q": "uv"[x % 2]})
            if dataset.rows and self.random.random() < 0.5:
                cell = self.random.choice([*dataset.rows])
            kinds = dataset.columns if columns is None else columns
            cells[cell] = {c: self.random.choice([None, *VALUES[kind]]) for c, kind in kinds.items()}
        return cells

    def choose(self) -> list[str]:
        names = [name for name in self.model if name != "computed" and self.random.random() < 0.6]
        return names or ["seed"]

    def write(
        self, function: Callable[..., Any], *arguments: Any, change: Callable[[Model], None], **options: Any
    ) -> None:
        """Write at once, or stage the write, read it, and publish or discard it."""
        if self.random.random() < 0.7:
            function(*arguments, **options)
            change(self.model)
            return
        staged = pickle.loads(pickle.dumps(function(*arguments, publish=False, **options)))
        model = copy.deepcopy(self.model)
        change(model)
        assert records(api.query_cube_df(self.cube, self.store, as_of=staged)) == joined(model)
        assert records(api.query_cube_df(self.cube, self.store)) == joined(self.model)
        if self.random.random() < 0.8:
            api.publish_staged(staged, self.store)
            self.model = model
        else:
            api.discard_staged(staged, self.store)

    # operations --------------------------------------------------------------------------------------

    def build(self) -> None:
        names = {"seed": None, "enrich": None, **self.model}
        cells = {name: self.cells(name, PAYLOAD[name]) for name in names}
        model = {name: Dataset(name, self.partition_columns, cells[name]) for name in names}
        data = {name: dataset.frame(dataset.rows, dataset.columns) for name, dataset in model.items()}
        partition_on = dict.fromkeys(names, self.partition_columns)
        api.build_cube(data, self.cube, self.store, overwrite=bool(self.model), partition_on=partition_on)
        self.model = model

    def extend(self) -> None:
        name = self.random.choice(["enrich", "wide"])
        dataset = Dataset(name, self.partition_columns, self.cells(name, PAYLOAD[name]))
        self.write(
            api.extend_cube,
            {name: dataset.frame(dataset.rows, dataset.columns)},
            self.cube,
            self.store,
            overwrite=name in self.model,
            partition_on={name: self.partition_columns},
            change=lambda model: model.update({name: copy.deepcopy(dataset)}),
        )

    def append(self) -> None:
        cells = {name: self.cells(name) for name in self.choose()}
        data = {name: self.model[name].frame(own, self.model[name].columns) for name, own in cells.items()}

        def change(model: Model) -> None:
            for name, own in cells.items():
                model[name].rows |= copy.deepcopy(own)

        self.write(api.append_to_cube, data, self.cube, self.store, change=change)

    def merge(self) -> None:
        (name, *_) = self.choose()
        dataset = self.model[name]
        columns = [c for c in dataset.columns if self.random.random() < 0.7] or [*dataset.columns]
        cells = self.cells(name)
        if len(columns) < len(dataset.columns):  # of cells that are new, all columns are required
            cells = {cell: row for cell, row in cells.items() if cell in dataset.rows}

        def change(model: Model) -> None:
            for cell, row in cells.items():
                model[name].rows[cell] = model[name].rows.get(cell, {}) | {c: row[c] for c in columns}

        df = dataset.frame(cells, columns)
        self.write(api.merge_into_cube, df, self.cube, self.store, name, change=change)

    def update(self) -> None:
        p, names = self.random.randrange(3), self.choose()
        cells = {name: self.cells(name) for name in names if self.random.random() < 0.7}
        data = {name: self.model[name].frame(own, self.model[name].columns) for name, own in cells.items()}

        def change(model: Model) -> None:
            self.remove_from(model, names, p)
            for name, own in cells.items():
                model[name].rows |= copy.deepcopy(own)

        arguments = data, self.cube, self.store, api.C("p") == p, names
        self.write(api.update_cube, *arguments, rows_outside="append", change=change)

    def remove_partitions(self) -> None:
        p, names = self.random.randrange(3), self.choose()
        arguments = self.cube, self.store, api.C("p") == p, names
        self.write(api.remove_partitions, *arguments, change=lambda model: self.remove_from(model, names, p))

    def remove_from(self, model: Model, names: list[str], p: int) -> None:
        for dataset in map(model.__getitem__, names):
            position = dataset.keys.index("p")
            dataset.rows = {cell: row for cell, row in dataset.rows.items() if cell[position] != p}

    def delete_rows(self) -> None:
        condition, matches = self.condition()

        def change(model: Model) -> None:
            rows = joined(model)
            for dataset in model.values():
                kept = {dataset.project(row) for row in rows if not matches(row)}
                deleted = {dataset.project(row) for row in rows} - kept
                self.keep(dataset, lambda cell, deleted=deleted: cell not in deleted)

        self.write(api.delete_rows, self.cube, self.store, condition, change=change)
        # rows without a cell of the seed are deleted with all rows of their partition, and stay otherwise
        for name, dataset in self.model.items():
            stored = {dataset.project(row) for row in self.read(name)}
            self.keep(dataset, stored.__contains__)

    def keep(self, dataset: Dataset, is_kept: Callable[[Cell], bool]) -> None:
        dataset.rows = {cell: row for cell, row in dataset.rows.items() if is_kept(tuple(map(plain, cell)))}

    def read(self, name: str) -> list[Values]:
        rows = read_table(f"cube++{name}", self.store, dates_as_object=True)
        return [{c: plain(v) for c, v in row.items()} for row in rows.to_dict("records")]

    def compact(self) -> None:
        api.compact_cube(self.cube, self.store)

    def build_statistics(self) -> None:
        columns = [c for dataset in self.model.values() for c in dataset.columns]
        api.build_column_statistics(self.cube, self.store, self.random.sample(columns, 2))

    def change_schema(self) -> None:
        (name, *_) = self.choose()
        dataset, self.n_columns = self.model[name], self.n_columns + 1
        new, old = f"n{self.n_columns}", self.random.choice([*dataset.columns])
        change = self.random.choice(["rename", "add", "drop"])
        if change == "rename":
            api.update_schema(self.cube, self.store, name, rename={old: new})
            dataset.columns[new] = dataset.columns.pop(old)
            for row in dataset.rows.values():
                row[new] = row.pop(old)
        elif change == "add":
            default = self.random.choice([None, 5])
            defaults = None if default is None else {new: default}
            api.update_schema(self.cube, self.store, name, add={new: "int64"}, defaults=defaults)
            dataset.columns[new] = "int"
            for row in dataset.rows.values():
                row[new] = default
        elif len(dataset.columns) > 1:
            api.update_schema(self.cube, self.store, name, drop=old)
            del dataset.columns[old]
            for row in dataset.rows.values():
                del row[old]

    def compute(self) -> None:
        if "v" not in self.model["seed"].columns or not self.model["seed"].rows:
            return
        api.compute_dataset(double, self.cube, self.store, "computed", payload_columns="v")
        computed = Dataset("computed", self.partition_columns, {})
        for cell, row in self.model["seed"].rows.items():
            computed.rows[cell] = {"c": None if row["v"] is None else 2.0 * row["v"]}
        self.model["computed"] = computed

    def rollback(self) -> None:
        as_of, model = self.random.choice(self.states)
        api.rollback_cube(self.cube, self.store, as_of)
        self.model = copy.deepcopy(model)

    def copy(self) -> None:
        target = ensure_store("hmemory://")
        api.copy_cube(self.cube, self.store, target)
        assert records(api.query_cube_df(self.cube, target)) == joined(self.model)
        assert api.verify_cube(self.cube, target).ok

    def clean_up(self) -> None:
        api.cleanup_cube(self.cube, self.store, retention=datetime.timedelta())
        self.states.clear()

    # checks ------------------------------------------------------------------------------------------

    def condition(self) -> tuple[Any, Callable[[Values], bool]]:
        dataset = self.model[self.random.choice([*self.model])]
        column = self.random.choice([*dataset.columns, "x", "p"])
        value = self.random.choice(VALUES[dataset.columns.get(column, "int")])
        compare = self.random.choice(COMPARISONS)
        condition = compare(api.C(column), value)
        return condition, lambda row: row[column] is not None and compare(row[column], value)

    def note(self) -> None:
        version = api.list_cube_history(self.cube, self.store)[-1].version
        token = api.list_cube_changes(self.cube, self.store).token
        as_of = self.random.choice([version, datetime.datetime.now(datetime.UTC), token])
        self.states.append((as_of, copy.deepcopy(self.model)))

    def check(self) -> None:
        rows = joined(self.model)
        assert records(api.query_cube_df(self.cube, self.store)) == rows
        condition, matches = self.condition()
        found = api.query_cube_df(self.cube, self.store, condition)
        assert records(found) == [row for row in rows if matches(row)]
        for as_of, model in self.random.sample(self.states, min(2, len(self.states))):
            assert records(api.query_cube_df(self.cube, self.store, as_of=as_of)) == joined(model)
            changed = records(api.query_cube_df(self.cube, self.store, changed_since=as_of))
            assert [row for row in changed if row not in rows] == []
            # columns without values are no change
            old = [{c: v for c, v in row.items() if v is not None} for row in joined(model)]
            is_new = [{c: v for c, v in row.items() if v is not None} not in old for row in rows]
            assert [row for row, new in zip(rows, is_new, strict=True) if new and row not in changed] == []
        assert api.verify_cube(self.cube, self.store).ok


OPERATION_NAMES = (
    *["append"] * 4,
    *["merge", "update", "change_schema"] * 3,
    *["delete_rows", "extend", "compact", "rollback", "compute"] * 2,
    *("remove_partitions", "build_statistics", "copy", "clean_up", "build"),
)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_each_state_is_that_of_the_model(seed, tmp_path):
    history = History(seed, str(tmp_path))
    for _ in range(OPERATIONS):
        history.note()
        name = history.random.choice(OPERATION_NAMES)
        before = copy.deepcopy(history.model)
        try:
            getattr(history, name)()
        except (ValueError, MultiTableCommitAborted) as error:
            # refused by a rule of cubes; nothing has changed
            print(f"{name}: {error}")  # noqa: T201 (shown by -rP)
            history.model = before
        history.check()
