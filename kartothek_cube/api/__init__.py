"""The public API: functions and classes by topic, and lazy imports of façades that need an engine."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import FrameType
from typing import Any, NamedTuple

__all__ = (
    "Facade",
    "lazy_names",
)


#: number of the operation of ``CALL_INTRINSIC_1`` that is a star import (Python 3.12 and newer)
_INTRINSIC_IMPORT_STAR = 2


class Facade(NamedTuple):
    """A module whose names are imported on first use, as it needs an optional package."""

    module: str
    #: package of the engine
    engine: str
    #: extra that installs the engine
    extra: str
    #: its public names, which are known without importing it
    names: tuple[str, ...]

    @property
    def installed(self) -> bool:
        """Whether the engine is installed."""
        return find_spec(self.engine) is not None

    def load(self, name: str) -> Any:
        """Import the module and return one of its names."""
        if not self.installed:
            command = f"pip install 'kartothek_cube[{self.extra}]'"
            raise ImportError(f"{name} needs {self.engine}: {command}", name=self.engine)
        return getattr(import_module(self.module), name)


class _LazyFunction:
    """Function of a façade that is imported by the first call."""

    def __init__(self, facade: Facade, name: str) -> None:
        self._facade, self.__name__ = facade, name
        self.__doc__ = f"See :func:`{facade.module}.{name}`, which the first call imports."

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<function {self._facade.module}.{self.__name__}, not imported yet>"

    @property
    def __wrapped__(self) -> Any:
        """The function itself, from which :mod:`inspect` takes signature and source."""
        return self._facade.load(self.__name__)


def lazy_names(api: str, names: Sequence[str], facades: Sequence[Facade]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of the module `api`, which already has `names`, for the names of `facades`.

    It also computes ``__all__``, with the names of all façades whose engine is installed.
    """
    owners = {name: facade for facade in facades for name in facade.names}

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted({*names, *(name for name, facade in owners.items() if facade.installed)})
        facade = owners.get(name)
        if facade is None:
            raise AttributeError(f"module {api!r} has no attribute {name!r}")
        # A star import asks for every name: it must not import all engines, which takes seconds.
        if facade.module not in sys.modules and _is_star_import(sys._getframe(1)):
            return _LazyFunction(facade, name)
        return facade.load(name)

    return get


def _is_star_import(frame: FrameType) -> bool:
    """Whether a frame is executing ``from module import *``."""
    code, position = frame.f_code.co_code, frame.f_lasti
    operation = dis.opname[code[position]]
    return operation == "IMPORT_STAR" or (
        operation == "CALL_INTRINSIC_1" and code[position + 1] == _INTRINSIC_IMPORT_STAR
    )
