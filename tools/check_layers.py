"""Check the import rules of docs/architecture.rst (usage: check_layers.py [PACKAGE_DIRECTORY]).

The script parses the source. Imports in functions and dynamic imports (``importlib.import_module``,
``__import__``) count as imports; imports under ``if TYPE_CHECKING:`` do not.

* Imports point down: cli -> api -> io -> io_components -> kartothek_helpers -> serialization -> core
  -> display.
* Neither modules nor packages import each other in a cycle.
* dask, pyspark and other optional packages are imported in certain packages only.
* Only tests import ``testing``, which needs pytest.
* Every module has a docstring.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

#: layers, lowest first; a layer may import itself and lower layers
LAYERS = (
    "kartothek_paths",
    "display",
    "core",
    "serialization",
    "kartothek_helpers",
    "io_components",
    "io",
    "api",
    "cli",
)

#: the root package's ``__init__`` may import everything except the command line
ROOT_LAYER = LAYERS.index("api")

#: may import everything and is imported by nothing
TOP_PACKAGES = ("__main__", "testing")

#: optional package -> packages of ours that may import it, including their subpackages
OPTIONAL = {
    "dask": ("io.dask", "cli"),
    "deltalake": ("io_components",),
    "distributed": ("io.dask", "cli"),
    "pyiceberg": ("io_components",),
    "pyspark": ("io.spark", "cli"),
    "click": ("cli",),
    "IPython": ("cli",),
    "jinja2": ("cli",),
    "obstore": ("core.store.object_store",),
    "prompt_toolkit": ("cli",),
    "tqdm": ("cli", "io_components"),
    "pytest": ("testing",),
    "yaml": ("cli",),
}

#: façades of optional engines -> packages that may import them: the eager façade works without the engines
FACADES = {"io.dask": ("io.dask", "api", "cli"), "io.spark": ("io.spark", "api", "cli")}

#: not imported by core: its callers decide about concurrency (locks of `threading` are fine)
NOT_IN_CORE = ("asyncio", "concurrent", "multiprocessing")

#: (module, imported module) -> why this import may break the rules
EXCEPTIONS = {
    ("core.cube.constants", "serialization"): "KTK_CUBE_DF_SERIALIZER of kartothek, imported on first use",
}


@dataclass(frozen=True)
class Import:
    """An import: the module, the full name of the imported object, and the line."""

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
        """The package of the module; packages and modules of the root package are their own."""
        return self.name if self.is_package else self.name.rpartition(".")[0] or self.name


def within(name: str, package: str) -> bool:
    """Whether a module is a package or one of its modules."""
    return name == package or name.startswith(package + ".")


# ---------------------------------------------------------------------------
# reading
# ---------------------------------------------------------------------------


class _Imports(ast.NodeVisitor):
    """Collects the runtime imports of a module as absolute names."""

    def __init__(self, package: str, module: str) -> None:
        self.package = package
        self.module = module
        self.imports: list[Import] = []

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imports.append(Import(alias.name, alias.name, node.lineno))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self._absolute(node.module or "", node.level)
        for alias in node.names:
            self.imports.append(Import(base, f"{base}.{alias.name}", node.lineno))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if name in ("import_module", "__import__") and node.args:
            for module in self._dynamic_modules(node.args[0]):
                self.imports.append(Import(module, module, node.lineno))
        self.generic_visit(node)

    def _dynamic_modules(self, argument: ast.expr) -> Iterator[str]:
        """Yield the modules that an expression can evaluate to; for f-strings, the constant package."""
        if isinstance(argument, ast.IfExp):
            yield from self._dynamic_modules(argument.body)
            yield from self._dynamic_modules(argument.orelse)
        elif isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            module = argument.value.lstrip(".")
            yield self._absolute(module, len(argument.value) - len(module))
        elif isinstance(argument, ast.JoinedStr):
            package = self._constant_prefix(argument).rpartition(".")[0]
            if package:
                yield package

    def _constant_prefix(self, text: ast.JoinedStr) -> str:
        """The text of an f-string before its first value other than ``__name__``."""
        prefix = ""
        for part in text.values:
            if isinstance(part, ast.Constant):
                prefix += str(part.value)
            elif isinstance(part, ast.FormattedValue) and getattr(part.value, "id", None) == "__name__":
                prefix += self.module
            else:
                break
        return prefix

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
    """Parse all modules of a package; keys are names relative to the package."""
    modules = {}
    for path in sorted(directory.rglob("*.py")):
        parts = path.relative_to(directory).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        parent = ".".join([directory.name, *parts[:-1]])
        visitor = _Imports(parent, parent if is_package else f"{parent}.{parts[-1]}")
        visitor.visit(tree)
        modules[name] = Module(name, path, is_package, bool(ast.get_docstring(tree)), tuple(visitor.imports))
    return modules


def internal_imports(module: Module, modules: dict[str, Module], root: str) -> Iterator[tuple[str, Import]]:
    """Yield imports from the package itself, as (name of the imported module, import), without exceptions."""
    for name, imp in _resolved_imports(module, modules, root):
        if (module.name, name) not in EXCEPTIONS:
            yield name, imp


def _resolved_imports(module: Module, modules: dict[str, Module], root: str) -> Iterator[tuple[str, Import]]:
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
    """Index of a module's layer in LAYERS; None if it has no layer."""
    if not name:
        return ROOT_LAYER
    package = name.split(".")[0]
    if package in TOP_PACKAGES:
        return len(LAYERS)
    return LAYERS.index(package) if package in LAYERS else None


