"""Reading datasets with pandas, at once."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from kartothek_cube.core.arrow.pandas_conversion import align_date_units, to_pandas
from kartothek_cube.core.expressions.predicate import PredicatesType
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import AsOf
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.read.dataset_read import empty_table, plan_read, run_each, run_read
from kartothek_cube.io_components.read.pandas_index import to_frame

__all__ = ("read_dataset_as_dataframes", "read_table")


def read_dataset_as_dataframes(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    columns: list[str] | None = None,
    predicate_pushdown_to_io: bool = True,
    categoricals: list[str] | None = None,
    dates_as_object: bool = True,
    predicates: PredicatesType = None,
    factory: DatasetFactory | None = None,
    dispatch_by: str | Sequence[str] | None = None,
    *,
    table_name: str | None = None,
    as_of: AsOf | None = None,
) -> list[pd.DataFrame]:
    """
    Read a dataset, one frame per partition or per group.

    Parameters
    ----------
    dataset_uuid
        Uuid of the dataset.
    store
        Store, factory or URL.
    columns
        Columns wanted, in this order, partition keys included. None: partition keys, then the columns as the
        file has them. ``[]``: rows without columns.
    predicate_pushdown_to_io
        Whether statistics of the files may be used to skip rows; the result is the same.
    categoricals
        Columns that become unordered categoricals.
    dates_as_object
        Whether dates become :class:`datetime.date` objects; else ``datetime64[ns]``.
    predicates
        Which rows are wanted: any of these conjunctions of ``(column, operator, value)``.
    factory
        The dataset itself, instead of ``dataset_uuid`` and ``store``.
    dispatch_by
        Indexed columns. The result has one frame for each combination of their values that the indices hold,
        with exactly the rows that have these values. ``[]``: everything in one frame.
    table_name
        Which table to read; needed for datasets with several tables only.
    as_of
        Version, or point in time, of the state that is read, if the dataset keeps its history
        (:func:`~kartothek_cube.io.eager.keep_dataset_history`); by default the current one.

    Returns
    -------
    list of pandas.DataFrame
        Partitions in the order of commit, or groups sorted by their values. Partitions that cannot hold a
        matching row are left out. Partitions of a dataset without partition keys have the index of the frame
        that was stored, reduced to the rows that match; others have a fresh one.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        A column does not exist, or predicates have the wrong form.
    TypeError
        The value of a predicate does not fit its column.
    RuntimeError
        A column of ``dispatch_by`` has no index, or there are several tables.

    Examples
    --------
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> [df["CITY"].tolist() for df in read_dataset_as_dataframes("geodata", store)]
    [['Bonn', 'Ulm'], ['Rom']]
    """
    plan = plan_read(
        dataset_uuid,
        store,
        factory,
        columns=columns,
        predicate_pushdown_to_io=predicate_pushdown_to_io,
        categoricals=categoricals,
        predicates=predicates,
        dispatch_by=dispatch_by,
        table_name=table_name,
        as_of=as_of,
        row_index=True,
    )
    frames = [to_frame(table, dates_as_object, plan.context.categoricals) for table in run_each(plan)]
    align_date_units(frames)
    return frames


def read_table(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    columns: list[str] | None = None,
    predicate_pushdown_to_io: bool = True,
    categoricals: list[str] | None = None,
    dates_as_object: bool = True,
    predicates: PredicatesType = None,
    factory: DatasetFactory | None = None,
    *,
    table_name: str | None = None,
    as_of: AsOf | None = None,
) -> pd.DataFrame:
    """
    Read a dataset into one frame.

    Parameters
    ----------
    dataset_uuid, store, predicate_pushdown_to_io, categoricals, dates_as_object, predicates
        As in :func:`read_dataset_as_dataframes`.
    factory, table_name, as_of
        As there.
    columns
        Columns wanted, in this order. None: all, partition keys first, the others sorted by name.

    Returns
    -------
    pandas.DataFrame
        With a fresh index; if nothing matches, without rows and with the types of the schema.

    Raises
    ------
    KeyError, ValueError, TypeError, RuntimeError
        As :func:`read_dataset_as_dataframes`.

    Examples
    --------
    >>> from kartothek_cube.io.eager import store_dataframes_as_dataset
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> read_table("geodata", store, predicates=[[("CITY", ">", "C")]])
      COUNTRY_CODE CITY
    0           DE  Ulm
    1           IT  Rom
    """
    plan = plan_read(
        dataset_uuid,
        store,
        factory,
        columns=columns,
        predicate_pushdown_to_io=predicate_pushdown_to_io,
        categoricals=categoricals,
        predicates=predicates,
        table_name=table_name,
        as_of=as_of,
        in_schema_order=True,
    )
    task = plan.single_task()
    table = empty_table(plan.context) if task is None else run_read(plan.context, task)
    return to_pandas(table, dates_as_object=dates_as_object, categories=plan.context.categoricals)
