"""Behaviour shared by value classes: :class:`CopyMixin`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from functools import lru_cache
from types import FunctionType
from typing import Any, Self

__all__ = ("CopyMixin",)

_MISSING = object()


class CopyMixin:
    """Adds :meth:`copy` to a class whose attributes are named like the parameters of its constructor."""

    __slots__ = ()

    def copy(self, **kwargs: Any) -> Self:
        """Rebuild the object through its constructor, with some arguments changed.

        All checks and conversions of the constructor apply to the copy. A parameter of the constructor that
        is no attribute of the object keeps its default.

        Parameters
        ----------
        **kwargs
            Constructor arguments that replace the values of this object.

        Returns
        -------
        Self

        Raises
        ------
        TypeError
            The constructor has no such parameter.
        """
        return type(self)(**self._constructor_arguments(kwargs) | kwargs)

    def _constructor_arguments(self, given: Container[str]) -> dict[str, Any]:
        """Parameters of the constructor that are not given, with the value that the object knows."""
        named = _parameters(type(self).__init__)
        return {name: getattr(self, name) for name in named if name not in given and self._is_state(name)}

    def _is_state(self, name: str) -> bool:
        # a method of that name (load_all_indices) is not the value that was given to the constructor
        attribute = inspect.getattr_static(self, name, _MISSING)
        is_method = isinstance(attribute, FunctionType | staticmethod | classmethod)
        return attribute is not _MISSING and not is_method


@lru_cache(maxsize=64)
def _parameters(constructor: Callable[..., None]) -> tuple[str, ...]:
    """Names of the parameters of a constructor; to look them up takes longer than to call it."""
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
