"""The arguments of writes of cubes, as users give them; whole input, or one part of it after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

import attrs
import pyarrow as pa

from kartothek_cube.core.arguments import converter_str_set, converter_str_set_optional
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io_components.facade import ALIAS_REQUIRED, StoreT, cube_or_name
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.write.cube_plan import (
    plan_append,
    plan_build,
    plan_extend,
    plan_remove,
    plan_update,
)
from kartothek_cube.io_components.write.validation import CubeMetadata
from kartothek_cube.io_components.write.write_commit import write_cube_job
from kartothek_cube.io_components.write.write_plan import CubeWritePlan, RowsOutside, SchemaMode, Written
from kartothek_cube.serialization import DataFrameSerializer

#: what a façade takes as input
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

    def plan(self, names: Iterable[str] = ()) -> CubeWritePlan:
        """Check the arguments and plan; `names` are the ids in the input, if no argument tells them."""


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
    """
    Store a new cube.

    The datasets appear one by one, the seed last: the cube
    exists when its seed does.

    Parameters
    ----------
    data
        A DataFrame (the seed), a dict of dataset id to DataFrame, or an iterable of these. Anything
        with the Arrow C stream interface (a :class:`pyarrow.Table`, a polars frame, ...) may
        stand for a DataFrame.
    metadata
        Metadata to keep with each dataset, by dataset id.
    overwrite
        Whether an existing cube is replaced.
    partition_on
        Partition columns by dataset id; default are the partition columns of the cube. The seed can't
        have others.
    df_serializer
        How files are written; Parquet with ZSTD by default.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    ValueError
        If the input breaks a rule of the cube: missing or duplicate columns, nulls in key columns, duplicate
        cells, payload in two datasets, a missing seed, datasets left out of an overwrite.
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

    #: what to do about the name of a cube that is not stored
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

    def plan(self, names: Iterable[str] = ()) -> CubeWritePlan:
        """Plan the write."""
        return plan_build(self, names)


@attrs.frozen
class BuildParts(BuildCube[DataT, StoreT]):  # noqa: D101 - shared
    __doc__ = _PARTS

    ktk_cube_dataset_ids: str | Iterable[str] | None = None
    metadata: CubeMetadata | None = None
    overwrite: bool = False
    partition_on: Mapping[str, Iterable[str]] | None = None
    df_serializer: DataFrameSerializer | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def plan(self, names: Iterable[str] = ()) -> CubeWritePlan:
        """Plan the write."""
        ids = converter_str_set_optional(self.ktk_cube_dataset_ids)
        return plan_build(self, [self.cube.seed_dataset] if ids is None else ids)


@attrs.frozen
class ExtendCube(BuildCube[DataT, StoreT]):
    """
    Add datasets, and with them columns, to a cube.

    Parameters
    ----------
    overwrite
        Whether datasets that exist already are replaced.
    partition_on
        Partition columns by dataset id; default are the partition columns of the cube.

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

    def plan(self, names: Iterable[str] = ()) -> CubeWritePlan:
        """Plan the write."""
        return plan_extend(self, names)


@attrs.frozen
class ExtendParts(ExtendCube[DataT, StoreT]):  # noqa: D101 - shared
    __doc__ = _PARTS

    ktk_cube_dataset_ids: str | Iterable[str] | None = attrs.field(default=None, metadata=ALIAS_REQUIRED)
    metadata: CubeMetadata | None = None
    overwrite: bool = False
    partition_on: Mapping[str, Iterable[str]] | None = None
    df_serializer: DataFrameSerializer | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def plan(self, names: Iterable[str] = ()) -> CubeWritePlan:
        """Plan the write."""
        return plan_extend(self, converter_str_set(self.ktk_cube_dataset_ids))


@attrs.frozen
class AppendToCube(Generic[DataT, StoreT]):
    """
    Add partitions to datasets of a cube.

    New cells hide older ones with the same key in the same partition. Datasets without rows in the input stay
    as they are.

    Parameters
    ----------
    data, df_serializer
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
        ``unique_cells`` if the seed has no index on a dimension.
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

    def plan(self, names: Iterable[str] = ()) -> CubeWritePlan:
        """Plan the write."""
        return plan_append(self, names)


@attrs.frozen
class AppendParts(AppendToCube[DataT, StoreT]):  # noqa: D101 - shared
    __doc__ = _PARTS

    ktk_cube_dataset_ids: str | Iterable[str] | None = attrs.field(default=None, metadata=ALIAS_REQUIRED)
    metadata: CubeMetadata | None = None
    df_serializer: DataFrameSerializer | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def plan(self, names: Iterable[str] = ()) -> CubeWritePlan:
        """Plan the write."""
        return plan_append(self, converter_str_set(self.ktk_cube_dataset_ids))


@attrs.frozen
class UpdateCube(Generic[DataT, StoreT]):
    """
    Remove partitions of datasets and add others, in one commit per dataset.

    Parameters
    ----------
    data, df_serializer
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

    def plan(self, names: Iterable[str] = ()) -> CubeWritePlan:
        """Plan the write."""
        return plan_update(self)


@attrs.frozen
class RemovePartitions(Generic[StoreT]):
    """
    Remove partitions.

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

    def job(
        self, blocksize: int | None = None
    ) -> Job[CubeWritePlan, tuple[str, pa.Table | None], Written, dict[str, DatasetMetadata]]:
        """Remove partitions: a commit, without tasks."""
        plan = plan_remove(self)
        return attrs.evolve(
            write_cube_job(plan, {}),
            name="remove_partitions",
            description=f"remove partitions of cube {self.cube.uuid_prefix}",
        )
