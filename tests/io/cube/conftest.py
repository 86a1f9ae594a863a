"""The cube that several files of tests begin with."""

import pytest

from tests.support.cubes import BOTH, CUBE


@pytest.fixture
def built(driver, store_factory):
    """A store with a cube of two datasets, built by the façade."""
    metadata = {"seed": {"a": 1, "b": 2}, "enrich": {"c": 3}}
    driver.build_cube(data=BOTH, cube=CUBE, store=store_factory, metadata=metadata)
    return store_factory
