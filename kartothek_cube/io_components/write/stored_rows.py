"""Stored rows of partitions: read to be written again, or to be checked; contracts of stored datasets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from itertools import chain
from typing import Any, Self

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import arguments, clock, errors, evolution, history, pandas_conversion
from kartothek_cube.core import contract as contracts
from kartothek_cube.core.arrow import Ints, Mask, same_type, to_numpy
from kartothek_cube.core.commit import optimistic
from kartothek_cube.core.commit.change import (
    ChangeSet,
    IndexUpdate,
    UnchangedMetadata,
    UnchangedPartitions,
    WriteMode,
)
from kartothek_cube.core.contract import CellsInSeed, Contract, ContractRule, Fresh, RowCount, Violations
from kartothek_cube.core.cube import consistency, constants, discover
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions import AllOf, LiteralType, all_of
from kartothek_cube.core.naming import CONTRACT, EVOLUTION
from kartothek_cube.core.partition import PartitionTable, group_positions, partition_folders
from kartothek_cube.core.store import StoreFactory, StoreInput, open_blobs
from kartothek_cube.io_components import kernels, runtime
from kartothek_cube.io_components.publication.published_table import publish_committed
from kartothek_cube.io_components.scan import FileRows, Scan, run_scans
from kartothek_cube.io_components.write.table_writer import index_entries
from kartothek_cube.io_components.write.write_plan import NO_CUBE, WriteSpec


@attrs.frozen
class StoredRows:
    """Scan of the stored rows of physical partitions of a dataset."""

    spec: WriteSpec
    #: types of the columns
    schema: pa.Schema
    #: how to read files that were written before a change of the schema
    mapping: evolution.ColumnMapping | None = attrs.field(default=None, eq=False, repr=False)

    @classmethod
    def of(cls, spec: WriteSpec, dataset: DatasetMetadata, **fields: Any) -> Self:
        """Those of the current state of a dataset."""
        return cls(spec, consistency.arrow_schema(dataset), dataset.column_mapping, **fields)

    @classmethod
    def of_state(
        cls, store: StoreFactory, state: DatasetMetadata, cube: Cube = NO_CUBE, **fields: Any
    ) -> Self:
        """Those of a state, which are read only."""
        keys = tuple(state.partition_keys or ())
        spec = WriteSpec(store, state.uuid, state.table_name, keys, name=state.uuid, cube=cube)
        return cls.of(spec, state, **fields)

    @property
    def keys(self) -> list[str]:
        """Columns that identify a physical partition of the cube, or of a dataset without one."""
        spec = self.spec
        columns = spec.partition_on if spec.cube is NO_CUBE else spec.cube.partition_columns
        stored = set(self.schema.names)
        return [c for c in columns if c in stored]

    @property
    def cell(self) -> list[str]:
        """Columns that identify a cell within a physical partition."""
        return [c for c in self.spec.cube.dimension_columns if c in self.schema.names]

    def read(
        self, files: PartitionTable, names: Sequence[str] | None = None, where: AllOf | None = None
    ) -> FileRows:
        """Columns of the rows that meet a condition, with the partition keys, in the order of commit."""
        spec, names = self.spec, self.schema.names if names is None else names
        keys = files.files[spec.table].to_pylist()
        columns = [c for c in names if c not in spec.partition_on]
        filters = None if where is None else [where] * len(keys)
        scan = Scan(keys, columns, self.schema, filters, self.mapping)
        ((table, lengths),) = run_scans(open_blobs(spec.store), [scan])
        # objects that kartothek wrote have other types in each file
        fields = [self.schema.field(column) for column in columns]
        other = [f for f in fields if not same_type(f.type, table.schema.field(f.name).type)]
        table = pandas_conversion.cast_to_schema(table, pa.schema(other))
        extensions = pandas_conversion.extension_dtypes(table.schema)
        owner = pa.array(np.repeat(np.arange(len(keys)), lengths))
        for column, values in files.keys(spec.partition_on, self.schema).items():
            if column in names:
                table = table.append_column(column, values.take(owner))
        metadata = pandas_conversion.with_pandas_metadata(table.schema, extensions).metadata
        return FileRows(table.replace_schema_metadata(metadata), lengths)

    def read_columns(
        self, files: PartitionTable, names: Sequence[str]
    ) -> tuple[dict[str, pa.ChunkedArray], Ints]:
        """Columns of all rows in the types of the dataset, and the number of the first row of each file."""
        rows, lengths = self.read(files, names)
        columns = {name: rows.column(name).cast(self.schema.field(name).type) for name in names}
        return columns, np.cumsum(lengths) - lengths

    def read_indices(self, files: PartitionTable, names: Sequence[str]) -> dict[str, IndexUpdate]:
        """Index entries of columns, which the files hold."""
        columns, starts = self.read_columns(files, names)
        return {name: index_entries(c, starts, files.labels, c.type) for name, c in columns.items()}

    @property
    def partition_keys(self) -> tuple[str, ...]:
        """Partition columns of the cube that are partition keys of the dataset."""
        return tuple(c for c in self.keys if c in self.spec.partition_on)

    def folders(self, files: PartitionTable, columns: Sequence[str] | None = None) -> pa.StringArray:
        """Values of these partition keys or some, as in labels, of each file."""
        columns = self.partition_keys if columns is None else columns
        return partition_folders(files, columns, self.spec.partition_on, self.schema)

    def select_visible(self, table: pa.Table, partition: Sequence[str] | None = None) -> pa.Table:
        """The last version of each cell, sorted ("DataFrame Normalization" in the cube format)."""
        order = [*(self.keys if partition is None else partition), *self.cell]
        last = kernels.last_rows_mask([table.column(c) for c in order], len(table))
        return kernels.sort_rows(table if last is None else table.filter(pa.array(last)), order)


def positions_by_text(texts: pa.StringArray) -> dict[str, Ints]:
    """Positions of each text."""
    groups = group_positions(texts.dictionary_encode().indices.to_numpy())
    return {texts[int(group[0])].as_py(): group for group in groups}


@attrs.frozen
class ValuesKept:
    """Added rows that lack a column of the state are no cells for which it has a value in that column."""

    # appends that leave out columns must not hide stored values: a cell is replaced as a whole
    store: StoreFactory
    cube: Cube

    def check(self, state: DatasetMetadata | None, change: ChangeSet) -> None:
        """Raise ValueError if a value would turn into null, or into the default of its column."""
        # a replacement is made of the stored rows
        if state is None or state.schema is None or change.schema is None or change.replaces is not None:
            return
        lacking = sorted(set(state.schema.names) - set(change.schema.names))
        if not lacking:
            return
        source = StoredRows.of_state(self.store, state, self.cube)
        # an append removes no files
        folders, added = (source.folders(table) for table in (state.partition_table, change.added))
        files = state.partition_table.filter(pc.is_in(folders, value_set=added))
        if not len(files):
            return
        cell = [*source.keys, *source.cell]
        rows = source.read(change.added, cell).table
        bounds = [literal for c in source.cell for literal in _bounds(c, rows.column(c))]
        stored = source.select_visible(source.read(files, [*cell, *lacking], all_of(bounds)).table)
        of_stored, of_rows = ([table.column(c) for c in cell] for table in (stored, rows))
        matches = kernels.lookup_keys(of_stored, of_rows, len(stored), len(rows))
        stored = stored.filter(pa.array(matches >= 0))
        defaults = {} if state.column_mapping is None else state.column_mapping.defaults
        hidden = {c: mask for c in lacking if (mask := _differs(stored.column(c), defaults.get(c))).any()}
        if hidden:
            is_hidden = np.logical_or.reduce(list(hidden.values()))
            example = {c: stored.column(c)[int(np.flatnonzero(is_hidden)[0])].as_py() for c in cell}
            raise ValueError(
                f"The input for dataset {state.uuid!r} lacks {', '.join(hidden)}, of which "
                f"{errors.format_count(int(is_hidden.sum()), 'stored cell')} would lose the value, such as "
                f"{example}. Use merge_into_cube, which keeps it, or add these columns with values"
            )


def _bounds(column: str, values: pa.ChunkedArray) -> list[LiteralType]:
    """Conditions that all of some values meet; none for floats, whose NaN is in no range."""
    if pa.types.is_floating(values.type):
        return []
    bounds = pc.min_max(values)
    return [(column, ">=", bounds["min"].as_py()), (column, "<=", bounds["max"].as_py())]


def _differs(values: pa.ChunkedArray, default: pa.Scalar | None) -> Mask:
    """Mask of values that are neither null nor the default."""
    valid: Mask = to_numpy(values.is_valid())
    if default is not None:
        valid = valid & ~to_numpy(pc.fill_null(pc.equal(values, default), False))
    return valid


#: physical partitions that are read at a time
_PARTITIONS_PER_BLOCK = 64
#: partitions that an error shows
_EXAMPLES = 3


@attrs.frozen
class _Files(StoredRows):
    """Files of a dataset, and how their rows are read."""

    files: PartitionTable = attrs.field(kw_only=True)

    def blocks(self) -> Iterator[_Files]:
        """Files of some whole physical partitions at a time."""
        partitions = list(positions_by_text(self.folders(self.files)).values())
        for groups in runtime.batched(partitions, _PARTITIONS_PER_BLOCK):
            yield attrs.evolve(self, files=self.files.take(np.sort(np.concatenate(groups))))

    def rows(self, columns: Iterable[str]) -> pa.Table:
        """Columns of the rows, in the order of commit."""
        names = [c for c in dict.fromkeys(columns) if c in self.schema.names]
        nothing = self.schema.empty_table().select(names)
        return self.read(self.files, names).table if len(self.files) else nothing

    def beside(self, other: _Files) -> _Files:
        """Those that may have the cells of another dataset."""
        columns = [c for c in other.partition_keys if c in self.partition_keys]
        own, others = (files.folders(files.files, columns) for files in (self, other))
        mask = to_numpy(pc.is_in(own, value_set=others))
        return attrs.evolve(self, files=self.files.filter(mask))


def check_write(spec: WriteSpec, changes: Mapping[str, ChangeSet]) -> ChangeSet:
    """Check the rules of a whole write of a dataset, by uuid; the change, with what has to be unchanged."""
    change, rules = changes[spec.uuid], spec.contract.of_write
    if not rules or change.schema is None or not len(change.added):
        return change
    written = _Files(spec, change.schema.internal(), files=change.added)
    counts = [rule for rule in rules if isinstance(rule, RowCount)]
    others = [rule for rule in rules if not isinstance(rule, RowCount)]
    seed = None
    if CellsInSeed in map(type, rules):
        seed = _after(spec, changes, spec.cube.seed_dataset)[0].beside(written)
        known, labels = change.seed_labels, seed.files.labels
        if known is not None and pc.all(pc.is_in(known, value_set=labels)).as_py():
            # it has the files in which a check found the cells
            others = [rule for rule in others if not isinstance(rule, CellsInSeed)]
        change = attrs.evolve(change, seed_labels=labels)
    found = _find_in_partitions(others, written, seed, visible=False)
    if counts:
        after, labels = _after(spec, changes, spec.name)
        found = chain(found, _find_in_partitions(counts, after.beside(written), None))
        if change.mode is WriteMode.UPDATE:
            folders = written.folders(written.files).unique()
            unchanged = UnchangedPartitions(written.partition_keys, folders, labels)
            change = attrs.evolve(change, requires=(*change.requires, unchanged))
    for violations in found:
        raise violations.error(spec.uuid)
    return change


def check_staged_write(store: StoreFactory, changes: Mapping[str, ChangeSet]) -> None:
    """Check rules again that depend on the seed or on the time."""
    by_uuid = {change.uuid: change for change in changes.values()}
    for uuid, change in by_uuid.items():
        # the contract with which the rows were checked; if it is another one now, the commit is refused
        required = [r for r in change.requires if isinstance(r, UnchangedMetadata) and r.key == CONTRACT]
        checked = [Contract.of(uuid, {CONTRACT: r.value}) for r in required if isinstance(r.value, list)]
        rules = [r for contract in checked for r in contract.of_write if isinstance(r, CellsInSeed | Fresh)]
        if rules:
            prefix, _, name = uuid.partition(constants.KTK_CUBE_UUID_SEPARATOR)
            cube, datasets = discover.discover_cube(prefix, store)
            if not optimistic.is_committed(datasets.get(name), change):
                spec = _spec(store, cube, name, change)
                check_write(attrs.evolve(spec, contract=Contract(tuple(rules))), by_uuid)


def _spec(store: StoreFactory, cube: Cube, name: str, change: ChangeSet) -> WriteSpec:
    """Specification of the files that a change adds."""
    keys = tuple(change.partition_keys or ())
    return WriteSpec(store, change.uuid, change.table, keys, name=name, cube=cube)


def _after(spec: WriteSpec, changes: Mapping[str, ChangeSet], name: str) -> tuple[_Files, pa.StringArray]:
    """The files that a dataset of the cube has after a write, and labels of the state before it."""
    uuid = spec.cube.ktk_dataset_uuid(name)
    change = changes.get(uuid)
    if change is not None and change.mode is not WriteMode.UPDATE and change.schema is not None:
        new = _spec(spec.store, spec.cube, name, change)
        return _Files(new, change.schema.internal(), files=change.added), change.added.labels
    state = DatasetMetadata.load_from_store(uuid, open_blobs(spec.store))
    files = _Files.of_state(spec.store, state, spec.cube, files=state.partition_table)
    if change is None:
        return files, files.files.labels
    removed = change.removal_mask(state)
    if change.replaces is not None:
        positions = state.partition_table.positions(change.replaces)
        removed[positions[positions >= 0]] = True
    after = attrs.evolve(files, files=files.files.filter(~removed).concat(change.added))
    return after, files.files.labels


def _find_cells(
    rule: ContractRule, rows: pa.Table, cell: list[str], block: _Files, seed: _Files | None
) -> Violations | None:
    """Rows of some files whose cell another row has, or the seed lacks."""
    mask = np.zeros(len(rows), bool)
    if isinstance(rule, contracts.UniqueCells):
        codes = kernels.group_codes([rows.column(c) for c in cell], len(rows))
        mask = np.bincount(codes)[codes] > 1
    elif isinstance(rule, CellsInSeed) and seed is not None:
        cells = seed.beside(block).rows(cell)
        columns = [c for c in cell if c in cells.column_names]
        of_rows, of_seed = ([table.column(c) for c in columns] for table in (rows, cells))
        mask = kernels.lookup_keys(of_rows, of_seed, len(rows), len(cells)) < 0
    return contracts.find_violations(rule, rows, mask, cell)


def _newest(rule: Fresh, rows: pa.Table) -> list[pd.Timestamp]:
    """The newest time of some rows, in UTC; none where all are null."""
    if rule.column not in rows.column_names:
        return []
    newest = pc.max(rows.column(rule.column).combine_chunks()).as_py()
    if newest is None:
        return []
    time = pd.Timestamp(newest)
    return [time.tz_localize(UTC) if time.tzinfo is None else time.tz_convert(UTC)]


def _find_old(rule: Fresh, newest: pd.Timestamp | None, n_rows: int) -> Iterator[Violations]:
    now = pd.Timestamp(clock.datetime_utcnow(), tz=UTC)
    if n_rows and (newest is None or now - newest > rule.max_age):
        age = "there is none" if newest is None else f"{newest}, {str(now - newest).partition('.')[0]} ago"
        yield Violations(rule, n_rows, n_rows, (), f"newest time: {age}")


def _find_in_partitions(
    rules: Sequence[ContractRule], files: _Files, seed: _Files | None, *, visible: bool = True
) -> Iterator[Violations]:
    """Violations of visible or all rows, partition by partition, in one pass; at most one per rule."""
    found, times = dict[ContractRule, Violations](), dict[str, list[pd.Timestamp]]()
    cell = [*files.keys, *files.cell]
    contract = Contract(tuple(rules))
    n_rows = 0
    for block in files.blocks() if rules else ():
        rows = block.rows([*cell, *contract.columns])
        rows = files.select_visible(rows) if visible else rows
        n_rows += len(rows)
        violations = list(contract.find_in_rows(rows, cell))
        for rule in rules:
            if isinstance(rule, RowCount):
                violations += _find_counts(rule, rows, files.keys)
            elif isinstance(rule, Fresh):
                times.setdefault(rule.column, []).extend(_newest(rule, rows))
            elif cells := _find_cells(rule, rows, cell, block, seed):
                violations.append(cells)
        for new in violations:
            old = found.setdefault(new.rule, new)
            if old is not new:
                examples = [*old.examples, *new.examples][: max(len(old.examples), len(new.examples))]
                count = old.n_violations + new.n_violations
                found[new.rule] = old._replace(n_violations=count, examples=examples)
    for rule in rules:
        if isinstance(rule, Fresh):
            yield from _find_old(rule, max(times.get(rule.column, ()), default=None), n_rows)
        if rule in found:
            yield found[rule]._replace(n_rows=n_rows)


def _find_counts(rule: RowCount, rows: pa.Table, keys: list[str]) -> Iterator[Violations]:
    """Rows of partitions that have too few or too many."""
    codes = kernels.group_codes([rows.column(c) for c in keys], len(rows))
    counts = np.bincount(codes, minlength=1 if len(rows) else 0)
    is_wrong = (counts < rule.min) | (counts > (rule.max if rule.max is not None else counts))
    if is_wrong.any():
        examples = []
        for code in np.flatnonzero(is_wrong)[:_EXAMPLES].tolist():
            (row,) = rows.slice(int(np.flatnonzero(codes == code)[0]), 1).to_pylist()
            examples.append({**{key: row[key] for key in keys}, "rows": int(counts[code])})
        yield Violations(rule, int(counts[is_wrong].sum()), len(rows), examples)


# -- stored rows ---------------------------------------------------------------------------------------------


def find_stored_violations(
    cube: Cube, store: StoreInput, datasets: Mapping[str, DatasetMetadata], name: str, contract: Contract
) -> Iterator[Violations]:
    """Violations of a contract by the visible rows of a dataset; rules of single writes do not count."""
    rules = [rule for rule in contract.rules if not isinstance(rule, contracts.UniqueCells)]
    if rules and len(datasets[name].partition_table):
        factory = runtime.store_factory(store)
        states = (datasets[dataset_id] for dataset_id in (name, cube.seed_dataset))
        files, seed = (_Files.of_state(factory, s, cube, files=s.partition_table) for s in states)
        yield from _find_in_partitions(rules, files, seed)


def set_contract(
    cube: Cube | str,
    store: StoreInput,
    dataset: str,
    rules: ContractRule | Iterable[ContractRule],
    *,
    check_existing: bool = True,
) -> DatasetMetadata:
    """Set the rules that rows of a dataset have to meet, in place of the former ones.

    They are stored with the dataset. Each write of this library checks them before its commit, whatever the
    façade: a violation is an error, and nothing is committed. Overwrites and rollbacks keep the contract.
    kartothek and plateau ignore it; :func:`verify_cube` finds what they wrote. Compactions and
    deletions check nothing.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    dataset
        Id of the dataset.
    rules
        Rules (:mod:`kartothek_cube.core.contract`), such as ``NotNull("KWH")``; an empty list removes the
        contract.
    check_existing
        Whether the rows that are stored are checked: all are read. Otherwise new rules are marked as not
        ``checked``.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    ContractViolationError
        Stored rows break a rule. Nothing is changed.
    TypeError, ValueError
        For unknown datasets and columns, and values of other types than those of the columns.
    ConcurrentWriteError
        Another writer added rows or changed columns meanwhile: repeat the call.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube, ensure_store
    >>> from kartothek_cube.core.contract import InRange, NotNull
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn"], "COUNTRY_CODE": ["DE"], "PEOPLE": [336]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = set_contract(cube, store, "seed", [NotNull("PEOPLE"), InRange("PEOPLE", min=0)])
    >>> append_to_cube(cities.assign(PEOPLE=-1), cube, store)
    Traceback (most recent call last):
    ...
    kartothek_cube.core.errors.ContractViolationError: Dataset 'geodata++seed' has the rule InRange(...
    """
    cube = discover.find_cube(cube, store)
    arguments.check_flag("check_existing", check_existing)
    blobs, contract = open_blobs(store), Contract.make(rules)
    dataset, existing = arguments.parse_name("dataset", dataset), discover.discover_datasets(cube, blobs)
    discover.choose_datasets(cube, dataset, existing)
    state = existing[dataset]
    schema = consistency.arrow_schema(state)
    errors.check_names(f"Contract of dataset {dataset!r}: ", "column", sorted(contract.columns), schema.names)
    if dataset == cube.seed_dataset and CellsInSeed in map(type, contract.rules):
        raise ValueError(f"CellsInSeed is a rule of other datasets than the seed, {dataset!r}")
    # raises TypeError for values of other types than those of the columns
    list(contract.find_in_rows(schema.empty_table(), ()))
    for rule in contract.rules:
        if isinstance(rule, Fresh):
            rule.check_type(schema.field(rule.column).type)
    # a write that was planned before cannot slip in between check and commit
    unchanged = (UnchangedPartitions.of_dataset(state),) if check_existing else ()
    for violations in find_stored_violations(cube, store, existing, dataset, contract) if unchanged else ():
        raise violations.error(state.uuid)
    old: tuple[ContractRule, ...] = ()
    with suppress(errors.CorruptDatasetError):
        old = Contract.of(state.uuid, state.metadata).rules
    # rules that are not new keep their marks
    checked = [attrs.evolve(rule, checked=True) for rule in contract.rules]
    marked = Contract.make(
        attrs.evolve(rule, checked=bool(check_existing) or rule in old) for rule in checked
    )
    change = ChangeSet(
        state.uuid,
        state.table_name,
        metadata={CONTRACT: marked.stored},
        merge_metadata=_replace_contract,
        info=history.describe_operation("set_contract"),
        requires=(UnchangedMetadata(EVOLUTION, state.metadata.get(EVOLUTION), "changed columns"), *unchanged),
    )
    return publish_committed(blobs, optimistic.commit(blobs, change)[0])


def _replace_contract(metadata: list[dict[str, Any]]) -> dict[str, Any]:
    stored, new = metadata
    return {key: value for key, value in {**stored, **new}.items() if key != CONTRACT or value is not None}


def list_contract(cube: Cube | str, store: StoreInput, dataset: str) -> list[ContractRule]:
    """List the rules that rows of a dataset have to meet.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    dataset
        Id of the dataset.

    Returns
    -------
    list of ContractRule
        ``str(rule)`` is a short form.

    Raises
    ------
    ValueError
        There is no such dataset, or its contract is malformed.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> from kartothek_cube.core.contract import NotNull
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn"], "COUNTRY_CODE": ["DE"], "PEOPLE": [336]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = set_contract(cube, store, "seed", [NotNull("PEOPLE")])
    >>> list_contract(cube, store, "seed")
    [NotNull(checked=True, column='PEOPLE')]
    """
    cube, dataset = discover.find_cube(cube, store), arguments.parse_name("dataset", dataset)
    existing = discover.discover_datasets(cube, open_blobs(store))
    discover.choose_datasets(cube, dataset, existing)
    return list(Contract.of(existing[dataset].uuid, existing[dataset].metadata).rules)
