"""The arguments of queries of cubes, as users give them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

import attrs

from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput
from kartothek_cube.core.pandas_conversion import DtypeBackend
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.maintenance.history import CubeAsOf


@attrs.frozen
class QueryCube(Generic[StoreT]):
    """Query a cube as if it were one DataFrame.

    Cells come from the seed, all other datasets add columns to them ("Query System" in the specification).

    Parameters
    ----------
    conditions
        Conditions that all have to hold, made with :class:`~kartothek_cube.core.cube.conditions.C`, or their
        text, as in SQL: ``"TEMP > 10 AND DAY >= '2024-01-05'"``; see :ref:`conditions`.
        Expressions of Polars or Arrow, Columns of Spark and predicates ``(column, operator, value)`` are
        conditions as well.
    datasets
        Ids of the datasets to join, or a dict of id to metadata; by default all of the cube.
    dimension_columns
        Dimensions of the result, in sort order; by default all. Fewer dimensions project the cube.
    partition_by
        Indexed columns by whose values the result is split.
    payload_columns
        Columns to read; by default all.
    as_of
        Version of the cube (:func:`list_cube_history`) or point in time: the cube is read in that state,
        which is kept until a cleanup (:func:`keep_cube_history`). Or a dict of dataset id to version or time,
        for some of the datasets. Or a staged write (:ref:`staging`): the cube as it would be. By default, the
        cube is read as it is now.
    changed_since
        Earlier state of the cube: the token of :func:`list_cube_changes`, a version, or a point in time. Only
        partitions are read in which rows of a dataset of the query have changed since. Their cells may be
        unchanged; cells that have vanished are not in the result, see :func:`list_cube_changes`.

    Returns
    -------
    list of pandas.DataFrame
        One frame per group with rows, sorted by the values of ``partition_by``; without it one frame, or none
        if nothing matches (:func:`query_cube_df` always returns one). Columns are sorted by name, rows by
        dimension and partition columns. A column has the same type in all frames (:ref:`types`). Dates are
        ``datetime64[ns]``; a column with dates that this cannot hold (before 1677-09-22 or after 2262-04-11)
        is ``datetime64[s]`` in all frames. Timestamps are ``datetime64[ns]``, or ``datetime64[us]`` in a
        column that has ever held a time which nanoseconds do not reach.

    Raises
    ------
    ValueError
        For unknown or unindexed columns, unknown datasets, and projections that would lose rows.
    TypeError
        If a condition has a value of the wrong type.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> from kartothek_cube.io.eager_cube import query_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> [df["CITY"].tolist() for df in query_cube(cube, store, partition_by="COUNTRY_CODE")]
    [['Bonn'], ['Rom']]
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    conditions: ConditionsInput = None
    datasets: DatasetsInput = None
    dimension_columns: str | Iterable[str] | None = None
    partition_by: str | Iterable[str] | None = None
    payload_columns: str | Iterable[str] | None = None
    as_of: CubeAsOf | None = attrs.field(default=None, kw_only=True)
    changed_since: CubeAsOf | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class QueryFrames(QueryCube[StoreT]):
    """A query whose result are DataFrames."""

    dtype_backend: DtypeBackend | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class QueryTable(Generic[StoreT]):
    """Query a cube into one DataFrame, which has no rows if nothing matches.

    Parameters
    ----------
    cube, store, conditions, datasets, dimension_columns, as_of, changed_since
        As in :func:`query_cube`.
    payload_columns, columns
        Columns to read, by default all; ``columns`` is the shorter name. The frame has the dimensions and the
        partition columns first, unless they are named as well, and then these columns in this order.
    limit
        Largest number of rows. Partitions are read one after the other until there are as many: which rows
        these are depends on how the cube is stored. They are sorted as usual.

    Returns
    -------
    pandas.DataFrame
        If nothing matches, with all columns and the types of the schema.

    Raises
    ------
    ValueError, TypeError
        As :func:`query_cube`; also for a negative limit.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.conditions import C
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube, query_cube_df
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = {"AVG_TEMP": [8, 7], "CITY": ["Ulm", "Bonn"], "COUNTRY_CODE": ["DE", "DE"]}
    >>> _ = build_cube(pd.DataFrame(cities), cube, store)
    >>> query_cube_df(cube, store, limit=1)
       CITY COUNTRY_CODE  AVG_TEMP
    0  Bonn           DE         7
    >>> query_cube_df(cube, store, C("AVG_TEMP") > 30).dtypes["AVG_TEMP"]
    dtype('int64')
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    conditions: ConditionsInput = None
    datasets: DatasetsInput = None
    dimension_columns: str | Iterable[str] | None = None
    payload_columns: str | Iterable[str] | None = None
    columns: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)
    limit: int | None = attrs.field(default=None, kw_only=True)
    as_of: CubeAsOf | None = attrs.field(default=None, kw_only=True)
    changed_since: CubeAsOf | None = attrs.field(default=None, kw_only=True)
    dtype_backend: DtypeBackend | None = attrs.field(default=None, init=False)


@attrs.frozen
class QueryFrame(QueryTable[StoreT]):
    """A query whose result is one DataFrame."""

    dtype_backend: DtypeBackend | None = attrs.field(default=None, kw_only=True)
