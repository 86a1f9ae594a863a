"""Publish datasets as tables of other formats, and stop that: a log beside the data files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Literal, TypeAlias

import attrs

from kartothek_cube.core.commit.change import ChangeSet
from kartothek_cube.core.commit.optimistic import commit
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import choose_datasets, discover_datasets
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import describe_operation
from kartothek_cube.core.naming import ICEBERG, PUBLISH
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.arguments import dataset_factory
from kartothek_cube.io_components.facade import cube_or_name
from kartothek_cube.io_components.job import Answer, Job, execute
from kartothek_cube.io_components.maintenance.compact import compact_files_job
from kartothek_cube.io_components.maintenance.stats import CountsByDataset
from kartothek_cube.io_components.publication import delta_log, table
from kartothek_cube.io_components.runtime import available_cores, batched, store_factory

_FILES_PER_TASK = 64


@attrs.frozen
class PublishTask:
    """Groups of files of a dataset, whose footers are read and in which overwritten cells are searched."""

    uuid: str
    groups: tuple[table.FileGroup, ...]


@attrs.frozen
class PublishContext:
    """What all tasks share."""

    store: StoreFactory
    #: by uuid
    tables: Mapping[str, table.ShownState]


#: uuid of a dataset, and what a task found out about its files
Found: TypeAlias = tuple[str, Mapping[table.FileGroup, table.GroupFacts]]


@attrs.frozen
class PublishCube:
    """
    Publish the datasets of a cube as Delta tables, one each, for engines that do not know this library.

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

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreInput
    datasets: str | Iterable[str] | None = None
    format: Literal["delta", "iceberg"] = attrs.field(default="delta", kw_only=True)
    compact: bool = attrs.field(default=False, kw_only=True)
    on_commit: bool | None = attrs.field(default=None, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[PublishContext, PublishTask, Found, CountsByDataset]:
        """Look at new files, then add a version to the log of each dataset."""
        table.check_format(self.format)
        uuids = _choose_uuids(self.cube, self.store, self.datasets)
        finish = partial(_finish, uuids, store_factory(self.store), self.format, self.on_commit)
        finish = partial(_compact, self, finish) if self.compact else finish
        return _publish_job(uuids, self.store, self.format, finish)


@attrs.frozen
class PublishDataset:
    """
    Publish the newest state of a dataset as a Delta table, for engines that do not know this library.

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

    def job(self, blocksize: int | None = None) -> Job[PublishContext, PublishTask, Found, dict[str, int]]:
        """Look at new files, then add a version to the log."""
        table.check_format(self.format)
        dataset = dataset_factory(self.dataset_uuid, self.store, self.factory, load_schema=False)
        uuid, store = dataset.dataset_uuid, dataset.store_factory
        finish = partial(_finish, {uuid: uuid}, store, self.format, self.on_commit)
        return _publish_job({uuid: uuid}, store, self.format, lambda found: finish(found)[uuid])


def _choose_uuids(cube: Cube, store: StoreInput, datasets: str | Iterable[str] | None) -> dict[str, str]:
    """Uuids of the datasets of a cube that the user names, in the order of commit."""
    ensure_cube(cube)
    names = choose_datasets(cube, datasets, discover_datasets(cube, store))
    return {name: cube.ktk_dataset_uuid(name) for name in cube.commit_order(names)}


def _publish_job(
    uuids: Mapping[str, str], store: StoreInput, format: str, finish: Callable[[Iterable[Found]], Answer]
) -> Job[PublishContext, PublishTask, Found, Answer]:
    """Look at the new files of datasets; `uuids` by name."""
    blobs = open_blobs(store)
    tables, tasks = {}, []
    for uuid in uuids.values():
        log = delta_log.read_log(blobs, uuid)
        state = table.load_shown(blobs, uuid)
        tables[uuid] = table.shown_state(state)
        if format == ICEBERG:
            table.check_iceberg(blobs, tables[uuid])
        groups = table.list_new_groups(state, tables[uuid], log)
        # several files first: the search for cells takes longest
        tasks += [PublishTask(uuid, (group,)) for group in groups if len(group) > 1]
        single = [group for group in groups if len(group) == 1]
        tasks += [PublishTask(uuid, tuple(part)) for part in batched(single, _FILES_PER_TASK)]
    return Job(
        name="publish",
        description=f"publish {', '.join(uuids.values())}",
        context=PublishContext(store_factory(store), tables),
        tasks=tasks,
        run=_run,
        finish=finish,
        steps=("prepare", "files", "publish"),
        is_parallel=True,
        files=sum(len(group) for task in tasks for group in task.groups),
    )


def _run(context: PublishContext, task: PublishTask) -> Found:
    blobs, shown = open_blobs(context.store), context.tables[task.uuid]
    return task.uuid, {group: table.read_group(blobs, shown, group) for group in task.groups}


def _compact(
    operation: PublishCube, finish: Callable[[Iterable[Found]], CountsByDataset], results: Iterable[Found]
) -> CountsByDataset:
    """Compact what tables cannot show, then publish."""
    results = list(results)
    keys = {
        key
        for _, facts in results
        for group, fact in facts.items()
        if fact.problem is not None
        for key in group
    }
    if keys:
        execute(compact_files_job(operation.cube, operation.store, keys), available_cores())
    # the last step looks at the new files itself
    return finish([(uuid, facts) for uuid, facts in results if keys.isdisjoint(chain.from_iterable(facts))])


def _finish(
    uuids: Mapping[str, str],
    store: StoreFactory,
    format: str,
    on_commit: bool | None,
    results: Iterable[Found],
) -> CountsByDataset:
    """Add a version to the log of each dataset, or to none."""
    found: dict[str, dict[table.FileGroup, table.GroupFacts]] = {uuid: {} for uuid in uuids.values()}
    for uuid, facts in results:
        found[uuid].update(facts)
    for problem in (fact.problem for facts in found.values() for fact in facts.values()):
        if problem is not None:
            # before any dataset is published
            raise ValueError(problem)
    blobs = open_blobs(store)
    counts = {name: table.publish_table(blobs, uuid, format, found[uuid]) for name, uuid in uuids.items()}
    if on_commit is not None:
        # what cannot be published is not marked; commits until then are published by the mark's own commit
        for uuid in uuids.values():
            _set_publish(blobs, uuid, format if on_commit else None)
    return CountsByDataset(counts)


def _set_publish(blobs: BlobStore, uuid: str, format: str | None) -> None:
    """Set whether each commit publishes the dataset."""
    state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    if state.metadata.get(PUBLISH) != format:
        change = ChangeSet(
            uuid, state.table_name, metadata={PUBLISH: format}, info=describe_operation("publish")
        )
        table.publish_committed(blobs, commit(blobs, change)[0])


# -- the end of publications -----------------------------------------------------------------------------


@attrs.frozen
class UnpublishCube:
    """
    Stop publishing the datasets of a cube, also on commits: delete the logs of their tables.

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

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreInput
    datasets: str | Iterable[str] | None = None

    def job(
        self, blocksize: int | None = None
    ) -> Job[StoreFactory, tuple[str, str], tuple[str, dict[str, int]], CountsByDataset]:
        """Delete logs."""
        uuids = _choose_uuids(self.cube, self.store, self.datasets)
        return _unpublish_job(uuids, self.store, CountsByDataset)


@attrs.frozen
class UnpublishDataset:
    """
    Stop publishing a dataset, also on commits: delete the log of its table.

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

    def job(
        self, blocksize: int | None = None
    ) -> Job[StoreFactory, tuple[str, str], tuple[str, dict[str, int]], dict[str, int]]:
        """Delete a log."""
        dataset = dataset_factory(self.dataset_uuid, self.store, self.factory, load_schema=False)
        # a dataset that does not exist is an error
        uuid = dataset.dataset_metadata.uuid
        return _unpublish_job({uuid: uuid}, dataset.store_factory, lambda counts: dict(counts)[uuid])


def _unpublish_job(
    uuids: Mapping[str, str],
    store: StoreInput,
    finish: Callable[[Iterable[tuple[str, dict[str, int]]]], Answer],
) -> Job[StoreFactory, tuple[str, str], tuple[str, dict[str, int]], Answer]:
    """Delete the logs of datasets; `uuids` by name."""
    return Job(
        name="unpublish",
        description=f"unpublish {', '.join(uuids.values())}",
        context=store_factory(store),
        tasks=list(uuids.items()),
        run=_unpublish,
        finish=finish,
    )


def _unpublish(store: StoreFactory, task: tuple[str, str]) -> tuple[str, dict[str, int]]:
    name, uuid = task
    blobs = open_blobs(store)
    # first, so that later commits do not publish again
    _set_publish(blobs, uuid, None)
    return name, {"files": delta_log.delete_log(blobs, uuid)}
