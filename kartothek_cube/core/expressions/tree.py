"""Trees of literals, joined by "and" and "or": what they imply about some columns, and their evaluation."""
# There is no "not": a negation is pushed down to the literals. A literal that compares a null is false, and
# with "and" and "or" only, that is what SQL gives: rows whose condition is unknown are left out.

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import reduce
from itertools import product
from typing import TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.expressions.predicate import ConjunctionType, LiteralType, literal_mask

__all__ = (
    "AllOf",
    "AnyOf",
    "Node",
    "columns_of",
    "disjunctive_form",
    "expand",
    "imply",
    "is_null_test",
    "literals_of",
    "rejects_nulls",
    "tree_mask",
)


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
