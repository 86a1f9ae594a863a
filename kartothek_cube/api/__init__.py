"""The public API: functions and classes by topic; façades that need an engine are imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ("lazy_names",)

#: package of façades -> package of their engine, extra that installs it
_ENGINES = {"kartothek_cube.io.dask": ("dask", "dask"), "kartothek_cube.io.spark": ("pyspark", "spark")}


def lazy_names(api: str, names: Sequence[str], facades: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of the module `api`, which has `names`, for the names of `facades`.

    These have one of the words of their module. ``__all__`` are the names of all whose engine is installed.
    """

    def engine(module: str) -> tuple[str, str]:
        return _ENGINES[module.rpartition(".")[0]]

    def get(name: str) -> Any:
        if name == "__all__":
            installed = [import_module(module) for module in facades if find_spec(engine(module)[0])]
            return sorted({*names, *(own for module in installed for own in module.__all__)})
        unknown = AttributeError(f"module {api!r} has no attribute {name!r}")
        module = next((m for m, words in facades.items() if any(word in name for word in words)), None)
        if module is None:
            raise unknown
        package, extra = engine(module)
        if find_spec(package) is None:
            command = f"pip install 'kartothek_cube[{extra}]'"
            raise ImportError(f"{name} needs {package}: {command}", name=package)
        facade = import_module(module)
        if name not in facade.__all__:
            raise unknown
        return getattr(facade, name)

    return get
