"""Compatibility of schemas: evolution by null columns, shared columns of the datasets of a cube."""

from __future__ import annotations

import difflib
import pprint
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.arrow.pandas_metadata import extension_dtypes, with_pandas_metadata
from kartothek_cube.core.arrow.types import same_type
from kartothek_cube.core.errors import SchemaConflictError
from kartothek_cube.core.schema.wrapper import SchemaWrapper

__all__ = ("validate_compatible", "validate_shared_columns")

_MAX_ORIGIN = 200


def validate_compatible(
    schemas: Iterable[SchemaWrapper | pa.Schema], ignore_pandas: bool = False
) -> SchemaWrapper | None:
    """
    Check that files of these schemas form one table, and find the schema that knows most.

    Parameters
    ----------
    schemas
        The schemas. A column that is ``null`` in some may have any type in the others; all else has to agree:
        names, order, and types but for their width.
    ignore_pandas
        Whether schemas with and without pandas metadata may be mixed.

    Returns
    -------
    SchemaWrapper or None
        For each column the type, if any schema knows it; the origins of all. None if there are no schemas.

    Raises
    ------
    SchemaConflictError
        A ValueError; it names the origins of two schemas that do not fit, and shows the difference.

    Examples
    --------
    >>> import pyarrow as pa
    >>> old = SchemaWrapper(pa.schema([("CITY", pa.null())]), "old file")
    >>> new = SchemaWrapper(pa.schema([("CITY", pa.string())]), "new file")
    >>> validate_compatible([old, new]).types
    [DataType(string)]
    """
    distinct = _distinct(schemas)
    if not distinct:
        return None
    _check_pandas(distinct, ignore_pandas)
    reference, *others = distinct
    for schema in others:
        reference = _unite(reference, schema)
    return reference


def validate_shared_columns(
    schemas: Iterable[SchemaWrapper | pa.Schema], ignore_pandas: bool = False
) -> None:
    """
    Check that columns that occur in several of the schemas have one type.

    Parameters
    ----------
    schemas
        The schemas, for example of the datasets of a cube. ``null`` is compatible with every type.
    ignore_pandas
        Whether schemas with and without pandas metadata may be mixed.

    Raises
    ------
    SchemaConflictError
        A ValueError; it names the column, both types and where they come from.

    Examples
    --------
    >>> import pyarrow as pa
    >>> seed, weather = pa.schema([("DAY", pa.date32())]), pa.schema([("DAY", pa.string())])
    >>> validate_shared_columns([SchemaWrapper(seed, "seed"), SchemaWrapper(weather, "weather")])
    Traceback (most recent call last):
      ...
    kartothek_cube.core.errors.SchemaConflictError: Column 'DAY' is date32[day] in {seed} but string in
    {weather}.
    """
    distinct = _distinct(schemas)
    _check_pandas(distinct, ignore_pandas)
    seen: dict[str, tuple[pa.DataType, SchemaWrapper]] = {}
    for schema in distinct:
        for field in schema:
            seen_type, seen_schema = seen.setdefault(field.name, (field.type, schema))
            if pat.is_null(seen_type):
                seen[field.name] = (field.type, schema)
            elif not pat.is_null(field.type) and not same_type(seen_type, field.type):
                raise SchemaConflictError(
                    f"Column {field.name!r} is {seen_type} in {_format_origin(seen_schema)} "
                    f"but {field.type} in {_format_origin(schema)}."
                )


def _distinct(schemas: Iterable[SchemaWrapper | pa.Schema]) -> list[SchemaWrapper]:
    """Distinct schemas with the origins of all copies, sorted by origin for reproducible results."""
    wrapped = (s if isinstance(s, SchemaWrapper) else SchemaWrapper(s, "schema") for s in schemas)
    groups: dict[tuple[SchemaWrapper, bool], list[SchemaWrapper]] = {}
    for schema in sorted(wrapped, key=lambda s: sorted(s.origin)):
        groups.setdefault((schema, _has_pandas(schema)), []).append(schema)
    return [group[0].with_origin(set().union(*(s.origin for s in group))) for group in groups.values()]


def _has_pandas(schema: SchemaWrapper) -> bool:
    return schema.internal().metadata is not None


def _check_pandas(schemas: list[SchemaWrapper], ignore_pandas: bool) -> None:
    if not ignore_pandas and len({_has_pandas(schema) for schema in schemas}) > 1:
        raise SchemaConflictError(
            "Schemas with and without pandas metadata cannot be compared; "
            "use ignore_pandas=True to compare Arrow types."
        )


def _unite(reference: SchemaWrapper, schema: SchemaWrapper) -> SchemaWrapper:
    """The reference schema, with types from the other schema where it has none."""
    left, right = reference.internal(), schema.internal()
    if left.names != right.names or not all(map(_fits, left.types, right.types)):
        raise SchemaConflictError(_difference(reference, schema))
    types = [b if pat.is_null(a) else a for a, b in zip(left.types, right.types, strict=True)]
    united = pa.schema(list(zip(left.names, types, strict=True)))
    if left.metadata is not None or right.metadata is not None:
        united = with_pandas_metadata(united, _extensions(left, right))
    return SchemaWrapper(united, reference.origin | schema.origin)


def _fits(a: pa.DataType, b: pa.DataType) -> bool:
    return bool(pat.is_null(a) or pat.is_null(b) or same_type(a, b))


def _extensions(left: pa.Schema, right: pa.Schema) -> dict[str, str]:
    """Pandas extension types of the schema that knows the Arrow type."""
    unknown = {field.name for field in left if pat.is_null(field.type)}
    added = {name: dtype for name, dtype in extension_dtypes(right).items() if name in unknown}
    return extension_dtypes(left) | added


def _format_origin(schema: SchemaWrapper) -> str:
    text = "{" + ", ".join(sorted(schema.origin)) + "}"
    return text if len(text) <= _MAX_ORIGIN + 4 else text[:_MAX_ORIGIN] + "...}"


def _difference(reference: SchemaWrapper, schema: SchemaWrapper) -> str:
    arrow = _diff(_fields(reference), _fields(schema))
    pandas = _diff(_pandas(reference), _pandas(schema))
    return (
        f"Schema violation.\n\nOrigin schema: {_format_origin(schema)}\n"
        f"Origin reference: {_format_origin(reference)}\n\n"
        f"Difference of the Arrow schemas:\n{arrow}\n\nDifference of the pandas metadata:\n{pandas}"
    )


def _fields(schema: SchemaWrapper) -> list[str]:
    return [f"{field.name}: {field.type}" for field in schema]


def _pandas(schema: SchemaWrapper) -> list[str]:
    metadata: dict[str, Any] | None = schema.pandas_metadata
    return pprint.pformat(metadata).splitlines()


def _diff(a: list[str], b: list[str]) -> str:
    return "\n".join(difflib.unified_diff(a, b, "reference", "schema", lineterm=""))
