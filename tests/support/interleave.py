"""Exhaustive interleaving of operations: a store in memory in which each request is a step of a scheduler.

Operations run in a thread each, of which only one moves at a time. The scheduler searches the graph of states
depth first by replay (stateful model checking): a state consists of the blobs and of what each operation was
answered so far, of which its memory is a function. In each state every operation may take the next step, also
with a fault; a run that comes to a state that was seen before ends there. A step that commutes with all later
steps of the other operation goes first, without a branch (a persistent set of one step). With a bound, a last
switch before a step is left out if the step commutes with all steps before the operation resumes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simplekv import KeyValueStore

from kartothek_cube.core.store import Blob, BlobStore, PreconditionFailed, register_driver
from kartothek_cube.core.store.blob_store import check_key, check_keys, check_prefix

#: how the stores of a kind tell versions apart, and whether they delete by condition in one request
KINDS = {
    "s3": ("content", True),
    "s3 without conditional deletes": ("content", False),
    "azure": ("unique", True),
    "local": ("unique", True),
    "memory": ("content", True),
}


class Crash(BaseException):
    """The process dies before or after a step."""


class LostAnswer(OSError):
    """The step was taken, or not, and only an error comes back."""


class StrangeError(Exception):
    """The same, by a store that raises no OSError."""


class Abandoned(BaseException):
    """The rest of a run is known from another one."""


class Step(NamedTuple):
    """One request: what it reads or writes, a key or all keys of a prefix."""

    method: str
    key: str

    @property
    def writes(self) -> bool:
        return self.method not in ("get", "head", "list")

    def depends_on(self, other: Step) -> bool:
        """Whether the order of two steps of different operations can matter."""
        if not (self.writes or other.writes):
            return False
        if self.method == "list":
            return other.key.startswith(self.key)
        if other.method == "list":
            return self.key.startswith(other.key)
        return self.key == other.key


class Choice(NamedTuple):
    """Who takes the next step, and what goes wrong with it."""

    operation: int
    fault: type[BaseException] | None = None
    #: whether the step has its effect in spite of the fault
    taken: bool = False


class World:
    """The blobs, and the scheduler."""

    def __init__(self, kind: str, blobs: dict[str, tuple[bytes, Any]] | None = None) -> None:
        self.versions, self.deletes_by_condition = KINDS[kind]
        #: key -> content and version; versions are unique and do not depend on the other operation
        self.blobs = dict(blobs or {})
        self.first = len(self.blobs) * 1000
        self.counters: dict[int, Iterator[int]] = {}
        self.scheduler: Scheduler | None = None
        #: what operations have read
        self.observed: list[Any] = []

    def step(self, operation: int, method: str, key: str, action: Callable[[], Any]) -> Any:
        if self.scheduler is None or operation < 0:
            return action()
        return self.scheduler.take(operation, Step(method, key), action)

    def token(self, key: str) -> Any:
        data, version = self.blobs[key]
        return data if self.versions == "content" else version

    def put(self, key: str, data: bytes, operation: int = -1) -> Any:
        # versions of a start differ from those that come later
        counter = self.counters.setdefault(operation, itertools.count(self.first))
        self.blobs[key] = (bytes(data), (operation + 2) * 1_000_000 + next(counter))
        return self.token(key)

    def digest(self) -> int:
        return hash(frozenset(self.blobs.items()))


class ModelStore(KeyValueStore):
    """What operations get as their store; -1 is an operation outside of the schedule."""

    def __init__(self, world: World, operation: int = -1) -> None:
        self.world, self.operation = world, operation

    def __copy__(self) -> ModelStore:
        return self

    def __deepcopy__(self, memo: Any) -> ModelStore:
        return self

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.world.blobs if key.startswith(prefix))


class ModelBlobs(BlobStore):
    """Each method is one step, but a deletion of several keys, which is one per key, as requests may be."""

    def __init__(self, store: ModelStore) -> None:
        self._store, self._world = store, store.world

    @property
    def store(self) -> KeyValueStore:
        return self._store

    def _step(self, method: str, key: str, action: Callable[[], Any]) -> Any:
        return self._world.step(self._store.operation, method, key, action)

    def _put(self, key: str, content: bytes) -> Any:
        return self._world.put(key, content, self._store.operation)

    def get(self, key: str) -> bytes:
        return self._step("get", check_key(key), lambda: self._world.blobs[key][0])

    def get_with_token(self, key: str) -> tuple[bytes, Any]:
        def action() -> tuple[bytes, Any]:
            return self._world.blobs[key][0], self._world.token(key)

        return self._step("get", check_key(key), action)

    def size(self, key: str) -> int:
        return len(self.get(key))

    def exists(self, key: str) -> bool:
        return self._step("head", check_key(key), lambda: key in self._world.blobs)

    def put(self, key: str, data: Any, *, durable: bool = False) -> None:
        content = bytes(data)
        self._step("put", check_key(key), lambda: self._put(key, content))

    def put_if(self, key: str, data: Any, token: Any) -> Any:
        content = bytes(data)

        def action() -> Any:
            self._compare(key, token)
            return self._put(key, content)

        return self._step("put_if", check_key(key), action)

    def _compare(self, key: str, token: Any) -> None:
        if (self._world.token(key) if key in self._world.blobs else None) != token:
            raise PreconditionFailed(key)

    def delete_if(self, key: str, token: Any) -> None:
        def action() -> None:
            self._compare(key, token)
            del self._world.blobs[key]

        if token is None:
            raise PreconditionFailed(key)
        if self._world.deletes_by_condition:
            self._step("delete_if", check_key(key), action)
            return
        self._step("head", check_key(key), lambda: self._compare(key, token))
        self._step("delete", key, lambda: self._world.blobs.pop(key, None))

    def delete(self, keys: Iterable[str]) -> None:
        for key in check_keys(keys):
            self._step("delete", key, lambda key=key: self._world.blobs.pop(key, None))

    def list_dir(self, prefix: str) -> list[str]:
        def action() -> list[str]:
            found = [key for key in self._world.blobs if key.startswith(prefix)]
            return sorted({key[: (key.find("/", len(prefix)) + 1) or None] for key in found})

        return self._step("list", check_prefix(prefix), action)

    def list(self, prefix: str) -> list[Blob]:
        def action() -> list[Blob]:
            items = self._world.blobs.items()
            return sorted(
                Blob(key, len(data), float(n)) for key, (data, n) in items if key.startswith(prefix)
            )

        return self._step("list", check_prefix(prefix), action)


register_driver(lambda store: isinstance(store, ModelStore), ModelBlobs)


class Pending(NamedTuple):
    """The next step of an operation."""

    step: Step
    #: digest of what the operation was answered so far, of which its further steps are a function
    memory: int


@dataclass
class Outcome:
    """What became of an operation."""

    error: BaseException | None = None

    @property
    def acknowledged(self) -> bool:
        return self.error is None


@dataclass
class Run:
    """A schedule that was played: its choices, the steps, and what became of the operations."""

    choices: list[Choice] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    #: for each choice: what each operation would have done, and what it was answered before
    pending: list[dict[int, Pending]] = field(default_factory=list)
    #: whether the run ended before the operations did, at a state that is known
    merged: bool = False


class Scheduler:
    """Lets one operation take a step at a time: by a schedule, then that of `prefer`, or the last one."""

    def __init__(
        self,
        schedule: tuple[Choice, ...] = (),
        is_known: Callable[[int, Run], bool] = lambda state, run: False,
        prefer: Callable[[dict[int, Pending]], int | None] = lambda pending: None,
    ) -> None:
        self.schedule = schedule
        #: asked in each state behind the schedule: whether the run can end there
        self.is_known = is_known
        self.prefer = prefer
        self.run = Run()
        self._lock = threading.RLock()
        #: an operation stands before a step, has taken it, or has ended
        self._moved = threading.Condition(self._lock)
        #: for each operation: it may take its step, or another of its threads may
        self._turns: list[threading.Condition] = []
        self._waiting: dict[int, Step] = {}
        self._alive: set[int] = set()
        self._dead: set[int] = set()
        self._granted: Choice | None = None
        #: what each operation was answered so far
        self._memory: list[int] = []

    def take(self, me: int, step: Step, action: Callable[[], Any]) -> Any:
        turn = self._turns[me]
        with self._lock:
            # several threads of one operation take turns
            while me in self._waiting:
                turn.wait()
            if me in self._dead:
                # a handler of an error, or another thread
                raise Crash
            self._waiting[me] = step
            self._moved.notify()
            while self._granted is None or self._granted.operation != me:
                if self.run.merged:
                    del self._waiting[me]
                    turn.notify_all()
                    raise Abandoned
                turn.wait()
            choice = self._granted
            fault = choice.fault.__name__ if choice.fault else ""
            self.run.steps.append(f"{me} {step.method} {step.key} {fault}")
            try:
                answer = self._act(choice, step, action)
            except BaseException as error:
                self._remember(me, step, repr(error))
                raise
            else:
                self._remember(me, step, tuple(answer) if isinstance(answer, list) else answer)
                return answer
            finally:
                self._granted = None
                del self._waiting[me]
                self._moved.notify()
                turn.notify_all()

    def _act(self, choice: Choice, step: Step, action: Callable[[], Any]) -> Any:
        if choice.fault is None:
            return action()
        if choice.taken:
            action()
        if choice.fault is Crash:
            self._dead.add(choice.operation)
        raise choice.fault(f"{step.method} {step.key}")

    def _remember(self, me: int, step: Step, answer: Any) -> None:
        self._memory[me] = hash((self._memory[me], step, answer))

    def play(self, world: World, operations: list[Callable[[], Any]]) -> Run:
        self.run.outcomes = [Outcome() for _ in operations]
        self._memory = [0] * len(operations)
        self._alive = set(range(len(operations)))
        self._turns = [threading.Condition(self._lock) for _ in operations]
        threads = [
            threading.Thread(target=self._operate, args=(number, operation), daemon=True)
            for number, operation in enumerate(operations)
        ]
        for thread in threads:
            thread.start()
        self._schedule(world)
        for thread in threads:
            thread.join()
        return self.run

    def _operate(self, number: int, operation: Callable[[], Any]) -> None:
        current.operation = number
        try:
            operation()
        except BaseException as error:
            self.run.outcomes[number].error = error
        with self._lock:
            self._alive.discard(number)
            self._moved.notify()

    def _schedule(self, world: World) -> None:
        last = 0
        with self._lock:
            while True:
                # every operation stands before a step, or has ended
                while self._granted is not None or self._alive - self._waiting.keys():
                    self._moved.wait()
                if not self._alive:
                    return
                position = len(self.run.choices)
                pending = {n: Pending(self._waiting[n], self._memory[n]) for n in sorted(self._alive)}
                if position < len(self.schedule):
                    choice = self.schedule[position]
                elif self.is_known(hash((world.digest(), *self._memory, *pending)), self.run):
                    self.run.merged = True
                    self.run.pending.append(pending)
                    for turn in self._turns:
                        turn.notify_all()
                    return
                else:
                    first = self.prefer(pending)
                    choice = Choice(first if first is not None else last if last in pending else min(pending))
                self.run.pending.append(pending)
                last = choice.operation
                self.run.choices.append(choice)
                self._granted = choice
                self._turns[choice.operation].notify_all()


class _Current(threading.local):
    """The operation that a thread belongs to."""

    operation = -1


current = _Current()


def explore(
    play: Callable[[Scheduler], Run],
    *,
    limit: int | None = None,
    bound: int | None = None,
    faults: tuple[type[BaseException], ...] = (),
) -> Iterator[Run]:
    """Runs that reach all states of some operations, each with a fault at most, which has its effect or not.

    ``bound`` is how often a schedule may switch between operations before one has ended.
    """
    search = _Search(bound, faults)
    count = 0
    while search.schedules and (limit is None or count < limit):
        schedule = search.schedules.pop()
        if search.is_redundant(schedule):
            continue
        run = play(Scheduler(schedule, search.is_known, search.prefer if bound is None else lambda _: None))
        count += 1
        yield run
        search.branch(run, len(schedule))


class _Search:
    """The states that are known, and the schedules that lead to others."""

    def __init__(self, bound: int | None, faults: tuple[type[BaseException], ...]) -> None:
        self.bound, self.faults = bound, faults
        self.schedules: list[tuple[Choice, ...]] = [()]
        self._known: set[tuple[Any, ...]] = set()
        #: steps that an operation takes behind a memory
        self._footprints: dict[tuple[int, int], set[Step]] = {}
        #: memories that lead to a memory
        self._parents: dict[tuple[int, int], set[tuple[int, int]]] = {}
        #: steps that follow a switch until the operation resumes, by the choices up to the switch
        self._interposed: dict[tuple[Choice, ...], list[Step]] = {}
        #: the step that a schedule interrupts by its last choice
        self._interrupted: dict[tuple[Choice, ...], tuple[Choice, Step]] = {}
        #: branches left out as long as nothing behind a memory depends on a step of the other operation
        self._left_out: dict[tuple[int, int], list[tuple[Step, tuple[Choice, ...]]]] = {}

    def is_known(self, state: int, run: Run) -> bool:
        key: tuple[Any, ...] = (state, any(choice.fault for choice in run.choices))
        if self.bound is not None:
            key = (*key, _switches(run.choices), run.choices[-1].operation if run.choices else None)
        known = key in self._known
        self._known.add(key)
        return known

    def prefer(self, pending: dict[int, Pending]) -> int | None:
        """An operation whose step commutes with all that the others do."""
        if len(pending) > 1:
            for operation, (step, memory) in pending.items():
                self._extend_footprint((operation, memory), step)
            for operation in pending:
                if self._commutes(operation, pending):
                    return operation
        return None

    def _commutes(self, operation: int, pending: dict[int, Pending]) -> bool:
        step = pending[operation].step
        return not any(
            step.depends_on(later)
            for other, (_, memory) in pending.items()
            if other != operation
            for later in self._footprints.get((other, memory), ())
        )

    def _extend_footprint(self, memory: tuple[int, int], step: Step) -> None:
        memories = [memory]
        while memories:
            memory = memories.pop()
            footprint = self._footprints.setdefault(memory, set())
            if step in footprint:
                continue
            footprint.add(step)
            left_out = self._left_out.get(memory, [])
            self.schedules += [schedule for other, schedule in left_out if other.depends_on(step)]
            self._left_out[memory] = [entry for entry in left_out if not entry[0].depends_on(step)]
            memories += self._parents.get(memory, ())

    def is_redundant(self, schedule: tuple[Choice, ...]) -> bool:
        """Whether a switch leads to the state of the switch one step later, which was played before."""
        choice, step = self._interrupted.pop(schedule, (None, None))
        if choice is None or step is None:
            return False
        interposed = self._interposed.get((*schedule[:-1], choice, schedule[-1]))
        if interposed is None or any(step.depends_on(other) for other in interposed):
            return False
        self._interposed[schedule] = interposed
        return True

    def _record_switches(self, run: Run) -> None:
        steps = [pending[c.operation].step for pending, c in zip(run.pending, run.choices, strict=False)]
        for position, (before, after) in enumerate(itertools.pairwise(run.choices), 1):
            if before.operation != after.operation:
                later = range(position, len(steps))
                end = next((n for n in later if run.choices[n].operation == before.operation), None)
                if end is not None or not run.merged:
                    self._interposed[tuple(run.choices[: position + 1])] = steps[position:end]

    def _add_parent(self, memory: tuple[int, int], parent: tuple[int, int]) -> None:
        parents = self._parents.setdefault(memory, set())
        if parent not in parents:
            parents.add(parent)
            for step in list(self._footprints.get(memory, ())):
                self._extend_footprint(parent, step)

    def branch(self, run: Run, start: int) -> None:
        """Add the schedules that leave a run behind its first choices, of which those are known."""
        self._record_switches(run)
        before: dict[int, tuple[int, int]] = {}
        for pending in run.pending:
            for operation, (step, memory) in pending.items():
                node = operation, memory
                self._extend_footprint(node, step)
                if before.get(operation, node) != node:
                    self._add_parent(node, before[operation])
                before[operation] = node
        faults = () if any(choice.fault for choice in run.choices[:start]) else self.faults
        for position in range(start, len(run.choices)):
            pending, taken = run.pending[position], run.choices[position]
            first = self.bound is None and self._commutes(taken.operation, pending)
            for choice in _choices(pending, faults):
                longer = (*run.choices[:position], choice)
                if choice == taken or (self.bound is not None and _switches(longer) > self.bound):
                    continue
                if first and choice.operation != taken.operation:
                    node = choice.operation, pending[choice.operation].memory
                    entry = pending[taken.operation].step, longer
                    self._left_out.setdefault(node, []).append(entry)
                else:
                    self.schedules.append(longer)
                    last = run.choices[position - 1].operation if position else None
                    # a switch that uses up the bound has no branches behind it, which would be lost
                    if choice.fault is None and last == taken.operation and _switches(longer) == self.bound:
                        interrupted = Choice(taken.operation), pending[taken.operation].step
                        self._interrupted[longer] = interrupted


def _choices(operations: Iterable[int], faults: tuple[type[BaseException], ...]) -> Iterator[Choice]:
    for operation in operations:
        yield Choice(operation)
        for fault, taken in itertools.product(faults, (False, True)):
            yield Choice(operation, fault, taken)


def _switches(choices: Iterable[Choice]) -> int:
    return sum(a.operation != b.operation for a, b in itertools.pairwise(choices))
