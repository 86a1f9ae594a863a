"""Writes of cubes: the arguments of build, extend, append, update and remove, and what they plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

import attrs
import pyarrow as pa

from kartothek_cube.core import arguments, contract, errors, expressions, history, pruning, transforms
from kartothek_cube.core.commit import change
from kartothek_cube.core.cube import consistency, discover, implied_conditions
from kartothek_cube.core.cube.conditions import ConditionsInput, Conjunction
from kartothek_cube.core.cube.constants import KTK_CUBE_DF_SERIALIZER
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store import StoreInput, open_blobs
from kartothek_cube.io_components import scan
from kartothek_cube.io_components.dataset_arguments import check_serializer, to_json
from kartothek_cube.io_components.facade import ALIAS_REQUIRED, StoreT, cube_or_name
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.runtime import store_factory
from kartothek_cube.io_components.write import write_commit, write_plan, write_tasks
from kartothek_cube.io_components.write.write_plan import RowsOutside, SchemaMode, WritePlan, WriteSpec
from kartothek_cube.serialization import DataFrameSerializer

#: metadata to store, by dataset id
CubeMetadata: TypeAlias = Mapping[str, Mapping[str, Any]]
#: type of the input of a façade
DataT = TypeVar("DataT")
Data = TypeVar("Data", covariant=True)


class CubeWrite(Protocol[Data]):
    """The arguments of a write."""

    @property
    def data(self) -> Data:
        """The input."""

    @property
    def cube(self) -> Cube:
        """The cube."""

    def plan(self, names: Iterable[str] = ()) -> WritePlan:
        """Check the arguments and plan; `names` are the ids in the input, if they are no argument."""


_PARTS = """
    Parameters of façades whose input comes in parts.

    Parameters
    ----------
    data
        DataFrames (for the seed), dicts of dataset id to DataFrame, and None. Cells are unique within each
        of these.
    datasets, ktk_cube_dataset_ids
        Ids that may occur in ``data``; for a new cube, only the seed by default.
