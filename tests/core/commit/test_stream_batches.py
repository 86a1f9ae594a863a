"""Commits that carry the number of a batch of a stream: once, whoever repeats them."""

import attrs
import pyarrow as pa
import pytest

from kartothek_cube.core.commit.change import ChangeSet, WriteMode, last_batch
from kartothek_cube.core.commit.optimistic import commit
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.write.table_writer import write_table
from kartothek_cube.io_components.write.write_plan import WriteSpec
from tests.support.factories import memory


@pytest.fixture
def context(tmp_path):
    return WriteSpec(memory(tmp_path), "uuid", indices=("x",))


def change(context, number, stream="a", **more) -> ChangeSet:
    written = write_table(context, pa.table({"x": [number]}))
    return attrs.evolve(written.change_set(mode=WriteMode.UPSERT, **more), batch=(stream, number))


def published(context, delta):
    return commit(open_blobs(context.store), delta)[0]


def test_a_batch_counts_once_and_other_metadata_stay(context):
    first = published(context, change(context, 0, metadata={"k": 1}))
    assert last_batch(first, "a") == 0
    assert published(context, change(context, 0)) == first
    second = published(context, change(context, 1))
    assert len(second.partition_table) == 2
    assert (last_batch(second, "a"), second.metadata["k"]) == (1, 1)
    assert published(context, change(context, 0)) == second


def test_streams_do_not_know_each_other(context):
    published(context, change(context, 5))
    both = published(context, change(context, 3, stream="b"))
    assert (last_batch(both, "a"), last_batch(both, "b"), last_batch(both, "c")) == (5, 3, None)
    assert len(both.partition_table) == 2


def test_creating_again_is_no_error_if_it_was_the_same_batch(context):
    first = published(context, attrs.evolve(change(context, 0), mode=WriteMode.CREATE))
    assert published(context, attrs.evolve(change(context, 0), mode=WriteMode.CREATE)) == first


@pytest.mark.parametrize("strange", ["text", {"a": "text"}, [1]])
def test_strange_records_count_as_none(context, strange):
    state = published(context, change(context, 0, metadata={"kartothek_cube_batches": strange}))
    assert last_batch(state, "a") == 0
    assert last_batch(state.copy(metadata={"kartothek_cube_batches": strange}), "a") is None
