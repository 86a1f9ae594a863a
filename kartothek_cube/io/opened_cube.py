"""``OpenedCube``: a cube bound to its store, with the functions for cubes as methods; ``LazyQuery``."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeAlias, TypeVar

import attrs
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arguments import check_call, parse_names
from kartothek_cube.core.cube.conditions import ConditionsInput, VirtualColumn
from kartothek_cube.core.cube.consistency import column_types, get_dataset_columns, is_internal
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput, find_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import check_names, nearest_names
from kartothek_cube.core.pandas_conversion import DtypeBackend
from kartothek_cube.core.store import StoreInput
from kartothek_cube.display import card, facts, table
from kartothek_cube.io import arrow_cube, eager_cube, iter_cube, sql
from kartothek_cube.io_components.arrow_dataset import cast_table, in_unit
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.explain import QueryExplanation
from kartothek_cube.io_components.query.physical_plan import load_datasets, order_columns
from kartothek_cube.io_components.write.write_commit import StagedInput, StagedWrite

if TYPE_CHECKING:
    import duckdb
    import polars

__all__ = ("CubeColumns", "LazyQuery", "OpenedCube", "open_cube")

P = ParamSpec("P")
D = TypeVar("D")
R = TypeVar("R")
Function: TypeAlias = Callable[..., object]
Args: TypeAlias = tuple[object, ...]
M = TypeVar("M", bound=Function)

#: parameters that an opened cube has already
_BOUND = ("cube", "store", "src_store")
#: views and completion must not fail: the cube does not exist yet, or its store is unavailable
_UNAVAILABLE = (KeyError, OSError, ValueError)
#: nor must they for a query with a mistake
_UNREADABLE = (*_UNAVAILABLE, TypeError)


def _bind(function: Callable[Concatenate[Cube, StoreInput, P], R]) -> Callable[Concatenate[OpenedCube, P], R]:
    """Method that calls a function of a cube and its store."""

    @wraps(function, updated=())
    def method(self: OpenedCube, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_call(method, function, (self.cube, self.store, *args), kwargs)
        return function(self.cube, self.store, *args, **kwargs)

    return _describe(method, function)


def _bind_write(
    function: Callable[Concatenate[D, Cube, StoreInput, P], R],
) -> Callable[Concatenate[OpenedCube, D, P], R]:
    """Method that calls a function of data, a cube and its store."""
    first = next(iter(inspect.signature(function).parameters))

    @wraps(function, updated=())
    def method(self: OpenedCube, /, *args: Any, **kwargs: Any) -> R:
        if first in kwargs and not args:
            args = (kwargs.pop(first),)
        args = (args[0], self.cube, self.store, *args[1:]) if args else ()
        self._check_call(method, function, args, kwargs)
        return function(*args, **kwargs)

    return _describe(method, function)


def _bind_staged(function: Callable[[StagedInput, StoreInput], R]) -> Callable[[OpenedCube, StagedInput], R]:
    """Method that calls a function of a staged write and its store."""

    @wraps(function, updated=())
    def method(self: OpenedCube, /, staged: StagedInput) -> R:
        self._check_call(method, function, (staged, self.store), {})
        if isinstance(staged, StagedWrite):
            staged.check_cube(self.cube)
        return function(staged, self.store)

    return _describe(method, function)


def _describe(method: M, function: Function) -> M:
    """Give a method the signature and the documentation of its function, without what is bound."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name not in _BOUND]
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    result = function if isinstance(function, type) else signature.return_annotation
    bound = signature.replace(parameters=[this, *parameters], return_annotation=result)
    method.__signature__ = bound  # type: ignore[attr-defined]
    # the examples call the function; a method must not run them a second time
    text = re.split(r"\n+Examples\n-+\n", inspect.getdoc(function) or "")[0]
    text = re.sub(r"(?m)^(?:cube|store|cube, store)\n(?:    .*\n?)+", "", text)
    text = re.sub(r"(?m)^(?:cube, )?(?:store|src_store), (?=\w)", "", text)
    method.__module__ = __name__
    summary, separator, rest = text.strip().partition("\n\n")
    calls = f"Calls :func:`{function.__module__}.{function.__name__}`."
    method.__doc__ = f"{summary}\n\n{calls}{separator}{rest}"
    return method


