"""Conditions: validation of their values, text, its grammar, and JSON forms, evaluation on frames."""

from __future__ import annotations

import decimal
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, ClassVar, NamedTuple, Protocol

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core import arguments, arrow, pandas_conversion
from kartothek_cube.core.errors import abbreviate_text, check_names, unknown_names
from kartothek_cube.core.expressions import Node, tree_mask

QUOTES = ("'", '"')
_QUOTED_VALUE = r"'(?:[^']|'')*+'|\"(?:[^\"]|\"\")*+\""
_QUOTED = re.compile(_QUOTED_VALUE)
#: name of a column, as in SQL; where a value stands, it is a text
QUOTED_NAME = re.compile(r"\"(?:[^\"]|\"\")+\"")
_PLAIN_NAME = re.compile(r"[^\s=<>!&|()~'\"]+")
# Parentheses are optional, and so are blanks. An operator is not followed by another one ("=>", "<>"), but by
# a value: an empty text is written in quotes, or as a blank, as the text of a condition has it ("(s == )").
_CONDITION = re.compile(
    rf"\s*\(?\s*(?P<column>{QUOTED_NAME.pattern}|[^\s=<>!]+)\s*(?P<op>==|!=|<>|<=|>=|=|<|>)(?![<>!])(?=[^=)])"
    rf"\s*(?:(?P<quoted>{_QUOTED_VALUE})|(?P<value>[^=)]*?))\s*\)?\s*"
)
# a quote opens a value only behind an operator; "&" separates conditions outside of quoted values
_PARTS = re.compile(rf"[=<>]\s*(?:{_QUOTED_VALUE})|&|[^&]")
#: a word of SQL that joins conditions, and what follows it: a condition, else it is part of a text
_WORD = re.compile(
    r"(?<![^\s()&|~])(?:and|or|not)(?=[\s(~](?:[\s(~]|not\b)*(?P<column>[^\s=<>!&|()~]+)\s*"
    r"(?:(?P<sign>[=<>!]|(?<=\s)(?:is\s+(?:not\s+)?null\b|(?:not\s+)?(?:in\s*\(|like\s+')))"
    r"|(?<=\s)(?:not\s+)?(?:between|like|startswith)\b))",
    re.IGNORECASE,
)
_SYMBOLS = {"and": "&  ", "or": "| ", "not": "~  "}
PLAIN_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)\s*", re.ASCII)
_JSON_SCALARS = (str, bool, int, float)
#: levels of conditions within each other, for each of which a copy needs about ten of Python's 1,000 frames
MAX_DEPTH = 50
# fast path: values of these types are neither null nor unhashable
_NEVER_NULL = frozenset({str, bytes, bool, int, date, datetime, pd.Timestamp})


class Incomparable:
    """Base of conditions and columns, which are no values to compare with."""

    __slots__ = ()

    _noun: ClassVar[str] = "a condition"


def check_depth(conditions: Sequence[Any]) -> None:
    """Raise ValueError for conditions that are nested too deep to be copied, compared or shown."""
    level, depth = conditions, 1
    while level := [inner for outer in level if hasattr(outer, "conditions") for inner in outer.conditions]:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(
        f"Conditions are nested more than {MAX_DEPTH} deep; join them with fewer changes between & and |, or "
        "compare with many values by isin()"
    )


def to_python_scalar(value: Any) -> Any:
    """Convert scalars of NumPy and Arrow to Python's for reproducible texts; times keep their unit."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    return value.item() if isinstance(value, np.bool_ | np.number | np.str_ | np.bytes_) else value


def to_python_scalar_keep_int(value: Any) -> Any:
    """Convert numpy scalars to Python's but for integers, whose type has their sign."""
    return value if isinstance(value, np.integer) else to_python_scalar(value)


def to_value_tuple(values: object) -> tuple[Any, ...]:
    """Tuple of one or several values, without scalars of NumPy and Arrow but NumPy's integers."""
    elements = (values.as_py(),) if isinstance(values, pa.Scalar) else arguments.converter_tuple(values)
    is_scalar = any(issubclass(kind, np.generic | pa.Scalar) for kind in set(map(type, elements)))
    return tuple(map(to_python_scalar_keep_int, elements)) if is_scalar else elements


