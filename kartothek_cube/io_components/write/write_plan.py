"""The plan of a write: of one dataset, or of several datasets of a cube, which are committed at once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeVar

import attrs
import pyarrow as pa

from kartothek_cube.core.commit.change import (
    ChangeSet,
    MetadataMerger,
    NoUnseenPartitions,
    Requirement,
    WriteMode,
)
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.errors import MultiTableCommitAborted
from kartothek_cube.core.expressions.predicate import Node
from kartothek_cube.core.history import OperationInfo, describe_operation
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.arguments import user_metadata
from kartothek_cube.io_components.write.table_writer import WriteContext, WriteResult

#: whether input has the columns of the dataset, or may lack some and add others
SchemaMode = Literal["strict", "merge"]
#: what an update does with input for partitions that its conditions do not select
RowsOutside = Literal["raise", "warn", "append"]


def is_merge_mode(schema_mode: SchemaMode) -> bool:
    """The ``schema_mode`` argument; raises ValueError."""
    if schema_mode not in ("strict", "merge"):
        raise ValueError(f"schema_mode is 'strict' or 'merge', got {schema_mode!r}")
    return schema_mode == "merge"


@attrs.frozen
class DatasetWritePlan:
    """How files of a dataset are written, and what their commit changes."""

    context: WriteContext
    mode: WriteMode
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    merge_metadata: MetadataMerger | None = None
    #: partitions to remove, as in `ChangeSet`
    remove_where: Node | None = None
    #: labels that `remove_where` selects at planning; None if the commit may also remove newer ones
    assumed_labels: pa.StringArray | None = None
    #: whether stored partitions with the key values of written ones are removed
    overwrites_partitions: bool = False
    #: labels that the added partitions replace, and what the commit requires beyond the fields above
    replaces: pa.StringArray | None = None
    requires: tuple[Requirement, ...] = ()
    #: format of a new header
    storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT
    #: whether input may have other columns than the dataset
    merge_schema: bool = False
    #: stream and number of its batch
    batch: tuple[str, int] | None = None

    def change_set(self, result: WriteResult, info: OperationInfo) -> ChangeSet:
        """The change that commits what tasks wrote."""
        merger = self.merge_metadata
        assumed = () if self.assumed_labels is None else (NoUnseenPartitions(self.assumed_labels),)
        return result.change_set(
            mode=self.mode,
            metadata=self.metadata,
            merge_metadata=None if merger is None else partial(_merge_metadata, merger),
            partition_keys=self.context.partition_on,
            remove_where=self.remove_where,
            overwrites_partitions=self.overwrites_partitions,
            storage_format=self.storage_format,
            merge_schema=self.merge_schema,
            batch=self.batch,
            info=info,
            write_id=self.context.write_id,
            replaces=self.replaces,
            requires=(*self.requires, *assumed),
        )


def _merge_metadata(merger: MetadataMerger, dicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge stored and given metadata; the user's function has the last word on both."""
    stored, given = dicts
    return {**stored, **given, **user_metadata(merger([dict(stored), dict(given)]))}


@attrs.frozen(kw_only=True)
class WritePlan:
    """A planned write of one dataset, by its uuid."""

    #: for messages and the history
    operation: str = "write"
    store: StoreFactory
    #: all datasets that the write may touch, by id
    changes: Mapping[str, DatasetWritePlan]
    #: whether datasets without input are committed as well
    commit_all: bool = True
    #: message and job of the user
    annotations: OperationInfo = attrs.field(factory=partial(describe_operation, ""))

    @property
    def info(self) -> OperationInfo:
        """What the history tells of the operation."""
        return attrs.evolve(self.annotations, name=self.operation)

    @property
    def dataset(self) -> DatasetWritePlan:
        """The plan of the only dataset."""
        (change,) = self.changes.values()
        return change

    @property
    def job_name(self) -> str:
        """Prefix of the names of tasks."""
        is_new = self.dataset.mode in (WriteMode.CREATE, WriteMode.REPLACE)
        return "store_dataset" if is_new else "update_dataset"

    @property
    def description(self) -> str:
        """What Spark displays while the tasks run."""
        return f"write dataset {self.dataset.context.uuid}"


#: for each file the warnings that were shown: by default, each line warns once
_SHOWN: dict[str, dict[str | tuple[str, type[Warning], int], int]] = {}


class CallerLine(NamedTuple):
    """A line of the user's code, which warnings name; also those of tasks, in other threads and processes."""

    file: str
    number: int
    module: str

    @classmethod
    def find(cls) -> Self:
        """The innermost line outside of this package that is being executed."""
        frame = sys._getframe()
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("kartothek_cube."):
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__")))

    def warn(self, message: str, category: type[Warning] = UserWarning) -> None:
        """Warn as if this line did."""
        shown = _SHOWN.setdefault(self.file, {})
        warnings.warn_explicit(message, category, self.file, self.number, self.module, shown)


@attrs.frozen(kw_only=True)
class CubeWritePlan(WritePlan):
    """A planned write of datasets of a cube, by their ids, with the rules of the cube."""

    cube: Cube
    commit_all: bool = False
    #: payload columns that other datasets of the cube have, with their dataset
    foreign: Mapping[str, str] = attrs.field(factory=dict)
    #: whether a dataset may end up without partitions
    keep_empty: bool = False
    #: whether the result has all datasets of the cube
    return_all: bool = False
    #: whether no cell of the input may be in another partition of the cube
    unique_cells: bool = False
    #: line of the user that asks for a removal of partitions, if one does
    caller: CallerLine | None = attrs.field(default=None, eq=False)
    rows_outside: RowsOutside = "append"

    @property
    def job_name(self) -> str:
        """Prefix of the names of tasks."""
        return f"{self.operation}_cube"

    @property
    def description(self) -> str:
        """What Spark displays while the tasks run."""
        return f"{self.operation} cube {self.cube.uuid_prefix}"

    def constraints(self, name: str) -> DatasetConstraints:
        """What the rows of a dataset have to meet."""
        foreign = {column: owner for column, owner in self.foreign.items() if owner != name}
        return DatasetConstraints(name, self.cube, self.changes[name].context, foreign)

    def abort_error(self, name: str, problem: ValueError) -> MultiTableCommitAborted:
        """The error for a write that was given up before anything was committed."""
        return MultiTableCommitAborted(self.cube.ktk_dataset_uuid(name), detail=str(problem))


@attrs.frozen
class DatasetConstraints:
    """What the rows of one dataset of a cube have to meet."""

    #: id of the dataset
    name: str
    cube: Cube
    context: WriteContext
    #: payload columns of other datasets of the cube, with their dataset
    foreign: Mapping[str, str]

    @property
    def is_seed(self) -> bool:
        """Whether this is the seed."""
        return self.name == self.cube.seed_dataset


P = TypeVar("P", bound=WritePlan)


def with_write_id(plan: P) -> P:
    """The plan of an idempotent write, for engines that may run tasks again, even committed ones."""
    # the commit finds the id in the labels of the state, and changes nothing then
    write_id = gen_uuid()[:16]
    changes = {
        name: attrs.evolve(change, context=attrs.evolve(change.context, write_id=write_id))
        for name, change in plan.changes.items()
    }
    return attrs.evolve(plan, changes=changes)


def without_commit_state(plan: P) -> P:
    """Drop what only the commit needs; the size of the plan no longer grows with the cube."""
    changes = {
        name: attrs.evolve(change, metadata={}, merge_metadata=None, remove_where=None, assumed_labels=None)
        for name, change in plan.changes.items()
    }
    return attrs.evolve(plan, changes=changes)