def _keep_columns(names: str | Iterable[str] | None) -> tuple[str, ...] | None:
    return None if names is None else parse_names("columns", names)


def _keep_groups(names: str | Iterable[str] | None) -> tuple[str, ...] | None:
    return None if names is None else parse_names("by", names)


def _keep_dimensions(names: str | Iterable[str] | None) -> tuple[str, ...] | None:
    return None if names is None else parse_names("dimension_columns", names)


def _keep_conditions(where: ConditionsInput) -> ConditionsInput:
    # an iterator has its elements once, and a query can be read several times
    return tuple(where) if isinstance(where, Iterator) else where


def _keep_datasets(datasets: DatasetsInput) -> DatasetsInput:
    return tuple(datasets) if isinstance(datasets, Iterator) else datasets


@attrs.frozen(repr=False, eq=False)
class LazyQuery:
    """A query of a cube. A method names the library that gets the rows; nothing is read before.

    The rows are those of the moment of the call. In a notebook, the query shows what it would read.

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    where
        Conditions that all have to hold, as of :func:`~kartothek_cube.io.eager_cube.query_cube`:
        ``cube["TEMP"] > 10``, or their text.
    columns
        Columns to read, by default all; dimensions and partition columns come first, unless they are named.
    by
        Indexed columns. The query is split by their values, and is an iterable of one DataFrame per group.
    datasets
        Ids of the datasets to join; by default all.
    dimension_columns
        Dimensions of the result; by default all. Fewer dimensions project the cube.
    limit
        Largest number of rows.
    as_of
        Version or point in time of the cube; by default, the cube as it is.
    changed_since
        Earlier state, such as the token of ``cube.changes()``: only partitions that have changed since.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> import pandas as pd
    >>> from kartothek_cube import Cube
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY": ["DE", "IT"], "PEOPLE": [336, 2749]})
    >>> cube = open_cube(Cube(["CITY"], ["COUNTRY"], "geodata"), f"hfs://{mkdtemp()}")
    >>> _ = cube.build(cities)
    >>> query = cube.query("PEOPLE > 1000", columns="PEOPLE")
    >>> query.to_pandas()
      CITY COUNTRY  PEOPLE
    0  Rom      IT    2749
    >>> query.to_polars().height
    1
    >>> query.sql("SELECT sum(PEOPLE) FROM query").fetchall()
    [(2749,)]
    >>> query.explain().read_files
    2
    >>> [len(frame) for frame in cube.query(by="COUNTRY")]
    [1, 1]
    """

    cube: Cube
    store: StoreInput
    _where: ConditionsInput = attrs.field(default=None, converter=_keep_conditions)
    _columns: tuple[str, ...] | None = attrs.field(default=None, kw_only=True, converter=_keep_columns)
    _by: tuple[str, ...] | None = attrs.field(default=None, kw_only=True, converter=_keep_groups)
    _datasets: DatasetsInput = attrs.field(default=None, kw_only=True, converter=_keep_datasets)
    _dimension_columns: tuple[str, ...] | None = attrs.field(
        default=None, kw_only=True, converter=_keep_dimensions
    )
    _limit: int | None = attrs.field(default=None, kw_only=True)
    _as_of: CubeAsOf | None = attrs.field(default=None, kw_only=True)
    _changed_since: CubeAsOf | None = attrs.field(default=None, kw_only=True)

    def to_pandas(self, *, dtype_backend: DtypeBackend | None = None, progress: bool = False) -> pd.DataFrame:
        """Read the rows into one DataFrame; see :func:`~kartothek_cube.io.eager_cube.query_cube_df`.

        Parameters
        ----------
        dtype_backend
            Types of the columns, ``"numpy_nullable"`` or ``"pyarrow"``; by default those of NumPy.
        progress
            Show a bar of files, bytes and the time left; needs tqdm.

        Returns
        -------
        pandas.DataFrame
        """
        return self._read(eager_cube.query_cube_df, dtype_backend=dtype_backend, progress=progress)

    def to_arrow(self) -> pa.Table:
        """Read the rows into a table of Arrow."""
        return self._read(arrow_cube.query_cube_table)

    def to_polars(self) -> polars.DataFrame:
        """Read the rows into a DataFrame of Polars."""
        return self._read(arrow_cube.query_cube_polars)

    def lazy(self) -> polars.LazyFrame:
        """Return a LazyFrame of Polars; filters and columns are pushed down when it is collected."""
        import polars

        if self._is_read_at_once:
            return polars.DataFrame(self._read_at_once()).lazy()
        frame = self._call(arrow_cube.scan_cube)
        # a selector, because names may be patterns
        return frame.select(polars.selectors.by_name(self._order(frame.collect_schema().names())))

    def sql(self, statement: str) -> duckdb.DuckDBPyRelation:
        """Run a statement in DuckDB (extra ``sql``), where this query is the table ``query``.

        Parameters
        ----------
        statement
            Such as ``SELECT CITY, sum(SALES) FROM query GROUP BY CITY``.

        Returns
        -------
        duckdb.DuckDBPyRelation
            It prints as a table; its methods ``df()``, ``pl()`` and ``fetchall()`` return the rows.
        """
        rows = self._read_at_once() if self._is_read_at_once else self._call(arrow_cube.cube_dataset)
        return sql.run_statement(statement, rows, self._order(rows.schema.names))

    def explain(self) -> QueryExplanation:
        """Explain which files are read; see :func:`~kartothek_cube.io.eager_cube.explain_query`."""
        return self._call(eager_cube.explain_query, **self._groups(), limit=self._limit)

    def __iter__(self) -> Iterator[pd.DataFrame]:
        """One DataFrame per group, read when it is taken; without ``by``, one of all rows."""
        if self._by is None:
            yield self.to_pandas()
            return
        for frame in self._call(iter_cube.query_cube__iter, **self._groups()):
            names = self._order(frame.columns)
            yield frame[[*names, *(name for name in self._by if name not in names)]]

    def __getitem__(self, item: object) -> NoReturn:
        raise TypeError("A query is no list of DataFrames: to_pandas() returns its rows; iterate over groups")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            remedy = "to_pandas() returns its rows"
            if any(field.alias == name for field in attrs.fields(LazyQuery)):
                remedy = f"it is an argument, as in cube.query({name}=...)"
            raise AttributeError(f"A query has no attribute {name!r}: {remedy}", name=name, obj=self)

    def __repr__(self) -> str:
        try:
            return repr(self.explain())
        except _UNREADABLE as error:
            return f"<query of cube {self.cube.uuid_prefix}: {error}>"

    def _repr_html_(self) -> str | None:
        try:
            return self.explain()._repr_html_()
        except _UNREADABLE:
            return None

    @property
    def _is_read_at_once(self) -> bool:
        """Whether a scan, which is partition by partition, has other rows."""
        return any(value is not None for value in (self._limit, self._dimension_columns, self._changed_since))

    def _read_at_once(self) -> pa.Table:
        """The rows, with the types of a scan."""
        table = self.to_arrow()
        return cast_table(table, in_unit(table.schema, "us"))

    def _order(self, available: Iterable[str]) -> list[str]:
        keys = [*(self._dimension_columns or self.cube.dimension_columns), *self.cube.partition_columns]
        names = list(available)
        check_names(f"cube {self.cube.uuid_prefix}: ", "column", self._columns or (), names)
        return order_columns(keys, self._columns, names)

    def _groups(self) -> dict[str, Any]:
        if self._by is not None and self._limit is not None:
            raise ValueError("A query has either groups (by) or a limit")
        return {
            "dimension_columns": self._dimension_columns,
            "partition_by": self._by,
            "payload_columns": self._columns,
        }

    def _read(self, function: Callable[..., R], **options: object) -> R:
        columns = {"dimension_columns": self._dimension_columns, "columns": self._columns}
        return self._call(function, **columns, limit=self._limit, **options)

    def _call(self, function: Callable[..., R], **options: Any) -> R:
        if self._by is not None and "partition_by" not in options:
            raise ValueError("A query with groups (by) has a DataFrame for each: iterate over the query")
        if self._changed_since is not None:
            options["changed_since"] = self._changed_since
        return function(self.cube, self.store, self._where, self._datasets, as_of=self._as_of, **options)


