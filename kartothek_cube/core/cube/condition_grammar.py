"""Grammar of conditions as text that are joined by ``& | ~`` or have words as operators.

::

    alternatives = all { "|" all }
    all          = single { "&" single }
    single       = "~" single | "(" alternatives ")" | condition
    condition    = column operator value | column "is" [ "not" ] "null" | column [ "not" ] "in" "(" values ")"
                 | column "between" value "and" value | column "startswith" value
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

__all__ = ("ConditionSyntaxError", "ConditionText", "has_joins", "parse_joined")

T = TypeVar("T")

_QUOTED = r"'(?:[^']|'')*+'|\"(?:[^\"]|\"\")*+\""
_COLUMN = r"(?P<column>[^\s=<>!&|()~'\"]+)"
_VALUE = rf"(?:{_QUOTED}|[^=<>()&|'\",\s](?:[^=()&|'\"]*[^=()&|'\"\s])?)"
_WORD_VALUE = rf"(?:{_QUOTED}|[^=<>()&|'\",\s]+(?:\s+(?!and\b)[^=<>()&|'\",\s]+)*)"
_FORMS = tuple(
    (operator, re.compile(rf"{_COLUMN}{pattern}", re.IGNORECASE))
    for operator, pattern in (
        ("is null", r"\s+is\s+null\b"),
        ("is not null", r"\s+is\s+not\s+null\b"),
        ("in", rf"\s+in\s*\((?P<values>(?:{_QUOTED}|[^()'\"])*)\)"),
        ("not in", rf"\s+not\s+in\s*\((?P<values>(?:{_QUOTED}|[^()'\"])*)\)"),
        ("between", rf"\s+between\s+(?P<first>{_WORD_VALUE})\s+and\s+(?P<last>{_VALUE})"),
        ("startswith", rf"\s+startswith\s+(?P<value>{_VALUE})"),
    )
)
#: compared values may be absent, as in "(s == )", and be quoted; what follows is checked by the caller
_COMPARISON = re.compile(rf"{_COLUMN}\s*(?:==|!=|<=|>=|=|<|>)(?![<>!=])\s*(?:{_QUOTED}|[^=&|)'\"]*)")
_ITEM = re.compile(rf"\s*(?P<item>{_QUOTED}|[^,'\"\s](?:[^,'\"]*[^,'\"\s])?)\s*(?:,|$)")
#: a quote opens a value only behind an operator, a word, a bracket or a comma
_JOINS = re.compile(
    rf"(?:[=<>(,]|\s)\s*(?:{_QUOTED})|(?P<join>\||(?:^|[&(])\s*~|\s(?:is|in|between|startswith)\b)"
)


class ConditionSyntaxError(ValueError):
    """The text is no condition of this grammar."""


class ConditionText(NamedTuple):
    """Text of one condition, and if its operator is a word, the texts of its values."""

    text: str
    column: str
    #: empty for a comparison
    operator: str
    values: tuple[str, ...]


def has_joins(text: str) -> bool:
    """Whether a text uses more than comparisons that are joined by ``&``.

    >>> has_joins("NAME == 'a|b' & DAY > 17"), has_joins("NAME == Bonn | DAY > 17")
    (False, True)
    """
    return any(match["join"] for match in _JOINS.finditer(text))


def parse_joined(
    text: str,
    make: Callable[[ConditionText], T],
    join_all: Callable[[list[T]], T],
    join_alternatives: Callable[[list[T]], T],
    negate: Callable[[T], T],
) -> T:
    """Parse the grammar of this module; raises :class:`ConditionSyntaxError`."""
    parser = _Parser(text, make, join_all, join_alternatives, negate)
    result = parser.alternatives()
    if parser.next_character():
        raise parser.error()
    return result


class _Parser(Generic[T]):
    def __init__(
        self,
        text: str,
        make: Callable[[ConditionText], T],
        join_all: Callable[[list[T]], T],
        join_alternatives: Callable[[list[T]], T],
        negate: Callable[[T], T],
    ) -> None:
        self.text, self.position = text, 0
        self.make, self.negate = make, negate
        self.join_all, self.join_alternatives = join_all, join_alternatives

    def error(self) -> ConditionSyntaxError:
        place = self.text[self.position :].strip()
        return ConditionSyntaxError(
            f"Cannot parse condition {self.text!r} at {place!r}; write: column operator value, joined by "
            "& | ~ and parentheses; text with one of these needs quotes, with '' for a quote in the value"
        )

    def next_character(self) -> str:
        while self.text[self.position : self.position + 1].isspace():
            self.position += 1
        return self.text[self.position : self.position + 1]

    def accept(self, character: str) -> bool:
        found = self.next_character() == character
        self.position += found
        return found

    def alternatives(self) -> T:
        parts = [self.conjunction()]
        while self.accept("|"):
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else self.join_alternatives(parts)

    def conjunction(self) -> T:
        parts = [self.single()]
        while self.accept("&"):
            parts.append(self.single())
        return parts[0] if len(parts) == 1 else self.join_all(parts)

    def single(self) -> T:
        if self.accept("~"):
            return self.negate(self.single())
        if self.accept("("):
            inner = self.alternatives()
            if not self.accept(")"):
                raise self.error()
            return inner
        self.next_character()
        return self.make(self.condition())

    def condition(self) -> ConditionText:
        for operator, form in _FORMS:
            match = form.match(self.text, self.position)
            if match is not None:
                groups = match.groupdict()
                if "values" in groups:
                    values = self.items(groups["values"])
                else:
                    values = tuple(groups[name] for name in ("value", "first", "last") if name in groups)
                return self.found(match, operator, values)
        match = _COMPARISON.match(self.text, self.position)
        if match is None:
            raise self.error()
        return self.found(match, "", ())

    def found(self, match: re.Match[str], operator: str, values: tuple[str, ...]) -> ConditionText:
        result = ConditionText(match[0], match["column"], operator, values)
        self.position = match.end()
        if self.next_character() not in ("", "&", "|", ")"):
            self.position = match.start()
            raise self.error()
        return result

    def items(self, text: str) -> tuple[str, ...]:
        """Values of a list, separated by commas; one behind the last is allowed."""
        items, position = [], 0
        while text[position:].strip():
            match = _ITEM.match(text, position)
            if match is None:
                raise self.error()
            items.append(match["item"])
            position = match.end()
        return tuple(items)
