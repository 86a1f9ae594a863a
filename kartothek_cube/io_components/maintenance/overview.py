"""Overviews of a cube: sizes of its datasets, changed partitions, and lineage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeAlias
from uuid import NAMESPACE_URL, uuid5

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube import display, kartothek_helpers
from kartothek_cube.core import arguments, arrow, dataset_files, errors, evolution, history, partition
from kartothek_cube.core.cube.consistency import arrow_schema, get_dataset_columns
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput, choose_datasets, load_snapshot, select_datasets
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.pandas_conversion import to_pandas
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs
from kartothek_cube.io_components import kernels, runtime
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import CountsByDataset, Job, single_step_job
from kartothek_cube.io_components.maintenance import cube_history

#: numbers by name, of datasets
Stats: TypeAlias = dict[str, dict[str, int]]
#: datasets by id
States: TypeAlias = Mapping[str, DatasetMetadata]


def count_partitions(dataset: DatasetMetadata) -> int:
    """Count the physical partitions: combinations of values of the partition keys."""
    values = dataset.partition_table.keys(list(dataset.partition_keys or ()), dataset.schema)
    codes = kernels.group_codes(list(values.values()), len(dataset.partition_table))
    return int(codes.max()) + 1 if len(codes) else 0


def _run_stats(store: StoreInput, task: tuple[str, list[str]]) -> Stats:
    """Count the files of one task: the id of a dataset, and some of its data files."""
    blobs, (name, keys) = open_blobs(store), task
    blobsize = rows = 0
    for key in keys:
        size, n_rows = kartothek_helpers.file_stats(blobs, key)
        runtime.progress_advance(size)
        blobsize, rows = blobsize + size, rows + n_rows
    return {name: {"blobsize": blobsize, "rows": rows}}


def _add_stats(parts: Iterable[Stats]) -> Stats:
    """Add up stats of some tasks; associative."""
    total: Stats = {}
    for part in parts:
        for name, values in part.items():
            sums = total.setdefault(name, {"blobsize": 0, "files": 0, "partitions": 0, "rows": 0})
            for key, value in values.items():
                sums[key] += value
    return total


@attrs.frozen
class CollectStats(Generic[StoreT]):
    """Count what is stored.

    Parameters
    ----------
    datasets
        Ids, or a dict of id to metadata; by default all datasets of the cube.

    Returns
    -------
    dict
        Dataset id to ``blobsize`` (bytes of data files), ``files``, ``partitions`` (different values of the
        partition keys) and ``rows`` (in files, hidden ones included).

    Raises
    ------
    ValueError
        There is no such cube or dataset.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> from kartothek_cube.io.eager_cube import collect_stats
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> collect_stats(cube, store)["seed"]["rows"]
    2
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    datasets: DatasetsInput = None

    def job(self, blocksize: int | None = None) -> Job[dict[str, dict[str, int]]]:
        """Count the files of the datasets of a cube, then add up."""
        base: Stats = {}
        tasks: list[tuple[str, list[str]]] = []
        for name, dataset in select_datasets(self.cube, self.store, self.datasets).items():
            keys = dataset_files.data_keys(dataset)
            # known without opening files
            base[name] = {"files": len(keys), "partitions": count_partitions(dataset)}
            tasks += [(name, list(part)) for part in runtime.batched(keys, blocksize or 100)]
        return Job(
            name="collect_stats",
            description=f"count cube {self.cube.uuid_prefix}",
            context=runtime.store_factory(self.store),
            tasks=tasks,
            run=_run_stats,
            finish=partial(_finish_stats, base),
            merge=_add_stats,
            steps=("prepare", "count", "sum"),
            files=sum(len(keys) for _, keys in tasks),
        )


def _finish_stats(base: Stats, counted: Iterable[Stats]) -> Stats:
    """Add up all stats; datasets without partitions are left out."""
    total = sorted(_add_stats([base, *counted]).items())
    return CountsByDataset({name: sums for name, sums in total if sums["partitions"]})


@attrs.frozen
class DatasetChanges:
    """The physical partitions of a dataset in which two states differ."""

    #: values of those partition columns of the cube that the dataset has
    keys: pa.Table
    #: ``added``, ``changed`` or ``removed``, for each of them
    kinds: pa.StringArray

    def select(self, keys: Mapping[str, pa.Array], length: int) -> arrow.Mask:
        """Mask of the partitions of another dataset, given by their keys, that belong to changed ones."""
        shared = [name for name in self.keys.column_names if name in keys]
        changed = [self.keys.column(name) for name in shared]
        own, theirs = kernels.join_codes([keys[name] for name in shared], changed, length, len(self.kinds))
        return np.isin(own, theirs)


