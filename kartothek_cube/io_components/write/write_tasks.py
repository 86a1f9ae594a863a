"""Input of writes of datasets and cubes, and their tasks: check, convert and sort rows, and write files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import arrow, errors, naming, pandas_conversion
from kartothek_cube.core.arguments import CallerLine, ensure_string_type
from kartothek_cube.core.commit import change
from kartothek_cube.core.cube.consistency import get_payload_subset, is_internal
from kartothek_cube.core.cube.constants import KLEE_TIMESTAMP_COLUMN
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.schema import SchemaWrapper, make_meta
from kartothek_cube.core.transforms import PartitionTransform, parse_transform
from kartothek_cube.io_components import dataset_arguments, kernels
from kartothek_cube.io_components.write import table_writer, write_plan
from kartothek_cube.io_components.write.stored_rows import StoredRows, positions_by_text
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteResult, WriteSpec, Written
from kartothek_cube.serialization.parquet import as_table_with_index

#: frame of the seed, or a dict of dataset id to one or a list of them
CubeElement: TypeAlias = arrow.Frame | Mapping[str, arrow.Frame | Sequence[arrow.Frame | None] | None] | None
#: input of a write
CubeInput: TypeAlias = CubeElement | Iterable[CubeElement]
#: one input of a write: a table, also with its name as in kartothek 5.3, written files, lists, or nothing
DatasetElement: TypeAlias = arrow.Frame | WriteResult | Mapping[str, Any] | list[Any] | None
#: inputs of a write
DatasetInput: TypeAlias = DatasetElement | Iterable[DatasetElement]
#: files that are written already and not committed, also in nested lists
HandlesInput: TypeAlias = WriteResult | list[Any] | None
#: a schema, or a table that has it
SchemaInput: TypeAlias = pa.Schema | SchemaWrapper | arrow.Frame


def write_part(plan: WritePlan, element: Any, *, unique: bool = True) -> Written:
    """Check and write one element of input; `unique`: cells that occur twice in it are an error."""
    if not plan.is_cube_write:
        spec = plan.spec
        return {spec.uuid: write_dataset_input(spec, element)}
    return write_frames(plan, collect_input(element, plan.cube), unique=unique)


def write_frames(plan: WritePlan, frames: Mapping[str, Sequence[Any]], *, unique: bool = True) -> Written:
    """Check all frames, by dataset id, then write them."""
    written = run_write(plan, prepare(plan, frames, unique=unique))
    return {name: written.get(name) or plan.specs[name].merge(()) for name in frames}


def write_parts(plan: WritePlan, elements: Iterable[Any]) -> Written:
    """Write elements one after the other; no more than one of them is held at a time."""
    return write_plan.merge_writes(map(partial(write_part, plan), elements))


def write_stream(plan: WritePlan, name: str, tables: Iterable[pa.Table], *, ordered: bool = False) -> Written:
    """Check and write the tables of one dataset, one after the other; `ordered`: rows are sorted by cell."""
    results: list[Written] = [{name: plan.specs[name].merge(())}]
    last_row: pa.Table | None = None
    try:
        for table in tables:
            if not plan.is_cube_write:
                results.append(write_part(plan, table))
                continue
            prepared = prepare(plan, {name: [table]})
            rows = prepared[name]
            if ordered and len(rows):
                # a partition may continue in the next table, a cell must not
                if last_row is not None:
                    check_unique(plan.specs[name], arrow.concat_promoted([last_row, rows.slice(0, 1)]))
                last_row = rows.slice(len(rows) - 1)
            results.append(run_write(plan, prepared))
    except BaseException:
        # also when the task is cancelled: no commit will ever refer to these files
        table_writer.delete_uncommitted(plan.store, [result for part in results for result in part.values()])
        raise
    return write_plan.merge_writes(results)


def run_write(plan: WritePlan, tables: Mapping[str, pa.Table], threads: int | None = None) -> Written:
    """Write the data files of prepared tables that have rows; the state of no dataset is touched."""
    return {
        name: table_writer.write_table(plan.specs[name], table, threads=threads)
        for name, table in tables.items()
        if len(table)
    }


# -- input of datasets --------------------------------------------------------------------------------------

#: dicts are often rows, or columns
_MAKE_FRAME = ". If the dict has rows or columns, pass pandas.DataFrame(...) of them"


def iter_inputs(data: Any) -> Iterator[Any]:
    """Iterate over the inputs of a write: any iterable of them, or a single one."""
    if data is None or is_frame(data) or isinstance(data, WriteResult | Mapping) or _is_named(data):
        yield data
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        yield from data
    else:
        raise TypeError(_not_a_frame(data))


def flatten(data: Any) -> Iterator[Any]:
    """Iterate over the elements of nested lists."""
    if isinstance(data, list):
        for item in data:
            yield from flatten(item)
    else:
        yield data


def iter_tables(spec: WriteSpec, data: Any) -> Iterator[tuple[WriteSpec, Any]]:
    """Iterate over tables in one input of a dataset, also written ones, each with its spec."""
    for item in flatten(data):
        if isinstance(item, Mapping) or _is_named(item):
            tables = list(_named_tables(spec, item))
            CallerLine.find().warn(
                "Input with the name of its table, a label or indices is deprecated: pass DataFrames, and "
                "names as table_name and secondary_indices. The label is not used: names of files are unique",
                DeprecationWarning,
            )
            yield from tables
        elif item is not None:
            yield spec if isinstance(item, WriteResult) else spec.of_table(None), item


def _is_named(item: Any) -> bool:
    """Whether an input is a pair of the name of a table and a frame."""
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


def _named_tables(spec: WriteSpec, item: Any) -> Iterator[tuple[WriteSpec, Any]]:
    """Iterate over the frames of a partition as kartothek 5.3 describes it."""
    tables, indices = [item] if isinstance(item, tuple) else item, ()
    if isinstance(item, Mapping) and "data" in item and not is_frame(item["data"]):
        errors.check_names("Partition in the input: ", "key", item, ("label", "data", "indices"))
        tables, indices = item["data"] or (), item.get("indices") or ()
    pairs = list(tables.items() if isinstance(tables, Mapping) else tables)
    if not all(map(_is_named, pairs)):
        raise ValueError('The data of a partition is a dict, {"table": frame}, or a list of pairs of these')
    for name, frame in pairs:
        if frame is not None and not is_frame(frame):
            raise ValueError(f"Table {name} of the input: {_not_a_frame(frame)}{_MAKE_FRAME}")
    write_plan.check_one_table(spec.uuid, {name for name, _ in pairs})
    for name, frame in pairs:
        if frame is not None:
            yield spec.of_table(name, indices), frame


def as_input(item: Any, keep_index: bool = False, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """Convert one input to an Arrow table; ``types`` are those of the stored columns."""
    if not is_frame(item) or isinstance(item, pd.Series | pa.ChunkedArray):
        raise ValueError(
            f"Cannot write {type(item).__name__}: input is a DataFrame, a table that Arrow reads, None, "
            "or a list of these"
        )
    if isinstance(item, pd.DataFrame) and len(item) and not len(item.columns):
        raise ValueError("Cannot write rows without columns; reset_index() makes columns of the index")
    if keep_index and isinstance(item, pd.DataFrame):
        return as_table_with_index(item, types)
    return pandas_conversion.as_table(item, types)


def check_result_target(spec: WriteSpec, result: WriteResult) -> None:
    """Check that partitions were written for the dataset to which they are added."""
    if (result.uuid, result.table) != (spec.uuid, spec.table):
        raise RuntimeError(
            f"Partitions written for table {result.table!r} of dataset {result.uuid!r} cannot be committed "
            f"to table {spec.table!r} of dataset {spec.uuid!r}"
        )


def write_dataset_input(spec: WriteSpec, data: Any) -> WriteResult:
    """Write one input: a table, None, what an earlier call wrote, or a list of these; no commit."""
    keep_index = not (spec.partition_on or spec.sort_by)
    written: list[WriteResult] = []
    tables: list[tuple[WriteSpec, pa.Table]] = []
    for own, item in iter_tables(spec, data):
        if isinstance(item, WriteResult):
            check_result_target(own, item)
            written.append(item)
            continue
        table = as_input(item, keep_index, spec.types)
        table_writer.check_input(own, table)
        own.check_schema(table)
        check_contract(own, table, own.partition_on)
        tables.append((own, table))
    names = {result.table for result in written} | {own.table for own, _ in tables}
    write_plan.check_one_table(spec.uuid, names)
    written += [table_writer.write_table(own, _sort_input(own, table)) for own, table in tables]
    return spec.merge(written)


def check_dataset_input(spec: WriteSpec, table: pa.Table) -> WriteResult:
    """Check the columns of an input before any row is read; the result has its schema and no files."""
    spec = spec.of_table(None)
    rows = as_input(table, False, spec.types)
    table_writer.check_input(spec, _sort_input(spec, rows))
    spec.check_schema(rows)
    keys = list(spec.partition_on)
    return WriteResult(spec.uuid, spec.table, make_meta(rows, spec.uuid, partition_keys=keys))


def _sort_input(spec: WriteSpec, table: pa.Table) -> pa.Table:
    """Sort rows by the columns of the spec, nulls last; the sort is stable."""
    where = f"Cannot sort the input for dataset {spec.uuid!r}: "
    errors.check_names(where, "column", spec.sort_by, table.column_names)
    return kernels.sort_rows(table, spec.sort_by)


# -- input of cubes -----------------------------------------------------------------------------------------


def is_frame(obj: Any) -> bool:
    """Whether an object is a table by itself, and not a collection of tables."""
    return isinstance(obj, pd.DataFrame) or hasattr(obj, "__arrow_c_stream__")


def collect_input(data: Any, cube: Cube) -> dict[str, list[Any]]:
    """Group input frames by dataset id; an id with nothing but None has an empty list."""
    frames: dict[str, list[Any]] = {}
    for item in iter_inputs(data):
        if item is None:
            continue
        by_id = {cube.seed_dataset: item} if is_frame(item) else item
        if not isinstance(by_id, Mapping):
            # elements of an array, or the columns of a table of another library, say nothing
            raise TypeError(_not_a_frame(item if isinstance(data, list | tuple | Iterator) else data))
        for name, given in by_id.items():
            own = frames.setdefault(str(name), [])
            for frame in flatten(given):
                if frame is not None and not is_frame(frame):
                    raise TypeError(f"Dataset {name}: {_not_a_frame(frame)}{_MAKE_FRAME}")
                own += [] if frame is None else [drop_types_if_empty(frame)]
    return frames


def drop_types_if_empty(frame: arrow.Frame) -> arrow.Frame:
    """A DataFrame; without rows, its columns have no types: those of pandas (float64) need not be meant."""
    return frame.astype(object) if isinstance(frame, pd.DataFrame) and not len(frame) else frame


def _not_a_frame(obj: Any) -> str:
    name = type(obj).__name__
    if name == "DataFrame":
        name += f" of {type(obj).__module__.partition('.')[0]}"
    # of frames of Spark and dask, LazyFrames of Polars, datasets of Arrow, results of DuckDB
    methods = ("toPandas", "compute", "collect", "to_table", "df")
    method = next((method for method in methods if callable(getattr(obj, method, None))), None)
    return (
        "Expected a pandas.DataFrame or an Arrow table, a dict of names to these, or an iterable of them, "
        f"but got {name}{f'; call {method}()' if method else ''}"
    )


def check_announced(plan: WritePlan, names: Iterable[str]) -> None:
    """Check that input belongs to datasets that the plan has."""
    unknown = set(names) - set(plan.specs)
    if unknown:
        raise ValueError(
            f"Input for datasets that were not announced: {', '.join(sorted(unknown))}. "
            f"Specified were: {', '.join(sorted(plan.specs)) or 'none'}"
        )


def prepare(
    plan: WritePlan, frames: Mapping[str, Sequence[Any]], *, unique: bool = True
) -> dict[str, pa.Table]:
    """Check and sort input, by dataset id, before any of it is written; ids without frames are left out."""
    check_announced(plan, frames)
    given = {name: own for name, own in sorted(frames.items()) if own}
    tables = {name: prepare_table(plan.specs[name], own, unique=unique) for name, own in given.items()}
    _check_payload(plan, tables)
    _check_key_types(plan, tables)
    for name, table in tables.items():
        spec = plan.specs[name]
        spec.check_schema(table)
        table_writer.check_files(spec, table)
        # a cell that is merged into the stored ones may lack columns: what is written is checked
        if unique:
            check_contract(spec, table, key_columns(spec, table.column_names))
    return tables


def check_contract(spec: WriteSpec, table: pa.Table, cell: Sequence[str]) -> None:
    """Raise ContractViolationError for the first rule of rows that is broken."""
    for violations in spec.contract.find_in_rows(table, cell) if spec.contract.rules else ():
        raise violations.error(spec.uuid) from violations.cause


def _check_payload(plan: WritePlan, tables: Mapping[str, pa.Table]) -> None:
    """Refuse columns that no query would show, unless they are stored already, or that two datasets have."""
    owners: dict[str, str] = {}
    for name, table in tables.items():
        stored = plan.specs[name].types
        hidden = sorted(c for c in table.column_names if is_internal(c) and c not in stored)
        if hidden:
            raise ValueError(
                f"Reserved names of columns in dataset {name!r}: {', '.join(hidden)}. No query shows columns "
                f"that begin with two underscores, and {KLEE_TIMESTAMP_COLUMN}: rename or drop them"
            )
        for column in sorted(get_payload_subset(table.column_names, plan.cube)):
            if column in owners:
                problem = ValueError(
                    f"Found columns present in multiple datasets: {column} in {owners[column]}, {name}. "
                    "A payload column belongs to one dataset"
                )
                raise plan.abort_error(name, problem)
            owners[column] = name


def _check_key_types(plan: WritePlan, tables: Mapping[str, pa.Table]) -> None:
    """Check that key columns have one type in all new datasets, and in those of the cube."""
    keys = (*plan.cube.partition_columns, *plan.cube.dimension_columns)
    owners: dict[str, tuple[str, pa.DataType]] = {}
    for name in plan.cube.join_order(tables):
        if plan.specs[name].change.mode is change.WriteMode.UPDATE:
            # its own schema is compared as a whole
            continue
        stored, types = plan.specs[name].types, {f.name: f.type for f in tables[name].schema}
        for column in keys:
            if column not in types or pa.types.is_null(types[column]):
                continue
            dtype = arrow.widen(types[column])
            known = ("the cube", stored[column]) if column in stored else (f"dataset {name!r}", dtype)
            owner, expected = owners.setdefault(column, known)
            if not (pa.types.is_null(expected) or arrow.same_type(expected, dtype)):
                problem = errors.SchemaConflictError(
                    f"Column {column!r} is {expected} in {owner} but {dtype} in dataset {name!r}; "
                    "a column has one type in all datasets of a cube"
                )
                raise plan.abort_error(name, problem)


def prepare_table(spec: WriteSpec, frames: Iterable[Any], *, unique: bool = True) -> pa.Table:
    """Merge, check and sort the frames of a dataset."""
    tables: list[pa.Table] = []
    for frame in frames:
        if isinstance(frame, pd.DataFrame):
            duplicates = sorted(dataset_arguments.extract_duplicates(map(ensure_string_type, frame.columns)))
            if duplicates:
                raise ValueError(f"Duplicate columns in dataset {spec.name!r}: {', '.join(duplicates)}")
            check_index(spec, frame)
            if isinstance(frame.index, pd.MultiIndex):
                frame = frame.reset_index(drop=True)
        tables.append(derive_columns(spec, pandas_conversion.as_table(frame, spec.types)))
        _check_columns(spec, tables[-1].column_names)
    first, *others = [t for t in tables if len(t)] or tables[:1]
    # the frames count as one: by a gap in one, floats without gaps in others are integers
    table = pandas_conversion.restore_types(_concat(spec, [first, *others]), spec.types) if others else first
    _check_keys(spec, table)
    table = kernels.sort_rows(table, key_columns(spec, table.column_names))
    if unique:
        check_unique(spec, table)
    return table


def derive_columns(spec: WriteSpec, table: pa.Table) -> pa.Table:
    """Add the partition columns that are transforms; those that the input has are checked."""
    for transform in spec.transforms(table.column_names):
        _check_nulls(spec, "dimension", transform.column, table.column(transform.column))
        values = transform.apply(table.column(transform.column))
        position = table.schema.get_field_index(transform.name)
        if position < 0:
            table = arrow.append_columns(table, [(transform.name, values)])
        elif not pa.types.is_null(values.type):
            _check_derived(spec, transform, table, values)
            table = table.set_column(position, transform.name, values)
    return table


def _check_derived(spec: WriteSpec, transform: PartitionTransform, table: pa.Table, values: pa.Array) -> None:
    """Refuse a partition column of the input with other values than those that its transform gives."""
    given = table.column(transform.name)
    try:
        is_same = pc.equal(given.cast(values.type), pa.chunked_array([values]))
    except pa.ArrowException:
        is_same = pa.chunked_array([pa.repeat(False, len(table))])
    wrong = np.flatnonzero(~arrow.to_numpy(pc.fill_null(is_same, False)))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"Dataset {spec.name!r}: column {transform.name!r} has other values than {transform!r} in "
            f"{len(wrong):,} of {errors.format_count(len(table), 'row')}, such as {given[row].as_py()!r} "
            f"where {transform.column} is {table.column(transform.column)[row].as_py()!r}, which gives "
            f"{values[row].as_py()!r}. Drop the column: it is derived"
        )


def check_index(spec: WriteSpec, frame: Any) -> None:
    """Refuse a DataFrame that has columns of the cube in its index, which is not stored; warn of others."""
    if not isinstance(frame, pd.DataFrame):
        return
    cube, columns = spec.cube, set(map(ensure_string_type, frame.columns))
    names = [ensure_string_type(name) for name in frame.index.names if name is not None]
    keys = (*cube.dimension_columns, *cube.partition_columns, *cube.index_columns, *spec.partition_on)
    if dropped := [name for name in names if name not in columns]:
        text = f"Dataset {spec.name!r}: the index of the DataFrame, {', '.join(dropped)}, is not stored; "
        text += "reset_index() makes columns of it"
        if {*keys, *spec.types}.intersection(dropped):
            raise ValueError(text)
        CallerLine.find().warn(text)


def _check_columns(spec: WriteSpec, names: Sequence[str]) -> None:
    cube, columns, is_seed = spec.cube, set(names), spec.name == spec.cube.seed_dataset
    naming.check_column_names(names)
    where = f"dataset {spec.name!r}"
    dimensions = cube.dimension_columns
    if is_seed:
        errors.check_names(
            f"Missing dimension columns in seed data ({where}): ", "column", dimensions, columns
        )
    if columns.isdisjoint(dimensions):
        raise ValueError(
            f"Dataset {spec.name!r} must have at least one of the following dimension columns: "
            f"{', '.join(sorted(dimensions))}{_as_dimension(columns & set(spec.foreign))}"
        )
    missing = set(spec.partition_on) - columns
    if missing:
        underivable = [transform for transform in cube.transforms if transform.name in missing]
        hint = f". To derive it, {underivable[0]!r} needs {underivable[0].column}" if underivable else ""
        if texts := [each for each in map(parse_transform, missing) if isinstance(each, PartitionTransform)]:
            hint = f". A transform is no text: pass {texts[0]!r}, from kartothek_cube.api.cube"
        if spec.schema is None and not is_seed and columns.isdisjoint(cube.partition_columns):
            hint += f". A build or extension with partition_on={{{spec.name!r}: []}} needs none"
        raise ValueError(
            f"Missing partition columns in {where}: {errors.unknown_names('column', missing, columns)}{hint}"
        )
    unspecified = (set(cube.partition_columns) & columns) - set(spec.partition_on)
    if unspecified:
        raise ValueError(
            f"Unspecified but provided partition columns in {where}: {', '.join(sorted(unspecified))}. "
            "Name them in partition_on or drop them"
        )
    if spec.schema is not None:
        _check_stored_keys(spec, columns)
    clashes = {c: spec.foreign[c] for c in sorted(get_payload_subset(columns, cube)) if c in spec.foreign}
    if clashes:
        text = ", ".join(f"{column} (in {owner})" for column, owner in clashes.items())
        problem = f"Payload written in {where} is already present in cube: {text}{_as_dimension(clashes)}"
        raise errors.SchemaConflictError(problem)


def _as_dimension(payload: Collection[str]) -> str:
    """Advice on joins of datasets by columns that are payload of others."""
    names = ", ".join(sorted(payload))
    hint = (
        f". Datasets are joined by dimensions only: if {names} identifies rows, build the cube with it in "
        "dimension_columns; else rename or drop it"
    )
    return hint if names else ""


def _check_stored_keys(spec: WriteSpec, columns: Collection[str]) -> None:
    """Refuse input that adds a key or an index column to a stored dataset, or lacks one in merge mode."""
    cube, stored = spec.cube, spec.types
    keys = {*cube.dimension_columns, *cube.partition_columns, *cube.index_columns, *spec.indices}
    if spec.evolving is not None:
        where = f"Missing columns in dataset {spec.name!r}: "
        remedy = ". schema_mode='merge' may leave out payload without an index only"
        errors.check_names(where, "column", keys.intersection(stored), columns, remedy)
    new = (keys & set(columns)) - set(stored)
    if new:
        raise errors.SchemaConflictError(
            f"Dataset {spec.name!r} has no column {', '.join(sorted(new))}, and its rows would have null "
            "there: drop it, as dimension, partition and index columns are not added to stored rows"
        )


def _concat(spec: WriteSpec, tables: Sequence[pa.Table]) -> pa.Table:
    first = tables[0]
    for other in tables[1:]:
        differ = sorted(set(other.column_names) ^ set(first.column_names))
        if differ:
            raise ValueError(
                f"Frames of dataset {spec.name!r} have different columns: {', '.join(differ)} only in some"
            )
    try:
        return arrow.concat_promoted([t.select(first.column_names) for t in tables])
    except pa.ArrowException as exc:
        raise ValueError(f"Frames of dataset {spec.name!r} have columns of different types: {exc}") from exc


def _check_keys(spec: WriteSpec, table: pa.Table) -> None:
    """Refuse nulls and nested values in partition, dimension and index columns."""
    dimensions, indexed = spec.cube.dimension_columns, spec.cube.index_columns
    for kind, columns in (("partition", spec.partition_on), ("dimension", dimensions), ("index", indexed)):
        for column in sorted(set(columns) & set(table.column_names)):
            values = table.column(column)
            if pa.types.is_nested(values.type):
                raise TypeError(
                    f'The {kind} column "{column}" of dataset "{spec.name}" has the nested type '
                    f"{values.type}. A {kind} column holds single values"
                )
            _check_nulls(spec, kind, column, values)


def _check_nulls(spec: WriteSpec, kind: str, column: str, values: pa.ChunkedArray) -> None:
    nulls = arrow.count_nulls(values)
    if nulls:
        raise ValueError(
            f'Found NULL-values in {kind} column "{column}" of dataset "{spec.name}" '
            f"({nulls:,} of {errors.format_count(len(values), 'row')}). Fill or drop them before writing"
        )


def key_columns(spec: WriteSpec, names: Collection[str]) -> list[str]:
    """The columns that identify a cell, in the order by which files are sorted."""
    return [c for c in (*spec.cube.partition_columns, *spec.cube.dimension_columns) if c in names]


# -- cells that occur twice ---------------------------------------------------------------------------------


def check_unique(spec: WriteSpec, table: pa.Table) -> None:
    """Raise errors.DuplicateCellsError if a cell occurs twice."""
    names = key_columns(spec, table.column_names)
    columns = [table.column(c) for c in names]
    if kernels.strictly_increasing(columns, len(table)):
        return
    last = kernels.last_rows_mask(columns, len(table))
    if last is None:
        return
    hidden = table.slice(int(np.flatnonzero(~last)[0]), 1)
    matches = kernels.lookup_keys(columns, [hidden.column(c) for c in names], len(table), 1)
    raise _duplicates(spec, table.filter(pa.array(matches >= 0)), names)


def _duplicates(spec: WriteSpec, rows: pa.Table, keys: Sequence[str]) -> errors.DuplicateCellsError:
    """Say which cell occurs more than once, and how its rows differ."""
    first = rows.slice(0, 10)
    frame = pandas_conversion.to_pandas(first)
    payload = sorted(set(frame.columns) - set(keys))
    values = {c: first.column(c).to_pylist() for c in payload}
    # NaN is the same as NaN
    same = [c for c, (a, *others) in values.items() if all(b == a or (b != b and a != a) for b in others)]
    differ = [c for c in payload if c not in same]
    shown = f"Its {len(rows)} rows:\n{frame[differ].to_string()}\n" if differ else ""
    shown += f"Equal in its {len(rows)} rows:\n{frame[same].iloc[0].to_string()}\n" if same else ""
    cell = {c: rows.column(c)[0].as_py() for c in keys}
    remedy = "Drop or aggregate the duplicates before writing."
    return errors.DuplicateCellsError(spec.name, cell, same, differ, detail=f"{shown}{remedy}")


def check_duplicate_cells(plan: WritePlan, results: Written) -> None:
    """Raise errors.DuplicateCellsError if independent tasks wrote the same cell into several files."""
    for name, result in results.items():
        if result.schema is None or not len(result.labels):
            continue
        spec, files = plan.specs[name], result.partitions()
        stored = StoredRows(spec, result.schema.internal())
        for positions in positions_by_text(stored.folders(files)).values():
            if len(positions) < 2:
                continue
            own = files.take(positions)
            try:
                check_unique(spec, stored.read(own, [*stored.keys, *stored.cell]).table)
            except errors.DuplicateCellsError:
                # its message shows in which columns the rows of a cell differ
                check_unique(spec, stored.read(own).table)
                raise
