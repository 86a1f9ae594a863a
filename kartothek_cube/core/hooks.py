"""Functions of the user that this process calls after commits and queries, and for the rows of writes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Generic, Self, TypeVar

import attrs
import pandas as pd

from kartothek_cube.core.errors import HookWarning


@attrs.frozen
class CommitEvent:
    """An acknowledged commit, which readers see."""

    #: such as ``append``
    operation: str
    #: prefix of the cube, None for a dataset of no cube
    cube: str | None
    #: by uuid of dataset its versions before and after, None for one that is new or of other software
    versions: Mapping[str, tuple[int | None, int | None]]
    #: rows that were written, None if that is not known
    rows: int | None
    #: data files that came and went
    files_added: int
    files_removed: int
    #: since the operation was planned, None if another process did that without a hook
    seconds: float | None
    #: of :func:`annotate_operations`
    message: str | None
    job: Mapping[str, Any] | None


@attrs.frozen
class QueryEvent:
    """A query that has ended; or, of dask and Spark, one that is planned."""

    cube: str
    #: version by uuid of dataset, None for one of other software
    versions: Mapping[str, int | None]
    #: rows that were returned, or read for a lazy table, also if the reader stopped early; None if workers
    #: read them
    rows: int | None
    #: data files that the query needs
    files: int
    #: since the query was planned
    seconds: float
    #: of :func:`annotate_operations`
    message: str | None
    job: Mapping[str, Any] | None


Event = TypeVar("Event")


class Hook(Generic[Event]):
    """A registered function, until :meth:`remove` or the end of a ``with`` block."""

    def __init__(
        self, function: Callable[[Event], object], hooks: list[Hook[Event]], dataset: str = ""
    ) -> None:
        if not callable(function):
            raise TypeError(
                f"A hook is a function of {'rows' if dataset else 'an event'}, but it is {function!r}"
            )
        self.function = function
        #: uuid of the only dataset that it concerns
        self.dataset = dataset
        self._hooks = hooks
        hooks.append(self)

    def remove(self) -> None:
        """Call the function no more."""
        with suppress(ValueError):
            self._hooks.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


COMMIT_HOOKS: list[Hook[CommitEvent]] = []
QUERY_HOOKS: list[Hook[QueryEvent]] = []
#: not called with events, but by the tasks of writes
ROW_CHECKS: list[Hook[pd.DataFrame]] = []
_IS_CALLING: ContextVar[bool] = ContextVar("_IS_CALLING", default=False)


def on_commit(function: Callable[[CommitEvent], object]) -> Hook[CommitEvent]:
    """Call a function after each commit of this process, once it is acknowledged and visible.

    An operation on several datasets of a cube is one commit. Deletions and cleanups are none. An exception of
    the function is a ``HookWarning``; the commit is done. Commits and queries of the function itself call no
    functions. With dask, the process that runs the last task commits, which is a worker of a cluster; with
    functions of Spark, it is the driver. The data source of Spark commits in a process of its own.

    Parameters
    ----------
    function
        Takes a ``CommitEvent``, with ``operation``, ``cube``, ``versions`` (before and after, by uuid of
        dataset), ``rows``, ``files_added``, ``files_removed``, ``seconds``, and the ``message`` and ``job``
        of :func:`annotate_operations`.

    Returns
    -------
    Hook
        Its method ``remove()``, or the end of a ``with`` block, ends the calls.

    Raises
    ------
    TypeError
        ``function`` is none.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> with on_commit(lambda event: print(event.operation, event.versions, event.rows)):
    ...     _ = build_cube(cities, Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://"))
    build {'geodata++seed': (None, 1)} 2
    """
    return Hook(function, COMMIT_HOOKS)


def on_query(function: Callable[[QueryEvent], object]) -> Hook[QueryEvent]:
    """Call a function after each query of a cube by this process.

    That of an iterator ends with its last frame, or with the iterator. Each scan of a lazy frame, a dataset
    of Arrow or a view of SQL is a query. Those of dask and Spark call the function when they are planned, in
    the process that does so, and their number of rows is None. An exception of the function is a
    ``HookWarning``.

    Parameters
    ----------
    function
        Takes a ``QueryEvent``, with ``cube``, ``versions`` (by uuid of dataset), ``rows``, ``files``,
        ``seconds``, ``message`` and ``job``.

    Returns
    -------
    Hook
        As of :func:`on_commit`.

    Raises
    ------
    TypeError
        ``function`` is none.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store, query_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> _ = build_cube(pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]}), cube, store)
    >>> with on_query(lambda event: print(event.cube, event.rows, event.files)):
    ...     _ = query_cube(cube, store, "COUNTRY_CODE = 'DE'")
    geodata 1 1
    """
    return Hook(function, QUERY_HOOKS)


def check_rows(check: Callable[[pd.DataFrame], object], dataset: str) -> Hook[pd.DataFrame]:
    """Check the rows of all writes to a dataset that this process plans, besides those of its contract.

    Rows are refused with ``ContractViolationError``, before anything is committed, if the check raises an
    error or returns False, or a boolean Series or array in which they are False. What else it returns does
    not count. It may be called several times, each time with some of the rows. It is called by the tasks of
    the write, which are those of other processes with dask and Spark, so that it can be pickled then. It is
    not stored: other processes write without it, as does the data source of Spark.

    Parameters
    ----------
    check
        Takes a DataFrame, with the types of a query: a function, or a schema of pandera.
    dataset
        Uuid of the dataset, such as ``energy++seed``.

    Returns
    -------
    Hook
        Its method ``remove()``, or the end of a ``with`` block, ends the checks.

    Raises
    ------
    TypeError
        ``check`` is not callable, or ``dataset`` is no text.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> def is_short(df):
    ...     return df["CITY"].str.len() < 4
    >>> with check_rows(is_short, "geodata++seed"):
    ...     build_cube(cities, Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://"))
    Traceback (most recent call last):
    ...
    kartothek_cube.core.errors.ContractViolationError: Dataset 'geodata++seed' has the rule ...
    """
    if not isinstance(dataset, str):
        raise TypeError(f"dataset is the uuid of a dataset, but it is {dataset!r}")
    return Hook(check, ROW_CHECKS, dataset)


T = TypeVar("T")


@contextmanager
def set_variable(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a variable of the context within the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def call_hooks(hooks: list[Hook[Event]], event: Event) -> None:
    """Call functions with an event; what they raise is a warning."""
    if _IS_CALLING.get():
        return
    with set_variable(_IS_CALLING, True):
        for hook in list(hooks):
            try:
                hook.function(event)
            except Exception as error:
                # the operation of the event is done, also where warnings are errors
                with suppress(HookWarning):
                    warnings.warn(f"A hook has failed: {error!r}", HookWarning, stacklevel=2)
