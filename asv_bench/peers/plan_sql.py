"""Many small partitions with DuckDB (over the files of the cube) and Delta Lake (over its own tables).

usage: plan_sql.py CUBE_DIR DELTA_DIR OUT.json [N] [REPEATS]
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import _common
import pyarrow as pa
import pyarrow.compute as pc
from plan import ROWS, frames


def duckdb_query(root, where):
    """Frame of the rows that a condition selects."""
    import duckdb

    seed, enrich = (
        f"read_parquet('{root}/plan++{name}/table/*/*.parquet', hive_partitioning=true)"
        for name in ("seed", "enrich")
    )
    sql = f"SELECT s.x, s.y, s.p, v, w FROM {seed} s LEFT JOIN {enrich} e USING (x, y, p) WHERE {where}"
    return duckdb.connect().execute(sql + " ORDER BY 1, 2, 3").df()


def delta_query(root, expression):
    """Frame of the rows that an expression selects."""
    from deltalake import DeltaTable

    seed, enrich = (
        DeltaTable(f"{root}/{name}").to_pyarrow_dataset().to_table(filter=expression).to_pandas()
        for name in ("seed", "enrich")
    )
    return seed.merge(enrich, how="left").sort_values(["x", "y", "p"])


def main(cube_root, delta_root, out, n=20_000, repeats=3):
    """Run everything and write the result."""
    from deltalake import write_deltalake

    n, repeats = int(n), int(repeats)
    result = {"duckdb": {}, "delta": {}}

    def measure(engine, name, function, times=repeats, rows=None):
        seconds, answer = _common.median_seconds(function, times)
        result[engine][name] = {"s": seconds}
        if rows is not None and len(answer) != rows:
            raise AssertionError(f"{engine} {name}: {len(answer)} rows instead of {rows}")

    point_y = pc.field("y") == 77 * 7
    measure("duckdb", "point_query_p", lambda: duckdb_query(cube_root, "s.p = 77"), rows=ROWS)
    measure("duckdb", "point_query_y", lambda: duckdb_query(cube_root, f"s.y = {77 * 7}"), rows=ROWS)
    measure("duckdb", "read_all", lambda: duckdb_query(cube_root, f"s.p < {n}"), 1, rows=n * ROWS)

    def build():
        Path(delta_root).mkdir(parents=True, exist_ok=True)
        for name, df in frames(n).items():
            table = pa.Table.from_pandas(df)
            write_deltalake(f"{delta_root}/{name}", table, partition_by=["p"], mode="overwrite")

    measure("delta", "build", build, 1)
    measure("delta", "point_query_p", lambda: delta_query(delta_root, pc.field("p") == 77), rows=ROWS)
    measure("delta", "point_query_y", lambda: delta_query(delta_root, point_y), rows=ROWS)
    measure("delta", "read_all", lambda: delta_query(delta_root, None), 1, rows=n * ROWS)

    days = itertools.count(-2, -1)

    def append():
        new = pa.table({"x": [1], "y": [next(days)], "p": [n + 1], "v": [0.0]})
        write_deltalake(f"{delta_root}/seed", new, mode="append")

    measure("delta", "append_one", append)
    _common.write(out, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
