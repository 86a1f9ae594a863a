import copy
import pickle
from typing import Any

import pyarrow as pa
import pytest
from simplekv import KeyValueStore

from kartothek_cube.api.dataset import DatasetMetadata, ExplicitSecondaryIndex, ensure_store
from kartothek_cube.core.errors import DatasetNotFoundError
from kartothek_cube.core.factory import DatasetFactory, _ensure_factory
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.pruning import select_partitions
from kartothek_cube.core.schema import make_meta, store_schema_metadata
from kartothek_cube.core.store import open_blobs

SCHEMA = make_meta(pa.schema([("p", pa.int64()), ("v", pa.int64())]), origin="test")
LABELS = ["p=1/a", "p=2/a"]


class Counting:
    """A factory of a store that counts how often it is called and what is read."""

    def __init__(self) -> None:
        self.calls = 0
        self.reads: list[str] = []
        self._store = ensure_store("hmemory://")
        blobs = open_blobs(self._store)
        store_schema_metadata(SCHEMA, "u", blobs)
        index = ExplicitSecondaryIndex("v", {1: LABELS, 2: LABELS[:1]})
        index.store(blobs, "u")
        table = PartitionTable.from_labels("u", "table", LABELS)
        ds = DatasetMetadata("u", table, indices={"v": index.unload()}, partition_keys=["p"], schema=SCHEMA)
        blobs.put("u.by-dataset-metadata.json", ds.to_json())
        self.written = ds
        get = self._store.get
        self._store.get = lambda key: (self.reads.append(key), get(key))[1]

    def __call__(self) -> KeyValueStore:
        self.calls += 1
        return self._store


@pytest.fixture
def source() -> Counting:
    return Counting()


@pytest.fixture
def factory(source: Counting) -> DatasetFactory:
    return DatasetFactory("u", source)


def test_nothing_is_read_before_it_is_needed(factory, source):
    assert repr(factory) == "<DatasetFactory: uuid=u is_loaded=False>"
    assert (factory.dataset_uuid, factory.store_factory, factory.load_schema) == ("u", source, True)
    assert source.calls == 0
    assert factory.partition_keys == ["p"]
    assert repr(factory) == "<DatasetFactory: uuid=u is_loaded=True>"
    reads = list(source.reads)
    assert reads == ["u.by-dataset-metadata.json", "u/table/_common_metadata"]
    assert factory.store is factory.store
    assert (factory.uuid, factory.tables, factory.schema) == ("u", ["table"], SCHEMA)
    assert (source.calls, source.reads) == (1, reads)


def test_a_factory_is_the_dataset(factory, source):
    ds = source.written
    assert factory == ds and ds == factory
    assert factory.dataset_metadata == ds
    assert factory.partitions == ds.partitions
    assert (factory.index_columns, factory.secondary_indices) == (ds.index_columns, ds.secondary_indices)
    assert not factory.primary_indices_loaded
    assert factory.to_dict() == ds.to_dict()
    assert (factory.to_json(), factory.to_msgpack()) == (ds.to_json(), ds.to_msgpack())
    assert factory.partition_table == ds.partition_table
    with pytest.raises(AttributeError, match="unknown"):
        _ = factory.unknown


def test_indices_are_loaded_into_the_factory(factory, source):
    assert factory.load_partition_indices() is factory and factory.primary_indices_loaded
    assert factory.query(p=2) == LABELS[1:]
    assert factory.load_index("v") is factory and factory.indices["v"].loaded
    assert factory.get_indices_as_dataframe(["v"]).index.tolist() == [LABELS[0], LABELS[0], LABELS[1]]
    factory.invalidate()
    assert not factory.is_loaded
    assert factory.load_all_indices() is factory
    assert all(index.loaded for index in factory.indices.values())
    assert source.calls == 2


def test_indices_on_partition_keys_need_no_store(source):
    def broken() -> KeyValueStore:
        raise NotImplementedError

    factory = DatasetFactory("u", broken)
    factory._cache_metadata = source.written
    assert factory.load_index("p").primary_indices_loaded
    with pytest.raises(NotImplementedError):
        factory.load_index("v")
    assert factory.load_index("v", source()).indices["v"].loaded


def test_only_needed_indices_are_loaded(factory, source):
    assert factory.load_indices({"unknown"}, source()) is factory
    assert not factory.indices["v"].loaded
    assert factory.load_indices({"v"}, source()) is factory
    assert factory.indices["v"].loaded and not factory.primary_indices_loaded
    assert select_partitions(factory, ("v", "==", 2)).tolist() == [0]


@pytest.mark.parametrize("arguments", [{}, {"load_schema": False}, {"load_all_indices": True}])
def test_arguments_say_what_is_loaded(source, arguments):
    made = DatasetFactory("u", source, **arguments)
    for factory in (made, made.copy()):
        assert (factory.schema is not None) is arguments.get("load_schema", True)
        assert factory.indices["v"].loaded is arguments.get("load_all_indices", False)


def test_factories_are_copied_with_what_they_loaded_and_pickled_without(factory, source):
    factory.load_all_indices()
    copied = copy.deepcopy(factory)
    assert copied.is_loaded and copied.dataset_metadata == factory.dataset_metadata
    assert copied.dataset_metadata is not factory.dataset_metadata
    assert source.calls == 1
    assert not copy.deepcopy(DatasetFactory("u", source)).is_loaded
    factory = DatasetFactory("u", "hmemory://")
    factory._cache_metadata, factory._cache_store, factory.is_loaded = DatasetMetadata("u"), object(), True
    copied = pickle.loads(pickle.dumps(factory))
    assert repr(copied) == "<DatasetFactory: uuid=u is_loaded=False>"
    assert copied.store_factory == factory.store_factory
    with pytest.raises(DatasetNotFoundError):
        _ = copied.partitions


def test_missing_datasets_are_key_errors():
    factory = DatasetFactory("u", "hmemory://")
    for _ in range(2):
        with pytest.raises(KeyError, match="'u' does not exist"):
            _ = factory.uuid
    assert not factory.is_loaded


def test_a_factory_or_a_dataset_and_a_store(factory, source):
    assert _ensure_factory(None, None, factory) is factory
    made = _ensure_factory("u", source, None)
    assert (made.dataset_uuid, made.store_factory, made.load_schema) == ("u", source, True)
    assert not _ensure_factory("u", "hmemory://", None, load_schema=False).load_schema
    assert source.calls == 0


@pytest.mark.parametrize(
    "given_names, message",
    [
        (set(), "got none of them"),
        ({"dataset_uuid"}, "got dataset_uuid"),
        ({"store"}, "got store"),
        ({"dataset_uuid", "factory"}, "got dataset_uuid and factory"),
        ({"store", "factory"}, "got store and factory"),
        ({"dataset_uuid", "store", "factory"}, "got dataset_uuid and store and factory"),
    ],
)
def test_other_combinations_are_refused(factory, given_names, message):
    everything: dict[str, Any] = {"dataset_uuid": "u", "store": "hmemory://", "factory": factory}
    arguments = {name: value if name in given_names else None for name, value in everything.items()}
    with pytest.raises(ValueError, match=message):
        _ensure_factory(**arguments)
