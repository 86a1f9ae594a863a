"""Logical plan of a query: its arguments, checked against the cube and completed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import attrs
import pyarrow as pa

from kartothek_cube.core.arguments import (
    converter_str_set,
    converter_str_tupleset,
)
from kartothek_cube.core.cube.argument_types import ConditionsInput
from kartothek_cube.core.cube.conditions import Condition, Conjunction
from kartothek_cube.core.cube.consistency import arrow_schema, get_dataset_columns
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.expressions.predicate import bind
from kartothek_cube.core.index import ExplicitSecondaryIndex

__all__ = ("LogicalPlan", "Role", "build_logical_plan")


class Role(StrEnum):
    """Role of a dataset in a query, in the order of the joins."""

    SEED = "seed"
    #: inner join
    RESTRICTED = "restricted"
    #: left join
    LEFT = "left"


@attrs.frozen
class LogicalPlan:
    """Checked query ("intention" in the specification)."""

    #: dimensions of the result, in sort order
    dimension_columns: tuple[str, ...]
    #: columns by whose values the result is split into groups, in sort order
    partition_by: tuple[str, ...]
    #: columns of the result, sorted
    output_columns: tuple[str, ...]
    #: active conditions by dataset id: those on columns of the dataset
    conditions: Mapping[str, Conjunction]
    #: for each ``partition_by`` column the id of the dataset whose values make the groups
    owners: Mapping[str, str]
    #: roles of the datasets to join by dataset id, in the order of the joins
    roles: Mapping[str, Role]
    #: ids of the other datasets, sorted
    unused: tuple[str, ...]


def build_logical_plan(
    cube: Cube,
    datasets: Mapping[str, DatasetMetadata],
    conditions: ConditionsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
) -> LogicalPlan:
    """Check the arguments of a query against the stored columns, types and indices."""
    columns = {name: get_dataset_columns(ds) for name, ds in datasets.items()}
    conjunction = Conjunction([c for c in Conjunction(conditions).conditions if c.active])
    _check_columns("condition", conjunction.columns, set().union(*columns.values()))
    _check_types(conjunction, datasets, columns)
    dimensions = _resolve_dimensions(cube, dimension_columns)
    groups = converter_str_tupleset(partition_by)
    owners = _group_column_owners(cube, datasets, columns, groups)
    output = _resolve_output(cube, columns, dimensions, groups, payload_columns)
    keys = {*cube.dimension_columns, *cube.partition_columns}
    payload = {name: (output | conjunction.columns) & columns[name] - keys for name in datasets}
    joined = {name for name in datasets if payload[name] or name == cube.seed_dataset}
    _check_projection(cube, columns, payload, joined, dimensions)
    by_dataset = {
        name: Conjunction([c for c in conjunction.conditions if c.column in columns[name]]) for name in joined
    }
    group_owners = {owner for column, owner in owners.items() if column not in keys}
    roles = {name: Role.RESTRICTED if by_dataset[name].columns - keys else Role.LEFT for name in joined}
    roles |= dict.fromkeys(group_owners & joined, Role.RESTRICTED) | {cube.seed_dataset: Role.SEED}
    order = list(Role)
    return LogicalPlan(
        dimension_columns=dimensions,
        partition_by=groups,
        output_columns=tuple(sorted(output)),
        conditions=by_dataset,
        owners=owners,
        roles={name: roles[name] for name in sorted(joined, key=lambda n: (order.index(roles[n]), n))},
        unused=tuple(sorted(set(datasets) - joined)),
    )


def _check_columns(role: str, columns: Iterable[str], available: set[str]) -> None:
    unknown = set(columns) - available
    if unknown:
        raise ValueError(
            f"Following {role} columns are required but are missing from the cube: "
            + unknown_names("column", unknown, available)
        )


def _check_types(
    conjunction: Conjunction, datasets: Mapping[str, DatasetMetadata], columns: Mapping[str, set[str]]
) -> None:
    """Bind the value of every condition to the type of its column in every dataset that has it."""
    for condition in conjunction.conditions:
        for name in sorted(datasets):
            if condition.column not in columns[name]:
                continue
            schema = arrow_schema(datasets[name])
            dtype = schema.field(condition.column).type
            if pa.types.is_null(dtype):
                continue
            _check_signedness(condition, dtype)
            try:
                bind([condition.predicate_part], schema)
            except TypeError as exc:
                raise TypeError(
                    f"Condition `{condition}` does not fit column {condition.column} ({dtype}) of "
                    f"dataset {name}: {exc}"
                ) from exc


def _check_signedness(condition: Condition, dtype: pa.DataType) -> None:
    """Reject numpy integers whose sign differs from that of the column: they carry it in their type."""
    if not pa.types.is_integer(dtype):
        return
    sign = "i" if pa.types.is_signed_integer(dtype) else "u"
    for _, _, value in condition.predicate_part:
        for item in value if isinstance(value, tuple | list) else (value,):
            kind = getattr(getattr(item, "dtype", None), "kind", sign)
            if kind in "iu" and kind != sign:
                raise TypeError(
                    f"Condition `{condition}` has wrong type. Expected `{dtype} (pyarrow)` "
                    f"but got `{item} ({type(item).__name__})`"
                )


def _resolve_dimensions(cube: Cube, dimension_columns: str | Iterable[str] | None) -> tuple[str, ...]:
    if dimension_columns is None:
        return cube.dimension_columns
    dimensions = converter_str_tupleset(dimension_columns)
    unknown = set(dimensions) - set(cube.dimension_columns)
    if unknown:
        raise ValueError(
            "Following dimension columns were requested but are missing from the cube: "
            + unknown_names("dimension column", unknown, cube.dimension_columns)
        )
    if not dimensions:
        raise ValueError("Dimension columns cannot be empty: a query needs at least one")
    return dimensions


def _resolve_output(
    cube: Cube,
    columns: Mapping[str, set[str]],
    dimensions: tuple[str, ...],
    groups: tuple[str, ...],
    payload_columns: str | Iterable[str] | None,
) -> set[str]:
    """Columns of the result."""
    available = set().union(*columns.values())
    payload = available if payload_columns is None else set(converter_str_set(payload_columns))
    _check_columns("payload", payload, available)
    dropped = set(cube.dimension_columns) - set(dimensions)
    if payload_columns is not None and dropped & payload - set(groups):
        raise ValueError(
            f"Cannot project to [{', '.join(dimensions)}] and return the dimension column(s) "
            f"{', '.join(sorted(dropped & payload))} as payload: a row stands for many of their values"
        )
    return {*dimensions, *cube.partition_columns, *groups, *(payload - dropped)}


def _group_column_owners(
    cube: Cube,
    datasets: Mapping[str, DatasetMetadata],
    columns: Mapping[str, set[str]],
    groups: tuple[str, ...],
) -> dict[str, str]:
    """For each column the dataset whose values make the groups: the first with an index, the seed first."""
    _check_columns("partition-by", groups, set().union(*columns.values()))
    names = cube.join_order(datasets)
    owners = {}
    for column in groups:
        for name in names:
            ds = datasets[name]
            explicit = isinstance(ds.indices.get(column), ExplicitSecondaryIndex)
            if column in columns[name] and (explicit or column in (ds.partition_keys or ())):
                # only the seed has all cells, and with them all values of a dimension
                owners[column] = cube.seed_dataset if column in cube.dimension_columns else name
                break
    unindexed = set(groups) - set(owners)
    if unindexed:
        indexed = set().union(*(set(ds.indices) | set(ds.partition_keys or ()) for ds in datasets.values()))
        raise ValueError(
            "Following partition-by columns are not indexed and cannot be used: "
            f"{', '.join(sorted(unindexed))} "
            f"(indexed are: {', '.join(sorted(indexed))})"
        )
    return owners


def _check_projection(
    cube: Cube,
    columns: Mapping[str, set[str]],
    payload: Mapping[str, set[str]],
    joined: set[str],
    dimensions: tuple[str, ...],
) -> None:
    """Check that datasets with payload keep all their dimensions: without one, cells are not unique."""
    for name in sorted(joined):
        own_dimensions = set(cube.dimension_columns) & columns[name]
        if payload[name] and not own_dimensions <= set(dimensions):
            raise ValueError(
                f"Cannot project dataset {name!r} with dimensionality [{', '.join(sorted(own_dimensions))}] "
                f"to [{', '.join(sorted(dimensions))}] while keeping the following payload intact: "
                f"{', '.join(sorted(payload[name]))}"
            )
