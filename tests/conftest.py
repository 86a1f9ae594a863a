"""Fixtures of all tests: every kind of store, every façade; ``--store`` and ``--facade`` select some.

Every test of behaviour can run with every façade and store: ``--facade all --store all``. By default each
case runs with a few pairs of them: tests/support/combinations.py.
"""

import importlib
import itertools
import os
import shutil
from collections.abc import Iterator
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

#: files with sessions of Spark in other processes
OTHER_SPARKS = ("tests/io/spark/test_cluster.py", "tests/io/spark/test_connect.py")
#: what takes longest starts first: else one worker runs it at the end, while the others are idle
LONGEST = (
    SPARK,
    *OTHER_SPARKS,
    "tests/faults/test_interleaving.py",
    *(f"tests/faults/test_{name}.py" for name in ("power_failure", "races", "kill", "full_disk")),
    *(f"tests/test_{name}.py" for name in ("benchmarks", "example", "distribution")),
)

#: what a test may take if it is not marked as slow; processor time, as other processes cost time, too
LIMIT_CPU_S = 5.0
#: argument ``-m`` of ``make test``
WITHOUT_SLOW = "not slow"
_START = pytest.StashKey[float]()
_EXCEEDED: list[str] = []

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
    factors = {"store_kind": ("store", STORES), "facade": ("facade", FACADE_NAMES)}
    names = [name for name in factors if name in metafunc.fixturenames]
    if not names:
        return
    given = {name: metafunc.config.getoption(factors[name][0]) or [] for name in names}
    chosen = [given[n] if given[n] and "all" not in given[n] else factors[n][1] for n in names]
    all_stores, all_facades = (bool(given.get(name)) for name in factors)
    # to make all pairs, of which most are deselected below, takes half of the time of the collection
    turns = combinations.turns_of(metafunc)

    def may_run(store_kind: str | None = None, facade: str | None = None) -> bool:
        return any(
            combinations.is_selected(facade, store_kind, turn, all_facades=all_facades, all_stores=all_stores)
            for turn in turns
        )

    pairs = [pair for pair in itertools.product(*chosen) if may_run(**dict(zip(names, pair, strict=True)))]
    metafunc.parametrize(names, pairs)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the combinations of façade and store that tests/support/combinations.py selects.

    Slow tests must say why.
    """
    for item in items:
        for mark in item.iter_markers("slow"):
            if len(mark.args) != 1 or not isinstance(mark.args[0], str):
                raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.slow needs a reason")
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

    for item in items:
        if hasattr(item, "callspec") and item.callspec.params.get("store_kind") == combinations.SLOW_STORE:
            item.add_marker(pytest.mark.slow("moto answers a hundred requests per second"))

    selected = [item for item in items if is_selected(item)]
    config.hook.pytest_deselected(items=list(set(items) - set(selected)))
    items[:] = selected


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker, and all tests of Spark to the same one.

    A file's fixtures are made once. A session of Spark takes ten seconds to start, and is slow at first.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return SPARK if SPARK in nodeid.lower() and file not in OTHER_SPARKS else file

        def _assign_work_unit(self, node: Any) -> None:
            if longest := next((scope for scope in LONGEST if scope in self.workqueue), None):
                self.workqueue.move_to_end(longest, last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)


def _cpu_s() -> float:
    """Processor time of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_START] = _cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        # pytest-xdist sends it to the process that writes the summary
        item.user_properties.append(("cpu_s", _cpu_s() - item.stash[_START]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    cpu_s = dict(report.user_properties).get("cpu_s", 0.0)
    if report.when == "call" and cpu_s > LIMIT_CPU_S:
        _EXCEEDED.append(f"{cpu_s:.1f} s of processor time: {report.nodeid}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("markexpr") != WITHOUT_SLOW:
        _EXCEEDED.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _EXCEEDED:
        terminalreporter.section("slow tests without @pytest.mark.slow(reason)")
        terminalreporter.write_line("\n".join(_EXCEEDED))


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
    return store_factory()


@pytest.fixture
def driver(facade: str) -> Any:
    """A façade with the methods of tests/support/cube_facades.py; once per façade."""
    return importlib.import_module("tests.support.cube_facades").open_facade(facade)
