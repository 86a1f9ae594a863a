"""The error tree, by what a caller can do; each class is also the built-in that kartothek users catch.

Every error says in words what happened (``str(error)``) and carries the same facts as attributes. All survive
:mod:`pickle`, so that they arrive whole from workers.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from kartothek_cube.core.naming import header_keys, validate_uuid

__all__ = (
    "ConcurrentWriteError",
    "ContractViolationError",
    "CorruptDatasetError",
    "CubeNotFoundError",
    "DatasetExistsError",
    "DatasetNotFoundError",
    "DuplicateCellsError",
    "HookWarning",
    "KartothekCubeError",
    "MissingFileError",
    "MultiTableCommitAborted",
    "PublicationWarning",
    "SchemaConflictError",
    "StateNotFoundError",
    "UnknownOutcomeError",
)

_MAX_SHOWN = 20


class KartothekCubeError(Exception):
    """Base of all errors that only this package raises.

    Parameters
    ----------
    message
        What happened and what to do.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr

    def __reduce__(self) -> tuple[Callable[..., KartothekCubeError], tuple[Any, ...]]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    cls: type[KartothekCubeError], args: tuple[Any, ...], state: dict[str, Any]
) -> KartothekCubeError:
    """Rebuild an unpickled error; the constructors take facts, not the finished message."""
    error = cls.__new__(cls, *args)  # BaseException keeps these as ``args``
    error.__dict__.update(state)
    return error


class ConcurrentWriteError(KartothekCubeError, RuntimeError):
    """Another writer changed the dataset, and this commit does not fit the new state; it was not applied.

    Parameters
    ----------
    dataset_uuid
        The dataset.
    partitions
        Labels (or keys) of the partitions in conflict; empty if the state itself changed too often to commit.
    detail
        What was expected and found, or what to do instead of a repetition.

    Attributes
    ----------
    dataset_uuid : str
    partitions : tuple of str
    detail : str

    Examples
    --------
    >>> print(ConcurrentWriteError("sales", ["COUNTRY_CODE=DE"]))
    Dataset 'sales': another writer was faster, this commit was not applied.
    Partitions in conflict: COUNTRY_CODE=DE. Read the newest state and repeat the operation.
    """

    def __init__(self, dataset_uuid: str, partitions: Iterable[str] = (), detail: str = "") -> None:
        self.dataset_uuid = dataset_uuid
        self.partitions = tuple(partitions)
        self.detail = detail
        message = f"Dataset {dataset_uuid!r}: another writer was faster, this commit was not applied."
        if self.partitions:
            message += f" Partitions in conflict: {list_names(self.partitions)}."
        super().__init__(f"{message} {detail or 'Read the newest state and repeat the operation.'}")


class UnknownOutcomeError(KartothekCubeError, RuntimeError):
    """The store did not answer, and it is unknown whether the commit was applied; nothing was deleted.

    Parameters
    ----------
    dataset_uuid
        The dataset.
    detail
        What failed.

    Attributes
    ----------
    dataset_uuid : str
    detail : str
    """

    def __init__(self, dataset_uuid: str, detail: str = "") -> None:
        self.dataset_uuid = dataset_uuid
        self.detail = detail
        reason = f" ({detail})" if detail else ""
        message = f"Dataset {dataset_uuid!r}: it is unknown whether the commit was applied{reason}."
        super().__init__(
            f"{message} No file was deleted. Look at the dataset before repeating the operation."
        )


class DatasetExistsError(KartothekCubeError, RuntimeError):
    """A dataset that was to be created exists already; nothing was written.

    Parameters
    ----------
    dataset_uuid
        The dataset.
    detail
        What to do, if it is not ``overwrite=True``.

    Attributes
    ----------
    dataset_uuid : str
    detail : str

    Examples
    --------
    >>> print(DatasetExistsError("sales"))
    Dataset 'sales' already exists. Pass overwrite=True to replace it, or choose another uuid.
    """

    def __init__(self, dataset_uuid: str, detail: str = "") -> None:
        self.dataset_uuid = dataset_uuid
        self.detail = detail
        remedy = detail or "Pass overwrite=True to replace it, or choose another uuid."
        super().__init__(f"Dataset {dataset_uuid!r} already exists. {remedy}")


