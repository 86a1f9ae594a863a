"""Predicates and the tree of conditions: validation, binding to a schema, evaluation, simplification."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, TypeAlias, TypeVar

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


def bind(predicates: PredicatesType | Tree, schema: pa.Schema) -> Tree | None:
    """Predicates as a tree, checked against a schema: form, columns, operators and types of values.

    >>> import pyarrow as pa
    >>> bind([[("CITI", "==", "Rom")]], pa.schema([("CITY", pa.string())]))
    Traceback (most recent call last):
      ...
    ValueError: Predicates: unknown column CITI; did you mean CITY? available: CITY.
    """
    node = to_tree(predicates)
    literals = literals_of(node)
    check_columns({column for column, _, _ in literals}, schema.names, "Predicates")
    for column, op, value in literals:
        bind_literal(schema.field(column).type, op, value, column)
    return node


def check_columns(columns: Iterable[str], available: Collection[str], where: str = "") -> None:
    """Raise ValueError for columns that do not exist."""
    unknown = set(columns) - set(available)
    if unknown:
        prefix = f"{where}: " if where else ""
        raise ValueError(f"{prefix}{unknown_names('column', unknown, available)}.")


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


Tree: TypeAlias = AllOf | AnyOf
Node: TypeAlias = Tree | LiteralType


def to_tree(predicates: PredicatesType | Tree) -> Tree | None:
    """The tree of predicates, whose form is checked; None for None, a tree for itself.

    >>> to_tree([[("DAY", ">", 1), ("CITY", "==", "Rom")]])
    AnyOf(operands=(AllOf(operands=(('DAY', '>', 1), ('CITY', '==', 'Rom'))),))
    """
    if predicates is None or isinstance(predicates, AllOf | AnyOf):
        return predicates
    check_predicates(predicates)
    return AnyOf(tuple(AllOf(tuple(conjunction)) for conjunction in predicates))


def is_null_test(literal: LiteralType) -> bool:
    """Whether a literal of a condition matches nulls: ``IS NULL`` is ``(column, "in", (None,))``."""
    _, op, value = literal
    return op == "in" and len(value) == 1 and value[0] is None


def literals_of(node: Node | None) -> list[LiteralType]:
    """Literals of a tree, from left to right."""
    if node is None or isinstance(node, tuple):
        return [] if node is None else [node]
    return [literal for operand in node.operands for literal in literals_of(operand)]


def columns_of(node: Node | None) -> set[str]:
    """Columns that occur in a tree."""
    return {column for column, _, _ in literals_of(node)}


def identify(node: Node | None) -> object:
    """A key that is equal for trees of the same literals; their values may have no hash."""
    if node is None or isinstance(node, tuple):
        return id(node)
    return type(node), tuple(map(identify, node.operands))


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


def reduce_to_columns(node: Node, columns: Collection[str]) -> Node:
    """What suffices for a tree to match, whatever the values of other columns.

    >>> reduce_to_columns(AnyOf((("CITY", "==", "Rom"), ("DAY", ">", 1))), {"DAY"})
    AnyOf(operands=(AnyOf(operands=()), ('DAY', '>', 1)))
    """
    if isinstance(node, tuple):
        return node if node[0] in columns else AnyOf(())
    return type(node)(tuple(reduce_to_columns(operand, columns) for operand in node.operands))


def all_of(nodes: Iterable[Node | None]) -> AllOf | None:
    """What holds where all nodes do; None where there is none."""
    operands = tuple(node for node in nodes if node is not None)
    return AllOf(operands) if operands else None


def evaluate(
    node: Node, mask_of_literal: Callable[[LiteralType], pa.BooleanArray], length: int
) -> pa.BooleanArray:
    """Mask of the rows that match, of those that match each literal."""
    if isinstance(node, tuple):
        return mask_of_literal(node)
    is_all = isinstance(node, AllOf)
    masks = [evaluate(operand, mask_of_literal, length) for operand in node.operands]
    return reduce(pc.and_ if is_all else pc.or_, masks) if masks else pa.repeat(is_all, length)


def tree_mask(table: pa.Table, node: Node | None) -> pa.BooleanArray:
    """Mask, without nulls, of the rows of a table that match.

    >>> import pyarrow as pa
    >>> node = AnyOf((("DAY", "==", 1), ("DAY", "in", (None,))))
    >>> tree_mask(pa.table({"DAY": [1, 2, None]}), node).to_pylist()
    [True, False, True]
    """
    check_columns(columns_of(node), table.column_names, "Predicates")
    return evaluate(
        AllOf(()) if node is None else node,
        lambda literal: literal_mask(table.column(literal[0]), literal[1], literal[2], literal[0]),
        table.num_rows,
    )


def simplify(node: Node, constants: Mapping[str, Any]) -> Node | bool:
    """What remains to be checked of rows in which some columns are constant; a bool if that is certain.

    >>> simplify(AllOf((("COUNTRY_CODE", "==", "DE"), ("STORE_ID", ">", 1))), {"COUNTRY_CODE": "DE"})
    AllOf(operands=(('STORE_ID', '>', 1),))
    """
    if isinstance(node, tuple):
        column, op, value = node
        if column not in constants:
            return node
        constant = constants[column]
        array = pa.repeat(constant, 1) if isinstance(constant, pa.Scalar) else pa.array([constant])
        return bool(literal_mask(array, op, value, column)[0].as_py())
    # all operands are simplified, so that values of wrong types always raise
    parts = [simplify(operand, constants) for operand in node.operands]
    is_all = isinstance(node, AllOf)
    if any(part is (not is_all) for part in parts):
        return not is_all
    remaining = tuple(part for part in parts if not isinstance(part, bool))
    return type(node)(remaining) if remaining else is_all
