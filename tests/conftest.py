"""Fixtures of all tests: every kind of store, every façade; ``--store`` and ``--facade`` select some.

Every test of behaviour can run with every façade and store: ``--facade all --store all``. By default each
case runs with a few pairs of them: tests/support/combinations.py.
"""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support import combinations, spark_gaps
from tests.support.factories import STORES, StoreFactory

# how long an example takes says more about the machine than about the code
settings.register_profile("explore", deadline=None)
# the same examples each time: a failure has to do with the change, not with luck
settings.register_profile("kartothek_cube", deadline=None, derandomize=True)
settings.load_profile(os.environ.get("KARTOTHEK_CUBE_HYPOTHESIS", "kartothek_cube"))

#: needs a JVM, and stores that other processes can open
SPARK = "spark"
#: names of the façades in tests/support/cube_facades.py, which is only imported when a test wants one
FACADE_NAMES = ("eager", "iter", "delayed", "bag_bs1", "bag_bs3", "dataframe", SPARK)


#: files with one test of ten seconds to two minutes, longest first
LONG = ("test_cluster.py", "test_connect.py", "spark.rst", "dask.rst")


#: where a directory is memory
MEMORY = Path("/dev/shm")


def pytest_configure() -> None:
    """Keep directories of tests in memory: commits to a disk wait until it has the data."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_addoption(parser: pytest.Parser) -> None:
    for option, known in (("--store", (*STORES, "all")), ("--facade", (*FACADE_NAMES, "all"))):
        parser.addoption(
            option,
            action="append",
            choices=sorted(known),
            help=f"run tests with this {option[2:]} only; may be given several times",
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, option, known in (("store_kind", "store", STORES), ("facade", "facade", FACADE_NAMES)):
        if fixture in metafunc.fixturenames:
            chosen = metafunc.config.getoption(option) or ["all"]
            metafunc.parametrize(fixture, list(known) if "all" in chosen else chosen)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the combinations of façade and store that tests/support/combinations.py selects."""
    all_facades, all_stores = bool(config.getoption("facade")), bool(config.getoption("store"))

    def is_selected(item: pytest.Item) -> bool:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        facade, store = params.get("facade"), params.get("store_kind")
        if not (facade or store):
            return True
        if facade == SPARK and not spark_gaps.applies(item.nodeid, store):
            return False
        turn = combinations.turn_of(item)
        return combinations.is_selected(facade, store, turn, all_facades=all_facades, all_stores=all_stores)

    selected = [item for item in items if is_selected(item)]
    config.hook.pytest_deselected(items=list(set(items) - set(selected)))
    # long tests come first, lest others wait for them in the end
    order = {name: position for position, name in enumerate(LONG)}
    items[:] = sorted(selected, key=lambda item: order.get(item.path.name, len(LONG)))


@pytest.fixture
def store_factory(store_kind: str, tmp_path: Path) -> StoreFactory:
    """A picklable factory of an empty store, the same store at every call; once per kind of store."""
    return STORES[store_kind](tmp_path / "store")


@pytest.fixture
def other_store_factory(store_kind: str, tmp_path: Path) -> StoreFactory:
    """A second, independent store of the same kind, the target of copies."""
    return STORES[store_kind](tmp_path / "other")


@pytest.fixture
def store(store_factory: StoreFactory) -> Any:
    """An empty store."""
    return store_factory()


@pytest.fixture
def driver(facade: str) -> Any:
    """A façade with the methods of tests/support/cube_facades.py; once per façade."""
    return importlib.import_module("tests.support.cube_facades").open_facade(facade)