class DatasetNotFoundError(KartothekCubeError, KeyError):
    """The store holds no header of the dataset, in neither format.

    Parameters
    ----------
    dataset_uuid
        The dataset.
    missing_directory
        The directory of the store, if that does not exist either.

    Attributes
    ----------
    dataset_uuid : str
    keys : tuple of str
        The keys of the headers that were looked for.

    Examples
    --------
    >>> print(DatasetNotFoundError("sales"))
    Dataset 'sales' does not exist: the store has neither 'sales.by-dataset-metadata.json' nor
    'sales.by-dataset-metadata.msgpack.zstd'.
    """

    def __init__(self, dataset_uuid: str, missing_directory: str | None = None) -> None:
        self.dataset_uuid = dataset_uuid
        self.keys: tuple[str, ...] = ()
        message = f"Dataset {dataset_uuid!r} does not exist"
        if validate_uuid(dataset_uuid):
            self.keys = tuple(header_keys(dataset_uuid))
        if missing_directory is not None:
            message += f": there is no directory {missing_directory}"
        elif self.keys:
            message += f": the store has neither {self.keys[0]!r} nor {self.keys[1]!r}"
        super().__init__(f"{message}.")


class CubeNotFoundError(KartothekCubeError, ValueError, RuntimeError):
    """The store has no cube of this name. A RuntimeError as well, as in the copies of kartothek.

    Parameters
    ----------
    uuid_prefix
        The name.
    reason
        Names of the cubes that exist, for example.

    Examples
    --------
    >>> raise CubeNotFoundError("enrgy", "did you mean energy? available: energy")
    Traceback (most recent call last):
        ...
    kartothek_cube.core.errors.CubeNotFoundError: Cube enrgy not found: did you mean energy? available: energy
    """

    def __init__(self, uuid_prefix: str, reason: str) -> None:
        super().__init__(f"Cube {uuid_prefix} not found: {reason}")
        self.uuid_prefix, self.reason = uuid_prefix, reason