class CubeColumns:
    """The columns of an opened cube as attributes, to complete their names: ``cube.c.TEMP > 10``."""

    __slots__ = ("_opened",)

    def __init__(self, opened: OpenedCube) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> VirtualColumn:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._opened[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def __dir__(self) -> list[str]:
        return [name for name in self._opened._ipython_key_completions_() if name.isidentifier()]

    def __repr__(self) -> str:
        names = self._opened._ipython_key_completions_()
        return f"<columns of cube {self._opened.cube.uuid_prefix}: {', '.join(names)}>"


class OpenedCube:
    """A cube and its store. Its methods are the functions for cubes, without the first two arguments.

    Nothing is cached but the names of columns: every method sees the cube as it is now.

    Parameters
    ----------
    cube
        Specification of the cube, which need not exist yet.
    store
        Store, factory or URL.
    as_of
        State that is read; :meth:`as_of` opens it.

    Attributes
    ----------
    c : CubeColumns
        The columns as attributes, for conditions: ``cube.c.TEMP > 10``.

    Examples
    --------
    >>> import pandas as pd
    >>> from storefact import get_store_from_url
    >>> specification = Cube(["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cube = OpenedCube(specification, get_store_from_url("hmemory://"))
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Ulm"], "COUNTRY_CODE": ["DE", "DE"], "PEOPLE": [336, 126]})
    >>> _ = cube.build(cities)
    >>> cube
    <cube geodata: dimensions CITY; partitioned by COUNTRY_CODE; datasets seed>
    >>> cube.query(cube["PEOPLE"] > 200).to_pandas()
       CITY COUNTRY_CODE  PEOPLE
    0  Bonn           DE     336
    >>> cube.query(cube.c.PEOPLE <= 200).to_arrow().to_pylist()
    [{'CITY': 'Ulm', 'COUNTRY_CODE': 'DE', 'PEOPLE': 126}]
    >>> list(cube)
    ['CITY', 'COUNTRY_CODE', 'PEOPLE']
    >>> cube.connect().sql("SELECT sum(PEOPLE) FROM geodata").fetchall()
    [(462,)]
    >>> cube["PEPLE"]
    Traceback (most recent call last):
    ...
    KeyError: 'cube geodata: unknown column PEPLE; did you mean PEOPLE? available: CITY, COUNTRY_CODE, PEOPLE'
    """

    def __init__(self, cube: Cube, store: StoreInput, *, as_of: CubeAsOf | None = None) -> None:
        self.cube = cube
        self.store = store
        # IPython completes attributes of attributes, but calls no property for that
        self.c = CubeColumns(self)
        self._as_of = as_of
        self._names: tuple[str, ...] | None = None

    build = _bind_write(eager_cube.build_cube)
    adopt = _bind_write(eager_cube.adopt_dataset)
    extend = _bind_write(eager_cube.extend_cube)
    append = _bind_write(eager_cube.append_to_cube)
    update = _bind_write(eager_cube.update_cube)
    merge = _bind_write(eager_cube.merge_into_cube)
    compute = _bind_write(eager_cube.compute_dataset)
    update_schema = _bind(eager_cube.update_schema)
    remove_partitions = _bind(eager_cube.remove_partitions)
    delete_rows = _bind(eager_cube.delete_rows)
    query = _bind(LazyQuery)
    dataset = _bind(arrow_cube.cube_dataset)
    connect = _bind(sql.connect)
    build_column_statistics = _bind(eager_cube.build_column_statistics)
    stats = _bind(eager_cube.collect_stats)
    verify = _bind(eager_cube.verify_cube)
    repair = _bind(eager_cube.repair_cube)
    compact = _bind(eager_cube.compact_cube)
    cleanup = _bind(eager_cube.cleanup_cube)
    list_garbage = _bind(eager_cube.list_cube_garbage)
    history = _bind(eager_cube.list_cube_history)
    changes = _bind(eager_cube.list_cube_changes)
    lineage = _bind(eager_cube.lineage_cube)
    contract = _bind(eager_cube.list_contract)
    set_contract = _bind(eager_cube.set_contract)
    pin = _bind(eager_cube.pin_cube)
    keep_history = _bind(eager_cube.keep_cube_history)
    rollback = _bind(eager_cube.rollback_cube)
    copy_to = _bind(eager_cube.copy_cube)
    publish = _bind(eager_cube.publish_cube)
    unpublish = _bind(eager_cube.unpublish_cube)
    delete = _bind(eager_cube.delete_cube)
    publish_staged = _bind_staged(eager_cube.publish_staged)
    discard_staged = _bind_staged(eager_cube.discard_staged)

    def as_of(self, as_of: CubeAsOf) -> OpenedCube:
        """Open an older state of the cube, to read it: ``cube.as_of(3).query()``.

        Parameters
        ----------
        as_of
            Version of the cube (:meth:`history`) or point in time.

        Returns
        -------
        OpenedCube
            Writes and maintenance are refused; :meth:`rollback` makes the state the current one.
        """
        return OpenedCube(self.cube, self.store, as_of=as_of)

    def _check_call(self, method: Function, function: Function, args: Args, kwargs: dict[str, Any]) -> None:
        """Check arguments of a function; add the state that is open if it can read that, else refuse it."""
        check_call(method.__name__, function, args, kwargs)
        if self._as_of is None:
            return
        parameter = inspect.signature(function).parameters.get("as_of")
        if parameter is None or parameter.default is parameter.empty:
            raise ValueError(
                f"cube {self.cube.uuid_prefix} is open as of {self._as_of}, to be read by query(), dataset() "
                f"and connect(); open it without a state for {method.__name__}()"
            )
        if kwargs.get("as_of") is None:
            kwargs["as_of"] = self._as_of

    @property
    def datasets(self) -> dict[str, DatasetMetadata]:
        """The datasets of the cube, by id."""
        return load_datasets(self.cube, self.store, self._as_of)

    @property
    def schema(self) -> pa.Schema:
        """Columns and types: dimensions, partition columns, then payload sorted by name."""
        datasets = self.datasets
        types = column_types(datasets[name] for name in self.cube.join_order(datasets))
        keys = [*self.cube.dimension_columns, *self.cube.partition_columns]
        columns = order_columns(keys, None, sorted(name for name in types if not is_internal(name)))
        return pa.schema([(name, types[name]) for name in columns])

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            hint = "".join(f"did you mean {nearest!r}? " for nearest in nearest_names(name, dir(self)))
            remedy = f"{hint}dir(cube) has its methods, cube.c its columns"
            if hasattr(LazyQuery, name):
                remedy = f"a query has it, as in cube.query().{name}()"
            raise AttributeError(f"A cube has no attribute {name!r}: {remedy}")

    def __getitem__(self, column: str) -> VirtualColumn:
        """Return a column of the cube, for conditions: ``cube["TEMP"] > 10``."""
        if self._names is None or column not in self._names:
            # another writer may have added it since the names were read
            self._names = tuple(self.schema.names)
        check_names(f"cube {self.cube.uuid_prefix}: ", "column", [column], self._names, error=KeyError)
        return VirtualColumn(column)

    def __iter__(self) -> Iterator[str]:
        self._names = tuple(self.schema.names)
        return iter(self._names)

    def __contains__(self, column: object) -> bool:
        return column in self.schema.names

    def _ipython_key_completions_(self) -> list[str]:
        try:
            return list(self)
        except _UNAVAILABLE:
            return [*self.cube.dimension_columns, *self.cube.partition_columns]

    def __repr__(self) -> str:
        partitions = ", ".join(self.cube.partition_columns) or "nothing"
        keys = f"dimensions {', '.join(self.cube.dimension_columns)}; partitioned by {partitions}"
        try:
            datasets = f"datasets {', '.join(self.cube.join_order(self.datasets))}"
        except _UNAVAILABLE as error:
            # a state that does not exist is no empty cube
            datasets = "no datasets" if self._as_of is None else str(error)
        state = "" if self._as_of is None else f" as of {self._as_of}"
        return f"<cube {self.cube.uuid_prefix}{state}: {keys}; {datasets}>"

    def _repr_html_(self) -> str | None:
        try:
            datasets, schema = self.datasets, self.schema
        except _UNAVAILABLE:
            # without HTML, notebooks show the text
            return self.cube._repr_html_() if self._as_of is None else None
        order = self.cube.join_order(datasets)
        columns = {name: get_dataset_columns(datasets[name]) for name in order}
        roles = dict.fromkeys(self.cube.dimension_columns, "dimension")
        roles |= dict.fromkeys(self.cube.partition_columns, "partition")
        owners = {name: ", ".join(each for each in order if name in columns[each]) for name in schema.names}
        rows = [(f.name, str(f.type), roles.get(f.name, "payload"), owners[f.name]) for f in schema]
        sizes = [(name, len(datasets[name].partition_table), len(columns[name])) for name in order]
        return card(
            f"Cube {self.cube.uuid_prefix}",
            facts({"seed dataset": self.cube.seed_dataset}),
            table("Datasets", ["dataset", "files", "columns"], sizes),
            table("Columns", ["column", "type", "role", "datasets"], rows),
        )


for _name, _method in vars(OpenedCube).items():
    if hasattr(_method, "__wrapped__"):
        _method.__name__, _method.__qualname__ = _name, f"{OpenedCube.__name__}.{_name}"


def open_cube(cube: str | Cube, store: StoreInput) -> OpenedCube:
    """Open a cube in a store.

    Parameters
    ----------
    cube
        Name (``uuid_prefix``) of a stored cube, of which the specification is read from the store; or the
        specification of a cube that may not exist yet. It was the second argument, which still works, with a
        DeprecationWarning.
    store
        Store, factory or URL.

    Returns
    -------
    OpenedCube

    Raises
    ------
    ValueError
        There is no such cube.
    TypeError
        ``cube`` is neither a name nor a specification.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> store = ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Ulm"], "COUNTRY_CODE": ["DE", "DE"]})
    >>> _ = build_cube(cities, Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), store)
    >>> cube = open_cube("geodata", store)
    >>> cube.query(cube["CITY"] == "Ulm").to_pandas()
      CITY COUNTRY_CODE
    0  Ulm           DE
    """
    arguments: tuple[Any, Any] = cube, store
    if _is_cube(arguments[1]) and not _is_cube(arguments[0]):
        message = "open_cube takes the cube first: open_cube(cube, store)"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        store, cube = arguments
    return OpenedCube(find_cube(cube, store), store)


def _is_cube(argument: object) -> bool:
    """Whether an argument can be a cube or the name of one, which contains no slash."""
    return isinstance(argument, Cube) or (isinstance(argument, str) and "/" not in argument)
