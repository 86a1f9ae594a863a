"""Predicates, in disjunctive normal form or as trees: validation, binding, evaluation, simplification."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from typing import Any, Literal, TypeAlias, TypeVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core.arrow.arrays import boolean_array
from kartothek_cube.core.errors import abbreviate_text, unknown_names
from kartothek_cube.core.expressions.literal import LiteralType, bind_literal, is_null_value, mask_of

# ``[[(column, op, value), ...], ...]``. Nulls (and NaN) match no comparison, ``!=`` and ``not in`` included,
# but for ``== None``, ``!= None`` and None within an ``in`` list.

LiteralValue = TypeVar("LiteralValue")
ConjunctionType: TypeAlias = list[LiteralType]
PredicatesType: TypeAlias = list[ConjunctionType] | None


def check_predicates(predicates: PredicatesType) -> None:
    """Check the form of predicates, without knowing the columns.

    Parameters
    ----------
    predicates
        The predicates; None means "no filter".

    Raises
    ------
    ValueError
        The nesting is wrong, something is empty, or a null is compared by an operator that has no meaning for
        nulls; names the position.
    TypeError
        The value of an ``in`` is no list.
    NotImplementedError
        A bytes value contains a NUL byte.

    Examples
    --------
    >>> check_predicates([[("COUNTRY_CODE", "==", "DE"), ("STORE_ID", "in", [1, 2])]])
    >>> check_predicates([])
    Traceback (most recent call last):
      ...
    ValueError: Empty predicates match nothing; use None to read without a filter.
    """
    for where, (column, op, value) in check_form(predicates):
        if op not in ("==", "!=") and is_null_value(value):
            problem = f"{where} ({column!r}): a null can be compared by ==, != and in only, not by {op}."
            raise ValueError(problem)


def check_form(predicates: PredicatesType) -> list[tuple[str, LiteralType]]:
    """Check the form of predicates; position (for messages) and literal of each."""
    literals: list[tuple[str, LiteralType]] = []
    if predicates is None:
        return literals
    if len(predicates) == 0:
        raise ValueError("Empty predicates match nothing; use None to read without a filter.")
    for number, conjunction in enumerate(predicates):
        if not isinstance(conjunction, list):
            raise ValueError(
                f"Conjunction {number} should be a list of (column, operator, value) tuples, "
                f"got {type(conjunction).__name__}."
            )
        if not conjunction:
            raise ValueError(f"Conjunction {number} is empty.")
        for position, literal in enumerate(conjunction):
            where = f"Literal {position} in conjunction {number}"
            _check_literal(literal, where)
            literals.append((where, literal))
    return literals


def _check_literal(literal: Any, where: str) -> None:
    if not isinstance(literal, tuple) or len(literal) != 3:
        raise ValueError(
            f"{where} should be a tuple (column, operator, value), got {abbreviate_text(repr(literal))}."
        )
    column, op, value = literal
    if op in ("in", "not in") and not is_null_value(value):
        # an iterator would be empty after the first of several files
        if isinstance(value, (str, bytes, Iterator)) or not isinstance(value, Iterable):
            problem = f"{where} ({column!r}): {op!r} needs a list of values, got {type(value).__name__}."
            raise TypeError(problem)
        has_nul = any(isinstance(item, bytes) and b"\0" in item for item in value)
    else:
        has_nul = isinstance(value, bytes) and b"\0" in value
    if has_nul:
        raise NotImplementedError(f"{where} ({column!r}): bytes values with a NUL byte are not supported.")


def columns_in_predicates(predicates: PredicatesType) -> set[str]:
    """Columns that occur in the predicates.

    Parameters
    ----------
    predicates
        The predicates.

    Returns
    -------
    set of str

    Examples
    --------
    >>> columns_in_predicates([[("CITY", "==", "Rom")], [("CITY", "==", "Bonn")]])
    {'CITY'}
    """
    return {column for conjunction in predicates or () for column, _, _ in conjunction}


def filter_predicates_by_column(predicates: PredicatesType, columns: Collection[str]) -> PredicatesType:
    """The literals on some columns only.

    Parameters
    ----------
    predicates
        The predicates.
    columns
        The columns that stay.

    Returns
    -------
    predicates or None
        Conjunctions without a literal left are dropped; None if nothing is left.

    Examples
    --------
    >>> filter_predicates_by_column([[("CITY", "==", "Rom"), ("DAY", ">", "2020-01-01")]], ["CITY"])
    [[('CITY', '==', 'Rom')]]
    """
    kept = [[literal for literal in conjunction if literal[0] in columns] for conjunction in predicates or ()]
    return [conjunction for conjunction in kept if conjunction] or None


def literal_mask(array: pa.Array | pa.ChunkedArray, op: str, value: Any, column: str = "") -> pa.BooleanArray:
    """Mask, without nulls, of the rows of a column that match a literal.

    Examples
    --------
    >>> import pyarrow as pa
    >>> literal_mask(pa.array([1, 2, None]), "!=", 2).to_pylist()
    [True, False, False]
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if pat.is_dictionary(array.type):
        return _mask_of_codes(array, op, value, column)
    try:
        literal = bind_literal(array.type, op, value, column)
    except TypeError:
        if not _all_nan(array):
            raise
        return pa.repeat(pa.scalar(False), len(array))  # a column of NaN only may stand for any type
    return mask_of(array, literal)


