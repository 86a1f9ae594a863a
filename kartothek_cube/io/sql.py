"""SQL on cubes: a connection of DuckDB with the cube and its datasets as views.

Examples
--------
>>> import pandas as pd
>>> from kartothek_cube.core.cube.cube import Cube
>>> from kartothek_cube.io.eager_cube import build_cube
>>> from storefact import get_store_from_url
>>> store = get_store_from_url("hmemory://")
>>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
>>> cities = pd.DataFrame({"CITY": ["Ulm", "Bonn"], "COUNTRY_CODE": ["DE", "DE"], "PEOPLE": [126, 336]})
>>> _ = build_cube(cities, cube, store)
>>> connect(cube, store).sql("SELECT CITY FROM geodata.seed WHERE PEOPLE > 200").fetchall()
[('Bonn',)]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.arrow_cube import cube_dataset
from kartothek_cube.io_components.arrow_dataset import TimestampUnit
from kartothek_cube.io_components.maintenance.history import CubeAsOf
from kartothek_cube.io_components.query.planner import load_datasets

if TYPE_CHECKING:
    import duckdb

__all__ = ("connect",)


def connect(
    cube: Cube,
    store: StoreInput,
    *,
    connection: duckdb.DuckDBPyConnection | None = None,
    timestamp_unit: TimestampUnit = "us",
    as_of: CubeAsOf | None = None,
) -> duckdb.DuckDBPyConnection:
    """
    Open a cube in DuckDB, which is the extra ``sql``.

    The cube is a view of its name, ``uuid_prefix``, and each dataset a view ``cube.dataset``. Each scan sees
    the newest snapshot; columns that the cube gets after this call are not in the views. Names with other
    characters than letters, digits and ``_`` need double quotes.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    connection
        Connection that gets the views, as of another cube; a new one in memory by default.
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
        There is no such cube or version.
    """
    ensure_cube(cube)
    ids = sorted(load_datasets(cube, store, None, as_of))
    prefix = cube.uuid_prefix
    sources = {
        name: cube_dataset(cube, store, dataset_id=name, timestamp_unit=timestamp_unit, as_of=as_of)
        for name in (None, *ids)
    }
    opened = _connect() if connection is None else connection
    opened.execute(f"CREATE SCHEMA IF NOT EXISTS {_quote(prefix)}")
    for name, source in sources.items():
        # Python objects can only be views of the temporary schema
        view = f"{prefix}++{name or ''}"
        opened.register(view, source)
        target = _quote(prefix) if name is None else f"{_quote(prefix)}.{_quote(name)}"
        opened.execute(f"CREATE OR REPLACE VIEW {target} AS FROM temp.{_quote(view)}")
    return opened


def _connect() -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise ImportError("SQL needs DuckDB: pip install 'kartothek_cube[sql]'") from error
    connection: duckdb.DuckDBPyConnection = duckdb.connect()
    return connection


def _quote(name: str) -> str:
    """
    Quote an identifier.

    >>> _quote('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'
