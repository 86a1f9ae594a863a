"""Check the import rules of docs/architecture.rst (usage: check_layers.py [PACKAGE_DIRECTORY]).

Reads the source only, so that imports in functions count as well; those under ``if TYPE_CHECKING:`` do not.

* imports point down: cli -> api -> io -> io_components -> serialization -> core -> display; utils may be used
  by all and uses core and serialization at most
* neither modules nor folders import each other in a circle
* dask, pyspark and other optional or banned packages are imported in their packages only
* `testing`, which needs pytest, is imported by no other package
* every module says in a docstring what lives there
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: packages from the ground up; a package may import itself and those before it
LAYERS = ("display", "core", "serialization", "io_components", "io", "api", "cli")

#: the package's own ``__init__`` stands on top of everything but the command line
ROOT_LAYER = LAYERS.index("api")

#: may import everything and is imported by nothing
TOP_PACKAGES = ("__main__", "testing")

#: top-level package -> packages that may import it (a package includes what is below it in the tree)
OPTIONAL = {
    "dask": ("io.dask", "cli"),
    "distributed": ("io.dask", "cli"),
    "pyspark": ("io.spark", "cli"),
    "click": ("cli",),
    "IPython": ("cli",),
    "jinja2": ("cli",),
    "prompt_toolkit": ("cli",),
    "tqdm": ("cli", "io_components"),
    "pytest": ("testing",),
    "yaml": ("cli",),
}

#: optional façades: only the packages on the right import them, so that eager stays lean
FACADES = {"io.dask": ("io.dask", "api", "cli"), "io.spark": ("io.spark", "api", "cli")}

#: what core does without: whoever calls it decides about concurrency (a lock from `threading` is fine)
NOT_IN_CORE = ("asyncio", "concurrent", "multiprocessing")


@dataclass(frozen=True)
class Import:
    """One import: the module, the full name of what is taken from it, and where that is written."""

    module: str
    target: str
    line: int


@dataclass(frozen=True)
class Module:
    """A module of the package; names are relative to the package, ``""`` is its ``__init__``."""

    name: str
    path: Path
    is_package: bool
    has_docstring: bool
    imports: tuple[Import, ...] = field(default=())

    @property
    def package(self) -> str:
        """The package that the module lives in (a package lives in itself)."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


def within(name: str, package: str) -> bool:
    """Whether a module is a package or lives in it."""
    return name == package or name.startswith(package + ".")


# ---------------------------------------------------------------------------
# reading
# ---------------------------------------------------------------------------


class _Imports(ast.NodeVisitor):
    """Collects what a module imports at run time as absolute dotted names."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.found: list[Import] = []

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.found.append(Import(alias.name, alias.name, node.lineno))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self._absolute(node.module or "", node.level)
        for alias in node.names:
            self.found.append(Import(base, f"{base}.{alias.name}", node.lineno))

    def _absolute(self, module: str, level: int) -> str:
        if not level:
            return module
        parts = self.package.split(".")
        parent = parts[: len(parts) - level + 1]
        return ".".join([*parent, module] if module else parent)

    def visit_If(self, node: ast.If) -> None:
        if not _is_type_checking(node.test):
            self.generic_visit(node)
            return
        for child in node.orelse:
            self.visit(child)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def read_package(directory: Path) -> dict[str, Module]:
    """All modules of a package by their name relative to it."""
    modules = {}
    for path in sorted(directory.rglob("*.py")):
        parts = path.relative_to(directory).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        full = ".".join([directory.name, *parts[:-1]])
        visitor = _Imports(full)
        visitor.visit(tree)
        modules[name] = Module(name, path, is_package, bool(ast.get_docstring(tree)), tuple(visitor.found))
    return modules


def internal_imports(module: Module, modules: dict[str, Module], root: str) -> Iterator[tuple[str, Import]]:
    """Imports of the package itself, as (name of the imported module, import)."""
    for imp in module.imports:
        # ``from .naming import SINGLE_TABLE`` imports `naming`, ``from . import naming`` as well
        names = (full[len(root) + 1 :] for full in (imp.target, imp.module) if within(full, root))
        name = next((name for name in names if name in modules), None)
        if name is not None:
            yield name, imp


# ---------------------------------------------------------------------------
# rules
# ---------------------------------------------------------------------------


def _layer(name: str) -> int | None:
    """Position of a module in LAYERS; None if it is in none of them."""
    if not name:
        return ROOT_LAYER
    package = name.split(".")[0]
    if package in TOP_PACKAGES:
        return len(LAYERS)
    return LAYERS.index(package) if package in LAYERS else None


def upward_imports(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Imports of a higher package."""
    for module in modules.values():
        for target, imp in internal_imports(module, modules, root):
            why = _why_not_down(module.name, target, root)
            if why:
                yield f"{module.path}:{imp.line}: {why}"


