"""Operations on a small cube that are interleaved, and what may come out of two of them."""

import datetime
import itertools
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest import mock

import pandas as pd

from kartothek_cube.api import cube as api
from kartothek_cube.api.dataset import read_table
from kartothek_cube.core.dataset_files import referenced_keys, schema_keys
from kartothek_cube.core.errors import (
    ConcurrentWriteError,
    CubeNotFoundError,
    PublicationWarning,
    UnknownOutcomeError,
)
from kartothek_cube.core.history import KEEP_HISTORY
from kartothek_cube.core.naming import PUBLISH, header_keys
from kartothek_cube.core.pruning import STATISTICS
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager_cube import update_schema
from kartothek_cube.io_components.maintenance.garbage import history_keys
from kartothek_cube.io_components.publication.delta_log import list_log, log_folder, published_keys
from tests.support.interleave import Crash, ModelStore, Run, Scheduler, World, current

CUBE = api.Cube(["x"], ["p"], "c")
#: content of a cube: rows of the seed and of a second dataset, by dimension; None if it does not exist
State = tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]] | None] | None
Operation = Callable[[Any], Any]


#: the partition of even cells
EVEN = api.C("p") == 0


def seed(rows: dict[int, int], payload: str = "v") -> pd.DataFrame:
    return pd.DataFrame({"x": list(rows), "p": [x % 2 for x in rows], payload: list(rows.values())})


def extra(rows: dict[int, int]) -> pd.DataFrame:
    return seed(rows, "w")


def both(rows: dict[int, int]) -> dict[str, pd.DataFrame]:
    return {"seed": seed(rows), "extra": extra(rows)}


OLD, NEW, MORE, LATER = {0: 0, 1: 0}, {0: 1, 2: 1}, {4: 2}, {0: 3}


