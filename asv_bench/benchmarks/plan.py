"""Plan queries and commit on a cube of many small partitions."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, query_cube

PARTITIONS = 2_000
CUBE = Cube(uuid_prefix="plan", dimension_columns=["x", "y"], partition_columns=["p"])
DAYS = itertools.count(-1, -1)


class Plan:
    """2 x 2,000 partitions of two rows."""

    timeout = 300

    def setup_cache(self):
        url = f"hfs://{Path.cwd() / 'plan'}?create_if_missing=true"
        p = np.repeat(np.arange(PARTITIONS, dtype="int64"), 2)
        seed = pd.DataFrame({"x": np.arange(len(p)), "y": p * 7, "p": p, "v": p * 0.5})
        data = {"seed": seed, "enrich": seed.rename(columns={"v": "w"})}
        build_cube(data=data, cube=CUBE, store=url)
        return url

    def time_load_metadata(self, url):
        DatasetMetadata.load_from_store("plan++seed", url).load_partition_indices()

    def time_load_indices(self, url):
        DatasetMetadata.load_from_store("plan++seed", url).load_all_indices(url)

    def time_point_query_on_partition(self, url):
        query_cube(cube=CUBE, store=url, conditions=C("p") == 77)

    def time_point_query_on_index(self, url):
        query_cube(cube=CUBE, store=url, conditions=C("y") == 77 * 7)

    def time_append(self, url):
        new = pd.DataFrame({"x": [1], "y": [next(DAYS)], "p": [PARTITIONS], "v": [0.0]})
        append_to_cube(data={"seed": new}, cube=CUBE, store=url)
