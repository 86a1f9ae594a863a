"""Which partitions of a cube have changed since an earlier state, by the names of their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arguments import converter_str_set_optional
from kartothek_cube.core.arrow import Mask, concat_promoted, to_numpy
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import choose_datasets, load_snapshot
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import format_count
from kartothek_cube.core.history import check_as_of
from kartothek_cube.core.partition import content_sums
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.display import card
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job, single_step_job
from kartothek_cube.io_components.kernels import group_codes, join_codes
from kartothek_cube.io_components.maintenance.history import CubeAsOf, datasets_as_of, is_token, make_token


@attrs.frozen
class DatasetChanges:
    """The physical partitions of a dataset in which two states differ."""

    #: values of those partition columns of the cube that the dataset has
    keys: pa.Table
    #: ``added``, ``changed`` or ``removed``, for each of them
    kinds: pa.StringArray

    def select(self, keys: Mapping[str, pa.Array], length: int) -> Mask:
        """Mask of the partitions of another dataset, given by their keys, that belong to changed ones."""
        shared = [name for name in self.keys.column_names if name in keys]
        changed = [self.keys.column(name) for name in shared]
        own, theirs = join_codes([keys[name] for name in shared], changed, length, len(self.kinds))
        return np.isin(own, theirs)


def compare_states(
    cube: Cube, old: DatasetMetadata | None, new: DatasetMetadata | None
) -> DatasetChanges | None:
    """Compare two states of a dataset, of which one may be absent; None if no partition differs."""
    state = new or old
    if state is None or (old is new):
        return None
    tables = [
        state.partition_table.take(np.empty(0, np.int64)) if s is None else s.partition_table
        for s in (old, new)
    ]
    is_shared = [to_numpy(pc.is_in(a.labels, value_set=b.labels)) for a, b in (tables, tables[::-1])]
    if all(mask.all() for mask in is_shared):
        return None
    columns = [c for c in cube.partition_columns if c in (state.partition_keys or ())]
    keys = [table.keys(columns, arrow_schema(state)) for table in tables]
    both = {c: pa.concat_arrays([part[c] for part in keys]) for c in columns}
    lengths = [len(table) for table in tables]
    codes = group_codes(list(both.values()), sum(lengths))
    own_codes = np.split(codes, lengths[:1])
    n_groups = int(codes.max(initial=-1)) + 1
    sums = np.zeros((n_groups, 2), np.uint64)
    for table, group, mask, accumulate in zip(
        tables, own_codes, is_shared, (np.subtract, np.add), strict=True
    ):
        labels = table.labels.filter(pa.array(~mask)).to_pylist()
        accumulate.at(sums, group[~mask], content_sums(labels))
    counts = [np.bincount(group, minlength=n_groups) for group in own_codes]
    groups = np.flatnonzero(sums.any(axis=1))
    if not len(groups):
        return None
    first = np.full(n_groups, -1)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    kinds = np.where(counts[0] == 0, "added", np.where(counts[1] == 0, "removed", "changed"))[groups]
    values = {c: array.take(pa.array(first[groups])) for c, array in both.items()}
    return DatasetChanges(pa.table(values), pa.array(kinds.tolist(), pa.string()))


def compare_cubes(
    cube: Cube, old: Mapping[str, DatasetMetadata], new: Mapping[str, DatasetMetadata]
) -> dict[str, DatasetChanges]:
    """What differs between two states of a cube, by dataset id."""
    changes = {name: compare_states(cube, old.get(name), new.get(name)) for name in sorted({*old, *new})}
    return {name: change for name, change in changes.items() if change is not None}


def load_earlier(cube: Cube, blobs: BlobStore, changed_since: CubeAsOf) -> dict[str, DatasetMetadata]:
    """The datasets of an earlier state, whatever indices they had then."""
    if not is_token(changed_since) and not isinstance(changed_since, Mapping):
        check_as_of(changed_since, "changed_since")
    return datasets_as_of(cube.copy(index_columns=()), blobs, changed_since)


def compare_used(
    cube: Cube,
    old: Mapping[str, DatasetMetadata],
    used: Mapping[str, DatasetMetadata],
    existing: Mapping[str, DatasetMetadata],
) -> list[DatasetChanges]:
    """What has changed in the datasets of a cube that are used, or were."""
    # a dataset that is gone took its columns along
    old = {name: dataset for name, dataset in old.items() if name in used or name not in existing}
    return list(compare_cubes(cube, old, used).values())


def select_files(cube: Cube, dataset: DatasetMetadata, changes: Iterable[DatasetChanges]) -> Mask:
    """Mask of the files of a dataset in the changed partitions."""
    table = dataset.partition_table
    keys, mask = table.keys(cube.partition_columns, arrow_schema(dataset)), np.zeros(len(table), bool)
    for change in changes:
        mask |= change.select(keys, len(table))
    return mask


@attrs.frozen
class CubeChanges:
    """What has changed in a cube since an earlier state.

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
        return f"<CubeChanges in {format_count(len(self), 'partition')}>"

    def _repr_html_(self) -> str:
        return card(repr(self)[1:-1], self.partitions.to_html(index=False))


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
    changed_since: CubeAsOf | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[None, None, None, CubeChanges]:
        """Compare headers: no tasks."""
        cube, blobs = self.cube, open_blobs(self.store)
        new = load_snapshot(cube, blobs, None).datasets
        requested = converter_str_set_optional(self.datasets)
        old: Mapping[str, DatasetMetadata] = {}
        if self.changed_since is not None:
            old = load_earlier(cube, blobs, self.changed_since)
        names = choose_datasets(cube, requested, {*old, *new})
        changes = compare_cubes(
            cube, *({n: ds for n, ds in state.items() if n in names} for state in (old, new))
        )
        result = CubeChanges(_to_frame(cube, changes, {**old, **new}), make_token(new, blobs))
        description = f"list changes of cube {cube.uuid_prefix}"
        return single_step_job("list_cube_changes", description, lambda: result)


def _to_frame(
    cube: Cube, changes: Mapping[str, DatasetChanges], datasets: Mapping[str, DatasetMetadata]
) -> pd.DataFrame:
    tables = [
        pa.table({"dataset": pa.repeat(name, len(change.kinds)), **_columns(change), "change": change.kinds})
        for name, change in changes.items()
    ]
    keys = arrow_schema(datasets[cube.seed_dataset])
    schema = pa.schema(
        [("dataset", pa.string()), *(keys.field(c) for c in cube.partition_columns), ("change", pa.string())]
    )
    rows = concat_promoted([schema.empty_table(), *tables])
    frame: pd.DataFrame = rows.select(schema.names).to_pandas()
    return frame


def _columns(change: DatasetChanges) -> dict[str, pa.ChunkedArray]:
    return dict(zip(change.keys.column_names, change.keys.columns, strict=True))
