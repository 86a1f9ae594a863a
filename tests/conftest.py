"""Fixtures of all tests: every kind of store, every façade; ``--store`` and ``--facade`` select some.

Every test of behaviour can run on every façade: ``--facade all``. By default it runs on the eager one and, so
that the tests stay quick, each case on one of the others, always the same, with a store in memory.
"""

from __future__ import annotations

import importlib
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.factories import STORES, StoreFactory

# how long an example takes says more about the machine than about the code
settings.register_profile("kartothek_cube", deadline=None)
settings.load_profile("kartothek_cube")

#: names of the façades in tests/support/facades.py, which is only imported when a test wants one
FACADE_NAMES = ("eager", "iter", "delayed", "bag_bs1", "bag_bs3", "dataframe")


def pytest_addoption(parser: pytest.Parser) -> None:
    for option, known in (("--store", STORES), ("--facade", (*FACADE_NAMES, "all"))):
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
    """Unless façades were chosen, leave each case to the eager one and to one of the others."""
    if config.getoption("facade"):
        return
    surplus = [item for item in items if _is_surplus(item)]
    config.hook.pytest_deselected(items=surplus)
    dropped = set(surplus)
    items[:] = [item for item in items if item not in dropped]


def _is_surplus(item: pytest.Item) -> bool:
    params = getattr(item, "callspec", None) and item.callspec.params
    facade = params and params.get("facade")
    if not facade or facade == FACADE_NAMES[0]:
        return False
    case = item.nodeid.replace(facade, "").encode()
    turn = FACADE_NAMES[1:][zlib.crc32(case) % len(FACADE_NAMES[1:])]
    return facade != turn or params.get("store_kind", "memory") != "memory"


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
    """A façade with the methods of tests/support/facades.py; once per façade."""
    return importlib.import_module("tests.support.facades").FACADES[facade]()
