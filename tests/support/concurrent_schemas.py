"""Changes of the schema of a cube that are interleaved with reads and other writes, and what may come out."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from kartothek_cube.api import cube as api
from kartothek_cube.core.errors import ConcurrentWriteError, MissingFileError
from tests.support.concurrent_cubes import CUBE, Operation, Pair, Refused, expected, is_open
from tests.support.interleave import LostAnswer, ModelStore, Run, World

#: columns of payload that exist, and those that were dropped or renamed; rows: dimension and payload but null
State = tuple[frozenset[str], frozenset[str], frozenset[tuple[int, frozenset[tuple[str, int]]]]]


def _frame(x: int, **payload: int) -> pd.DataFrame:
    return pd.DataFrame({"x": [x], "p": [x % 2], **{name: [value] for name, value in payload.items()}})


def _require(condition: bool) -> None:
    if not condition:
        raise Refused


def _map_rows(state: State, change: Callable[[dict[str, int]], dict[str, int]]) -> Any:
    return frozenset((x, frozenset(change(dict(payload)).items())) for x, payload in state[2])


def _add(state: State, name: str, default: int | None) -> State:
    _require(name not in state[0] | state[1])
    if default is None:
        return state[0] | {name}, *state[1:]
    return state[0] | {name}, state[1], _map_rows(state, lambda row: {**row, name: default})


def _drop(state: State, name: str) -> State:
    _require(name in state[0])
    rows = _map_rows(state, lambda row: {n: v for n, v in row.items() if n != name})
    return state[0] - {name}, state[1] | {name}, rows


def _rename(state: State, name: str, new: str) -> State:
    _require(name in state[0] and new not in state[0] | state[1])
    rows = _map_rows(state, lambda row: {new if n == name else n: v for n, v in row.items()})
    return (state[0] - {name}) | {new}, state[1] | {name}, rows


def _with_default(columns: frozenset[str], payload: dict[str, int]) -> dict[str, int]:
    """The row of a file that lacks a column: s has a default."""
    return {"s": 7, **payload} if "s" in columns else payload


def _append(state: State, x: int, *, merge: bool, **payload: int) -> State:
    _require(payload.keys() == state[0] if not merge else state[1].isdisjoint(payload))
    payload = _with_default(state[0], payload)
    others = frozenset((cell, row) for cell, row in state[2] if cell != x)
    return state[0].union(payload), state[1], others | {(x, frozenset(payload.items()))}


def _update(state: State) -> State:
    _require(state[0] == {"v"})
    return (*state[:2], frozenset(r for r in state[2] if r[0] % 2) | {(0, frozenset({("v", 5)}))})


def _merge(store: Any, x: int, **payload: int) -> None:
    api.append_to_cube(_frame(x, **payload), CUBE, store, schema_mode="merge")


def _add_with_default(store: Any) -> None:
    api.update_schema(CUBE, store, add={"s": "int64"}, defaults={"s": 7})


OPERATIONS: dict[str, tuple[Operation, Callable[[State], State]]] = {
    "add s": (_add_with_default, lambda state: _add(state, "s", 7)),
    "add u": (lambda s: api.update_schema(CUBE, s, add={"u": "int64"}), lambda state: _add(state, "u", None)),
    "drop v": (lambda s: api.update_schema(CUBE, s, drop="v"), lambda state: _drop(state, "v")),
    "rename v": (lambda s: api.update_schema(CUBE, s, rename={"v": "r"}), lambda s: _rename(s, "v", "r")),
    "append": (
        lambda s: api.append_to_cube(_frame(4, v=4), CUBE, s),
        lambda state: _append(state, 4, merge=False, v=4),
    ),
    "merge t": (lambda s: _merge(s, 6, v=6, t=6), lambda state: _append(state, 6, merge=True, v=6, t=6)),
    "merge w": (lambda s: _merge(s, 8, w=8), lambda state: _append(state, 8, merge=True, w=8)),
    "update": (lambda s: api.update_cube(_frame(0, v=5), CUBE, s, api.C("p") == 0, ["seed"]), _update),
    "compact": (lambda s: api.compact_cube(CUBE, s, min_files=1), lambda state: state),
    "cleanup": (lambda s: api.cleanup_cube(CUBE, s), lambda state: state),
    "query": (lambda s: s.world.observed.append(observe(s)), lambda state: state),
}

#: what changes may raise: they met each other, or do not fit the schema any more
_REFUSALS = (ConcurrentWriteError, ValueError)


def observe(store: Any) -> Any:
    [df] = api.query_cube(CUBE, store)
    columns = [name for name in df.columns if name not in ("x", "p")]
    rows = [(row, [n for n in columns if not pd.isna(row[n])]) for row in df.to_dict("records")]
    return frozenset(columns), frozenset(
        (int(r["x"]), frozenset((n, int(r[n])) for n in ns)) for r, ns in rows
    )


def _visible(state: State) -> Any:
    return state[0], state[2]


def check(world: World, start: State, names: tuple[str, ...], run: Run) -> None:
    """Queries never fail; the cube is what a serial order gives, and remains readable and writable."""
    world.scheduler = None
    store = ModelStore(world)
    for name, outcome in zip(names, run.outcomes, strict=True):
        refusals = (LostAnswer,) if name == "query" else (LostAnswer, *_REFUSALS)
        if "cleanup" in names:
            # without a retention it deletes files of states that others still read
            refusals = (*refusals, MissingFileError)
        error = outcome.error
        assert outcome.acknowledged or is_open(error) or isinstance(error, refusals), f"{name}: {error!r}"
    allowed = set(map(_visible, expected(start, names, run, operations=OPERATIONS)))
    found = observe(store)
    assert found in allowed, f"{found} is none of {allowed}: {[o.error for o in run.outcomes]}"
    possible = map(_visible, {start, *expected(start, names, run, certain=(), operations=OPERATIONS)})
    assert set(world.observed) <= set(possible), f"a query saw {world.observed}"
    problems = {problem.kind for problem in api.verify_cube(CUBE, store).problems}
    assert not problems or (problems == {"schema-pending"} and any(c.fault for c in run.choices)), problems
    api.cleanup_cube(CUBE, store)
    api.compact_cube(CUBE, store, min_files=1)
    _merge(store, 10, y=10)
    columns, rows = found
    added = _with_default(columns, {"y": 10})
    assert observe(store) == (columns | {"y"}, rows | {(10, frozenset(added.items()))})
    report = api.verify_cube(CUBE, store)
    assert report.ok, report


def _cube(store: Any) -> State:
    api.build_cube(pd.concat([_frame(0, v=0), _frame(1, v=1)]), CUBE, store)
    return _visible_state({"v"}, {0: {"v": 0}, 1: {"v": 1}})


def _evolved(store: Any) -> State:
    """Files in which a column is missing, and one that is no column any more."""
    api.build_cube(pd.concat([_frame(0, v=0, d=0), _frame(1, v=1, d=1)]), CUBE, store)
    api.update_schema(CUBE, store, drop="d")
    _merge(store, 2, w=2)
    state = _visible_state({"v", "w"}, {0: {"v": 0}, 1: {"v": 1}, 2: {"w": 2}})
    return state[0], frozenset({"d"}), state[2]


def _visible_state(columns: set[str], rows: dict[int, dict[str, int]]) -> State:
    cells = frozenset((x, frozenset(payload.items())) for x, payload in rows.items())
    return frozenset(columns), frozenset(), cells


class SchemaChanges(Pair):
    """Changes of a schema with other operations."""

    operations = OPERATIONS
    starts = {"cube": _cube, "evolved": _evolved}
    check = staticmethod(check)
