"""Queries of cubes: their arguments, and the logical plan: these, checked against the cube and completed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Generic

import attrs
import pyarrow as pa

from kartothek_cube.core import expressions
from kartothek_cube.core.arguments import parse_name_set, parse_names
from kartothek_cube.core.cube import consistency, implied_conditions
from kartothek_cube.core.cube.conditions import Condition, ConditionsInput, Conjunction, Disjunction
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import CubeSnapshot, DatasetsInput
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import abbreviate_text, check_names
from kartothek_cube.core.pandas_conversion import DtypeBackend
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf

#: columns by dataset
_Columns = Mapping[str, frozenset[str]]


@attrs.frozen
class QueryCube(Generic[StoreT]):
    """Query a cube as if it were one DataFrame.

    Cells come from the seed, all other datasets add columns to them ("Query System" in the specification).

    Parameters
    ----------
    conditions
        Conditions that all have to hold, made with :class:`~kartothek_cube.core.cube.conditions.C`, or their
        text, as in SQL: ``"TEMP > 10 AND DAY >= '2024-01-05'"``; see :ref:`conditions`.
        Expressions of Polars or Arrow, Columns of Spark and predicates ``(column, operator, value)`` are
        conditions as well.
    datasets
        Ids of the datasets to join, or a dict of id to metadata; by default all of the cube.
    dimension_columns
        Dimensions of the result, in sort order; by default all. Fewer dimensions project the cube.
    partition_by
        Indexed columns by whose values the result is split.
    payload_columns
        Columns to read; by default all.
    as_of
        Version of the cube (:func:`list_cube_history`) or point in time: the cube is read in that state,
        which is kept until a cleanup (:func:`keep_cube_history`). Or a dict of dataset id to version or time,
        for some of the datasets. Or a staged write (:ref:`staging`): the cube as it would be. By default, the
        cube is read as it is now.
    changed_since
        Earlier state of the cube: the token of :func:`list_cube_changes`, a version, or a point in time. Only
        partitions are read in which rows of a dataset of the query have changed since. Their cells may be
        unchanged; cells that have vanished are not in the result, see :func:`list_cube_changes`.

    Returns
    -------
    list of pandas.DataFrame
        One frame per group with rows, sorted by the values of ``partition_by``; without it one frame, or none
        if nothing matches (:func:`query_cube_df` always returns one). Columns are sorted by name, rows by
        dimension and partition columns. A column has the same type in all frames (:ref:`types`). Dates are
        ``datetime64[ns]``; a column with dates that this cannot hold (before 1677-09-22 or after 2262-04-11)
        is ``datetime64[s]`` in all frames. Timestamps are ``datetime64[ns]``, or ``datetime64[us]`` in a
        column that has ever held a time which nanoseconds do not reach.

    Raises
    ------
    ValueError
        For unknown or unindexed columns, unknown datasets, and projections that would lose rows.
    TypeError
        If a condition has a value of the wrong type.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> from kartothek_cube.io.eager_cube import query_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> [df["CITY"].tolist() for df in query_cube(cube, store, partition_by="COUNTRY_CODE")]
    [['Bonn'], ['Rom']]
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    conditions: ConditionsInput = None
    datasets: DatasetsInput = None
    dimension_columns: str | Iterable[str] | None = None
    partition_by: str | Iterable[str] | None = None
    payload_columns: str | Iterable[str] | None = None
    as_of: CubeAsOf | None = attrs.field(default=None, kw_only=True)
    changed_since: CubeAsOf | None = attrs.field(default=None, kw_only=True)
    dtype_backend: DtypeBackend | None = attrs.field(default=None, init=False)


