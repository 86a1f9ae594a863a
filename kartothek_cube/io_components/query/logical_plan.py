"""What a user wants from a cube: the arguments of a query, checked and completed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pyarrow as pa

from kartothek_cube.core.arguments import (
    converter_str_set,
    converter_str_set_optional,
    converter_str_tupleset,
)
from kartothek_cube.core.cube.condition_types import Condition, Conjunction
from kartothek_cube.core.cube.consistency import arrow_schema, check_cube, get_dataset_columns
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import discover_datasets
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.expressions.predicate import bind
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.display.html import card, facts, table
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf, datasets_as_of

__all__ = ("LogicalPlan", "build_logical_plan", "select_datasets")

#: what users may give as conditions
ConditionsInput = Condition | Conjunction | Iterable[Condition] | None


@attrs.frozen
class LogicalPlan:
    """
    A checked query.

    Attributes
    ----------
    dimension_columns
        Dimensions of the result, in sort order.
    partition_by
        Columns by whose values the result is split into groups, in sort order.
    output_columns
        Columns of the result, sorted.
    conditions
        Conditions that restrict something, by dataset id: those on columns that the dataset has.
    owners
        Id of the dataset whose values of a ``partition_by`` column make the groups, for each of them.
    datasets
        Ids that take part, the seed first, then restricted datasets, then the others.
    restricted
        Ids of non-seed datasets that are inner-joined.
    """

    dimension_columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    output_columns: tuple[str, ...]
    conditions: Mapping[str, Conjunction]
    owners: Mapping[str, str]
    datasets: tuple[str, ...]
    restricted: frozenset[str]

    def role(self, name: str) -> str:
        """What a dataset is in this query: ``seed``, ``restricted`` or ``left``."""
        if name == self.datasets[0]:
            return "seed"
        return "restricted" if name in self.restricted else "left"

    def _repr_html_(self) -> str:
        rows = [(name, self.role(name), str(self.conditions[name])) for name in self.datasets]
        return card(
            "Query",
            facts(
                {
                    "columns": self.output_columns,
                    "sorted by": self.dimension_columns,
                    "groups by": self.partition_by,
                }
            ),
            table("Datasets", ["dataset", "role", "conditions"], rows),
        )


def select_datasets(
    cube: Cube, store: StoreInput, datasets: Any, as_of: CubeAsOf | None = None
) -> dict[str, DatasetMetadata]:
    """Headers for the ``datasets`` argument of an operation: nothing, ids, or loaded headers."""
    if as_of is not None:
        if isinstance(datasets, Mapping):
            raise ValueError("Pass either loaded datasets or as_of: loaded ones are as they are")
        return datasets_as_of(cube, store, as_of, datasets)
    if isinstance(datasets, Mapping):
        check_cube(datasets, cube)
        return dict(datasets)
    return discover_datasets(cube, store, converter_str_set_optional(datasets))


def build_logical_plan(
    cube: Cube,
    datasets: Mapping[str, DatasetMetadata],
    conditions: ConditionsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
) -> LogicalPlan:
    """
    Check the arguments of a query against the stored columns, types and indices.

    Raises
    ------
    ValueError
        For unknown or unindexed columns, or a projection that would lose rows of payload.
    TypeError
        If a condition has a value of the wrong type for its column.
    """
    columns = {name: get_dataset_columns(ds) for name, ds in datasets.items()}
    everything = set().union(*columns.values())
    conjunction = _active(conditions)
    _check_known("condition", conjunction.columns, everything)
    _check_types(conjunction, datasets, columns)
    dimensions = _dimensions(cube, dimension_columns)
    groups = converter_str_tupleset(partition_by)
    owners = _group_column_owners(cube, datasets, columns, groups)
    payload = everything if payload_columns is None else converter_str_set(payload_columns)
    _check_known("payload", payload, everything)
    dropped = set(cube.dimension_columns) - set(dimensions)
    if payload_columns is not None and dropped & set(payload) - set(groups):
        raise ValueError(
            f"Cannot project to [{', '.join(dimensions)}] and return the dimension column(s) "
            f"{', '.join(sorted(dropped & set(payload)))} as payload: a row stands for many of their values"
        )
    output = set(dimensions) | set(cube.partition_columns) | set(groups) | (set(payload) - dropped)
    by_dataset = {
        name: Conjunction([c for c in conjunction.conditions if c.column in columns[name]])
        for name in datasets
    }
    involved = {
        name: {c for c in output | conjunction.columns if c in columns[name]}
        - set(cube.dimension_columns)
        - set(cube.partition_columns)
        for name in datasets
    }
    chosen = {name for name in datasets if involved[name] or name == cube.seed_dataset}
    keep = {name: conj for name, conj in by_dataset.items() if name in chosen}
    _check_projection(cube, columns, involved, chosen, dimensions)
    restricted = frozenset(
        name
        for name in chosen - {cube.seed_dataset}
        if any(_is_payload(c, cube) for c in keep[name].columns)
        or any(owners.get(c) == name and _is_payload(c, cube) for c in groups)
    )
    order = sorted(chosen, key=lambda name: (name != cube.seed_dataset, name not in restricted, name))
    return LogicalPlan(
        dimension_columns=dimensions,
        partition_by=groups,
        output_columns=tuple(sorted(output)),
        conditions=keep,
        owners=owners,
        datasets=tuple(order),
        restricted=restricted,
    )


def _is_payload(column: str, cube: Cube) -> bool:
    return column not in cube.dimension_columns and column not in cube.partition_columns


def _active(conditions: ConditionsInput) -> Conjunction:
    return Conjunction([c for c in Conjunction(conditions).conditions if c.active])


def _check_known(what: str, wanted: Iterable[str], known: set[str]) -> None:
    unknown = set(wanted) - known
    if unknown:
        raise ValueError(
            f"Following {what} columns are required but are missing from the cube: "
            + unknown_names("column", unknown, known)
        )


def _check_types(
    conjunction: Conjunction, datasets: Mapping[str, DatasetMetadata], columns: Mapping[str, set[str]]
) -> None:
    """Compare the value of every condition with the type of its column in every dataset that has it."""
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
    """Numpy integers carry a sign in their type, which must be that of the column."""
    if not pa.types.is_integer(dtype):
        return
    wanted = "i" if pa.types.is_signed_integer(dtype) else "u"
    for _, _, value in condition.predicate_part:
        for item in value if isinstance(value, tuple | list) else (value,):
            kind = getattr(getattr(item, "dtype", None), "kind", wanted)
            if kind in "iu" and kind != wanted:
                raise TypeError(
                    f"Condition `{condition}` has wrong type. Expected `{dtype} (pyarrow)` "
                    f"but got `{item} ({type(item).__name__})`"
                )


def _dimensions(cube: Cube, wanted: str | Iterable[str] | None) -> tuple[str, ...]:
    if wanted is None:
        return cube.dimension_columns
    dimensions = converter_str_tupleset(wanted)
    unknown = set(dimensions) - set(cube.dimension_columns)
    if unknown:
        raise ValueError(
            "Following dimension columns were requested but are missing from the cube: "
            + unknown_names("dimension column", unknown, cube.dimension_columns)
        )
    if not dimensions:
        raise ValueError("Dimension columns cannot be empty: a query needs at least one")
    return dimensions


def _group_column_owners(
    cube: Cube,
    datasets: Mapping[str, DatasetMetadata],
    columns: Mapping[str, set[str]],
    groups: tuple[str, ...],
) -> dict[str, str]:
    """
    Which dataset has the values of each partition-by column: the first with an index, the seed before others.

    For a dimension that is always the seed, whichever has the index: only the seed has all cells.
    """
    _check_known("partition-by", groups, set().union(*columns.values()))
    names = cube.join_order(datasets)
    owners = {}
    for column in groups:
        for name in names:
            ds = datasets[name]
            explicit = isinstance(ds.indices.get(column), ExplicitSecondaryIndex)
            if column in columns[name] and (explicit or column in (ds.partition_keys or ())):
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
    involved: Mapping[str, set[str]],
    chosen: set[str],
    dimensions: tuple[str, ...],
) -> None:
    """A dataset that contributes payload must keep its dimensions: its rows would not be unique."""
    for name in sorted(chosen):
        own = set(cube.dimension_columns) & columns[name]
        if involved[name] and not own <= set(dimensions):
            raise ValueError(
                f"Cannot project dataset {name!r} with dimensionality [{', '.join(sorted(own))}] to "
                f"[{', '.join(sorted(dimensions))}] while keeping the following payload intact: "
                f"{', '.join(sorted(involved[name]))}"
            )
