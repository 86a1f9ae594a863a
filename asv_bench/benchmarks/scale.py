"""Costs that grow with the number of partitions: planning, reading and writing small files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core import caching
from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBuilder
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.pruning import STATISTICS, collect_statistics, select_partitions, store_statistics
from kartothek_cube.core.schema import make_meta, store_schema_metadata
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager_cube import build_cube, compute_dataset, query_cube
from kartothek_cube.io.iter_cube import query_cube__iterator
from kartothek_cube.io_components.query.logical_plan import QueryCube
from kartothek_cube.io_components.query.physical_plan import plan_query

CUBE = Cube(uuid_prefix="scale", dimension_columns=["x", "y"], partition_columns=["p"])
CONDITIONS = {
    "partition key": C("p") == 77,
    "index": C("y") == 77 * 7,
    "statistics": C("v") == 77 * 0.5,
    "none": None,
}


def make_headers(url, n):
    """A cube of two datasets with n partitions each, without data files."""
    blobs = open_blobs(url)
    numbers = np.arange(n)
    labels = pa.array([f"p={i}/{i:032x}" for i in range(n)])
    for name, column in (("seed", "v"), ("enrich", "w")):
        uuid = CUBE.ktk_dataset_uuid(name)
        schema = make_meta(
            pd.DataFrame({"x": [0], "y": [0], "p": [0], column: [0.5]}), origin=uuid, partition_keys=["p"]
        )
        store_schema_metadata(schema, uuid, blobs)
        table = PartitionTable.from_labels(uuid, "table", labels)
        metadata = {
            STATISTICS: ["v"],
            "ktk_cube_dimension_columns": ["x", "y"],
            "ktk_cube_partition_columns": ["p"],
            "ktk_cube_is_seed": name == "seed",
        }
        dataset = DatasetMetadata(uuid, table, metadata=metadata, partition_keys=["p"], schema=schema)
        builder = DatasetMetadataBuilder.from_dataset(dataset)
        for dimension, values in {"x": numbers % 1_000, "y": numbers * 7}.items() if name == "seed" else ():
            entries = ExplicitSecondaryIndex(dimension, IndexColumns.from_pairs(pa.array(values), labels))
            builder.add_external_index(dimension, entries.store(blobs, uuid))
        if name == "seed":
            statistics = collect_statistics({"v": pa.chunked_array([numbers * 0.5])}, numbers, labels)
            builder.extra[STATISTICS] = store_statistics(blobs, uuid, statistics)
        blobs.put(*builder.to_json())


class Planning:
    """Headers of 20,000 to 1,000,000 partitions; time and memory should grow in proportion."""

    params = ([20_000, 100_000, 1_000_000], list(CONDITIONS))
    param_names = ("partitions", "condition")
    timeout = 600
    number, warmup_time = 1, 0

    def setup_cache(self):
        urls = {}
        for n in self.params[0]:
            urls[n] = f"hfs://{Path.cwd() / str(n)}?create_if_missing=true"
            make_headers(urls[n], n)
        return urls

    def setup(self, urls, n, condition):
        caching.clear()

    def time_plan(self, urls, n, condition):
        plan_query(QueryCube(CUBE, urls[n], CONDITIONS[condition]))

    def peakmem_plan(self, urls, n, condition):
        plan_query(QueryCube(CUBE, urls[n], CONDITIONS[condition]))


class LargeIndex:
    """Partitions of a dataset of 40, out of the index of 20 million cells, which is not in memory."""

    params = ["==", ">", "in"]
    param_names = ("operator",)
    timeout = 600
    number, warmup_time = 1, 0
    n_cells = 20_000_000

    def setup(self, operator):
        self.blobs = open_blobs("hmemory://")
        labels, cells = [f"p={i}/{i:032x}" for i in range(40)], np.arange(self.n_cells)
        entries = IndexColumns.from_pairs(pa.array(cells), labels, cells * 40 // self.n_cells)
        index = ExplicitSecondaryIndex("x", entries)
        index.store(self.blobs, "large")
        table = PartitionTable.from_labels("large", "table", pa.array(labels))
        self.dataset = DatasetMetadata("large", table, indices={"x": index.unload()})
        scattered = np.arange(0, self.n_cells, self.n_cells // 1_000)
        values = {"==": self.n_cells // 3, ">": self.n_cells * 9 // 10, "in": scattered}
        self.condition = ("x", operator, values[operator])
        caching.clear()

    def time_select_partitions(self, operator):
        loaded = self.dataset.load_indices({"x"}, self.blobs, self.condition)
        select_partitions(loaded, self.condition)


def small_partitions(n):
    """Two datasets of n partitions with 20 rows each."""
    p = np.repeat(np.arange(n, dtype="int64"), 20)
    seed = pd.DataFrame({"x": np.arange(len(p)) % 20, "y": p * 7, "p": p, "v": p * 0.5})
    return {"seed": seed, "enrich": seed.rename(columns={"v": "w"})}


class SmallFiles:
    """2 x 200 and 2 x 2,000 files of 20 rows."""

    params = [200, 2_000]
    param_names = ("partitions",)
    timeout = 600

    def setup(self, n):
        self.directory = tempfile.TemporaryDirectory()
        self.url = f"hfs://{self.directory.name}/cube?create_if_missing=true"
        self.data = small_partitions(n)
        self.time_build(n)

    def teardown(self, n):
        self.directory.cleanup()

    def time_build(self, n):
        build_cube(self.data, CUBE, self.url, overwrite=True)

    def time_read_all(self, n):
        query_cube(CUBE, self.url)

    def time_groups(self, n):
        for _group in query_cube__iterator(CUBE, self.url, partition_by="p"):
            pass

    def time_compute(self, n):
        into = {"changed_since": None, "payload_columns": ["v"]}
        compute_dataset(lambda rows: rows.rename(columns={"v": "u"}), CUBE, self.url, "scores", **into)