@attrs.frozen
class QueryFrames(QueryCube[StoreT]):
    """A query whose result are DataFrames."""

    dtype_backend: DtypeBackend | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class QueryTable(QueryCube[StoreT]):
    """Query a cube into one DataFrame, which has no rows if nothing matches.

    Parameters
    ----------
    cube, store, conditions, datasets, dimension_columns, as_of, changed_since
        As in :func:`query_cube`.
    payload_columns, columns
        Columns to read, by default all; ``columns`` is the shorter name. The frame has the dimensions and the
        partition columns first, unless they are named as well, and then these columns in this order.
    limit
        Largest number of rows. Partitions are read one after the other until there are as many: which rows
        these are depends on how the cube is stored. They are sorted as usual.

    Returns
    -------
    pandas.DataFrame
        If nothing matches, with all columns and the types of the schema.

    Raises
    ------
    ValueError, TypeError
        As :func:`query_cube`; also for a negative limit.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.conditions import C
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube, query_cube_df
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = {"AVG_TEMP": [8, 7], "CITY": ["Ulm", "Bonn"], "COUNTRY_CODE": ["DE", "DE"]}
    >>> _ = build_cube(pd.DataFrame(cities), cube, store)
    >>> query_cube_df(cube, store, limit=1)
       CITY COUNTRY_CODE  AVG_TEMP
    0  Bonn           DE         7
    >>> query_cube_df(cube, store, C("AVG_TEMP") > 30).dtypes["AVG_TEMP"]
    dtype('int64')
    """

    partition_by: str | Iterable[str] | None = attrs.field(default=None, init=False)
    columns: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)
    limit: int | None = attrs.field(default=None, kw_only=True)
    # declared again to follow these
    as_of: CubeAsOf | None = attrs.field(default=None, kw_only=True)
    changed_since: CubeAsOf | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class QueryFrame(QueryTable[StoreT]):
    """A query whose result is one DataFrame."""

    dtype_backend: DtypeBackend | None = attrs.field(default=None, kw_only=True)


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
    #: active conditions by dataset id: those on columns of the dataset, which null does not match
    conditions: Mapping[str, tuple[Condition | Disjunction, ...]]
    #: the same as literals in the types of the columns
    predicates: Mapping[str, tuple[expressions.LiteralType, ...]]
    #: the other active conditions, evaluated on the joined rows
    join_conditions: tuple[Condition | Disjunction, ...]
    #: the same in the types of the columns
    join_filters: tuple[expressions.Node, ...]
    #: predicate on the rows of each dataset that the join filters imply
    implied: Mapping[str, tuple[expressions.Node, ...]]
    #: for each ``partition_by`` column the id of the dataset whose values make the groups
    owners: Mapping[str, str]
    #: roles of the datasets to join by dataset id, in the order of the joins
    roles: Mapping[str, Role]
    #: ids of the other datasets, sorted
    unused: tuple[str, ...]

    def condition_on(self, name: str) -> expressions.AllOf | None:
        """Predicate on the rows of a dataset; None for all rows."""
        return expressions.all_of([*self.predicates[name], *self.implied[name]])


@attrs.frozen
class _BoundCondition:
    """A condition in the types of its columns."""

    condition: Condition | Disjunction
    tree: expressions.Node
    literals: list[expressions.LiteralType]
    columns: frozenset[str]


