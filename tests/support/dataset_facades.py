"""One class per façade of datasets, all with the same methods: a test of behaviour is written once."""

from typing import Any

import dask
import dask.bag as db
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.pandas_conversion import to_pandas
from kartothek_cube.io import arrow, eager
from kartothek_cube.io import iter as iter_
from kartothek_cube.io.dask import bag, delayed


class Eager:
    """pandas in, pandas out, at once."""

    name = "eager"

    def store(self, store: Any, dfs: Any, uuid: str = "u", **kwargs: Any) -> DatasetMetadata:
        return eager.store_dataframes_as_dataset(store, uuid, dfs, **kwargs)

    def update(self, store: Any, dfs: Any, uuid: str | None = "u", **kwargs: Any) -> DatasetMetadata:
        return eager.update_dataset_from_dataframes(dfs, store=store, dataset_uuid=uuid, **kwargs)

    def read(self, store: Any, uuid: str | None = "u", **kwargs: Any) -> list[pd.DataFrame]:
        return eager.read_dataset_as_dataframes(uuid, store, **kwargs)


class Iter(Eager):
    """pandas in, pandas out, one frame after the other."""

    name = "iter"

    def store(self, store: Any, dfs: Any, uuid: str = "u", **kwargs: Any) -> DatasetMetadata:
        return iter_.store_dataframes_as_dataset__iter(iter(dfs), store, uuid, **kwargs)

    def update(self, store: Any, dfs: Any, uuid: str | None = "u", **kwargs: Any) -> DatasetMetadata:
        return iter_.update_dataset_from_dataframes__iter(iter(dfs), store, uuid, **kwargs)

    def read(self, store: Any, uuid: str | None = "u", **kwargs: Any) -> list[pd.DataFrame]:
        return list(iter_.read_dataset_as_dataframes__iterator(uuid, store, **kwargs))


class Arrow(Eager):
    """Arrow in, Arrow out."""

    name = "arrow"

    def store(self, store: Any, dfs: Any, uuid: str = "u", **kwargs: Any) -> DatasetMetadata:
        return super().store(store, map(as_arrow, dfs), uuid, **kwargs)

    def update(self, store: Any, dfs: Any, uuid: str | None = "u", **kwargs: Any) -> DatasetMetadata:
        return super().update(store, map(as_arrow, dfs), uuid, **kwargs)

    def read(self, store: Any, uuid: str | None = "u", **kwargs: Any) -> list[pd.DataFrame]:
        dates_as_object = kwargs.pop("dates_as_object", True)
        tables = arrow.read_dataset_as_arrow(uuid, store, **kwargs)
        categories = kwargs.get("categoricals") or ()
        return [to_pandas(t, dates_as_object=dates_as_object, categories=categories) for t in tables]


def as_arrow(item: Any) -> Any:
    return pa.Table.from_pandas(item) if isinstance(item, pd.DataFrame) else item


class Delayed(Eager):
    """One Delayed per frame in, one Delayed per frame out."""

    name = "delayed"

    def store(self, store: Any, dfs: Any, uuid: str = "u", **kwargs: Any) -> DatasetMetadata:
        items = [dask.delayed(same)(item) for item in dfs]
        return compute(delayed.store_delayed_as_dataset(items, store, uuid, **kwargs))

    def update(self, store: Any, dfs: Any, uuid: str | None = "u", **kwargs: Any) -> DatasetMetadata:
        items = [dask.delayed(same)(item) for item in dfs]
        return compute(delayed.update_dataset_from_delayed(items, store, uuid, **kwargs))

    def read(self, store: Any, uuid: str | None = "u", **kwargs: Any) -> list[pd.DataFrame]:
        return list(dask.compute(*delayed.read_dataset_as_delayed(uuid, store, **kwargs), scheduler="sync"))


class Bag(Delayed):
    """A bag of two partitions in, a bag out; updates are those of Delayed objects."""

    name = "bag"

    def store(self, store: Any, dfs: Any, uuid: str = "u", **kwargs: Any) -> DatasetMetadata:
        items = db.from_sequence(list(dfs), npartitions=2)
        return compute(bag.store_bag_as_dataset(items, store, uuid, **kwargs))

    def read(self, store: Any, uuid: str | None = "u", **kwargs: Any) -> list[pd.DataFrame]:
        return compute(bag.read_dataset_as_dataframe_bag(uuid, store, partition_size=2, **kwargs))


def same(item: Any) -> Any:
    return item


def compute(item: Any) -> Any:
    return item.compute(scheduler="sync")


FACADES: dict[str, type[Eager]] = {cls.name: cls for cls in (Eager, Iter, Arrow, Delayed, Bag)}
