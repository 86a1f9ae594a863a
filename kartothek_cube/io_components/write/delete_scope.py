"""The ``delete_scope`` of an update: which partitions it removes, as a predicate and as labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow.casting import normalize_value
from kartothek_cube.core.cube.argument_types import ConditionsInput
from kartothek_cube.core.cube.conditions import Conjunction, parse_conditions
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.expressions.literal import is_null_value
from kartothek_cube.core.expressions.predicate import ConjunctionType
from kartothek_cube.core.expressions.tree import expand
from kartothek_cube.core.typing import StoreInput

__all__ = (
    "partition_scope",
    "plan_removal",
    "removal_conditions",
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


Predicates = list[list[tuple[str, str, Any]]]


def partition_scope(conditions: Conjunction, dataset: DatasetMetadata) -> Predicates:
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
    cube: Cube, conditions: ConditionsInput, datasets: Mapping[str, DatasetMetadata]
) -> Conjunction:
    """Check that conditions concern partition columns only."""
    ensure_cube(cube)
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
