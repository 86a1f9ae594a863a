"""The session of Spark that all tests of a process share, set up for many small jobs."""

import contextlib
import os
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

from kartothek_cube.io.spark import local_session, register
from tests.support.paths import ROOT

#: Java compiles little: most of its code runs once
CONFIG = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": 2,
    "spark.ui.enabled": "false",
}
#: where Spark Connect is; Spark itself reads this variable
REMOTE = "SPARK_REMOTE"


def shared_session() -> Any:
    """Give the session with two workers; one of Spark Connect if the environment says where."""
    if REMOTE not in os.environ:
        # Java stays in the directory, and so do its workers, which import `tests` from it
        with contextlib.chdir(ROOT):
            return local_session(2, config=CONFIG)
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with warnings.catch_warnings():
        # of Spark itself: about pandas, and about options for Java that it passed on all the same
        warnings.simplefilter("ignore")
        spark = SparkSession.builder.remote(os.environ[REMOTE]).config(map=CONFIG).getOrCreate()
        if os.environ[REMOTE].startswith("sc://"):
            with tempfile.TemporaryDirectory() as directory:
                spark.addArtifacts(pack_library(Path(directory)), pyfile=True)
        return register(spark)


def files(url: str) -> set[Path]:
    return {path for path in Path(url.removeprefix("hfs://")).rglob("*") if path.is_file()}


def xs(df: Any) -> list[int]:
    return sorted(row["x"] for row in df.select("x").collect())


def run_to_end(writer: Any, checkpoint: Path) -> None:
    """Run a stream until all that is there is processed."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def pack_library(directory: Path) -> str:
    """Make an archive of the library and its tests, which executors of another process may lack."""
    archive = directory / "kartothek_cube.zip"
    with zipfile.PyZipFile(str(archive), "w") as packed:
        packed.writepy(str(ROOT / "kartothek_cube"))
        for file in sorted((ROOT / "tests").rglob("*.py")):
            packed.write(file, file.relative_to(ROOT))
    return str(archive)
