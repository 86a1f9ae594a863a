"""``SchemaWrapper``: a normalised Arrow schema with its origins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from kartothek_cube.core.arrow.pandas_metadata import (
    check_single_index,
    extension_dtypes,
    index_columns,
    with_pandas_metadata,
)
from kartothek_cube.core.arrow.types import storage_type

__all__ = ("SchemaWrapper",)


class SchemaWrapper:
    """A schema and its origins.

    The wrapped schema has storage types (``string`` whatever the flavour, timestamps in ns), no index column
    and no metadata but that of pandas. Attributes of :class:`pyarrow.Schema` are available on the wrapper.

    Parameters
    ----------
    schema
        The schema, or a wrapper of one.
    origin
        Where it came from, one or several strings: shown in messages about conflicts.

    Raises
    ------
    TypeError
        An origin is no string.
    NotImplementedError
        The pandas metadata names several index columns.

    Examples
    --------
    >>> import pyarrow as pa
    >>> SchemaWrapper(pa.schema([("CITY", pa.large_string())]), "sales").field("CITY").type
    DataType(string)
    """

    __slots__ = ("_origin", "_schema")

    _schema: pa.Schema
    _origin: frozenset[str]

    def __init__(self, schema: pa.Schema | SchemaWrapper, origin: str | Iterable[str]) -> None:
        self._schema = _normalise(schema.internal() if isinstance(schema, SchemaWrapper) else schema)
        self._origin = _origins(origin)

    @property
    def origin(self) -> set[str]:
        """Where the schema came from; a copy."""
        return set(self._origin)

    def internal(self) -> pa.Schema:
        """The schema itself.

        Returns
        -------
        pyarrow.Schema

        Examples
        --------
        >>> import pyarrow as pa
        >>> SchemaWrapper(pa.schema([("CITY", pa.string())]), "sales").internal().names
        ['CITY']
        """
        return self._schema

    def with_origin(self, origin: str | Iterable[str]) -> SchemaWrapper:
        """The same schema with other origins.

        Parameters
        ----------
        origin
            The new origins.

        Returns
        -------
        SchemaWrapper

        Examples
        --------
        >>> import pyarrow as pa
        >>> SchemaWrapper(pa.schema([]), "sales").with_origin({"weather"}).origin
        {'weather'}
        """
        return self._wrap(self._schema, _origins(origin))

    def equals(self, other: SchemaWrapper | pa.Schema, check_metadata: bool = False) -> bool:
        """Whether both have the same columns of the same types in the same order.

        Parameters
        ----------
        other
            A wrapper or a schema.
        check_metadata
            Whether the pandas metadata has to be equal as well.

        Returns
        -------
        bool

        Raises
        ------
        TypeError
            ``other`` is no schema.

        Examples
        --------
        >>> import pyarrow as pa
        >>> schema = pa.schema([("CITY", pa.string())])
        >>> SchemaWrapper(schema, "sales").equals(schema)
        True
        """
        if not isinstance(other, (SchemaWrapper, pa.Schema)):
            raise TypeError(f"A schema can be compared with a schema only, got {type(other).__name__}.")
        schema = other.internal() if isinstance(other, SchemaWrapper) else _normalise(other)
        return bool(self._schema.equals(schema, check_metadata=check_metadata))

    def remove(self, i: int) -> SchemaWrapper:
        """The schema without the column at a position.

        Parameters
        ----------
        i
            The position.

        Returns
        -------
        SchemaWrapper

        Examples
        --------
        >>> import pyarrow as pa
        >>> SchemaWrapper(pa.schema([("CITY", pa.string()), ("DAY", pa.date32())]), "sales").remove(0).names
        ['DAY']
        """
        return self._wrap(_normalise(self._schema.remove(i)), self._origin)

    def set(self, i: int, field: pa.Field) -> SchemaWrapper:
        """The schema with another column at a position.

        Parameters
        ----------
        i
            The position.
        field
            The new column.

        Returns
        -------
        SchemaWrapper

        Examples
        --------
        >>> import pyarrow as pa
        >>> schema = SchemaWrapper(pa.schema([("CITY", pa.null())]), "sales")
        >>> schema.set(0, pa.field("CITY", pa.string())).types
        [DataType(string)]
        """
        return self._wrap(_normalise(self._schema.set(i, field)), self._origin)

    def remove_metadata(self) -> SchemaWrapper:
        """The schema without pandas metadata; its origins end in ``__no_metadata``.

        Returns
        -------
        SchemaWrapper

        Examples
        --------
        >>> import pyarrow as pa
        >>> SchemaWrapper(pa.schema([("CITY", pa.string())]), "sales").remove_metadata().metadata is None
        True
        """
        origins = frozenset(origin + "__no_metadata" for origin in self._origin)
        return self._wrap(self._schema.remove_metadata(), origins)

    @classmethod
    def _wrap(cls, schema: pa.Schema, origin: frozenset[str]) -> SchemaWrapper:
        """Wrap a schema that is normalised already."""
        wrapper = cls.__new__(cls)
        wrapper.__setstate__((schema, origin))
        return wrapper

    def __getstate__(self) -> tuple[pa.Schema, frozenset[str]]:
        return self._schema, self._origin

    def __setstate__(self, state: tuple[pa.Schema, frozenset[str]]) -> None:
        self._schema, self._origin = state

    def __getattr__(self, name: str) -> Any:
        if name in SchemaWrapper.__slots__:  # not yet there while unpickling
            raise AttributeError(name)
        return getattr(self._schema, name)

    def __eq__(self, other: object) -> bool:
        return self.equals(other) if isinstance(other, (SchemaWrapper, pa.Schema)) else NotImplemented

    def __hash__(self) -> int:
        return hash((tuple(self._schema.names), tuple(map(str, self._schema.types))))

    def __len__(self) -> int:
        return len(self._schema)

    def __getitem__(self, i: int | str) -> pa.Field:
        return self._schema.field(i)

    def __iter__(self) -> Iterator[pa.Field]:
        return iter(self._schema)

    def __repr__(self) -> str:
        return repr(self._schema)


def _origins(origin: str | Iterable[str]) -> frozenset[str]:
    origins = frozenset([origin] if isinstance(origin, str) else origin)
    for element in origins:
        if not isinstance(element, str):
            raise TypeError(
                f"The origin of a schema is a text, got {element!r} of type {type(element).__name__}."
            )
    return origins


def _normalise(schema: pa.Schema) -> pa.Schema:
    check_single_index(schema)
    index = index_columns(schema)
    fields = [pa.field(field.name, storage_type(field.type)) for field in schema if field.name not in index]
    if schema.metadata is None or b"pandas" not in schema.metadata:
        return pa.schema(fields)
    return with_pandas_metadata(pa.schema(fields), extension_dtypes(schema))
