"""Requirements of changes: each is checked against a state, without a store."""

import pyarrow as pa
import pytest

from kartothek_cube.api.dataset import DatasetMetadata, SchemaWrapper
from kartothek_cube.core.commit.change import ChangeSet, NoUnseenPartitions, WriteMode
from kartothek_cube.core.errors import ConcurrentWriteError, DatasetExistsError, DatasetNotFoundError
from kartothek_cube.core.partition import PartitionTable

LABELS = pa.array(["p=1/a", "p=1/b", "p=2/c"])
TABLE, ADDED = (PartitionTable.from_labels("u", "table", labels) for labels in (LABELS, LABELS.slice(1, 1)))
SCHEMA = SchemaWrapper(pa.schema([("p", pa.int64())]), "u")
STATE = DatasetMetadata("u", TABLE, partition_keys=["p"], schema=SCHEMA, table_name="table")
ONE = ("p", "==", 1)


UNSEEN = {"remove_where": ONE, "requires": (NoUnseenPartitions(LABELS[:1]),)}
#: one of them is still there
GONE = pa.array(["p=1/a", "p=1/z"])


@pytest.mark.parametrize(
    "mode, state, fields, error",
    [
        ("create", None, {}, None),
        ("create", STATE, {}, DatasetExistsError),
        ("update", STATE, {}, None),
        ("update", None, {}, DatasetNotFoundError),
        ("upsert", None, {"partition_keys": ("q",), "replaces": GONE}, None),
        ("upsert", STATE, {"partition_keys": ("p",)}, None),
        ("upsert", STATE, {"partition_keys": ("q",)}, ValueError),
        # before other requirements: another error than that of a concurrent writer
        ("update", STATE, {"partition_keys": ("q",), **UNSEEN}, ValueError),
        ("update", STATE, {"replaces": LABELS[1:]}, None),
        ("update", STATE, {"replaces": GONE}, ConcurrentWriteError),
        ("update", STATE, {**UNSEEN, "requires": (NoUnseenPartitions(LABELS[:2]),)}, None),
        ("update", STATE, UNSEEN, ConcurrentWriteError),
        ("update", STATE, {**UNSEEN, "remove_where": None}, None),
        ("upsert", None, UNSEEN, None),
        # partitions of the change itself are no unseen ones
        ("update", STATE, {**UNSEEN, "added": ADDED}, None),
        # a whole state is replaced, whatever its layout is, unless the change was planned on another one
        ("replace", STATE, {"partition_keys": ("q",), "replaces": GONE}, None),
        ("replace", STATE, UNSEEN, ConcurrentWriteError),
    ],
)
def test_requirements(mode, state, fields, error):
    change = ChangeSet("u", mode=WriteMode(mode), **fields)
    if error is None:
        change.check_requirements(state)
        return
    with pytest.raises(error):
        change.check_requirements(state)
