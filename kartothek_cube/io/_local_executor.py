"""The executor of this process: tasks one after the other, or on several threads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kartothek_cube.io_components.job import Answer, Context, Job, Result, Task
from kartothek_cube.io_components.runtime import ordered_map, progress_add_total

__all__ = ("execute", "iter_results")


def execute(job: Job[Context, Task, Result, Answer], threads: int = 1) -> Answer:
    """Run a job; with one thread, a task is taken when the one before it is done."""
    progress_add_total(job.files)
    if job.prepare is not None:
        job.prepare()
    return job.finish(iter_results(job, threads))


def iter_results(job: Job[Context, Task, Result, Answer], threads: int = 1) -> Iterator[Result]:
    """The results of the tasks in their order."""
    run = partial(job.run, job.context)
    # unlike the loop of a generator, map holds no result while the next task runs
    return map(run, job.tasks) if threads == 1 else ordered_map(run, list(job.tasks), threads)
