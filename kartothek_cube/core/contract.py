"""Contracts of datasets: rules that rows have to meet, kept with the dataset and checked by writes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, Self

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pandas.api.types import is_bool_dtype

from kartothek_cube.core import arguments, arrow, errors, naming, pandas_conversion
from kartothek_cube.core.arrow import Mask, is_null, is_text, to_numpy
from kartothek_cube.core.cube import condition_codec
from kartothek_cube.core.expressions import AllOf, exact_literal, tree_mask

__all__ = (
    "CellsInSeed",
    "ContractRule",
    "Fresh",
    "HasType",
    "InRange",
    "Matches",
    "NotNull",
    "OneOf",
    "RowCount",
    "UniqueCells",
)

#: rows that an error shows
_EXAMPLES = 3


def _plain(value: Any) -> Any:
    """A value that JSON can express: times as text in ISO 8601, decimals as text; nulls stay nulls."""
    given, value = value, condition_codec.to_python_scalar(value)
    if isinstance(value, np.datetime64):
        # of nanoseconds, item() makes integers
        value = pd.Timestamp(value) if isinstance(value.item(), int) else value.item()
    if isinstance(value, np.integer):
        return int(value)
    if value is pd.NaT or (value is None and given is not None):
        # no limit is something else
        return pd.NaT
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _to_values(values: object) -> tuple[Any, ...]:
    return tuple(map(_plain, condition_codec.to_value_tuple(values)))


def _check_plain(rule: Any, attribute: Any, value: Any) -> None:
    values = value if isinstance(value, tuple) else (value,)
    condition_codec.check_values(rule, attribute, values)
    for single in values:
        if not isinstance(single, str | bool | int | float):
            problem = f"Values of {type(rule).__name__} are numbers, text, booleans and times, got {single!r}"
            raise TypeError(problem)
        if isinstance(single, float) and not math.isfinite(single):
            raise ValueError(f"{type(rule).__name__} takes finite numbers, got {single}; leave it out")


def _check_any(rule: Any, attribute: Any, values: tuple[Any, ...]) -> None:
    _check_plain(rule, attribute, values)
    if not values:
        raise ValueError(f"No value meets OneOf({rule.column!r}, ()): values is empty")


def _to_column(name: str) -> str:
    return arguments.parse_name("column", name)


def _to_age(value: timedelta | float) -> timedelta:
    try:
        return value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError) as error:
        problem = f"max_age is a datetime.timedelta or a number of seconds, not {value!r}"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(problem) from None


def _to_type_name(given: arrow.TypeInput) -> str:
    try:
        dtype = arrow.parse_type(given)
    except TypeError:
        # Arrow writes names with parameters, such as list<item: double>, but does not parse them
        if not (isinstance(given, str) and re.search(r"[\[<(]", given)):
            raise
        name = given
    else:
        name = str(arrow.widen(dtype.value_type if pat.is_dictionary(dtype) else dtype))
    # files have microseconds, frames what the version of pandas prefers
    return re.sub(r"\b(timestamp|duration)\[(s|ms|us)\b", r"\1[ns", name)


@attrs.frozen
class ContractRule:
    """A rule of a contract; see :func:`~kartothek_cube.io.eager_cube.set_contract`.

    Attributes
    ----------
    checked
        Whether the rows that were stored when the rule was added are known to meet it.
    """

    #: whether it concerns a write as a whole, and not single rows
    of_write: ClassVar[bool] = False

    checked: bool = attrs.field(default=True, kw_only=True)

    @checked.validator
    def _check_checked(self, attribute: object, value: object) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"checked is True or False, got {value!r}")

    def __str__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._arguments().values()))})"

    def _arguments(self) -> dict[str, Any]:
        return attrs.asdict(self, recurse=False, filter=lambda field, _: field.name != "checked")

    def _to_json(self) -> dict[str, Any]:
        values = self._arguments().items()
        plain = {k: v.total_seconds() if isinstance(v, timedelta) else v for k, v in values}
        return {"rule": type(self).__name__, **plain, "checked": self.checked}

    def _violations(self, values: pa.ChunkedArray) -> Mask:
        raise NotImplementedError

    def _find(self, table: pa.Table, cell: Iterable[str]) -> Violations | None:
        """The rows of a table that break the rule, of which some are shown."""
        (column,) = self.columns
        has_column = column in table.column_names
        values = table.column(column) if has_column else pa.chunked_array([pa.nulls(len(table))])
        return find_violations(self, table, self._violations(values), cell)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the rule names."""
        return (self.column,) if isinstance(self, _ColumnRule) else ()


