"""Join strategies: where each applies, and that all give the rows of a lookup join."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
import pytest

from kartothek_cube.io_components.query import join as joins
from kartothek_cube.io_components.query.logical_plan import Role
from kartothek_cube.io_components.query.physical_plan import DatasetScan
from kartothek_cube.io_components.query.row_batch import RowBatch

X = [x for x in range(20) for _ in range(4)]
Y = [0, 1, 2, 3] * 20


def scan_of(dimensions, payload, role):
    return DatasetScan(
        name=role,
        uuid=role,
        table="table",
        schema=pa.schema([(c, pa.int64()) for c in (*dimensions, payload)]),
        partition_keys=(),
        alignment=(),
        dimensions=tuple(dimensions),
        columns=(*dimensions, payload),
        payload=(payload,),
        predicates=(),
        dimension_predicates=(),
        role=role,
    )


def batch_of(cells, payload, role, *, is_sorted=True):
    """Rows of one file with their number as payload."""
    length = len(next(iter(cells.values())))
    return RowBatch(
        scan=scan_of(cells, payload, role),
        table=pa.table({**cells, payload: list(range(length))}),
        counts=np.array([length]),
        keys={},
        partition_ids=np.array([0]),
        sorted=is_sorted,
    )


SEED = batch_of({"x": X, "y": Y}, "v", Role.SEED)
FEW = {"x": [3, 7, 30], "y": [2, 0, 0]}
STRATEGIES = {
    "zip": (joins.zip_join, SEED, batch_of({"x": X, "y": Y}, "w", Role.LEFT)),
    "search": (joins.search_join, SEED, batch_of(FEW, "w", Role.RESTRICTED)),
    "search, unsorted": (
        joins.search_join,
        SEED,
        batch_of({c: values[::-1] for c, values in FEW.items()}, "w", Role.RESTRICTED, is_sorted=False),
    ),
    "reverse search": (
        joins.reverse_search_join,
        batch_of(FEW, "v", Role.SEED),
        batch_of({"x": X, "y": Y}, "w", Role.LEFT),
    ),
    "run lookup": (joins.run_lookup_join, SEED, batch_of({"x": [3, 5, 9]}, "w", Role.LEFT)),
    "run lookup, inner": (joins.run_lookup_join, SEED, batch_of({"x": [3, 5, 9]}, "w", Role.RESTRICTED)),
    "run lookup, complete": (
        joins.run_lookup_join,
        SEED,
        batch_of({"x": list(range(20))}, "w", Role.RESTRICTED),
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_gives_the_rows_of_a_lookup_join(name):
    strategy, left, right = STRATEGIES[name]
    joined, expected = strategy(left, right), joins.lookup_join(left, right)
    assert joined.table.to_pydict() == expected.table.to_pydict()
    assert joined.counts.tolist() == expected.counts.tolist()
    assert joins.join(left, right).table.equals(joined.table)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_join_leaves_its_arguments_as_they_are(name):
    _, left, right = STRATEGIES[name]
    before = attrs.evolve(left, counts=left.counts.copy()), attrs.evolve(right, counts=right.counts.copy())
    joins.join(left, right)
    for batch, copy in zip((left, right), before, strict=True):
        assert batch.table is copy.table
        assert batch.counts.tolist() == copy.counts.tolist()


@pytest.mark.parametrize(
    "strategy, left, right",
    [
        (joins.zip_join, SEED, batch_of({"x": X, "y": Y[::-1]}, "w", Role.LEFT)),
        (joins.zip_join, SEED, batch_of(FEW, "w", Role.LEFT)),
        (joins.search_join, SEED, batch_of(FEW, "w", Role.LEFT)),
        (joins.search_join, attrs.evolve(SEED, sorted=False), batch_of(FEW, "w", Role.RESTRICTED)),
        (joins.search_join, SEED, batch_of({"x": X[:40], "y": Y[:40]}, "w", Role.RESTRICTED)),
        (joins.reverse_search_join, SEED, batch_of({"x": X, "y": Y}, "w", Role.LEFT)),
        (joins.run_lookup_join, SEED, batch_of({"y": [1, 2]}, "w", Role.LEFT)),
        (joins.run_lookup_join, attrs.evolve(SEED, sorted=False), batch_of({"x": [1, 2]}, "w", Role.LEFT)),
        (joins.run_lookup_join, SEED, batch_of({"x": X, "y": Y}, "w", Role.LEFT)),
    ],
)
def test_a_strategy_that_does_not_apply(strategy, left, right):
    assert strategy(left, right) is None
    assert joins.join(left, right).table.equals(joins.lookup_join(left, right).table)