def _without_even(rows: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    return frozenset((x, v) for x, v in rows if x % 2)


def _without_cell_0(state: Any) -> State:
    """The rows of a cell of the seed are deleted from both datasets; others stay."""
    deleted = {0} & {x for x, _ in _needs(state)[0]}
    seed, second = (rows and frozenset((x, v) for x, v in rows if x not in deleted) for rows in state)
    return seed, second


def _written(rows: frozenset[tuple[int, int]], new: dict[int, int]) -> frozenset[tuple[int, int]]:
    return frozenset({**dict(rows), **new}.items())


def _updated(rows: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    return _written(_without_even(rows), {0: 5})


class Refused(Exception):
    """An operation that does not fit a state."""


def _needs(state: Any) -> Any:
    if state is None:
        raise Refused
    return state


def _absent(state: State) -> None:
    if state is not None:
        raise Refused


def _built(state: State, rows: dict[int, int], second: dict[int, int] | None = None) -> State:
    return frozenset(rows.items()), None if second is None else frozenset(second.items())


def _overwritten(state: State) -> State:
    """A dataset is replaced; that there is no other one is only checked when the operation is planned."""
    return frozenset(NEW.items()), None if state is None else state[1]


def _new(rows: dict[int, int], second: dict[int, int] | None = None) -> Callable[[State], State]:
    return lambda state: (_absent(state), _built(state, rows, second))[1]


def _on_seed(change: Callable[[Any], Any]) -> Callable[[State], State]:
    return lambda state: (change(_needs(state)[0]), state[1])


def _remove_and_clean(store: Any) -> None:
    api.remove_partitions(CUBE, store, EVEN, ["seed"])
    # the partition is removed, whatever becomes of the cleanup
    with suppress(Exception):
        api.cleanup_cube(CUBE, store)


def _copy(store: Any, *, overwrite: bool, data: Any = None) -> None:
    source = ModelStore(World("memory"))
    api.build_cube(seed(NEW) if data is None else data, CUBE, source)
    api.copy_cube(CUBE, source, store, overwrite)


def _copy_extended(store: Any) -> None:
    """Copy a cube whose seed does not name the operations of all datasets."""
    source = ModelStore(World("memory"))
    api.build_cube(seed(NEW), CUBE, source)
    api.extend_cube({"extra": extra(NEW)}, CUBE, source)
    api.copy_cube(CUBE, source, store)


def _extended(state: State) -> State:
    rows, second = _needs(state)
    if second is not None:
        raise Refused
    return rows, frozenset(NEW.items())


CONTRACT = [api.InRange("v", 0, 50), api.RowCount(1, 2)]
#: name to operation, and to its effect on the content
OPERATIONS: dict[str, tuple[Operation, Callable[[State], State]]] = {
    "build": (lambda s: api.build_cube(seed(NEW), CUBE, s), _new(NEW)),
    "build two": (lambda s: api.build_cube(both(NEW), CUBE, s), _new(NEW, NEW)),
    "overwrite": (lambda s: api.build_cube(seed(NEW), CUBE, s, overwrite=True), _overwritten),
    "append": (lambda s: api.append_to_cube(seed(MORE), CUBE, s), _on_seed(lambda r: _written(r, MORE))),
    "append other": (
        lambda s: api.append_to_cube(seed(LATER), CUBE, s),
        _on_seed(lambda r: _written(r, LATER)),
    ),
    "update": (lambda s: api.update_cube(seed({0: 5}), CUBE, s, EVEN, ["seed"]), _on_seed(_updated)),
    "remove": (lambda s: api.remove_partitions(CUBE, s, EVEN, ["seed"]), _on_seed(_without_even)),
    "delete rows": (lambda s: api.delete_rows(CUBE, s, api.C("x") == 0), _without_cell_0),
    "extend": (lambda s: api.extend_cube({"extra": extra(NEW)}, CUBE, s), _extended),
    # the same column in other datasets
    "extend other": (lambda s: api.extend_cube({"other": extra(NEW)}, CUBE, s), _extended),
    "extend two": (
        lambda s: api.extend_cube({"other": extra(NEW), "more": seed(NEW, "z")}, CUBE, s),
        _extended,
    ),
    "add column": (
        lambda s: update_schema(CUBE, s, add={"w": "int64"}),
        lambda state: (_extended(state)[0], frozenset()),
    ),
    "compact": (lambda s: api.compact_cube(CUBE, s), _needs),
    "compute": (
        lambda s: api.compute_dataset(lambda df: df[["x", "p"]].assign(w=df["v"]), CUBE, s, "extra"),
        lambda state: (_needs(state)[0], _needs(state)[0]),
    ),
    "cleanup": (lambda s: api.cleanup_cube(CUBE, s), lambda state: state),
    "delete": (lambda s: api.delete_cube(CUBE, s), lambda state: None),
    "copy": (partial(_copy, overwrite=False), _new(NEW)),
    "copy two": (partial(_copy, overwrite=False, data=both(NEW)), _new(NEW, NEW)),
    "copy extended": (_copy_extended, _new(NEW, NEW)),
    "copy over": (partial(_copy, overwrite=True), _overwritten),
    "copy two over": (partial(_copy, overwrite=True, data=both(NEW)), lambda state: _built(state, NEW, NEW)),
    "rollback": (
        lambda s: api.rollback_cube(CUBE, s, {"seed": 1}),
        _on_seed(lambda r: frozenset(OLD.items())),
    ),
    "keep history": (lambda s: api.keep_cube_history(CUBE, s, 5), _needs),
    "repair": (lambda s: api.repair_cube(CUBE, s), _needs),
    "publish": (lambda s: api.publish_cube(CUBE, s), _needs),
    "unpublish": (lambda s: api.unpublish_cube(CUBE, s), _needs),
    "remove and clean": (_remove_and_clean, _on_seed(_without_even)),
}


def _on_both(change: Callable[[Any], Any]) -> Callable[[State], State]:
    return lambda state: (change(_needs(state)[0]), change(_needs(state[1])))


#: of two datasets at once, and what a query sees meanwhile
OPERATIONS |= {
    "append both": (lambda s: api.append_to_cube(both(MORE), CUBE, s), _on_both(lambda r: _written(r, MORE))),
    "update both": (
        lambda s: api.update_cube(both({0: 5}), CUBE, s, EVEN, ["seed", "extra"]),
        _on_both(_updated),
    ),
    "remove both": (lambda s: api.remove_partitions(CUBE, s, EVEN), _on_both(_without_even)),
    "overwrite both": (
        lambda s: api.build_cube(both(NEW), CUBE, s, overwrite=True),
        lambda state: _built(state, NEW, NEW),
    ),
    "rollback both": (lambda s: api.rollback_cube(CUBE, s, 2), lambda state: _built(_needs(state), OLD, OLD)),
    "rollback before extra": (lambda s: api.rollback_cube(CUBE, s, 1), lambda s: _built(_needs(s), OLD)),
    "append extra": (
        lambda s: api.append_to_cube({"extra": extra(LATER)}, CUBE, s),
        lambda state: (_needs(state)[0], _written(_needs(state[1]), LATER)),
    ),
    "delete extra": (
        lambda s: api.delete_cube(CUBE, s, {"extra"}),
        lambda state: None if state is None else (state[0], None),
    ),
    "query": (lambda s: s.world.observed.append(observe(s)), lambda state: state),
    "read pinned": (lambda s: _read_pinned(s), lambda state: state),
    # rows that break a contract are a problem of the verification at the end
    "set contract": (lambda s: api.set_contract(CUBE, s, "seed", CONTRACT), _needs),
    **{
        f"append {x}": (
            lambda s, x=x, v=v: api.append_to_cube(seed({x: v}), CUBE, s),
            _on_seed(lambda r, x=x, v=v: _written(r, {x: v})),
        )
        for x, v in ((3, 3), (5, 5), (7, 99))
    },
    "build statistics": (lambda s: api.build_column_statistics(CUBE, s, ["x", "v"]), _needs),
    "query by statistics": (lambda s: s.world.observed.append(_query_by_statistics(s)), lambda state: state),
}


def _joined(state: State) -> State:
    """What a query sees of a state: cells of the seed only; without any, no columns."""
    if state is None or state[1] is None:
        return state
    if not state[0]:
        return state[0], None
    cells = {x for x, _ in state[0]}
    return state[0], frozenset((x, w) for x, w in state[1] if x in cells)


def _query_by_statistics(store: Any) -> State:
    token = api.list_cube_changes(CUBE, store).token
    parts = [observe(store, conditions=api.C("v") == value, as_of=token) for value in range(6)]
    return frozenset().union(*(part[0] for part in parts if part is not None)), None


def _read_pinned(store: Any) -> None:
    """Pin a state and read it twice, which nothing but a deletion of the cube may prevent."""
    pin = api.pin_cube(CUBE, store)
    try:
        first, second = (observe(store, as_of=pin.token) for _ in range(2))
    except (KeyError, ValueError) as error:
        raise AssertionError(f"a pinned state cannot be read: {error}") from error
    assert first == second
    store.world.observed.append(first)
    pin.release()


def observe(store: Any, **arguments: Any) -> State:
    if not api.discover_datasets_unchecked("c", store):
        return None
    try:
        frames = api.query_cube(CUBE, store, **arguments)
    except ValueError as error:
        if "Seed dataset" in str(error):
            return None
        raise
    df = frames[0] if frames else pd.DataFrame({"x": [], "v": []})
    rows = frozenset(zip(df["x"].astype(int), df["v"].astype(int), strict=True))
    if "w" not in df:
        return rows, None
    df = df.dropna()
    return rows, frozenset(zip(df["x"].astype(int), df["w"].astype(int), strict=True))


#: the staged write of a start
_STAGED: dict[str, Any] = {}


def _publish_staged(store: Any) -> None:
    api.publish_staged(_STAGED["write"], store)


def _publish_and_remove(store: Any) -> None:
    _publish_staged(store)
    while True:
        with suppress(ConcurrentWriteError):
            return OPERATIONS["remove both"][0](store)


def _read_staged(store: Any) -> None:
    """Read a staged append, which is there as a whole; below it is a state of the cube."""
    with suppress(ConcurrentWriteError, KeyError, CubeNotFoundError):
        rows, second = observe(store, as_of=_STAGED["write"])
        assert (4, 2) in rows and (4, 2) in second
        store.world.observed.append((rows - {(4, 2)}, second - {(4, 2)}))


def _discarded(state: State) -> State:
    if state is not None and (4, 2) in state[0]:
        raise Refused
    return state


def _build_published(state: State) -> State:
    if state not in (None, _built(None, NEW, NEW)):
        raise Refused
    return _built(None, NEW, NEW)


OPERATIONS |= {
    "publish staged": (_publish_staged, OPERATIONS["append both"][1]),
    # no effect: the write is published, and its rows are removed
    "publish again": (_publish_staged, lambda state: state),
    "publish and remove": (_publish_and_remove, _on_both(lambda r: _without_even(_written(r, MORE)))),
    "publish build": (_publish_staged, _build_published),
    "publish extend": (_publish_staged, lambda state: (_needs(state)[0], frozenset(NEW.items()))),
    "read staged": (_read_staged, lambda state: state),
    "discard staged": (lambda s: api.discard_staged(_STAGED["write"], s), _discarded),
}


#: where operations start: nothing, a cube, one with garbage and history, one of which a writer died
def _nothing(store: Any) -> State:
    return None


def _cube(store: Any) -> State:
    api.build_cube(seed(OLD), CUBE, store)
    return _built(None, OLD)


def _past(store: Any) -> State:
    """A cube with older states, files in several versions, and garbage."""
    api.build_cube(seed(OLD), CUBE, store, metadata={"seed": {KEEP_HISTORY: 1}})
    api.append_to_cube(seed(LATER), CUBE, store)
    store.world.put("c++seed/table/p=0/0000000000000000000000000000dead.parquet", b"PAR1")
    return _built(None, {**OLD, **LATER})


def _two(store: Any) -> State:
    """A cube of two datasets, of which both were written at once and one alone."""
    api.build_cube(both(OLD), CUBE, store)
    api.append_to_cube(both(LATER), CUBE, store)
    api.append_to_cube({"extra": extra({1: 7})}, CUBE, store)
    return _built(None, {**OLD, **LATER}, {**OLD, **LATER, 1: 7})


def _extended_cube(store: Any) -> State:
    """A cube that was extended, so that its first state has one dataset."""
    api.build_cube(seed(OLD), CUBE, store)
    api.extend_cube({"extra": extra(OLD)}, CUBE, store)
    return _built(None, OLD, OLD)


def _hidden(store: Any) -> State:
    """A cube of which a rollback has hidden a dataset."""
    _extended_cube(store)
    api.rollback_cube(CUBE, store, 1)
    return _built(None, OLD)


def _published(store: Any) -> State:
    """A cube with a table that shows an older state, and a file that only that table needs."""
    api.build_cube(seed(OLD), CUBE, store)
    api.publish_cube(CUBE, store)
    api.remove_partitions(CUBE, store, api.C("p") == 1)
    api.append_to_cube(seed({6: 6}), CUBE, store)
    return _built(None, {0: 0, 6: 6})


def _publishing(store: Any) -> State:
    api.build_cube(seed(OLD), CUBE, store)
    api.publish_cube(CUBE, store, on_commit=True)
    return _built(None, OLD)


def _leftover(store: Any) -> State:
    """Files and schema of a cube that was deleted by its header only."""
    api.build_cube(seed(OLD), CUBE, store)
    for key in header_keys("c++seed"):
        store.world.blobs.pop(key, None)
    return None


def _statistics(store: Any) -> State:
    """A cube with column statistics, of which one file is unused."""
    api.build_cube(seed(OLD), CUBE, store, metadata={"seed": {STATISTICS: ["v"]}})
    api.append_to_cube(seed(LATER), CUBE, store)
    return _built(None, {**OLD, **LATER})


def _computed(store: Any) -> State:
    """A cube of which a dataset was computed, and changed since."""
    api.build_cube(seed(OLD), CUBE, store)
    OPERATIONS["compute"][0](store)
    api.append_to_cube(seed(LATER), CUBE, store)
    return _built(None, {**OLD, **LATER}, OLD)


def _staged(store: Any) -> State:
    state = _extended_cube(store)
    _STAGED["write"] = api.append_to_cube(both(MORE), CUBE, store, publish=False)
    return state


def _staged_build(store: Any) -> State:
    _STAGED["write"] = api.build_cube(both(NEW), CUBE, store, publish=False)
    return None


def _staged_extend(store: Any) -> State:
    state = _cube(store)
    _STAGED["write"] = api.extend_cube({"extra": extra(NEW)}, CUBE, store, publish=False)
    return state


def _contracted(store: Any) -> State:
    """A cube with a contract that allows one more row in a partition."""
    api.build_cube(seed(OLD), CUBE, store)
    OPERATIONS["set contract"][0](store)
    return _built(None, OLD)


STARTS: dict[str, Callable[[Any], State]] = {
    "nothing": _nothing,
    "cube": _cube,
    "past": _past,
    "leftover": _leftover,
    "two": _two,
    "extended": _extended_cube,
    "hidden": _hidden,
    "computed": _computed,
    "columns": _cube,
    "contracted": _contracted,
    "statistics": _statistics,
    "pinned": _past,
    "published": _published,
    "publishing": _publishing,
    "staged": _staged,
    "staged build": _staged_build,
    "staged extend": _staged_extend,
}

#: what may break a contract, or set one
_OF_CONTRACTS = ("append 3", "append 5", "append 7", "set contract")
#: what adds a column of the same name
_OF_COLUMNS = ("extend other", "extend two", "add column")
#: start -> operations that are interleaved with each other
_NAMED = {
    "two": (
        *("append both", "update both", "remove both", "overwrite both", "append", "append extra"),
        *("rollback both", "compact", "delete rows", "cleanup", "delete", "delete extra", "repair", "query"),
    ),
    # the cube had a state without the second dataset
    "extended": (
        *("rollback before extra", "append both", "append extra", "cleanup", "delete", "delete extra"),
        "query",
    ),
    # and that is hidden
    "hidden": ("extend", "append", "cleanup", "delete", "query"),
    # a cleanup leaves no state from which a computation could go on
    "computed": ("compute", "append", "append both", "compact", "query"),
    # what does not delete the cube
    "pinned": ("read pinned", "append", "update", "remove", "compact", "cleanup", "remove and clean"),
    "staged": (
        *("publish staged", "discard staged", "read staged", "append both", "update both", "remove both"),
        *("compact", "delete rows", "cleanup", "delete", "query"),
    ),
    "staged build": ("publish build", "discard staged", "build", "copy two", "cleanup", "query"),
    "staged extend": ("publish extend", "discard staged", "extend", "append", "cleanup", "delete", "query"),
    # what changes column statistics, or the files that they are about
    "statistics": (
        *("build statistics", "query by statistics", "append", "update", "remove", "compact", "cleanup"),
        "remove and clean",
    ),
    "contracted": (*_OF_CONTRACTS, "compact", "update", "cleanup"),
    "columns": (*_OF_COLUMNS, "extend", "append", "cleanup", "delete", "query"),
}


def applies(name: str, start: str) -> bool:
    """Whether an operation has something to do from there, which leaves out pairs of refusals."""
    if start in _NAMED:
        return name in _NAMED[start]
    if name in ("read pinned", "build statistics", "query by statistics", *_OF_CONTRACTS, *_OF_COLUMNS):
        return False
    if "staged" in name or name.startswith("publish "):
        return False
    on_one = ("append", "compact", "delete rows", "cleanup", "delete", "repair")
    if name in (*_NAMED["two"], "rollback before extra") and name not in on_one:
        return name == "query" and start == "nothing"
    if start in ("publishing", "published"):
        more = ("update", "remove") if start == "publishing" else ("compact", "remove and clean")
        return name in ("publish", "unpublish", "append", "overwrite", "cleanup", "delete", *more)
    if name in ("remove and clean", "unpublish"):
        return False
    if start in ("nothing", "leftover"):
        needing = ("publish", "rollback", "keep history", "repair", "compact", "compute", "delete rows")
        return name not in (*needing, "update", "remove", "extend")
    if name == "rollback":
        return start == "past"
    return name not in ("build", "build two", "copy", "copy two", "copy extended")


# determinism ------------------------------------------------------------------------------------------------


class _OneThread(ThreadPoolExecutor):
    """Requests one by one, by a thread of the same operation."""

    def __init__(self, max_workers: int, name: str) -> None:
        super().__init__(1, name, setattr, (current, "operation", current.operation))


@contextmanager
def deterministic(first: int = 200_000) -> Iterator[None]:
    """Names and times that only depend on the schedule; no waiting; requests of an operation one by one."""
    start = datetime.datetime(2030, 1, 1)
    # numbers that do not depend on the other operations
    ids = {number: itertools.count(first + number * 100_000) for number in range(-1, 3)}
    ticks = {number: itertools.count(first + number * 100_000) for number in range(-1, 3)}

    def now() -> datetime.datetime:
        return start + datetime.timedelta(milliseconds=next(ticks[current.operation]))

    def new_id() -> uuid.UUID:
        # names of files begin with the first half, and versions end with the second
        return uuid.UUID(int=next(ids[current.operation]) * ((1 << 64) + 1))

    with (
        mock.patch("kartothek_cube.core.uuid._uuid_hook_object", new_id),
        mock.patch("kartothek_cube.core.clock.datetime_utcnow", now),
        # not time.sleep: threads of other libraries would spin without a pause
        mock.patch("kartothek_cube.core.clock.sleep"),
        # operations have the same ids in all runs; and a look at a pending one is like another one
        mock.patch("kartothek_cube.core.commit.operation.remember_committed"),
        mock.patch("kartothek_cube.core.commit.operation._LOOKS", 1),
        mock.patch("kartothek_cube.io_components.runtime.ThreadPoolExecutor", _OneThread),
        warnings.catch_warnings(),
    ):
        # the store fails after a commit, or the dataset is deleted
        warnings.simplefilter("ignore", PublicationWarning)
        yield


# the oracle -------------------------------------------------------------------------------------------------


def content(store: Any) -> State:
    """What a cube holds; None if it does not exist."""
    datasets = api.discover_datasets_unchecked("c", store)
    if "seed" not in datasets:
        return None
    [df] = api.query_cube(CUBE, store, datasets=["seed"]) or [pd.DataFrame({"x": [], "v": []})]
    second = None
    owners = [name for name, dataset in datasets.items() if "w" in dataset.schema.names]
    assert len(owners) < 2, owners
    if owners:
        other = read_table(f"c++{owners[0]}", store).dropna()
        # the last version of a cell counts
        second = frozenset(dict(zip(other["x"].astype(int), other["w"].astype(int), strict=True)).items())
    return frozenset(zip(df["x"].astype(int), df["v"].astype(int), strict=True)), second


def expected(
    start: Any,
    names: tuple[str, ...],
    run: Run,
    certain: Sequence[str] | None = None,
    operations: Mapping[str, tuple[Operation, Callable[[Any], Any]]] = OPERATIONS,
) -> set[Any]:
    """The states that some serial order of the acknowledged operations gives; others may have no effect."""
    unknown = [n for n, o in zip(names, run.outcomes, strict=True) if is_open(o.error)]
    if certain is None:
        certain = [n for n, outcome in zip(names, run.outcomes, strict=True) if outcome.acknowledged]
    else:
        unknown = list(names)
    found = set()
    for number in range(len(unknown) + 1):
        for more in itertools.combinations(unknown, number):
            for order in itertools.permutations([*certain, *more]):
                state = start
                try:
                    for name in order:
                        state = operations[name][1](state)
                except Refused:
                    continue
                found.add(state)
    return found


def is_open(error: BaseException | None) -> bool:
    return isinstance(error, Crash | UnknownOutcomeError)


def check(world: World, start: State, names: tuple[str, ...], run: Run) -> None:
    """Nothing that was acknowledged is lost; all is readable; a cleanup finds what is left; writes go on."""
    world.scheduler = None
    store = ModelStore(world)
    for outcome in run.outcomes:
        assert is_open(outcome.error) or isinstance(outcome.error, Exception | None), outcome.error
        assert not isinstance(outcome.error, (AssertionError, AttributeError, NameError)), outcome.error
    acknowledged = {n for n, outcome in zip(names, run.outcomes, strict=True) if outcome.acknowledged}
    published = {"publish staged", "publish build", "publish extend"} & acknowledged
    assert not (published and "discard staged" in acknowledged)
    found = content(store)
    allowed = expected(start, names, run)
    assert found in allowed, f"{found} is none of {allowed}: {[o.error for o in run.outcomes]}"
    for seen in world.observed:
        possible = {_joined(state) for state in {start, *expected(start, names, run, certain=())}}
        assert seen in possible, f"a query saw {seen}, which is none of {possible}"
    crashed = any(is_open(o.error) for o in run.outcomes)
    if found is not None:
        problems = {problem.kind for problem in api.verify_cube(CUBE, store).problems}
        tolerated = {"schema-pending", "unfinished-operation"} if crashed else set()
        publishes = api.discover_datasets_unchecked("c", store)["seed"].metadata.get(PUBLISH) is not None
        if not publishes or any(choice.fault for choice in run.choices):
            # the newest version of a table may show an older state, of which all files exist
            tolerated |= {"publication"}
        if not world.deletes_by_condition:
            # the file at a fixed key may be lost there; the header has the schema, too
            tolerated |= {"missing-schema"}
        assert problems <= tolerated, problems
    _check_table(store)
    api.cleanup_cube(CUBE, store)
    _check_table(store)
    if crashed:
        # one cleanup finishes what another one has begun
        api.cleanup_cube(CUBE, store)
    assert content(store) == found
    left = set(world.blobs) - _tracked(store)
    if any(choice.fault for choice in run.choices):
        # a tombstone of a file that is there again: its collection may only be slow, for a day
        left = {key for key in left if "/_tombstones/" not in key}
    assert not left, left
    if found is None:
        # a dataset that was added to a cube while that was deleted is left, and has no seed
        api.delete_cube(CUBE, store)
        api.build_cube(seed(OLD), CUBE, store)
        found = _built(None, OLD)
    rows = seed({8: 8})
    if "w" in api.discover_datasets_unchecked("c", store)["seed"].schema.names:
        rows["w"] = pd.array([None], "Int64")
    api.append_to_cube(rows, CUBE, store)
    assert content(store) == (_written(found[0], {8: 8}), found[1])
    if list_log(open_blobs(store), "c++seed"):
        api.publish_cube(CUBE, store, "seed", compact=True)
        _check_table(store)
    assert {problem.kind for problem in api.verify_cube(CUBE, store).problems} == set()


def _check_table(store: Any) -> None:
    """The newest version of a published table has all its files; without a dataset, the table is garbage."""
    if "seed" in api.discover_datasets_unchecked("c", store):
        blobs = open_blobs(store)
        missing = {key for key in published_keys(blobs, "c++seed") if not blobs.exists(key)}
        assert not missing, missing


def _tracked(store: Any) -> set[str]:
    blobs = open_blobs(store)
    tracked: set[str] = set()
    for dataset in api.discover_datasets_unchecked("c", store).values():
        tracked |= {*header_keys(dataset.uuid), *referenced_keys(dataset)}
        tracked |= {*schema_keys(dataset, blobs), *history_keys(dataset, blobs)}
        tracked |= {log_folder(dataset.uuid) + name for name in list_log(blobs, dataset.uuid)}
        tracked |= published_keys(blobs, dataset.uuid)
    return tracked


class Pair:
    """Operations from a start, to be played in any schedule."""

    operations = OPERATIONS
    starts = STARTS
    check = staticmethod(check)

    def __init__(self, kind: str, start: str, names: tuple[str, ...]) -> None:
        self.kind, self.names = kind, names
        world = World(kind)
        with deterministic():
            self.start = self.starts[start](ModelStore(world))
        self.blobs = dict(world.blobs)
        #: ends that were checked: the blobs, kinds of outcomes, whether a step failed, what queries saw
        self._checked: set[tuple[Any, ...]] = set()

    def play(self, scheduler: Scheduler) -> Run:
        world = World(self.kind, self.blobs)
        world.scheduler = scheduler
        with deterministic(1_000_000):
            operations = [
                partial(self.operations[name][0], ModelStore(world, i)) for i, name in enumerate(self.names)
            ]
            run = scheduler.play(world, operations)
            if not run.merged:
                self._check(world, run)
        return run

    def _check(self, world: World, run: Run) -> None:
        has_fault = any(choice.fault for choice in run.choices)
        kinds = (type(outcome.error) for outcome in run.outcomes)
        end = (world.digest(), has_fault, *kinds, *map(repr, world.observed))
        if end in self._checked:
            return
        try:
            self.check(world, self.start, self.names, run)
        except Exception as error:
            steps = "\n".join(run.steps)
            raise AssertionError(
                f"{self.kind}: {' and '.join(self.names)}: {type(error).__name__}: {error}\n"
                f"schedule: {run.choices}\n{steps}"
            ) from error
        self._checked.add(end)
