"""Arguments: converters of names, their collections, values as text; aliases; copies; lines of callers."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple, ParamSpec, Self, TypeGuard, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core import arrow, errors

P = ParamSpec("P")
R = TypeVar("R")

_FALSE = frozenset({"0", "f", "n", "false", "no"})
_TRUE = frozenset({"1", "t", "y", "true", "yes"})


def alias_parameter(
    new: str, old: str, *, required: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that declares `new` by keyword as another name of `old`, which its body reads."""
    # The body never sees `new`. Both arguments together are a TypeError. A `required` parameter must be given
    # by one of its names; its default in the source exists for type checkers only.

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        position, name = list(signature.parameters).index(old), function.__name__

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            value = kwargs.pop(new, None)
            stored = args[position] if len(args) > position else kwargs.get(old)
            if value is not None:
                if stored is not None:
                    problem = f"{name}() takes {new} or {old}, two names of one parameter, but got both"
                    raise TypeError(problem)
                if len(args) > position:
                    args = (*args[:position], value, *args[position + 1 :])  # type: ignore[assignment]
                else:
                    kwargs[old] = value
            elif required and len(args) <= position and old not in kwargs:
                raise TypeError(f"{name}() needs {new} (or {old}, its name in kartothek)")
            return function(*args, **kwargs)

        if required:
            own = dict(signature.parameters)
            own[old] = own[old].replace(default=inspect.Parameter.empty)
            call.__signature__ = signature.replace(parameters=list(own.values()))  # type: ignore[attr-defined]
        return call

    return decorate


def check_call(
    name: str, function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """Raise a TypeError that begins with `name` for arguments that a function does not take."""
    # a parameter with two names is required by one of them, which the wrapped function does not know
    signature = inspect.signature(inspect.unwrap(function))
    for keyword in [keyword for keyword in kwargs if keyword not in signature.parameters]:
        possible = list(signature.parameters)[len(args) :]
        nearest = errors.nearest_names(keyword, possible)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"available: {', '.join(possible)}"
        raise TypeError(f"{name}() got an unexpected keyword argument {keyword!r}; {hint}")
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None


def check_flag(argument: str, value: object) -> None:
    """Raise a TypeError for what is no bool: the text "no" would be true."""
    # as in kartothek, None and numbers may stand for a bool
    if not isinstance(value, int | np.bool_ | None):
        raise TypeError(f"{argument} is True or False, got {errors.show_value(value)}")


def check_positive(argument: str, value: object) -> None:
    """Raise an error for what is no positive integer.

    >>> check_positive("blocksize", 0)
    Traceback (most recent call last):
    ...
    ValueError: blocksize must be > 0 but is 0
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"{argument} must be an integer but is {type(value).__name__}")
    if value <= 0:
        raise ValueError(f"{argument} must be > 0 but is {value}")


def converter_str(obj: str | bytes) -> str:
    """Convert a name, str or UTF-8, to str; raises TypeError for anything else.

    >>> converter_str(b"CITY")
    'CITY'
    """
    if isinstance(obj, bytes):
        try:
            return obj.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"Object of type bytes is not UTF-8: {obj!r}") from None
    if isinstance(obj, str):
        return str.__str__(obj)  # no subclass, such as numpy.str_ or the member of an enumeration
    raise TypeError(f"Object of type {type(obj).__name__} is not a string: {obj!r}")


def ensure_string_type(obj: object) -> str:
    """Turn bytes (UTF-8) or anything else into a string.

    >>> ensure_string_type(b"CITY"), ensure_string_type("CITY"), ensure_string_type(1)
    ('CITY', 'CITY', '1')
    """
    return obj.decode() if isinstance(obj, bytes) else str(obj)


def converter_tuple(obj: Any) -> tuple[Any, ...]:
    """Convert None, one object (text is one) or several to a tuple, in their order.

    >>> converter_tuple("DE"), converter_tuple(["DE", "FR"]), converter_tuple(None)
    (('DE',), ('DE', 'FR'), ())
    """
    if obj is None:
        return ()
    # an array of NumPy without dimensions is one object
    if isinstance(obj, str | bytes) or not isinstance(obj, Iterable) or getattr(obj, "ndim", 1) == 0:
        return (obj,)
    return tuple(obj)


def converter_str_set(obj: str | Iterable[str] | None) -> frozenset[str]:
    """Convert one or several names to a set.

    >>> converter_str_set("CITY")
    frozenset({'CITY'})
    """
    return frozenset(converter_str(name) for name in converter_tuple(obj))


def converter_str_set_optional(obj: str | Iterable[str] | None) -> frozenset[str] | None:
    """Convert one or several names to a set; None stays None.

    >>> converter_str_set_optional(None) is None
    True
    """
    return None if obj is None else converter_str_set(obj)


def converter_str_tupleset(obj: str | Iterable[str] | None) -> tuple[str, ...]:
    """Convert one or several names to a tuple, in their order.

    Raises TypeError for a set or dict, which has no order, and ValueError for a name that occurs twice.

    >>> converter_str_tupleset(["COUNTRY_CODE", "CITY"])
    ('COUNTRY_CODE', 'CITY')
    """
    if isinstance(obj, set | frozenset | dict):
        raise TypeError(f"{obj!r} has no stable order, being a {type(obj).__name__}; pass a list or a tuple")
    names = tuple(converter_str(name) for name in converter_tuple(obj))
    if len({*names}) < len(names):
        duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"Names must not occur twice, but these do: {', '.join(duplicates)}")
    return names


def check_mapping(argument: str, value: object, items: str = "") -> None:
    """Raise a TypeError unless an argument is None or a dict."""
    if value is not None and not isinstance(value, Mapping):
        of_items = f" of {items}" if items else ""
        raise TypeError(f"{argument} should be a dict{of_items}, but is {type(value).__name__}")


def parse_name(argument: str, value: str | bytes) -> str:
    """A name that a user gave; errors name the argument.

    >>> parse_name("dataset", 5)
    Traceback (most recent call last):
    TypeError: dataset is a name (str), got 5 of type int
    """
    _check_text(argument, "a name", [value])
    return converter_str(value)


def parse_names(argument: str, value: str | Iterable[str] | None) -> tuple[str, ...]:
    """One or several names that a user gave, in their order; errors name the argument.

    >>> parse_names("columns", ["CITY", None])
    Traceback (most recent call last):
    TypeError: columns is one or several names (str), got None
    """
    names = value if isinstance(value, set | frozenset | dict) else converter_tuple(value)
    _check_text(argument, "one or several names", names)
    try:
        return converter_str_tupleset(names)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from None


def parse_name_set(argument: str, value: str | Iterable[str] | None) -> frozenset[str]:
    """The same without order, where a name may occur twice."""
    names = converter_tuple(value)
    _check_text(argument, "one or several names", names)
    return converter_str_set(names)


def parse_name_set_optional(argument: str, value: str | Iterable[str] | None) -> frozenset[str] | None:
    """The same; None stays None."""
    return None if value is None else parse_name_set(argument, value)


def parse_new_names(argument: str, value: Mapping[str, str] | None) -> dict[str, str]:
    """The old and new names that a user gave, None for none; errors name the argument."""
    check_mapping(argument, value, "old to new names")
    return {parse_name(argument, old): parse_name(argument, new) for old, new in (value or {}).items()}


def _check_text(argument: str, expected: str, values: Iterable[object]) -> None:
    for value in values:
        if not isinstance(value, str | bytes):
            kind = "" if value is None else f" of type {type(value).__name__}"
            raise TypeError(f"{argument} is {expected} (str), got {errors.show_value(value)}{kind}")


def split_names(text: str | None) -> list[str]:
    """Split names at commas that are in no parentheses."""
    return [name.strip() for name in re.split(r",(?![^()]*\))", text or "") if name.strip()]


def get_str_to_python_converter(pa_type: pa.DataType) -> Callable[[str], object]:
    """Find the function that parses values of a column; raises ValueError if they cannot be written as text.

    Booleans are ``0 f n false no`` and ``1 t y true yes`` in any case. Of text, one pair of matching quotes
    around the whole is removed. Timestamps become :class:`pandas.Timestamp`; for a column with a time zone,
    a text without one means local time there.

    >>> get_str_to_python_converter(pa.int64())("17")
    17
    >>> get_str_to_python_converter(pa.string())("'Bad Homburg'")
    'Bad Homburg'
    """
    wide = arrow.widen(pa_type)
    if pa.types.is_timestamp(wide) and wide.tz is not None:
        return partial(_parse_local, zone=wide.tz)
    for is_kind, converter in _CONVERTERS:
        if is_kind(wide):
            return converter
    raise ValueError(f"Values of type {pa_type} cannot be written as text")


def is_count(value: Any, least: int = 0) -> TypeGuard[int]:
    """Whether a value is an integer, also one of NumPy, that is not smaller than the least."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def _parse_bool(text: str) -> bool:
    lowered = text.lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is no bool; one of {' '.join(sorted(_TRUE | _FALSE))} is")
    return lowered in _TRUE


def _remove_quotes(text: str) -> str:
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def _parse_local(text: str, zone: str) -> Any:
    stamp = arrow.parse_timestamp(text)
    if stamp.tz is not None:
        return stamp
    local = stamp.tz_localize(zone, ambiguous="NaT", nonexistent="NaT")
    if local is pd.NaT and stamp is not pd.NaT:
        raise ValueError("clocks change at that time; write its offset, as in 2020-01-31 12:00+01:00")
    return local


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str], object]], ...] = (
    (pa.types.is_boolean, _parse_bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_string, _remove_quotes),
    (pa.types.is_timestamp, arrow.parse_timestamp),
)


