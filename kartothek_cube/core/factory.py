"""``DatasetFactory``: a dataset that is loaded on first access."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from simplekv import KeyValueStore

from kartothek_cube.core.arguments import CopyMixin
from kartothek_cube.core.commit.operation import committed_state, state_as_of
from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBase
from kartothek_cube.core.expressions import Node
from kartothek_cube.core.history import AsOf, check_as_of
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs
from kartothek_cube.core.store.resolve import lazy_store

if TYPE_CHECKING:
    from kartothek_cube.core.cube.cube import Cube

__all__ = ("DatasetFactory",)


class StagedState(ABC):
    """A write that is not committed, as the ``as_of`` of a read."""

    @abstractmethod
    def load_dataset(self, uuid: str, blobs: BlobStore) -> DatasetMetadata:
        """A dataset as it would be if the write was committed now."""

    @abstractmethod
    def load_datasets(self, cube: Cube, blobs: BlobStore) -> Mapping[str, DatasetMetadata]:
        """The datasets of a cube as they would be if the write was committed now."""


DatasetAsOf: TypeAlias = AsOf | StagedState | Mapping[str, DatasetMetadata] | DatasetMetadata
"""The state of a dataset to read; a staged write may have the declared type of a committed one."""


class DatasetFactory(DatasetMetadataBase):
    """A dataset that is loaded on first access to one of its attributes.

    Has all attributes and methods of :class:`~kartothek_cube.core.dataset.DatasetMetadata`.

    Parameters
    ----------
    dataset_uuid
        Uuid of the dataset.
    store_factory
        Function that makes the store (a URL or a store that can be pickled will do).
    load_schema
        Load the schema along with the header.
    load_all_indices
        Load all indices along with the header.
    as_of
        Version or time of the state to load, if the dataset keeps its history, or a staged write; by default
        the current state.

    Attributes
    ----------
    dataset_uuid : str
    store_factory : callable
    load_schema : bool
    is_loaded : bool
        Whether the header was read.

    Examples
    --------
    >>> DatasetFactory("sales", "hmemory://")
    <DatasetFactory: uuid=sales is_loaded=False>
    """

    def __init__(
        self,
        dataset_uuid: str,
        store_factory: StoreInput,
        load_schema: bool = True,
        load_all_indices: bool = False,
        *,
        as_of: DatasetAsOf | None = None,
    ) -> None:
        self.dataset_uuid = dataset_uuid
        self.store_factory: Callable[[], KeyValueStore] = lazy_store(store_factory)
        self.load_schema = load_schema
        self.is_loaded = False
        self._all_indices = load_all_indices
        self._as_of = as_of if as_of is None or isinstance(as_of, StagedState) else check_as_of(as_of)
        self._cache_metadata: DatasetMetadata | None = None
        self._cache_store: KeyValueStore | None = None

    def __repr__(self) -> str:
        return f"<DatasetFactory: uuid={self.dataset_uuid} is_loaded={self.is_loaded}>"

    def _repr_html_(self) -> str | None:
        try:
            return self.dataset_metadata._repr_html_()
        # the text will do: the dataset does not exist (yet), or its store is unavailable
        except (KeyError, OSError, ValueError):
            return None

    def copy(self, **kwargs: Any) -> Self:
        """Make another factory, with some arguments of the constructor changed, that has nothing loaded."""
        kwargs.setdefault("load_all_indices", self._all_indices)
        kwargs.setdefault("as_of", self._as_of)
        return CopyMixin.copy(self, **kwargs)

    @property
    def store(self) -> KeyValueStore:
        """The store, made once."""
        if self._cache_store is None:
            self._cache_store = self.store_factory()
        return self._cache_store

    @property
    def dataset_metadata(self) -> DatasetMetadata:
        """The dataset, loaded once."""
        if self._cache_metadata is None:
            self._cache_metadata = self._load_dataset()
        self.is_loaded = True
        return self._cache_metadata

    def _load_dataset(self) -> DatasetMetadata:
        blobs = open_blobs(self.store)
        if self._as_of is None:
            # of an operation on several datasets that has not committed, nothing is read
            newest = DatasetMetadata.load_from_store(self.dataset_uuid, blobs, self.load_schema)
            state = committed_state(blobs, newest)
        elif isinstance(self._as_of, StagedState):
            state = self._as_of.load_dataset(self.dataset_uuid, blobs)
        else:
            state = state_as_of(self.dataset_uuid, blobs, self._as_of)
        return state.load_all_indices(self.store) if self._all_indices else state

    def __getattr__(self, name: str) -> Any:
        # called only for names that are no attributes of the factory, which has none while it is unpickled
        if name.startswith("__") or "_cache_store" not in vars(self):
            raise AttributeError(name)
        return getattr(self.dataset_metadata, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache_metadata": None, "_cache_store": None, "is_loaded": False}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        new = self.copy()
        new._cache_metadata = copy.deepcopy(self._cache_metadata, memo)
        new.is_loaded = self.is_loaded
        return new

    def invalidate(self) -> None:
        """Drop the loaded dataset and the store; both are loaded again on access."""
        self.is_loaded = False
        self._cache_metadata = None
        self._cache_store = None

    def load_index(self, column: str, store: StoreInput | BlobStore | None = None) -> Self:
        """Load the index of one column into this factory, from a store instead of its own if given.

        KeyError: the column has no index, or the file is missing.
        """
        if column in self.dataset_metadata.partition_keys:
            return self.load_partition_indices()
        used_store = self.store if store is None else store
        self._cache_metadata = self.dataset_metadata.load_index(column, used_store)
        return self

    def load_all_indices(self, store: StoreInput | BlobStore | None = None) -> Self:
        """Load all indices into this factory, from a store instead of its own if given.

        KeyError: a file is missing.
        """
        self._cache_metadata = self.dataset_metadata.load_all_indices(self.store if store is None else store)
        return self

    def load_partition_indices(self) -> Self:
        """Build the indices on the partition keys, in this factory."""
        self._cache_metadata = self.dataset_metadata.load_partition_indices()
        return self

    def _load_indices(self, columns: Any, store: StoreInput | BlobStore, node: Node | None = None) -> Self:
        self._cache_metadata = self.dataset_metadata._load_indices(columns, store, node)
        return self


def _ensure_factory(
    dataset_uuid: str | None,
    store: StoreInput | None,
    factory: DatasetFactory | None,
    load_schema: bool = True,
) -> DatasetFactory:
    """The factory passed, or one for the dataset and store passed; raises ValueError for both or none."""
    if not isinstance(factory, DatasetFactory | None):
        raise TypeError(f"factory is a DatasetFactory(dataset_uuid, store), got {type(factory).__name__}")
    if factory is not None and dataset_uuid is None and store is None:
        return factory
    if factory is None and dataset_uuid is not None and store is not None:
        return DatasetFactory(dataset_uuid, lazy_store(store), load_schema=load_schema)
    arguments = {"dataset_uuid": dataset_uuid, "store": store, "factory": factory}
    passed = [name for name, value in arguments.items() if value is not None]
    raise ValueError(
        f"Pass either `factory`, or `dataset_uuid` and `store`; got {' and '.join(passed) or 'none of them'}"
    )
