"""Wrappers around any store: they count calls, refuse writes, fail on demand, cannot be pickled.

Around a memory store they can compare and swap, since drivers look through ``_dstore``; around others they
cannot, and conditional writes warn.
"""

from __future__ import annotations

import io
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from simplekv import KeyValueStore

StoreFactory = Callable[[], KeyValueStore]


class WrapperStore(KeyValueStore):
    """Hands the documented methods to another store; every call passes through `call`."""

    def __init__(self, store: KeyValueStore) -> None:
        self._dstore = store

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._dstore, method)(*args)

    def get(self, key: str) -> bytes:
        return self.call("get", key)

    def put(self, key: str, data: bytes) -> str:
        return self.call("put", key, data)

    def delete(self, key: str) -> None:
        return self.call("delete", key)

    def open(self, key: str) -> Any:
        return self.call("open", key)

    def keys(self, prefix: str = "") -> list[str]:
        return self.call("keys", prefix)

    def iter_keys(self, prefix: str = "") -> Iterator[str]:
        return self.call("iter_keys", prefix)

    def iter_prefixes(self, delimiter: str, prefix: str = "") -> Iterator[str]:
        return self.call("iter_prefixes", delimiter, prefix)

    def __contains__(self, key: str) -> bool:
        return self.call("__contains__", key)


class CountingStore(WrapperStore):
    """Counts calls by method (``counts``) and notes method and first argument of each (``log``)."""

    def __init__(self, store: KeyValueStore) -> None:
        super().__init__(store)
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.counts: Counter[str] = Counter()
        self.log: list[tuple[str, Any]] = []

    def call(self, method: str, *args: Any) -> Any:
        with self._lock:
            self.counts[method] += 1
            self.log.append((method, args[0]))
        return super().call(method, *args)

    def __getstate__(self) -> dict[str, Any]:
        return {"_dstore": self._dstore}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_dstore"])


class ReadOnlyStore(WrapperStore):
    """Raises on ``put`` and ``delete``."""

    def call(self, method: str, *args: Any) -> Any:
        if method in ("put", "delete"):
            raise PermissionError(f"{method}({args[0]!r}) on a read-only store")
        return super().call(method, *args)


class InjectedError(OSError):
    """What a `FaultyStore` raises unless told otherwise."""


class Died(BaseException):
    """The process was killed: it handles no error, and sends no request any more."""


@dataclass
class Fault:
    """What goes wrong, once: at the ``at``-th call of a method (or "any") whose key contains a text."""

    method: str
    at: int = 1
    key: str = ""
    #: raised; or a function that is called instead, and whose return lets the call go on
    error: BaseException | Callable[[], Any] = field(default_factory=lambda: InjectedError("injected"))
    #: the call is done, only its answer is lost
    after: bool = False
    #: all calls from then on fail in the same way, whatever their method and key, so that no retry helps
    lasting: bool = False


class FaultyStore(WrapperStore):
    """Goes wrong as planned by `fail`; ``happened`` lists the faults that struck."""

    def __init__(self, store: KeyValueStore) -> None:
        super().__init__(store)
        self._lock = threading.Lock()
        self._planned: list[Fault] = []
        self.happened: list[Fault] = []

    def fail(self, method: str, **how: Any) -> FaultyStore:
        self._planned.append(Fault(method, **how))
        return self

    def die(self, method: str = "any", **how: Any) -> FaultyStore:
        """Let the process die before a call: none of its threads and handlers reaches the store any more."""
        return self.fail(method, error=Died(), lasting=True, **how)

    def call(self, method: str, *args: Any) -> Any:
        fault = self._due(method, str(args[0]))
        if fault is None:
            return super().call(method, *args)
        result = super().call(method, *args) if fault.after else None
        if isinstance(fault.error, BaseException):
            raise fault.error
        fault.error()
        return result if fault.after else super().call(method, *args)

    def _due(self, method: str, key: str) -> Fault | None:
        with self._lock:
            if self.happened and self.happened[-1].lasting:
                return replace(self.happened[-1], after=False)
            for fault in self._planned:
                if fault.method in (method, "any") and fault.key in key:
                    fault.at -= 1
            due = next((f for f in self._planned if f.at <= 0), None)
            if due is not None:
                self._planned.remove(due)
                self.happened.append(due)
            return due


class UnpicklableStore(WrapperStore):
    """Refuses to be pickled: graphs and tasks must carry factories."""

    def __reduce__(self) -> Any:
        raise TypeError("this store must not be pickled")


@dataclass(frozen=True)
class Wrapped:
    """Picklable factory: a new wrapper around what another factory gives, at each call."""

    kind: type[WrapperStore]
    factory: StoreFactory
    args: tuple[Any, ...] = ()

    def __call__(self) -> WrapperStore:
        return self.kind(self.factory(), *self.args)


_SAME: dict[str, KeyValueStore] = {}


@dataclass(frozen=True)
class Same:
    """Picklable factory: within this process, the very store that it was made `of`."""

    name: str

    @classmethod
    def of(cls, store: KeyValueStore) -> Same:
        name = uuid.uuid4().hex
        _SAME[name] = store
        return cls(name)

    def __call__(self) -> KeyValueStore:
        return _SAME[self.name]


class MinimalStore:
    """No class of simplekv and no more than a store must have; to delete a missing key is an error."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def get(self, key: str) -> bytes:
        return self.content[key]

    def put(self, key: str, data: bytes) -> str:
        self.content[key] = data
        return key

    def delete(self, key: str) -> None:
        del self.content[key]

    def open(self, key: str) -> BinaryIO:
        return io.BytesIO(self.content[key])

    def keys(self, prefix: str = "") -> list[str]:
        return [key for key in self.content if key.startswith(prefix)]

    def __contains__(self, key: str) -> bool:
        return key in self.content


class MinimalIterStore(MinimalStore):
    """The same, with ``iter_keys`` in place of ``keys``."""

    keys = None  # type: ignore[assignment]

    def iter_keys(self, prefix: str = "") -> Iterator[str]:
        return (key for key in list(self.content) if key.startswith(prefix))
