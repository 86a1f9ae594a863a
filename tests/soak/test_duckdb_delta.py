"""Published tables, read by DuckDB's extensions for Delta and Iceberg tables.

``DUCKDB_DELTA_PYTHON`` names a Python that has them. Their wheels are large, and for one version of DuckDB:
``pip install duckdb==1.4.4 duckdb-ext-{delta,avro,iceberg}==1.4.4.20260205 pytz``.
"""

import os
import pickle
import subprocess

import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.api.cube import build_cube, merge_into_cube, publish_cube
from tests.io.test_publish import COLUMNS, CUBE, KEYS, plain, seed

PYTHON = "DUCKDB_DELTA_PYTHON"
READ = """
import pathlib, pickle, sys
from datetime import UTC
import duckdb, duckdb_ext

connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for extension in sorted(pathlib.Path(duckdb_ext.__path__[0]).rglob("*.duckdb_extension")):
    connection.execute(f"LOAD '{extension}'")
connection.execute("SET TimeZone = 'UTC'")
table, column, value = pickle.load(sys.stdin.buffer)
where = "" if column is None else f'WHERE "{column}" = ?'
scan = "iceberg_scan" if table.endswith("_iceberg") else "delta_scan"
found = connection.execute(f"SELECT * FROM {scan}('{table}') {where}", [] if column is None else [value])
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


FORMATS = pytest.mark.parametrize("table_format, folder", [("delta", ""), ("iceberg", "_delta_log/_iceberg")])


@FORMATS
@pytest.mark.parametrize("name", COLUMNS)
def test_types_of_columns(name, table_format, folder, tmp_path):
    url = f"hfs://{tmp_path}"
    api.store_dataframes_as_dataset(url, "u", [pa.table({"x": [1, 2], name: COLUMNS[name]})])
    has_type = name not in ("null", "empty lists")
    if has_type:
        nothing = pa.table({"x": [3], name: pa.nulls(1, COLUMNS[name].type)})
        api.update_dataset_from_dataframes([nothing], url, "u")
    api.publish_dataset("u", url, format=table_format)
    if table_format == "iceberg" and name == "empty lists":
        with pytest.raises(subprocess.CalledProcessError):
            scan(tmp_path / "u" / folder)
        return
    stored = api.read_table_arrow("u", url)
    assert scan(tmp_path / "u" / folder) == normal(plain(stored if has_type else stored.drop_columns(name)))


@FORMATS
@pytest.mark.parametrize("name", KEYS)
def test_partition_keys(name, table_format, folder, tmp_path):
    url = f"hfs://{tmp_path}"
    api.store_dataframes_as_dataset(
        url, "u", [pa.table({"x": [1, 2], name: KEYS[name]})], partition_on=[name]
    )
    if table_format == "iceberg" and name in ("float", "infinite"):
        # pyiceberg rounds them
        with pytest.raises(ValueError, match="is a floating point number"):
            api.publish_dataset("u", url, format=table_format)
        return
    api.publish_dataset("u", url, format=table_format)
    rows = plain(api.read_table_arrow("u", url))
    assert scan(tmp_path / "u" / folder) == rows
    assert scan(tmp_path / "u" / folder, name, rows[0][name]) == rows[:1]


def test_columns_that_iceberg_tables_lack(tmp_path):
    """DuckDB wants a name for each column of a file."""
    url = f"hfs://{tmp_path}"
    build_cube(seed(a=[1, 2]), CUBE, url)
    api.update_dataset_schema("cube++seed", url, add={"new": "string"}, drop="a")
    publish_cube(CUBE, url, format="iceberg")
    shown = scan(tmp_path / "cube++seed/_delta_log/_iceberg")
    assert shown == [{"p": 0, "new": None, "x": 0}, {"p": 1, "new": None, "x": 1}]


def test_versions_with_a_checkpoint(tmp_path):
    url = f"hfs://{tmp_path}"
    build_cube(seed(v=[0, 0]), CUBE, url)
    for number in range(1, 25):
        merge_into_cube(pd.DataFrame({"x": [0, number + 9], "p": [0, number + 9], "v": number}), CUBE, url)
        publish_cube(CUBE, url)
    assert list((tmp_path / "cube++seed/_delta_log").glob("*.checkpoint.parquet"))
    values = {row["x"]: row["v"] for row in scan(tmp_path / "cube++seed")}
    assert values == {0: 24, 1: 0, **{number + 9: number for number in range(1, 25)}}