@attrs.frozen
class _ColumnRule(ContractRule):
    column: str = attrs.field(converter=_to_column)


@attrs.frozen
class HasType(_ColumnRule):
    """The column has a type; one that has had no value so far has any.

    Parameters
    ----------
    column
        Name of the column.
    type
        Type of Arrow, pandas or NumPy, or its name. Widths of integers and floats, units of times and the
        encoding of categories do not count.

    Examples
    --------
    >>> print(HasType("KWH", "float32"))
    HasType('KWH', 'double')
    """

    type: str = attrs.field(converter=_to_type_name)

    def _find(self, table: pa.Table, cell: Iterable[str]) -> Violations | None:
        index = table.schema.get_field_index(self.column)
        dtype = table.schema.types[index] if index >= 0 else pa.null()
        if not len(table) or pat.is_null(dtype) or _to_type_name(dtype) == self.type:
            return None
        return Violations(self, len(table), len(table), (), f"the column has type {dtype}")


@attrs.frozen
class NotNull(_ColumnRule):
    """The column has no null and no NaN; a column that rows lack is null.

    Parameters
    ----------
    column
        Name of the column.

    Examples
    --------
    >>> print(NotNull("KWH"))
    NotNull('KWH')
    """

    def _violations(self, values: pa.ChunkedArray) -> Mask:
        return to_numpy(is_null(values))


@attrs.frozen
class InRange(_ColumnRule):
    """Values are in a range, limits included; nulls are allowed.

    Parameters
    ----------
    column
        Name of the column.
    min, max
        Limits; None for none. Times also as text in ISO 8601.

    Examples
    --------
    >>> print(InRange("KWH", 0, 100))
    InRange('KWH', 0, 100)
    """

    min: Any = attrs.field(default=None, converter=_plain, validator=attrs.validators.optional(_check_plain))
    max: Any = attrs.field(default=None, converter=_plain, validator=attrs.validators.optional(_check_plain))

    def __attrs_post_init__(self) -> None:
        if self.min is None and self.max is None:
            raise ValueError(f"InRange({self.column!r}) needs min, max or both")
        # texts may stand for times or decimals, which compare otherwise
        is_number = all(isinstance(limit, int | float) for limit in (self.min, self.max))
        if is_number and self.min > self.max:
            raise ValueError(f"No value is in the range of {self}: min is greater than max")

    def _violations(self, values: pa.ChunkedArray) -> Mask:
        limits = ((">=", self.min), ("<=", self.max))
        return _differ(values, self.column, [(op, limit) for op, limit in limits if limit is not None])


@attrs.frozen
class OneOf(_ColumnRule):
    """Values are among some; nulls are allowed.

    Parameters
    ----------
    column
        Name of the column.
    values
        The allowed values.

    Examples
    --------
    >>> print(OneOf("TARIFF", ["day", "night"]))
    OneOf('TARIFF', ('day', 'night'))
    """

    values: tuple[Any, ...] = attrs.field(converter=_to_values, validator=_check_any)

    def _violations(self, values: pa.ChunkedArray) -> Mask:
        return _differ(values, self.column, [("in", self.values)])


def _check_pattern(_rule: Any, _attribute: Any, pattern: Any) -> None:
    if not isinstance(pattern, str):
        raise TypeError(f"A pattern is a text, got {pattern!r}")
    try:
        pc.match_substring_regex(pa.array([""]), pattern=pattern)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{pattern!r} is no regular expression (RE2): {error}") from error


@attrs.frozen
class Matches(_ColumnRule):
    """Texts match a regular expression as a whole; nulls are allowed.

    Parameters
    ----------
    column
        Name of the column.
    pattern
        Regular expression, as of RE2.

    Examples
    --------
    >>> print(Matches("CODE", "[A-Z]{3}"))
    Matches('CODE', '[A-Z]{3}')
    """

    pattern: str = attrs.field(validator=_check_pattern)

    def _violations(self, values: pa.ChunkedArray) -> Mask:
        if pat.is_null(values.type):
            return np.zeros(len(values), bool)
        if pat.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if not is_text(values.type):
            raise TypeError(f"{self} needs text, but column {self.column!r} has type {values.type}")
        matches = pc.match_substring_regex(values, pattern=rf"\A(?:{self.pattern})\z")
        return ~to_numpy(pc.fill_null(matches, True))


