"""Projection pushdown into a planned task: fewer columns than the query was planned for."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import pyarrow as pa

from kartothek_cube.io_components.query.physical_plan import DatasetScan, ScanContext, ScanTask

__all__ = ("project",)


def project(context: ScanContext, task: ScanTask, columns: Iterable[str]) -> tuple[ScanContext, ScanTask]:
    """Restrict a task to columns of the result, in this order, then ``partition_by``; rows stay the same."""
    names = list(dict.fromkeys([*columns, *context.partition_by]))
    scans = [_project_scan(scan, set(names)) for scan in context.scans]
    # a left join that adds no column changes nothing; an inner join still drops rows
    used = [number for number, scan in enumerate(scans) if scan.how != "left" or scan.payload]
    return (
        attrs.evolve(
            context,
            scans=tuple(scans[number] for number in used),
            output=pa.schema([context.output.field(name) for name in names]),
        ),
        attrs.evolve(task, files=tuple(task.files[number] for number in used)),
    )


def _project_scan(scan: DatasetScan, names: set[str]) -> DatasetScan:
    payload = tuple(c for c in scan.payload if c in names)
    read = {*scan.dimensions, *payload, *(column for column, _, _ in scan.predicates)}
    return attrs.evolve(scan, payload=payload, columns=tuple(c for c in scan.columns if c in read))
