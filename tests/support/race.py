"""Work that several processes do at once on one store."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd

from kartothek_cube.api import cube as api
from kartothek_cube.api import dataset
from kartothek_cube.core.errors import ConcurrentWriteError

CUBE = api.Cube(dimension_columns=["x"], partition_columns=["p"], uuid_prefix="cube", index_columns=["i1"])
DATASET = "plain++rows"

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.race"])


def at_once(work: Iterable[tuple[Callable[..., Any], Any]]) -> list[Any]:
    """Call each function with its argument in a process of its own; what they give, in this order."""
    work = list(work)
    with _FORKS.Pool(len(work)) as pool:
        return [result.get(300) for result in [pool.apply_async(f, (argument,)) for f, argument in work]]


@contextmanager
def meanwhile(function: Callable[..., Any], argument: Any) -> Iterator[Any]:
    """Call a function in another process while the block runs; the block gets its result as a promise."""
    with _FORKS.Pool(1) as pool:
        promise = pool.apply_async(function, (argument,))
        yield promise
        promise.wait(300)


def rows(first: int, p: int = 0, n: int = 1) -> pd.DataFrame:
    """Rows of one partition; the number in ``x`` is used once in a test."""
    x = range(first, first + n)
    return pd.DataFrame({"x": x, "p": p, "i1": [number % 7 for number in x], "v1": x})


def append_rows(job: tuple[str, int, int]) -> int:
    """Append to the dataset, one row a time; how many times it was refused for the sake of another writer."""
    store, first, times = job
    return sum(_refused(_append_row, store, number) for number in range(first, first + times))


def _append_row(store: str, number: int) -> None:
    options = {"partition_on": ["p"], "secondary_indices": ["i1"]}
    dataset.update_dataset_from_dataframes([rows(number, number % 3)], store, DATASET, **options)


def append_cells(job: tuple[str, int, int]) -> int:
    store, first, times = job
    return sum(_refused(_append_cell, store, number) for number in range(first, first + times))


def _append_cell(store: str, number: int) -> None:
    seed = rows(number, number % 3)
    api.append_to_cube({"seed": seed, "extra": seed[["x", "p"]].assign(v2=number)}, CUBE, store)


def remove_and_refill(job: tuple[str, int, int]) -> int:
    store, p, times = job
    return sum(_refused(_replace, store, p) for _ in range(times))


def _replace(store: str, p: int) -> None:
    api.remove_partitions(CUBE, store, api.C("p") == p)
    api.update_cube(rows(1_000_000, p), CUBE, store, api.C("p") == p, ["seed"])


def build_indices(job: tuple[str, int]) -> int:
    store, times = job
    return sum(_refused(dataset.build_dataset_indices, store, DATASET, ["v1"]) for _ in range(times))


def collect_garbage(job: tuple[str, int, Any]) -> int:
    store, times, retention = job
    for _ in range(times):
        dataset.garbage_collect_dataset(dataset_uuid=DATASET, store=store, retention=retention)
    return 0


def clean_up(job: tuple[str, int, Any]) -> int:
    store, times, retention = job
    for _ in range(times):
        api.cleanup_cube(CUBE, store, retention=retention)
    return 0


def build(job: tuple[str, int]) -> str:
    """Build the cube; the name of the error, if there is one."""
    store, number = job
    try:
        api.build_cube(rows(number, n=50), CUBE, store)
    except Exception as error:  # the test looks at its name
        return type(error).__name__
    return ""


def extend(store: str) -> None:
    api.extend_cube({"extra": rows(900_000)[["x", "p"]].assign(v2=0)}, CUBE, store)


def empty(store: str) -> None:
    scope = [{"p": p} for p in range(3)]
    dataset.update_dataset_from_dataframes([], store, DATASET, delete_scope=scope, partition_on=["p"])


def _refused(function: Callable[..., Any], *args: Any) -> bool:
    try:
        function(*args)
    except ConcurrentWriteError:
        return True
    return False
