"""A stream from a cube to another one, with processes that can be killed within a batch."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from kartothek_cube.io.spark import local_session
from kartothek_cube.io.spark.cube import append_to_cube_from_spark
from kartothek_cube.io.spark.datasource import CubeStreamReader, CubeStreamWriter, KartothekCubeDataSource
from tests.support.spark_session import CONFIG

#: where a process dies: in a task that has read rows or written files, before a commit, after it
POINTS = ("read", "write", "before", "after")

Sink: TypeAlias = Callable[[DataFrame, int], None]


@dataclass(frozen=True)
class Kill:
    """Kills processes at the point whose name a file in a directory has; the file is gone then."""

    directory: str
    kill: Callable[[], None]

    def reach(self, point: str) -> None:
        # of all tasks that are at this point, one can delete the file
        try:
            Path(self.directory, point).unlink()
        except FileNotFoundError:
            return
        self.kill()


class FatalReader(CubeStreamReader):
    """Reads a batch, and may die after it has passed on rows."""

    def __init__(self, inner: CubeStreamReader, kill: Kill) -> None:
        vars(self).update(vars(inner))
        self.kill = kill

    def __getstate__(self):
        return {**super().__getstate__(), "kill": self.kill}

    def read(self, partition):
        yield from super().read(partition)
        self.kill.reach("read")


class FatalWriter(CubeStreamWriter):
    """Writes a batch, and may die on its way."""

    def __init__(self, inner: CubeStreamWriter, kill: Kill) -> None:
        super().__init__(inner.sink, inner.plan, inner.name)
        self.kill = kill

    def write(self, iterator):
        message = super().write(iterator)
        self.kill.reach("write")
        return message

    def commit(self, messages, batchId):
        self.kill.reach("before")
        super().commit(messages, batchId)
        self.kill.reach("after")


def fatal_source(kill: Kill) -> type[KartothekCubeDataSource]:
    class Source(KartothekCubeDataSource):
        workers = 2

        def streamReader(self, schema):
            return FatalReader(super().streamReader(schema), kill)

        def streamWriter(self, schema, overwrite):
            return FatalWriter(super().streamWriter(schema, overwrite), kill)

    return Source


def run_stream(spark: SparkSession, url: str, checkpoint: str, sink: Sink | None = None) -> None:
    """Copy to the sink what the source has now, in batches of two files; by a function if there is one."""
    rows = spark.readStream.format("kartothek_cube").options(store=url, cube="cube", maxFilesPerTrigger=2)
    writer = rows.load().writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    if sink is not None:
        query = writer.foreachBatch(sink).start()
    else:
        options = {"store": url, "cube": "copy", "dimension_columns": "x", "partition_columns": "p"}
        query = writer.format("kartothek_cube").options(**options).start()
    query.awaitTermination()


def append_batch(url: str, kill: Kill | None = None) -> Sink:
    """A function for foreachBatch, which may die before and after its commit."""

    def append(batch: DataFrame, number: int) -> None:
        if kill is not None:
            kill.reach("before")
        append_to_cube_from_spark(batch, "copy", url, batch=("copier", number))
        if kill is not None:
            kill.reach("after")

    return append


def main(url: str, directory: str, kind: str) -> None:
    spark = local_session(2, config={**CONFIG, "spark.python.use.daemon": "true"})
    group = os.getpgrp()

    def kill_driver() -> None:
        os.killpg(group, signal.SIGKILL)
        # workers of Python have a group of their own
        os.kill(os.getpid(), signal.SIGKILL)

    kill = Kill(directory, kill_driver)
    spark.dataSource.register(fatal_source(kill))
    run_stream(spark, url, f"{directory}/checkpoint", append_batch(url, kill) if kind == "function" else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