"""


@attrs.frozen
class BuildCube(Generic[DataT, StoreT]):
    """Store a new cube, with all of its datasets at once.

    Parameters
    ----------
    data
        A DataFrame (the seed), a dict of dataset id to one or a list of DataFrames, or an iterable of these.
        Anything with the Arrow C stream interface (a :class:`pyarrow.Table`, a polars frame, ...) may
        stand for a DataFrame.
    metadata
        Metadata to keep with each dataset, by dataset id.
    overwrite
        Whether an existing cube is replaced.
    partition_on
        Partition columns by dataset id; default are the partition columns of the cube. The seed can't
        have others.
    statistics
        Columns to keep statistics of, by dataset id, see :func:`build_column_statistics`.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    ValueError
        If the input breaks a rule of the cube: missing or duplicate columns, nulls in key columns, duplicate
        cells, payload in two datasets, a missing seed, stored datasets that ``data`` lacks.
    RuntimeError
        If a dataset exists and ``overwrite`` is not set.
    MultiTableCommitAborted
        If a dataset has no rows, or the datasets do not form the cube; the store is as it was then,
        apart from files that :func:`cleanup_cube` removes.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> data = {"seed": cities}
    >>> sorted(build_cube(data, cube, store))
    ['seed']
    """

    #: handling of the name of a cube that is not stored
    cube_not_found: ClassVar[str | None] = (
        "a new cube needs its specification in place of the name, such as "
        'Cube(dimension_columns=["SHOP", "DAY"], partition_columns=[], uuid_prefix="{}")'
    )

    data: DataT
    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    metadata: CubeMetadata | None = None
    overwrite: bool = False
    partition_on: Mapping[str, Iterable[str]] | None = None
    df_serializer: DataFrameSerializer | None = None
    publish: bool = attrs.field(default=True, kw_only=True)
    statistics: Mapping[str, Iterable[str]] | None = attrs.field(default=None, kw_only=True)

    def plan(self, names: Iterable[str] = ()) -> WritePlan:
        """Plan to write a new cube."""
        cube, store = self.cube, self.store
        names = set(names)
        if cube.seed_dataset not in names:
            raise ValueError(
                f'Seed data ("{cube.seed_dataset}") is missing: a new cube needs it, '
                f"given are: {', '.join(sorted(names)) or 'none'}"
            )
        uuids = {name: cube.ktk_dataset_uuid(name) for name in names} if self.overwrite else {}
        replaced = {name: write_plan.read_replaced(uuid, store)[1] for name, uuid in uuids.items()}
        plan = self._plan_new("build", names, {}, replaced)
        existing = discover.existing_dataset_ids(cube.uuid_prefix, store)
        others = existing - names
        if others:
            remedy = "" if self.overwrite else "; pass overwrite=True to replace it"
            raise ValueError(
                f"Cube {cube.uuid_prefix} exists{remedy}. The build lacks {', '.join(sorted(others))}, which "
                "would stay: build all datasets, or delete the cube first"
            )
        remedy = "The cube exists; pass overwrite=True to replace it, or choose another uuid_prefix."
        self._check_absent(existing & names, remedy)
        return plan

    def _check_absent(self, existing: Iterable[str], remedy: str) -> None:
        """Raise DatasetExistsError for the first of some datasets, unless they are overwritten."""
        for name in [] if self.overwrite else sorted(existing):
            raise errors.DatasetExistsError(self.cube.ktk_dataset_uuid(name), remedy)

    def _plan_new(
        self,
        operation: str,
        names: Iterable[str],
        others: Mapping[str, DatasetMetadata],
        replaced: Mapping[str, Mapping[str, Any]],
    ) -> WritePlan:
        """Plan new datasets beside the others of the cube; `replaced` has the metadata of old ones."""
        cube, partition_on, store = self.cube, self.partition_on, store_factory(self.store)
        names, seed = sorted(names), cube.seed_dataset
        fields = [field for ds in others.values() if ds.schema is not None for field in ds.schema.internal()]
        # another type takes precedence over null
        fields.sort(key=lambda field: not pa.types.is_null(field.type))
        shared = {*cube.dimension_columns, *cube.partition_columns}
        types = {field.name: field.type for field in fields if field.name in shared}
        foreign = _payload_owners(cube, others)
        user = _check_metadata(self.metadata, names)
        chosen = _check_statistics(self.statistics, names)
        # settings belong to the cube: those of its seed count for new datasets
        stored = others[seed].metadata if seed in others else replaced.get(seed, {})
        kept = {**change.cube_settings(stored), **change.cube_settings(user.get(seed, {}))}
        arguments.check_mapping("partition_on", partition_on, "dataset id to columns")
        # as in kartothek, it may name datasets that this call does not write
        unnamed = set(names).difference(partition_on or ())
        not_written = set(partition_on or ()).difference(names)
        misspelt = [name for name in not_written if errors.nearest_names(str(name), unnamed)]
        errors.check_names("partition_on: ", "dataset", misspelt, unnamed)
        df_serializer = check_serializer(self.df_serializer, KTK_CUBE_DF_SERIALIZER)
        mode = change.WriteMode.REPLACE if self.overwrite else change.WriteMode.CREATE
        specs = {}
        for name in names:
            keys = _check_partition_on(cube, name, partition_on)
            indexed = set(cube.index_columns)
            if name == seed:
                indexed |= set(cube.dimension_columns) - set(cube.suppress_index_on)
            metadata = {**kept, **user.get(name, {}), **chosen.get(name, {})}
            metadata |= consistency.cube_metadata(cube, name)
            specs[name] = WriteSpec(
                name=name,
                cube=cube,
                foreign=foreign,
                store=store,
                uuid=cube.ktk_dataset_uuid(name),
                partition_on=keys,
                serializer=df_serializer,
                types=types,
                contract=contract.Contract.of(cube.ktk_dataset_uuid(name), replaced.get(name, {})),
                optional_indices=tuple(sorted(indexed - set(keys))),
                statistics=pruning.statistics_columns(metadata),
                change=change.ChangeSet(cube.ktk_dataset_uuid(name), mode=mode, metadata=metadata),
            )
        info = history.describe_operation(operation)
        return WritePlan(info=info, cube=cube, store=store, specs=specs).stage(publish=self.publish)


@attrs.frozen
class BuildParts(BuildCube[DataT, StoreT]):  # noqa: D101 - shared
    __doc__ = _PARTS

    ktk_cube_dataset_ids: str | Iterable[str] | None = None
    metadata: CubeMetadata | None = None
    overwrite: bool = False
    partition_on: Mapping[str, Iterable[str]] | None = None
    df_serializer: DataFrameSerializer | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def plan(self, names: Iterable[str] = ()) -> WritePlan:
        """Plan the write."""
        ids = arguments.parse_name_set_optional("datasets", self.ktk_cube_dataset_ids)
        return super().plan([self.cube.seed_dataset] if ids is None else ids)


@attrs.frozen
class ExtendCube(BuildCube[DataT, StoreT]):
    """Add datasets, and with them columns, to a cube.

    Parameters
    ----------
    overwrite
        Whether datasets that exist already are replaced.
    partition_on
        Partition columns by dataset id; default are the partition columns of the cube.
    statistics
        Columns to keep statistics of, by dataset id, see :func:`build_column_statistics`.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError
        As :func:`build_cube`; also for the seed, and for payload columns that the cube has in another
        dataset.
    RuntimeError
        If a dataset exists and ``overwrite`` is not set.
    MultiTableCommitAborted
        If a dataset has no rows; the store is as it was then, apart from files that :func:`cleanup_cube`
        removes.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> from kartothek_cube.io.eager_cube import extend_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> data = {"sizes": cities.assign(PEOPLE=[336, 2873])}
    >>> sorted(extend_cube(data, cube, store))
    ['sizes']
    """

    cube_not_found = None

    def plan(self, names: Iterable[str] = ()) -> WritePlan:
        """Plan to add datasets to a cube."""
        cube, store = self.cube, self.store
        names = set(names)
        if cube.seed_dataset in names:
            raise ValueError(
                f'Seed data ("{cube.seed_dataset}") cannot be written when a cube is extended, only when it '
                "is built. Name the new dataset, as in {'weather': df}; append adds rows to the seed"
            )
        existing = load_datasets(cube, store)
        remedy = "Pass overwrite=True to replace it, or choose another id."
        self._check_absent(names.intersection(existing), remedy)
        others = {name: ds for name, ds in existing.items() if name not in names}
        extend = attrs.evolve(self, cube=_with_stored_transforms(cube, existing[cube.seed_dataset]))
        replaced = {name: dataset.metadata for name, dataset in existing.items() if name in names}
        return extend._plan_new("extend", names, others, replaced)


@attrs.frozen
class ExtendParts(ExtendCube[DataT, StoreT]):  # noqa: D101 - shared
    __doc__ = _PARTS

    ktk_cube_dataset_ids: str | Iterable[str] | None = attrs.field(default=None, metadata=ALIAS_REQUIRED)
    metadata: CubeMetadata | None = None
    overwrite: bool = False
    partition_on: Mapping[str, Iterable[str]] | None = None
    df_serializer: DataFrameSerializer | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def plan(self, names: Iterable[str] = ()) -> WritePlan:
        """Plan the write."""
        return super().plan(arguments.parse_name_set("datasets", self.ktk_cube_dataset_ids))


@attrs.frozen
class AppendToCube(Generic[DataT, StoreT]):
    """Add partitions to datasets of a cube.

    New cells hide older ones with the same key in the same partition. Datasets without rows in the input stay
    as they are.

    Parameters
    ----------
    data
        As in :func:`build_cube`.
    metadata
        Metadata to set by dataset id; other entries stay.
    schema_mode
        ``strict``: rows have the columns of the dataset. ``merge``: new cells may lack payload columns, which
        are null there or have the default of :func:`update_schema`, and new payload columns are added, which
        are null in existing rows. A cell that would lose a stored value in this way is an error: use
        :func:`merge_into_cube`. All frames of a dataset in one call have the same columns.
    unique_cells
        Whether a cell of the seed that is already in another partition of the cube is an error. Otherwise
        both are rows of a query. Only files are read that share a value of each indexed dimension; a
        concurrent append is not seen.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError
        As :func:`build_cube`; also for datasets that do not exist, for columns that do not fit, and for
        ``unique_cells`` if the seed has no index on any dimension.
    MultiTableCommitAborted
        As :func:`build_cube`.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, query_cube_df
    >>> from kartothek_cube.io.eager_cube import append_to_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> data = {"seed": pd.DataFrame({"CITY": ["Ulm"], "COUNTRY_CODE": ["DE"]})}
    >>> _ = append_to_cube(data, cube, store)
    >>> query_cube_df(cube, store)["CITY"].tolist()
    ['Bonn', 'Rom', 'Ulm']
    """

    data: DataT
    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    metadata: CubeMetadata | None = None
    df_serializer: DataFrameSerializer | None = None
    unique_cells: bool = attrs.field(default=False, kw_only=True)
    schema_mode: SchemaMode = attrs.field(default="strict", kw_only=True)
    publish: bool = attrs.field(default=True, kw_only=True)

    def plan(self, names: Iterable[str] = ()) -> WritePlan:
        """Plan to add partitions to datasets of a cube."""
        merge = write_plan.is_merge_mode(self.schema_mode)
        cube, store = self.cube, self.store
        existing = load_datasets(cube, store)
        datasets = {name: existing[name] for name in discover.choose_datasets(cube, names, existing)}
        indices = existing[cube.seed_dataset].secondary_indices
        if self.unique_cells and indices.keys().isdisjoint(cube.dimension_columns):
            raise ValueError(
                f"unique_cells needs an index on a dimension column of dataset {cube.seed_dataset!r}; "
                f"without one, all its files would be read"
            )
        plan = plan_existing(
            "append", cube, store, datasets, self.metadata, self.df_serializer, existing, merge
        )
        return attrs.evolve(plan.stage(publish=self.publish), unique_cells=self.unique_cells)

    def plan_overwrite(self, name: str) -> WritePlan:
        """Plan to replace those partitions of a dataset for which there is input."""
        plan = AppendToCube.plan(self, [name])
        existing = load_datasets(self.cube, self.store)
        unseen = change.NoUnseenPartitions(existing[name].partition_table.labels)
        plan = plan.evolve_changes(overwrites_partitions=True, requires=(unseen,))
        return attrs.evolve(plan, info=history.describe_operation("update"), keep_empty=True)


@attrs.frozen
class AppendParts(AppendToCube[DataT, StoreT]):  # noqa: D101 - shared
    __doc__ = _PARTS

    ktk_cube_dataset_ids: str | Iterable[str] | None = attrs.field(default=None, metadata=ALIAS_REQUIRED)
    metadata: CubeMetadata | None = None
    df_serializer: DataFrameSerializer | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def plan(self, names: Iterable[str] = ()) -> WritePlan:
        """Plan the write."""
        return super().plan(arguments.parse_name_set("datasets", self.ktk_cube_dataset_ids))


@attrs.frozen
class UpdateCube(Generic[DataT, StoreT]):
    """Remove partitions of datasets and add others, by one commit.

    Parameters
    ----------
    data
        As in :func:`build_cube`.
    remove_conditions
        Partitions to remove, as in :func:`remove_partitions`; None removes nothing.
    datasets, ktk_cube_dataset_ids
        Datasets to update, also those for which there is no input.
    metadata
        Metadata to set by dataset id; other entries stay.
    rows_outside
        What to do with input for partitions that ``remove_conditions`` do not select: ``"raise"`` an error;
        ``"append"`` it, beside the rows that are stored there; ``"warn"`` and append it, as
        ``update_cube_from_bag`` does by default, for users of kartothek.

    Returns
    -------
    dict
        Dataset id to metadata of the updated datasets.

    Raises
    ------
    ValueError
        For input of other datasets or outside of the conditions, conditions on other columns than the
        partition columns of the cube, and as :func:`append_to_cube`.
    ConcurrentWriteError
        If another writer added partitions in the range that is removed.
    MultiTableCommitAborted
        If a dataset would lose all its partitions.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, query_cube_df
    >>> from kartothek_cube.io.eager_cube import update_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> data = {"seed": pd.DataFrame({"CITY": ["Ulm"], "COUNTRY_CODE": ["DE"]})}
    >>> _ = update_cube(data, cube, store, "COUNTRY_CODE == DE", ["seed"])
    >>> query_cube_df(cube, store)["CITY"].tolist()
    ['Rom', 'Ulm']
    """

    data: DataT
    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    remove_conditions: ConditionsInput | Literal["all"]
    ktk_cube_dataset_ids: str | Iterable[str] | None = attrs.field(default=None, metadata=ALIAS_REQUIRED)
    metadata: CubeMetadata | None = None
    df_serializer: DataFrameSerializer | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)
    rows_outside: RowsOutside = attrs.field(default="raise", kw_only=True)
    publish: bool = attrs.field(default=True, kw_only=True)

    def plan(self, names: Iterable[str] = ()) -> WritePlan:
        """Plan to replace partitions: remove those that meet the conditions and add input, in one commit."""
        errors.check_choice("rows_outside", self.rows_outside, get_args(RowsOutside))
        names = arguments.parse_name_set("datasets", self.ktk_cube_dataset_ids)
        plan = _plan_removal(
            self, "update", "remove_conditions", self.remove_conditions, names, self.df_serializer
        )
        return attrs.evolve(plan, rows_outside=self.rows_outside)


@attrs.frozen
class RemovePartitions(Generic[StoreT]):
    """Remove partitions.

    Their files stay until :func:`cleanup_cube`.

    Parameters
    ----------
    conditions
        Conditions on partition columns of the cube, or their text. A condition on a column is ignored in
        datasets that are not partitioned by it: they lose rows with all its values, which is a warning unless
        they are named. One that joins several columns by ``|`` is an error if a
        dataset is partitioned by some of them only. ``"all"`` removes all partitions; without conditions,
        that is an error.
    datasets, ktk_cube_dataset_ids
        Datasets concerned; all by default.
    metadata
        Metadata to set by dataset id.

    Returns
    -------
    dict
        Dataset id to metadata of all datasets of the cube.

    Raises
    ------
    ValueError
        For no conditions, conditions on other columns, and unknown datasets.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, query_cube_df
    >>> from kartothek_cube.io.eager_cube import remove_partitions
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = remove_partitions(cube, store, "COUNTRY_CODE == DE")
    >>> query_cube_df(cube, store)["CITY"].tolist()
    ['Rom']
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    conditions: ConditionsInput | Literal["all"] = None
    ktk_cube_dataset_ids: str | Iterable[str] | None = None
    metadata: CubeMetadata | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)
    publish: bool = attrs.field(default=True, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[dict[str, DatasetMetadata]]:
        """Remove partitions: a commit, without tasks."""
        job = write_commit.write_job(self.plan(), [], write_tasks.write_frames)
        description = f"remove partitions of cube {self.cube.uuid_prefix}"
        return attrs.evolve(job, name="remove_partitions", description=description)

    def plan(self) -> WritePlan:
        """The specification of the commit."""
        conditions = () if self.conditions is None else self.conditions
        plan = _plan_removal(self, "remove_partitions", "conditions", conditions, self.ktk_cube_dataset_ids)
        return attrs.evolve(plan, keep_empty=True, return_all=True)


# -- what the plans share -----------------------------------------------------------------------------------


def _check_metadata(metadata: CubeMetadata | None, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Check the ``metadata`` argument of a cube write; a copy, empty for None."""
    arguments.check_mapping("metadata", metadata, "dataset id to dict")
    errors.check_names("metadata: ", "dataset", metadata or (), names)
    checked = {}
    for name, values in (metadata or {}).items():
        arguments.check_mapping(f"metadata for dataset {name}", values)
        try:
            checked[name] = to_json(dict(values))
        except (TypeError, ValueError) as exc:
            raise TypeError(f"metadata for dataset {name} cannot be stored as JSON: {exc}") from exc
        change.check_settings(values)
    return checked


def _check_statistics(
    statistics: Mapping[str, Iterable[str]] | None, names: Collection[str]
) -> dict[str, dict[str, list[str]]]:
    """The entry of the metadata of each dataset with the names of its columns with statistics."""
    arguments.check_mapping("statistics", statistics, "dataset id to columns")
    errors.check_names("statistics: ", "dataset", statistics or (), names)
    return {
        name: {pruning.STATISTICS: sorted(arguments.parse_name_set(f"statistics of dataset {name}", c))}
        for name, c in (statistics or {}).items()
    }


def _check_partition_on(
    cube: Cube, name: str, partition_on: Mapping[str, Iterable[str]] | None
) -> tuple[str, ...]:
    """Partition keys of a dataset; by default the partition columns of the cube."""
    columns = tuple(cube.partition_columns)
    if partition_on is not None and name in partition_on:
        columns = arguments.parse_names(f"partition_on of dataset {name}", partition_on[name])
    if name == cube.seed_dataset and columns != tuple(cube.partition_columns):
        raise ValueError(
            f"Seed dataset {name} must have the partition columns of the cube: expected "
            f"[{', '.join(cube.partition_columns)}], but partition_on is [{', '.join(columns)}]"
        )
    return columns


def _with_stored_transforms(cube: Cube, dataset: DatasetMetadata) -> Cube:
    """The cube with the partition transforms of a stored dataset, if it has a record of them."""
    # kartothek records none
    stored = transforms.read_transforms(dataset.metadata)
    if stored is None:
        return cube
    if cube.transforms and set(cube.transforms) != set(stored):
        described = [", ".join(map(repr, each)) or "nothing" for each in (stored, cube.transforms)]
        raise ValueError(
            f"Dataset {dataset.uuid!r} was written with the partition columns {described[0]}, but the cube "
            f"has {described[1]}; discover_cube gives the specification of a stored cube"
        )
    return cube.copy(transforms=stored)


def load_datasets(cube: Cube, store: StoreInput) -> dict[str, DatasetMetadata]:
    """The datasets of a cube, which are checked if they have changed; shared, and not to be changed."""
    return discover.load_snapshot(cube, open_blobs(store), None).datasets


def _payload_owners(cube: Cube, datasets: Mapping[str, DatasetMetadata]) -> dict[str, str]:
    """Payload columns of datasets, with the dataset that has them."""
    columns = {name: consistency.get_dataset_columns(dataset) for name, dataset in datasets.items()}
    return {c: name for name, own in columns.items() for c in consistency.get_payload_subset(own, cube)}


def plan_existing(
    operation: str,
    cube: Cube,
    store: StoreInput,
    datasets: Mapping[str, DatasetMetadata],
    metadata: CubeMetadata | None,
    serializer: Any = None,
    others: Mapping[str, DatasetMetadata] | None = None,
    merge_schema: bool = False,
) -> WritePlan:
    """Plan updates of existing datasets; `others`: those of the cube, whose payload the input cannot have."""
    user = _check_metadata(metadata, datasets)
    factory, df_serializer = store_factory(store), check_serializer(serializer, KTK_CUBE_DF_SERIALIZER)
    foreign = _payload_owners(cube, others or {})
    # as in kartothek, a write restores the specification
    lost = {
        name: consistency.cube_metadata(cube, name)
        for name, dataset in datasets.items()
        if consistency.lacks_specification(dataset)
    }
    specs = {
        name: WriteSpec.of_dataset(
            dataset,
            {**lost.get(name, {}), **user.get(name, {})},
            store=factory,
            merge_schema=merge_schema,
            name=name,
            cube=_with_stored_transforms(cube, dataset),
            foreign={column: owner for column, owner in foreign.items() if owner != name},
            serializer=df_serializer,
        )
        for name, dataset in sorted(datasets.items())
    }
    info = history.describe_operation(operation)
    return WritePlan(info=info, cube=cube, store=factory, specs=specs)


def _plan_removal(
    write: UpdateCube[Any, Any] | RemovePartitions[Any],
    operation: str,
    argument: str,
    conditions: ConditionsInput | Literal["all"],
    names: str | Iterable[str] | None,
    serializer: DataFrameSerializer | None = None,
) -> WritePlan:
    """Plan updates that also remove the partitions which meet the conditions of an argument."""
    cube, store = write.cube, write.store
    existing = load_datasets(cube, store)
    conjunction, caller = None, arguments.CallerLine.find()
    if conditions is not None:
        conjunction = removal_conditions(cube, conditions, existing)
        check_is_full_removal(argument, conditions, is_full=not conjunction.active)
    datasets = {name: existing[name] for name in discover.choose_datasets(cube, names, existing)}
    plan = plan_existing(operation, cube, store, datasets, write.metadata, serializer, existing)
    specs = dict(plan.specs)
    if conjunction is not None:
        for name, spec in plan.specs.items():
            dataset, remove_where = existing[name], partition_scope(conjunction, existing[name])
            selected = dataset.partition_table.take(pruning.select_partitions(dataset, remove_where))
            unseen = change.NoUnseenPartitions(selected.labels)
            specs[name] = spec.evolve_change(remove_where=remove_where, requires=(unseen,))
            foreign = ", ".join(sorted(conjunction.columns - set(dataset.partition_keys or ())))
            if names is None and len(selected) and foreign:
                files = selected.files[dataset.table_name].to_pylist()
                _warn_of_other_keys(caller, dataset, foreign, files, store)
    plan = attrs.evolve(plan, specs=specs, commit_all=True, caller=caller)
    return plan.stage(publish=write.publish)


# -- conditions of removals ---------------------------------------------------------------------------------


def partition_scope(conditions: Conjunction, dataset: DatasetMetadata) -> expressions.AllOf:
    """Those conditions that concern partition keys of a dataset."""
    keys = set(dataset.partition_keys or ())
    schema = consistency.arrow_schema(dataset)
    types = dict(zip(schema.names, schema.types, strict=True))
    nodes: list[expressions.Node] = []
    for condition in conditions.conditions:
        columns = Conjunction(condition).columns
        if columns <= keys and columns:
            nodes.append(condition.to_tree(types))
        elif columns & keys:
            # neither side of the "or" alone selects the partitions of this dataset
            raise ValueError(
                f"Condition `{condition}` has columns by which dataset {dataset.uuid!r} is not partitioned: "
                f"{', '.join(sorted(columns - keys))}"
            )
    return expressions.AllOf(tuple(nodes))


def removal_conditions(
    cube: Cube, conditions: ConditionsInput, datasets: Mapping[str, DatasetMetadata], verb: str = "remove"
) -> Conjunction:
    """Check that conditions concern partition columns only; none for ``"all"``."""
    if isinstance(conditions, str) and conditions == "all":
        return Conjunction(None)
    fields = [field for dataset in datasets.values() for field in consistency.arrow_schema(dataset)]
    conjunction = implied_conditions.to_conjunction(conditions, {field.name: field.type for field in fields})
    wrong = conjunction.columns - set(cube.partition_columns)
    if wrong:
        remedy = ". Functions whose names begin with delete_rows take conditions on all columns"
        raise ValueError(
            f"Can only {verb} partitions with conditions concerning cubes physical partition columns "
            f"({', '.join(cube.partition_columns) or 'none: all rows are one partition'}), "
            f"but got conditions on: {', '.join(sorted(wrong))}" + (remedy if verb == "remove" else "")
        )
    return conjunction


def _warn_of_other_keys(
    caller: arguments.CallerLine, dataset: DatasetMetadata, keys: str, files: list[str], store: StoreInput
) -> None:
    """Warn of a removal from a dataset that was not named and lacks partition keys of the conditions."""
    try:
        extent = errors.format_count(scan.count_rows(open_blobs(store), files), "row")
    except (errors.KartothekCubeError, OSError, ValueError):
        # of files that cannot be read, or have no footers, a removal is possible all the same
        extent = errors.format_count(len(files), "file")
    caller.warn(
        f"Removed from dataset {dataset.uuid!r}, which is not partitioned by {keys}: {extent}, whatever "
        f"their {keys}. Name those to remove partitions from by datasets=..."
    )


def check_is_full_removal(argument: str, given: object, *, is_full: bool) -> None:
    """Refuse a removal of everything that the conditions do not ask for."""
    if is_full and not (isinstance(given, str) and given == "all"):
        raise ValueError(
            f"No {argument}: everything would be removed. Pass {argument}='all' if that is the intention"
        )
