"""A store for graphs."""

import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.io import eager
from tests.support.cubes import CUBE, build, frame, memory
from tests.support.stores import Same, UnpicklableStore, Wrapped


@pytest.fixture
def built():
    """A store, which cannot be pickled, with a cube of two datasets, a dataset, and leftovers of both."""
    factory = Same.of(memory())
    seed, enrich = frame(x=[0, 1], p=[0, 1], v1=[10, 11]), frame(x=[0, 1], p=[0, 1], v2=[20, 21])
    build(factory, seed=seed, enrich=enrich)
    api.build_cube({"seed": seed, "enrich": enrich}, CUBE, factory, overwrite=True)
    eager.store_dataframes_as_dataset(factory, "u", [seed], partition_on="p", secondary_indices="x")
    factory().put("u/table/leftover.parquet", b"data")
    return Wrapped(UnpicklableStore, factory)
