"""The ``delete_scope`` of an update: which partitions it removes, as a predicate and as labels."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow.arrays import to_numpy
from kartothek_cube.core.arrow.casting import normalize_value
from kartothek_cube.core.cube.conditions import ConditionsInput, Conjunction, parse_conditions
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.errors import format_count, unknown_names
from kartothek_cube.core.expressions.literal import is_null_value
from kartothek_cube.core.expressions.predicate import ConjunctionType, expand, filter_mask
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.typing import StoreInput

__all__ = (
    "CallerLine",
    "partition_scope",
    "plan_removal",
    "removal_conditions",
    "warn_of_full_removal",
    "warn_of_rows_outside",
)


def plan_removal(
    dataset: DatasetMetadata, delete_scope: Sequence[Mapping[str, Any]], store: StoreInput
) -> tuple[list[ConjunctionType] | None, pa.StringArray | None]:
    """The predicate of a ``delete_scope``, and the labels that it selects now; None for no removal."""
    if not delete_scope:
        return None, None
    scope = [_conjunction(dataset, element) for element in delete_scope]
    if not all(scope):
        return [], dataset.partition_table.labels
    columns = {column for conjunction in scope for column, _, _ in conjunction}
    picked = select_partitions(dataset.load_indices(columns, store), scope)
    return scope, dataset.partition_table.take(picked).labels


def _conjunction(dataset: DatasetMetadata, element: Any) -> ConjunctionType:
    if not isinstance(element, Mapping):
        raise TypeError(
            f"delete_scope has to be a list of dicts, but holds a {type(element).__name__}: {element!r}"
        )
    unknown = set(element) - dataset.index_columns
    if unknown:
        raise ValueError(
            f"delete_scope of dataset {dataset.uuid!r} needs indexed columns: "
            + unknown_names("or unindexed column", unknown, dataset.index_columns)
        )
    return [(column, "==", _value(dataset, column, value)) for column, value in element.items()]


def _value(dataset: DatasetMetadata, column: str, value: Any) -> Any:
    """The value as a predicate takes it; a scope is generous, ``"2020-01-01"`` stands for a date."""
    if is_null_value(value):
        raise ValueError(
            f"delete_scope of dataset {dataset.uuid!r}: no index knows where {column!r} is null, "
            "so these rows cannot be removed"
        )
    if dataset.schema is None:
        raise ValueError(
            f"delete_scope of dataset {dataset.uuid!r}: there is no schema that types {column!r}"
        )
    dtype = dataset.schema.field(column).type
    try:
        converted = normalize_value(dtype, value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"delete_scope of dataset {dataset.uuid!r}, column {column!r}: {error}") from error
    return pd.Timestamp(converted, tz="UTC") if getattr(dtype, "tz", None) else converted


def partition_scope(conditions: Conjunction, dataset: DatasetMetadata) -> list[ConjunctionType]:
    """The predicate of those conditions that concern partition keys of a dataset; [] if none does."""
    keys = set(dataset.partition_keys or ())
    schema = arrow_schema(dataset)
    types = dict(zip(schema.names, schema.types, strict=True))
    nodes = []
    for condition in conditions.conditions:
        columns = Conjunction(condition).columns
        if columns <= keys and columns:
            nodes.append(condition.to_tree(types))
        elif columns & keys:
            # neither side of the "or" alone tells which partitions of this dataset are meant
            raise ValueError(
                f"Condition `{condition}` has columns by which dataset {dataset.uuid!r} is not partitioned: "
                f"{', '.join(sorted(columns - keys))}"
            )
    return expand(nodes) if nodes else []


def removal_conditions(
    cube: Cube, conditions: ConditionsInput | Literal["all"], datasets: Mapping[str, DatasetMetadata]
) -> Conjunction:
    """Check that conditions concern partition columns only; none for ``"all"``."""
    ensure_cube(cube)
    if is_all(conditions):
        return Conjunction(None)
    if isinstance(conditions, str):
        fields = [field for dataset in datasets.values() for field in arrow_schema(dataset)]
        conditions = parse_conditions(conditions, {field.name: field.type for field in fields})
    conjunction = Conjunction(conditions)
    wrong = conjunction.columns - set(cube.partition_columns)
    if wrong:
        raise ValueError(
            "Can only remove partitions with conditions concerning cubes physical partition columns "
            f"({', '.join(cube.partition_columns)}), but got conditions on: {', '.join(sorted(wrong))}"
        )
    return conjunction


def is_all(conditions: object) -> bool:
    """Whether the ``conditions`` of a removal select everything, and say so."""
    return isinstance(conditions, str) and conditions == "all"


#: for each file the warnings that were shown: by default, each line warns once
_SHOWN: dict[str, dict[str | tuple[str, type[Warning], int], int]] = {}


class CallerLine(NamedTuple):
    """A line of the user's code, which warnings name; also those of tasks, in other threads and processes."""

    file: str
    number: int

    @classmethod
    def find(cls) -> Self:
        """The innermost line outside of this package that is being executed."""
        frame = sys._getframe()
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("kartothek_cube."):
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno)

    def warn(self, message: str) -> None:
        """Warn as if this line did."""
        shown = _SHOWN.setdefault(self.file, {})
        warnings.warn_explicit(message, UserWarning, self.file, self.number, registry=shown)


def warn_of_full_removal(caller: CallerLine, argument: str, given: object, conjunction: Conjunction) -> None:
    """Warn of a removal without conditions, which users of kartothek may rely on."""
    if not conjunction.active and not is_all(given):
        caller.warn(
            f"No {argument}: all partitions are removed. Pass {argument}='all' if that is the intention"
        )


def warn_of_rows_outside(
    caller: CallerLine,
    uuid: str,
    partitions: PartitionTable,
    partition_keys: Sequence[str],
    schema: SchemaWrapper | None,
    remove_where: list[ConjunctionType] | None,
) -> None:
    """Warn of written partitions that an update does not remove first: their rows are only appended."""
    if not remove_where or schema is None or not len(partitions):
        return
    columns = sorted({column for conjunction in remove_where for column, _, _ in conjunction})
    keys = partitions.keys(partition_keys, schema)
    outside = np.flatnonzero(~to_numpy(filter_mask(pa.table(keys), remove_where)))
    if len(outside):
        example = ", ".join(f"{column}={keys[column][int(outside[0])].as_py()!r}" for column in columns)
        of = format_count(len(partitions), "written partition")
        caller.warn(
            f"Update of dataset {uuid!r}: remove_conditions do not select {len(outside)} of {of}, "
            f"such as {example}. Rows that are stored there stay"
        )
