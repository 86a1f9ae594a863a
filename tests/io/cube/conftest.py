"""The cube that several files of tests begin with."""

import pytest

from tests.support.cubes import CUBE, ENRICH, SEED


@pytest.fixture
def built(driver, store_factory):
    """A store with a cube of two datasets, built by the façade."""
    metadata = {"seed": {"a": 1, "b": 2}, "enrich": {"c": 3}}
    driver.build_cube(
        data={"seed": SEED, "enrich": ENRICH}, cube=CUBE, store=store_factory, metadata=metadata
    )
    return store_factory