def compare_states(
    cube: Cube, old: DatasetMetadata | None, new: DatasetMetadata | None
) -> DatasetChanges | None:
    """Compare two states of a dataset, of which one may be absent; None if no partition differs."""
    state = new or old
    if state is None or (old is new):
        return None
    nothing = state.partition_table.take(np.empty(0, np.int64))
    tables = [nothing if s is None else s.partition_table for s in (old, new)]
    is_shared = [arrow.to_numpy(pc.is_in(a.labels, value_set=b.labels)) for a, b in (tables, tables[::-1])]
    states = [s for s in (old, new) if s is not None]
    is_schema_changed = not evolution.has_same_rows(states[0].metadata, states[-1].metadata, state.uuid)
    if not is_schema_changed and all(mask.all() for mask in is_shared):
        return None
    # a dataset that was overwritten may have others than before
    shared_keys = set.intersection(*(set(s.partition_keys or ()) for s in states))
    columns = [c for c in cube.partition_columns if c in shared_keys]
    keys = [table.keys(columns, arrow_schema(state)) for table in tables]
    both = {c: pa.concat_arrays([part[c] for part in keys]) for c in columns}
    codes = kernels.group_codes(list(both.values()), sum(map(len, tables)))
    own_codes = np.split(codes, [len(tables[0])])
    _, first = np.unique(codes, return_index=True)
    sums = np.zeros((len(first), 2), np.uint64)
    signs = (np.subtract, np.add)
    for table, group, mask, accumulate in zip(tables, own_codes, is_shared, signs, strict=True):
        labels = table.labels.filter(pa.array(~mask)).to_pylist()
        accumulate.at(sums, group[~mask], partition.content_sums(labels))
    groups = np.flatnonzero(sums.any(axis=1) | is_schema_changed)
    if not len(groups):
        return None
    n_old, n_new = (np.bincount(group, minlength=len(first)) for group in own_codes)
    kinds = np.select([n_old == 0, n_new == 0], ["added", "removed"], "changed")[groups]
    values = {c: array.take(pa.array(first[groups])) for c, array in both.items()}
    return DatasetChanges(pa.table(values), pa.array(kinds.tolist(), pa.string()))


def compare_cubes(cube: Cube, old: States, new: States) -> dict[str, DatasetChanges]:
    """Differences between two states of a cube, by dataset id."""
    changes = {name: compare_states(cube, old.get(name), new.get(name)) for name in sorted({*old, *new})}
    return {name: change for name, change in changes.items() if change is not None}


def check_changed_since(changed_since: cube_history.CubeAsOf) -> None:
    """Raise TypeError or ValueError for what names no state."""
    if cube_history.is_token(changed_since):
        cube_history.parse_token(changed_since)
        return
    moments = changed_since.values() if isinstance(changed_since, Mapping) else [changed_since]
    for moment in moments:
        history.check_as_of(moment, "changed_since")


def load_earlier(
    cube: Cube, blobs: BlobStore, changed_since: cube_history.CubeAsOf, names: Collection[str] | None = None
) -> dict[str, DatasetMetadata]:
    """The datasets of an earlier state, whatever indices they had then; of a token, those with the names."""
    check_changed_since(changed_since)
    if names is not None and cube_history.is_token(changed_since):
        # the state of another dataset may be gone, with the dataset
        states = {name: f"{name}@{state}" for name, state in cube_history.parse_token(changed_since).items()}
        chosen = [states[name] for name in states if name in names or name == cube.seed_dataset]
        changed_since = ",".join(chosen) or changed_since
    return cube_history.datasets_as_of(cube.copy(index_columns=()), blobs, changed_since)


def compare_used(cube: Cube, old: States, used: States, existing: States) -> list[DatasetChanges]:
    """Changes of the datasets of a cube that are used, or were."""
    # a dataset that is gone took its columns along
    old = {name: dataset for name, dataset in old.items() if name in used or name not in existing}
    return list(compare_cubes(cube, old, used).values())


def select_files(cube: Cube, dataset: DatasetMetadata, changes: Iterable[DatasetChanges]) -> arrow.Mask:
    """Mask of the files of a dataset in the changed partitions."""
    table = dataset.partition_table
    keys, mask = table.keys(cube.partition_columns, arrow_schema(dataset)), np.zeros(len(table), bool)
    for change in changes:
        mask |= change.select(keys, len(table))
    return mask


