"""One class per façade, all with the same methods, so that a test of behaviour is written once.

Methods take the arguments of ``kartothek_cube.io.eager_cube`` and give back plain results: frames in a list,
statistics and written datasets in a dict, whatever the façade makes of them (generators, graphs, Spark jobs).
"""

import importlib
from collections.abc import Mapping
from typing import Any

import dask
import dask.bag as db
import dask.dataframe as dd
import pandas as pd

from kartothek_cube.api import cube as api
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io.dask import bag_cube, dataframe_cube, delayed_cube

Written = dict[str, DatasetMetadata]
Stats = dict[str, dict[str, int]]

#: what computes graphs; by default this thread
SCHEDULER = "sync"


def ids_of(data: Any, cube: api.Cube) -> list[str]:
    """Give the ids that have to be announced to façades that take input in parts."""
    if isinstance(data, Mapping):
        return list(data)
    return [cube.seed_dataset] if isinstance(data, pd.DataFrame) else []


class Eager:
    """pandas in, pandas out, at once."""

    name = "eager"
    groups_share_types = False

    #: whether cells that occur twice in a frame of input are refused
    checks_duplicates = True

    def build_cube(self, **kwargs: Any) -> Written:
        return api.build_cube(**kwargs)

    def extend_cube(self, **kwargs: Any) -> Written:
        return api.extend_cube(**kwargs)

    def append_to_cube(self, **kwargs: Any) -> Written:
        return api.append_to_cube(**kwargs)

    def update_cube(self, **kwargs: Any) -> Written:
        return api.update_cube(**kwargs)

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        return api.query_cube(**kwargs)

    def remove_partitions(self, **kwargs: Any) -> Written:
        return api.remove_partitions(**kwargs)

    def delete_cube(self, **kwargs: Any) -> None:
        api.delete_cube(**kwargs)

    def copy_cube(self, **kwargs: Any) -> None:
        api.copy_cube(**kwargs)

    def collect_stats(self, **kwargs: Any) -> Stats:
        return api.collect_stats(**kwargs)

    def build_column_statistics(self, **kwargs: Any) -> Written:
        return api.build_column_statistics(**kwargs)

    def cleanup_cube(self, **kwargs: Any) -> None:
        api.cleanup_cube(**kwargs)


class Iter(Eager):
    """The input is an iterator with one element, results are taken from an iterator."""

    name = "iter"

    def build_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        return api.build_cube__iter(iter([data]), cube, ktk_cube_dataset_ids=ids_of(data, cube), **kwargs)

    def extend_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        return api.extend_cube__iter(iter([data]), cube, ktk_cube_dataset_ids=ids_of(data, cube), **kwargs)

    def append_to_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        return api.append_to_cube__iter(iter([data]), cube, ktk_cube_dataset_ids=ids_of(data, cube), **kwargs)

    def update_cube(self, data: Any, **kwargs: Any) -> Written:
        return api.update_cube__iter(iter([data]), **kwargs)

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        return list(api.query_cube__iterator(**kwargs))

    def remove_partitions(self, **kwargs: Any) -> Written:
        return api.remove_partitions__iter(**kwargs)

    def delete_cube(self, **kwargs: Any) -> None:
        api.delete_cube__iter(**kwargs)

    def copy_cube(self, **kwargs: Any) -> None:
        api.copy_cube__iter(**kwargs)

    def collect_stats(self, **kwargs: Any) -> Stats:
        return api.collect_stats__iter(**kwargs)

    def build_column_statistics(self, **kwargs: Any) -> Written:
        return api.build_column_statistics__iter(**kwargs)

    def cleanup_cube(self, **kwargs: Any) -> None:
        api.cleanup_cube__iter(**kwargs)


def same(data: Any) -> Any:
    """Give the argument; the task that makes the input."""
    return data


def compute(item: Any) -> Any:
    """Compute a lazy result."""
    return item.compute(scheduler=SCHEDULER)


class Delayed(Iter):
    """Delayed objects in, Delayed objects out."""

    name = "delayed"

    def build_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        items = [dask.delayed(same)(data)]
        ids = ids_of(data, cube)
        return compute(delayed_cube.build_cube_from_delayed(items, cube, ktk_cube_dataset_ids=ids, **kwargs))

    def extend_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        items = [dask.delayed(same)(data)]
        ids = ids_of(data, cube)
        return compute(delayed_cube.extend_cube_from_delayed(items, cube, ktk_cube_dataset_ids=ids, **kwargs))

    def append_to_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        items = [dask.delayed(same)(data)]
        ids = ids_of(data, cube)
        return compute(
            delayed_cube.append_to_cube_from_delayed(items, cube, ktk_cube_dataset_ids=ids, **kwargs)
        )

    def update_cube(self, data: Any, **kwargs: Any) -> Written:
        return compute(delayed_cube.update_cube_from_delayed([dask.delayed(same)(data)], **kwargs))

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        frames = dask.compute(*delayed_cube.query_cube_delayed(**kwargs), scheduler=SCHEDULER)
        return [df for df in frames if len(df)]

    def remove_partitions(self, **kwargs: Any) -> Written:
        return compute(delayed_cube.remove_partitions_delayed(**kwargs))

    def delete_cube(self, **kwargs: Any) -> None:
        return compute(delayed_cube.delete_cube_delayed(**kwargs))

    def copy_cube(self, **kwargs: Any) -> None:
        return compute(delayed_cube.copy_cube_delayed(**kwargs))

    def collect_stats(self, **kwargs: Any) -> Stats:
        return compute(delayed_cube.collect_stats_delayed(**kwargs))

    def build_column_statistics(self, **kwargs: Any) -> Written:
        return compute(delayed_cube.build_column_statistics_delayed(**kwargs))

    def cleanup_cube(self, **kwargs: Any) -> None:
        return compute(delayed_cube.cleanup_cube_delayed(**kwargs))


