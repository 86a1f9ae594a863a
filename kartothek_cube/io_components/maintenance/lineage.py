"""Where the datasets of a cube come from: inputs, jobs, and whether they are stale."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Generic
from uuid import NAMESPACE_URL, uuid5

import attrs

from kartothek_cube.core.cube.consistency import arrow_schema, get_dataset_columns
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import load_snapshot
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import StateNotFoundError
from kartothek_cube.core.history import (
    list_states,
    load_state,
    operation_info,
    recorded_version,
    version_number,
)
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.display import card, table
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job, single_step_job
from kartothek_cube.io_components.maintenance.changed_partitions import compare_states
from kartothek_cube.io_components.maintenance.history import (
    COMPUTED_FROM,
    format_job,
    format_time,
    format_versions,
    load_token,
    make_token,
    token_versions,
)

_PRODUCER = "https://pypi.org/project/kartothek-cube"
_OPENLINEAGE = "https://openlineage.io/spec"


@attrs.frozen
class DatasetLineage:
    """Where a dataset of a cube comes from."""

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
        inputs = f" from {format_versions(self.inputs)}" if self.inputs else ""
        parts = [
            f"{self.dataset}: {version}",
            f"{self.operation}{inputs}",
            "" if self.time is None else format_time(self.time),
            format_job(self.job) and f"job {format_job(self.job)}",
            self.status,
        ]
        return "; ".join(filter(None, parts))


@attrs.frozen(repr=False)
class CubeLineage:
    """Where the datasets of a cube come from; prints as text, and as a table in notebooks."""

    cube: Cube
    #: by id, the seed first
    datasets: Mapping[str, DatasetLineage]

    def __getitem__(self, name: str) -> DatasetLineage:
        return self.datasets[name]

    def __repr__(self) -> str:
        return "\n".join(
            [f"lineage of cube {self.cube.uuid_prefix}", *(f"  {entry}" for entry in self.datasets.values())]
        )

    def _repr_html_(self) -> str:
        header = ("dataset", "version", "operation", "from", "time", "job", "status")
        rows = [
            (
                entry.dataset,
                "" if entry.version is None else entry.version,
                entry.operation,
                format_versions(entry.inputs),
                "" if entry.time is None else format_time(entry.time),
                format_job(entry.job),
                entry.status,
            )
            for entry in self.datasets.values()
        ]
        return card(f"lineage of cube {self.cube.uuid_prefix}", table("", header, rows))

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
        return [
            {"eventType": kind, **_run_event(self.cube, entry, namespace)}
            for entry in self.datasets.values()
            for kind in ("START", "COMPLETE")
            if entry.time is not None
        ]


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

    def job(self, blocksize: int | None = None) -> Job[None, None, None, CubeLineage]:
        """Read headers: no tasks."""
        cube, blobs = self.cube, open_blobs(self.store)
        datasets = load_snapshot(cube, blobs, None).datasets
        entries = {name: _describe(cube, blobs, name, datasets) for name in cube.join_order(datasets)}
        result = CubeLineage(cube, entries)
        return single_step_job("lineage_cube", f"lineage of cube {cube.uuid_prefix}", lambda: result)


def _describe(
    cube: Cube, blobs: BlobStore, name: str, datasets: Mapping[str, DatasetMetadata]
) -> DatasetLineage:
    dataset = datasets[name]
    token: Any = dataset.metadata.get(COMPUTED_FROM)
    inputs = token_versions(token)
    changed = [n for n in inputs if _has_changed(cube, blobs, n, token, datasets.get(n))]
    origin = _find_computation(dataset, blobs, token) if inputs else dataset
    info, version = operation_info(origin), recorded_version(origin)
    visible = get_dataset_columns(dataset)
    return DatasetLineage(
        dataset=name,
        uuid=dataset.uuid,
        version=version_number(dataset),
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
    if dataset is not None and make_token({name: dataset}, blobs) == entry:
        return False
    try:
        return compare_states(cube, load_token(cube, blobs, entry)[name], dataset) is not None
    except StateNotFoundError:
        return True


def _find_computation(dataset: DatasetMetadata, blobs: BlobStore, token: str) -> DatasetMetadata:
    """The state in which the rows of a dataset were computed, or its newest one if that is not kept."""
    if operation_info(dataset).name == "compute":
        return dataset
    for state in reversed(list_states(dataset.uuid, blobs)):
        with suppress(StateNotFoundError):
            loaded = load_state(dataset.uuid, blobs, state)
            if operation_info(loaded).name == "compute" and loaded.metadata.get(COMPUTED_FROM) == token:
                return loaded
    return dataset
