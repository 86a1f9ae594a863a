"""Plan writes of single datasets: store, update, and the commit of files that are written already."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias

import attrs
import pandas as pd
import pyarrow as pa

from kartothek_cube.core import arrow, errors, naming, pruning
from kartothek_cube.core.arguments import parse_name
from kartothek_cube.core.commit import optimistic
from kartothek_cube.core.commit.change import ChangeSet, MetadataMerger, NoUnseenPartitions, WriteMode
from kartothek_cube.core.contract import Contract
from kartothek_cube.core.cube import constants, discover
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions import AllOf, AnyOf, columns_of, is_null_value
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.schema import SchemaWrapper, make_meta
from kartothek_cube.core.store import StoreFactory, StoreInput, open_blobs
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components import dataset_arguments, runtime
from kartothek_cube.io_components.write import write_plan, write_tasks
from kartothek_cube.io_components.write.write_commit import check_rules
from kartothek_cube.io_components.write.write_plan import SchemaMode, WritePlan, WriteResult, WriteSpec
from kartothek_cube.serialization import DataFrameSerializer

#: handling of partitions that another writer has added since a removal was planned
OnConflict = Literal["raise", "replace"]


Names: TypeAlias = str | Sequence[str] | None


@attrs.frozen
class StoreDataset:
    """Store a new dataset.

    Parameters
    ----------
    dataset_uuid
        Uuid of the dataset; None for a random one.
    metadata
        User metadata: a dict that JSON can express, or a function that returns one.
    partition_on
        Columns by whose values each input is split into partitions.
    df_serializer
        How files are written; Parquet with SNAPPY by default.
    overwrite
        Whether an existing dataset is replaced.
    secondary_indices
        Columns to index: reads with predicates on them open only the files that hold the values.
    metadata_storage_format
        Format of the header, ``json`` or ``msgpack``.

    Returns
    -------
    DatasetMetadata
        The stored dataset.

    Raises
    ------
    RuntimeError
        The dataset exists and ``overwrite`` is not set; a partition column is to be indexed, or a column to
        index is missing.
    ValueError
        There is no input, or it has several tables; inputs have different schemas, lack a partition column,
        or hold a null in one.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.iter import store_dataframes_as_dataset__iter
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> data = [pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})]
    >>> len(store_dataframes_as_dataset__iter(data, store, "geodata", partition_on="COUNTRY_CODE").partitions)
    2
    """

    store: StoreInput
    dataset_uuid: str | None = None
    metadata: dataset_arguments.MetadataInput = None
    partition_on: Names = None
    df_serializer: DataFrameSerializer | None = None
    overwrite: bool = False
    secondary_indices: Names = None
    metadata_storage_format: str = naming.DEFAULT_METADATA_STORAGE_FORMAT
    metadata_version: int = naming.DEFAULT_METADATA_VERSION
    table_name: str = naming.SINGLE_TABLE
    publish: bool = attrs.field(default=True, kw_only=True)

    def plan(self) -> WritePlan:
        """Plan to write a new dataset."""
        uuid = gen_uuid() if self.dataset_uuid is None else self.dataset_uuid
        mode = WriteMode.REPLACE if self.overwrite else WriteMode.CREATE
        spec = _new_spec(self, runtime.store_factory(self.store), uuid, mode)
        exists, metadata = write_plan.read_replaced(uuid, spec.store)
        if exists and not self.overwrite:
            raise errors.DatasetExistsError(uuid)
        # overwriting is how a user repairs a contract that is damaged, too
        with suppress(errors.CorruptDatasetError):
            spec = _with_contract(spec, metadata) if exists else spec
        return _plan(spec, publish=self.publish)


def _plan(spec: WriteSpec, *, publish: bool) -> WritePlan:
    return WritePlan(store=spec.store, specs={spec.uuid: spec}, commit_all=True).stage(publish=publish)


def _merge_metadata(merger: MetadataMerger, uuid: str, dicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge stored and given metadata; the user's function has the last word on both."""
    stored, given = dicts
    try:
        merged = merger([dict(stored), dict(given)])
    except Exception as error:
        # no error that a store may raise: the commit is not done, and the files of the write are deleted
        raise ValueError(f"metadata_merger failed for dataset {uuid!r}: {error!r}") from error
    return {**stored, **given, **dataset_arguments.user_metadata(merged)}


def _columns(name: str, value: Names) -> tuple[str, ...]:
    return tuple(parse_name(name, column) for column in dataset_arguments.normalize_arg(name, value) or ())


