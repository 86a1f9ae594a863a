"""Fewer columns than a query was planned for: what an engine needs, found out after the plan."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import pyarrow as pa

from kartothek_cube.io_components.query.physical_plan import DatasetScan, ScanContext, ScanTask

__all__ = ("project",)


def project(context: ScanContext, task: ScanTask, columns: Iterable[str]) -> tuple[ScanContext, ScanTask]:
    """
    Restrict a task to some columns of the result; its rows and their order stay the same.

    Parameters
    ----------
    context
        What the tasks of the query share.
    task
        One of them.
    columns
        Columns of the result, in the order wanted; those of ``partition_by`` follow.

    Returns
    -------
    context
        With as few columns to load as possible.
    task
        Without the files that do not matter any more.
    """
    names = list(dict.fromkeys([*columns, *context.partition_by]))
    sources = [_narrow(source, set(names)) for source in context.sources]
    kept = [number for number, source in enumerate(sources) if source.how != "left" or source.payload]
    return (
        attrs.evolve(
            context,
            sources=tuple(sources[number] for number in kept),
            output=pa.schema([context.output.field(name) for name in names]),
        ),
        attrs.evolve(task, files=tuple(task.files[number] for number in kept)),
    )


def _narrow(source: DatasetScan, needed: set[str]) -> DatasetScan:
    payload = tuple(c for c in source.payload if c in needed)
    loaded = {*source.dimensions, *payload, *(column for column, _, _ in source.predicates)}
    return attrs.evolve(source, payload=payload, columns=tuple(c for c in source.columns if c in loaded))
