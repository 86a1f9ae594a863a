"""Cost of durable commits, which flush their files to disk before they write the header."""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
import pandas as pd

from kartothek_cube.io.eager import (
    commit_dataset,
    store_dataframes_as_dataset,
    update_dataset_from_dataframes,
    write_single_partition,
)

#: name -> number of files, rows per file (8 bytes, incompressible)
FILES = {"10 files of 50 MB": (10, 6_250_000), "2,000 files of 20 kB": (2_000, 2_500)}


class Commit:
    """Only the commit; its files are written in the setup, one partition each."""

    params = (list(FILES), ["true", "false"])
    param_names = ("files", "durable")
    timeout = 600
    # each commit flushes files that were just written
    number, warmup_time, rounds = 1, 0, 1
    repeat = 3

    def setup(self, files, durable):
        n, rows = FILES[files]
        self.root = tempfile.mkdtemp()
        self.url = f"hfs://{self.root}?durable={durable}"
        df = pd.DataFrame({"p": 0, "v": np.random.default_rng(0).random(rows)})
        store_dataframes_as_dataset(self.url, "u", [df[:1].assign(p=-1)], partition_on=["p"])
        self.written = [
            write_single_partition(self.url, "u", df.assign(p=p), partition_on=["p"]) for p in range(n)
        ]

    def teardown(self, files, durable):
        shutil.rmtree(self.root)

    def time_commit(self, files, durable):
        commit_dataset(self.url, "u", new_partitions=self.written, partition_on=["p"])


class SmallCommit:
    """Append one file to an existing dataset, like a stream."""

    params = ["true", "false"]
    param_names = ("durable",)

    def setup(self, durable):
        self.root = tempfile.mkdtemp()
        self.url = f"hfs://{self.root}?durable={durable}"
        self.df = pd.DataFrame({"p": [0], "v": [0.5]})
        store_dataframes_as_dataset(self.url, "u", [self.df], partition_on=["p"])

    def teardown(self, durable):
        shutil.rmtree(self.root)

    def time_append(self, durable):
        update_dataset_from_dataframes([self.df], self.url, "u", partition_on=["p"])
