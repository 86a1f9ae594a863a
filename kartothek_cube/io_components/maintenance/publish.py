"""Publish datasets as tables of other formats, and stop that: a log beside the data files."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Literal

import attrs

from kartothek_cube.core import errors, history, naming
from kartothek_cube.core.commit import operation
from kartothek_cube.core.commit.change import ChangeSet
from kartothek_cube.core.commit.header_store import check_files, missing_files
from kartothek_cube.core.commit.optimistic import commit
from kartothek_cube.core.cube import discover
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs
from kartothek_cube.io_components import dataset_arguments, facade, runtime
from kartothek_cube.io_components.job import CountsByDataset, Job, execute, single_step_job
from kartothek_cube.io_components.maintenance.garbage import delete_garbage, history_keys
from kartothek_cube.io_components.publication import delta_log, published_table
from kartothek_cube.io_components.write import rewrite, write_commit
from kartothek_cube.io_components.write.stored_rows import check_staged_write


@attrs.frozen
class PublishCube:
    """Publish the datasets of a cube as Delta tables, one each, for engines that do not know this library.

    Each table shows the newest state of its dataset at the moment of its publication; a repetition adds what
    has changed since. See :func:`~kartothek_cube.io.eager.publish_dataset` and :doc:`/publish`.

    Parameters
    ----------
    compact
        First compact (:func:`compact_cube`) the partitions that a table cannot show as they are: those with
        cells that newer files overwrite, and with files that differ from the schema after it was changed.

    Returns
    -------
    dict
        Dataset id to ``version`` of the table, its number of ``files``, and how many were ``added`` and
        ``removed``.

    Raises
    ------
    ValueError
        There is no such cube or dataset, or a Delta table cannot show one of the datasets: a column has a
        type that is unknown there, files have overwritten cells, or older files differ from the schema. Then
        no dataset is published.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube
    >>> from kartothek_cube.io.eager_cube import publish_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Ulm"], "COUNTRY_CODE": ["DE", "DE"], "PEOPLE": [336, 126]})
    >>> _ = build_cube(cities, cube, store)
    >>> publish_cube(cube, store)
    {'seed': {'version': 0, 'files': 1, 'added': 1, 'removed': 0}}
    >>> _ = append_to_cube(cities.tail(1).assign(PEOPLE=127), cube, store)
    >>> publish_cube(cube, store, compact=True)
    {'seed': {'version': 1, 'files': 1, 'added': 1, 'removed': 1}}
    """

    cube: Cube = attrs.field(converter=facade.cube_or_name)
    store: StoreInput
    datasets: str | Iterable[str] | None = None
    format: Literal["delta", "iceberg"] = attrs.field(default="delta", kw_only=True)
    compact: bool = attrs.field(default=False, kw_only=True)
    on_commit: bool | None = attrs.field(default=None, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[CountsByDataset]:
        """Look at new files, then add a version to the log of each dataset."""
        published_table.check_format(self.format)
        uuids = _choose_uuids(self.cube, self.store, self.datasets)
        compacted = self.cube if self.compact else None
        run = partial(_publish, uuids, self.store, self.format, self.on_commit, compacted)
        return single_step_job("publish", f"publish cube {self.cube.uuid_prefix}", run)


@attrs.frozen
class PublishDataset:
    """Publish the newest state of a dataset as a Delta table, for engines that do not know this library.

    The table is the directory ``<dataset_uuid>`` of the store. Its log is added beside the data files, of
    which none is rewritten; a repetition adds what has changed since, or nothing. See :doc:`/publish`.

    Parameters
    ----------
    factory
        The dataset itself, instead of ``dataset_uuid`` and ``store``. Its newest state is published, even if
        the factory has loaded an older one.

    Returns
    -------
    dict
        ``version`` of the table, its number of ``files``, and how many were ``added`` and ``removed``.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        A Delta table cannot show the dataset: a column has a type that is unknown there, files of a cube
        have overwritten cells, or older files differ from the schema. Nothing is written.
    CorruptDatasetError
        The log is damaged.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import publish_dataset
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> publish_dataset("geodata", store)
    {'version': 0, 'files': 2, 'added': 2, 'removed': 0}
    >>> publish_dataset("geodata", store)
    {'version': 0, 'files': 2, 'added': 0, 'removed': 0}
    """

    dataset_uuid: str | None = None
    store: StoreInput | None = None
    factory: DatasetFactory | None = None
    format: Literal["delta", "iceberg"] = attrs.field(default="delta", kw_only=True)
    on_commit: bool | None = attrs.field(default=None, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[dict[str, int]]:
        """Look at new files, then add a version to the log."""
        published_table.check_format(self.format)
        dataset = dataset_arguments.dataset_factory(
            self.dataset_uuid, self.store, self.factory, load_schema=False
        )
        uuid, store = dataset.dataset_uuid, dataset.store_factory
        publish = partial(_publish, {uuid: uuid}, store, self.format, self.on_commit)
        return single_step_job("publish", f"publish dataset {uuid}", lambda: publish()[uuid])


def _choose_uuids(cube: Cube, store: StoreInput, datasets: str | Iterable[str] | None) -> dict[str, str]:
    """Uuids of the datasets of a cube that the user names, in the order of commit."""
    existing, blobs = {*discover.discover_datasets(cube, store)}, open_blobs(store)
    for name in discover.discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs) - existing:
        # the table of a dataset that a rollback has hidden has to lose its rows
        uuid = cube.ktk_dataset_uuid(name)
        record = operation.read_record(blobs, uuid)
        if record is not None and record.hidden and delta_log.list_log(blobs, uuid):
            existing.add(name)
    names = discover.choose_datasets(cube, datasets, existing)
    return {name: cube.ktk_dataset_uuid(name) for name in cube.commit_order(names)}


def _publish(
    uuids: dict[str, str], store: StoreInput, format: str, on_commit: bool | None, cube: Cube | None = None
) -> CountsByDataset:
    """Publish all datasets or none, `uuids` by name; `cube`: that which may be compacted first."""
    blobs = open_blobs(store)
    facts = {uuid: published_table.read_new_groups(blobs, uuid, format) for uuid in uuids.values()}
    groups = chain.from_iterable(known.items() for known in facts.values())
    problems = {group: fact.problem for group, fact in groups if fact.problem is not None}
    if problems:
        if cube is None:
            raise ValueError(next(iter(problems.values())))
        job = rewrite.compact_files_job(cube, store, set(chain.from_iterable(problems)))
        execute(job, runtime.available_cores())
    counts = {
        name: published_table.publish_table(blobs, uuid, format, facts[uuid]) for name, uuid in uuids.items()
    }
    if on_commit is not None:
        # marked only once it can be published; commits until then are published by the commit of the mark
        for uuid in uuids.values():
            _set_publish(blobs, uuid, format if on_commit else None)
    return CountsByDataset(counts)


def _set_publish(blobs: BlobStore, uuid: str, format: str | None) -> None:
    """Set whether each commit publishes the dataset."""
    state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    if state.metadata.get(naming.PUBLISH) != format and not operation.is_hidden(state):
        info = history.describe_operation("publish")
        change = ChangeSet(uuid, state.table_name, metadata={naming.PUBLISH: format}, info=info)
        published_table.publish_committed(blobs, commit(blobs, change)[0])


# -- the end of publications -----------------------------------------------------------------------------


@attrs.frozen
class UnpublishCube:
    """Stop publishing the datasets of a cube, also on commits: delete the logs of their tables.

    The datasets stay as they are. Readers of the tables fail from then on. Files that only the tables showed
    become garbage.

    Returns
    -------
    dict
        Dataset id to the number of ``files`` of the log; 0 if the dataset was not published.

    Raises
    ------
    ValueError
        There is no such cube or dataset.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> from kartothek_cube.io.eager_cube import publish_cube, unpublish_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> _ = build_cube(pd.DataFrame({"CITY": ["Bonn"], "COUNTRY_CODE": ["DE"]}), cube, store)
    >>> _ = publish_cube(cube, store)
    >>> unpublish_cube(cube, store)
    {'seed': {'files': 1}}
    """

    cube: Cube = attrs.field(converter=facade.cube_or_name)
    store: StoreInput
    datasets: str | Iterable[str] | None = None

    def job(self, blocksize: int | None = None) -> Job[CountsByDataset]:
        """Delete logs."""
        uuids, blobs = _choose_uuids(self.cube, self.store, self.datasets), open_blobs(self.store)

        def run() -> CountsByDataset:
            return CountsByDataset({name: _unpublish(blobs, uuid) for name, uuid in uuids.items()})

        return single_step_job("unpublish", f"unpublish cube {self.cube.uuid_prefix}", run)


@attrs.frozen
class UnpublishDataset:
    """Stop publishing a dataset, also on commits: delete the log of its table.

    The dataset stays as it is. Readers of the table fail from then on. Files that only the table showed
    become garbage.

    Returns
    -------
    dict
        The number of ``files`` of the log; 0 if the dataset was not published.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import publish_dataset, unpublish_dataset
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Rom"]})])
    >>> _ = publish_dataset("geodata", store)
    >>> unpublish_dataset("geodata", store)
    {'files': 1}
    """

    dataset_uuid: str | None = None
    store: StoreInput | None = None
    factory: DatasetFactory | None = None

    def job(self, blocksize: int | None = None) -> Job[dict[str, int]]:
        """Delete a log."""
        dataset = dataset_arguments.dataset_factory(
            self.dataset_uuid, self.store, self.factory, load_schema=False
        )
        # a dataset that does not exist is an error
        uuid, blobs = dataset.dataset_metadata.uuid, open_blobs(dataset.store_factory)
        return single_step_job("unpublish", f"unpublish dataset {uuid}", partial(_unpublish, blobs, uuid))


def _unpublish(blobs: BlobStore, uuid: str) -> dict[str, int]:
    # first, so that later commits do not publish again
    _set_publish(blobs, uuid, None)
    return {"files": delta_log.delete_log(blobs, uuid)}


def publish_staged(staged: write_commit.StagedInput, store: StoreInput) -> dict[str, DatasetMetadata]:
    """Commit a staged write to the newest state, all datasets of a cube at once.

    It is committed as it would have been without ``publish=False``, on top of what other writers have
    committed since. What is published already has no effect, also if its rows were replaced or deleted since;
    after a rollback to the state before, it may be published again.

    Parameters
    ----------
    staged
        What a write with ``publish=False`` returned.
    store
        Store, factory or URL.

    Returns
    -------
    dict
        Dataset id to metadata of what was written; for a single dataset, its uuid.

    Raises
    ------
    ConcurrentWriteError
        Another writer has changed what the write replaces or removes, or has deleted the dataset, or a
        cleanup has deleted the files of the write. Nothing is changed: write again.
    ContractViolationError
        The seed has lost cells of the rows, or the rows are too old by now, see
        :func:`~kartothek_cube.io.eager_cube.set_contract`.
    ValueError
        The cube has changed in a way that the write does not fit; or it was staged more than 30 days ago.
    MultiTableCommitAborted
        The same: the cube would break a rule, such as that of columns that several datasets have.
    RuntimeError
        A dataset that the write creates exists by now.
    TypeError
        ``staged`` is no staged write.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube, ensure_store, query_cube_df
    >>> from kartothek_cube.io.eager_cube import publish_staged
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> staged = append_to_cube(cities.assign(CITY="Ulm"), cube, store, publish=False)
    >>> staged
    <staged: seed: 2 rows in 2 files>
    >>> len(query_cube_df(cube, store)), len(query_cube_df(cube, store, as_of=staged))
    (2, 4)
    >>> _ = publish_staged(staged, store)
    >>> len(query_cube_df(cube, store))
    4
    """
    write, factory = _check_staged(staged), runtime.store_factory(store)
    blobs = open_blobs(factory)
    plan = write.plan(factory)
    try:
        if plan.is_cube_write:
            states = discover.load_states(plan.cube.uuid_prefix, blobs)
            for name, problem in write.find_problems(plan, states):
                raise plan.abort_error(name, problem)
        check_staged_write(factory, write.changes)
        return write_commit.commit_datasets(plan, write.changes, blobs)
    except errors.MissingFileError as error:
        # a contract, or an index that was built since, needs the rows of the write
        for change in write.changes.values():
            if error.key in change.files:
                check_files(blobs, change.uuid, change.files, set())
        raise


def discard_staged(staged: write_commit.StagedInput, store: StoreInput) -> None:
    """Delete the files of a staged write, which can no longer be published.

    The files of a staged write that is forgotten are garbage, which a cleanup deletes.

    Parameters
    ----------
    staged
        What a write with ``publish=False`` returned.
    store
        Store, factory or URL.

    Raises
    ------
    ValueError
        The write is published: its files stay.
    TypeError
        ``staged`` is no staged write.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> from kartothek_cube.io.eager_cube import discard_staged
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> staged = build_cube(cities, cube, store, publish=False)
    >>> len(store.keys())
    2
    >>> discard_staged(staged, store)
    >>> len(store.keys())
    0
    """
    # As a garbage collection does, under tombstones: the commit of the write at the same time either comes
    # first, or is refused.
    write, blobs, n_files = _check_staged(staged), open_blobs(store), 0
    for change in write.changes.values():
        keys = change.files
        referenced: set[str] = set()
        with suppress(errors.DatasetNotFoundError):
            # the write was committed, and its partitions were removed since
            state = DatasetMetadata.load_from_store(change.uuid, blobs, load_schema=False)
            referenced = history_keys(state, blobs, ())
        staged_id = "" if change.staged is None else change.staged[0]
        delete_garbage(store, set(keys) - referenced, staged_id)
        n_files += len(keys) - len(missing_files(blobs, change.uuid, keys))
    if n_files:
        raise ValueError(
            f"{write!r} is published, or being published: {errors.format_count(n_files, 'file')} of it stay. "
            "A rollback returns to the state before"
        )


def _check_staged(staged: write_commit.StagedInput) -> write_commit.StagedWrite:
    if not isinstance(staged, write_commit.StagedWrite):
        raise TypeError(
            f"Expected what a write with publish=False returns, got {type(staged).__name__}; without it, the "
            "write is committed already"
        )
    return staged
