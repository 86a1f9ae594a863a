"""A store for graphs."""

import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.io import eager
from tests.support.cubes import BOTH, CUBE, ENRICH, SEED, build, memory
from tests.support.stores import Same, UnpicklableStore, Wrapped


@pytest.fixture
def store():
    """A factory of an empty store in memory."""
    return Same.of(memory())


@pytest.fixture
def built():
    """A store, which cannot be pickled, with a cube of two datasets, a dataset, and leftovers of both."""
    factory = Same.of(memory())
    build(factory, seed=SEED, enrich=ENRICH)
    api.build_cube(BOTH, CUBE, factory, overwrite=True)
    eager.store_dataframes_as_dataset(factory, "u", [SEED], partition_on="p", secondary_indices="x")
    factory().put("u/table/leftover.parquet", b"data")
    return Wrapped(UnpicklableStore, factory)
