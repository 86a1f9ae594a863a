"""Throwing away files of writes that failed."""

from __future__ import annotations

import attrs
import pyarrow as pa

from kartothek_cube.core.commit.change import WriteMode
from kartothek_cube.core.commit.optimistic import commit
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.write.table_writer import delete_attempts, delete_uncommitted, write_table
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteResult, WriteSpec


def test_files_that_no_dataset_refers_to_go(store_factory):
    context = WriteSpec(store_factory, "uuid", partition_on=("p",))
    kept, lost = (write_table(context, pa.table({"x": [1, 2], "p": [1, 2]})) for _ in range(2))
    blobs = open_blobs(store_factory)
    commit(blobs, kept.change_set(mode=WriteMode.CREATE, partition_keys=("p",)))
    before = {blob.key for blob in blobs.list("")}
    delete_uncommitted(store_factory, [kept, lost, WriteResult("uuid", "table")])
    gone = before - {blob.key for blob in blobs.list("")}
    assert gone == {f"uuid/table/{label}.parquet" for label in lost.labels.to_pylist()}


def test_there_may_be_no_dataset_at_all(store_factory):
    context = WriteSpec(store_factory, "uuid")
    delete_uncommitted(store_factory, [write_table(context, pa.table({"x": [1]}))])
    assert open_blobs(store_factory).list("") == []


def test_files_of_all_attempts_go(store_factory):
    context = WriteSpec(store_factory, "uuid", partition_on=("p",), write_id="0123456789abcdef")
    rows = pa.table({"x": [1, 2], "p": [1, 2]})
    other = write_table(attrs.evolve(context, write_id=""), rows)
    kept = write_table(context, rows)
    blobs = open_blobs(store_factory)
    commit(blobs, kept.change_set(mode=WriteMode.CREATE, partition_keys=("p",)))
    before = {blob.key for blob in blobs.list("")}
    for _ in range(2):
        write_table(context, rows)
    delete_attempts(WritePlan(store=store_factory, specs={"uuid": context}))
    assert {blob.key for blob in blobs.list("")} == before
    other_plan = WritePlan(store=store_factory, specs={"uuid": attrs.evolve(context, write_id="")})
    delete_attempts(other_plan)
    assert {blob.key for blob in blobs.list("")} == before
    assert len(other.labels) == 2
