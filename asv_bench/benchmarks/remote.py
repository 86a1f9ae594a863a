"""Query a cube in an object store with a latency of 20 ms per request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from kartothek_cube.core import caching
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager_cube import build_cube, query_cube
from kartothek_cube.io.iter_cube import query_cube__iterator

CUBE = Cube(uuid_prefix="bench", dimension_columns=["x"], partition_columns=["p"])
SERVER = Path(__file__).parents[2] / "tests/support/object_server.py"
LATENCY_S = 0.02
FILES, ROWS, COLUMNS = 500, 6_500, 18
TAIL = 64 << 10


def frame() -> pd.DataFrame:
    """500 partitions with files of about 0.9 MB."""
    random = np.random.default_rng(0)
    keys = {"x": np.tile(np.arange(ROWS), FILES), "p": np.repeat(np.arange(FILES), ROWS)}
    return pd.DataFrame(keys | {f"v{n}": random.random(ROWS * FILES) for n in range(COLUMNS)})


class Remote:
    """Read 10 % of the columns of all files."""

    timeout = 600
    number = 1

    def setup(self):
        command = [sys.executable, str(SERVER), str(LATENCY_S)]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        port = int(self.server.stdout.readline())
        self.url = (
            f"s3://bucket?endpoint=http://127.0.0.1:{port}&allow_http=true&region=us-east-1"
            "&access_key_id=bench&secret_access_key=bench"
        )
        build_cube(frame(), CUBE, self.url)
        self.blobs = open_blobs(self.url)
        self.keys = [b.key for b in self.blobs.list("bench++seed/table/") if b.key.endswith(".parquet")]

    def teardown(self):
        self.server.kill()
        self.server.wait()

    def time_first_query(self):
        caching.clear()
        self.time_query()

    def time_query(self):
        query_cube(CUBE, self.url, payload_columns=["v3", "v4"])

    def time_first_group(self):
        next(self._groups())

    def time_groups(self):
        for _ in self._groups():
            pass

    def _groups(self):
        return query_cube__iterator(CUBE, self.url, payload_columns=["v3", "v4"], partition_by="p")

    def time_the_same_requests_all_at_once(self):
        asyncio.run(self._requests(self._read))

    def time_one_request_per_file(self):
        asyncio.run(self._requests(self._read_columns))

    def track_ratio(self):
        """Time of a first query relative to its requests alone, all overlapped, without decoding."""
        return min(_seconds(self.time_first_query) for _ in range(5)) / min(
            _seconds(self.time_the_same_requests_all_at_once) for _ in range(5)
        )

    async def _requests(self, read):
        # planning a query takes three sequential requests
        for _ in range(3):
            self.blobs.exists(self.keys[0])
        await asyncio.gather(*map(read, self.keys))

    async def _read(self, key):
        import obstore

        client = self.blobs.connect()
        end = await obstore.get_async(client, key, options={"range": {"suffix": TAIL}})
        await end.bytes_async()
        await self._read_columns(key)

    async def _read_columns(self, key):
        import obstore

        client = self.blobs.connect()
        await obstore.get_range_async(client, key, start=4, length=5 * 8 * ROWS)


def _seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