class _OnColumn(Protocol):
    @property
    def column(self) -> str: ...


def check_values(condition: _OnColumn, attribute: object, values: tuple[Any, ...]) -> None:
    """Raise for anything but values to compare a column with; a validator of attrs."""
    if not _NEVER_NULL.issuperset(map(type, values)):
        for value in values:
            check_value(condition, attribute, value)


def check_value(condition: _OnColumn, attribute: object, value: Any) -> None:
    """Raise for anything but a single value to compare a column with; a validator of attrs."""
    column = condition.column
    if isinstance(value, Incomparable):
        raise TypeError(f"Column {column!r} cannot be compared with {value._noun}")
    if pd.api.types.is_list_like(value):
        kind = type(value).__name__
        raise TypeError(f"Column {column!r} cannot be compared with a {kind}; use isin() for several values")
    if pd.isna(value):
        raise ValueError(
            f"Column {column!r} cannot be compared with {abbreviate_text(repr(value))}: "
            "conditions never match nulls; use is_null()"
        )
    try:
        hash(value)
    except TypeError as error:
        problem = f"Column {column!r} cannot be compared with {abbreviate_text(repr(value))}"
        raise TypeError(f"{problem}: {error}") from None


def split_conditions(s: str) -> list[str]:
    """Split text at each ``&`` outside of quoted values."""
    parts = [""]
    for token in _PARTS.findall(s):
        if token == "&":
            parts.append("")
        else:
            parts[-1] += token
    return parts


class ConditionText(NamedTuple):
    """Text of one condition, its column and operator, and the texts of its values."""

    text: str
    column: str
    operator: str
    values: tuple[str, ...]


def parse_text(s: str) -> ConditionText:
    """Column, operator and value of the text of a comparison; raises ValueError."""
    match = _CONDITION.fullmatch(s)
    if match is None:
        problem = "" if s.strip() else ": one is missing before or behind AND (or &)"
        raise ValueError(describe_syntax(s, problem))
    column, operator, quoted, text = match.group("column", "op", "quoted", "value")
    if quoted is None and (text[:1] in QUOTES or text[-1:] in QUOTES):
        word = text.partition("'")[0].strip().upper()
        # of what follows a quoted value, a word alone is no condition
        missing = find_missing(text.rpartition(" ")[0]) if _QUOTED.match(text) else ""
        problem = (
            missing
            or find_missing(text)
            or (
                f"; write the value without the word {word}"
                if word in ("DATE", "TIMESTAMP")
                else "; unbalanced quote, expected: column operator 'value', with '' for a quote in the value"
            )
        )
        raise ValueError(f"Cannot parse condition {abbreviate_text(repr(s))}{problem}")
    operator = "==" if operator == "=" else operator
    return ConditionText(s, column, operator, (text if quoted is None else quoted,))


def quote_name(column: str) -> str:
    """Name of a column in the text of a condition: in double quotes, as in SQL, if it is not one word."""
    return column if _PLAIN_NAME.fullmatch(column) else '"' + column.replace('"', '""') + '"'


def describe_syntax(s: str, problem: str = "") -> str:
    """Message about a text that is no condition."""
    return (
        f"Cannot parse condition {abbreviate_text(repr(s))}{problem}; write: column operator value, "
        "as in CITY = 'New York' or DAY IN (1, 2), joined by AND OR NOT (or & | ~) and parentheses; "
        'text with one of these needs quotes; a name that is not one word is quoted: "A B" = 1'
    )


