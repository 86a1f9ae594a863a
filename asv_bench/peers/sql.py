"""The same queries over the same files, as pandas frames. usage: sql.py ENGINE STORE_DIR OUT.json [REPEATS].

ENGINE is duckdb, polars, or floor: what pyarrow needs to decode just the columns asked for, without joining
or sorting.
"""

from __future__ import annotations

import operator
import sys

import _common
import pandas as pd
from _common import workload as w

CELL = [*w.DIMENSIONS, "p"]
OPERATORS = {
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "in": lambda column, values: column.is_in(values) if hasattr(column, "is_in") else column.isin(values),
}


def involved(columns):
    """Datasets other than the seed that a query needs."""
    return [name for name in w.KEYS if name in {w.OWNER[column] for column in columns}]


def join_type(dataset, conditions):
    """Conditions on payload make an inner join."""
    return "inner" if any(w.OWNER.get(column) == dataset for column, _, _ in conditions) else "left"


def groups(df, by):
    """The frame, or one frame per value."""
    return [group for _, group in df.groupby(by[0])] if by else [df]


def duckdb(root, columns, conditions, by):
    """One SQL statement."""
    import duckdb

    def source(dataset):
        hive = dataset != "cal"
        pattern = f"{root}/bench++{dataset}/table/{'*/' if hive else ''}*.parquet"
        return f"read_parquet('{pattern}', hive_partitioning={str(hive).lower()}) {dataset}"

    def literal(column, op, value):
        table = w.OWNER.get(column, "seed")
        quoted = f"TIMESTAMP '{value}'" if column == "y" else f"'{value}'"
        text = quoted if isinstance(value, str) else tuple(value) if op == "in" else value
        return f"{table}.{column} {'=' if op == '==' else op} {text}"

    selected = [f"seed.{column}" for column in CELL] + [f"{w.OWNER[c]}.{c}" for c in columns]
    sql = f"SELECT {', '.join(selected)} FROM {source('seed')}"
    for dataset in involved(columns):
        keys = ", ".join(w.KEYS[dataset])
        sql += f" {join_type(dataset, conditions).upper()} JOIN {source(dataset)} USING ({keys})"
    if conditions:
        sql += " WHERE " + " AND ".join(literal(*condition) for condition in conditions)
    return groups(duckdb.connect().execute(sql + f" ORDER BY {', '.join(selected[: len(CELL)])}").df(), by)


def polars(root, columns, conditions, by):
    """A lazy query plan."""
    import polars as pl

    def scan(dataset):
        table = f"{root}/bench++{dataset}/table"
        if dataset == "cal":
            return pl.scan_parquet(table + "/*.parquet")
        return pl.scan_parquet(table + "/*/*.parquet", hive_partitioning=True, hive_schema={"p": pl.Int64})

    def filtered(dataset, names):
        frame = scan(dataset).select(names)
        for column, op, value in conditions:
            if w.OWNER.get(column, "seed") == dataset:
                value = pd.Timestamp(value).to_pydatetime() if column == "y" else value
                frame = frame.filter(OPERATORS[op](pl.col(column), value))
        return frame

    query = filtered("seed", CELL + [c for c in columns if w.OWNER[c] == "seed"])
    for dataset in involved(columns):
        keys = w.KEYS[dataset]
        other = filtered(dataset, keys + [c for c in columns if w.OWNER[c] == dataset])
        query = query.join(other, on=keys, how=join_type(dataset, conditions))
    return groups(query.sort(CELL).collect().to_pandas(), by)


def floor(root, columns, conditions, by):
    """Decode the needed columns of each dataset, filters pushed down."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as pads

    def decode(dataset):
        hive = pads.partitioning(pa.schema([("p", pa.int64())]), flavor="hive") if dataset != "cal" else None
        source = pads.dataset(
            f"{root}/bench++{dataset}/table",
            format="parquet",
            partitioning=hive,
            exclude_invalid_files=True,
            ignore_prefixes=["_"],
        )
        own = [column for column in columns if w.OWNER[column] == dataset]
        expression = None
        for column, op, value in conditions:
            if column in source.schema.names:
                value = pd.Timestamp(value) if column == "y" else value
                literal = OPERATORS[op](pc.field(column), value)
                expression = literal if expression is None else expression & literal
        wanted = (CELL if dataset == "seed" else []) + own
        return source.to_table(columns=wanted, filter=expression).to_pandas()

    frames = [decode(dataset) for dataset in ["seed", *involved(columns)]]
    return frames[:1]


ENGINES = {"duckdb": duckdb, "polars": polars, "floor": floor}


def main(engine, root, out, repeats=3):
    """Run all queries and write the result."""
    result = {}
    for name, (columns, conditions, by) in w.QUERIES.items():
        seconds, frames = _common.median_seconds(
            lambda: ENGINES[engine](root, columns, conditions, by),  # noqa: B023
            int(repeats),
        )
        result[name] = _common.summary(seconds, frames)
    _common.write(out, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