class MissingFileError(KartothekCubeError, KeyError):
    """A header refers to a file that the store does not have.

    Parameters
    ----------
    key
        Storage key of the file.

    Attributes
    ----------
    key : str

    Examples
    --------
    >>> print(MissingFileError("sales/table/2f1d.parquet"))
    The file 'sales/table/2f1d.parquet' is part of the dataset but not in the store: it was deleted by hand,
    by a cleanup that did not wait for readers (see its argument `retention`), or with a staged write that was
    discarded. A verification lists what is missing, and how to restore it.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"The file {key!r} is part of the dataset but not in the store: it was deleted by hand, by a "
            "cleanup that did not wait for readers (see its argument `retention`), or with a staged write "
            "that was discarded. A verification lists what is missing, and how to restore it."
        )


class StateNotFoundError(KartothekCubeError, ValueError):
    """A state of a dataset is not kept, not any more, or never existed.

    Parameters
    ----------
    dataset_uuid
        The dataset.
    as_of
        What was asked for.
    known
        Which versions are kept: one, or the first "to" the last.
    kind
        ``Dataset``, or ``Cube`` if the name is that of a cube.
    remedy
        A sentence that says what to do.

    Attributes
    ----------
    dataset_uuid, as_of, known : str

    Examples
    --------
    >>> print(StateNotFoundError("sales", "3", "7 (since 2020-01-31T12:00) to 9"))
    Dataset 'sales': there is no state as of 3. Its states go from 7 (since 2020-01-31T12:00) to 9. Older ...
    """

    def __init__(
        self, dataset_uuid: str, as_of: str, known: str = "", *, kind: str = "Dataset", remedy: str = ""
    ) -> None:
        self.dataset_uuid = dataset_uuid
        self.as_of = as_of
        self.known = known
        message = f"{kind} {dataset_uuid!r}: there is no state as of {as_of}."
        if known:
            message += f" Its states go from {known}." if " to " in known else f" Its only state is {known}."
            message += (
                " Older ones are kept until a cleanup, or not at all: the retention of the history and "
                "that of the cleanup set for how long."
            )
        super().__init__(f"{message} {remedy}".rstrip())


class CorruptDatasetError(KartothekCubeError, ValueError):
    """A stored object is not what the format demands; it was not used.

    Parameters
    ----------
    key
        Storage key of the object.
    problem
        What is wrong with it.

    Attributes
    ----------
    key : str
    problem : str

    Examples
    --------
    >>> print(CorruptDatasetError("sales.by-dataset-metadata.json", "'partitions' is a list, not an object"))
    Corrupt object 'sales.by-dataset-metadata.json': 'partitions' is a list, not an object
    """

    def __init__(self, key: str, problem: str) -> None:
        self.key = key
        self.problem = problem
        super().__init__(f"Corrupt object {key!r}: {problem}")


class SchemaConflictError(KartothekCubeError, ValueError):
    """Two schemas that have to be compatible are not.

    Parameters
    ----------
    problem
        Where both schemas come from, and how they differ.
    dataset_uuid
        The dataset, once it is known.
    table
        The table, once it is known.

    Attributes
    ----------
    problem : str
    dataset_uuid : str or None
    table : str or None

    Examples
    --------
    >>> print(SchemaConflictError("column CITY is string and int64", "sales", "table"))
    Dataset 'sales', table 'table': column CITY is string and int64
    """

    def __init__(self, problem: str, dataset_uuid: str | None = None, table: str | None = None) -> None:
        self.problem = problem
        self.dataset_uuid = dataset_uuid
        self.table = table
        place = [] if dataset_uuid is None else [f"dataset {dataset_uuid!r}"]
        place += [] if table is None else [f"table {table!r}"]
        prefix = ", ".join(place)
        super().__init__(f"{prefix[:1].upper()}{prefix[1:]}: {problem}" if place else problem)


class DuplicateCellsError(KartothekCubeError, ValueError):
    """A frame holds a cell of the cube more than once; nothing was written.

    Parameters
    ----------
    dataset_id
        Which dataset of the cube the frame was meant for.
    example
        Key columns and their values in one of the cells concerned.
    equal_payload
        Payload columns in which the rows of that cell agree.
    differing_payload
        Payload columns in which they do not.
    detail
        The rows of that cell, for people to read.

    Attributes
    ----------
    dataset_id : str
    columns : tuple of str
        The key columns, sorted.
    example : dict
    equal_payload, differing_payload : tuple of str
    detail : str

    Examples
    --------
    >>> print(DuplicateCellsError("seed", {"DAY": 17, "CITY": "Köln"}, [], ["AVG_TEMP"]))
    Dataset 'seed' has several rows for one cell of CITY, DAY, such as CITY='Köln', DAY=17.
    Equal payload: none; differing payload: AVG_TEMP
    """

    def __init__(
        self,
        dataset_id: str,
        example: Mapping[str, object],
        equal_payload: Iterable[str] = (),
        differing_payload: Iterable[str] = (),
        detail: str = "",
    ) -> None:
        self.dataset_id = dataset_id
        self.detail = detail
        self.columns = tuple(sorted(example))
        self.example = dict(example)
        self.equal_payload = tuple(sorted(equal_payload))
        self.differing_payload = tuple(sorted(differing_payload))
        columns = ", ".join(self.columns)
        cell = ", ".join(f"{column}={example[column]!r}" for column in self.columns)
        message = f"Dataset {dataset_id!r} has several rows for one cell of {columns}, such as {cell}."
        if self.equal_payload or self.differing_payload or not detail:
            equal, differing = ", ".join(self.equal_payload), ", ".join(self.differing_payload)
            message += f" Equal payload: {equal or 'none'}; differing payload: {differing or 'none'}"
        super().__init__(message + (f"\n{detail}" if detail else ""))


class ContractViolationError(KartothekCubeError, ValueError):
    """Rows break a rule of the contract of their dataset; nothing was committed.

    The parameters are attributes as well.

    Parameters
    ----------
    dataset
        Uuid of the dataset.
    rule
        The rule.
    count, n_rows
        Number of rows that break it, and of those that were checked.
    examples
        Some of the rows.
    detail
        What was found, if rows do not show it.

    Examples
    --------
    >>> print(ContractViolationError("sales++seed", "NotNull('QTY')", 1, 5, [{"DAY": 17, "QTY": None}]))
    Dataset 'sales++seed' has the rule NotNull('QTY'), which 1 of 5 rows breaks, such as DAY=17, QTY=None
    """

    def __init__(
        self,
        dataset: str,
        rule: str,
        count: int,
        n_rows: int,
        examples: Iterable[Mapping[str, object]] = (),
        detail: str = "",
    ) -> None:
        self.dataset = dataset
        self.rule = rule
        self.count = count
        self.n_rows = n_rows
        self.examples = tuple(map(dict, examples))
        self.detail = detail
        verb = "breaks" if count == 1 else "break"
        rows = format_count(n_rows, "row")
        message = f"Dataset {dataset!r} has the rule {rule}, which {count:,} of {rows} {verb}"
        if self.detail:
            message += f": {self.detail}"
        if self.examples:
            shown = (", ".join(f"{c}={v!r}" for c, v in row.items()) for row in self.examples)
            message += f", such as {'; '.join(shown)}"
        super().__init__(message)


class PublicationWarning(UserWarning):
    """A commit is done, but its table still shows an older state (:doc:`/publish`)."""


class HookWarning(UserWarning):
    """A function of ``on_commit`` or ``on_query`` has failed; the commit or query is done."""


class MultiTableCommitAborted(KartothekCubeError, RuntimeError):
    """One dataset of a cube could not be committed; what this operation had committed was rolled back.

    The failure itself is the ``__cause__``.

    Parameters
    ----------
    failed
        Uuid of the dataset whose commit failed.
    rolled_back
        Uuids of the datasets that were committed before and are rolled back.
    left
        Uuids of the datasets that were committed before and could not be rolled back.
    detail
        What the failure was; a pickled error loses its ``__cause__``.

    Attributes
    ----------
    failed : str
    rolled_back, left : tuple of str
    detail : str

    Examples
    --------
    >>> print(MultiTableCommitAborted("sales++seed", ["sales++weather"], detail="disk full"))
    Dataset 'sales++seed': disk full. The operation was not committed; rolled back: sales++weather.
    """

    def __init__(
        self, failed: str, rolled_back: Iterable[str] = (), left: Iterable[str] = (), detail: str = ""
    ) -> None:
        self.failed = failed
        self.detail = detail
        self.rolled_back = tuple(sorted(rolled_back))
        self.left = tuple(sorted(left))
        problem = detail.rstrip(".") or "the commit failed"
        message = f"Dataset {failed!r}: {problem}. The operation was not committed"
        if self.rolled_back:
            message += f"; rolled back: {', '.join(self.rolled_back)}"
        message += "."
        if self.left:
            message += f" Could not be rolled back, look at them: {', '.join(self.left)}."
        super().__init__(message)


def abbreviate_text(text: str, limit: int = 200) -> str:
    """The beginning of a long text, and how long it is."""
    # by default enough for some comparisons, and for the first of a list
    return text if len(text) <= limit else f"{text[:limit].rstrip()} … ({len(text):,} characters)"


def show_value(value: object) -> str:
    """The beginning of the representation of a value, on one line."""
    return abbreviate_text(" ".join(repr(value).split()))


def check_choice(argument: str, value: object, choices: Sequence[str | None]) -> None:
    """Raise ValueError for an argument that is none of the choices."""
    # a Series in a comparison is neither true nor false
    if not (value is None or isinstance(value, str)) or value not in choices:
        *first, last = map(repr, choices)
        raise ValueError(f"{argument} is {', '.join(first)} or {last}, got {show_value(value)}")


def format_count(number: int, noun: str, plural: str = "") -> str:
    """A number and what is counted, in singular or plural."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def unknown_names(kind: str, unknown: Iterable[object], available: Iterable[object]) -> str:
    """Message about unknown names: probable corrections, and the available names."""
    names = sorted({str(name) for name in available})
    missing = sorted({str(name) or "''" for name in unknown})
    nearest = sorted({match for name in missing for match in nearest_names(name, names)})
    hint = f"did you mean {', '.join(nearest)}? " if nearest else ""
    return f"unknown {kind} {', '.join(missing)}; {hint}available: {list_names(names) or 'none'}"


def check_names(
    where: str,
    kind: str,
    names: Iterable[object],
    available: Collection[object],
    remedy: str = "",
    error: type[Exception] = ValueError,
) -> None:
    """Raise an error for names that do not exist; its message begins with `where` and ends with a remedy."""
    unknown = set(names).difference(available)
    if unknown:
        raise error(where + unknown_names(kind, unknown, available) + remedy)


def nearest_names(name: str, available: Iterable[str]) -> list[str]:
    """Most similar name, ignoring case; none if nothing is similar."""
    by_lower = {candidate.lower(): candidate for candidate in available}
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=1)]


def list_names(names: Iterable[object]) -> str:
    """Comma-separated names; a long list is cut."""
    shown = list(map(str, names))
    n_hidden = len(shown) - _MAX_SHOWN
    return ", ".join(shown[:_MAX_SHOWN]) + (f", … and {n_hidden} more" if n_hidden > 0 else "")
