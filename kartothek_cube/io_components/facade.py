"""Façades: functions for users, made of the class that holds the arguments of an operation and plans its job.

The fields of the class are the parameters of the function, in this order and with these defaults; its
docstring is that of the function. A façade that has one parameter more is made of a subclass with one field
more, so that type checkers know its signature as well (``ParamSpec`` cannot add a keyword).
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast, get_origin

import attrs

from kartothek_cube.core.arguments import alias_parameter, check_call, check_flag
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import find_cube
from kartothek_cube.core.errors import CubeNotFoundError
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io_components.job import Answer, Job
from kartothek_cube.io_components.runtime import progress_bar

P = ParamSpec("P")
T = TypeVar("T")
Result = TypeVar("Result")
#: type of the argument `store`: dask needs a factory, which its tasks can carry
StoreT = TypeVar("StoreT", bound=StoreInput)

#: metadata of a field that has to be given by one of its two names
ALIAS_REQUIRED = {"required": True}
#: parameters that are stores
_STORES = ("store", "src_store", "tgt_store")
#: length of lines of documentation
_WIDTH = 100


class _SharedParameters:
    """Parameters that many classes have, and those that subclasses add.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    dataset_uuid
        Uuid of the dataset.
    df_serializer
        How files are written; Parquet with ZSTD by default.
    factory
        The dataset itself, instead of ``dataset_uuid`` and ``store``. It is not modified.
    metadata_merger
        Function of a list of two dicts, the stored metadata and ``metadata``, that returns the new
        metadata.
    metadata_version
        Version of the format; always 4.
    sort_partitions_by
        Columns by which each input is sorted before it is split.
    table_name
        Name of the table.
    table
        Name of the table.
    datasets
        Datasets concerned; all by default.
    ktk_cube_dataset_ids
        Another name of ``datasets``.
    retention
        Minimum age of garbage, by the clock of the store; younger files may belong to a write that has
        not committed yet. States stay readable for this time after they were replaced. Files of unknown
        age stay. The clock is read from an empty file that is put and deleted. None: files of any age
        are deleted, and all older states; a write that still needs them gets a ConcurrentWriteError.
    format
        ``"delta"``, or ``"iceberg"`` for both an Iceberg and a Delta table (extra ``iceberg``). What
        was published as Iceberg table once stays one.
    on_commit
        Whether each later commit publishes as well, once it is visible. The metadata of the dataset say
        so (``kartothek_cube_publish``); datasets that are added to a cube later do as its seed. A
        commit that cannot be published is done all the same, with a warning. By default as before.
    df_generator
        An iterable of inputs, as in :func:`store_dataframes_as_dataset`.
    delayed_tasks
        Delayed objects of inputs, as in :func:`store_dataframes_as_dataset`.
    bag
        A bag of inputs, as in :func:`store_dataframes_as_dataset`.
    df
        A Spark DataFrame.
    blocksize
        Number of items per task: files, or groups of a query.
    shuffle
        Whether the rows of each physical partition are first collected into few files.
    num_buckets
        With ``shuffle``, the largest number of files of a physical partition.
    bucket_by
        With ``shuffle``, the columns by whose values rows are put into files; all by default.
    max_rows_per_file
        Partitions of more rows are written by several tasks. They are counted first, so the input is
        computed twice. By default, a partition has to fit into the memory of a task.
    batch
        Name of a stream and number of its batch, as in ``foreachBatch``. If this batch or a later one
        is committed already, nothing is written.
    chunk_size
        Number of files per task.
    partition_size
        Partitions of the dataset, or groups, in each partition of the bag; by default 1, more from 100
        on.
    dispatch_by
        Indexed columns. The result is split by all combinations of their values that the indices hold;
        rows of a group have exactly these values. ``[]``: everything is one group.
    dtype_backend
        ``"numpy_nullable"`` or ``"pyarrow"``: types that can hold missing values, as in pandas. They do
        not depend on the values. By default, types are those of NumPy as far as possible.
    publish
        False: stop before the commit, and return a ``StagedWrite`` in place of the result. Queries with
        ``as_of=staged`` read the cube as it will be; :func:`publish_staged` commits the write,
        :func:`discard_staged` deletes its files (:ref:`staging`).
    progress
        Show a bar of files, bytes and the time left; needs tqdm.
    spark
        The session; by default the active one.
    """


class Operation(Protocol[Answer]):
    """The arguments of an operation: a frozen class of attrs, whose docstring is that of its façades."""

    def job(self, blocksize: int | None = None) -> Job[Answer]:
        """Check the arguments and plan; ``blocksize`` is the number of items per task."""


class Example(NamedTuple):
    """Call of a façade in the examples of the class."""

    #: lines before the call, which convert the input `data`
    setup: tuple[str, ...] = ()
    #: template of the expression for the value that the example shows
    value: str = "{}"
    #: further arguments
    arguments: str = ""


_AS_IN_CLASS = Example()


def cube_or_name(cube: Cube | str) -> Cube:
    """Converter of the field for a cube: façades replace a name, as they have the store."""
    if not isinstance(cube, str):
        ensure_cube(cube)
    return cast(Cube, cube)


def _find_cube(operation: T, cube: str, store: StoreInput) -> T:
    """The operation with the specification of a cube that the user has named."""
    arguments: Any = operation
    try:
        named: T = attrs.evolve(arguments, cube=find_cube(cube, store))
    except CubeNotFoundError as error:
        remedy = getattr(operation, "cube_not_found", None)
        if remedy is None:
            raise
        raise CubeNotFoundError(cube, f"{error.reason}; {remedy.format(cube)}") from error
    return named


def plan_job(operation: Operation[Answer]) -> Job[Answer]:
    """The job of an operation, with the block size that the user gives."""
    return operation.job(getattr(operation, "blocksize", None))


def with_stores(operation: T, convert: Callable[[Any], Any]) -> T:
    """The operation with converted stores."""
    arguments: Any = operation
    names = [field.name for field in attrs.fields(type(arguments)) if field.name in _STORES]
    changed: T = attrs.evolve(arguments, **{name: convert(getattr(arguments, name)) for name in names})
    return changed


def facade(
    module: str,
    name: str,
    operation: Callable[P, T],
    run: Callable[[T], Result],
    note: str = "",
    types: Mapping[str, str] | None = None,
    *,
    summary: str = "",
    returns: str = "",
    example: Example | str = _AS_IN_CLASS,
) -> Callable[P, Result]:
    """Make the function that users call, which is found as `name` in `module`, also by pickle."""
    # Its parameters are the fields of `operation`, and `run` plans and runs it; `Answer` in the annotation of
    # `run` is the type of the answer of the job, and `types` says what type variables of the class stand for.
    # `note` is a paragraph about this façade; `summary`, `returns` and `example` replace texts of the class.
    cls: Any = get_origin(operation) or operation
    types = types or {}
    signature = _signature(cls, run, types)
    flags = [f.name for f in attrs.fields(cls) if f.init and f.type in ("bool", "bool | None")]
    stores = [f.name for f in attrs.fields(cls) if f.name in _STORES]

    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            arguments: T = cls(*args, **kwargs)
        except TypeError:
            # the error names the function, not the class
            check_call(name, call, args, kwargs)
            raise
        for flag in flags:
            check_flag(flag, getattr(arguments, flag))
        cube: Any = getattr(arguments, "cube", None)
        with progress_bar(name.partition("_")[0], getattr(arguments, "progress", False)):
            is_named = stores and isinstance(cube, str)
            return run(_find_cube(arguments, cube, getattr(arguments, stores[0])) if is_named else arguments)

    call.__name__ = call.__qualname__ = name
    call.__module__ = module
    call.operation = operation  # type: ignore[attr-defined]
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = _annotations(cls, run, signature)
    call.__doc__ = _documentation(cls, call, note, summary, returns, example)
    if types.get("StoreT") == "StoreFactoryInput":
        call.__doc__ = re.sub(r"Store(s?), factor(y|ies) or", r"Factor\2, director\2 or", call.__doc__)
    aliased = getattr(attrs.fields(cls), "ktk_cube_dataset_ids", None)
    if aliased is None:
        return call
    required = bool(aliased.metadata.get("required"))
    return alias_parameter("datasets", "ktk_cube_dataset_ids", required=required)(call)


def define_facade(
    operation: Callable[P, T],
    types: Mapping[str, str] | None = None,
    *,
    returns: str = "",
    example: Example | str = _AS_IN_CLASS,
) -> Callable[[Callable[[T], Result]], Callable[P, Result]]:
    """Decorator: the façade that runs a function; its docstring, if any, is the summary and the note."""

    def define(run: Callable[[T], Result]) -> Callable[P, Result]:
        summary, _, note = inspect.cleandoc(run.__doc__ or "").partition("\n\n")
        texts = {"note": note, "summary": summary, "returns": returns}
        return facade(run.__module__, run.__name__, operation, run, types=types, example=example, **texts)

    return define


def _signature(cls: Any, run: Callable[..., object], types: Mapping[str, str]) -> inspect.Signature:
    returns = run.__annotations__["return"]
    if returns == "Answer":
        # the argument of Job[...]
        (job,) = ast.parse(cls.job.__annotations__["return"]).body
        returns = ast.unparse(job.value.slice)
    signature = inspect.signature(cls)
    given = signature.parameters.values()
    parameters = [p.replace(annotation=types.get(p.annotation, p.annotation)) for p in given]
    return signature.replace(parameters=parameters, return_annotation=returns)


def _annotations(cls: Any, run: Any, signature: inspect.Signature) -> dict[str, Any]:
    """Types of parameters and result as objects: the module of the function lacks some of their names."""
    names: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        names |= vars(sys.modules[base.__module__])
    names |= run.__globals__
    annotations: dict[str, Any] = {p.name: p.annotation for p in signature.parameters.values()}
    annotations["return"] = signature.return_annotation
    for name, text in annotations.items():
        # some are imported for type checkers only
        with suppress(NameError):
            annotations[name] = eval(text, names)  # noqa: S307 - it is source code of this package
    return annotations


def _documentation(
    cls: type, function: Callable[..., object], note: str, summary: str, returns: str, example: Example | str
) -> str:
    """The docstring of a function: that of the class with all its parameters, and what its façade adds."""
    # python -OO drops docstrings
    docs = [_parse_doc(inspect.cleandoc(doc)) for base in cls.__mro__ if (doc := vars(base).get("__doc__"))]
    documented = [sections for sections in docs if len(sections) > 1]
    described = [sections for sections in documented if not sections[""].startswith("Parameters of ")]
    if not described:
        return ""
    head, _, description = described[0][""].partition("\n\n")
    parameters = _parameters(function, [*documented, _SHARED])
    # they come first
    sections = {"Parameters": ""} | described[0] | {"Parameters": parameters}
    eager = f"kartothek_cube.io.{'eager_cube' if 'cube' in attrs.fields_dict(cls) else 'eager'}"
    returned = inspect.signature(function).return_annotation
    if function.__module__ != eager and returned != "None":
        # another type, often a lazy object that gives the result
        _, _, meaning = sections.get("Returns", "").partition("\n")
        text = textwrap.indent(textwrap.fill(returns, _WIDTH - 4), "    ") if returns else meaning
        sections = {"Parameters": parameters, "Returns": ""} | sections
        sections["Returns"] = f"{returned}\n{text}".rstrip()
    examples = [found["Examples"] for found in documented if "Examples" in found]
    rendered = example if isinstance(example, str) else _render_example(examples, function, example)
    sections["Examples"] = rendered
    paragraphs = [summary or head, description, textwrap.fill(note, _WIDTH)]
    paragraphs += [f"{name}\n{'-' * len(name)}\n{text}" for name, text in sections.items() if name and text]
    text = "\n\n".join(filter(None, paragraphs))
    # functions that the docstring names are those of the eager façade
    return text if function.__module__ == eager else re.sub(r":func:`(\w+)`", rf":func:`~{eager}.\1`", text)


def _parse_doc(text: str) -> dict[str, str]:
    """The sections of a docstring by title; what precedes them has none."""
    head, *rest = re.split(r"\n\n([A-Z]\w+)\n-+\n", f"\n\n{text}")
    return {"": head.strip(), **dict(zip(rest[::2], rest[1::2], strict=True))}


# parsed once: in each of 40 functions, it took 0.015 s when the package is imported
_SHARED = _parse_doc(inspect.cleandoc(_SharedParameters.__doc__ or ""))


def _parameters(function: Callable[..., object], documented: list[dict[str, str]]) -> str:
    """The section of the parameters; the first docstring that has one counts."""
    texts: dict[str, tuple[str, str]] = {}
    for sections in reversed(documented):
        section = sections.get("Parameters", "")
        for names, text in re.findall(r"(?m)^(\S.*)\n((?:(?:    .*)?(?:\n|$))+)", section):
            texts |= {name: (names, text.rstrip()) for name in names.split(", ")}
    entries: dict[tuple[str, str], list[str]] = {}
    parameters = inspect.signature(function).parameters
    for entry in dict.fromkeys(texts[name] for name in parameters if name in texts):
        # as a group of names, those that another class does not document itself
        entries[entry] = [n for n in entry[0].split(", ") if n in parameters and texts[n] == entry]
    return "\n".join(f"{', '.join(names)}\n{text}" for (_, text), names in entries.items())


_FUNCTION = re.compile(r"(?m)^>>> from (kartothek_cube\.io\.[\w.]+ import (\w+))$")


def _render_example(examples: list[str], function: Callable[..., object], example: Example) -> str:
    """The first examples, which import one function of the class alone, with calls of another function."""
    text = next(iter(examples), "")
    imported = _FUNCTION.search(text)
    if imported is None or imported[2] == function.__name__:
        return text if f"{function.__name__}(" in text else ""
    lines = []
    for line in text.replace(imported[1], f"{function.__module__} import {function.__name__}").splitlines():
        before, called, after = line.partition(f"{imported[2]}(")
        if called:
            # the parenthesis that closes the call
            depths = itertools.accumulate((c == "(") - (c == ")") for c in after)
            end = next(i for i, depth in enumerate(depths) if depth < 0)
            call = f"{function.__name__}({after[:end]}{example.arguments})"
            lines += [f">>> {setup}" for setup in example.setup]
            line = before + example.value.format(call) + after[end + 1 :]
        lines.append(line)
    return "\n".join(lines)
