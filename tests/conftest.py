"""Fixtures of all tests: every kind of store, every façade; ``--store`` and ``--facade`` select some.

Every test of behaviour can run on every façade: ``--facade all``. By default it runs on the eager one and, so
that the tests stay quick, each case on one of the others, always the same, with a store in memory; a few of
them also on Spark, with a store in a directory, and a sample of all on S3 (``--store s3``, ``--store all``:
every case).
"""

from __future__ import annotations

import importlib
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support import spark_gaps
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


#: tests that are one process of their own, for a minute or more
LONG = ("test_cluster.py", "test_connect.py")


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
    """Unless façades were chosen, leave each case to the eager one and to one of the others."""
    is_surplus = _is_impossible if config.getoption("facade") else _is_surplus
    every_store = bool(config.getoption("store"))
    surplus = [item for item in items if is_surplus(item, every_store) or _is_rare(item, every_store)]
    config.hook.pytest_deselected(items=surplus)
    dropped = set(surplus)
    # long tests come first, lest others wait for them in the end
    items[:] = sorted(
        (item for item in items if item not in dropped), key=lambda item: item.path.name not in LONG
    )


def _is_rare(item: pytest.Item, every_store: bool) -> bool:
    """Tests on S3 take ten times as long as others, most of it in the server."""
    params = _params(item)
    if params.get("store_kind") != "s3" or every_store:
        return False
    one_of = 8 if params.get("facade", FACADE_NAMES[0]) == FACADE_NAMES[0] else 64
    return zlib.crc32(item.nodeid.encode()) % one_of != 0


def _is_impossible(item: pytest.Item, every_store: bool) -> bool:
    params = _params(item)
    return params.get("facade") == SPARK and not spark_gaps.applies(item.nodeid, params.get("store_kind"))


def _is_surplus(item: pytest.Item, every_store: bool) -> bool:
    params = _params(item)
    facade = params.get("facade")
    if not facade or facade == FACADE_NAMES[0]:
        return False
    if facade == SPARK:
        return _is_impossible(item, every_store) or not spark_gaps.is_sample(item.nodeid)
    others = [name for name in FACADE_NAMES[1:] if name != SPARK]
    turn = others[zlib.crc32(item.nodeid.replace(facade, "").encode()) % len(others)]
    if params.get("store_kind") == "s3" and not every_store:
        return False
    return facade != turn or not (every_store or params.get("store_kind", "memory") == "memory")


def _params(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec else {}


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
    if facade == SPARK:
        return importlib.import_module("tests.support.facade_spark").Spark()
    return importlib.import_module("tests.support.cube_facades").FACADES[facade]()
