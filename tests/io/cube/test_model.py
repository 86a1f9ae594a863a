"""A cube against a model in pandas: random changes and queries, invariants after each step."""

import operator
import pickle
from functools import partial
from typing import Any

import pandas as pd
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kartothek_cube.api.cube import C, Cube, eager_cube, publish_staged
from kartothek_cube.core.errors import MultiTableCommitAborted
from tests.support import cubes
from tests.support.cubes import as_dict, file_keys, memory, rows
from tests.support.stores import Same

CUBE = Cube(["x", "y"], ["p"], "cube", index_columns=["i1", "i2"])
#: the columns that make a cell of a dataset, and its payload
CELL = {"seed": ["p", "x", "y"], "enrich": ["p", "x", "y"], "extra": ["p", "x", "y"], "whole": ["x"]}
PAYLOAD = {"seed": ["i1"], "enrich": ["i2"], "extra": ["k", "w"], "whole": ["v"]}
PARTITION_ON = {"seed": ["p"], "enrich": ["p"], "extra": ["k", "p"], "whole": []}

numbers = st.integers(0, 2)
texts = st.sampled_from("ab")
VALUES = {**dict.fromkeys(["x", "y", "p", "i1", "i2", "w"], numbers), "k": texts, "v": texts}
ids = st.sampled_from(sorted(CELL))


def frames(id_: str) -> st.SearchStrategy[pd.DataFrame]:
    """Give frames of a dataset with cells that occur once, in any order; only ``v`` has nulls."""
    payload = [VALUES[name] | st.none() if name == "v" else VALUES[name] for name in PAYLOAD[id_]]
    keys = st.tuples(*[numbers] * len(CELL[id_]))
    columns = [*CELL[id_], *PAYLOAD[id_]]

    def make(found):
        values = zip(columns, zip(*((*cell, *found[cell]) for cell in found)))
        return pd.DataFrame(
            {name: pd.Series(v, dtype=object if name in ("k", "v") else None) for name, v in values}
        )

    return st.dictionaries(keys, st.tuples(*payload), min_size=1, max_size=6).map(make)


def some(ids_: st.SearchStrategy[set[str]]) -> st.SearchStrategy[dict[str, pd.DataFrame]]:
    """Give frames of some datasets."""
    return ids_.flatmap(lambda names: st.fixed_dictionaries({name: frames(name) for name in sorted(names)}))


OPERATORS = [operator.eq, operator.ne, operator.lt, operator.ge]


def literals_on(column: str) -> st.SearchStrategy[tuple]:
    """Give conditions on a column as column, operator and value."""
    return st.tuples(st.just(column), st.sampled_from(OPERATORS), VALUES[column])


def queries() -> st.SearchStrategy[tuple]:
    """Give conditions, columns to group by, and payload."""
    return st.tuples(
        st.lists(st.sampled_from(list(VALUES)).flatmap(literals_on), max_size=2),
        st.sampled_from([None, None, None, "p", "x", "i1", "i2", "k"]),
        st.none() | st.sets(st.sampled_from(sorted(VALUES))),
    )


#: what may happen in a step; some things more often than others
CHANGES = ["append"] * 5 + ["update"] * 3 + ["remove_partitions", "extend", "build", "delete", "cleanup"]


class Staged:
    """Each write is staged, read, and published by another process; what is read stays the same."""

    def __getattr__(self, name):
        if name not in eager_cube.__all__:
            # what hypothesis asks for
            raise AttributeError(name)

        def write(*args, **kwargs):
            (store,) = [argument for argument in args if isinstance(argument, Same)]
            staged = pickle.loads(pickle.dumps(getattr(eager_cube, name)(*args, publish=False, **kwargs)))
            seen = eager_cube.query_cube(CUBE, store, as_of=staged)
            publish_staged(staged, store)
            assert list(map(as_dict, seen)) == list(map(as_dict, eager_cube.query_cube(CUBE, store)))

        return write


def partition_on(data):
    return {name: PARTITION_ON[name] for name in data}