def analyze(query: QueryCube[StoreT], snapshot: CubeSnapshot) -> LogicalPlan:
    """Check the arguments of a query against the stored columns, types and indices."""
    cube, datasets = query.cube, snapshot.datasets
    columns, types = snapshot.derive("columns", lambda: _columns_of(datasets))
    conjunction = implied_conditions.to_conjunction(query.conditions, types)
    _check_columns("condition", conjunction.columns, types)
    conditions = [_bind_condition(c, types, columns) for c in conjunction.conditions if c.active]
    dimensions, groups = _parse_dimensions(query), parse_names("partition_by", query.partition_by)
    _check_columns("partition-by", groups, types)
    owners = _group_column_owners(cube, datasets, columns, groups)
    output = _resolve_output(query, types, dimensions, groups)
    keys = {*cube.dimension_columns, *cube.partition_columns}
    payload = {name: (output | conjunction.columns) & columns[name] - keys for name in datasets}
    joined = sorted(name for name in datasets if payload[name] or name == cube.seed_dataset)
    _check_projection(cube, columns, {name: payload[name] for name in joined}, dimensions)
    on_datasets, on_joined = _split_conditions(conditions, cube, columns, dimensions)
    join_filters = tuple([c.tree for c in on_joined])
    restricted = {owner for column, owner in owners.items() if column not in keys}
    for name in joined:
        is_tested = any(c.columns <= payload[name] for c in on_datasets)
        if is_tested or any(expressions.rejects_nulls(tree, payload[name]) for tree in join_filters):
            restricted.add(name)
    roles = {name: Role.RESTRICTED if name in restricted else Role.LEFT for name in joined}
    roles[cube.seed_dataset] = Role.SEED
    own = {name: [c for c in on_datasets if c.columns <= columns[name]] for name in joined}
    # a row of a left join that does not meet its part of a filter must not become a cell without a match
    filtered = {n: columns[n] & keys if role is Role.LEFT else columns[n] for n, role in roles.items()}
    order = [*Role]
    return LogicalPlan(
        dimension_columns=dimensions,
        partition_by=groups,
        output_columns=tuple(sorted(output)),
        conditions={name: tuple([c.condition for c in own[name]]) for name in joined},
        predicates={name: tuple([literal for c in own[name] for literal in c.literals]) for name in joined},
        join_conditions=tuple([c.condition for c in on_joined]),
        join_filters=join_filters,
        implied={name: _imply(join_filters, names) for name, names in filtered.items()},
        owners=owners,
        roles=dict(sorted(roles.items(), key=lambda item: (order.index(item[1]), item[0]))),
        unused=tuple(sorted(set(datasets) - {*joined})),
    )


def _columns_of(datasets: Mapping[str, DatasetMetadata]) -> tuple[_Columns, Mapping[str, pa.DataType]]:
    """Columns of the datasets, and the types of all columns; another one takes precedence over null."""
    columns = {name: frozenset(consistency.get_dataset_columns(ds)) for name, ds in datasets.items()}
    types = consistency.column_types(datasets[name] for name in sorted(datasets))
    return columns, {name: dtype for name, dtype in types.items() if not consistency.is_internal(name)}


def _check_columns(role: str, columns: Iterable[str], available: Collection[str]) -> None:
    where = f"Following {role} columns are required but are missing from the cube: "
    check_names(where, "column", columns, available)


def _bind_condition(
    condition: Condition | Disjunction, types: Mapping[str, pa.DataType], columns: _Columns
) -> _BoundCondition:
    """The condition in the types of the columns; raises for values that cannot be compared with them."""
    try:
        tree = condition.to_tree(types)
        literals = expressions.literals_of(tree)
        used = frozenset([column for column, _, _ in literals])
        if isinstance(tree, tuple) and type(tree[2]) in (bool, int, float, str):  # its form needs no check
            expressions.bind_literal(types[tree[0]], tree[1], tree[2], tree[0])
        else:
            expressions.bind([literals], pa.schema({c: types[c] for c in used}.items()))
    except TypeError as exc:
        names = Conjunction(condition).columns
        on = "column" if isinstance(condition, Condition) else "columns"
        described = ", ".join(f"{column} ({types[column]})" for column in sorted(names))
        owners = sorted(name for name in columns if names & columns[name])
        raise TypeError(
            f"Condition `{abbreviate_text(str(condition))}` does not fit {on} {described} of "
            f"dataset{'s' if len(owners) > 1 else ''} {', '.join(owners)}: {exc}"
        ) from exc
    return _BoundCondition(condition, tree, literals, used)


def _parse_dimensions(query: QueryCube[StoreT]) -> tuple[str, ...]:
    if query.dimension_columns is None:
        return query.cube.dimension_columns
    dimensions = parse_names("dimension_columns", query.dimension_columns)
    where = "Following dimension columns were requested but are missing from the cube: "
    check_names(where, "dimension column", dimensions, query.cube.dimension_columns)
    if not dimensions:
        raise ValueError("Dimension columns cannot be empty: a query needs at least one")
    return dimensions


