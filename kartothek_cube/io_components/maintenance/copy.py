"""Copies of datasets and cubes, between stores or under a new name: blobs as they are, then the headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic

import attrs
import pyarrow as pa

from kartothek_cube.core import arguments, errors, history, naming, tuning
from kartothek_cube.core import header as headers
from kartothek_cube.core import schema as table_schema
from kartothek_cube.core.commit import header_store, optimistic
from kartothek_cube.core.commit.operation import Role, committed_state, rename_operations, settle
from kartothek_cube.core.cube import consistency, constants, discover
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBuilder
from kartothek_cube.core.dataset_files import file_keys, read_header, referenced_keys
from kartothek_cube.core.store import (
    BlobStore,
    PreconditionFailed,
    StoreFactory,
    StoreInput,
    get_required,
    open_blobs,
)
from kartothek_cube.core.store.resolve import check_reopens, ensure_store
from kartothek_cube.io_components import runtime
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job, discard_results
from kartothek_cube.io_components.maintenance.cube_history import COMPUTED_FROM, rename_in_token
from kartothek_cube.io_components.publication.published_table import publish_committed
from kartothek_cube.io_components.write.write_commit import commit_cube


@attrs.frozen
class DatasetCopy:
    """A dataset to copy, in the state in which it was planned."""

    #: source key to target key of the data and index files, which never change
    keys: Mapping[str, str]
    #: key and content of the new header
    header_key: str
    header: bytes
    #: target key to content of the schema files
    schemas: Mapping[str, bytes]
    #: the copied state
    state: DatasetMetadata


def plan_copy_dataset(
    source: BlobStore,
    source_uuid: str,
    target_uuid: str,
    state: DatasetMetadata | None = None,
    uuids: Mapping[str, str] | None = None,
) -> DatasetCopy:
    """Plan the copy of a state (None: the newest one); `uuids` are those of all copied datasets."""
    naming.check_uuid(target_uuid)
    # schemas first: one that is written for a later header still holds that of the header which is there
    dataset = DatasetMetadata.load_from_store(source_uuid, source, load_schema=False)
    contents = {
        table: header_store.read_versioned(source, naming.schema_key(source_uuid, table))[0]
        for table in dataset.tables or [naming.SINGLE_TABLE]
    }
    stored = read_header(source_uuid, source)
    dataset = DatasetMetadata.load_from_header(stored, source_uuid, source, load_schema=True)
    state, record = committed_state(source, dataset) if state is None else state, headers.COMMIT_RECORD
    # else another commit came in between, or the newest one is of an operation that is not committed
    is_stored = state.extra.get(record) == dataset.extra.get(record)
    copied = rename_operations(dataset if is_stored else state, uuids or {})
    separator, inputs = constants.KTK_CUBE_UUID_SEPARATOR, copied.metadata.get(COMPUTED_FROM)
    # a computed dataset remembers its inputs by their ids
    ids = {old.partition(separator)[2]: new.partition(separator)[2] for old, new in (uuids or {}).items()}
    if (renamed := rename_in_token(inputs, ids)) != inputs:
        copied = copied.copy(metadata={**copied.metadata, COMPUTED_FROM: renamed})
    new_state, header = copied, stored.content
    if copied is not dataset or source_uuid != target_uuid:
        builder = DatasetMetadataBuilder.from_dataset(copied).modify_uuid(target_uuid)
        _, header = builder.to_json() if stored.format == "json" else builder.to_msgpack()
        new_state = builder.to_dataset().copy(table_name=copied.table_name)
    # other software may have deleted them, and nothing depends on them
    statistics = filter(source.exists, set(referenced_keys(copied)).difference(file_keys(copied)))
    schemas = {
        naming.schema_key(target_uuid, table): _schema_of(copied, content)
        for table, content in contents.items()
        if content is not None or (table == copied.table_name and copied.schema is not None)
    }
    copied_keys = sorted({*file_keys(copied), *statistics})
    keys = {key: target_uuid + key.removeprefix(source_uuid) for key in copied_keys}
    return DatasetCopy(keys, target_uuid + stored.key.removeprefix(source_uuid), header, schemas, new_state)


def _schema_of(dataset: DatasetMetadata, content: bytes | None) -> bytes:
    """The schema file of a state: that of the source as it is, if it is that of the state."""
    schema, version = dataset.schema, table_schema.schema_version_of(dataset.metadata)
    if content is not None:
        # of a damaged one, the header has the schema
        with suppress(errors.CorruptDatasetError):
            stored = table_schema.schema_file_from_bytes(content, dataset.uuid)
            if schema is None or stored.of(version).equals(schema):
                return content
    schema = schema or table_schema.SchemaWrapper(pa.schema([]), dataset.uuid)
    return table_schema.render_schema_file(schema, dataset.metadata)


def _copy_files(stores: Iterable[StoreInput | BlobStore], keys: Mapping[str, str]) -> None:
    """Copy blobs as they are."""
    source, target = map(open_blobs, stores)

    def copy(item: tuple[str, str]) -> None:
        data = get_required(source, item[0])
        target.put(item[1], data)
        runtime.progress_advance(len(data))

    runtime.progress_add_total(len(keys))
    discard_results(runtime.ordered_map(copy, list(keys.items()), tuning.REMOTE_REQUESTS))


def _put_copy(
    target: BlobStore, copy: DatasetCopy, *, overwrite: bool = True, role: Role = None
) -> optimistic.Result:
    """Put the header of a copy, with which the dataset exists; return its state and a receipt."""
    uuid, table, info = copy.state.uuid, copy.state.table_name, history.describe_operation("copy")
    own, files = naming.schema_key(uuid, table), list(copy.keys.values())
    for key, content in copy.schemas.items():
        # further tables, which only kartothek 3 wrote
        if key != own:
            target.put(key, content, durable=True)
    for _ in header_store.attempts():
        read = partial(header_store.read_replaced_base, target, uuid, table, copy.header_key)
        base = settle(target, read, replaces=True)
        if base.state is not None and not overwrite and base.header != copy.header:
            raise errors.DatasetExistsError(uuid)
        try:
            state, receipt = optimistic.commit_state(
                target,
                base,
                copy.state,
                files,
                role,
                info,
                replaces=True,
                source_header=copy.header,
                source_schema=copy.schemas.get(own),
            )
        except PreconditionFailed:
            # another writer was faster: decide again on its state
            continue
        if role is None:
            optimistic.announce_commit(info, [receipt])
        if not state.explicit_partitions:
            state = DatasetMetadata.load_from_store(uuid, target)
        return state, receipt
    raise errors.ConcurrentWriteError(uuid)


def copy_dataset_job(
    source_store: StoreInput, source_uuid: str, target_store: StoreInput, target_uuid: str
) -> Job[dict[str, DatasetMetadata]]:
    """Copy the files of a dataset, then its schemas and header."""
    check_reopens(target_store)
    source, target = ensure_store(source_store), ensure_store(target_store)
    copy = plan_copy_dataset(open_blobs(source), source_uuid, target_uuid)

    def finish(copied: Iterable[None]) -> dict[str, DatasetMetadata]:
        discard_results(copied)
        blobs = open_blobs(target)
        return {copy.header_key: publish_committed(blobs, _put_copy(blobs, copy)[0])}

    return Job(
        name="copy_dataset",
        description=f"copy dataset {source_uuid}",
        context=(runtime.store_factory(source), runtime.store_factory(target)),
        tasks=[copy.keys],
        run=_copy_files,
        finish=finish,
        merge=discard_results,
        steps=("prepare", "files", "header"),
    )


@attrs.frozen
class CopyPlan:
    """The datasets to copy."""

    cube: Cube
    source: StoreFactory
    target: StoreFactory
    #: source uuid to target uuid, in the order of copying: the seed comes last
    uuids: Mapping[str, str]
    #: the cube as it will be in the target
    target_cube: Cube
    #: whether existing datasets are replaced
    overwrite: bool
    info: history.OperationInfo = attrs.field(factory=partial(history.describe_operation, "copy"))


def _copy_error(plan: CopyPlan, undone: Sequence[str], failed: str, exc: Exception) -> Exception:
    """The error for a copy that failed, and was undone."""
    if plan.overwrite:
        return RuntimeError(f"Failed to copy dataset {failed}: {exc}")
    return errors.MultiTableCommitAborted(failed, rolled_back=undone, detail=str(exc))


def _run_copy_task(plan: CopyPlan, task: tuple[str, dict[str, str]]) -> None:
    """Copy the files of one task, before any header is copied."""
    # target uuid of a dataset, and some of its files: source key to target key
    target_uuid, keys = task
    try:
        _copy_files((plan.source, plan.target), keys)
    except Exception as exc:
        raise _copy_error(plan, [], target_uuid, exc) from exc


def _finish_cube_copy(plan: CopyPlan, has_files: bool, copied: Iterable[None]) -> None:
    """Copy the files that tasks have not copied, or that were committed to the source since; commit them."""
    discard_results(copied)
    source, target = open_blobs(plan.source), open_blobs(plan.target)
    prefix = plan.cube.uuid_prefix + constants.KTK_CUBE_UUID_SEPARATOR
    # one state of all datasets
    names = [uuid.removeprefix(prefix) for uuid in plan.uuids]
    states = discover.discover_datasets_unchecked(plan.cube.uuid_prefix, source, names)
    copies: dict[str, DatasetCopy] = {}
    started: list[str] = []

    def put_header(copy: DatasetCopy, role: Role) -> optimistic.Result:
        started.append(copy.state.uuid)
        return _put_copy(target, copy, overwrite=plan.overwrite, role=role)

    current = ""
    try:
        for source_uuid, current in plan.uuids.items():
            state = states.get(source_uuid.removeprefix(prefix))
            if state is None:
                raise errors.DatasetNotFoundError(source_uuid)
            copy = plan_copy_dataset(source, source_uuid, current, state, plan.uuids)
            present = {blob.key for blob in target.list(f"{current}/")} if has_files else set()
            files = {key: new for key, new in copy.keys.items() if new not in present}
            _copy_files((source, target), files)
            copies[current] = copy
        # the headers of all datasets, the seed last, as one operation
        current = plan.target_cube.ktk_dataset_uuid(plan.target_cube.seed_dataset)
        steps = {uuid: partial(put_header, copy) for uuid, copy in copies.items()}
        lineage = _lineage(copies, current)
        commit_cube(plan.target_cube, target, steps, plan.info, creates=True, final_lineage=lineage)
    except errors.UnknownOutcomeError:
        # not a failure for certain: the dataset may be there, with commits of others on top
        raise
    except Exception as exc:
        raise _copy_error(plan, started[:-1], started[-1] if started else current, exc) from exc


def _lineage(copies: Mapping[str, DatasetCopy], seed: str) -> str | None:
    """Lineage of a seed that names the last operation of all other copies; None if it does not."""
    # Then the headers of a new cube can be byte by byte those of the source.
    record = headers.parse_record(copies[seed].state.extra) if seed in copies else None
    if record is None:
        return None
    for uuid in copies.keys() - {seed}:
        participation = headers.participation_of(copies[uuid].state.extra)
        named = record.participants.get(uuid)
        if participation is None or participation != headers.Participation(named or "", seed, record.lineage):
            return None
    return record.lineage


@attrs.frozen
class CopyCube(Generic[StoreT]):
    """Copy a cube from one store to another.

    Parameters
    ----------
    src_store, tgt_store
        Stores, factories or URLs; must not be the same store.
    overwrite
        Whether datasets that exist in the target are replaced.
    datasets
        Ids, or a dict of id to metadata; by default all datasets of the cube.
    renamed_cube_prefix
        Prefix of the copy; the same by default.
    renamed_datasets
        Old to new ids of renamed datasets.

    Raises
    ------
    ValueError
        If the stores are the same, or the target would not be a valid cube.
    RuntimeError
        If a dataset is missing in the source, or exists in the target and ``overwrite`` is not set.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, query_cube_df
    >>> from kartothek_cube.io.eager_cube import copy_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> backup = f"hfs://{tempfile.mkdtemp()}"
    >>> _ = copy_cube(cube, store, backup)
    >>> query_cube_df(cube, backup)["CITY"].tolist()
    ['Bonn', 'Rom']
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    src_store: StoreT
    tgt_store: StoreT
    overwrite: bool = False
    datasets: discover.DatasetsInput = None
    renamed_cube_prefix: str | None = None
    renamed_datasets: Mapping[str, str] | None = None

    def plan(self) -> CopyPlan:
        """Check the copy; nothing is copied yet."""
        cube, source, target = self.cube, self.src_store, self.tgt_store
        check_reopens(target)
        renamed = arguments.parse_new_names("renamed_datasets", self.renamed_datasets)
        prefix = cube.uuid_prefix
        if self.renamed_cube_prefix is not None:
            prefix = arguments.parse_name("renamed_cube_prefix", self.renamed_cube_prefix)
        renamed_cube = cube.copy(uuid_prefix=prefix)
        uuid = renamed_cube.ktk_dataset_uuid(cube.seed_dataset)
        if runtime.is_same_store(open_blobs(source), open_blobs(target), uuid):
            raise ValueError("Stores are identical but should not be: a copy needs two different stores")
        # of an iterator, the names are read once
        datasets = self.datasets
        if not isinstance(datasets, Mapping):
            datasets = arguments.parse_name_set_optional("datasets", datasets)
        selected = discover.select_datasets(cube, source, datasets, must_exist=False)
        if datasets is None and not selected:
            raise discover.cube_not_found(cube.uuid_prefix, open_blobs(source))
        if isinstance(datasets, frozenset):
            missing = datasets - set(selected)
            if missing:
                existing = discover.existing_dataset_ids(cube.uuid_prefix, source)
                unknown = errors.unknown_names("dataset", missing, existing)
                raise RuntimeError(f"Cube {cube.uuid_prefix} in the source store: {unknown}")
        where = "renamed_datasets names datasets that are not copied: "
        errors.check_names(where, "dataset", renamed, selected)
        names = {name: renamed.get(name, name) for name in selected}
        if len(set(names.values())) < len(names):
            listed = ", ".join(sorted(names.values()))
            raise ValueError(f"renamed_datasets gives the same name to several datasets: {listed}")
        seed = names.get(cube.seed_dataset, renamed.get(cube.seed_dataset, cube.seed_dataset))
        target_cube = renamed_cube.copy(seed_dataset=seed)
        existing = discover.existing_dataset_ids(target_cube.uuid_prefix, target)
        for name in sorted(names.values()):
            if name in existing and not self.overwrite:
                raise errors.DatasetExistsError(target_cube.ktk_dataset_uuid(name))
        others = existing - set(names.values())
        kept = discover.discover_datasets_unchecked(target_cube.uuid_prefix, target, others)
        consistency.check_cube({**kept, **{names[name]: ds for name, ds in selected.items()}}, target_cube)
        order = cube.commit_order(selected)
        uuids = {selected[name].uuid: target_cube.ktk_dataset_uuid(names[name]) for name in order}
        stores = runtime.store_factory(source), runtime.store_factory(target)
        return CopyPlan(cube, *stores, uuids, target_cube, self.overwrite)

    def job(self, blocksize: int | None = None) -> Job[None]:
        """Copy files in blocks, then schemas and headers; without block size all of it in the last step."""
        plan = self.plan()
        source = open_blobs(plan.source)
        tasks = [
            (target_uuid, dict(block))
            for source_uuid, target_uuid in (plan.uuids.items() if blocksize is not None else ())
            for block in runtime.batched(
                list(plan_copy_dataset(source, source_uuid, target_uuid).keys.items()), blocksize or 1
            )
        ]
        return Job(
            name="copy_cube",
            description=f"copy cube {plan.cube.uuid_prefix}",
            context=plan,
            tasks=tasks,
            run=_run_copy_task,
            finish=partial(_finish_cube_copy, plan, blocksize is not None),
            merge=discard_results,
            steps=("prepare", "files", "headers"),
        )
