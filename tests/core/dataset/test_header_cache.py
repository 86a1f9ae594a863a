"""Headers that were parsed before: remembered by their bytes, never by their name alone."""

import json

import pandas as pd
import pytest

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema import make_meta, schema_to_bytes
from kartothek_cube.core.store import open_blobs

KEY = "u.by-dataset-metadata.json"


@pytest.fixture
def blobs():
    blobs = open_blobs("hmemory://")
    schema = make_meta(pd.DataFrame({"p": [1], "v": [1]}), origin="test", partition_keys=["p"])
    blobs.put("u/table/_common_metadata", schema_to_bytes(schema))
    return blobs


def store(blobs, labels, metadata):
    table = PartitionTable.from_labels("u", "table", labels)
    header = DatasetMetadata("u", partitions=table, metadata=metadata, partition_keys=["p"])
    blobs.put(KEY, header.to_json())


LABELS = [f"p={i}/{i:032x}" for i in range(2_000)]


def test_a_changed_header_is_read_anew(blobs):
    store(blobs, LABELS, {"v": 1})
    assert DatasetMetadata.load_from_store("u", blobs).metadata["v"] == 1
    store(blobs, LABELS, {"v": 2})
    assert DatasetMetadata.load_from_store("u", blobs).metadata["v"] == 2
    store(blobs, LABELS[1:], {"v": 2})
    assert len(DatasetMetadata.load_from_store("u", blobs).partitions) == 1_999
    store(blobs, LABELS, {"v": {"w": [1]}})
    DatasetMetadata.load_from_store("u", blobs).metadata["v"]["w"].append(2)
    assert DatasetMetadata.load_from_store("u", blobs).metadata["v"] == {"w": [1]}


@pytest.mark.parametrize("n", [20, 2_000])
def test_what_callers_do_to_partitions_stays_with_them(blobs, n):
    store(blobs, LABELS[:n], {})
    dataset = DatasetMetadata.load_from_store("u", blobs)
    dataset.partitions.clear()
    dataset.partition_table.files.clear()
    again = DatasetMetadata.load_from_store("u", blobs)
    assert list(again.partitions) == LABELS[:n]
    assert again.key_columns()["p"] is dataset.key_columns()["p"]


def test_a_header_that_became_corrupt_is_refused(blobs):
    store(blobs, LABELS, {})
    DatasetMetadata.load_from_store("u", blobs)
    content = json.loads(blobs.get(KEY))
    content["partitions"][LABELS[0]]["files"]["table"] = "other/table/f.parquet"
    blobs.put(KEY, json.dumps(content).encode())
    with pytest.raises(CorruptDatasetError, match="other/table"):
        DatasetMetadata.load_from_store("u", blobs)
    blobs.delete([KEY])
    with pytest.raises(KeyError):
        DatasetMetadata.load_from_store("u", blobs)