@attrs.frozen
class UniqueCells(ContractRule):
    """A write has no two rows of one cell of the dataset, also in different parts of its input.

    Examples
    --------
    >>> print(UniqueCells())
    UniqueCells()
    """

    of_write = True


@attrs.frozen
class CellsInSeed(ContractRule):
    """The cells of the rows are in the seed, as far as the dataset has the columns of the cell.

    Examples
    --------
    >>> print(CellsInSeed())
    CellsInSeed()
    """

    of_write = True


def _check_number(rule: Any, attribute: Any, number: Any) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{attribute.name} of RowCount is a number of rows, got {number!r}")


@attrs.frozen
class RowCount(ContractRule):
    """A partition of the cube that is written has a number of cells in the dataset, once it is committed.

    Parameters
    ----------
    min, max
        Limits, included; None for no upper one.

    Examples
    --------
    >>> print(RowCount(24, 25))
    RowCount(24, 25)
    """

    of_write = True

    min: int = attrs.field(default=0, converter=condition_codec.to_python_scalar, validator=_check_number)
    max: int | None = attrs.field(
        default=None,
        converter=condition_codec.to_python_scalar,
        validator=attrs.validators.optional(_check_number),
    )

    def __attrs_post_init__(self) -> None:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"No number of rows meets {self}: min is greater than max")


def _check_age(_rule: Any, _attribute: Any, age: timedelta) -> None:
    if age < timedelta(0):
        raise ValueError(f"max_age of Fresh is not negative, got {age}")


@attrs.frozen
class Fresh(_ColumnRule):
    """The newest time of a write is at most so old at its commit; times without a zone are UTC.

    Parameters
    ----------
    column
        Name of the column, of timestamps or dates.
    max_age
        Largest age, a timedelta or seconds.

    Examples
    --------
    >>> print(Fresh("HOUR", timedelta(days=1)))
    Fresh('HOUR', datetime.timedelta(days=1))
    """

    of_write = True

    max_age: timedelta = attrs.field(converter=_to_age, validator=_check_age)

    def check_type(self, dtype: pa.DataType) -> None:
        """Raise TypeError for columns that have no times."""
        if not (pat.is_timestamp(dtype) or pat.is_date(dtype) or pat.is_null(dtype)):
            raise TypeError(f"{self} needs timestamps or dates, but column {self.column!r} has type {dtype}")


def _differ(values: pa.ChunkedArray, column: str, literals: Iterable[tuple[str, Any]]) -> Mask:
    """Mask of the values that are not null and do not meet all literals."""
    if pat.is_null(values.type):
        return np.zeros(len(values), bool)
    dtype = values.type.value_type if pat.is_dictionary(values.type) else values.type
    nodes = [exact_literal(dtype, (column, op, _to_decimals(dtype, value))) for op, value in literals]
    mask = to_numpy(tree_mask(pa.table({column: values}), AllOf(tuple(nodes))))
    differ: Mask = ~mask & ~to_numpy(is_null(values))
    return differ


def _to_decimals(dtype: pa.DataType, value: Any) -> Any:
    """The text of a decimal as such, which JSON lacks, for columns of decimals; 0.1 is meant literally."""
    if not pat.is_decimal(dtype):
        return value
    return tuple(Decimal(str(v)) for v in value) if isinstance(value, tuple) else Decimal(str(value))


