"""SQL on cubes: a connection of DuckDB with the cube and its datasets as views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as pads

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import find_cube
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io.arrow_cube import cube_dataset
from kartothek_cube.io_components.arrow_dataset import TimestampUnit
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.physical_plan import load_datasets

if TYPE_CHECKING:
    import duckdb

__all__ = ("connect",)


def connect(
    cube: Cube | str,
    store: StoreInput,
    *,
    connection: duckdb.DuckDBPyConnection | None = None,
    timestamp_unit: TimestampUnit = "us",
    as_of: CubeAsOf | None = None,
) -> duckdb.DuckDBPyConnection:
    """Open a cube in DuckDB, which is the extra ``sql``.

    The cube is a view of its name, ``uuid_prefix``, and each dataset a view ``cube.dataset``. Each scan sees
    the newest snapshot; columns that the cube gets after this call are not in the views. Names with other
    characters than letters, digits and ``_`` need double quotes.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    connection
        Connection that gets the views, as of another cube; a new one in memory by default. A cursor, for
        another thread, needs views of its own: ``connect(cube, store, connection=cursor)``.
    timestamp_unit
        As in :func:`kartothek_cube.io.arrow_cube.cube_dataset`.
    as_of
        Version or point in time of the cube.

    Returns
    -------
    duckdb.DuckDBPyConnection

    Raises
    ------
    ImportError
        DuckDB is not installed.
    ValueError
        There is no such cube or version; or columns, datasets or cubes have names that differ in the case of
        ASCII letters only, which DuckDB ignores; or the cube has a name of DuckDB's own.
    TypeError
        ``connection`` is something else, such as a path.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> connect(cube, store).sql("SELECT count(*) FROM geodata").fetchall()
    [(2,)]
    """
    cube = find_cube(cube, store)
    ids = sorted(load_datasets(cube, store, as_of))
    prefix = cube.uuid_prefix
    sources = {
        name: cube_dataset(cube, store, dataset_id=name, timestamp_unit=timestamp_unit, as_of=as_of)
        for name in (None, *ids)
    }
    for name, source in sources.items():
        _check_columns(source.schema, f"cube {prefix!r}" if name is None else f"dataset {name!r}")
    opened = _connect() if connection is None else connection
    if not hasattr(opened, "register"):
        raise TypeError(
            f"connection is a connection of DuckDB, such as duckdb.connect(path), got {connection!r}"
        )
    _check_views(opened, prefix, ids)
    opened.execute(f"CREATE SCHEMA IF NOT EXISTS {_quote(prefix)}")
    for name, source in sources.items():
        # Python objects can only be views of the temporary schema
        view = _source_name(prefix, name)
        opened.register(view, source)
        target = _quote(prefix) if name is None else f"{_quote(prefix)}.{_quote(name)}"
        opened.execute(f"CREATE OR REPLACE VIEW {target} AS FROM temp.{_quote(view)}")
    return opened


def run_statement(
    statement: str, rows: pa.Table | pads.Dataset, columns: Sequence[str]
) -> duckdb.DuckDBPyRelation:
    """Run a statement in a database of its own, where columns of the rows are the view ``query``."""
    _check_columns(rows.schema, "the query")
    connection = _connect()
    # else a statement could name the variables of this function as tables
    connection.execute("SET python_enable_replacements = false")
    # no view of its own: DuckDB would propose its name for an unknown one
    connection.from_arrow(rows).project(", ".join(map(_quote, columns))).create_view("query")
    try:
        relation: duckdb.DuckDBPyRelation | None = connection.sql(statement)
    except Exception as error:
        error.add_note("The rows are those of the table query: SELECT ... FROM query")
        raise
    if relation is None:
        raise ValueError(f"The statement has no rows, write SELECT ... FROM query; got {statement!r}")
    return relation


def _connect() -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise ImportError("SQL needs DuckDB: pip install 'kartothek_cube[sql]'") from error
    connection: duckdb.DuckDBPyConnection = duckdb.connect()
    return connection


def _source_name(prefix: str, dataset: str | None) -> str:
    return f"{prefix}++{dataset or ''}"


def _fold(name: str) -> bytes:
    """A name as DuckDB compares it."""
    return name.encode().lower()


def _check_columns(fields: Iterable[pa.Field], where: str, parent: str = "") -> None:
    """Refuse columns, and fields of structs, that differ in case only."""
    seen: dict[bytes, str] = {}
    for field in fields:
        name = parent + field.name
        if (other := seen.setdefault(_fold(name), name)) != name:
            raise ValueError(
                f"SQL does not distinguish {other} and {name} of {where}: DuckDB ignores upper and lower "
                "case. Rename one, for example by update_schema"
            )
        if pa.types.is_nested(field.type):
            inner = [field.type.field(number) for number in range(field.type.num_fields)]
            _check_columns(inner, where, f"{name}.")


def _check_views(connection: duckdb.DuckDBPyConnection, prefix: str, datasets: Sequence[str]) -> None:
    """Refuse names that mean something else in DuckDB, or a view of another cube or dataset."""
    databases = connection.execute("SELECT database_name FROM duckdb_databases()").fetchall()
    if _fold(prefix) in {b"information_schema", b"pg_catalog", *(_fold(name) for (name,) in databases)}:
        raise ValueError(
            f"Cube {prefix!r} cannot be opened in SQL: DuckDB has a schema or database of that name. Copy it "
            "under another name (copy_cube), or pass a connection to another database"
        )
    views = connection.execute("SELECT view_name FROM duckdb_views() WHERE temporary AND NOT internal")
    names = [name for (name,) in views.fetchall() if "++" in name]
    owners = {_view_name(name): name for name in names}
    for source in (_source_name(prefix, dataset) for dataset in (None, *datasets)):
        if (other := owners.setdefault(_view_name(source), source)) != source:
            raise ValueError(
                f"SQL does not distinguish {_describe(other)} and {_describe(source)}: DuckDB ignores upper "
                "and lower case. Use a connection for each, or copy one under another name (copy_cube)"
            )


def _view_name(source: str) -> tuple[bytes, bytes]:
    """Schema and name of the view of a cube or dataset, as DuckDB compares them."""
    prefix, _, dataset = source.partition("++")
    return (_fold(prefix), _fold(dataset)) if dataset else (b"main", _fold(prefix))


def _describe(source: str) -> str:
    prefix, _, dataset = source.partition("++")
    return f"dataset {dataset!r} of cube {prefix!r}" if dataset else f"cube {prefix!r}"


def _quote(name: str) -> str:
    """Quote an identifier.

    >>> _quote('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'