@attrs.frozen
class CubeChanges:
    """Changes of a cube since an earlier state.

    Examples
    --------
    >>> CubeChanges(pd.DataFrame({"dataset": ["seed"], "DAY": [1], "change": ["added"]}), "seed@...")
    <CubeChanges in 1 partition>
    """

    #: a row for each changed partition of a dataset: ``dataset``, partition columns of the cube (null where
    #: the dataset has none), and ``change``: added, changed, removed
    partitions: pd.DataFrame
    #: the newer of the two states, to go on from
    token: str

    def __len__(self) -> int:
        return len(self.partitions)

    def __repr__(self) -> str:
        return f"<CubeChanges in {errors.format_count(len(self), 'partition')}>"

    def _repr_html_(self) -> str:
        rows = list(self.partitions.itertuples(index=False, name=None))
        return display.card(repr(self)[1:-1], display.table("", list(self.partitions.columns), rows))


@attrs.frozen
class ListCubeChanges(Generic[StoreT]):
    """Tell in which partitions of a cube rows have changed since an earlier state.

    Two states are compared by their headers; no data file is read. A compaction changes no rows.

    Parameters
    ----------
    changed_since
        The earlier state: the ``token`` of an earlier call, a version of the cube
        (:func:`list_cube_history`), or a point in time. None: all partitions are new.
    datasets
        Ids of the datasets that count; by default all.

    Returns
    -------
    CubeChanges
        ``partitions`` is a DataFrame with a row for each partition that was added, changed or removed;
        ``token`` is the state to go on from.

    Raises
    ------
    StateNotFoundError
        The earlier state is no longer kept, as a cleanup has removed it or the dataset keeps no history:
        what has changed since is unknown. Process everything once, and go on with the new token.
    ValueError
        There is no such cube or dataset, or the token is malformed.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube
    >>> from kartothek_cube.io.eager_cube import list_cube_changes, query_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> last = list_cube_changes(cube, store).token
    >>> _ = append_to_cube(pd.DataFrame({"CITY": ["Ulm"], "COUNTRY_CODE": ["DE"]}), cube, store)
    >>> changes = list_cube_changes(cube, store, last)
    >>> changes.partitions
      dataset COUNTRY_CODE   change
    0    seed           DE  changed
    >>> query_cube(cube, store, changed_since=last, as_of=changes.token)[0]["CITY"].tolist()
    ['Bonn', 'Ulm']
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    changed_since: cube_history.CubeAsOf | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[CubeChanges]:
        """Compare headers: no tasks."""
        cube, blobs = self.cube, open_blobs(self.store)
        new = load_snapshot(cube, blobs, None).datasets
        requested = arguments.parse_name_set_optional("datasets", self.datasets)
        since, old = self.changed_since, dict[str, DatasetMetadata]()
        if since is not None:
            old = load_earlier(cube, blobs, since, requested)
        names = choose_datasets(cube, requested, {*old, *new})
        states = ({n: ds for n, ds in state.items() if n in names} for state in (old, new))
        changes = compare_cubes(cube, *states)
        seed = {**old, **new}[cube.seed_dataset]
        result = CubeChanges(_to_frame(cube, changes, seed), cube_history.make_token(new, blobs))
        description = f"list changes of cube {cube.uuid_prefix}"
        return single_step_job("list_cube_changes", description, lambda: result)


def _to_frame(cube: Cube, changes: Mapping[str, DatasetChanges], seed: DatasetMetadata) -> pd.DataFrame:
    text, keys = pa.string(), map(arrow_schema(seed).field, cube.partition_columns)
    schema = pa.schema([("dataset", text), *keys, ("change", text)])
    tables = [schema.empty_table()]
    for name, change in changes.items():
        columns = dict(zip(change.keys.column_names, change.keys.columns, strict=True))
        dataset = pa.repeat(name, len(change.kinds))
        tables.append(pa.table({"dataset": dataset, **columns, "change": change.kinds}))
    # integers keep their digits beside datasets without the column
    table = arrow.concat_promoted(tables).select(schema.names)
    return to_pandas(table, dates_as_object=True)


_PRODUCER = "https://pypi.org/project/kartothek-cube"
_OPENLINEAGE = "https://openlineage.io/spec"


@attrs.frozen
class DatasetLineage:
    """Lineage of a dataset of a cube."""

    dataset: str
    uuid: str
    #: its current version, and the operation that committed it, or the computation of its rows
    version: int | None
    time: datetime | None
    operation: str
    message: str | None
    job: Mapping[str, Any] | None
    library: str
    #: id of the state which that operation committed
    state: str
    #: versions of the datasets from which it was computed, by id; empty if it was not
    inputs: Mapping[str, int]
    #: those in which rows have changed since, or may have, as the state is no longer kept
    changed_inputs: tuple[str, ...]
    #: type by name
    columns: Mapping[str, str]

    @property
    def is_stale(self) -> bool:
        """Whether the dataset was computed from rows that have changed since."""
        return bool(self.changed_inputs)

    @property
    def status(self) -> str:
        """Whether it is stale, as text; empty if it was not computed."""
        if self.is_stale:
            return f"stale: {', '.join(self.changed_inputs)} changed"
        return "up to date" if self.inputs else ""

    def __str__(self) -> str:
        version = "of other software" if self.version is None else f"version {self.version}"
        inputs = f" from {cube_history.format_versions(self.inputs)}" if self.inputs else ""
        parts = [
            f"{self.dataset}: {version}",
            f"{self.operation}{inputs}",
            "" if self.time is None else cube_history.format_time(self.time),
            cube_history.format_job(self.job) and f"job {cube_history.format_job(self.job)}",
            self.status,
        ]
        # a job may have any name
        return display.escape_controls("; ".join(filter(None, parts)))


@attrs.frozen(repr=False)
class CubeLineage:
    """Lineage of the datasets of a cube; prints as text, and as a table in notebooks."""

    cube: Cube
    #: by id, the seed first
    datasets: Mapping[str, DatasetLineage]

    def __getitem__(self, name: str) -> DatasetLineage:
        errors.check_names(
            f"lineage of cube {self.cube.uuid_prefix}: ", "dataset", [name], self.datasets, error=KeyError
        )
        return self.datasets[name]

    def __repr__(self) -> str:
        entries = (f"  {entry}" for entry in self.datasets.values())
        return "\n".join([f"lineage of cube {self.cube.uuid_prefix}", *entries])

    def _repr_html_(self) -> str:
        header = ("dataset", "version", "operation", "from", "time", "job", "status")
        rows = [
            (
                entry.dataset,
                "" if entry.version is None else entry.version,
                entry.operation,
                cube_history.format_versions(entry.inputs),
                "" if entry.time is None else cube_history.format_time(entry.time),
                cube_history.format_job(entry.job),
                entry.status,
            )
            for entry in self.datasets.values()
        ]
        return display.card(f"lineage of cube {self.cube.uuid_prefix}", display.table("", header, rows))

    def to_openlineage(self, namespace: str = "kartothek_cube") -> list[dict[str, object]]:
        """Return run events of OpenLineage 2, two for each dataset: the start and the end of its run.

        Ids of runs follow from the states: an event that is sent again is the same. The name of the job is
        that of :func:`annotate_operations`, or the operation and the dataset.

        Parameters
        ----------
        namespace
            Of jobs and datasets, such as the address of the store.

        Returns
        -------
        list of dict
            Events to be sent as JSON.
        """
        namespace = arguments.parse_name("namespace", namespace)
        timed = [entry for entry in self.datasets.values() if entry.time is not None]
        events = [(kind, entry) for entry in timed for kind in ("START", "COMPLETE")]
        return [{"eventType": kind, **_run_event(self.cube, entry, namespace)} for kind, entry in events]


def _run_event(cube: Cube, entry: DatasetLineage, namespace: str) -> dict[str, object]:
    job = entry.job or {}
    fields = [{"name": name, "type": text} for name, text in entry.columns.items()]
    engine = {"name": "kartothek_cube", "version": entry.library or "unknown"}
    run_facets = {"processing_engine": _facet("facets/1-1-0/ProcessingEngineRunFacet", **engine)}
    if job or entry.message:
        details = {"message": entry.message, "job": dict(job)}
        run_facets["kartothekCube_annotations"] = _facet("2-0-2/OpenLineage", "RunFacet", **details)
    schema = {"schema": _facet("facets/1-0-0/SchemaDatasetFacet", fields=fields)}
    inputs = [_dataset(namespace, cube.ktk_dataset_uuid(n), number) for n, number in entry.inputs.items()]
    name = job.get("name") or f"{entry.operation or 'write'} {entry.uuid}"
    return {
        "eventTime": None if entry.time is None else entry.time.isoformat(),
        "producer": _PRODUCER,
        "schemaURL": f"{_OPENLINEAGE}/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": str(uuid5(NAMESPACE_URL, f"{entry.uuid}/{entry.state}")), "facets": run_facets},
        "job": {"namespace": namespace, "name": str(name)},
        "inputs": inputs,
        "outputs": [_dataset(namespace, entry.uuid, entry.version, schema)],
    }


def _dataset(
    namespace: str, uuid: str, version: int | None, facets: Mapping[str, object] | None = None
) -> dict[str, object]:
    number = _facet("facets/1-0-0/DatasetVersionDatasetFacet", datasetVersion=str(version))
    return {"namespace": namespace, "name": uuid, "facets": {"version": number, **(facets or {})}}


def _facet(path: str, name: str = "", **fields: object) -> dict[str, object]:
    url = f"{_OPENLINEAGE}/{path}.json#/$defs/{name or path.rpartition('/')[2]}"
    return {"_producer": _PRODUCER, "_schemaURL": url, **fields}


@attrs.frozen
class LineageCube(Generic[StoreT]):
    """Tell where the datasets of a cube come from: which was computed from which, at which versions.

    A dataset of :func:`compute_dataset` is stale if rows of the datasets that its function got have changed
    since. The job is that of :func:`annotate_operations`.

    Returns
    -------
    CubeLineage
        Prints as text. ``lineage["sales"]`` is that of a dataset; ``to_openlineage()`` returns run events of
        OpenLineage.

    Raises
    ------
    ValueError
        There is no such cube.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube
    >>> from kartothek_cube.io.eager_cube import annotate_operations, compute_dataset, lineage_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> with annotate_operations(job="letters", run=17):
    ...     _ = compute_dataset(lambda df: df.assign(N=df["CITY"].str.len()), cube, store, "letters")
    >>> _ = append_to_cube(cities.assign(CITY="Ulm").head(1), cube, store)
    >>> lineage = lineage_cube(cube, store)
    >>> lineage
    lineage of cube geodata
      seed: version 2; append; ... UTC
      letters: version 1; compute from seed 1; ... UTC; job letters, run 17; stale: seed changed
    >>> lineage["letters"].inputs, lineage["letters"].is_stale
    ({'seed': 1}, True)
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT

    def job(self, blocksize: int | None = None) -> Job[CubeLineage]:
        """Read headers: no tasks."""
        cube, blobs = self.cube, open_blobs(self.store)
        datasets = load_snapshot(cube, blobs, None).datasets
        entries = {name: _describe(cube, blobs, name, datasets) for name in cube.join_order(datasets)}
        result = CubeLineage(cube, entries)
        return single_step_job("lineage_cube", f"lineage of cube {cube.uuid_prefix}", lambda: result)


