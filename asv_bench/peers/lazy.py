"""GROUP BY over a join of the four datasets. usage: lazy.py ENGINE STORE_DIR OUT.json [REPEATS].

ENGINE is duckdb or polars, which scan the files of each dataset and join them; or "cube + duckdb" or
"cube + polars", which scan the cube by `cube_dataset` or `scan_cube`.
"""

from __future__ import annotations

import sys

import _common
import workload as w

COLUMNS = ("v0", "v1", "v5", "v7")


def aggregate_sql(source):
    """The statement over a source of the joined rows."""
    sums = ", ".join(f"sum({column}) AS {column}" for column in COLUMNS)
    return f"SELECT p, count(*) AS n, {sums} FROM {source} GROUP BY p ORDER BY p"


def duckdb(root):
    """Join of the files by DuckDB."""
    import duckdb

    def files(dataset):
        hive = dataset != "cal"
        pattern = f"{root}/bench++{dataset}/table/{'*/' if hive else ''}*.parquet"
        return f"read_parquet('{pattern}', hive_partitioning={str(hive).lower()}) {dataset}"

    joins = "".join(f" LEFT JOIN {files(name)} USING ({', '.join(keys)})" for name, keys in w.KEYS.items())
    selected = ", ".join(["seed.p AS p", *(f"{w.OWNER[column]}.{column}" for column in COLUMNS)])
    source = f"(SELECT {selected} FROM {files('seed')}{joins})"
    return duckdb.connect().execute(aggregate_sql(source)).df()


def polars(root):
    """Join of the files by Polars."""
    import polars as pl

    def scan(dataset):
        table = f"{root}/bench++{dataset}/table"
        if dataset == "cal":
            return pl.scan_parquet(table + "/*.parquet")
        return pl.scan_parquet(table + "/*/*.parquet", hive_partitioning=True, hive_schema={"p": pl.Int64})

    rows = scan("seed").select("x", "y", "p", "v0")
    for name, keys in w.KEYS.items():
        own = [column for column in COLUMNS if w.OWNER[column] == name]
        rows = rows.join(scan(name).select([*keys, *own]), on=keys, how="left")
    return aggregate_lazily(rows).collect(engine="streaming").to_pandas()


def aggregate_lazily(rows):
    """The same aggregation as a lazy query."""
    import polars as pl

    sums = [pl.col(column).sum() for column in COLUMNS]
    return rows.group_by("p").agg(pl.len().alias("n"), *sums).sort("p")


def open_cube(root):
    """Specification and store of the cube."""
    from kartothek_cube.api.cube import Cube

    return Cube(uuid_prefix="bench", dimension_columns=["x", "y"], partition_columns=["p"]), f"hfs://{root}"


def cube_duckdb(root):
    """Scan of the cube by DuckDB."""
    import duckdb

    from kartothek_cube.io.arrow_cube import cube_dataset

    cube = cube_dataset(*open_cube(root))  # noqa: F841 - DuckDB finds it by its name
    return duckdb.connect().execute(aggregate_sql("cube")).df()


def cube_polars(root):
    """Scan of the cube by Polars."""
    from kartothek_cube.io.arrow_cube import scan_cube

    return aggregate_lazily(scan_cube(*open_cube(root))).collect(engine="streaming").to_pandas()


ENGINES = {"duckdb": duckdb, "polars": polars, "cube + duckdb": cube_duckdb, "cube + polars": cube_polars}


def main(engine, root, out, repeats=5):
    """Run the query and write the result."""
    seconds, frame = _common.median_seconds(lambda: ENGINES[engine](root), int(repeats))
    result = _common.summary(seconds, [frame])
    # the engines add numbers in different orders
    result["check"] = round(result["check"], 3)
    _common.write(out, {"GROUP BY over four datasets": result})


if __name__ == "__main__":
    main(*sys.argv[1:])
