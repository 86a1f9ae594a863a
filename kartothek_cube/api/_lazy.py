"""Names of façades that need an engine: the façade is loaded when somebody asks for one of its names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

__all__ = ("Facade", "lazy_names")


class Facade(NamedTuple):
    """
    A module whose names are loaded late.

    Parameters
    ----------
    module
        The module.
    engine
        Package that it needs.
    extra
        Extra of this library that installs the package.
    words
        All names of the façade, and no others, have one of these words or end with one of them.
    """

    module: str
    engine: str
    extra: str
    words: frozenset[str]

    def has(self, name: str) -> bool:
        """Whether a name may be one of this façade."""
        return not self.words.isdisjoint([*name.split("_"), name])

    @property
    def installed(self) -> bool:
        """Whether its engine is there."""
        return find_spec(self.engine) is not None


def lazy_names(api: str, names: Sequence[str], facades: Sequence[Facade]) -> Callable[[str], Any]:
    """
    Make the ``__getattr__`` of a module that exports the names of other modules.

    Parameters
    ----------
    api
        Name of the module.
    names
        Names that the module has.
    facades
        Modules whose names are loaded late.

    Returns
    -------
    callable
        Gives any name of the façades, and ``__all__``: all names, also of façades whose engine is installed.
    """

    def get(name: str) -> Any:
        if name == "__all__":
            modules = [import_module(facade.module) for facade in facades if facade.installed]
            return sorted({*names, *(exported for module in modules for exported in module.__all__)})
        facade = next((f for f in facades if f.has(name)), None)
        if name.startswith("_") or facade is None:
            raise AttributeError(f"module {api!r} has no attribute {name!r}")
        if not facade.installed:
            command = f"pip install 'kartothek_cube[{facade.extra}]'"
            raise ImportError(f"{name} needs {facade.engine}: {command}", name=facade.engine)
        return getattr(import_module(facade.module), name)

    return get