def _describe(cube: Cube, blobs: BlobStore, name: str, datasets: States) -> DatasetLineage:
    dataset = datasets[name]
    token: Any = dataset.metadata.get(cube_history.COMPUTED_FROM)
    inputs = cube_history.token_versions(token)
    changed = [n for n in inputs if _has_changed(cube, blobs, n, token, datasets.get(n))]
    origin = _find_computation(dataset, blobs, token) if inputs else dataset
    info, version = history.operation_info(origin), history.recorded_version(origin)
    visible = get_dataset_columns(dataset)
    return DatasetLineage(
        dataset=name,
        uuid=dataset.uuid,
        version=history.version_number(dataset),
        time=None if version is None else version.time,
        operation=info.name,
        message=info.message,
        job=info.job,
        library=info.library,
        state="" if version is None else version.state,
        inputs=inputs,
        changed_inputs=tuple(changed),
        columns={field.name: str(field.type) for field in arrow_schema(dataset) if field.name in visible},
    )


def _has_changed(
    cube: Cube, blobs: BlobStore, name: str, token: str, dataset: DatasetMetadata | None
) -> bool:
    """Whether rows of an input have changed since a token, or may have."""
    (entry,) = [entry for entry in token.split(",") if entry.startswith(f"{name}@")]
    if dataset is not None and cube_history.make_token({name: dataset}, blobs) == entry:
        return False
    try:
        return compare_states(cube, cube_history.load_token(cube, blobs, entry)[name], dataset) is not None
    except errors.StateNotFoundError:
        return True


def _find_computation(dataset: DatasetMetadata, blobs: BlobStore, token: str) -> DatasetMetadata:
    """The state in which the rows of a dataset were computed, or its newest one if that is not kept."""
    if history.operation_info(dataset).name == "compute":
        return dataset
    for state in reversed(history.list_states(dataset.uuid, blobs)):
        with suppress(errors.StateNotFoundError):
            loaded = history.load_state(dataset.uuid, blobs, state)
            is_same = loaded.metadata.get(cube_history.COMPUTED_FROM) == token
            if is_same and history.operation_info(loaded).name == "compute":
                return loaded
    return dataset
