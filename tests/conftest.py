"""Fixtures of all tests: every kind of store, every façade; ``--store`` and ``--facade`` select some."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.factories import STORES, StoreFactory

#: names of the façades in tests/support/facades.py, which is only imported when a test wants one
FACADE_NAMES = ("eager",)


def pytest_addoption(parser: pytest.Parser) -> None:
    for option, known in (("--store", STORES), ("--facade", FACADE_NAMES)):
        parser.addoption(
            option,
            action="append",
            choices=sorted(known),
            help=f"run tests with this {option[2:]} only; may be given several times (default: all)",
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, option, known in (("store_kind", "store", STORES), ("facade", "facade", FACADE_NAMES)):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, metafunc.config.getoption(option) or list(known))


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
