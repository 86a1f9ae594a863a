"""Measure which changes of the code the tests notice (usage: mutate.py record | mutate.py run [N [SEED]]).

``record`` runs all tests once (arguments are those of pytest, such as ``-n 2``) and notes the lines that
each of them executes. ``run`` draws N mutants (50), the same number from each part of the library, and runs
the tests of the changed line: those of ``make test`` first, then the slow ones. It prints a line per mutant,
and the sums. Both work on a copy of the repository in ``.mutants``. Needs ``pip install coverage``.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".mutants"
COPY = WORK / "repository"

#: part of the library -> how the paths of its modules begin; the first one that fits counts
PARTS = {
    "commit": ("core/commit/",),
    "core": ("core/", "serialization/"),
    "query": tuple(f"io_components/{name}" for name in ("query/", "kernels.py", "scan.py")),
    "write": ("io_components/write/",),
    "façades": ("io/", "api/"),
}
#: a test that hangs notices the change, too
_TIMEOUT_S = 1_800

_COMPARISONS = {
    ast.Eq: ast.NotEq,
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
}
_COMPARISONS |= {new: old for old, new in _COMPARISONS.items()}


# -- mutants -------------------------------------------------------------------------------------------------


def mutations(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, ast.stmt | ast.expr]]:
    """Yield pairs of a statement or expression in a function and what to write instead."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    if (new := mutate(node)) is not None:
                        assert isinstance(node, ast.stmt | ast.expr)
                        yield node, new


def mutate(node: ast.AST) -> Any:
    """Return a node of another meaning, or None if there is none."""
    new: Any = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            new.ops = [_COMPARISONS[type(op)]()]
        case ast.BoolOp(op=op):
            new.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.BinOp(op=ast.Add() | ast.Sub() as op):
            new.op = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.IfExp(body=body, orelse=orelse):
            new.body, new.orelse = orelse, body
        case ast.Constant(value=bool() | int() as value):
            new.value = not value if isinstance(value, bool) else value + 1
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            new.value = ast.Constant(None)
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
            return ast.Pass()
        case ast.Continue():
            return ast.Break()
        case _:
            return None
    return new


def replace(source: str, node: ast.stmt | ast.expr, new: ast.stmt | ast.expr) -> str:
    """Return the source with a node replaced; nothing else of it changes."""
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + (node.end_col_offset or 0)
    text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
    return (source.encode()[:start] + text.encode() + source.encode()[end:]).decode()


# -- what tests execute --------------------------------------------------------------------------------------


class Recorder:
    """Plugin of pytest: the lines that each test executes, its time, and whether it is slow."""

    def __init__(self) -> None:
        import coverage

        self.coverage = coverage.Coverage(
            data_file=str(WORK / "coverage"), data_suffix=True, source=[str(COPY / "kartothek_cube")]
        )
        self.coverage.start()
        self.tests: dict[str, tuple[float, bool]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.coverage.switch_context(item.nodeid)
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            is_slow = item.get_closest_marker("slow") is not None
            self.tests[item.nodeid] = (time.perf_counter() - start, is_slow)
            self.coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        (WORK / f"tests-{os.getpid()}.json").write_text(json.dumps(self.tests), encoding="utf-8")


class Selector:
    """Plugin of pytest that runs the tests of a file, which has one name per line, in its order."""

    def __init__(self, path: str) -> None:
        names = Path(path).read_text(encoding="utf-8").splitlines()
        self.order = {name: position for position, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )


def pytest_configure(config: pytest.Config) -> None:
    if "MUTATE_RECORD" in os.environ:
        # with pytest-xdist, the workers run the tests
        if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
            config.pluginmanager.register(Recorder())
    elif "MUTATE_TESTS" in os.environ:
        config.pluginmanager.register(Selector(os.environ["MUTATE_TESTS"]))


def run_pytest(*arguments: str, **environment: str) -> int:
    """Run pytest with this module as its plugin, in the copy of the repository; returns its exit code."""
    paths = os.pathsep.join([str(COPY), str(Path(__file__).parent)])
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutate", "-p", "no:cacheprovider", *arguments]
    with (WORK / "log").open("a", encoding="utf-8") as log:
        try:
            return subprocess.run(
                command, cwd=COPY, env=env, stdout=log, stderr=log, timeout=_TIMEOUT_S
            ).returncode
        except subprocess.TimeoutExpired:
            return 1


def copy_repository() -> None:
    WORK.mkdir(exist_ok=True)
    shutil.rmtree(COPY, ignore_errors=True)
    for name in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)


