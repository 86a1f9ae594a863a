"""Build and query the cube of the workload on a cluster of two processes, and eagerly."""

from __future__ import annotations

import tempfile

import on_cluster as c


class _OnCluster:
    timeout = 600
    param_names = ("form",)

    def setup(self, form):
        self.cluster = c.cluster()
        self.cluster.__enter__()
        self.directory = tempfile.TemporaryDirectory()
        self.store = c.store_in(self.directory.name)

    def teardown(self, form):
        self.cluster.__exit__(None, None, None)
        self.directory.cleanup()


class Build(_OnCluster):
    """Write 50 partitions of two datasets."""

    params = tuple(c.WORK["build"])

    def time_build(self, form):
        c.WORK["build"][form](self.store)


class Query(_OnCluster):
    """Join two datasets, group by group."""

    params = tuple(c.WORK["query"])

    def setup(self, form):
        super().setup(form)
        c.build_delayed(self.store)

    def time_query(self, form):
        c.WORK["query"][form](self.store)
