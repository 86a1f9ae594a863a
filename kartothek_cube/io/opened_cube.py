"""``OpenedCube``: a cube bound to its store, with the functions of ``io.eager_cube`` as methods."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from kartothek_cube.core.cube.conditions import VirtualColumn
from kartothek_cube.core.cube.consistency import arrow_schema, get_dataset_columns
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import discover_datasets, find_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.display import card, facts, table
from kartothek_cube.io import arrow_cube, eager_cube, iter_cube, sql

__all__ = ("CubeColumns", "OpenedCube", "open_cube")

P = ParamSpec("P")
D = TypeVar("D")
R = TypeVar("R")

#: parameters that an opened cube has already
_BOUND = ("cube", "store", "src_store")
#: views and completion must not fail: the cube does not exist yet, or its store is unavailable
_UNAVAILABLE = (KeyError, OSError, ValueError)


def _bind(function: Callable[Concatenate[Cube, StoreInput, P], R]) -> Callable[Concatenate[OpenedCube, P], R]:
    """Method that calls a function of a cube and its store."""

    @wraps(function)
    def method(self: OpenedCube, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(self.cube, self.store, *args, **kwargs)

    return _describe(method, function)


def _bind_write(
    function: Callable[Concatenate[D, Cube, StoreInput, P], R],
) -> Callable[Concatenate[OpenedCube, D, P], R]:
    """Method that calls a function of data, a cube and its store."""

    @wraps(function)
    def method(self: OpenedCube, data: D, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(data, self.cube, self.store, *args, **kwargs)

    return _describe(method, function)


M = TypeVar("M", bound=Callable[..., object])


def _describe(method: M, function: Callable[..., object]) -> M:
    """Give a method the signature and the documentation of its function, without what is bound."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name not in _BOUND]
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(parameters=[this, *parameters])  # type: ignore[attr-defined]
    # the examples call the function; a method must not run them a second time
    text = inspect.getdoc(function) or ""
    text = re.split(r"\n+Examples\n-+\n", text)[0]
    text = re.sub(r"(?m)^(?:cube|store)\n(?:    .*\n?)+", "", text)
    text = re.sub(r"(?m)^cube, (?:store|src_store), (?=\w)", "", text)
    text = text.replace("src_store, tgt_store\n", "tgt_store\n")
    method.__module__ = __name__
    summary, separator, rest = text.strip().partition("\n\n")
    calls = f"Calls :func:`{function.__module__}.{function.__name__}`."
    method.__doc__ = f"{summary}\n\n{calls}{separator}{rest}"
    return method


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
    >>> cube.query(cube["PEOPLE"] > 200)[0]["CITY"].tolist()
    ['Bonn']
    >>> cube.query(cube.c.PEOPLE <= 200)[0]["CITY"].tolist()
    ['Ulm']
    >>> list(cube)
    ['CITY', 'COUNTRY_CODE', 'PEOPLE']
    >>> cube.connect().sql("SELECT sum(PEOPLE) FROM geodata").fetchall()
    [(462,)]
    >>> cube["PEPLE"]
    Traceback (most recent call last):
    ...
    KeyError: 'cube geodata: unknown column PEPLE; did you mean PEOPLE? available: CITY, COUNTRY_CODE, PEOPLE'
    """

    def __init__(self, cube: Cube, store: StoreInput) -> None:
        self.cube = cube
        self.store = store
        self._names: tuple[str, ...] | None = None

    build = _bind_write(eager_cube.build_cube)
    adopt = _bind_write(eager_cube.adopt_dataset)
    extend = _bind_write(eager_cube.extend_cube)
    append = _bind_write(eager_cube.append_to_cube)
    update = _bind_write(eager_cube.update_cube)
    update_schema = _bind(eager_cube.update_schema)
    remove_partitions = _bind(eager_cube.remove_partitions)
    query = _bind(eager_cube.query_cube)
    query_iter = _bind(iter_cube.query_cube__iter)
    query_arrow = _bind(arrow_cube.query_cube_arrow)
    query_table = _bind(arrow_cube.query_cube_table)
    dataset = _bind(arrow_cube.cube_dataset)
    scan = _bind(arrow_cube.scan_cube)
    connect = _bind(sql.connect)
    explain = _bind(eager_cube.explain_query)
    stats = _bind(eager_cube.collect_stats)
    verify = _bind(eager_cube.verify_cube)
    repair = _bind(eager_cube.repair_cube)
    compact = _bind(eager_cube.compact_cube)
    cleanup = _bind(eager_cube.cleanup_cube)
    list_garbage = _bind(eager_cube.list_cube_garbage)
    history = _bind(eager_cube.list_cube_history)
    keep_history = _bind(eager_cube.keep_cube_history)
    rollback = _bind(eager_cube.rollback_cube)
    copy_to = _bind(eager_cube.copy_cube)
    publish = _bind(eager_cube.publish_cube)
    delete = _bind(eager_cube.delete_cube)

    @property
    def datasets(self) -> dict[str, DatasetMetadata]:
        """The datasets of the cube, by id."""
        return discover_datasets(self.cube, self.store)

    @property
    def schema(self) -> pa.Schema:
        """Columns and types: dimensions, partition columns, then payload sorted by name."""
        datasets = self.datasets
        fields: dict[str, pa.DataType] = {}
        for name in self.cube.join_order(datasets):
            columns = get_dataset_columns(datasets[name])
            for field in arrow_schema(datasets[name]):
                # a dataset with null only does not know the type
                if field.name in columns and pa.types.is_null(fields.get(field.name, pa.null())):
                    fields[field.name] = field.type
        keys = [*self.cube.dimension_columns, *self.cube.partition_columns]
        return pa.schema([(name, fields[name]) for name in (*keys, *sorted(set(fields) - set(keys)))])

    @property
    def c(self) -> CubeColumns:
        """The columns as attributes, for conditions: ``cube.c.TEMP > 10``."""
        return CubeColumns(self)

    def __getitem__(self, column: str) -> VirtualColumn:
        """Return a column of the cube, for conditions: ``cube["TEMP"] > 10``."""
        if self._names is None or column not in self._names:
            # another writer may have added it since the names were read
            self._names = tuple(self.schema.names)
        if column not in self._names:
            prefix = self.cube.uuid_prefix
            raise KeyError(f"cube {prefix}: {unknown_names('column', [column], self._names)}")
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
        except _UNAVAILABLE:
            datasets = "no datasets"
        return f"<cube {self.cube.uuid_prefix}: {keys}; {datasets}>"

    def _repr_html_(self) -> str:
        try:
            datasets, schema = self.datasets, self.schema
        except _UNAVAILABLE:
            return self.cube._repr_html_()
        order = self.cube.join_order(datasets)
        columns = {name: get_dataset_columns(datasets[name]) for name in order}
        roles = dict.fromkeys(self.cube.dimension_columns, "dimension")
        roles |= dict.fromkeys(self.cube.partition_columns, "partition")
        rows = [
            (
                field.name,
                str(field.type),
                roles.get(field.name, "payload"),
                ", ".join(name for name in order if field.name in columns[name]),
            )
            for field in schema
        ]
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
    """
    Open a cube in a store.

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
    >>> from kartothek_cube.io.eager_cube import build_cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Ulm"], "COUNTRY_CODE": ["DE", "DE"]})
    >>> _ = build_cube(cities, Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), store)
    >>> cube = open_cube("geodata", store)
    >>> cube.query(cube["CITY"] == "Ulm")[0]["COUNTRY_CODE"].tolist()
    ['DE']
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
