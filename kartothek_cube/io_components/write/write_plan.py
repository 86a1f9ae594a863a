"""Specifications and plans of writes, shared by tasks and commit, and the results of tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Literal, Self, TypeAlias, cast, get_args

import attrs
import pyarrow as pa

from kartothek_cube.core import errors, evolution, history, hooks, naming, partition, pruning
from kartothek_cube.core.arguments import CallerLine
from kartothek_cube.core.commit.change import ChangeSet, IndexUpdate, WriteMode, check_settings
from kartothek_cube.core.commit.operation import is_hidden
from kartothek_cube.core.contract import Contract, RowCheck
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.schema import SchemaWrapper, make_meta, validate_compatible
from kartothek_cube.core.store import StoreFactory, StoreInput, open_blobs, resolve
from kartothek_cube.core.transforms import PartitionTransform
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.serialization import DataFrameSerializer, ParquetSerializer

#: whether input has the columns of the dataset, or may lack some and add others
SchemaMode = Literal["strict", "merge"]
#: handling of input for partitions that the conditions of an update do not select
RowsOutside = Literal["raise", "warn", "append"]

#: in place of the cube in writes of single datasets, where nothing asks for it
NO_CUBE = cast(Cube, None)


def is_merge_mode(schema_mode: SchemaMode) -> bool:
    """The ``schema_mode`` argument; raises ValueError."""
    errors.check_choice("schema_mode", schema_mode, get_args(SchemaMode))
    return schema_mode == "merge"


def read_replaced(uuid: str, store: StoreInput) -> tuple[bool, Mapping[str, Any]]:
    """Whether a dataset exists, and the metadata of the one that a write replaces."""
    try:
        state = DatasetMetadata.load_from_store(uuid, open_blobs(store), load_schema=False)
        check_settings(state.metadata)
    except errors.DatasetNotFoundError:
        return False, {}
    except (KeyError, ValueError, NotImplementedError):
        # damaged: overwriting is how a user repairs it
        return True, {}
    return not is_hidden(state), state.metadata


# -- results of tasks ----------------------------------------------------------------------------------------


@attrs.frozen
class WriteResult:
    """Files written by a task: small, picklable, and merged with others in any order."""

    uuid: str
    table: str
    #: schema of the rows, partition columns included; None if there was no input
    schema: SchemaWrapper | None = attrs.field(default=None, repr=False)
    #: the partitions in the order in which they were written
    labels: pa.StringArray = attrs.field(
        factory=lambda: pa.array([], pa.string()),
        repr=lambda labels: f"<{errors.format_count(len(labels), 'partition')}>",
    )
    indices: Mapping[str, IndexUpdate] = attrs.field(factory=dict, repr=lambda indices: str(sorted(indices)))
    rows: int = 0
    #: files of the partitions, unless these follow from the labels
    keys: pa.StringArray | None = attrs.field(default=None, repr=False)
    #: bits of the columns of numbers in the files
    widths: evolution.Widths = attrs.field(factory=dict, repr=False)
    #: the stored contract with which the rows were checked
    contract: Any = attrs.field(default=None, repr=False)
    statistics: pa.Table | None = attrs.field(default=None, repr=False)

    def partitions(self) -> partition.PartitionTable:
        """The written partitions."""
        if self.keys is not None:
            return partition.PartitionTable(self.labels, {self.table: self.keys})
        return partition.PartitionTable.from_labels(self.uuid, self.table, self.labels)

    def change_set(self, planned: ChangeSet | None = None, **updates: Any) -> ChangeSet:
        """The change that adds what was written, as part of a planned one."""
        return attrs.evolve(
            ChangeSet(self.uuid) if planned is None else planned,
            table=self.table,
            added=self.partitions(),
            schema=self.schema,
            widths=self.widths,
            indices=dict(self.indices),
            rows=self.rows,
            statistics=self.statistics,
            **updates,
        )


#: results of a task, by the ids of the datasets in the plan
Written: TypeAlias = Mapping[str, WriteResult]


def merge_results(results: Iterable[WriteResult]) -> WriteResult:
    """Merge the results of several tasks."""
    parts = list(results)
    # a task without input does not know which table the input of others names
    first = next((part for part in parts if part.schema is not None), parts[0])
    if len(parts) == 1:
        return first
    check_one_table(first.uuid, {part.table for part in parts if part.schema is not None})
    schemas = [p.schema for p in parts if p.schema is not None]
    try:
        schema = validate_compatible(schemas) if schemas else None
    except ValueError as exc:
        raise errors.SchemaConflictError(str(exc), first.uuid, first.table) from exc
    columns = sorted({column for p in parts for column in p.indices})
    keys = None
    if any(part.keys is not None for part in parts):
        keys = pa.concat_arrays([part.partitions().files[part.table] for part in parts])
    contracts = [p.contract for p in parts if len(p.labels)]
    return WriteResult(
        uuid=first.uuid,
        table=first.table,
        schema=schema,
        labels=pa.concat_arrays([p.labels for p in parts]),
        indices={c: IndexUpdate.merge([p.indices[c] for p in parts if c in p.indices]) for c in columns},
        rows=sum(p.rows for p in parts),
        keys=keys,
        widths=evolution.widest([p.widths for p in parts]),
        # that with which all rows were checked; one that no dataset has if there are several
        contract="several" if any(c != contracts[0] for c in contracts) else next(iter(contracts), None),
        statistics=pruning.concat_statistics(p.statistics for p in parts),
    )


def check_one_table(uuid: str, tables: Collection[str]) -> None:
    """Raise ValueError for input of several tables."""
    if len(tables) > 1:
        raise ValueError(
            f"The input for dataset {uuid!r} has several tables: {', '.join(sorted(tables))}. "
            "A dataset has one table: join the frames, or store a dataset for each table"
        )


def merge_writes(parts: Iterable[Written]) -> Written:
    """Results of many tasks as one; associative."""
    by_name: dict[str, list[WriteResult]] = {}
    for part in parts:
        for name, result in part.items():
            by_name.setdefault(name, []).append(result)
    return {name: merge_results(results) for name, results in sorted(by_name.items())}


# -- specifications ------------------------------------------------------------------------------------------


@attrs.frozen
class WriteSpec:
    """Format of the files of one dataset, and the change of their commit; the same for all tasks."""

    #: one that is reopened with the same content, so that the commit sees the files
    store: StoreFactory = attrs.field(validator=lambda _spec, _field, store: resolve.check_reopens(store))
    uuid: str
    table: str = naming.SINGLE_TABLE
    #: columns whose values split a table into files and are part of their path
    partition_on: tuple[str, ...] = ()
    #: columns of which index entries are collected
    indices: tuple[str, ...] = ()
    serializer: DataFrameSerializer = attrs.field(factory=ParquetSerializer)
    #: columns by which each input is sorted before it is split
    sort_by: tuple[str, ...] = ()
    #: prefix of the names of the files. Engines may run tasks again, even committed ones: a commit that finds
    #: it in the labels of the state changes nothing
    write_id: str = attrs.field(factory=lambda: gen_uuid()[-16:], eq=False)
    #: types of the stored columns, which input gets where a read has changed them
    types: Mapping[str, pa.DataType] = attrs.field(factory=dict, eq=False, repr=False)
    #: schema of the stored dataset, which input has to fit; None for a new dataset
    schema: SchemaWrapper | None = attrs.field(default=None, eq=False, repr=False)
    #: metadata of the stored dataset, if input may have other columns
    evolving: Mapping[str, Any] | None = attrs.field(default=None, eq=False, repr=False)
    #: rules that rows have to meet
    contract: Contract = attrs.field(factory=Contract, eq=False, repr=False)
    #: columns that are indexed as well, if the input of a new dataset of a cube has them
    optional_indices: tuple[str, ...] = ()
    #: columns of which statistics are collected, as far as the input has them
    statistics: tuple[str, ...] = ()
    #: table of input that names none, where it is another one, which is refused
    unnamed_table: str | None = None

    #: id of the dataset in the plan
    name: str = attrs.field(default=attrs.Factory(lambda spec: spec.uuid, takes_self=True), kw_only=True)
    cube: Cube = attrs.field(default=NO_CUBE, kw_only=True)
    #: payload columns of other datasets of the cube, with their dataset
    foreign: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    #: change of the commit, without the files of the tasks; see `without_commit_state`
    change: ChangeSet = attrs.field(
        default=attrs.Factory(lambda spec: ChangeSet(spec.uuid, mode=WriteMode.UPSERT), takes_self=True),
        kw_only=True,
    )

    @classmethod
    def of_dataset(
        cls, dataset: DatasetMetadata, metadata: Mapping[str, Any], *, merge_schema: bool, **fields: Any
    ) -> Self:
        """That of an update of a stored dataset, which keeps its partition keys and indices."""
        schema, stored = dataset.schema, dataset.metadata
        return cls(
            uuid=dataset.uuid,
            table=dataset.table_name,
            partition_on=tuple(dataset.partition_keys or ()),
            # kartothek also builds those on partition keys, whose values the labels have: updates drop them
            indices=tuple(sorted({*dataset.secondary_indices}.difference(dataset.partition_keys))),
            types={} if schema is None else {field.name: field.type for field in schema.internal()},
            schema=schema,
            evolving={k: stored[k] for k in (naming.EVOLUTION,) if k in stored} if merge_schema else None,
            contract=Contract.of(dataset.uuid, stored),
            statistics=pruning.statistics_columns({**stored, **metadata}),
            change=ChangeSet(dataset.uuid, metadata=metadata, merge_schema=merge_schema),
            **fields,
        )

    def transforms(self, columns: Collection[str]) -> list[PartitionTransform]:
        """Transforms by which partition columns follow from the columns of an input."""
        return [t for t in self.cube.transforms if t.name in self.partition_on and t.column in columns]

    def evolve_change(self, **changes: Any) -> Self:
        """The same with fields of the planned change changed."""
        return attrs.evolve(self, change=attrs.evolve(self.change, **changes))

    def with_row_checks(self) -> Self:
        """The same with the checks of the user beside the rules of the contract."""
        checks = (RowCheck(hook.function) for hook in hooks.ROW_CHECKS if hook.dataset == self.uuid)
        return attrs.evolve(self, contract=attrs.evolve(self.contract, rules=(*self.contract.rules, *checks)))

    def index_columns(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Columns of an input of which index entries are collected ("Indices" in the cube format)."""
        return (*self.indices, *sorted(set(self.optional_indices).intersection(columns)))

    def of_table(self, name: str | None, indices: Collection[str] = ()) -> Self:
        """The same for input that names its table and indices; a new dataset has those of its input."""
        if name is None:
            name = self.unnamed_table or self.table
        new_indices = sorted(set(indices) - set(self.indices))
        if name == self.table and not new_indices:
            return self
        if self.schema is not None or self.table != naming.SINGLE_TABLE:
            errors.check_names(f"Dataset {self.uuid!r}: ", "table", [name], [self.table], error=RuntimeError)
        if self.schema is not None:
            where = f"Incorrect indices in the input for dataset {self.uuid!r}: "
            errors.check_names(where, "index", new_indices, self.indices, ". Use build_dataset_indices")
        naming.check_table_name(name)
        return attrs.evolve(self, table=name, indices=(*self.indices, *new_indices))

    def result(self, schema: SchemaWrapper, labels: pa.StringArray, **fields: Any) -> WriteResult:
        """Result of a task that has checked the contract."""
        return WriteResult(self.uuid, self.table, schema, labels, contract=self.contract.stored, **fields)

    def merge(self, results: Iterable[WriteResult]) -> WriteResult:
        """The results of several tasks, or of none, as one."""
        return merge_results([WriteResult(self.uuid, self.table), *results])

    def check_schema(self, table: pa.Table) -> None:
        """Check that rows fit the schema of the stored dataset, as far as it is known, or the settings."""
        if self.schema is None:
            where = f"Column(s) with statistics missing in the input for dataset {self.uuid}: "
            errors.check_names(where, "column", self.statistics, table.column_names)
        elif len(self.schema):
            keys = list(self.partition_on)
            given = make_meta(table.schema, "the input", partition_keys=keys)
            evolution.unite_schemas(self.schema, given, keys, self.evolving, self.uuid, self.table)

    def change_set(self, result: WriteResult, info: history.OperationInfo) -> ChangeSet:
        """The change that commits what tasks wrote."""
        keys, write_id = self.partition_on, self.write_id
        return result.change_set(self.change, partition_keys=keys, write_id=write_id, info=info)