def upward_imports(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Yield imports of a higher layer."""
    for module in modules.values():
        for target, imp in internal_imports(module, modules, root):
            problem = _describe_violation(module.name, target, root)
            if problem:
                yield f"{module.path}:{imp.line}: {problem}"


def _describe_violation(source: str, target: str, root: str) -> str | None:
    for facade, allowed in FACADES.items():
        if within(target, facade) and not any(within(source, package) for package in allowed):
            return f"{source or root} imports {target}; only {', '.join(allowed)} may"
    source_layer, target_layer = _layer(source), _layer(target)
    if source_layer is None or target_layer is None:
        unknown = source if source_layer is None else target
        return f"{unknown} belongs to no layer"
    if target_layer > source_layer:
        return f"{source or root} imports {target or root}, a higher layer"
    return None


def foreign_imports(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Yield imports of optional packages outside their packages, and of concurrency modules in core."""
    for module in modules.values():
        for imp in module.imports:
            top = imp.target.split(".")[0]
            packages = OPTIONAL.get(top)
            if packages and not any(within(module.name, package) for package in packages):
                yield f"{module.path}:{imp.line}: imports {top}; only {', '.join(packages)} may"
            if top in NOT_IN_CORE and within(module.name, "core"):
                yield f"{module.path}:{imp.line}: core imports {top}; callers decide about concurrency"


def missing_modules(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Yield imports of modules that do not exist in the package."""
    for module in modules.values():
        resolved = {imp for _, imp in _resolved_imports(module, modules, root)}
        for imp in module.imports:
            if within(imp.module, root) and imp not in resolved:
                yield f"{module.path}:{imp.line}: there is no module {imp.module}"


def missing_docstrings(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Yield modules without a docstring, and directories without an ``__init__.py``."""
    for module in modules.values():
        if not module.has_docstring:
            yield f"{module.path}:1: has no docstring"
        if module.package not in modules:
            yield f"{module.path.parent}: has no __init__.py"


def package_cycles(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Yield cycles of packages. Parents and their subpackages are only checked by module."""
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        edges = graph.setdefault(module.package, set())
        for target, _ in internal_imports(module, modules, root):
            package = modules[target].package
            related = within(module.package, package) or within(package, module.package)
            if not related:
                edges.add(package)
    yield from (f"{root}: packages import each other: {cycle}" for cycle in _find_cycle(graph))


def module_cycles(modules: dict[str, Module], root: str) -> Iterator[str]:
    """Yield cycles of modules; an import in a function only hides the cycle."""
    graph = {
        module.name: {target for target, _ in internal_imports(module, modules, root)} - {module.name}
        for module in modules.values()
    }
    yield from (f"{root}: modules import each other: {cycle}" for cycle in _find_cycle(graph))


def _find_cycle(graph: dict[str, set[str]]) -> Iterator[str]:
    """Yield a cycle, if there is one; ``__init__`` is the root package."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield " <-> ".join(sorted({name or "__init__" for name in error.args[1]}))


RULES = (
    upward_imports,
    foreign_imports,
    package_cycles,
    module_cycles,
    missing_modules,
    missing_docstrings,
)


def check(directory: Path) -> list[str]:
    """Return all violations of the rules in a package, one line each."""
    modules = read_package(directory)
    if not modules:
        return [f"{directory}: no Python modules"]
    problems = (line for rule in RULES for line in rule(modules, directory.name))
    return list(dict.fromkeys(problems))


def main(argv: Iterable[str]) -> int:
    """Print all violations; return 1 if there are any."""
    args = list(argv)
    directory = Path(args[0]) if args else Path(__file__).parents[1] / "kartothek_cube"
    problems = check(directory)
    for line in problems:
        print(line)
    print(f"layers: {len(problems)} problem(s)" if problems else "layers: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
