"""Lazy imports of façades that need an optional engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

__all__ = ("Facade", "lazy_names")


class Facade(NamedTuple):
    """A module whose names are imported on first use, as it needs an optional package."""

    module: str
    #: package of the engine
    engine: str
    #: extra that installs the engine
    extra: str
    #: words that occur in all names of the façade and in no others
    words: frozenset[str]

    def has(self, name: str) -> bool:
        """Whether a name may belong to this façade."""
        return not self.words.isdisjoint([*name.split("_"), name])

    @property
    def installed(self) -> bool:
        """Whether the engine is installed."""
        return find_spec(self.engine) is not None


def lazy_names(api: str, names: Sequence[str], facades: Sequence[Facade]) -> Callable[[str], Any]:
    """
    Return the ``__getattr__`` of the module `api`, which already has `names`, for the names of `facades`.

    It also computes ``__all__``, with the names of all façades whose engine is installed.
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
