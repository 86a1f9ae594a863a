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

    It also computes ``__all__``, with the names of all façades whose engine is installed.
    """
    owners = {name: module for module, own in facades.items() for name in own}

    def engine(module: str) -> tuple[str, str]:
        return _ENGINES[module.rpartition(".")[0]]

    def get(name: str) -> Any:
        if name == "__all__":
            installed = [own for module, own in facades.items() if find_spec(engine(module)[0])]
            return sorted({*names, *(name for own in installed for name in own)})
        if name not in owners:
            raise AttributeError(f"module {api!r} has no attribute {name!r}")
        package, extra = engine(owners[name])
        if find_spec(package) is None:
            command = f"pip install 'kartothek_cube[{extra}]'"
            raise ImportError(f"{name} needs {package}: {command}", name=package)
        return getattr(import_module(owners[name]), name)

    return get
