"""What a query would do, without doing it: which files it would read, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.display.html import card, facts, plain_text_table, table
from kartothek_cube.io_components.kernels.encode import group_codes
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.logical_plan import LogicalPlan
from kartothek_cube.io_components.query.physical_plan import PartitionSelection
from kartothek_cube.io_components.query.planner import plan_query_in_steps
from kartothek_cube.io_components.runtime.progress import bytes_text
from kartothek_cube.io_components.runtime.threads import REMOTE_REQUESTS, ordered_map
from kartothek_cube.serialization.footers import read_footer

__all__ = ("ConditionPruning", "DatasetExplanation", "QueryExplanation", "explain_query")

#: files whose size is asked for; the others are taken to be like them
_SIZED = 1000
#: files whose footers tell how much of a file the needed columns are
_OPENED = 8
#: groups that are shown
_SHOWN_GROUPS = 10


@attrs.frozen
class ConditionPruning:
    """
    What one condition does for one dataset.

    Attributes
    ----------
    condition
        The condition as text.
    by
        What tells which files can hold matching rows: ``partition key``, ``index``; or ``rows``: none is left
        out, the condition is applied while reading.
    kept, pruned
        Numbers of files that this condition alone would keep and leave out.
    """

    condition: str
    by: str
    kept: int
    pruned: int


@attrs.frozen
class DatasetExplanation:
    """
    One dataset in a query.

    Attributes
    ----------
    name
        Its id.
    role
        ``seed``: its rows are the cells of the result; ``restricted``: inner-joined, as conditions or groups
        depend on it; ``left``: adds columns where it has the cell.
    aligned_by
        Columns by which its partitions find those of the seed.
    joined_by
        Dimensions by which its rows are joined.
    columns
        Columns that are read.
    conditions
        What each condition does.
    files, partitions
        How many it has.
    matching_files
        Files that may hold rows which meet all conditions.
    read_files, read_partitions
        How many are read: more than match where a file may hide rows of another file of the same partition,
        fewer where other datasets have no partner.
    file_bytes
        Size of the files that are read.
    read_bytes
        Share of the needed columns in that; an estimate. None if the files do not tell.
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
    """
    What a query would do; prints as text, and as tables in a notebook.

    Attributes
    ----------
    cube
        Prefix of the cube.
    columns
        Columns of the result.
    sorted_by
        Columns by which its rows are sorted.
    datasets
        What happens to each dataset that takes part, in the order of the joins.
    unused
        Ids of datasets that do not take part.
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
        """How many bytes are read, about."""
        return sum(_needed(dataset) for dataset in self.datasets)

    def to_dict(self) -> dict[str, Any]:
        """
        All of it as dicts, lists, text and numbers.

        Returns
        -------
        dict
        """
        content = attrs.asdict(self)
        content["first_groups"] = [list(map(str, values)) for values in self.first_groups]
        return {**content, "read_files": self.read_files, "read_bytes": self.read_bytes}

    def _summary(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "result": f"{len(self.columns)} columns, sorted by {', '.join(self.sorted_by)}",
            "to read": f"{_plural(self.read_files, 'file')} in {_plural(self.partitions, 'partition')}, "
            f"about {bytes_text(self.read_bytes)}",
        }
        if self.groups is not None:
            shown = ["/".join(map(str, values)) for values in self.first_groups]
            more = ", …" if self.groups > len(shown) else ""
            facts["groups"] = f"{self.groups:,} by {', '.join(self.partition_by)}: {', '.join(shown)}{more}"
        if self.unused:
            facts["not needed"] = ", ".join(self.unused)
        return facts

    def __repr__(self) -> str:
        lines = [f"Query of cube {self.cube}"]
        lines += [f"  {name + ':':<11} {value}" for name, value in self._summary().items()]
        lines += ["", plain_text_table(_HEADER, map(_row, self.datasets))]
        effects = [(d.name, *attrs.astuple(effect)) for d in self.datasets for effect in d.conditions]
        if effects:
            lines += ["", plain_text_table(_EFFECTS, effects)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        effects = [(d.name, *attrs.astuple(effect)) for d in self.datasets for effect in d.conditions]
        return card(
            f"Query of cube {self.cube}",
            facts(self._summary()),
            table("Datasets", _HEADER, [_row(dataset) for dataset in self.datasets]),
            table("Conditions", _EFFECTS, effects),
        )


_HEADER = ("dataset", "role", "files read", "of", "partitions read", "of", "bytes", "columns read")
_EFFECTS = ("dataset", "condition", "decided by", "files kept", "files pruned")


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _needed(dataset: DatasetExplanation) -> int:
    return dataset.file_bytes if dataset.read_bytes is None else dataset.read_bytes


def _row(dataset: DatasetExplanation) -> tuple[str | int, ...]:
    return (
        dataset.name,
        dataset.role,
        dataset.read_files,
        dataset.files,
        dataset.read_partitions,
        dataset.partitions,
        bytes_text(_needed(dataset)),
        ", ".join(dataset.columns) or "none",
    )


def explain_query(
    cube: Cube,
    store: StoreInput,
    conditions: Any = None,
    datasets: Any = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
) -> QueryExplanation:
    """
    Show what a query would do. Headers, indices and a few footers are read, no data is.

    Parameters
    ----------
    cube, store, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of
        As in :func:`kartothek_cube.io.eager_cube.query_cube`.

    Returns
    -------
    QueryExplanation
        Which datasets take part and how, what each condition spares, which files are left to read.

    Raises
    ------
    ValueError, TypeError
        As :func:`kartothek_cube.io.eager_cube.query_cube`.

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
    (ConditionEffect(condition='COUNTRY_CODE == DE', by='partition key', kept=1, pruned=1),)
    """
    headers, intention, plan = plan_query_in_steps(
        cube, store, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of=as_of
    )
    blobs = open_blobs(plan.context.store)
    return QueryExplanation(
        cube=cube.uuid_prefix,
        columns=tuple(plan.context.output.names),
        sorted_by=plan.context.sort_columns,
        datasets=tuple(_explain(side, intention, blobs) for side in plan.sides),
        unused=tuple(sorted(set(headers) - set(intention.datasets))),
        partitions=plan.n_partitions,
        partition_by=plan.context.partition_by,
        groups=None if plan.groups is None else len(plan.groups),
        first_groups=(plan.groups or ())[:_SHOWN_GROUPS],
    )


def _explain(side: PartitionSelection, intention: LogicalPlan, blobs: BlobStore) -> DatasetExplanation:
    source, dataset = side.source, side.dataset
    conjunction = intention.conditions[source.name]
    literals = list(conjunction.predicate or ())
    values = dataset.partition_table.keys(list(source.partition_keys), dataset.schema)
    codes = group_codes(list(values.values()), len(dataset.partition_table))
    file_bytes, read_bytes = _sizes(side, blobs)
    return DatasetExplanation(
        name=source.name,
        role=intention.role(source.name),
        aligned_by=source.alignment if source.how != "seed" else (),
        joined_by=source.dimensions if source.how != "seed" else (),
        columns=source.columns,
        conditions=tuple(_effect(side, condition) for condition in conjunction.conditions),
        files=len(dataset.partition_table),
        partitions=len(np.unique(codes)),
        matching_files=len(select_partitions(dataset, [literals] if literals else None)),
        read_files=len(side.positions),
        read_partitions=len(np.unique(codes[side.positions])),
        file_bytes=file_bytes,
        read_bytes=read_bytes,
    )


def _effect(side: PartitionSelection, condition: Any) -> ConditionPruning:
    dataset = side.dataset
    kept = len(select_partitions(dataset, [list(condition.predicate_part)]))
    by = "rows"
    if condition.column in side.source.partition_keys:
        by = "partition key"
    elif condition.column in dataset.indices:
        by = "index"
    return ConditionPruning(str(condition), by, kept, len(dataset.partition_table) - kept)


def _sizes(side: PartitionSelection, blobs: BlobStore) -> tuple[int, int | None]:
    """Bytes of the files that are read, and of the needed columns in them; by a sample if there are many."""
    files = side.dataset.partition_table.files[side.source.table]
    keys = files.take(pa.array(side.positions[:: -(-len(side.positions) // _SIZED) or 1])).to_pylist()
    if not keys:
        return 0, 0
    sizes = list(ordered_map(blobs.size, keys, 1 if blobs.is_local else REMOTE_REQUESTS))
    total = round(sum(sizes) / len(sizes) * len(side.positions))
    in_file = [column for column in side.source.columns if column not in side.source.partition_keys]
    parquet = [key for key in keys if key.endswith(PARQUET_FILE_SUFFIX)]
    if len(parquet) < len(keys):
        return total, None
    share = _column_share(blobs, parquet[:: max(1, len(parquet) // _OPENED)][:_OPENED], in_file)
    return total, round(total * share)


def _column_share(blobs: BlobStore, keys: Sequence[str], columns: Sequence[str]) -> float:
    """How much of the files the columns are; what is not a column (footers) is read in any case."""
    whole = needed = 0
    for key in keys:
        footer, size = read_footer(blobs, key)
        for group in range(footer.num_row_groups):
            chunks = map(footer.row_group(group).column, range(footer.num_columns))
            needed -= sum(
                chunk.total_compressed_size
                for chunk in chunks
                if {chunk.path_in_schema, chunk.path_in_schema.partition(".")[0]}.isdisjoint(columns)
            )
        whole += size
        needed += size
    return needed / whole if whole else 1.0