def _new_spec(
    write: StoreDataset | UpdateDataset, store: StoreFactory, uuid: str, mode: WriteMode
) -> WriteSpec:
    """The specification as far as it does not depend on the stored state."""
    version = write.metadata_version if isinstance(write, StoreDataset) else write.default_metadata_version
    # not all façades have these parameters
    storage_format = getattr(write, "metadata_storage_format", naming.DEFAULT_METADATA_STORAGE_FORMAT)
    merger: MetadataMerger | None = getattr(write, "metadata_merger", None)
    sort_by: Names = getattr(write, "sort_partitions_by", None)
    metadata = dataset_arguments.user_metadata(write.metadata)
    if merger is not None and not callable(merger):
        raise TypeError(f"metadata_merger is a function of a list of two dicts, got {merger!r}")
    if not write.publish:
        try:
            pickle.dumps(merger)
        except Exception as error:
            raise ValueError(
                "metadata_merger of a write with publish=False has to be a function of a module: another "
                f"process may publish the write, and {merger!r} cannot be pickled"
            ) from error
    storage_format = parse_name("metadata_storage_format", storage_format).lower()
    change = ChangeSet(uuid, mode=mode, metadata=metadata, storage_format=storage_format)
    if merger is not None:
        change = attrs.evolve(change, merge_metadata=partial(_merge_metadata, merger, uuid))
    spec = WriteSpec(
        store,
        uuid,
        write.table_name,
        _columns("partition_on", write.partition_on),
        _columns("secondary_indices", write.secondary_indices),
        dataset_arguments.check_serializer(write.df_serializer),
        _columns("sort_partitions_by", sort_by),
        statistics=pruning.statistics_columns(metadata),
        change=change,
    )
    naming.check_metadata_version(version)
    naming.check_table_name(spec.table)
    naming.metadata_key_from_uuid(uuid, spec.change.storage_format)
    for name in ("partition_on", "indices", "sort_by"):
        duplicates = dataset_arguments.extract_duplicates(getattr(spec, name))
        if duplicates:
            raise ValueError(
                f"Columns are named twice for dataset {spec.uuid!r}: {', '.join(sorted(duplicates))}"
            )
    dataset_arguments.check_new_indices(spec.uuid, spec.indices, spec.partition_on)
    return spec


@attrs.frozen
class UpdateDataset:
    """Remove partitions and add others, in one step. A dataset that does not exist is created.

    Concurrent writers may do this at the same time: no addition is lost.

    Parameters
    ----------
    delete_scope
        Partitions to remove: a list of dicts of indexed column to value. A partition matches if it has all
        values of a dict; the empty dict matches all partitions. The files stay until
        :func:`garbage_collect_dataset`.
    metadata
        Metadata to set; other entries stay.
    df_serializer
        How files are written; Parquet with SNAPPY by default.
    default_metadata_version
        Version of the format of a new dataset.
    partition_on
        Partition keys of the dataset; required only to create it.
    secondary_indices
        Indices of the dataset; required only to create it. All indices are kept up to date.
    on_conflict
        What to do about partitions that a concurrent writer adds and ``delete_scope`` matches: ``raise`` an
        error, or ``replace`` them as well.
    schema_mode
        ``strict``: rows have the columns of the dataset. ``merge``: they may lack columns without an index,
        which are null there or have the default of :func:`update_dataset_schema`, and new columns are added,
        which are null in existing rows. All inputs of one call have the same columns.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    ValueError
        Inputs or arguments do not fit the dataset; there is no input and no dataset.
    ConcurrentWriteError
        A concurrent writer added partitions that would be removed; nothing is changed.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.api.dataset import read_dataset_as_dataframes
    >>> from kartothek_cube.io.iter import update_dataset_from_dataframes__iter
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> data = [pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})]
    >>> _ = update_dataset_from_dataframes__iter(data, store, "geodata", partition_on="COUNTRY_CODE")
    >>> len(read_dataset_as_dataframes("geodata", store))
    2
    """

    store: StoreInput | None = None
    dataset_uuid: str | None = None
    #: a list of dicts, or a dask Delayed of one, which `with_scope` adds
    delete_scope: Any = None
    metadata: dataset_arguments.MetadataInput = None
    df_serializer: DataFrameSerializer | None = None
    metadata_merger: MetadataMerger | None = None
    default_metadata_version: int = naming.DEFAULT_METADATA_VERSION
    partition_on: Names = None
    sort_partitions_by: Names = None
    secondary_indices: Names = None
    table_name: str = naming.SINGLE_TABLE
    factory: DatasetFactory | None = None
    on_conflict: OnConflict = attrs.field(default="raise", kw_only=True)
    schema_mode: SchemaMode = attrs.field(default="strict", kw_only=True)
    publish: bool = attrs.field(default=True, kw_only=True)

    def plan(self) -> WritePlan:
        """Plan to remove and add partitions; a dataset that does not exist is created."""
        is_merge = write_plan.is_merge_mode(self.schema_mode)
        errors.check_choice("on_conflict", self.on_conflict, ("raise", "replace"))
        dataset = dataset_arguments.dataset_factory(self.dataset_uuid, self.store, self.factory)
        spec = _new_spec(self, dataset.store_factory, dataset.dataset_uuid, WriteMode.UPSERT)
        try:
            state = dataset.dataset_metadata
        except errors.DatasetNotFoundError:
            return _plan(spec, publish=self.publish)
        completed = _complete(spec, state, is_merge=is_merge)
        is_checked = self.on_conflict == "raise"
        completed = _plan_removal(completed, state, self.delete_scope, is_checked=is_checked)
        return _plan(completed, publish=self.publish)