# -- plans ---------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class WritePlan:
    """A planned write of one dataset, by its uuid, or of datasets of a cube, by their ids."""

    #: description of the operation in the history, with the message and job of the user
    info: history.OperationInfo = attrs.field(factory=partial(history.describe_operation, "write"))
    store: StoreFactory
    #: all datasets that the write may touch, by id
    specs: Mapping[str, WriteSpec]
    cube: Cube = NO_CUBE
    #: whether datasets without input are committed as well
    commit_all: bool = False
    #: whether a dataset may end up without partitions
    keep_empty: bool = False
    #: whether the result has all datasets of the cube
    return_all: bool = False
    #: whether no cell of the input may be in another partition of the cube
    unique_cells: bool = False
    #: line of the user that asks for a removal of partitions, if one does
    caller: CallerLine | None = attrs.field(default=None, eq=False)
    rows_outside: RowsOutside = "append"
    #: id of a write that is staged; empty if it is committed
    staged_id: str = ""

    @property
    def is_cube_write(self) -> bool:
        """Whether the rules of a cube hold."""
        return self.cube is not NO_CUBE

    @property
    def spec(self) -> WriteSpec:
        """The specification of the only dataset."""
        (spec,) = self.specs.values()
        return spec

    def map_specs(self, change: Callable[[WriteSpec], WriteSpec]) -> Self:
        """The plan with the specifications of all datasets changed."""
        return attrs.evolve(self, specs={name: change(spec) for name, spec in self.specs.items()})

    def evolve_changes(self, **changes: Any) -> Self:
        """The plan with fields of the planned changes of all datasets changed."""
        return self.map_specs(lambda spec: spec.evolve_change(**changes))

    def without_commit_state(self) -> Self:
        """Drop what only the commit needs; the size of the plan no longer grows with the cube."""
        return self.map_specs(lambda s: attrs.evolve(s, change=ChangeSet(s.uuid, mode=s.change.mode)))

    def abort_error(self, name: str, problem: ValueError) -> errors.MultiTableCommitAborted:
        """The error for a write that was given up before anything was committed, with its cause."""
        error = errors.MultiTableCommitAborted(self.cube.ktk_dataset_uuid(name), detail=str(problem))
        error.__cause__ = problem
        return error

    def stage(self, *, publish: bool) -> Self:
        """The plan with the checks of its rows; it stops before the commit, unless it is published."""
        if not isinstance(publish, bool):
            raise TypeError(f"publish is True or False, got {publish!r}")
        plan = self.map_specs(WriteSpec.with_row_checks) if hooks.ROW_CHECKS else self
        return plan if publish else attrs.evolve(plan, staged_id=gen_uuid()[:16])