def _why_not_down(source: str, target: str, root: str) -> str | None:
    for facade, allowed in FACADES.items():
        if within(target, facade) and not any(within(source, package) for package in allowed):
            return f"{source or root} imports {target}; only {', '.join(allowed)} may"
    if within(target, "utils"):
        return None
    if within(source, "utils"):
        return (
            None
            if within(target, "core") or within(target, "serialization")
            else f"{source} imports {target or root}; utils uses core and serialization at most"
        )
    here, there = _layer(source), _layer(target)
    if here is None or there is None:
        unknown = source if here is None else target
        return f"{unknown} is in no package of the architecture"
    if there > here:
        return f"{source or root} imports {target or root}, which lives above it"
    return None


def foreign_imports(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Optional packages outside their packages, threads and the like in core."""
    for module in modules.values():
        for imp in module.imports:
            top = imp.target.split(".")[0]
            packages = OPTIONAL.get(top)
            if packages and not any(within(module.name, package) for package in packages):
                yield f"{module.path}:{imp.line}: imports {top}; only {', '.join(packages)} may"
            if top in NOT_IN_CORE and within(module.name, "core"):
                yield f"{module.path}:{imp.line}: core imports {top}; concurrency is the caller's business"


def missing_modules(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Imports of modules of the package that are not there."""
    for module in modules.values():
        found = {imp for _, imp in internal_imports(module, modules, root)}
        for imp in module.imports:
            if within(imp.module, root) and imp not in found:
                yield f"{module.path}:{imp.line}: there is no module {imp.module}"


def missing_docstrings(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Modules that don't say what lives there, and folders that are no package."""
    for module in modules.values():
        if not module.has_docstring:
            yield f"{module.path}:1: has no docstring"
        if module.package not in modules:
            yield f"{module.path.parent}: has no __init__.py"


def package_cycles(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Folders that import each other; a folder and what is in it, and utils, are judged by module."""
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        edges = graph.setdefault(module.package, set())
        for target, _ in internal_imports(module, modules, root):
            there = modules[target].package
            related = within(module.package, there) or within(there, module.package)
            if not related and not within(there, "utils"):
                edges.add(there)
    for circle in _circles(graph):
        yield f"{root}: packages import each other: {' <-> '.join(circle)}"


def module_cycles(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Modules that import each other; an import in a function only hides the circle."""
    graph = {
        module.name: {target for target, _ in internal_imports(module, modules, root)} - {module.name}
        for module in modules.values()
    }
    for circle in _circles(graph):
        yield f"{root}: modules import each other: {' <-> '.join(name or root for name in circle)}"


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of nodes that reach each other, sorted."""
    reach = {node: _reachable(graph, node) for node in graph}
    groups = {
        tuple(sorted(other for other in reach[node] if node in reach.get(other, ())))
        for node in graph
        if node in reach[node]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(graph.get(node, ()))
    return seen


RULES = (
    upward_imports,
    foreign_imports,
    package_cycles,
    module_cycles,
    missing_modules,
    missing_docstrings,
)


def check(directory: Path) -> list[str]:
    """Everything that breaks a rule in a package, one line each."""
    modules = read_package(directory)
    if not modules:
        return [f"{directory}: no Python modules there"]
    found = (line for rule in RULES for line in rule(modules, directory.name))
    return list(dict.fromkeys(found))


def main(argv: Iterable[str]) -> int:
    """Print what is wrong; 1 if anything is."""
    args = list(argv)
    directory = Path(args[0]) if args else Path(__file__).parents[1] / "kartothek_cube"
    problems = check(directory)
    for line in problems:
        print(line)
    print(f"layers: {len(problems)} problem(s)" if problems else "layers: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