def with_scope(plan: WritePlan, delete_scope: Any) -> WritePlan:
    """Add a ``delete_scope`` that was not known at planning (a dask Delayed) to an update."""
    if plan.spec.change.mode is not WriteMode.UPDATE:
        return plan
    state = DatasetMetadata.load_from_store(plan.spec.uuid, open_blobs(plan.store))
    # without on_conflict="replace"
    is_checked = bool(plan.spec.change.requires)
    return plan.map_specs(lambda spec: _plan_removal(spec, state, delete_scope, is_checked=is_checked))


def _complete(spec: WriteSpec, dataset: DatasetMetadata, *, is_merge: bool) -> WriteSpec:
    """The specification with the keys, indices and schema of the stored dataset; given ones have to agree."""
    table = dataset_arguments.check_table(dataset, None)
    if spec.table != naming.SINGLE_TABLE:
        errors.check_names(f"Dataset {dataset.uuid!r}: ", "table", [spec.table], [table], error=RuntimeError)
    dataset_arguments.check_partition_keys(dataset, spec.partition_on)
    _merge_indices(dataset, spec.indices, ())
    completed = WriteSpec.of_dataset(
        dataset,
        spec.change.metadata,
        store=spec.store,
        merge_schema=is_merge,
        serializer=spec.serializer,
        sort_by=spec.sort_by,
        # without a name as an argument, input may have it
        unnamed_table=None if spec.table == table else spec.table,
    )
    if dataset.schema is None:
        completed = attrs.evolve(completed, schema=SchemaWrapper(pa.schema([]), dataset.uuid))
    completed = completed.evolve_change(merge_metadata=spec.change.merge_metadata)
    return _with_contract(completed, dataset.metadata)


def _with_contract(spec: WriteSpec, metadata: Mapping[str, Any]) -> WriteSpec:
    """The specification with the contract of the stored dataset; rules of whole writes need its cube."""
    contract = Contract.of(spec.uuid, metadata)
    if contract.of_write:
        prefix, _, name = spec.uuid.partition(constants.KTK_CUBE_UUID_SEPARATOR)
        cube, _ = discover.discover_cube(prefix, spec.store)
        spec = attrs.evolve(spec, name=name, cube=cube)
    return attrs.evolve(spec, contract=contract)


