"""Row groups of data files, from their footers, as rows of a frame."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import pyarrow as pa

from kartothek_cube.core.expressions.predicate import PredicatesType
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.read.dataset_read import plan_read
from kartothek_cube.serialization.ranged_read import read_footer

__all__ = ("no_row_groups", "plan_footers", "row_groups")

_TYPES = {
    "partition_label": "object",
    "row_group_id": "int64",
    "row_group_compressed_size": "int64",
    "row_group_uncompressed_size": "int64",
    "number_rows_total": "int64",
    "number_row_groups": "int64",
    "serialized_size": "int64",
    "number_rows_per_row_group": "int64",
}


def plan_footers(
    dataset: DatasetFactory, predicates: PredicatesType = None, frac: float = 1.0
) -> list[tuple[str, str]]:
    """Labels and keys of the files that predicates on indexed columns keep; or of a part, at least one."""
    if not 0 < frac <= 1:
        raise ValueError(f"frac is {frac}, but has to be larger than 0 and smaller than or equal to 1")
    plan = plan_read(factory=dataset, predicates=predicates)
    labels, files = plan.partitions.labels, plan.partitions.files[plan.context.table]
    length = len(labels)
    sample = sorted(random.sample(range(length), max(1, int(length * frac)))) if length else []
    rows = pa.array(sample, pa.int64())
    return list(zip(labels.take(rows).to_pylist(), files.take(rows).to_pylist(), strict=True))


def row_groups(store: StoreInput, label: str, key: str) -> pd.DataFrame:
    """Row groups of one file, numbered from 0; only its footer is read."""
    footer, _ = read_footer(open_blobs(store), key)
    rows = [
        (
            label,
            number,
            footer.row_group(number).total_byte_size,
            _uncompressed(footer.row_group(number)),
            footer.num_rows,
            footer.num_row_groups,
            footer.serialized_size,
            footer.row_group(number).num_rows,
        )
        for number in range(footer.num_row_groups)
    ]
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def _uncompressed(group: Any) -> int:
    return sum(group.column(number).total_uncompressed_size for number in range(group.num_columns))


def no_row_groups() -> pd.DataFrame:
    """The frame of :func:`row_groups` without rows."""
    return pd.DataFrame({column: pd.Series(dtype=dtype) for column, dtype in _TYPES.items()})
