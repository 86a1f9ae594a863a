"""Groups of a read that is dispatched by indexed columns: their values, and partitions that can hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.array_types import Ints
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import index_rows
from kartothek_cube.core.expressions.predicate import PredicatesType
from kartothek_cube.io_components.kernels.encode import group_codes

__all__ = ("Group", "check_dispatch", "dispatch_groups")

#: values of the dispatch columns, and positions of the partitions in commit order
Group: TypeAlias = tuple[tuple[Any, ...], Ints]


def check_dispatch(dataset: DatasetMetadata, dispatch_by: Sequence[str]) -> None:
    """Raise RuntimeError if a column has no index."""
    if not set(dispatch_by) <= dataset.index_columns:
        raise RuntimeError(
            f"Dispatch columns must be indexed. Requested: {', '.join(dispatch_by)}; available in dataset "
            f"{dataset.uuid!r}: {', '.join(sorted(dataset.index_columns)) or 'none'}"
        )


def dispatch_groups(
    dataset: DatasetMetadata, dispatch_by: Sequence[str], predicates: PredicatesType
) -> list[Group]:
    """Combinations of indexed values that meet the predicates, sorted; their indices are loaded."""
    positions, values = index_rows(dataset.load_partition_indices(), dispatch_by, predicates)
    if not len(positions):
        return []
    columns = list(values.values())
    codes = group_codes(columns, len(positions))
    order = np.lexsort([positions, codes])
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    first_rows = pa.array(order[starts])
    members = np.split(positions[order], starts[1:])
    tuples = (
        zip(*(column.take(first_rows).to_pylist() for column in columns), strict=True) if columns else [()]
    )
    return list(zip(tuples, members, strict=True))
