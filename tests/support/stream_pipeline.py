"""A stream from a cube to another one in a process of its own, which can be killed within a batch."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from kartothek_cube.io.spark import local_session
from kartothek_cube.io.spark._datasource_writer import CubeStreamWriter
from kartothek_cube.io.spark.datasource import KartothekCubeDataSource
from tests.support.spark_session import CONFIG

#: where a process dies: in a task that has written files, before a commit, after it
POINTS = ("task", "before", "after")


class Fatal(CubeStreamWriter):
    """Kills all processes of the driver at a point of a batch, once per marker file."""

    def __init__(self, inner: CubeStreamWriter, point: str, group: int, marker: str) -> None:
        super().__init__(inner.sink, inner.plan, inner.name)
        self.point, self.group, self.marker = point, group, marker

    def write(self, iterator):
        message = super().write(iterator)
        self._die("task")
        return message

    def commit(self, messages, batchId):
        self._die("before")
        super().commit(messages, batchId)
        self._die("after")

    def _die(self, point: str) -> None:
        if point == self.point and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.killpg(self.group, signal.SIGKILL)


def fatal_source(point: str, marker: str) -> type[KartothekCubeDataSource]:
    """The data source whose sink dies."""
    group = os.getpgrp()

    class Source(KartothekCubeDataSource):
        workers = 2

        def streamWriter(self, schema, overwrite):
            return Fatal(super().streamWriter(schema, overwrite), point, group, marker)

    return Source


def main(url: str, directory: str, point: str) -> None:
    spark = local_session(2, config={**CONFIG, "spark.python.use.daemon": "true"})
    if point in POINTS:
        spark.dataSource.register(fatal_source(point, f"{directory}/died"))
    rows = spark.readStream.format("kartothek_cube").options(store=url, cube="cube", maxFilesPerTrigger=2)
    query = (
        rows.load()
        .writeStream.format("kartothek_cube")
        .options(store=url, cube="copy", dimension_columns="x", partition_columns="p")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
