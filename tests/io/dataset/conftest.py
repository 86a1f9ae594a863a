"""The façades of datasets as a fixture, and a store for tests that do not depend on its kind."""

from pathlib import Path

import pytest

from tests.support import combinations
from tests.support.dataset_facades import FACADES, Eager
from tests.support.factories import STORES, StoreFactory

OTHERS = [name for name in FACADES if name != Eager.name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as slow but those with the eager façade, and with another one in turn."""
    for item in items:
        name = item.callspec.params.get("io") if hasattr(item, "callspec") else None
        if name in OTHERS and combinations.turn_of(item) % len(OTHERS) != OTHERS.index(name):
            item.add_marker(pytest.mark.slow("façades have no logic: a case is tested with two of them"))


@pytest.fixture(params=list(FACADES))
def io(request: pytest.FixtureRequest) -> Eager:
    """A façade with the methods of tests/support/dataset_facades.py; once per façade."""
    return FACADES[request.param]()


@pytest.fixture
def memory(tmp_path: Path) -> StoreFactory:
    """A factory of an empty store in memory, the same store at every call."""
    return STORES["memory"](tmp_path)