class Bag(Delayed):
    """A bag with one element in, bags out; one piece of work per task."""

    name = "bag_bs1"
    blocksize = 1

    def build_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        bag = db.from_sequence([data])
        ids = ids_of(data, cube)
        return only(bag_cube.build_cube_from_bag(bag, cube, ktk_cube_dataset_ids=ids, **kwargs))

    def extend_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        bag = db.from_sequence([data])
        ids = ids_of(data, cube)
        return only(bag_cube.extend_cube_from_bag(bag, cube, ktk_cube_dataset_ids=ids, **kwargs))

    def append_to_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        bag = db.from_sequence([data])
        ids = ids_of(data, cube)
        return only(bag_cube.append_to_cube_from_bag(bag, cube, ktk_cube_dataset_ids=ids, **kwargs))

    def update_cube(self, data: Any, **kwargs: Any) -> Written:
        return only(bag_cube.update_cube_from_bag(db.from_sequence([data]), **kwargs))

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        return compute(bag_cube.query_cube_bag(blocksize=self.blocksize, **kwargs))

    def remove_partitions(self, **kwargs: Any) -> Written:
        return only(bag_cube.remove_partitions_bag(**kwargs))

    def delete_cube(self, **kwargs: Any) -> None:
        done(bag_cube.delete_cube_bag(blocksize=self.blocksize, **kwargs))

    def copy_cube(self, **kwargs: Any) -> None:
        done(bag_cube.copy_cube_bag(blocksize=self.blocksize, **kwargs))

    def collect_stats(self, **kwargs: Any) -> Stats:
        return only(bag_cube.collect_stats_bag(blocksize=self.blocksize, **kwargs))

    def build_column_statistics(self, **kwargs: Any) -> Written:
        return only(bag_cube.build_column_statistics_bag(**kwargs))

    def cleanup_cube(self, **kwargs: Any) -> None:
        done(bag_cube.cleanup_cube_bag(blocksize=self.blocksize, **kwargs))


def only(bag: db.Bag) -> Any:
    """Compute the only element of a bag."""
    (element,) = compute(bag)
    return element


def done(bag: db.Bag) -> None:
    """Compute a bag of None."""
    assert set(compute(bag)) <= {None}


class LargeBag(Bag):
    """The same, with three pieces of work per task."""

    name = "bag_bs3"
    blocksize = 3


class DataFrame(Delayed):
    """dask DataFrames of two partitions in, dask DataFrames out."""

    name = "dataframe"
    checks_duplicates = False

    def build_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        return compute(dataframe_cube.build_cube_from_dataframe(frames_of(data), cube, **kwargs))

    def extend_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        return compute(dataframe_cube.extend_cube_from_dataframe(frames_of(data), cube, **kwargs))

    def append_to_cube(self, data: Any, cube: api.Cube, **kwargs: Any) -> Written:
        return compute(dataframe_cube.append_to_cube_from_dataframe(frames_of(data), cube, **kwargs))

    def update_cube(self, data: Any, **kwargs: Any) -> Written:
        return compute(dataframe_cube.update_cube_from_dataframe(frames_of(data), **kwargs))

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        ddf = dataframe_cube.query_cube_dataframe(**kwargs)
        frames = dask.compute(*ddf.to_delayed(), scheduler=SCHEDULER)
        assert {tuple(df.columns) for df in frames} == {tuple(ddf.columns)}
        return [df for df in frames if len(df)]

    def remove_partitions(self, **kwargs: Any) -> Written:
        return compute(dataframe_cube.remove_partitions_dataframe(**kwargs))

    def delete_cube(self, **kwargs: Any) -> None:
        return compute(dataframe_cube.delete_cube_dataframe(**kwargs))

    def copy_cube(self, **kwargs: Any) -> None:
        return compute(dataframe_cube.copy_cube_dataframe(**kwargs))

    def collect_stats(self, **kwargs: Any) -> Stats:
        return compute(dataframe_cube.collect_stats_dataframe(**kwargs))

    def cleanup_cube(self, **kwargs: Any) -> None:
        return compute(dataframe_cube.cleanup_cube_dataframe(**kwargs))


def frames_of(data: Any) -> Any:
    """Give frames as dask DataFrames, types and order kept; other objects as they are."""
    if isinstance(data, Mapping):
        return {name: frames_of(df) for name, df in data.items()}
    if isinstance(data, list):
        return {}
    if not isinstance(data, pd.DataFrame):
        return data
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(data, npartitions=1, sort=False)


#: name for ``--facade`` -> class
FACADES: dict[str, type[Eager]] = {cls.name: cls for cls in (Eager, Iter, Delayed, Bag, LargeBag, DataFrame)}
#: needs a JVM, and stores that other processes can open
SPARK = "spark"


def open_facade(name: str) -> Any:
    """A façade by name; pyspark is imported for Spark only."""
    if name == SPARK:
        return importlib.import_module("tests.support.facade_spark").Spark()
    return FACADES[name]()
