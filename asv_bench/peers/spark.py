"""Cubes on Spark and plain Spark, alternating in one session.

Usage: spark.py STORE OTHER OUT.json [ROUNDS [WARM_UP]]

Engines: functions of `kartothek_cube.io.spark.cube` and lazy tables, the data source
``format("kartothek_cube")``, and plain Spark: Parquet files, written after a shuffle by partition and a sort,
and read and joined by Spark SQL. All of them read the files of the cube; results are counted and summed in
Spark. STORE and OTHER are directories.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import _common
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import workload as w
from pyspark.sql import functions as f

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.spark import local_session, register
from kartothek_cube.io.spark.cube import build_cube_from_spark, extend_cube_from_spark, query_cube_spark
from kartothek_cube.io.spark.table import spark_table

OURS, SOURCE, PLAIN = "kartothek_cube", "data source", "spark parquet"
RAW = ("seed", "enrich", "loc", "cal")
CUBE = Cube(uuid_prefix="bench", dimension_columns=["x", "y"], partition_columns=["p"])
COLUMNS = ["v0", "v1", "v2", "v5", "v7"]
#: name -> the same condition for a cube and for SQL
QUERIES = {
    "query": (None, "true"),
    "query, payload": (C("v1") > 2.5, "v1 > 2.5"),
    "query, partition": (C("p") == 7, "p = 7"),
}


def store_url(root):
    """URL of the store in a directory."""
    return f"hfs://{root}?create_if_missing=true"


# -- input ---------------------------------------------------------------------------------------------------


def write_input(directory):
    """Files to build from: the rows of each dataset, mixed, in files without partitions."""
    for name, part in (("seed", w.seed), ("enrich", w.enrich), ("loc", w.loc)):
        df = w.whole(part)
        mixed = df.iloc[np.random.default_rng(0).permutation(len(df))]
        _write(mixed, directory / name)
    _write(w.cal(), directory / "cal")


def _write(df, folder, files=8):
    folder.mkdir(parents=True)
    table = pa.Table.from_pandas(df, preserve_index=False).replace_schema_metadata(None)
    step = -(-len(table) // files)
    for number in range(files):
        pq.write_table(table.slice(number * step, step), folder / f"{number}.parquet", coerce_timestamps="us")


# -- builds --------------------------------------------------------------------------------------------------


def build_cube(frames, root):
    """Build the cube of seed and enrich."""
    build_cube_from_spark(frames, CUBE, store_url(root), overwrite=True)


def build_files(frames, root):
    """Write the same rows as partitioned files, sorted like those of the cube."""
    for name, df in frames.items():
        plain = df.repartition("p").sortWithinPartitions("p", "x", "y")
        plain.write.partitionBy("p").mode("overwrite").parquet(f"{root}/{name}")


# -- queries -------------------------------------------------------------------------------------------------


def by_function(spark, root, name):
    """Query by a function."""
    return query_cube_spark(CUBE, store_url(root), QUERIES[name][0], payload_columns=COLUMNS, spark=spark)


def by_source(spark, root, name):
    """Query by the data source."""
    options = {"store": store_url(root), "cube": "bench", "columns": ",".join(COLUMNS)}
    options["push_filters"] = "true"  # the frame is used once
    return spark.read.format("kartothek_cube").options(**options).load().where(QUERIES[name][1])


def by_joins(spark, root, name):
    """Read the same files, and join."""

    def read(dataset):
        columns = [*w.KEYS.get(dataset, ["x", "y", "p"]), *(c for c in COLUMNS if w.OWNER[c] == dataset)]
        return spark.read.parquet(f"{root}/bench++{dataset}/table").select(columns)

    result = read("seed")
    for dataset, keys in w.KEYS.items():
        result = result.join(read(dataset), keys, "left")
    return result.where(QUERIES[name][1])


ENGINES = {OURS: by_function, SOURCE: by_source, PLAIN: by_joins}


#: name -> what is asked of the seed alone
SCANS = {
    "count": lambda df: df.agg(f.count("*"), f.lit(None)),
    "sum": lambda df: df.agg(f.count("*"), f.sum("v0")),
    "filter": lambda df: df.where("v0 > 0.99").agg(f.count("*"), f.sum("v0")),
    "point": lambda df: df.where("x = 2900 AND y = timestamp_ntz'2020-01-11'").select("p", "v0"),
}


def read_seed(spark, root, engine):
    """The seed as a table of an engine."""
    if engine == OURS:
        return spark_table(CUBE, store_url(root), spark=spark)
    if engine == PLAIN:
        return spark.read.parquet(f"{root}/bench++seed/table")
    options = {"store": store_url(root), "cube": "bench", "columns": "v0", "push_filters": "true"}
    return spark.read.format("kartothek_cube").options(**options).load()


def counted_and_summed(df):
    """Number of rows and sum of v0; needs all payload columns."""
    row = df.agg(f.count("*").alias("n"), *(f.sum(c).alias(c) for c in COLUMNS)).first()
    return row["n"], row["v0"]


# -- all -----------------------------------------------------------------------------------------------------


def measure_builds(frames, root, other, rounds, warm_up):
    """Measure each way to write seed and enrich."""
    result = {}
    for number in range(warm_up + rounds):
        for engine, build, target in ((OURS, build_cube, root), (PLAIN, build_files, other / "files")):
            shutil.rmtree(target, ignore_errors=True)
            seconds, _ = _common.median_seconds(lambda: build(frames, target), 1)  # noqa: B023
            if number >= warm_up:
                result.setdefault(engine, []).append({"s": seconds})
    return {"build": result}


def measure_queries(spark, root, rounds, warm_up):
    """Measure all queries of all engines."""
    result = {}
    for number in range(warm_up + rounds):
        for name in QUERIES:
            for engine, query in ENGINES.items():
                ask = lambda: counted_and_summed(query(spark, root, name))  # noqa: B023, E731
                seconds, (rows, check) = _common.median_seconds(ask, 1)
                if number >= warm_up:
                    value = {"s": seconds, "rows": rows, "check": check}
                    result.setdefault(name, {}).setdefault(engine, []).append(value)
        for name, scan in SCANS.items():
            for engine in ENGINES:
                ask = lambda: scan(read_seed(spark, root, engine)).first() or (0, 0)  # noqa: B023, E731
                seconds, (rows, check) = _common.median_seconds(ask, 1)
                if number >= warm_up:
                    result.setdefault(name, {}).setdefault(engine, []).append(
                        {"s": seconds, "rows": rows, "check": check or 0}
                    )
    return result


def measure(spark, root, other, rounds, warm_up):
    """Measure everything in a session, below two directories: workload -> engine -> one value per round."""
    write_input(other / "input")
    frames = {name: spark.read.parquet(str(other / "input" / name)) for name in RAW}
    pair = {name: frames[name] for name in ("seed", "enrich")}
    result = measure_builds(pair, root, other, rounds, warm_up)
    more = {name: frames[name] for name in ("loc", "cal")}
    extend_cube_from_spark(more, CUBE, store_url(root), partition_on={"cal": []})
    result.update(measure_queries(spark, root, rounds, warm_up))
    return result


def main(root, other, out, rounds=3, warm_up=2):
    """Measure in a session of its own.

    Rounds of the warm-up are not counted: Java compiles code at run time.
    """
    spark = register(local_session(memory="4g"))
    result = measure(spark, Path(root).resolve(), Path(other).resolve(), int(rounds), int(warm_up))
    spark.stop()
    _common.write(out, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
