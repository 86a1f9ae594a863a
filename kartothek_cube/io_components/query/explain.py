"""Explanation of a query: which files it would read, and why not the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from kartothek_cube.core import naming, pruning
from kartothek_cube.core.cube.conditions import Condition, Disjunction
from kartothek_cube.core.errors import abbreviate_text, format_count
from kartothek_cube.core.expressions import Node, columns_of, imply
from kartothek_cube.core.store import BlobStore, StoreInput
from kartothek_cube.display import card, facts, plain_text_table, table
from kartothek_cube.io_components import kernels, runtime
from kartothek_cube.io_components.facade import StoreT
from kartothek_cube.io_components.query.logical_plan import LogicalPlan, QueryCube, Role
from kartothek_cube.io_components.query.physical_plan import DatasetFiles, check_limit, plan_query
from kartothek_cube.serialization.parquet import read_footer

#: so many files at least, and at most twice as many, whose size is read; the others are taken to be like them
_SIZE_SAMPLE = 500
#: files whose footers are read for the share of the needed columns
_FOOTER_SAMPLE = 8
#: groups that are listed
_SHOWN_GROUPS = 10


@attrs.frozen
class ConditionPruning:
    """Effect of one condition on the files of one dataset.

    Attributes
    ----------
    condition
        The condition as text; of a long one the beginning.
    by
        ``partition key``, ``index`` or ``statistics``, by which files without matching rows are pruned; or
        ``rows``: all files are read, and the condition is applied to their rows.
    kept, pruned
        Numbers of files that this condition alone would keep and prune.
    """

    condition: str
    by: str
    kept: int
    pruned: int


@attrs.frozen
class DatasetExplanation:
    """One dataset in a query.

    Attributes
    ----------
    name
        Its id.
    role
        ``seed``: its rows are the cells of the result; ``restricted``: inner-joined, as conditions or groups
        depend on it; ``left``: adds columns where it has the cell.
    aligned_by
        Partition columns that it shares with the seed: only partitions with equal values are joined.
    joined_by
        Dimensions by which its rows are joined.
    columns
        Columns that are read.
    conditions
        Effect of each condition.
    files, partitions
        How many it has.
    matching_files
        Files that can hold rows that meet all conditions.
    read_files, read_partitions
        How many are read: more than match where a file may replace rows of another file of the same
        partition, fewer where other datasets lack the partition.
    file_bytes
        Size of the files that are read.
    read_bytes
        Estimated bytes of the needed columns in them. None if the files are no Parquet files.
    """

    name: str
    role: str
    aligned_by: tuple[str, ...]
    joined_by: tuple[str, ...]
    columns: tuple[str, ...]
    conditions: tuple[ConditionPruning, ...]
    files: int
    partitions: int
    matching_files: int
    read_files: int
    read_partitions: int
    file_bytes: int
    read_bytes: int | None


@attrs.frozen(repr=False)
class QueryExplanation:
    """Explanation of a query; prints as text, and as tables in a notebook.

    Attributes
    ----------
    cube
        Prefix of the cube.
    columns
        Columns of the result.
    limit
        Number of rows at which the query stops to read; None: at the end.
    sorted_by
        Columns by which its rows are sorted.
    datasets
        Each joined dataset, in the order of the joins.
    unused
        Ids of datasets that are not joined.
    partitions
        Physical partitions of the seed that are read.
    partition_by
        Columns by whose values the result is split.
    groups
        Number of groups, None without ``partition_by``.
    first_groups
        Values of the first of them.
    """

    cube: str
    columns: tuple[str, ...]
    limit: int | None
    sorted_by: tuple[str, ...]
    datasets: tuple[DatasetExplanation, ...]
    unused: tuple[str, ...]
    partitions: int
    partition_by: tuple[str, ...]
    groups: int | None
    first_groups: tuple[tuple[Any, ...], ...]

    @property
    def read_files(self) -> int:
        """Number of files that are read."""
        return sum(dataset.read_files for dataset in self.datasets)

    @property
    def read_bytes(self) -> int:
        """About how many bytes are read."""
        return sum(_bytes_to_read(dataset) for dataset in self.datasets)

    def to_dict(self) -> dict[str, Any]:
        """The explanation as dicts, lists, text and numbers.

        Returns
        -------
        dict
        """
        content = attrs.asdict(self)
        content["first_groups"] = [list(map(str, values)) for values in self.first_groups]
        return {**content, "read_files": self.read_files, "read_bytes": self.read_bytes}

    def _summary(self) -> dict[str, Any]:
        rows = "" if self.limit is None else f", at most {format_count(self.limit, 'row')}"
        order = f"sorted by {', '.join(self.sorted_by)}"
        facts: dict[str, Any] = {
            "result": f"{format_count(len(self.columns), 'column')}{rows}, {order}",
            "to read": f"{'at most ' if rows else ''}{format_count(self.read_files, 'file')} in "
            f"{format_count(self.partitions, 'partition')}, about {runtime.bytes_text(self.read_bytes)}",
        }
        if self.groups is not None:
            shown = ["/".join(map(str, values)) for values in self.first_groups]
            more = ", …" if self.groups > len(shown) else ""
            facts["groups"] = f"{self.groups:,} by {', '.join(self.partition_by)}: {', '.join(shown)}{more}"
        if self.unused:
            facts["not needed"] = ", ".join(self.unused)
        return facts

    def _condition_rows(self) -> list[tuple[Any, ...]]:
        return [(d.name, p.condition, p.by, p.kept, p.pruned) for d in self.datasets for p in d.conditions]

    def __repr__(self) -> str:
        lines = [f"Query of cube {self.cube}"]
        lines += [f"  {name + ':':<11} {value}" for name, value in self._summary().items()]
        lines += ["", plain_text_table(_HEADER, map(_row, self.datasets))]
        if rows := self._condition_rows():
            lines += ["", plain_text_table(_CONDITION_HEADER, rows)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return card(
            f"Query of cube {self.cube}",
            facts(self._summary()),
            table("Datasets", _HEADER, [_row(dataset) for dataset in self.datasets]),
            table("Conditions", _CONDITION_HEADER, self._condition_rows()),
        )


_HEADER = ("dataset", "role", "files read", "of", "partitions read", "of", "bytes", "columns read")
_CONDITION_HEADER = ("dataset", "condition", "decided by", "files kept", "files pruned")


def _bytes_to_read(dataset: DatasetExplanation) -> int:
    return dataset.file_bytes if dataset.read_bytes is None else dataset.read_bytes


def _row(dataset: DatasetExplanation) -> tuple[str | int, ...]:
    counts = (dataset.read_files, dataset.files, dataset.read_partitions, dataset.partitions)
    size, columns = runtime.bytes_text(_bytes_to_read(dataset)), ", ".join(dataset.columns) or "none"
    return dataset.name, dataset.role, *counts, size, columns


@attrs.frozen
class ExplainQuery(QueryCube[StoreT]):
    """Explain what a query would read. Headers, indices and a few footers are read, no data.

    Parameters
    ----------
    limit
        Largest number of rows, as of :func:`query_cube_df`, which may read fewer files then.

    Returns
    -------
    QueryExplanation
        Datasets and how they are joined, files that each condition prunes, files left to read.

    Raises
    ------
    ValueError, TypeError
        As :func:`query_cube`.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.conditions import C
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube, explain_query
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pd.DataFrame({"CITY": ["Ulm", "Leeds"], "COUNTRY_CODE": ["DE", "UK"], "AREA": [118, 551]})
    >>> _ = build_cube(cities, cube, store)
    >>> explained = explain_query(cube, store, conditions=C("COUNTRY_CODE") == "DE")
    >>> explained.datasets[0].conditions
    (ConditionPruning(condition='COUNTRY_CODE == DE', by='partition key', kept=1, pruned=1),)
    """

    limit: int | None = attrs.field(default=None, kw_only=True)


def explain_query(query: ExplainQuery[StoreInput]) -> QueryExplanation:
    """Explain a query."""
    check_limit(query.limit)
    cube, plan = query.cube, plan_query(query)
    blobs = plan.context.open_store()
    return QueryExplanation(
        cube=cube.uuid_prefix,
        columns=tuple(plan.context.output.names),
        limit=query.limit,
        sorted_by=plan.context.sort_columns,
        datasets=tuple(_explain_dataset(files, plan.logical_plan, blobs) for files in plan.files),
        unused=plan.logical_plan.unused,
        partitions=plan.n_partitions,
        partition_by=plan.context.partition_by,
        groups=None if plan.groups is None else len(plan.groups),
        first_groups=tuple(plan.groups or ())[:_SHOWN_GROUPS],
    )


def _explain_dataset(files: DatasetFiles, logical_plan: LogicalPlan, blobs: BlobStore) -> DatasetExplanation:
    scan, dataset = files.scan, files.dataset
    node = logical_plan.condition_on(scan.name)
    values = dataset.partition_table.keys(list(scan.partition_keys), dataset.schema)
    codes = kernels.group_codes(list(values.values()), len(dataset.partition_table))
    file_bytes, read_bytes = _estimate_bytes(files, blobs)
    return DatasetExplanation(
        name=scan.name,
        role=str(scan.role),
        aligned_by=scan.alignment if scan.role is not Role.SEED else (),
        joined_by=scan.dimensions if scan.role is not Role.SEED else (),
        columns=scan.columns,
        conditions=_explain_conditions(files, logical_plan),
        files=len(dataset.partition_table),
        partitions=len(np.unique(codes)),
        matching_files=len(pruning.select_partitions(dataset, node)),
        read_files=len(files.positions),
        read_partitions=len(np.unique(codes[files.positions])),
        file_bytes=file_bytes,
        read_bytes=read_bytes,
    )


def _explain_conditions(files: DatasetFiles, logical_plan: LogicalPlan) -> tuple[ConditionPruning, ...]:
    """Pruning by each condition on a dataset; conditions on the joined rows are listed at the seed."""
    scan = files.scan
    types = dict(zip(scan.schema.names, scan.schema.types, strict=True))
    conditions = logical_plan.conditions[scan.name]
    result = [_pruning(files, c, c.to_tree(types)) for c in conditions]
    if scan.role is Role.SEED:
        pairs = zip(logical_plan.join_conditions, logical_plan.join_filters, strict=True)
        result += [_pruning(files, c, imply(node, scan.schema.names)) for c, node in pairs]
    return tuple(result)


def _pruning(files: DatasetFiles, condition: Condition | Disjunction, node: Node | None) -> ConditionPruning:
    dataset = files.dataset
    kept = len(pruning.select_partitions(dataset, node))
    columns = columns_of(None if node is None else pruning.imply_partition_keys(dataset, node))
    by = "rows"
    if columns & {*files.scan.partition_keys}:
        by = "partition key"
    elif columns & {*dataset.indices}:
        by = "index"
    elif not columns.isdisjoint(dataset.statistics):
        by = "statistics"
    return ConditionPruning(abbreviate_text(str(condition)), by, kept, len(dataset.partition_table) - kept)


def _estimate_bytes(files: DatasetFiles, blobs: BlobStore) -> tuple[int, int | None]:
    """Bytes of the files to read and of the needed columns in them, from a sample if there are many."""
    keys = files.sample_keys(_SIZE_SAMPLE)
    if not keys:
        return 0, 0
    total = round(runtime.mean_size(blobs, keys) * len(files.partition_ids))
    if not all(key.endswith(naming.PARQUET_FILE_SUFFIX) for key in keys):
        return total, None
    sample = keys[:: max(1, len(keys) // _FOOTER_SAMPLE)][:_FOOTER_SAMPLE]
    scan = files.scan
    stored = [column for column in scan.columns if column not in scan.partition_keys]
    return total, round(total * _column_share(blobs, sample, stored))


def _column_share(blobs: BlobStore, keys: Sequence[str], columns: Sequence[str]) -> float:
    """Share of the needed columns, and of what is no column (footers), in the bytes of files."""
    total = unneeded = 0
    for key in keys:
        footer, size = read_footer(blobs, key)
        groups = map(footer.row_group, range(footer.num_row_groups))
        chunks = [group.column(position) for group in groups for position in range(footer.num_columns)]
        total += size
        unneeded += sum(
            chunk.total_compressed_size
            for chunk in chunks
            if {chunk.path_in_schema, chunk.path_in_schema.partition(".")[0]}.isdisjoint(columns)
        )
    return 1 - unneeded / total if total else 1.0
