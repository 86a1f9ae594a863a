"""Operations as data: a shared context, independent tasks, and the step that gives the answer.

Every operation is a class that plans a :class:`Job`; a façade is an executor of jobs. Tasks may run
anywhere, any number of times and in any order: they read and write data files, never the state of a dataset.
The last step is the only one that changes state, by one atomic commit per dataset, and is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

import attrs

from kartothek_cube.core.errors import UnknownOutcomeError
from kartothek_cube.display import card, table
from kartothek_cube.io_components.runtime import available_cores, ordered_map, progress_add_total

Answer = TypeVar("Answer")


@attrs.frozen(kw_only=True)
class Job(Generic[Answer]):
    """One operation, planned and not yet run."""

    #: prefix of the names of tasks, such as ``compact_cube``
    name: str
    #: description that Spark displays while the tasks run
    description: str
    #: shared by all tasks; small and picklable, without what only the last step needs
    context: Any
    #: small and picklable; an iterator where input has to be taken one at a time
    tasks: Iterable[Any]
    run: Callable[[Any, Any], Any]
    #: carries its own state, often a lot more than the context of the tasks
    finish: Callable[[Iterable[Any]], Answer]
    #: associative; None where results can only be listed
    merge: Callable[[Iterable[Any]], Any] | None = None
    #: step before all tasks, in jobs whose tasks have no results
    prepare: Callable[[], None] | None = None
    #: deletes what tasks have written, if one of them fails or the last step does
    discard: Callable[[], None] | None = None
    #: names of the steps prepare, run and finish in graphs
    steps: tuple[str, str, str] = ("prepare", "run", "finish")
    #: whether the tasks take the time, so that a process runs several at once if it may
    is_parallel: bool = False
    #: files that the tasks read, for progress bars
    files: int = 0


def single_step_job(name: str, description: str, run: Callable[[], Answer]) -> Job[Answer]:
    """A job without tasks, of an operation that one process does."""
    skip, finish = lambda context, task: None, lambda results: run()
    return Job(name=name, description=description, context=None, tasks=(), run=skip, finish=finish)


class CountsByDataset(dict[str, dict[str, int]]):
    """Dataset id to numbers by name.

    >>> CountsByDataset(seed={"files": 2})
    {'seed': {'files': 2}}
    """

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for counts in self.values() for name in counts))
        header = ["dataset", *(name.replace("_", " ") for name in names)]
        rows = [(name, *(counts.get(n, "") for n in names)) for name, counts in self.items()]
        return card("", table("", header, rows)) if rows else card("No datasets")


def discard_results(results: Iterable[None]) -> None:
    """Wait for tasks that have no results: ``merge`` and ``finish`` of jobs without an answer."""
    for _ in results:
        pass


@contextmanager
def delete_on_failure(delete: Callable[[], None] | None) -> Iterator[None]:
    """Delete what was written if the commit in the block fails, unless it may have been done all the same."""
    try:
        yield
    except UnknownOutcomeError:
        raise
    except Exception:  # an interrupted request, by Ctrl-C, may still put the header
        if delete is not None:
            # of several failures, the first one is raised; files that stay are garbage
            with suppress(Exception):
                delete()
        raise


# -- the executor of this process ---------------------------------------------------------------------------


def execute(job: Job[Answer], threads: int | None = None) -> Answer:
    """Run the tasks of a job, then its last step; one thread takes a task when the one before it is done."""
    if threads is None:
        threads = available_cores() if job.is_parallel else 1
    progress_add_total(job.files)
    if job.prepare is not None:
        job.prepare()
    with delete_on_failure(job.discard):
        return job.finish(list(iter_results(job, threads)))


def iter_results(job: Job[Answer], threads: int = 1) -> Iterator[Any]:
    """The results of the tasks in their order."""
    run = partial(job.run, job.context)
    # unlike the loop of a generator, map holds no result while the next task runs
    return map(run, job.tasks) if threads == 1 else ordered_map(run, list(job.tasks), threads)