class CopyMixin:
    """Adds :meth:`copy` to a class whose attributes are named like the parameters of its constructor."""

    __slots__ = ()

    def copy(self, **kwargs: Any) -> Self:
        """Rebuild the object through its constructor, with some arguments changed.

        All checks and conversions of the constructor apply to the copy. A parameter of the constructor that
        is no attribute of the object keeps its default.
        """
        names = [name for name in _parameters(type(self).__init__) if name not in kwargs]
        for name, value in [(name, getattr(self, name)) for name in names if hasattr(self, name)]:
            # a method of that name (load_all_indices) is no constructor argument
            if not inspect.ismethod(value) or value.__self__ is not self:
                kwargs[name] = value
        return type(self)(**kwargs)


@lru_cache(maxsize=64)
def _parameters(constructor: Callable[..., None]) -> tuple[str, ...]:
    """Names of the parameters of a constructor."""
    # Cached: the inspection takes longer than the constructor.
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


#: for each file the warnings that were shown: by default, each line warns once
_SHOWN: dict[str, dict[str | tuple[str, type[Warning], int], int]] = {}


class CallerLine(NamedTuple):
    """A line of the user's code, which warnings name; also those of tasks, in other threads and processes."""

    file: str
    number: int
    module: str

    @classmethod
    def find(cls) -> Self:
        """The innermost line outside of this package that is being executed."""
        frame = sys._getframe()
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("kartothek_cube."):
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__")))

    def warn(self, message: str, category: type[Warning] = UserWarning) -> None:
        """Warn as if this line did."""
        shown = _SHOWN.setdefault(self.file, {})
        warnings.warn_explicit(message, category, self.file, self.number, self.module, shown)
