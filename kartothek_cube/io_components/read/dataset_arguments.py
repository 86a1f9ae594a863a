"""The arguments of reads of datasets, as users give them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kartothek_cube.core.expressions import PredicatesType
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.pandas_conversion import DtypeBackend
from kartothek_cube.io_components.read.dataset_read import DatasetRead, FrameOptions, ReadPlan


@attrs.frozen
class ReadTable(DatasetRead):
    """Read a dataset into one frame.

    Parameters
    ----------
    dataset_uuid, store, predicate_pushdown_to_io, categoricals, dates_as_object, predicates
        As in :func:`read_dataset_as_dataframes`.
    factory, table_name, as_of, dtype_backend
        As there.
    columns
        Columns to read, in this order. None: all, partition keys first, the others sorted by name.

    Returns
    -------
    pandas.DataFrame
        With a new index. If nothing matches, it has no rows and the types of the schema.

    Raises
    ------
    KeyError, ValueError, TypeError, RuntimeError
        As :func:`read_dataset_as_dataframes`.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import read_table
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> read_table("geodata", store, predicates=[[("CITY", ">", "C")]])
      COUNTRY_CODE CITY
    0           DE  Ulm
    1           IT  Rom
    """

    categoricals: list[str] | None = None
    dates_as_object: bool = True
    predicates: PredicatesType = None
    factory: DatasetFactory | None = None
    dispatch_by: str | Sequence[str] | None = attrs.field(default=None, init=False)
    dtype_backend: DtypeBackend | None = attrs.field(default=None, kw_only=True)

    def options(self, plan: ReadPlan) -> FrameOptions:
        """What tasks that read frames share."""
        return FrameOptions(plan.context, self.dates_as_object, self.dtype_backend)


@attrs.frozen
class ReadDataset(ReadTable):
    """Read a dataset, one frame per partition or per group.

    Parameters
    ----------
    columns
        Columns to read, in this order. None: partition keys, then the columns in the order of the file.
        ``[]``: rows without columns.
    predicate_pushdown_to_io
        Has no effect; accepted for compatibility with kartothek. Predicates are always pushed down.
    categoricals
        Columns that become unordered categoricals.
    dates_as_object
        Whether dates become :class:`datetime.date` objects; else ``datetime64[ns]``.
    predicates
        Rows to read: a list of conjunctions of ``(column, operator, value)``, one of which has to hold.
    factory
        The dataset itself, instead of ``dataset_uuid`` and ``store``.
    dispatch_by
        Indexed columns. The result has one frame for each combination of their values that the indices hold,
        with exactly the rows of these values. ``[]``: everything in one frame.
    table_name
        Table to read; required only for datasets with several tables.
    as_of
        Version or point in time of the state to read, which is kept until a cleanup
        (:func:`keep_dataset_history`), or a staged write (:ref:`staging`); by default the current state.
    dtype_backend
        ``"numpy_nullable"`` or ``"pyarrow"``: types that can hold missing values and do not depend on the
        values (:ref:`types`). By default NumPy types.

    Returns
    -------
    list of pandas.DataFrame
        Partitions in the order of commit, or groups sorted by their values. Partitions that cannot hold a
        matching row are absent. In a dataset without partition keys, frames keep the index with which they
        were stored; all others have a new one.

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
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import read_dataset_as_dataframes
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> [df["CITY"].tolist() for df in read_dataset_as_dataframes("geodata", store)]
    [['Bonn', 'Ulm'], ['Rom']]
    """

    in_schema_order = False
    row_index = True

    dispatch_by: str | Sequence[str] | None = None


@attrs.frozen
class ReadTableArrow(DatasetRead):
    """Read a dataset into one Arrow table.

    Parameters
    ----------
    dataset_uuid, store, predicate_pushdown_to_io, predicates, factory, table_name, as_of
        As in :func:`read_dataset_as_dataframes`.
    columns
        Columns to read, in this order; by default all.
    categoricals
        Columns that are dictionary-encoded.

    Returns
    -------
    pyarrow.Table
        Columns have the types of the files, partition keys those of the schema: timestamps are in ns, or in
        us (:ref:`types`), dates stay dates, and missing values change no type.

    Raises
    ------
    KeyError, ValueError, TypeError, RuntimeError
        As :func:`read_dataset_as_dataframes`.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.arrow import read_table_arrow
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> read_table_arrow("geodata", store)["CITY"].to_pylist()
    ['Bonn', 'Rom']
    """

    categoricals: list[str] | None = None
    predicates: PredicatesType = None
    factory: DatasetFactory | None = None
    dispatch_by: str | Sequence[str] | None = attrs.field(default=None, init=False)


@attrs.frozen
class ReadTablesArrow(ReadTableArrow):
    """Parameters of façades whose result are several tables.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.arrow import read_dataset_as_arrow
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> [table["CITY"].to_pylist() for table in read_dataset_as_arrow("geodata", store)]
    [['Bonn'], ['Rom']]
    """

    in_schema_order = False

    dispatch_by: str | Sequence[str] | None = None


@attrs.frozen
class ReadBatches(DatasetRead):
    """Read a dataset as a stream for other engines (DuckDB, polars, Spark).

    Parameters
    ----------
    dataset_uuid, store, predicate_pushdown_to_io, predicates, factory, table_name, as_of
        As in :func:`read_dataset_as_dataframes`.
    columns
        Columns to read, in this order; by default all.

    Returns
    -------
    pyarrow.Table
        Columns have the types of the files, partition keys those of the schema: timestamps are in ns, or in
        us (:ref:`types`), dates stay dates, and missing values change no type.

    Raises
    ------
    KeyError, ValueError, TypeError, RuntimeError
        As :func:`read_dataset_as_dataframes`.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.arrow import read_dataset_as_record_batches
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> read_dataset_as_record_batches("geodata", store).read_all()["CITY"].to_pylist()
    ['Bonn', 'Rom']
    """

    predicates: PredicatesType = None
    factory: DatasetFactory | None = None
    categoricals: list[str] | None = attrs.field(default=None, init=False)
    dispatch_by: str | Sequence[str] | None = attrs.field(default=None, init=False)


@attrs.frozen
class ReadGroups(ReadBatches):
    """A read whose result are rows, those of a group together."""

    dispatch_by: str | Sequence[str] | None = None