def _mask_of_codes(array: pa.DictionaryArray, op: str, value: Any, column: str) -> pa.BooleanArray:
    """Mask of the rows of an encoded column: distinct values are compared, codes are looked up."""
    codes, values = array.indices, array.dictionary
    if codes.null_count:
        codes = codes.fill_null(len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    matches = literal_mask(values, op, value, column).to_numpy(zero_copy_only=False)
    hits = np.flatnonzero(matches)
    if not len(hits):
        return pa.repeat(pa.scalar(False), len(codes))
    # comparing codes with the only match takes a fifth of looking up each of them
    numbers = codes.to_numpy()
    return boolean_array(numbers == hits[0] if len(hits) == 1 else matches[numbers])


def _all_nan(array: pa.Array) -> bool:
    if not pat.is_floating(array.type) or len(array) == 0:
        return False
    return bool(pc.all(pc.is_null(array, nan_is_null=True)).as_py())


def filter_mask(table: pa.Table, predicates: PredicatesType) -> pa.BooleanArray:
    """Mask, without nulls, of the rows of a table that match; None matches all.

    Examples
    --------
    >>> import pyarrow as pa
    >>> filter_mask(pa.table({"STORE_ID": [1, 2]}), [[("STORE_ID", ">", 1)]]).to_pylist()
    [False, True]
    """
    if predicates is None:
        return pa.repeat(pa.scalar(True), table.num_rows)
    check_columns(columns_in_predicates(predicates), table.column_names, "Predicates")
    conjunctions = (
        reduce(
            pc.and_,
            (literal_mask(table.column(column), op, value, column) for column, op, value in conjunction),
        )
        for conjunction in predicates
    )
    return reduce(pc.or_, conjunctions)


def bind(predicates: PredicatesType, schema: pa.Schema) -> None:
    """Check predicates against a schema: form, columns, operators and types of values.

    Examples
    --------
    >>> import pyarrow as pa
    >>> bind([[("CITI", "==", "Rom")]], pa.schema([("CITY", pa.string())]))
    Traceback (most recent call last):
      ...
    ValueError: Predicates: unknown column CITI; did you mean CITY? available: CITY.
    """
    check_predicates(predicates)
    check_columns(columns_in_predicates(predicates), schema.names, "Predicates")
    for conjunction in predicates or ():
        for column, op, value in conjunction:
            bind_literal(schema.field(column).type, op, value, column)


def check_columns(columns: Iterable[str], available: Collection[str], where: str = "") -> None:
    """Raise ValueError for columns that do not exist."""
    unknown = set(columns) - set(available)
    if unknown:
        prefix = f"{where}: " if where else ""
        raise ValueError(f"{prefix}{unknown_names('column', unknown, available)}.")


def evaluate_constants(
    predicates: PredicatesType, constants: Mapping[str, Any]
) -> list[ConjunctionType] | Literal[True, False]:
    """Simplify predicates by constant columns; True if every row matches, False if none can.

    Examples
    --------
    >>> evaluate_constants([[("COUNTRY_CODE", "==", "DE"), ("STORE_ID", ">", 1)]], {"COUNTRY_CODE": "DE"})
    [[('STORE_ID', '>', 1)]]
    """
    if predicates is None:
        return True
    arrays = {
        column: pa.repeat(value, 1) if isinstance(value, pa.Scalar) else pa.array([value])
        for column, value in constants.items()
    }
    remaining, is_satisfied = [], False
    for conjunction in predicates:
        constant = [literal for literal in conjunction if literal[0] in arrays]
        # All are evaluated, so that wrong types always raise.
        outcomes = [literal_mask(arrays[c], op, value, c)[0].as_py() for c, op, value in constant]
        if not all(outcomes):
            continue
        variable = [literal for literal in conjunction if literal[0] not in arrays]
        is_satisfied |= not variable
        remaining.append(variable)
    return True if is_satisfied else remaining or False


# There is no "not": a negation is pushed down to the literals. A literal that compares a null is false, and
# with "and" and "or" only, that is what SQL gives: rows whose condition is unknown are left out.


@attrs.frozen
class AllOf:
    """All operands hold; without operands, every row matches."""

    operands: tuple[Node, ...]


@attrs.frozen
class AnyOf:
    """One of the operands holds; without operands, no row matches."""

    operands: tuple[Node, ...]


Node: TypeAlias = "AllOf | AnyOf | LiteralType"

#: predicates in disjunctive form have at most so many conjunctions: each is evaluated by itself
_MAX_CONJUNCTIONS = 64


def is_null_test(literal: LiteralType) -> bool:
    """Whether a literal of a condition matches nulls: ``IS NULL`` is ``(column, "in", (None,))``."""
    _, op, value = literal
    return op == "in" and len(value) == 1 and value[0] is None


def literals_of(node: Node) -> list[LiteralType]:
    """Literals of a tree, from left to right."""
    if isinstance(node, tuple):
        return [node]
    return [literal for operand in node.operands for literal in literals_of(operand)]


def columns_of(node: Node) -> set[str]:
    """Columns that occur in a tree."""
    return {column for column, _, _ in literals_of(node)}


def rejects_nulls(node: Node, columns: Collection[str]) -> bool:
    """Whether a row cannot match in which all of the columns are null.

    >>> rejects_nulls(AnyOf((("CITY", "==", "Rom"), ("DAY", ">", 1))), {"CITY", "DAY"})
    True
    """
    if isinstance(node, tuple):
        return node[0] in columns and not is_null_test(node)
    reject = [rejects_nulls(operand, columns) for operand in node.operands]
    return any(reject) if isinstance(node, AllOf) else all(reject)


def imply(node: Node, columns: Collection[str]) -> Node | None:
    """What a tree implies about some of its columns; None for nothing.

    >>> imply(AllOf((("CITY", "==", "Rom"), ("DAY", ">", 1))), {"DAY"})
    AllOf(operands=(('DAY', '>', 1),))
    >>> imply(AnyOf((("CITY", "==", "Rom"), ("DAY", ">", 1))), {"DAY"})
    """
    if isinstance(node, tuple):
        return node if node[0] in columns else None
    implied = [imply(operand, columns) for operand in node.operands]
    kept = tuple(operand for operand in implied if operand is not None)
    if isinstance(node, AnyOf):
        return AnyOf(kept) if len(kept) == len(implied) else None
    return AllOf(kept) if kept else None


def disjunctive_form(nodes: Sequence[Node]) -> list[ConjunctionType] | None:
    """Predicates that hold wherever all nodes do; None where they restrict nothing.

    Nodes that would make too many conjunctions are left out.

    >>> disjunctive_form([("DAY", ">", 1), AnyOf((("CITY", "==", "Rom"), ("CITY", "==", "Bonn")))])
    [[('DAY', '>', 1), ('CITY', '==', 'Rom')], [('DAY', '>', 1), ('CITY', '==', 'Bonn')]]
    """
    literals = [node for node in nodes if isinstance(node, tuple)]
    if len(literals) == len(nodes):  # the usual case
        return [literals] if literals else None
    result: list[ConjunctionType] = [[]]
    for node in nodes:
        conjunctions = _expand(node)
        if conjunctions is not None and len(result) * len(conjunctions) <= _MAX_CONJUNCTIONS:
            result = [left + right for left in result for right in conjunctions]
    return None if any(not conjunction for conjunction in result) else result


def expand(nodes: Sequence[Node]) -> list[ConjunctionType]:
    """Predicates that hold where all nodes do; raises ValueError if they are too many conjunctions."""
    conjunctions = _expand(AllOf(tuple(nodes)))
    if conjunctions is None:
        raise ValueError(f"Conditions have more than {_MAX_CONJUNCTIONS} alternatives; use isin()")
    return conjunctions


def _expand(node: Node) -> list[ConjunctionType] | None:
    """Equivalent conjunctions, none of them for a node without a match; None if they are too many."""
    if isinstance(node, tuple):
        return [[node]]
    operands: list[list[ConjunctionType]] = []
    for operand in node.operands:
        conjunctions = _expand(operand)
        if conjunctions is None:
            return None
        operands.append(conjunctions)
    count = sum if isinstance(node, AnyOf) else math.prod
    if count(map(len, operands)) > _MAX_CONJUNCTIONS:
        return None
    if isinstance(node, AnyOf):
        return [conjunction for conjunctions in operands for conjunction in conjunctions]
    return [[literal for part in parts for literal in part] for parts in product(*operands)]


def tree_mask(table: pa.Table, node: Node) -> pa.BooleanArray:
    """Mask, without nulls, of the rows of a table that match.

    >>> import pyarrow as pa
    >>> node = AnyOf((("DAY", "==", 1), ("DAY", "in", (None,))))
    >>> tree_mask(pa.table({"DAY": [1, 2, None]}), node).to_pylist()
    [True, False, True]
    """
    if isinstance(node, tuple):
        column, op, value = node
        return literal_mask(table.column(column), op, value, column)
    is_all = isinstance(node, AllOf)
    masks = [tree_mask(table, operand) for operand in node.operands]
    return reduce(pc.and_ if is_all else pc.or_, masks) if masks else pa.repeat(is_all, table.num_rows)