def _split_conditions(
    conditions: Iterable[_BoundCondition], cube: Cube, columns: _Columns, dimensions: Collection[str]
) -> tuple[list[_BoundCondition], list[_BoundCondition]]:
    """Conditions on the rows of single datasets, and those on the joined rows."""
    on_datasets: list[_BoundCondition] = []
    on_joined: list[_BoundCondition] = []
    for bound in conditions:
        # nulls of a left join, of cells that a dataset does not have, meet a test for null
        tests_null = any(map(expressions.is_null_test, bound.literals))
        is_on_seed = bound.columns <= columns[cube.seed_dataset]
        if not isinstance(bound.condition, Disjunction) and (is_on_seed or not tests_null):
            on_datasets.append(bound)
            continue
        on_joined.append(bound)
        dropped = bound.columns & {*cube.dimension_columns} - {*dimensions}
        if dropped:
            raise ValueError(
                f"Condition `{abbreviate_text(str(bound.condition))}` is evaluated on the cells of the "
                f"result, which have no {', '.join(sorted(dropped))}: add it to dimension_columns"
            )
    return on_datasets, on_joined


def _imply(filters: Iterable[expressions.Node], columns: Collection[str]) -> tuple[expressions.Node, ...]:
    """What filters of joined rows imply for rows that have some of the columns."""
    nodes = [expressions.imply(tree, columns) for tree in filters]
    return tuple([node for node in nodes if node is not None])


def _resolve_output(
    query: QueryCube[StoreT], available: Collection[str], dimensions: tuple[str, ...], groups: tuple[str, ...]
) -> set[str]:
    """Columns of the result."""
    cube, payload_columns = query.cube, query.payload_columns
    payload = {*available} if payload_columns is None else parse_name_set("payload_columns", payload_columns)
    _check_columns("payload", payload, available)
    dropped = set(cube.dimension_columns) - set(dimensions)
    if payload_columns is not None and dropped & payload - set(groups):
        raise ValueError(
            f"Cannot project to [{', '.join(dimensions)}] and return the dimension column(s) "
            f"{', '.join(sorted(dropped & payload))} as payload: a row stands for many of their values"
        )
    return {*dimensions, *cube.partition_columns, *groups, *(payload - dropped)}


def _group_column_owners(
    cube: Cube, datasets: Mapping[str, DatasetMetadata], columns: _Columns, groups: tuple[str, ...]
) -> dict[str, str]:
    """For each column the dataset whose values make the groups: the first with an index, the seed first."""
    owners = {}
    for column in groups:
        for name in cube.join_order(datasets):
            if column in columns[name] & datasets[name].index_columns:
                # only the seed has all cells, and with them all values of a dimension
                owners[column] = cube.seed_dataset if column in cube.dimension_columns else name
                break
    unindexed = set(groups) - set(owners)
    if unindexed:
        indexed = set().union(*(dataset.index_columns for dataset in datasets.values()))
        raise ValueError(
            "Following partition-by columns are not indexed and cannot be used: "
            f"{', '.join(sorted(unindexed))} "
            f"(indexed are: {', '.join(sorted(indexed))}); group the resulting DataFrame instead"
        )
    return owners


def _check_projection(
    cube: Cube, columns: _Columns, payload: Mapping[str, Collection[str]], dimensions: tuple[str, ...]
) -> None:
    """Check that datasets with payload keep all their dimensions: without one, cells are not unique."""
    for name, added in payload.items():
        own_dimensions = set(cube.dimension_columns) & columns[name]
        if added and not own_dimensions <= set(dimensions):
            raise ValueError(
                f"Cannot project dataset {name!r} with dimensionality [{', '.join(sorted(own_dimensions))}] "
                f"to [{', '.join(sorted(dimensions))}] while keeping the following payload intact: "
                f"{', '.join(sorted(added))}"
            )