@attrs.frozen
class RowCheck(ContractRule):
    """A function of the user; it is no part of the stored contract."""

    function: Callable[[pd.DataFrame], object] = attrs.field(eq=id)

    def __str__(self) -> str:
        return f"check_rows({getattr(self.function, '__qualname__', type(self.function).__name__)})"

    def _find(self, table: pa.Table, cell: Iterable[str]) -> Violations | None:
        if not len(table):
            return None
        try:
            result = self.function(pandas_conversion.to_pandas(table))
            mask = np.zeros(len(table), bool)
            if isinstance(result, bool | np.bool_):
                mask[:] = not result
            elif isinstance(result, pd.Series | np.ndarray) and is_bool_dtype(result):
                mask = ~pd.Series(result).fillna(True).to_numpy(bool)
                if len(mask) != len(table):
                    problem = f"it returned {len(mask):,} values for {errors.format_count(len(table), 'row')}"
                    raise ValueError(problem)
        except Exception as error:
            # whatever a check raises, the rows are refused
            detail = f"{type(error).__name__}: {error}"
            return Violations(self, len(table), len(table), (), detail, error)
        return find_violations(self, table, mask, cell)


_RULES: dict[str, type[ContractRule]] = {
    rule.__name__: rule
    for rule in (CellsInSeed, Fresh, HasType, InRange, Matches, NotNull, OneOf, RowCount, UniqueCells)
}


class Violations(NamedTuple):
    """Rows that break a rule."""

    rule: ContractRule
    n_violations: int
    #: rows that were checked
    n_rows: int
    #: some of them
    examples: Sequence[Mapping[str, Any]]
    detail: str = ""
    #: error of a check
    cause: Exception | None = None

    def error(self, dataset: str) -> errors.ContractViolationError:
        """The error that refuses them."""
        return errors.ContractViolationError(
            dataset, str(self.rule), self.n_violations, self.n_rows, self.examples, self.detail
        )


def find_violations(
    rule: ContractRule, table: pa.Table, mask: Mask, columns: Iterable[str]
) -> Violations | None:
    """The rows of a mask, of which three are shown by some of their columns."""
    count = int(np.count_nonzero(mask))
    if not count:
        return None
    names = [c for c in dict.fromkeys([*columns, *rule.columns]) if c in table.column_names]
    rows = table.select(names).take(pa.array(np.flatnonzero(mask)[:_EXAMPLES]))
    return Violations(rule, count, len(table), rows.to_pylist())


@attrs.frozen
class Contract:
    """The rules of a dataset."""

    rules: tuple[ContractRule, ...] = ()
    #: the entry of the metadata
    stored: Any = None

    @classmethod
    def of(cls, uuid: str, metadata: Mapping[str, Any]) -> Self:
        """The contract in the metadata of a dataset; raises CorruptDatasetError."""
        stored = metadata.get(naming.CONTRACT)
        if stored is None:
            return cls()
        try:
            return cls(tuple(map(_from_json, stored)), stored)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            problem = (
                f"{naming.CONTRACT!r} in its metadata is no contract ({error}); set_contract replaces it"
            )
            raise errors.CorruptDatasetError(uuid, problem) from error

    @classmethod
    def make(cls, rules: ContractRule | Iterable[ContractRule]) -> Self:
        """A contract of rules; none is stored without rules."""
        rules = arguments.converter_tuple([rules] if isinstance(rules, ContractRule | None) else rules)
        for rule in rules:
            if type(rule) not in _RULES.values():
                raise TypeError(f"A contract is a list of rules, such as [NotNull('KWH')], got {rule!r}")
        return cls(tuple(rules), [rule._to_json() for rule in rules] or None)

    @property
    def has_checks(self) -> bool:
        """Whether functions of the user check the rows."""
        return any(isinstance(rule, RowCheck) for rule in self.rules)

    @property
    def columns(self) -> set[str]:
        """Columns that rules name."""
        return {column for rule in self.rules for column in rule.columns}

    @property
    def of_write(self) -> tuple[ContractRule, ...]:
        """Rules of a write as a whole."""
        return tuple(rule for rule in self.rules if rule.of_write)

    def find_in_rows(self, table: pa.Table, cell: Iterable[str]) -> Iterator[Violations]:
        """Rows of a table that break rules of rows."""
        for rule in self.rules:
            found = None if rule.of_write else rule._find(table, cell)
            if found is not None:
                yield found


def _from_json(element: Any) -> ContractRule:
    """A rule of its form in JSON; raises AttributeError, TypeError or ValueError."""
    fields = dict(element)
    name = fields.pop("rule", None)
    errors.check_names("", "rule", [name], _RULES)
    if any(isinstance(value, float) and not math.isfinite(value) for value in fields.values()):
        raise ValueError(f"{name} has a value that is no number")
    return _RULES[name](**fields)