def parse_value(parsed: ConditionText, text: str, types: Mapping[str, pa.DataType], of_query: bool) -> Any:
    """Value in the text of a condition, in quotes or not; raises ValueError."""
    column, where = parsed.column, f"Condition {abbreviate_text(repr(parsed.text))}"
    dtype = types[column]
    # columns that queries read in their own way
    parser = next((parse for is_kind, parse in _QUERY_PARSERS if of_query and is_kind(dtype)), None)
    try:
        convert = parser or arguments.get_str_to_python_converter(dtype)
    except ValueError as error:
        raise ValueError(f"{where} on column {column!r}: {error}") from None
    is_quoted = _QUOTED.fullmatch(text) is not None
    value = text[1:-1].replace(2 * text[0], text[0]) if is_quoted else text
    try:
        # the converter to texts removes one pair of quotes
        return convert(f"'{value}'" if is_quoted and parser is None and arrow.is_text(dtype) else value)
    except ValueError as error:
        problem = f"does not fit, column {column!r} has type {dtype} ({error}){find_missing(value)}"
        if value in types:
            problem = "is a column, but conditions compare with values; filter the result, or use SQL"
        raise ValueError(f"{where}: {abbreviate_text(repr(value))} {problem}") from error


def find_missing(text: str) -> str:
    """Advice on a value that ends with a word that joins conditions."""
    last = text.rpartition(" ")[2]
    return f"; a condition is missing behind {last}" if last.upper() in ("AND", "OR", "NOT") else ""


def replace_words(text: str, types: Mapping[str, pa.DataType]) -> str:
    """Text with symbols for the words of SQL that join conditions, at the same positions.

    >>> replace_words("CITY = Bed and Breakfast AND (TEMP <> 5 OR NOT WIND IS NULL)", {})
    'CITY = Bed and Breakfast &   (TEMP <> 5 |  ~   WIND IS NULL)'
    """
    # the content of quotes is hidden, so that it is neither replaced nor a word that follows
    unquoted = _QUOTED.sub(lambda quoted: "'" * len(quoted[0]), text)
    for match in _WORD.finditer(unquoted):
        symbol = _SYMBOLS[match[0].lower()]
        # NOT begins a condition; elsewhere it is part of a text
        is_begin = text[: match.start()].rstrip()[-1:] in ("", "&", "|", "~", "(")
        if (match["sign"] or match["column"] in types) and (is_begin or symbol[0] != "~"):
            text = text[: match.start()] + symbol + text[match.end() :]
    return text


def _parse_number(text: str) -> int | float | decimal.Decimal:
    """The number that is written, for columns of integers."""
    nearest = float(text)
    if not math.isfinite(nearest) and not PLAIN_NUMBER.fullmatch(text):
        return nearest  # 1e400 has too many digits to be an integer
    number = decimal.Decimal(text)
    return int(number) if number == int(number) else nearest if nearest == number else number


def _parse_float(text: str) -> int | float:
    """The nearest float, but an integer of digits only is exact: no float may be equal to it."""
    number = _parse_number(text)
    return number if isinstance(number, int) and PLAIN_NUMBER.fullmatch(text) else float(text)


def _parse_decimal(text: str) -> decimal.Decimal:
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError("not a decimal number") from None


def _parse_date(text: str) -> Any:
    stamp = arrow.parse_timestamp(text)
    if stamp is pd.NaT:
        return stamp
    if stamp.tzinfo is not None or stamp != stamp.normalize():
        raise ValueError("a date is without a time of day and zone")
    return stamp.date()


_QUERY_PARSERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]], ...] = (
    (pa.types.is_integer, _parse_number),
    (pa.types.is_floating, _parse_float),
    (pa.types.is_date, _parse_date),
    (pa.types.is_decimal, _parse_decimal),
    (pa.types.is_time, time.fromisoformat),
    # a column without values has no type yet
    (pa.types.is_null, str),
)


def next_prefix(prefix: str) -> str | None:
    """The first text after all those with a prefix; None if there is none."""
    for length in range(len(prefix), 0, -1):
        code = ord(prefix[length - 1]) + 1
        if code <= sys.maxunicode:
            # surrogates are no characters
            return prefix[: length - 1] + chr(code if not 0xD800 <= code <= 0xDFFF else 0xE000)
    return None


