"""The façades of datasets as a fixture, and a store for tests that do not depend on its kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dataset_facades import FACADES, Eager
from tests.support.factories import STORES, StoreFactory


@pytest.fixture(params=list(FACADES))
def io(request: pytest.FixtureRequest) -> Eager:
    """A façade with the methods of tests/support/dataset_facades.py; once per façade."""
    return FACADES[request.param]()


@pytest.fixture
def memory(tmp_path: Path) -> StoreFactory:
    """A factory of an empty store in memory, the same store at every call."""
    return STORES["memory"](tmp_path)
