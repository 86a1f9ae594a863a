"""Other readers of Parquet files with bit-packed differences."""

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from kartothek_cube.api.cube import Cube, build_cube, publish_cube

LENGTH = 20_000
RANDOM = np.random.default_rng(0)
HOLES = np.sort(RANDOM.choice(10 * LENGTH, LENGTH, replace=False))
ROWS = pa.table(
    {
        "id": np.arange(LENGTH),
        "p": np.arange(LENGTH) // 5_000,
        "gaps": pa.array([None if number % 7 == 0 else number for number in HOLES.tolist()]),
        "falling": pa.array(-HOLES, pa.int32()),
        "small": pa.array(RANDOM.permutation(HOLES % 30_000), pa.int16()),
        "day": pa.array(HOLES, pa.int32()).cast(pa.date32()),
        "time": pa.array(HOLES * 3_600_000_000, pa.timestamp("us", "UTC")),
        "text": pa.array([f"{number:06}" for number in HOLES]),
    }
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("packed")
    cube = Cube(["id"], ["p"], "cube")
    build_cube(ROWS, cube, f"hfs://{root}")
    publish_cube(cube, f"hfs://{root}")
    for file in root.glob("cube++seed/table/**/*.parquet"):
        group = pq.ParquetFile(file).metadata.row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
        packed = {c.path_in_schema for c in chunks if "DELTA_BINARY_PACKED" in c.encodings}
        assert packed == {"id", "gaps", "falling", "small", "day", "time"}
    return root / "cube++seed"


def check_rows(table: pa.Table) -> None:
    table = table.select(ROWS.column_names).sort_by("id")
    for name, column in zip(table.column_names, table.columns, strict=True):
        assert column.cast(ROWS.column(name).type) == ROWS.column(name), name


def test_duckdb_and_polars_and_delta_rs_read_packed_files(root):
    pattern = str(root / "table" / "**" / "*.parquet")
    check_rows(
        duckdb.sql(f"SELECT * FROM read_parquet('{pattern}', hive_partitioning=true)").to_arrow_table()
    )
    check_rows(pl.scan_delta(str(root)).collect().to_arrow())
    check_rows(DeltaTable(str(root)).to_pyarrow_table())


@pytest.mark.slow("starts Spark")
@pytest.mark.parametrize("is_vectorised", ["true", "false"])
def test_spark_reads_packed_files(root, is_vectorised):
    from tests.support.spark_session import shared_session

    spark = shared_session()
    before = spark.conf.get("spark.sql.parquet.enableVectorizedReader")
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", is_vectorised)
    try:
        check_rows(spark.read.parquet(str(root / "table")).toArrow())
    finally:
        spark.conf.set("spark.sql.parquet.enableVectorizedReader", before)