def from_json(element: dict[str, Any], classes: Mapping[str, type], depth: int = 1) -> Any:
    """Make a condition of one of some classes from its JSON form; raises TypeError or ValueError."""
    if not isinstance(element, dict):
        raise TypeError(
            f"A condition in JSON is an object, not a {type(element).__name__}: "
            f"{abbreviate_text(repr(element))}"
        )
    if "type" not in element:
        raise ValueError(
            f"A condition in JSON has a 'type', which is missing in {abbreviate_text(repr(element))}"
        )
    cls = classes.get(element["type"]) if isinstance(element["type"], str) else None
    if cls is None:
        raise TypeError(f"A condition in JSON: {unknown_names('type', [element['type']], classes)}")
    fields = {name: value for name, value in element.items() if name != "type"}
    if isinstance(fields.get("conditions"), list):
        if depth > MAX_DEPTH:
            raise _too_deep()
        fields["conditions"] = [from_json(c, classes, depth + 1) for c in fields["conditions"]]
    try:
        return cls(**fields)
    except TypeError as error:
        raise TypeError(f"A condition in JSON, {abbreviate_text(repr(element))}: {error}") from error


def to_json(condition: Any) -> dict[str, Any]:
    """JSON form of a condition; raises TypeError for values other than str, bool, int and float."""
    if hasattr(condition, "conditions"):
        return {"type": type(condition).__name__, "conditions": list(map(to_json, condition.conditions))}
    fields: dict[str, Any] = {"type": type(condition).__name__}
    for name in (field.name for field in attrs.fields(type(condition))):
        value = getattr(condition, name)
        is_list = isinstance(value, tuple)
        fields[name] = [to_python_scalar(v) for v in value] if is_list else to_python_scalar(value)
        for single in fields[name] if is_list else (fields[name],):
            if single is not None and not isinstance(single, _JSON_SCALARS):
                kind = type(single).__name__
                raise TypeError(
                    f"The {name} of condition {abbreviate_text(str(condition))} has no form in JSON, "
                    f"being a {kind}; str, bool, int and float have one"
                )
    return fields


def filter_rows(
    df: pd.DataFrame, columns: Collection[str], to_tree: Callable[[Mapping[str, pa.DataType]], Node]
) -> pd.DataFrame:
    """Rows of a frame that match a condition, which depends on the types; raises TypeError or ValueError."""
    check_names("Conditions: ", "column", columns, df.columns)
    frame = df[sorted(columns)].reset_index(drop=True)
    # queries return dates such as 9999-12-31 as datetime64[s], which cannot be stored but compared
    seconds = {name: pa.array(frame[name]) for name in frame if frame[name].dtype == "datetime64[s]"}
    others = pandas_conversion.from_pandas(frame.drop(columns=list(seconds)))
    comparable = pa.table(dict(zip(others.column_names, others.columns, strict=True)) | seconds)
    types = dict(zip(comparable.column_names, comparable.schema.types, strict=True))
    return df.loc[arrow.to_numpy(tree_mask(comparable, to_tree(types)))]


# Grammar of conditions that are joined by ``& | ~`` or have words as operators:
#
#   alternatives = all { "|" all }
#   all          = single { "&" single }
#   single       = "~" single | "(" alternatives ")" | condition
#   condition    = column operator value | column "is" [ "not" ] "null" | column [ "not" ] "in" "(" values ")"
#                | column [ "not" ] "between" value "and" value | column [ "not" ] "like" value
#                | column "startswith" value

_COLUMN = rf"(?P<column>{QUOTED_NAME.pattern}|{_PLAIN_NAME.pattern})"
_VALUE = rf"(?:{_QUOTED_VALUE}|[^=<>()&|'\",\s](?:[^=()&|'\"]*[^=()&|'\"\s])?)"
_WORD_VALUE = rf"(?:{_QUOTED_VALUE}|[^=<>()&|'\",\s]+(?:\s+(?!and\b)[^=<>()&|'\",\s]+)*)"
_NOT = r"\s+(?P<negation>not\s+)?"
_FORMS = tuple(
    (operator, re.compile(rf"{_COLUMN}{pattern}", re.IGNORECASE))
    for operator, pattern in (
        ("is null", r"\s+is\s+(?P<negation>not\s+)?null\b"),
        ("in", rf"{_NOT}in\s*\((?P<values>(?:{_QUOTED_VALUE}|[^()'\"])*)\)"),
        ("between", rf"{_NOT}between\s+(?P<first>{_WORD_VALUE})\s+and\s+(?P<last>{_VALUE})"),
        ("like", rf"{_NOT}like\s+(?P<value>{_VALUE})"),
        ("startswith", rf"\s+startswith\s+(?P<value>{_VALUE})"),
    )
)
#: compared values may be absent, as in "(s == )", and be quoted; what follows is checked by the caller
_COMPARISON = re.compile(rf"{_COLUMN}\s*(?:==|!=|<>|<=|>=|=|<|>)(?![<>!=])\s*(?:{_QUOTED_VALUE}|[^=&|)'\"]*)")
_ITEM = re.compile(rf"\s*(?P<item>{_QUOTED_VALUE}|[^,'\"\s](?:[^,'\"]*[^,'\"\s])?)\s*(?:,|$)")
#: a quote opens a value only behind an operator, a word, a bracket or a comma
_JOINS = re.compile(
    rf"(?:[=<>(,]|\s)\s*(?:{_QUOTED_VALUE})|(?P<join>\||(?:^|[&(])\s*~|\s(?:is|in|between|like|startswith)\b)",
    re.IGNORECASE,
)


