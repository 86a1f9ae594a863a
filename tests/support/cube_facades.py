"""One class per façade, all with the same methods, so that a test of behaviour is written once.

Methods take the arguments of ``kartothek_cube.io.eager_cube`` and give back plain results: frames in a list,
statistics and written datasets in a dict, whatever the façade makes of them (generators, graphs, Spark jobs).
"""

import importlib
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import dask
import dask.bag as db
import dask.dataframe as dd
import pandas as pd

from kartothek_cube.api import cube as api
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io.dask import bag_cube, dataframe_cube, delayed_cube

Written = dict[str, DatasetMetadata]

#: what computes graphs; by default this thread
SCHEDULER = "sync"


def ids_of(data: Any, cube: api.Cube) -> list[str]:
    """Give the ids that have to be announced to façades that take input in parts."""
    if isinstance(data, Mapping):
        return list(data)
    return [cube.seed_dataset] if isinstance(data, pd.DataFrame) else []


#: operations with input, and without
WRITES = ("build_cube", "extend_cube", "append_to_cube", "update_cube")
OTHERS = (
    *("remove_partitions", "delete_cube", "copy_cube", "cleanup_cube", "collect_stats"),
    *("build_column_statistics", "compact_cube", "delete_rows", "verify_cube"),
)


class Eager:
    """pandas in, pandas out, at once."""

    name = "eager"
    #: where its functions are, and how they are called
    module: Any = api
    writes = others = "{}"
    #: whether datasets are announced, since input comes in parts
    announces = False
    groups_share_types = False
    #: arguments of functions that have them
    options: Mapping[str, Any] = {}

    def __getattr__(self, operation: str) -> Any:
        if operation in WRITES:
            return partial(self.write, operation)
        if operation in OTHERS:
            return partial(self.run, self.others.format(operation))
        raise AttributeError(operation)

    def write(self, operation: str, data: Any, **kwargs: Any) -> Written:
        if self.announces and operation != "update_cube":
            kwargs = {"ktk_cube_dataset_ids": ids_of(data, kwargs["cube"]), **kwargs}
        return self.run(self.writes.format(operation), self.make_input(data, kwargs.get("cube")), **kwargs)

    def run(self, name: str, *data: Any, **kwargs: Any) -> Any:
        function = getattr(self.module, name)
        known = inspect.signature(function).parameters
        options = {option: value for option, value in self.options.items() if option in known}
        return self.finish(function(*data, **options, **kwargs))

    def make_input(self, data: Any, cube: Any) -> Any:
        return data

    def finish(self, result: Any) -> Any:
        return result

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        return api.query_cube(**kwargs)


class Iter(Eager):
    """The input is an iterator with one element, results are taken from an iterator."""

    name = "iter"
    writes = others = "{}__iter"
    announces = True

    def make_input(self, data: Any, cube: Any) -> Any:
        return iter([data])

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        return list(api.query_cube__iterator(**kwargs))


def same(data: Any) -> Any:
    """Give the argument; the task that makes the input."""
    return data


def compute(item: Any) -> Any:
    return item.compute(scheduler=SCHEDULER)


class Delayed(Eager):
    """Delayed objects in, Delayed objects out."""

    name = "delayed"
    module, writes, others = delayed_cube, "{}_from_delayed", "{}_delayed"
    announces = True

    def make_input(self, data: Any, cube: Any) -> Any:
        return [dask.delayed(same)(data)]

    def finish(self, result: Any) -> Any:
        return compute(result)

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        frames = dask.compute(*delayed_cube.query_cube_delayed(**kwargs), scheduler=SCHEDULER)
        return [df for df in frames if len(df)]


class Bag(Eager):
    """A bag with one element in, bags out; one piece of work per task."""

    name = "bag_bs1"
    module, writes, others = bag_cube, "{}_from_bag", "{}_bag"
    announces = True
    options = {"blocksize": 1}

    def make_input(self, data: Any, cube: Any) -> Any:
        return db.from_sequence([data])

    def finish(self, result: Any) -> Any:
        """The only element of a bag, or None of one that has no others."""
        elements = compute(result)
        if all(element is None for element in elements):
            return None
        (element,) = elements
        return element

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        return compute(bag_cube.query_cube_bag(**self.options, **kwargs))


class LargeBag(Bag):
    """The same, with three pieces of work per task."""

    name = "bag_bs3"
    options = {"blocksize": 3}


class DataFrame(Eager):
    """dask DataFrames of one partition in, dask DataFrames out."""

    name = "dataframe"
    module, writes, others = dataframe_cube, "{}_from_dataframe", "{}_dataframe"

    def make_input(self, data: Any, cube: Any) -> Any:
        return frames_of(data)

    def finish(self, result: Any) -> Any:
        return compute(result)

    def __getattr__(self, operation: str) -> Any:
        if operation in OTHERS and not hasattr(dataframe_cube, self.others.format(operation)):
            return getattr(Delayed(), operation)
        return super().__getattr__(operation)

    def query_cube(self, **kwargs: Any) -> list[pd.DataFrame]:
        ddf = dataframe_cube.query_cube_dataframe(**kwargs)
        frames = dask.compute(*ddf.to_delayed(), scheduler=SCHEDULER)
        assert {tuple(df.columns) for df in frames} == {tuple(ddf.columns)}
        return [df for df in frames if len(df)]


def frames_of(data: Any) -> Any:
    """Give frames as dask DataFrames, types and order kept; other objects as they are."""
    if isinstance(data, Mapping):
        return {name: frames_of(df) for name, df in data.items()}
    if isinstance(data, list):
        return {}
    if not isinstance(data, pd.DataFrame):
        return data
    return ddf_of(data)


def ddf_of(df: pd.DataFrame, npartitions: int = 1) -> Any:
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(df, npartitions=npartitions, sort=False)


#: name for ``--facade`` -> class
FACADES: dict[str, type[Eager]] = {cls.name: cls for cls in (Eager, Iter, Delayed, Bag, LargeBag, DataFrame)}
#: needs a JVM, and stores that other processes can open
SPARK = "spark"


#: façade -> a write whose input comes in several parts
PARTS = {
    "iter": lambda operation, parts, **kw: getattr(api, f"{operation}__iter")(iter(parts), **kw),
    "delayed": lambda operation, parts, **kw: compute(
        getattr(delayed_cube, f"{operation}_from_delayed")([dask.delayed(same)(df) for df in parts], **kw)
    ),
    "bag": lambda operation, parts, **kw: compute(
        getattr(bag_cube, f"{operation}_from_bag")(db.from_sequence(parts or [None]), **kw)
    ),
}


def open_facade(name: str) -> Any:
    """A façade by name; pyspark is imported for Spark only."""
    if name == SPARK:
        return importlib.import_module("tests.support.facade_spark").Spark()
    return FACADES[name]()