def record(*arguments: str) -> None:
    """Run the tests (all, or those of the arguments of pytest), and keep what they execute."""
    import coverage

    shutil.rmtree(WORK, ignore_errors=True)
    copy_repository()
    run_pytest(*arguments, MUTATE_RECORD="1")
    coverage.Coverage(data_file=str(WORK / "coverage")).combine([str(WORK)])


# -- runs ----------------------------------------------------------------------------------------------------


def part_of(path: Path) -> str | None:
    """Part of the library that a file belongs to."""
    below = path.relative_to("kartothek_cube").as_posix()
    return next((part for part, paths in PARTS.items() if below.startswith(paths)), None)


def draw(data: Any, part: str, number: int, numbers: random.Random) -> list[tuple[Path, int, str]]:
    """Mutants of a part: file, line and new source. Each is of another line, which a test executes."""
    candidates = []
    for name in sorted(data.measured_files()):
        path = Path(name).relative_to(COPY)
        if part_of(path) != part:
            continue
        source = (COPY / path).read_text(encoding="utf-8")
        contexts = data.contexts_by_lineno(name)
        for node, new in mutations(ast.parse(source)):
            if any(contexts.get(node.lineno, ())):
                candidates.append((path, node.lineno, replace(source, node, new)))
    numbers.shuffle(candidates)
    by_line = {(path, line): source for path, line, source in candidates}
    return [(path, line, source) for (path, line), source in list(by_line.items())[:number]]


def run(number: int = 50, seed: int = 1) -> None:
    """Run the tests on mutants, and print which notice them."""
    import coverage

    data = coverage.CoverageData(str(WORK / "coverage"))
    data.read()
    tests: dict[str, tuple[float, bool]] = {}
    for path in WORK.glob("tests-*.json"):
        tests |= json.loads(path.read_text(encoding="utf-8"))
    numbers = random.Random(seed)
    killed: dict[str, dict[str, int]] = {part: {"fast": 0, "slow": 0, "survived": 0} for part in PARTS}
    for part in PARTS:
        for path, line, source in draw(data, part, number // len(PARTS), numbers):
            names = [name for name in data.contexts_by_lineno(str(COPY / path))[line] if name in tests]
            original = (COPY / path).read_text(encoding="utf-8")
            (COPY / path).write_text(source, encoding="utf-8")
            outcome = first_failure(names, tests)
            (COPY / path).write_text(original, encoding="utf-8")
            killed[part][outcome] += 1
            changed = next(
                b for a, b in zip(original.splitlines(), source.splitlines(), strict=False) if a != b
            )
            print(f"{outcome:8}  {path}:{line}  {changed.strip()}", flush=True)
    for part, outcomes in killed.items():
        print(
            f"{part}: killed {outcomes['fast']} by make test, {outcomes['slow']} more by make test-slow,",
            end=" ",
        )
        print(f"survived {outcomes['survived']}")


def first_failure(names: list[str], tests: dict[str, tuple[float, bool]]) -> str:
    """Which tests fail: those of ``make test`` ("fast"), some of the slow ones, or none ("survived")."""
    for outcome, is_slow in (("fast", False), ("slow", True)):
        seconds: dict[str, float] = {}
        chosen = [name for name in names if tests[name][1] == is_slow]
        for name in chosen:
            file = name.partition("::")[0]
            seconds[file] = seconds.get(file, 0.0) + tests[name][0]
        if not chosen:
            continue
        # the shortest ones first; tests of a file together, as they share fixtures
        files = sorted(seconds, key=lambda file: seconds[file])
        chosen.sort(key=lambda name: files.index(name.partition("::")[0]))
        (WORK / "chosen").write_text("\n".join(chosen), encoding="utf-8")
        passed = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if run_pytest("-x", *files, MUTATE_TESTS=str(WORK / "chosen")) not in passed:
            return outcome
    return "survived"


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(*sys.argv[2:])
    else:
        run(*map(int, sys.argv[2:]))