class CubeMachine(RuleBasedStateMachine):
    """Does all twice: with the cube in the store, and with a frame per dataset, rows in order of commit."""

    #: has the functions that write
    writes: Any = eager_cube

    def __init__(self) -> None:
        super().__init__()
        self.store = Same.of(memory())
        self.model: dict[str, pd.DataFrame] = {}

    @initialize(data=some(st.just(set(CELL))))
    def start(self, data):
        self.writes.build_cube(data, CUBE, self.store, partition_on=PARTITION_ON)
        self.model = dict(data)

    @rule(data=st.data(), change=st.sampled_from(CHANGES))
    def change(self, data, change):
        if "seed" not in self.model and change != "cleanup":
            change = "build"
        getattr(self, change)(data.draw)
        self.check_store()

    # changes -----------------------------------------------------------------------------------------

    def build(self, draw):
        data = draw(some(st.sets(ids).map(lambda names: names | {"seed", *self.model})))
        left_out = draw(st.sampled_from(["", "", *sorted(self.model)]))
        data = {name: df for name, df in data.items() if name != left_out}
        overwrite = draw(st.booleans())
        error = ValueError if left_out else RuntimeError if self.model and not overwrite else None
        if self.succeeds("build_cube", error, data, overwrite=overwrite, partition_on=partition_on(data)):
            self.model = dict(data)

    def extend(self, draw):
        data = draw(some(st.sets(st.sampled_from(["enrich", "extra", "whole"]))))
        overwrite = draw(st.booleans())
        error = RuntimeError if set(data) & set(self.model) and not overwrite else None
        if self.succeeds("extend_cube", error, data, overwrite=overwrite, partition_on=partition_on(data)):
            self.model.update(data)

    def append(self, draw):
        data = draw(some(st.sets(ids, min_size=1)))
        if self.succeeds("append_to_cube", ValueError if set(data) - set(self.model) else None, data):
            self.add(data)

    def update(self, draw):
        names = draw(st.sets(st.sampled_from(sorted(self.model)), min_size=1))
        data = draw(some(st.sets(st.sampled_from(sorted(names)))))
        partition = draw(st.none() | numbers)
        conditions = None if partition is None else C("p") == partition
        kept = {name: self.without(name, partition) for name in names}
        is_emptied = any(len(kept[name]) == 0 and name not in data for name in names)
        arguments = {"remove_conditions": conditions, "datasets": sorted(names), "rows_outside": "append"}
        if self.succeeds("update_cube", MultiTableCommitAborted if is_emptied else None, data, **arguments):
            self.model.update(kept)
            self.add(data)

    def remove_partitions(self, draw):
        names = draw(st.sets(st.sampled_from(sorted(self.model))))
        partition = draw(numbers)
        self.writes.remove_partitions(CUBE, self.store, C("p") == partition, names)
        self.model.update({name: self.without(name, partition) for name in names})

    def delete(self, draw):
        names = draw(st.none() | st.sets(ids, max_size=1))
        eager_cube.delete_cube(CUBE, self.store, names)
        left = set() if names is None else set(self.model) - names
        self.model = {name: df for name, df in self.model.items() if name in left}

    def cleanup(self, draw):
        eager_cube.cleanup_cube(CUBE, self.store)
        tracked = set()
        for uuid in (f"cube++{name}" for name in self.model):
            tracked |= {f"{uuid}.by-dataset-metadata.json", f"{uuid}/table/_common_metadata"}
            tracked |= set(file_keys(self.store, uuid).values())
            tracked |= set(cubes.header(self.store, uuid).get("indices", {}).values())
        assert cubes.keys(self.store) == tracked

    # queries -----------------------------------------------------------------------------------------

    @precondition(lambda self: "seed" in self.model)
    @rule(queries=st.lists(queries(), min_size=2, max_size=5))
    def query(self, queries):
        for literals, partition_by, payload in queries:
            self.compare(literals, partition_by, payload)

    def compare(self, literals, partition_by, payload):
        present = {name for df in self.model.values() for name in df}
        literals = [literal for literal in literals if literal[0] in present]
        partition_by = partition_by if partition_by in present else None
        payload = None if payload is None else payload & present
        conditions = [compare(C(column), value) for column, compare, value in literals]
        arguments = {"partition_by": partition_by, "payload_columns": payload}
        found = eager_cube.query_cube(CUBE, self.store, conditions, **arguments)
        wanted = present if payload is None else {*payload, "x", "y", "p", partition_by} & present
        expected = self.rows(literals, partition_by)[sorted(wanted)]
        if partition_by is None:
            assert rows(found) == (as_dict(expected) if len(expected) else None)
        else:
            assert [as_dict(df) for df in found] == [as_dict(df) for _, df in expected.groupby(partition_by)]

    # invariants --------------------------------------------------------------------------------------

    def check_store(self):
        """Every file that a header names is there, indices fit the files, all rows are there."""
        assert cubes.dataset_ids(self.store, CUBE) == set(self.model)
        cubes.check_integrity(self.store, CUBE)
        stats = eager_cube.collect_stats(CUBE, self.store) if self.model else {}
        expected = {name: len(df) for name, df in self.model.items() if len(df)}
        assert {name: stats[name]["rows"] for name in stats if stats[name]["rows"]} == expected

    # the model -----------------------------------------------------------------------------------

    def succeeds(self, operation, error, data, **arguments):
        """Write, and say whether that is expected to succeed."""
        write = partial(getattr(self.writes, operation), data, CUBE, self.store, **arguments)
        if error is None:
            write()
        else:
            with cubes.unchanged(self.store, garbage=operation == "update_cube"), pytest.raises(error):
                write()
        return error is None

    def add(self, data):
        for name, df in data.items():
            self.model[name] = pd.concat([self.model[name], df], ignore_index=True)

    def without(self, name, partition):
        """Give the rows that stay: none if the dataset is not partitioned by ``p``."""
        df = self.model[name]
        if partition is None:
            return df
        return df[df["p"] != partition] if "p" in df else df[:0]

    def rows(self, literals, partition_by):
        """Give what a query has to give: visible rows, filtered, joined, sorted."""
        result = None
        restricting = {column for column, _, _ in literals} | {partition_by}
        for name in sorted(self.model, key=lambda name: name != "seed"):
            df = self.model[name].drop_duplicates(CELL[name], keep="last")
            for column, compare, value in literals:
                if column in df:
                    df = df[df[column].notna()]
                    df = df[compare(df[column], value)]
            how = "left" if restricting.isdisjoint(PAYLOAD[name]) else "inner"
            result = df if result is None else result.merge(df, on=CELL[name], how=how)
        return result.sort_values(["x", "y", "p"])


class StagedMachine(CubeMachine):
    """The same with staged writes."""

    writes = Staged()


@pytest.mark.slow("random sequences of staged writes")
class TestStaged(StagedMachine.TestCase):
    settings = settings(max_examples=4, stateful_step_count=8, deadline=None)


class TestCube(CubeMachine.TestCase):
    settings = settings(max_examples=5, stateful_step_count=10, deadline=None)


@pytest.mark.slow("20 random sequences of 10 operations")
class TestCubeForLonger(CubeMachine.TestCase):
    settings = settings(max_examples=20, stateful_step_count=10, deadline=None)
