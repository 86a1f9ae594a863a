"""Published tables, read by DuckDB's extension for Delta tables.

``DUCKDB_DELTA_PYTHON`` names a Python that has it. Its wheel is large, and for one version of DuckDB:
``pip install duckdb==1.4.4 duckdb-ext-delta==1.4.4.20260205 pytz``.
"""

from __future__ import annotations

import os
import pickle
import subprocess

import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.api.cube import build_cube, merge_into_cube, publish_cube
from kartothek_cube.api.dataset import (
    publish_dataset,
    read_table_arrow,
    store_dataframes_as_dataset,
    update_dataset_from_dataframes,
)
from tests.io.test_publish import COLUMNS, CUBE, KEYS, plain, seed

PYTHON = "DUCKDB_DELTA_PYTHON"
READ = """
import pathlib, pickle, sys
from datetime import UTC
import duckdb, duckdb_ext

(extension,) = pathlib.Path(duckdb_ext.__path__[0]).rglob("delta.duckdb_extension")
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute(f"LOAD '{extension}'")
connection.execute("SET TimeZone = 'UTC'")
table, column, value = pickle.load(sys.stdin.buffer)
where = "" if column is None else f'WHERE "{column}" = ?'
found = connection.execute(f"SELECT * FROM delta_scan('{table}') {where}", [] if column is None else [value])
rows = [[v.astimezone(UTC) if getattr(v, "tzinfo", None) else v for v in row] for row in found.fetchall()]
sys.stdout.buffer.write(pickle.dumps(([field[0] for field in found.description], rows)))
"""

pytestmark = pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} is not set")


def scan(table, column=None, value=None) -> list[dict]:
    query = pickle.dumps((str(table), column, value))
    command = [os.environ[PYTHON], "-c", READ]
    names, rows = pickle.loads(subprocess.run(command, input=query, capture_output=True, check=True).stdout)
    return sorted((dict(zip(names, row, strict=True)) for row in rows), key=lambda row: row["x"])


def normal(rows: list[dict]) -> list[dict]:
    """Maps as dicts, as DuckDB has them."""
    return [{name: dict(v) if name == "map" and v else v for name, v in row.items()} for row in rows]


@pytest.mark.parametrize("name", COLUMNS)
def test_types_of_columns(name, tmp_path):
    url = f"hfs://{tmp_path}"
    store_dataframes_as_dataset(url, "u", [pa.table({"x": [1, 2], name: COLUMNS[name]})])
    has_type = name not in ("null", "empty lists")
    if has_type:
        nothing = pa.table({"x": [3], name: pa.nulls(1, COLUMNS[name].type)})
        update_dataset_from_dataframes([nothing], url, "u")
    publish_dataset("u", url)
    stored = read_table_arrow("u", url)
    assert scan(tmp_path / "u") == normal(plain(stored if has_type else stored.drop_columns(name)))


@pytest.mark.parametrize("name", KEYS)
def test_partition_keys(name, tmp_path):
    url = f"hfs://{tmp_path}"
    store_dataframes_as_dataset(url, "u", [pa.table({"x": [1, 2], name: KEYS[name]})], partition_on=[name])
    publish_dataset("u", url)
    rows = plain(read_table_arrow("u", url))
    assert scan(tmp_path / "u") == rows
    assert scan(tmp_path / "u", name, rows[0][name]) == rows[:1]


def test_versions_with_a_checkpoint(tmp_path):
    url = f"hfs://{tmp_path}"
    build_cube(seed(v=[0, 0]), CUBE, url)
    for number in range(1, 25):
        merge_into_cube(pd.DataFrame({"x": [0, number + 9], "p": [0, number + 9], "v": number}), CUBE, url)
        publish_cube(CUBE, url)
    assert list((tmp_path / "cube++seed/_delta_log").glob("*.checkpoint.parquet"))
    values = {row["x"]: row["v"] for row in scan(tmp_path / "cube++seed")}
    assert values == {0: 24, 1: 0, **{number + 9: number for number in range(1, 25)}}
