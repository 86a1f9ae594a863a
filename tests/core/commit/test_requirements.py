"""Requirements of changes: each is checked against a state, without a store."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kartothek_cube.core.commit.change import (
    ChangeSet,
    DatasetAbsent,
    DatasetPresent,
    InputsPresent,
    NoUnseenPartitions,
    SamePartitionKeys,
    WriteMode,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import ConcurrentWriteError, DatasetExistsError, DatasetNotFoundError
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.wrapper import SchemaWrapper

LABELS = pa.array(["p=1/a", "p=1/b", "p=2/c"])
STATE = DatasetMetadata(
    uuid="u",
    partitions=PartitionTable.from_labels("u", "table", LABELS),
    partition_keys=["p"],
    schema=SchemaWrapper(pa.schema([("p", pa.int64())]), "u"),
    table_name="table",
)
ONE = ("p", "==", 1)


@pytest.mark.parametrize(
    "requirement, state, change, error",
    [
        (DatasetAbsent(), None, ChangeSet("u"), None),
        (DatasetAbsent(), STATE, ChangeSet("u"), DatasetExistsError),
        (DatasetPresent(), STATE, ChangeSet("u"), None),
        (DatasetPresent(), None, ChangeSet("u"), DatasetNotFoundError),
        (SamePartitionKeys(("p",)), STATE, ChangeSet("u"), None),
        (SamePartitionKeys(("q",)), None, ChangeSet("u"), None),
        (SamePartitionKeys(("q",)), STATE, ChangeSet("u"), ValueError),
        (InputsPresent(LABELS[1:]), STATE, ChangeSet("u"), None),
        (InputsPresent(pa.array(["p=1/z"])), STATE, ChangeSet("u"), ConcurrentWriteError),
        (NoUnseenPartitions(LABELS[:2]), STATE, ChangeSet("u", remove_where=ONE), None),
        (NoUnseenPartitions(LABELS[:1]), STATE, ChangeSet("u", remove_where=ONE), ConcurrentWriteError),
        (NoUnseenPartitions(LABELS[:1]), STATE, ChangeSet("u"), None),
        (NoUnseenPartitions(LABELS[:1]), None, ChangeSet("u", remove_where=ONE), None),
        # partitions of the change itself are no unseen ones
        (
            NoUnseenPartitions(LABELS[:1]),
            STATE,
            ChangeSet(
                "u", remove_where=ONE, added=PartitionTable.from_labels("u", "table", LABELS.slice(1, 1))
            ),
            None,
        ),
    ],
)
def test_requirements(requirement, state, change, error):
    if error is None:
        requirement.check(state, change)
        return
    with pytest.raises(error):
        requirement.check(state, change)


def test_requirements_that_follow_from_a_change():
    keys, seen = SamePartitionKeys(("p",)), NoUnseenPartitions(LABELS)
    common = {"partition_keys": ("p",), "requires": (seen,), "replaces": LABELS}
    expected = {
        WriteMode.CREATE: (DatasetAbsent(), keys, seen, InputsPresent(LABELS)),
        WriteMode.UPDATE: (DatasetPresent(), keys, seen, InputsPresent(LABELS)),
        WriteMode.UPSERT: (keys, seen, InputsPresent(LABELS)),
        WriteMode.REPLACE: (seen,),
    }
    assert {mode: ChangeSet("u", mode=mode, **common).requirements for mode in WriteMode} == expected
