"""Writing one dataset of a cube out of a stream of tables; only one of them is held at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.cube.prepare import DatasetConstraints, check_unique
from kartothek_cube.io_components.cube.write import CubeWritePlan, merge_writes, prepare, run_write
from kartothek_cube.io_components.discard import delete_uncommitted
from kartothek_cube.io_components.files import read_files
from kartothek_cube.io_components.write import WriteResult

__all__ = ("check_duplicate_cells", "write_stream")


def write_stream(
    plan: CubeWritePlan, name: str, tables: Iterable[pa.Table], *, ordered: bool = False
) -> dict[str, WriteResult]:
    """
    Check and write tables one after the other; the state of the dataset is not touched.

    Parameters
    ----------
    plan
        The write.
    name
        Dataset id.
    tables
        Rows.
    ordered
        Whether rows come sorted by partition and dimension columns, so that a partition may go on in the next
        table, and it is noticed if a cell does.

    Returns
    -------
    dict
        Dataset id to what was written, also if there are no rows.

    Raises
    ------
    ValueError, TypeError
        If a table breaks a rule of the cube. As after every failure, what was written before is deleted.
    """
    rules, context = plan.changes[name].rules, plan.changes[name].context
    written = [{name: WriteResult(context.uuid, context.table)}]
    before = None
    try:
        for table in tables:
            prepared = prepare(plan, {name: [table]})
            if ordered and prepared:
                before = _check_border(rules, before, prepared[name])
            written.append(run_write(plan, prepared))
    except BaseException:
        delete_uncommitted(plan.store, [result for part in written for result in part.values()])
        raise
    return merge_writes(written)


def _check_border(rules: DatasetConstraints, before: pa.Table | None, table: pa.Table) -> pa.Table:
    """Check that the last cell of a table is not the first one of the next; gives the last row."""
    if before is not None:
        check_unique(rules, pa.concat_tables([before, table.slice(0, 1)], promote_options="permissive"))
    return table.slice(len(table) - 1)


def check_duplicate_cells(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> None:
    """
    Check cells of partitions that were written in several files, by tasks that did not know of each other.

    Parameters
    ----------
    plan
        The write.
    results
        By dataset id.

    Raises
    ------
    DuplicateCellsError
        If a cell is in several files.
    """
    for name, result in results.items():
        labels = result.labels
        folders = pc.replace_substring_regex(labels, "[^/]*$", "").dictionary_encode()
        codes = folders.indices.to_numpy()
        for code in np.flatnonzero(np.bincount(codes, minlength=len(folders.dictionary)) > 1):
            mask = pa.array(codes == code)
            keys = None if result.keys is None else result.keys.filter(mask)
            _check_partition(plan, name, attrs.evolve(result, labels=labels.filter(mask), keys=keys))


def _check_partition(plan: CubeWritePlan, name: str, result: WriteResult) -> None:
    rules, files = plan.changes[name].rules, result.partitions()
    schema = result.schema.internal() if result.schema is not None else pa.schema([])
    in_files = [c for c in schema.names if c not in rules.partition_on]
    columns = [c for c in rules.cube.dimension_columns if c in in_files]
    tables = read_files(open_blobs(plan.store), files.files[result.table].to_pylist(), columns)
    table = pa.concat_tables(list(tables), promote_options="permissive")
    for column, values in files.keys(list(rules.partition_on), schema).items():
        table = table.append_column(column, pa.repeat(values[0], len(table)))
    check_unique(rules, table)
