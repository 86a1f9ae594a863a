"""Stores that let tasks of Spark fail: on executors only, and only once."""

import os
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from simplekv import KeyValueStore
from storefact import get_store_from_url

from tests.support.stores import WrapperStore


def once(marks: str, name: str) -> bool:
    """Whether this is the first process of all that asks for a name."""
    try:
        Path(marks, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def note(marks: str, name: str) -> None:
    Path(marks, f"{name}-{uuid.uuid4().hex}").touch()


def notes(marks: str, name: str) -> int:
    return len(list(Path(marks).glob(f"{name}-*")))


def kill_executor() -> None:
    """End the JVM that this Python works for, as the kernel does when memory is short."""
    process = os.getpid()
    while "java" not in Path(f"/proc/{process}/comm").read_text():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(process, signal.SIGKILL)
    time.sleep(60)


def fail() -> None:
    """Raise what Spark tries again, since it may go better next time."""
    raise ConnectionError("the network is gone")


def hang() -> None:
    """Take so long that Spark starts another attempt, and ends this one when that is done."""
    time.sleep(300)


DEEDS = {"none": lambda: None, "fail": fail, "hang": hang, "kill": kill_executor}


@dataclass(frozen=True)
class Sabotaged:
    """Picklable factory of a store: the deed is done on an executor, after a file with rows was written.

    Marks tell which tasks wrote files of which partitions.
    """

    url: str
    marks: str
    deed: str = "none"

    def __call__(self) -> KeyValueStore:
        store = get_store_from_url(self.url)
        return store if TaskContext.get() is None else Saboteur(store, self)


class Saboteur(WrapperStore):
    """The store that executors see."""

    def __init__(self, store: KeyValueStore, plan: Sabotaged) -> None:
        super().__init__(store)
        self.plan = plan

    def call(self, method: str, *args: Any) -> Any:
        result = super().call(method, *args)
        if method == "put" and "/table/" in args[0]:
            note(self.plan.marks, "written")
            note(self.plan.marks, f"{args[0].split('/')[2]}-{TaskContext.get().partitionId()}")
            if once(self.plan.marks, "deed"):
                DEEDS[self.plan.deed]()
        return result
