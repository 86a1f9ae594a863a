"""Exhaustive interleaving of operations: a store in memory in which each request is a step of a scheduler.

A pair of operations runs in two threads, of which only one moves at a time. The schedules are explored by
dynamic partial-order reduction (Flanagan and Godefroid, 2005): after each run, every pair of dependent steps
of different operations is reversed in a later run, until all orders that can differ in their outcome were
seen. Steps that commute (of different keys, or two reads) are not reversed.
"""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simplekv import KeyValueStore

from kartothek_cube.core.store import Blob, BlobStore, PreconditionFailed, register_driver
from kartothek_cube.core.store.keys import check_key, check_keys, check_prefix

#: how the stores of a kind tell versions apart, and whether they delete by condition in one request
KINDS = {
    "s3": ("content", True),
    "s3 without conditional deletes": ("content", False),
    "azure": ("unique", True),
    "local": ("unique", True),
    "memory": ("content", True),
}


@dataclass(frozen=True)
class Step:
    """One request: what it reads or writes, a key or all keys of a prefix."""

    operation: int
    method: str
    key: str
    writes: bool
    is_prefix: bool = False

    def depends_on(self, other: Step) -> bool:
        """Whether the order of two steps can matter."""
        if not (self.writes or other.writes):
            return False
        if self.is_prefix:
            return other.key.startswith(self.key)
        if other.is_prefix:
            return self.key.startswith(other.key)
        return self.key == other.key


class Crash(BaseException):
    """The process dies before or after a step."""


class LostAnswer(OSError):
    """The step was taken, or not, and only an error comes back."""


@dataclass
class Fault:
    """What happens at a step of an operation, counted from 0."""

    operation: int
    at: int
    kind: type[BaseException]
    taken: bool


class World:
    """The blobs, and the scheduler."""

    def __init__(self, kind: str, blobs: dict[str, tuple[bytes, int]] | None = None) -> None:
        self.versions, self.deletes_by_condition = KINDS[kind]
        self.blobs = dict(blobs or {})
        self.counter = itertools.count(1 + max((v for _, v in self.blobs.values()), default=0))
        self.scheduler: Scheduler | None = None

    def step(self, step: Step, action: Callable[[], Any]) -> Any:
        if self.scheduler is None or step.operation < 0:
            return action()
        return self.scheduler.take(step, action)

    def token(self, key: str) -> Any:
        data, version = self.blobs[key]
        return data if self.versions == "content" else version

    def put(self, key: str, data: bytes) -> Any:
        self.blobs[key] = (bytes(data), next(self.counter))
        return self.token(key)


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

    @property
    def can_swap(self) -> bool:
        return True

    @property
    def is_local(self) -> bool:
        return False

    def _step(
        self, method: str, key: str, action: Callable[[], Any], writes: bool, prefix: bool = False
    ) -> Any:
        return self._world.step(Step(self._store.operation, method, key, writes, prefix), action)

    def get(self, key: str) -> bytes:
        return self._step("get", check_key(key), lambda: self._world.blobs[key][0], False)

    def get_with_token(self, key: str) -> tuple[bytes, Any]:
        def action() -> tuple[bytes, Any]:
            return self._world.blobs[key][0], self._world.token(key)

        return self._step("get", check_key(key), action, False)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        data = self.get(key)
        return data[max(0, len(data) - length) :], len(data)

    def size(self, key: str) -> int:
        return len(self.get(key))

    def exists(self, key: str) -> bool:
        return self._step("head", check_key(key), lambda: key in self._world.blobs, False)

    def open_read(self, key: str) -> io.BytesIO:
        return io.BytesIO(self.get(key))

    def local_path(self, key: str) -> None:
        check_key(key)

    def put(self, key: str, data: Any, *, durable: bool = False) -> None:
        content = bytes(data)
        self._step("put", check_key(key), lambda: self._world.put(key, content), True)

    @contextmanager
    def open_write(self, key: str, *, durable: bool = False) -> Iterator[io.BytesIO]:
        buffer = io.BytesIO()
        yield buffer
        self.put(key, buffer.getvalue())

    def put_if(self, key: str, data: Any, token: Any) -> Any:
        content = bytes(data)

        def action() -> Any:
            self._compare(key, token)
            return self._world.put(key, content)

        return self._step("put_if", check_key(key), action, True)

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
            self._step("delete_if", check_key(key), action, True)
            return
        self._step("head", check_key(key), lambda: self._compare(key, token), False)
        self._step("delete", key, lambda: self._world.blobs.pop(key, None), True)

    def delete(self, keys: Iterable[str]) -> None:
        for key in check_keys(keys):
            self._step("delete", key, lambda key=key: self._world.blobs.pop(key, None), True)

    def list_dir(self, prefix: str) -> list[str]:
        def action() -> list[str]:
            found = [key for key in self._world.blobs if key.startswith(prefix)]
            return sorted({key[: (key.find("/", len(prefix)) + 1) or None] for key in found})

        return self._step("list", check_prefix(prefix), action, False, True)

    def list(self, prefix: str) -> list[Blob]:
        def action() -> list[Blob]:
            items = self._world.blobs.items()
            return sorted(
                Blob(key, len(data), float(n)) for key, (data, n) in items if key.startswith(prefix)
            )

        return self._step("list", check_prefix(prefix), action, False, True)


