"""Joins of rows in memory against brute force."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kartothek_cube.io_components.query.executor import RowBatch, join
from kartothek_cube.io_components.query.logical_plan import Role
from kartothek_cube.io_components.query.physical_plan import DatasetScan

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
        is_sorted=is_sorted,
    )


SEED = batch_of({"x": X, "y": Y}, "v", Role.SEED)
FEW = {"x": [3, 7, 30], "y": [2, 0, 0]}
OTHERS = {
    "equal cells": {"x": X, "y": Y},
    "equal cells in another order": {"x": X[::-1], "y": Y[::-1]},
    "few cells": FEW,
    "few cells in another order": {c: values[::-1] for c, values in FEW.items()},
    "a cell twice": {"x": [3, 7, 3], "y": [2, 0, 2]},
    "half of the cells": {"x": X[:40], "y": Y[:40]},
    "fewer dimensions": {"x": [3, 5, 9]},
    "no cells": {"x": [], "y": []},
}


@pytest.mark.parametrize("role", [Role.LEFT, Role.RESTRICTED])
@pytest.mark.parametrize("name", OTHERS)
def test_join(name, role):
    cells = {column: pa.array(values, pa.int64()) for column, values in OTHERS[name].items()}
    right = batch_of(cells, "w", role)
    joined = join(SEED, right)
    partners = {cell: n for n, cell in enumerate(zip(*OTHERS[name].values(), strict=True))}
    expected = [
        {"x": x, "y": y, "v": v, "w": partners.get((x, y) if "y" in cells else (x,))}
        for v, (x, y) in enumerate(zip(X, Y, strict=True))
    ]
    if role is Role.RESTRICTED:
        expected = [row for row in expected if row["w"] is not None]
    assert joined.table.to_pylist() == expected
    assert joined.counts.tolist() == [len(expected)]
    assert SEED.table.column_names == ["x", "y", "v"]