def _merge_indices(dataset: DatasetMetadata, columns: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    """Indexed columns of a dataset with given ones, which have to be among them or among new ones."""
    stored = {*dataset.secondary_indices}.difference(dataset.partition_keys)
    if not set(columns) <= stored.union(new):
        raise ValueError(
            f"Incorrect indices provided for dataset {dataset.uuid!r}: expected {sorted(stored)}, but got "
            f"{sorted(columns)}. An update keeps all indices and adds none; use build_dataset_indices"
        )
    return tuple(sorted(stored.union(columns)))


@attrs.frozen
class WritePartition:
    """Write files for an existing dataset, without committing them; see :func:`commit_dataset`.

    Parameters
    ----------
    data
        One input, or a list of them, as in :func:`store_dataframes_as_dataset`.
    df_serializer
        How files are written; Parquet with SNAPPY by default.
    partition_on
        Partition keys of the dataset; checked if given.
    secondary_indices
        Indices of the dataset; checked if given. All indices are kept up to date anyway.

    Returns
    -------
    WriteResult
        Input of :func:`commit_dataset`; small and picklable.

    Raises
    ------
    KeyError
        There is no such dataset.
    TypeError
        There is no ``data``.
    ValueError
        The data does not fit the dataset; nothing is written then.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset, write_single_partition
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities])
    >>> write_single_partition(store, "geodata", cities).rows
    2
    """

    store: StoreInput | None = None
    dataset_uuid: str | None = None
    data: write_tasks.DatasetElement = None
    df_serializer: DataFrameSerializer | None = None
    metadata_version: int = naming.DEFAULT_METADATA_VERSION
    partition_on: Names = None
    factory: DatasetFactory | None = None
    secondary_indices: Names = None
    table_name: str = naming.SINGLE_TABLE

    def plan(self) -> WriteSpec:
        """Plan to write files of an existing dataset, to be committed later."""
        dataset = dataset_arguments.dataset_factory(self.dataset_uuid, self.store, self.factory)
        update = UpdateDataset(
            factory=dataset,
            df_serializer=self.df_serializer,
            default_metadata_version=self.metadata_version,
            partition_on=self.partition_on,
            table_name=self.table_name,
        )
        spec = update.plan().spec
        state = dataset.dataset_metadata
        columns = _columns("secondary_indices", self.secondary_indices)
        # the first partitions of a dataset that was created without any bring its indices along
        new = () if state.explicit_partitions else columns
        return attrs.evolve(spec, indices=_merge_indices(state, columns, new))


@attrs.frozen
class CommitDataset(UpdateDataset):
    """Commit partitions of :func:`write_single_partition`, remove others and set metadata, in one step.

    Parameters
    ----------
    new_partitions
        Results of :func:`write_single_partition`, also in (nested) lists.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        There is nothing to do, or something does not fit the dataset.
    RuntimeError
        Partitions were written for another dataset or table.
    ConcurrentWriteError
        A concurrent writer added partitions that would be removed; nothing is changed.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset, write_single_partition
    >>> from kartothek_cube.io.eager import commit_dataset
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities[:1]])
    >>> written = [write_single_partition(store, "geodata", cities[i : i + 1]) for i in (1, 2)]
    >>> len(commit_dataset(store, "geodata", written).partitions)
    3
    """

    store: StoreInput | None = None
    dataset_uuid: str | None = None
    new_partitions: write_tasks.HandlesInput = None
    delete_scope: Sequence[dict[str, Any]] | None = None
    metadata: dataset_arguments.MetadataInput = None
    metadata_merger: MetadataMerger | None = None
    default_metadata_version: int = naming.DEFAULT_METADATA_VERSION
    partition_on: Names = None
    factory: DatasetFactory | None = None
    secondary_indices: Names = None
    on_conflict: OnConflict = attrs.field(default="raise", kw_only=True)
    # arguments of the writing of files
    df_serializer: None = attrs.field(default=None, init=False)
    sort_partitions_by: None = attrs.field(default=None, init=False)
    table_name: str = attrs.field(default=naming.SINGLE_TABLE, init=False)
    schema_mode: SchemaMode = attrs.field(default="strict", init=False)

    def plan_with_results(self) -> tuple[WritePlan, list[write_plan.Written]]:
        """Plan to commit files that are written already; also what was written."""
        handles = [handle for handle in write_tasks.flatten(self.new_partitions) if handle is not None]
        entries = dataset_arguments.user_metadata(self.metadata)
        scope = dataset_arguments.normalize_arg("delete_scope", self.delete_scope)
        if not handles and not entries and not scope:
            raise ValueError(
                "Need to provide new partitions, new metadata or a delete scope; none of them was given."
            )
        dataset = dataset_arguments.dataset_factory(self.dataset_uuid, self.store, self.factory)
        dataset_arguments.check_table(dataset.dataset_metadata, None)
        update = attrs.evolve(
            self, factory=dataset, store=None, dataset_uuid=None, metadata=entries, secondary_indices=None
        )
        plan = update.plan()
        for handle in handles:
            if not isinstance(handle, WriteResult) or handle.schema is None:
                raise ValueError(
                    f"Cannot commit {type(handle).__name__} to dataset {plan.spec.uuid!r}: it has no "
                    "information about files. Pass what write_single_partition returned"
                )
            write_tasks.check_result_target(plan.spec, handle)
        # only its check matters here
        columns = _columns("secondary_indices", self.secondary_indices)
        _merge_indices(dataset.dataset_metadata, columns, {c for handle in handles for c in handle.indices})
        return plan, [{handle.uuid: handle} for handle in handles]


@attrs.frozen
class CreateHeader(StoreDataset):
    """Create a dataset whose partitions are all files in its directory; the next commit lists them.

    Parameters
    ----------
    schema
        Schema of the table: a DataFrame or other table of that kind, a :class:`pyarrow.Schema`, or a
        :class:`~kartothek_cube.core.schema.SchemaWrapper`.
    partition_on
        Partition keys of the dataset.

    Returns
    -------
    DatasetMetadata
        Without partitions.

    Raises
    ------
    RuntimeError
        The dataset exists and ``overwrite`` is not set.
    ValueError
        The schema is none of these, or lacks a partition column, or other columns than these.
    TypeError
        Values of a type cannot be stored.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import create_empty_dataset_header, read_table, write_single_partition
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn"]})
    >>> create_empty_dataset_header(store, "geodata", cities).explicit_partitions
    False
    >>> _ = write_single_partition(store, "geodata", cities)
    >>> read_table("geodata", store)["CITY"].tolist()
    ['Bonn']
    """

    dataset_uuid: str
    schema: write_tasks.SchemaInput
    partition_on: Names = None
    metadata: dataset_arguments.MetadataInput = None
    overwrite: bool = False
    metadata_storage_format: str = naming.DEFAULT_METADATA_STORAGE_FORMAT
    metadata_version: int = naming.DEFAULT_METADATA_VERSION
    table_name: str = naming.SINGLE_TABLE
    # arguments of the writing of files
    df_serializer: None = attrs.field(default=None, init=False)
    secondary_indices: None = attrs.field(default=None, init=False)
    publish: bool = attrs.field(default=True, init=False)


def create_header(create: CreateHeader) -> DatasetMetadata:
    """Create a dataset whose header lists no partitions; they are found by a listing of the store."""
    plan = create.plan()
    spec = plan.spec
    wrapped = make_meta(create.schema, origin=spec.uuid, partition_keys=list(spec.partition_on))
    write_tasks.check_dataset_input(spec, wrapped.empty_table())
    change = spec.change_set(WriteResult(spec.uuid, spec.table, wrapped), plan.info)
    blobs, change = open_blobs(plan.store), attrs.evolve(change, explicit=False)
    check_rules(blobs, change)
    return optimistic.commit(blobs, change)[0]


# -- delete_scope --------------------------------------------------------------------------------------------


def _plan_removal(
    spec: WriteSpec, dataset: DatasetMetadata, delete_scope: Any, *, is_checked: bool
) -> WriteSpec:
    """Remove the partitions that a ``delete_scope`` selects now; `is_checked`: and no later ones."""
    elements = dataset_arguments.normalize_arg("delete_scope", delete_scope)
    scope = AnyOf(tuple(_conjunction(dataset, element) for element in elements)) if elements else None
    labels = pa.array([], pa.string())
    if scope is not None:
        picked = pruning.select_partitions(dataset.load_indices(columns_of(scope), spec.store, scope), scope)
        labels = dataset.partition_table.take(picked).labels
    requires = (NoUnseenPartitions(labels),) if is_checked else ()
    return spec.evolve_change(remove_where=scope, requires=requires)


def _conjunction(dataset: DatasetMetadata, element: Any) -> AllOf:
    if not isinstance(element, Mapping):
        raise TypeError(
            f"delete_scope has to be a list of dicts, but holds a {type(element).__name__}: {element!r}"
        )
    where = f"delete_scope of dataset {dataset.uuid!r}"
    needs = f"{where} needs indexed columns: "
    errors.check_names(needs, "or unindexed column", element, dataset.index_columns)
    literals = []
    for column, value in element.items():
        if is_null_value(value):
            text = f"no index knows where {column!r} is null, so these rows cannot be removed"
            raise ValueError(f"{where}: {text}")
        if dataset.schema is None:
            raise ValueError(f"{where}: there is no schema that types {column!r}")
        dtype = dataset.schema.field(column).type
        # as a predicate takes it; a scope is generous, "2020-01-01" stands for a date
        try:
            convert = partial(arrow.normalize_value, value=value)
            converted = arrow.convert_first(convert, dtype, arrow.with_far_times(dtype))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}, column {column!r}: {error}") from error
        value = pd.Timestamp(converted, tz="UTC") if getattr(dtype, "tz", None) else converted
        literals.append((column, "==", value))
    return AllOf(tuple(literals))