register_driver(lambda store: isinstance(store, ModelStore), ModelBlobs)


@dataclass
class Outcome:
    """What became of an operation."""

    error: BaseException | None = None

    @property
    def acknowledged(self) -> bool:
        return self.error is None


@dataclass
class Run:
    """A schedule that was played: the steps in their order, and what became of the operations."""

    steps: list[Step] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def choices(self) -> tuple[int, ...]:
        return tuple(step.operation for step in self.steps)


class Scheduler:
    """Lets one operation take a step at a time, in the order of a schedule, then as long as it has steps."""

    def __init__(self, schedule: tuple[int, ...], fault: Fault | None = None) -> None:
        self.schedule = schedule
        self.fault = fault
        self.run = Run()
        self._condition = threading.Condition()
        self._waiting: dict[int, Step] = {}
        self._alive: set[int] = set()
        self._granted: int | None = None
        self._taken = [0, 0]

    def take(self, step: Step, action: Callable[[], Any]) -> Any:
        me = step.operation
        with self._condition:
            # several threads of one operation take turns
            while me in self._waiting:
                self._condition.wait()
            self._waiting[me] = step
            self._condition.notify_all()
            while self._granted != me:
                self._condition.wait()
            try:
                return self._act(step, action)
            finally:
                self._granted = None
                del self._waiting[me]
                self._condition.notify_all()

    def _act(self, step: Step, action: Callable[[], Any]) -> Any:
        number, fault = self._taken[step.operation], self.fault
        self._taken[step.operation] += 1
        self.run.steps.append(step)
        if fault is None or (fault.operation, fault.at) != (step.operation, number):
            return action()
        if fault.taken:
            action()
        raise fault.kind(f"{step.method} {step.key}")

    def play(self, operations: list[Callable[[], Any]]) -> Run:
        self.run.outcomes = [Outcome() for _ in operations]
        self._alive = set(range(len(operations)))
        threads = [
            threading.Thread(target=self._operate, args=(number, operation), daemon=True)
            for number, operation in enumerate(operations)
        ]
        for thread in threads:
            thread.start()
        self._schedule()
        for thread in threads:
            thread.join()
        return self.run

    def _operate(self, number: int, operation: Callable[[], Any]) -> None:
        try:
            operation()
        except BaseException as error:
            self.run.outcomes[number].error = error
        with self._condition:
            self._alive.discard(number)
            self._condition.notify_all()

    def _schedule(self) -> None:
        current = 0
        with self._condition:
            while True:
                # every operation stands before a step, or has ended
                while self._granted is not None or self._alive - self._waiting.keys():
                    self._condition.wait()
                if not self._alive:
                    return
                position = len(self.run.steps)
                wanted = self.schedule[position] if position < len(self.schedule) else current
                current = wanted if wanted in self._alive else min(self._alive)
                self._granted = current
                self._condition.notify_all()


def reversals(run: Run) -> Iterator[tuple[int, ...]]:
    """Schedules in which a step comes before the last one of the other operation that it depends on."""
    steps = run.steps
    for later, step in enumerate(steps):
        for earlier in range(later - 1, -1, -1):
            if steps[earlier].operation != step.operation and steps[earlier].depends_on(step):
                yield (*run.choices[:earlier], step.operation)
                break


def explore(
    play: Callable[[tuple[int, ...]], Run], limit: int | None = None, bound: int | None = None
) -> Iterator[Run]:
    """
    All runs that differ in the order of dependent steps.

    Parameters
    ----------
    play
        Plays a schedule in a new world.
    limit
        Runs at most; None for all.
    bound
        How often a schedule may switch between operations before one has ended; None for any number.
    """
    pending: list[tuple[int, ...]] = [(), (1,)]
    seen = set(pending)
    count = 0
    while pending and (limit is None or count < limit):
        run = play(pending.pop())
        count += 1
        yield run
        for schedule in reversals(run):
            if schedule not in seen and (bound is None or _switches(schedule) <= bound):
                seen.add(schedule)
                pending.append(schedule)


def _switches(schedule: tuple[int, ...]) -> int:
    return sum(a != b for a, b in itertools.pairwise(schedule))
