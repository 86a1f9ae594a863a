"""Differences of data files from the schema: widths of numbers, columns added, dropped, renamed, widened.

The metadata of a dataset say how files that were written before a change differ from the schema. A column is
found in a file under its name, else under a former name, else it has its default. A name is never used
again for another column: older files still hold the values of the first one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import time
from functools import cached_property
from typing import Any, Self, TypeAlias

import attrs
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core import arrow, pandas_conversion, pruning
from kartothek_cube.core.errors import CorruptDatasetError, SchemaConflictError, check_names
from kartothek_cube.core.naming import EVOLUTION, check_column_names
from kartothek_cube.core.schema import SchemaWrapper, order_columns, validate_compatible
from kartothek_cube.core.uuid import gen_uuid

ColumnTypes: TypeAlias = Mapping[str, arrow.TypeInput]
"""Column to type: a type of Arrow, pandas, NumPy or Python, or its name (``"float64"``)."""


@attrs.frozen
class EvolvedColumn:
    """Name and type of a column in files that were written before a change."""

    #: whether files may lack it
    added: bool = False
    #: value in files that lack it, as text; None for null
    default: str | None = None
    #: names in older files
    former_names: tuple[str, ...] = ()
    #: whether older files have integers for floating point numbers
    widened: bool = False

    def to_json(self) -> dict[str, Any]:
        """The fields that are not at their default."""
        fields = attrs.asdict(self, filter=lambda field, value: value != field.default)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


@attrs.frozen
class _Evolution:
    """Content of the metadata entry."""

    columns: Mapping[str, EvolvedColumn] = attrs.field(factory=dict)
    #: columns in older files that are no columns of the dataset any more
    dropped: tuple[str, ...] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, Any], uuid: str) -> Self:
        entry = metadata.get(EVOLUTION)
        if entry is None:
            return cls()
        try:
            columns = {
                str(name): EvolvedColumn(
                    bool(fields.get("added", False)),
                    None if fields.get("default") is None else str(fields["default"]),
                    tuple(map(str, fields.get("former_names", ()))),
                    bool(fields.get("widened", False)),
                )
                for name, fields in entry.get("columns", {}).items()
            }
            return cls(columns, tuple(map(str, entry.get("dropped", ()))))
        except (AttributeError, TypeError) as error:
            raise CorruptDatasetError(uuid, f"its metadata {EVOLUTION} are malformed: {error}") from error

    def to_metadata(self) -> dict[str, Any]:
        """The metadata entry, as a version of the schema of its own (`schema_version_of`)."""
        columns = {name: column.to_json() for name, column in sorted(self.columns.items())}
        return {EVOLUTION: {"columns": columns, "dropped": sorted(self.dropped), "version": gen_uuid()}}

    def get(self, name: str) -> EvolvedColumn:
        return self.columns.get(name, EvolvedColumn())

    def effects(self) -> tuple[object, ...]:
        """Changes that give older files other columns or values than they have."""
        columns = {name: (column.default, column.former_names) for name, column in self.columns.items()}
        return {name: effect for name, effect in columns.items() if any(effect)}, {*self.dropped}

    def check_new(self, names: Iterable[str], uuid: str) -> None:
        """Raise ValueError for names under which older files hold another column."""
        used = {former: name for name, column in self.columns.items() for former in column.former_names}
        for name in sorted(names):
            if name in self.dropped or name in used:
                fate = f"was renamed to {used[name]}" if name in used else "was dropped"
                problem = f"Dataset {uuid!r}: column {name} {fate}, and older files still hold its values"
                raise ValueError(f"{problem}; choose another name")


@attrs.frozen(eq=False, slots=False)
class ColumnMapping:
    """Mapping of the columns of a dataset to files that were written before a change of its schema."""

    columns: Mapping[str, EvolvedColumn]
    dropped: frozenset[str]
    #: types of the evolved columns
    types: Mapping[str, pa.DataType]
    #: values of added columns in files that lack them; absent for null
    defaults: Mapping[str, pa.Scalar]

    @cached_property
    def _current_names(self) -> dict[str, str]:
        return {former: name for name, column in self.columns.items() for former in column.former_names}

    def stored_name(self, column: str, names: Collection[str]) -> str | None:
        """Name of a column in a file with these columns; None if the file lacks it."""
        candidates = (column, *self.columns[column].former_names) if column in self.columns else (column,)
        return next((name for name in candidates if name in names), None)

    def names_in(self, schema: pa.Schema) -> list[str]:
        """Columns of the dataset that a file with this schema gives."""
        hidden = {*self.dropped, *pandas_conversion.index_columns(schema)}
        names = [self._current_names.get(name, name) for name in schema.names if name not in hidden]
        added = [name for name, column in sorted(self.columns.items()) if column.added]
        return list(dict.fromkeys([*names, *added]))

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Schema of the columns that a file with this schema gives."""
        empty = schema.empty_table()
        names, in_file = self.names_in(schema), set(schema.names)
        stored = [s for name in names if (s := self.stored_name(name, in_file)) is not None]
        return self.adapt(empty.select(stored), names, 0).schema

    def adapt(self, stored: pa.Table, columns: Sequence[str], length: int) -> pa.Table:
        """Columns of the dataset out of those of a file, which may lack added ones."""
        arrays, in_file = [], set(stored.column_names)
        for column in columns:
            name = self.stored_name(column, in_file)
            if name is None:
                # like a column of a file that has null only: its type is that of the schema
                default = self.defaults.get(column)
                values = pa.nulls(length) if default is None else pa.repeat(default, length)
                arrays.append(pa.chunked_array([values]))
            else:
                arrays.append(self._widen(column, stored.column(name)))
        if not arrays:
            return arrow.zero_column_table(length)
        table = pa.Table.from_arrays(arrays, names=list(columns))
        dtypes = pandas_conversion.extension_dtypes(stored.schema)
        extensions = {self._current_names.get(name, name): dtype for name, dtype in dtypes.items()}
        if extensions:
            metadata = pandas_conversion.pandas_metadata(table.schema, extensions)
            table = table.replace_schema_metadata({"pandas": metadata})
        return table

    def _widen(self, column: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if column in self.columns and self.columns[column].widened and pat.is_integer(values.type):
            return values.cast(self.types[column])
        return values


def column_mapping(
    metadata: Mapping[str, Any], schema: SchemaWrapper | pa.Schema | None, uuid: str
) -> ColumnMapping | None:
    """Column mapping of a dataset with this metadata; None if all files have the columns of the schema."""
    if EVOLUTION not in metadata or schema is None:
        return None
    evolution = _Evolution.of(metadata, uuid)
    stored = set(schema.names)
    columns = {name: column for name, column in evolution.columns.items() if name in stored}
    types = {name: schema.field(name).type for name in columns}
    texts = {name: column.default for name, column in columns.items() if column.default is not None}
    try:
        defaults = {name: _parse_default(text, types[name]) for name, text in texts.items()}
    except (pa.ArrowException, ValueError) as error:
        raise CorruptDatasetError(uuid, f"its metadata {EVOLUTION} are malformed: {error}") from error
    return ColumnMapping(columns, frozenset(evolution.dropped), types, defaults)


def has_same_rows(old: Mapping[str, Any], new: Mapping[str, Any], uuid: str) -> bool:
    """Whether a file has the same rows in two states with this metadata; wider numbers are the same."""
    return _Evolution.of(old, uuid).effects() == _Evolution.of(new, uuid).effects()


def _parse_default(text: str, dtype: pa.DataType) -> pa.Scalar:
    # Arrow parses neither times nor durations
    if pat.is_time(dtype):
        return pa.scalar(time.fromisoformat(text), dtype)
    if pat.is_duration(dtype):
        return pa.scalar(int(text), pa.int64()).cast(dtype)
    return pa.scalar(text, pa.string()).cast(dtype)


def _format_default(column: str, value: Any, dtype: pa.DataType) -> str | None:
    """A default as text that gives the same value of the type again, None for null; raises ValueError."""
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return None
    if pat.is_nested(dtype):
        raise ValueError(f"defaults: column {column} is {dtype}, of which the default can only be null")
    try:
        if isinstance(value, str) and pat.is_temporal(dtype):
            scalar = _parse_default(value, dtype)
            value = scalar.as_py()
        else:
            scalar = pa.scalar(value, dtype)
        text = str(scalar.cast(pa.string()).as_py())
        # Arrow cuts off fractions, which would be another value
        if scalar.as_py() == value and _parse_default(text, dtype).equals(scalar):
            return text
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # the message below says more
        pass
    raise ValueError(f"defaults: {value!r} is no value of column {column}, which is {dtype}")


@attrs.frozen
class SchemaUpdate:
    """Changes of a schema: columns to drop, rename, widen and add, in this order."""

    add: Mapping[str, pa.DataType] = attrs.field(factory=dict)
    #: values of added columns in existing rows; null for others
    defaults: Mapping[str, object] = attrs.field(factory=dict)
    drop: tuple[str, ...] = ()
    #: new by old name
    rename: Mapping[str, str] = attrs.field(factory=dict)
    widen: Mapping[str, pa.DataType] = attrs.field(factory=dict)

    def apply(
        self,
        schema: SchemaWrapper,
        metadata: Mapping[str, Any],
        partition_keys: Sequence[str],
        fixed: Mapping[str, str],
        uuid: str,
    ) -> tuple[SchemaWrapper, dict[str, Any]]:
        """The schema and the metadata after the update; `fixed` columns cannot be changed, for a reason."""
        self._check(schema, fixed, uuid)
        evolution = _Evolution.of(metadata, uuid)
        columns = {name: column for name, column in evolution.columns.items() if name not in self.drop}
        types = {field.name: field.type for field in schema if field.name not in self.drop}
        extensions = pandas_conversion.extension_dtypes(schema.internal())
        former = {f for name in self.drop for f in evolution.get(name).former_names}
        dropped = {*evolution.dropped, *former, *self.drop}
        for old, new in self.rename.items():
            column = columns.pop(old, EvolvedColumn())
            names = tuple(dict.fromkeys(n for n in (old, *column.former_names) if n != new))
            if new not in column.former_names:
                attrs.evolve(evolution, dropped=tuple(dropped)).check_new([new], uuid)
            columns[new] = attrs.evolve(column, former_names=names)
            types[new] = types.pop(old)
            if old in extensions:
                extensions[new] = extensions[old]
        for name, dtype in self.widen.items():
            column = columns.get(name, EvolvedColumn())
            # also where no file lacks the column: rows that are appended later may
            default = None if column.default is None else _format_default(name, int(column.default), dtype)
            columns[name] = attrs.evolve(column, widened=True, default=default)
            types[name] = dtype
            extensions.pop(name, None)
        current = attrs.evolve(evolution, columns=columns, dropped=tuple(dropped))
        current.check_new(self.add, uuid)
        for name, dtype in self.add.items():
            default = _format_default(name, self.defaults.get(name), dtype)
            columns[name] = EvolvedColumn(added=True, default=default)
            types[name] = dtype
        extensions = {name: extension for name, extension in extensions.items() if name in types}
        new_schema = _make_schema(schema, types, extensions, partition_keys)
        metadata = {**metadata, **current.to_metadata()}
        if pruning.statistics_columns(metadata):
            kept = [name for name in metadata[pruning.STATISTICS] if name not in self.drop]
            metadata[pruning.STATISTICS] = [self.rename.get(name, name) for name in kept]
        return new_schema, metadata

    def apply_to_widths(self, widths: Mapping[str, int]) -> dict[str, int]:
        """Bits of the numbers in files; added and widened columns are as wide as in the schema."""
        gone = {*self.drop, *self.widen}
        return {self.rename.get(name, name): bits for name, bits in widths.items() if name not in gone}

    def apply_to_statistics(self, table: pa.Table) -> pa.Table:
        """Column statistics of the columns that remain as they are, or are renamed."""
        labels, *columns = table.column_names
        kept = [name for name in columns if name not in {*self.drop, *self.widen}]
        return table.select([labels, *kept]).rename_columns([labels, *(self.rename.get(c, c) for c in kept)])

    def _check(self, schema: SchemaWrapper, fixed: Mapping[str, str], uuid: str) -> None:
        where = f"Dataset {uuid!r}"
        changed = [*self.drop, *self.rename, *self.widen]
        check_names(f"{where}: ", "column", changed, schema.names)
        twice = sorted(name for name, count in Counter(changed).items() if count > 1)
        if twice:
            raise ValueError(f"{where}: several changes of column {', '.join(twice)}; make one at a time")
        for name in changed:
            if name in fixed:
                raise ValueError(f"{where}: column {name} is {fixed[name]} and cannot be changed")
        targets = [*self.add, *self.rename.values()]
        check_column_names(targets)
        # a name that becomes free only now is that of another column in older files
        names, counts = set(schema.names), Counter(targets)
        existing = sorted(name for name, count in counts.items() if name in names or count > 1)
        if existing:
            raise ValueError(f"{where}: column {existing[0]} exists already")
        strange = sorted(set(self.defaults) - set(self.add))
        if strange:
            raise ValueError(f"defaults: {strange[0]} is no column that is added")
        for name, dtype in self.widen.items():
            stored = schema.field(name).type
            if not (pat.is_integer(stored) and pat.is_floating(dtype)):
                problem = f"{where}: column {name} is {stored} and cannot be widened to {dtype}"
                raise ValueError(f"{problem}; integers can be widened to float64")


def _make_schema(
    old: SchemaWrapper,
    types: Mapping[str, pa.DataType],
    extensions: dict[str, str],
    partition_keys: Sequence[str],
) -> SchemaWrapper:
    """Schema of the same kind as `old`, with columns in the order of all datasets."""
    schema = pa.schema([(name, arrow.widen(types[name])) for name in order_columns(types, partition_keys)])
    if old.internal().metadata is not None:
        schema = pandas_conversion.with_pandas_metadata(schema, extensions)
    return SchemaWrapper(schema, old.origin)


def unite_schemas(
    stored: SchemaWrapper,
    given: SchemaWrapper,
    partition_keys: Sequence[str],
    evolving: Mapping[str, Any] | None,
    uuid: str,
    table: str,
) -> SchemaWrapper | None:
    """Schema of a dataset after rows of a schema are added; raises SchemaConflictError."""
    if stored.equals(given, check_metadata=True):
        return stored
    if evolving is not None:
        # raises ValueError for names under which older files hold another column
        merge_evolution(stored, given, evolving, uuid)
    try:
        if evolving is not None:
            return _merge_schemas(stored, given, partition_keys)
        return validate_compatible([stored, given])
    except SchemaConflictError as error:
        raise SchemaConflictError(error.problem, uuid, table) from error


def _merge_schemas(
    stored: SchemaWrapper, given: SchemaWrapper, partition_keys: Sequence[str]
) -> SchemaWrapper:
    """All columns of two schemas, whose common columns have to agree; raises SchemaConflictError."""
    names = set(given.names)
    common = [name for name in stored.names if name in names]
    united = validate_compatible([_select(stored, common), _select(given, common)])
    assert united is not None
    types = {field.name: field.type for schema in (stored, given, united) for field in schema}
    extensions: dict[str, str] = {}
    for schema in (stored, given, united):
        extensions |= pandas_conversion.extension_dtypes(schema.internal())
    return _make_schema(stored, types, extensions, partition_keys).with_origin(stored.origin | given.origin)


def _select(schema: SchemaWrapper, columns: Sequence[str]) -> SchemaWrapper:
    fields = [schema.field(name) for name in columns]
    return SchemaWrapper(pa.schema(fields, schema.internal().metadata), schema.origin)


def merge_evolution(
    stored: SchemaWrapper, given: SchemaWrapper, metadata: Mapping[str, Any], uuid: str
) -> dict[str, Any]:
    """The metadata after an append of files with other columns: files of either kind may lack some."""
    missing = set(stored.names) ^ set(given.names)
    if not missing:
        return dict(metadata)
    evolution = _Evolution.of(metadata, uuid)
    evolution.check_new(set(given.names) - set(stored.names), uuid)
    columns = {**evolution.columns, **{n: attrs.evolve(evolution.get(n), added=True) for n in missing}}
    return {**metadata, **attrs.evolve(evolution, columns=columns).to_metadata()}


# Schemas have the widest type of each kind, files the type that was written. So that all results have one
# type, which is known before a file is opened, headers record the columns whose numbers are narrower in
# all files. It is a field beside the commit record, not metadata of users: other libraries drop the fields
# that they do not know, so that no outdated record is left when they add files. Without a record, the
# types are read from the files. A commit to such a dataset begins one only if no older file is left.

#: field of headers: bits of the columns whose numbers are narrower than in the schema
WIDTHS_KEY = "kartothek_cube_widths"

Widths: TypeAlias = Mapping[str, int]
"""Column to bits of its numbers."""


def column_widths(schema: pa.Schema) -> dict[str, int]:
    """Bits of all columns of numbers, or of lists of numbers."""
    return {field.name: bits for field in schema if (bits := arrow.number_bits(field.type))}


def widest(parts: Iterable[Widths]) -> dict[str, int]:
    """The widest numbers of each column; a column may be missing, or null, in some of the parts."""
    widths: dict[str, int] = {}
    for part in parts:
        for name, bits in part.items():
            widths[name] = max(bits, widths.get(name, 0))
    return widths


def narrow_type(field: pa.Field, widths: Widths) -> pa.DataType:
    """The type of a column of a schema with the width of its numbers in files."""
    return arrow.with_number_bits(field.type, widths[field.name]) if field.name in widths else field.type


def with_widths(
    extra: Mapping[str, Any], schema: SchemaWrapper | None, widths: Widths | None
) -> dict[str, Any]:
    """Fields of a header with another record, or without one."""
    fields = {name: value for name, value in extra.items() if name != WIDTHS_KEY}
    if widths is None or schema is None:
        return fields
    full = column_widths(schema.internal())
    return {**fields, WIDTHS_KEY: {name: w for name, w in widths.items() if w < full.get(name, 0)}}


def parse_widths(extra: Mapping[str, Any]) -> Widths | None:
    """The record in the fields of a header; None if there is none, or no record of this library."""
    record = extra.get(WIDTHS_KEY)
    if not isinstance(record, dict) or not all(bits in (8, 16, 32) for bits in record.values()):
        return None
    return record
