"""A pipeline of a client of Spark Connect that has no Java; test_connect.py runs it.

Arguments: the URL of the server, that of the store, and a module and a package that only the client has.
"""

from __future__ import annotations

import re
import shutil
import sys
import warnings

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.spark import create_frame, register
from kartothek_cube.io.spark.cube import (
    append_to_cube_from_spark,
    build_cube_from_spark,
    compact_cube_spark,
    extend_cube_from_spark,
    map_cube_spark,
    merge_into_cube_from_spark,
    query_cube_spark,
)

CUBE = Cube(["x"], ["p"], "cube")


def main(server: str, url: str, *shipped: str) -> None:
    """Run the pipeline."""
    assert shutil.which("java") is None
    warnings.simplefilter("ignore")
    spark = register(SparkSession.builder.remote(server).getOrCreate())
    spark.addArtifacts(*shipped, pyfile=True)
    rows = pa.table({"x": range(8), "p": [x // 4 for x in range(8)], "v": range(8)})
    build_cube_from_spark(create_frame(rows), CUBE, url)
    append_to_cube_from_spark(create_frame(rows.slice(6)), CUBE, url)
    gone = rows.slice(2, 2).append_column("gone", pa.array([True, False]))
    result = merge_into_cube_from_spark(create_frame(gone), CUBE, url, delete_column="gone")
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (0, 1, 1), result

    def transform(part):
        from shipped_module import double
        from shipped_package.scale import negate

        return negate(double(part, "v", "w"), "w")

    schema = "x BIGINT, p BIGINT, w BIGINT"
    extend_cube_from_spark({"more": map_cube_spark(transform, CUBE, url, schema)}, CUBE, url)
    compact_cube_spark(CUBE, url)
    found = query_cube_spark(CUBE, url, payload_columns=["v", "w"]).orderBy("x").toArrow()
    assert found["w"].to_pylist() == [-2 * v for v in found["v"].to_pylist()]
    assert found["x"].to_pylist() == [0, 1, 3, 4, 5, 6, 7]

    def wrong(batches):
        for _ in batches:
            raise KeyError("nokey")
        yield from ()

    frame = create_frame(rows)
    line = wrong.__code__.co_firstlineno + 2
    sentence = f"A task failed in wrong ({__file__}, line {line}): KeyError: 'nokey'"
    with pytest.raises(RuntimeError, match=f"^{re.escape(sentence)}$"):
        append_to_cube_from_spark(frame.mapInArrow(wrong, frame.schema), CUBE, url)
    sys.stdout.write("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
