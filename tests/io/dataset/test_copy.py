"""Copies of datasets: under another name, in another store."""

import pandas.testing as pdt
import pytest

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DatasetNotFoundError, UnknownOutcomeError
from kartothek_cube.io import eager
from tests.support.cubes import refuses
from tests.support.stored_files import frame, keys, snapshot
from tests.support.stores import FaultyStore, InjectedError, ReadOnlyStore, Wrapped

PX = frame(p=[1, 1, 2], x=[1, 2, 3], u=["u/table", "u", ""])
KEYS = {"partition_on": "p", "secondary_indices": "x"}


@pytest.fixture(params=["json", "msgpack"])
def stored(store_factory, request):
    options = {**KEYS, "metadata_storage_format": request.param, "metadata": {"u": "u", "ä": 1}}
    eager.store_dataframes_as_dataset(store_factory, "u", [PX], **options)
    eager.update_dataset_from_dataframes([PX], store_factory, "u")
    eager.write_single_partition(store_factory, "u", PX)  # garbage, not to be copied
    return store_factory


def same(source, target, source_uuid, target_uuid):
    old = DatasetMetadata.load_from_store(source_uuid, source, load_all_indices=True)
    new = DatasetMetadata.load_from_store(target_uuid, target, load_all_indices=True)
    assert list(new.partitions) == list(old.partitions)
    assert new.metadata == old.metadata
    found, expected = ({c: i.index_dct for c, i in ds.indices.items()} for ds in (new, old))
    assert found == expected
    pdt.assert_frame_equal(eager.read_table(target_uuid, target), eager.read_table(source_uuid, source))


@pytest.mark.parametrize("name", ["v", "u2", "a+b-C_1", "uuu"])
def test_other_name(stored, name):
    before = snapshot(stored)
    ((key, dataset),) = eager.copy_dataset("u", stored, target_dataset_uuid=name).items()
    assert key in keys(stored)
    assert key.startswith(f"{name}.by-dataset-metadata.")
    assert dataset == DatasetMetadata.load_from_store(name, stored)
    same(stored, stored, "u", name)
    assert {key: data for key, data in snapshot(stored).items() if key in before} == before
    assert len(DatasetMetadata.storage_keys(name, stored)) == 1 + 1 + 1 + 4  # header, schema, index, files


def test_other_store(stored, other_store_factory):
    eager.copy_dataset("u", stored, target_store=other_store_factory)
    same(stored, other_store_factory, "u", "u")
    before, after = snapshot(stored), snapshot(other_store_factory)
    assert len(after) == 7
    assert all(before[key] == data for key, data in after.items())


def test_other_name_in_another_store(stored, other_store_factory):
    eager.copy_dataset("u", Wrapped(ReadOnlyStore, stored), "v", other_store_factory)
    same(stored, other_store_factory, "u", "v")
    assert all(key.startswith("v") for key in keys(other_store_factory))


def test_header_differs_in_the_name_only(memory):
    eager.store_dataframes_as_dataset(memory, "u-1", [PX], metadata={"ä": [1]}, **KEYS)
    eager.copy_dataset("u-1", memory, "v-2")
    old, new = (snapshot(memory)[f"{name}.by-dataset-metadata.json"] for name in ("u-1", "v-2"))
    assert new == old.replace(b"u-1", b"v-2")


def test_target_is_overwritten(stored):
    eager.store_dataframes_as_dataset(stored, "v", [frame(z=[1])], metadata_storage_format="msgpack")
    eager.store_dataframes_as_dataset(stored, "w", [frame(z=[1])])
    for name in ("v", "w"):
        eager.copy_dataset("u", stored, name)
        same(stored, stored, "u", name)
        assert sum(key.startswith(f"{name}.") for key in keys(stored)) == 1


@pytest.mark.parametrize(
    "uuid, target, error, text",
    [
        *(("u", target, ValueError, "onto itself") for target in (None, "u")),
        ("u", "a/b", ValueError, "a/b"),
        ("w", "v", DatasetNotFoundError, "'w'"),
    ],
)
@pytest.mark.parametrize("given", [False, True], ids=["no store", "the same store"])
def test_impossible_copies_are_refused(memory, uuid, target, error, text, given):
    eager.store_dataframes_as_dataset(memory, "u", [PX])
    with refuses(memory, error, text):
        eager.copy_dataset(uuid, memory, target, memory if given else None)


def test_header_comes_last(memory):
    eager.store_dataframes_as_dataset(memory, "u", [PX], partition_on="p", secondary_indices="x")
    for at in range(1, 6):
        with pytest.raises((InjectedError, UnknownOutcomeError), match="injected"):
            eager.copy_dataset("u", FaultyStore(memory()).fail("put", at=at), "v")
        assert not DatasetMetadata.exists("v", memory)


@pytest.mark.parametrize("exists", [False, True])
def test_derived_partitions(memory, exists):
    if exists:
        eager.store_dataframes_as_dataset(memory, "v", [PX])
    eager.create_empty_dataset_header(memory, "u", PX, partition_on="p")
    eager.write_single_partition(memory, "u", PX)
    eager.copy_dataset("u", memory, "v")
    # files of a replaced dataset are not those of the copy
    assert DatasetMetadata.load_from_store("v", memory).explicit_partitions == exists
    pdt.assert_frame_equal(eager.read_table("v", memory), eager.read_table("u", memory))


def test_dataset_without_partitions(memory):
    eager.store_dataframes_as_dataset(memory, "u", [PX[:0]], partition_on="p", table_name="core")
    eager.copy_dataset("u", memory, "v")
    pdt.assert_frame_equal(eager.read_table("v", memory), PX[:0][["p", "u", "x"]])
