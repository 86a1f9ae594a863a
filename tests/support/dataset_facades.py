"""One class per façade of datasets, all with the same methods: a test of behaviour is written once."""

from collections.abc import Callable
from functools import partial
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
from tests.support.cube_facades import same


def as_arrow(item: Any) -> Any:
    return pa.Table.from_pandas(item) if isinstance(item, pd.DataFrame) else item


class Eager:
    """pandas in, pandas out, at once."""

    name = "eager"
    functions: tuple[Callable[..., Any], ...] = (
        lambda dfs, store, uuid, **kwargs: eager.store_dataframes_as_dataset(store, uuid, dfs, **kwargs),
        eager.update_dataset_from_dataframes,
        eager.read_dataset_as_dataframes,
    )

    def make_input(self, dfs: Any) -> Any:
        return dfs

    def finish(self, result: Any) -> Any:
        return result

    def store(self, store: Any, dfs: Any, uuid: str = "u", **kwargs: Any) -> DatasetMetadata:
        return self.finish(self.functions[0](self.make_input(dfs), store, uuid, **kwargs))

    def update(self, store: Any, dfs: Any, uuid: str | None = "u", **kwargs: Any) -> DatasetMetadata:
        return self.finish(self.functions[1](self.make_input(dfs), store, uuid, **kwargs))

    def read(self, store: Any, uuid: str | None = "u", **kwargs: Any) -> list[pd.DataFrame]:
        return list(self.finish(self.functions[2](uuid, store, **kwargs)))


class Iter(Eager):
    """pandas in, pandas out, one frame after the other."""

    name = "iter"
    functions = (
        iter_.store_dataframes_as_dataset__iter,
        iter_.update_dataset_from_dataframes__iter,
        iter_.read_dataset_as_dataframes__iterator,
    )

    def make_input(self, dfs: Any) -> Any:
        return iter(dfs)


class Arrow(Eager):
    """Arrow in, Arrow out."""

    name = "arrow"

    def make_input(self, dfs: Any) -> Any:
        return map(as_arrow, dfs)

    def read(self, store: Any, uuid: str | None = "u", **kwargs: Any) -> list[pd.DataFrame]:
        dates_as_object = kwargs.pop("dates_as_object", True)
        tables = arrow.read_dataset_as_arrow(uuid, store, **kwargs)
        categories = kwargs.get("categoricals") or ()
        return [to_pandas(t, dates_as_object=dates_as_object, categories=categories) for t in tables]


class Delayed(Eager):
    """One Delayed per frame in, one Delayed per frame out."""

    name = "delayed"
    functions = (
        delayed.store_delayed_as_dataset,
        delayed.update_dataset_from_delayed,
        delayed.read_dataset_as_delayed,
    )

    def make_input(self, dfs: Any) -> Any:
        return [dask.delayed(same)(item) for item in dfs]

    def finish(self, result: Any) -> Any:
        return dask.compute(result, scheduler="sync")[0]


class Bag(Delayed):
    """A bag of two partitions in, a bag out; updates are those of Delayed objects."""

    name = "bag"
    functions = (*Delayed.functions[:2], partial(bag.read_dataset_as_dataframe_bag, partition_size=2))

    def store(self, store: Any, dfs: Any, uuid: str = "u", **kwargs: Any) -> DatasetMetadata:
        items = db.from_sequence(list(dfs), npartitions=2)
        return self.finish(bag.store_bag_as_dataset(items, store, uuid, **kwargs))


FACADES: dict[str, type[Eager]] = {cls.name: cls for cls in (Eager, Iter, Arrow, Delayed, Bag)}
