"""Compute a dataset of a cube partition by partition, and again where its inputs have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Generic, Literal, cast

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import arguments, arrow, errors, pandas_conversion
from kartothek_cube.core.commit.change import UnchangedMetadata, UnchangedPartitions
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.consistency import get_dataset_columns, get_payload_subset
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import choose_datasets, load_snapshot
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.history import describe_operation
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.dataset_arguments import user_metadata
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.maintenance import overview
from kartothek_cube.io_components.maintenance.cube_history import (
    COMPUTED_FROM,
    CubeAsOf,
    is_token,
    make_token,
)
from kartothek_cube.io_components.query import executor, logical_plan, physical_plan
from kartothek_cube.io_components.write import table_writer, write_commit, write_tasks
from kartothek_cube.io_components.write.cube_writes import ExtendCube, plan_existing
from kartothek_cube.io_components.write.write_plan import WritePlan, Written, merge_writes
from kartothek_cube.serialization import DataFrameSerializer

#: tasks of a computation, as many as a large cluster has cores; each of fewer partitions is a task. 2,000
#: partitions of 50 rows take 15 s, with a task for each 39 s
_TASKS = 512


def _parse_into(into: str | bytes) -> str:
    return arguments.parse_name("into", into)


@attrs.frozen
class ComputeContext:
    """State shared by all tasks."""

    scan: physical_plan.ScanContext
    plan: WritePlan
    function: Callable[[pd.DataFrame], pd.DataFrame | None]
    #: id of the dataset that is computed
    into: str


@attrs.frozen
class ComputeResult:
    """The result of a computation.

    Examples
    --------
    >>> ComputeResult(None, 2, 1, 500)
    <computed: 500 rows in 2 partitions, 1 file replaced>
    """

    #: the new state of the dataset
    dataset: DatasetMetadata | None
    #: number of partitions of the cube that were computed
    n_partitions: int
    #: number of files of the dataset that were replaced or removed
    files_replaced: int
    #: number of rows that were written
    rows: int

    def __repr__(self) -> str:
        count = errors.format_count
        return (
            f"<computed: {count(self.rows, 'row')} in {count(self.n_partitions, 'partition')}, "
            f"{count(self.files_replaced, 'file')} replaced>"
        )


@attrs.frozen
class ComputeDataset(Generic[StoreT]):
    """Compute a dataset of a cube by a function of its other datasets, again where these have changed.

    The function gets the cells of one physical partition of the cube as a DataFrame, and returns the rows of
    the new dataset for that partition. The rows are committed together with the state of the cube from which
    they were computed: a repeated call computes the partitions that have changed since, and exactly once,
    whether the job before was killed or not. Partitions that the seed has lost are removed.

    Parameters
    ----------
    function
        Takes a DataFrame, as of :func:`query_cube`, and returns one with the key columns and the payload of
        the new dataset; None for no rows. In the first call, a column has one type in all partitions: give
        integers with gaps the type ``Int64``.
    into
        Id of the dataset that is computed; it is created by the first call. Other calls must not write it.
    conditions, payload_columns
        What the function gets, as in :func:`query_cube`.
    datasets
        Ids of the datasets that the function gets; by default all but ``into``.
    changed_since
        ``"last"``: compute what has changed since the last call. None: compute everything, as is necessary
        after the function, ``conditions`` or columns were changed. Or an earlier state of the cube: a token
        of :func:`list_cube_changes`, a version or a point in time.
    metadata
        Metadata of the dataset.

    Returns
    -------
    ComputeResult
        ``dataset``: the new state; ``n_partitions``: partitions that were computed; ``files_replaced``;
        ``rows``.

    Raises
    ------
    Exception
        What the function raises, with a note that names the partition.
    StateNotFoundError
        The state of the last call is no longer kept, so that what has changed since is unknown: pass
        ``changed_since=None`` once.
    ValueError
        ``into`` is the seed, is not partitioned like the cube, or the function returned rows of another
        partition.
    ConcurrentWriteError
        Another call has committed, or has compacted the dataset, meanwhile. Nothing is changed: repeat it.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube, query_cube_df
    >>> from kartothek_cube.io.eager_cube import compute_dataset
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> def count_letters(df):
    ...     return df.assign(LETTERS=df["CITY"].str.len())
    >>> compute_dataset(count_letters, cube, store, "letters")
    <computed: 2 rows in 2 partitions, 0 files replaced>
    >>> _ = append_to_cube(pd.DataFrame({"CITY": ["Ulm"], "COUNTRY_CODE": ["DE"]}), cube, store)
    >>> compute_dataset(count_letters, cube, store, "letters")
    <computed: 2 rows in 1 partition, 1 file replaced>
    >>> query_cube_df(cube, store)["LETTERS"].tolist()
    [4, 3, 3]
    """

    function: Callable[[pd.DataFrame], pd.DataFrame | None]
    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    into: str = attrs.field(converter=_parse_into)
    conditions: ConditionsInput = attrs.field(default=None, kw_only=True)
    payload_columns: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)
    changed_since: Literal["last"] | CubeAsOf | None = attrs.field(default="last", kw_only=True)
    metadata: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    df_serializer: DataFrameSerializer | None = attrs.field(default=None, kw_only=True)
    publish: bool = attrs.field(default=True, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[ComputeResult]:
        """Compute each changed partition, then commit all of them with the state that they come from."""
        cube, into = self.cube, self.into
        if not callable(self.function):
            raise TypeError(f"function takes a DataFrame and returns one, but it is {self.function!r}")
        if into == cube.seed_dataset:
            raise ValueError(f"into is {into!r}, the seed: its cells are what the function is called with")
        blobs = open_blobs(self.store)
        existing = load_snapshot(cube, blobs, None).datasets
        inputs = {name: dataset for name, dataset in existing.items() if name != into}
        names = choose_datasets(cube, arguments.parse_name_set_optional("datasets", self.datasets), inputs)
        inputs = {name: inputs[name] for name in sorted({cube.seed_dataset, *names})}
        target, token = existing.get(into), make_token(inputs, blobs)
        payload = arguments.parse_name_set_optional("payload_columns", self.payload_columns)
        own = set() if target is None else get_payload_subset(get_dataset_columns(target), cube)
        if own := own.intersection(payload or ()):
            raise ValueError(
                f"payload_columns names {', '.join(sorted(own))} of dataset {into!r}, which is computed: its "
                "function gets columns of the other datasets"
            )
        last = None if target is None else target.metadata.get(COMPUTED_FROM)
        # other values, which are not of this library, are no reason to fail
        last_token = last if is_token(last) else None
        since = self.changed_since
        if isinstance(since, str) and since == "last":
            since = last_token
        earlier = None if since is None else self._load_earlier(since)
        query = logical_plan.QueryFrames(
            cube,
            self.store,
            self.conditions,
            inputs,
            # a group is a partition
            partition_by=cube.partition_columns or None,
            payload_columns=payload,
        )
        scans = physical_plan.plan_query(query)
        seed = scans.files[0]
        partitions, replaced = np.arange(scans.n_partitions), None if target is None else self._labels(target)
        if target is not None and replaced is not None and earlier is not None:
            used = {scan.name: inputs[scan.name] for scan in scans.context.scans}
            changes = overview.compare_used(cube, earlier, used, existing)
            mask = overview.select_files(cube, seed.dataset, changes)
            partitions = np.unique(seed.partition_ids[mask[seed.positions]])
            replaced = replaced.filter(pa.array(overview.select_files(cube, target, changes)))
        metadata = user_metadata(self.metadata)
        plan = self._plan(target, {**metadata, COMPUTED_FROM: token}, last, replaced)
        is_unchanged = last == token and not metadata and not len(partitions) and not len(replaced or ())
        plan = attrs.evolve(plan, commit_all=plan.commit_all and not is_unchanged)
        context = ComputeContext(scans.context, plan.without_commit_state(), self.function, into)
        return Job(
            name="compute_dataset",
            description=f"compute dataset {into} of cube {cube.uuid_prefix}",
            context=context,
            tasks=_make_tasks(scans, partitions),
            run=run_compute,
            finish=partial(_finish_compute, plan, target, len(partitions)),
            merge=merge_writes,
            discard=partial(table_writer.delete_attempts, plan),
            steps=("prepare", "partition", "commit"),
            is_parallel=True,
            files=scans.n_files,
        )

    def _labels(self, target: DatasetMetadata) -> pa.StringArray:
        """Labels of the files of the dataset, which has to be partitioned like the cube."""
        missing = set(self.cube.partition_columns) - set(target.partition_keys or ())
        if missing:
            raise ValueError(
                f"Dataset {self.into!r} is not partitioned by {', '.join(sorted(missing))}, as the cube is: "
                "its partitions cannot be computed one by one"
            )
        return target.partition_table.labels

    def _load_earlier(self, since: CubeAsOf) -> dict[str, DatasetMetadata]:
        try:
            return overview.load_earlier(self.cube, open_blobs(self.store), since)
        except errors.StateNotFoundError as error:
            remedy = "What has changed since is unknown: compute everything once, by changed_since=None."
            raise errors.StateNotFoundError(
                error.dataset_uuid, error.as_of, error.known, remedy=remedy
            ) from error

    def _plan(
        self,
        target: DatasetMetadata | None,
        metadata: Mapping[str, Any],
        last: object,
        replaced: pa.StringArray | None,
    ) -> WritePlan:
        cube, by_name = self.cube, {self.into: metadata}
        if target is None:
            extension = ExtendCube(
                None, cube, self.store, by_name, df_serializer=self.df_serializer, publish=self.publish
            )
            try:
                plan = extension.plan([self.into])
            except errors.DatasetExistsError as error:
                detail = "Another writer has created it since this operation began. Repeat it."
                raise errors.ConcurrentWriteError(error.dataset_uuid, detail=detail) from error
            # no dataset has this entry: the first computation is in conflict with whatever has created it
            plan = plan.evolve_changes(requires=(UnchangedMetadata(COMPUTED_FROM, "", "created it"),))
            return attrs.evolve(plan, info=describe_operation("compute"))
        plan = plan_existing("compute", cube, self.store, {self.into: target}, by_name, self.df_serializer)
        # rows that another writer has added meanwhile would be hidden by older computed ones
        unseen = UnchangedPartitions.of_dataset(target)
        requires = (UnchangedMetadata(COMPUTED_FROM, last, "computed it"), unseen)
        plan = plan.evolve_changes(replaces=replaced, requires=requires)
        plan = attrs.evolve(plan, keep_empty=True, commit_all=True)
        return plan.stage(publish=self.publish)


def _make_tasks(scans: physical_plan.PhysicalPlan, partitions: arrow.Ints) -> list[physical_plan.ScanTask]:
    if scans.groups is None:
        return scans.partition_tasks(partitions[:, None])
    is_changed = np.zeros(scans.n_partitions, bool)
    is_changed[partitions] = True
    changed = {group: members for group, members in scans.groups.items() if is_changed[members].any()}
    return physical_plan.split_evenly(attrs.evolve(scans, groups=changed), _TASKS)


def run_compute(context: ComputeContext, task: physical_plan.ScanTask) -> Written:
    """Call the function with the cells of each partition, and write what it returns."""
    frames = []
    for frame in executor.run_frames(context.scan, task):
        try:
            rows = context.function(frame)
        except Exception as error:
            name = getattr(context.function, "__name__", repr(context.function))
            cells = frame[list(context.plan.cube.partition_columns)].head(1).to_dict("records")
            where = ", ".join(f"{key}={value!r}" for cell in cells for key, value in cell.items())
            error.add_note(f"Function {name} failed for {where or 'all rows'}")
            raise
        if rows is None:
            continue
        if not isinstance(rows, pd.DataFrame):
            raise TypeError(
                "The function returns a DataFrame of pandas or None, but it returned "
                f"{type(rows).__module__}.{type(rows).__name__}"
            )
        if len(rows):
            _check_partition(context.plan, frame, rows)
        frames.append(rows)
    # frames of other types are a conflict of schemas, whether they are of one task or of several
    groups = groupby(frames, key=lambda rows: (list(rows.columns), list(rows.dtypes)))
    write = partial(write_tasks.write_part, context.plan)
    return merge_writes(write([{context.into: rows} for rows in same]) for _, same in groups)


def _check_partition(plan: WritePlan, frame: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Refuse rows of another partition than that of the cells: what is computed there later replaces them."""
    keys = plan.cube.partition_columns
    given = [key for key in keys if key in rows.columns]
    is_own = np.ones(len(rows), bool)
    for key in given:
        is_own &= rows[key].isin(frame[key].head(1)).to_numpy()
    wrong = [] if is_own.all() else rows.loc[~is_own, given].head(1).to_dict("records")
    for transform in plan.spec.transforms(rows.columns):
        if transform.name not in given and not wrong:
            own, new = (
                transform.apply(pandas_conversion.as_table(df[[transform.column]]).column(0).drop_null())
                for df in (frame.head(1), rows)
            )
            values = new.filter(pc.not_equal(new, own[0]))[:1].to_pylist()
            wrong = [{transform.name: value} for value in values]
    if wrong:
        raise ValueError(
            f"The function got the partition {frame[list(keys)].iloc[0].to_dict()} and returned rows of "
            f"another one: {wrong[0]}"
        )


def _finish_compute(
    plan: WritePlan, target: DatasetMetadata | None, n_partitions: int, parts: Iterable[Written]
) -> ComputeResult:
    written = merge_writes(parts)
    ((into, spec),) = plan.specs.items()
    rows = written[into].rows if into in written else 0
    states = write_commit.finish_write(plan, [written])
    if plan.staged_id:
        return cast("ComputeResult", states)
    replaced = spec.change.replaces
    n_replaced = 0 if replaced is None else len(replaced)
    return ComputeResult(states.get(into, target), n_partitions, n_replaced, rows)