class ConditionSyntaxError(ValueError):
    """The text is no condition of this grammar."""


def has_joins(text: str) -> bool:
    """Whether a text uses more than comparisons that are joined by ``&``."""
    return any(match["join"] for match in _JOINS.finditer(text))


class JoinedTexts(NamedTuple):
    """Conditions that are joined by ``&`` or ``|``, or one that is negated by ``~``."""

    operator: str
    operands: Sequence[JoinedTexts | ConditionText]


def parse_joined(text: str, original: str) -> JoinedTexts | ConditionText:
    """Parse the grammar of this module; raises :class:`ConditionSyntaxError` about the original text."""
    parser = _Parser(text, original)
    result = parser.joined()
    if parser.next_character():
        raise parser.error()
    return result


class _Parser:
    def __init__(self, text: str, original: str) -> None:
        self.text, self.original, self.position, self.depth = text, original, 0, 0

    def error(self) -> ConditionSyntaxError:
        place = abbreviate_text(repr(self.original[self.position :].strip()))
        return ConditionSyntaxError(describe_syntax(self.original, f" at {place}"))

    def next_character(self) -> str:
        while self.text[self.position : self.position + 1].isspace():
            self.position += 1
        return self.text[self.position : self.position + 1]

    def accept(self, character: str) -> bool:
        is_next = self.next_character() == character
        self.position += is_next
        return is_next

    def joined(self, operators: str = "|&") -> JoinedTexts | ConditionText:
        """Conditions that are joined by the first operator, each of them by the other."""
        if not operators:
            return self.single()
        parts = [self.joined(operators[1:])]
        while self.accept(operators[0]):
            parts.append(self.joined(operators[1:]))
        return parts[0] if len(parts) == 1 else JoinedTexts(operators[0], parts)

    def single(self) -> JoinedTexts | ConditionText:
        is_negated = self.accept("~")
        if not is_negated and not self.accept("("):
            return self.condition()
        self.depth += 1
        if self.depth > 2 * MAX_DEPTH:  # parentheses around each single condition as well
            raise _too_deep()
        inner = JoinedTexts("~", [self.single()]) if is_negated else self.joined()
        if not is_negated and not self.accept(")"):
            raise self.error()
        self.depth -= 1
        return inner

    def condition(self) -> JoinedTexts | ConditionText:
        for operator, form in _FORMS:
            match = form.match(self.text, self.position)
            if match is not None:
                groups = match.groupdict()
                if "values" in groups:
                    values = self.items(groups["values"])
                else:
                    values = tuple(groups[name] for name in ("value", "first", "last") if name in groups)
                self.end(match)
                condition = ConditionText(match[0], match["column"], operator, values)
                return JoinedTexts("~", [condition]) if groups.get("negation") else condition
        match = _COMPARISON.match(self.text, self.position)
        if match is None:
            raise self.error()
        self.end(match)
        return parse_text(match[0])

    def end(self, match: re.Match[str]) -> None:
        self.position = match.end()
        if self.next_character() not in ("", "&", "|", ")"):
            self.position = match.start()
            raise self.error()

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
