"""Which façades and stores a test case of cubes runs with: a table of pairs.

Every case runs with the eager façade on a directory and with the pair of its turn in `TURNS`. So every façade
meets every kind of store in each suite (Spark: directories only), and a case costs two runs, not nineteen.
Tests that name a store only run with a directory and in memory.
The S3 of `TURNS` is a small server; where it is the turn of the eager façade, it is moto's as well, which is
slow but not ours.
"""

import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import pytest

_PARAM = type(pytest.param())

#: the façade of tests that name a store only
DEFAULT_FACADE = "eager"

#: a server that others wrote
SLOW_STORE = "moto"

#: the store of cases in their first run, and that of tests without a façade in their second one
DEFAULT_STORE, SECOND_STORE = "local", "memory"

#: façade -> store by round; None: no further run. Cases take turns: down a column, then down the next one.
#: Memory is the cheapest store; a Spark job takes half a second.
TURNS: dict[str, tuple[str | None, ...]] = {
    "iter": ("s3", "local", "memory", "memory", "memory", "memory"),
    "delayed": ("memory", "s3", "local", "memory", "memory", "memory"),
    "bag_bs1": ("memory", "memory", "s3", "local", "memory", "memory"),
    "bag_bs3": ("memory", "memory", "memory", "s3", "local", "memory"),
    "dataframe": ("local", "memory", "memory", "memory", "s3", "memory"),
    "eager": ("s3", "memory", "s3", "s3", "memory", "s3"),
    "spark": ("local", None, None, "local", None, None),
}


def pair_of_turn(turn: int) -> tuple[str, str | None]:
    """Façade and store of a turn, which starts again at the top left of `TURNS` after the last one.

    >>> pair_of_turn(0), pair_of_turn(1), pair_of_turn(7), pair_of_turn(42)
    (('iter', 's3'), ('delayed', 'memory'), ('iter', 'local'), ('iter', 's3'))
    """
    number, row = divmod(turn, len(TURNS))
    facade, stores = list(TURNS.items())[row]
    return facade, stores[number % len(stores)]


def is_selected(
    facade: str | None, store: str | None, turn: int, *, all_facades: bool = False, all_stores: bool = False
) -> bool:
    """Whether a case runs with a façade and a store (None: it has no such parameter).

    >>> [is_selected("iter", store, turn=7) for store in ("memory", "local", "s3")]
    [False, True, False]
    >>> is_selected("iter", None, turn=7), is_selected(None, "s3", turn=7), is_selected(None, "s3", turn=5)
    (True, False, True)
    >>> is_selected("eager", SLOW_STORE, turn=5), is_selected("eager", SLOW_STORE, turn=4)
    (True, False)
    """
    pairs = [(DEFAULT_FACADE, DEFAULT_STORE), pair_of_turn(turn)]
    if facade is None:
        pairs.append((DEFAULT_FACADE, SECOND_STORE))
    if (DEFAULT_FACADE, "s3") in pairs:
        pairs.append((DEFAULT_FACADE, SLOW_STORE))
    return any(
        (all_facades or (facade or DEFAULT_FACADE) == pair[0]) and (all_stores or store in (None, pair[1]))
        for pair in pairs
    )


def turn_of(item: pytest.Function) -> int:
    """Turn of a case: the position of its test in the module plus the positions of its own parameters."""
    params = item.callspec.params
    own = 0
    for names, rows in _own_parameters(item):
        values = [params.get(name) for name in names]
        same = (i for i, row in enumerate(rows) if all(map(operator.is_, row, values)))
        own += next(same, 0)
    return _positions(item.module).get(item.originalname, 0) + own


def turns_of(metafunc: pytest.Metafunc) -> range:
    """Turns that the cases of a test can have."""
    first = _positions(metafunc.module).get(metafunc.function.__name__, 0)
    return range(first, first + 1 + sum(len(rows) - 1 for _, rows in _own_parameters(metafunc.definition)))


def _own_parameters(item: pytest.Function) -> Iterator[tuple[list[str], list[Sequence[Any]]]]:
    for mark in item.iter_markers("parametrize"):
        names, rows = mark.args[:2]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        rows = [row.values if isinstance(row, _PARAM) else row if names[1:] else [row] for row in rows]
        yield names, rows


@lru_cache
def _positions(module: ModuleType) -> dict[str, int]:
    """Test functions of a module by name, numbered from the top."""
    names = [name for name in vars(module) if name.startswith("test")]
    return {name: position for position, name in enumerate(names)}
