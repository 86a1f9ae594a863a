"""Options of the data source, its tables in Spark's catalog, and its errors: Spark shows their text alone."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, Literal, ParamSpec, TypeVar

import attrs
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from kartothek_cube.core.arguments import split_names
from kartothek_cube.core.cube.discover import list_cubes
from kartothek_cube.core.errors import KartothekCubeError, unknown_names
from kartothek_cube.io_components.maintenance.history import CubeAsOf
from kartothek_cube.io_components.write.write_plan import SchemaMode

#: name of the format
FORMAT = "kartothek_cube"
#: application and number of a write that is not to be repeated, as in Delta Lake
_APPLICATION, _NUMBER = "txnAppId", "txnVersion"
#: the overwrite mode, as an option of a write and as one of a session; the former takes precedence
_OVERWRITE, _SESSION_OVERWRITE = "partitionOverwriteMode", "spark.sql.sources.partitionOverwriteMode"
#: options that Spark adds to those of users, also when it asks for the columns of a table of its catalog
_OF_SPARK = frozenset(
    {"path", "checkpointlocation", "queryname", "provider", "owner", "location", "external"}
    | {_SESSION_OVERWRITE.lower()}
)
#: names of Spark for the points in time of a read
_VERSION, _TIMESTAMP = "versionAsOf", "timestampAsOf"
_OF_STREAMS = ("startingVersion", "startingTimestamp", "maxFilesPerTrigger", "skipChangeCommits")
#: key of the options of a table in the metadata of its first column
_TABLE = "kartothek_cube_options"

P = ParamSpec("P")
T = TypeVar("T")
Options = TypeVar("Options", bound=attrs.AttrsInstance)

Names = tuple[str, ...]


@attrs.frozen
class ReadOptions:
    """Options of a read; users pass them as text."""

    #: URL of the store, or the path of ``load(path)``
    store: str
    #: prefix of the cube; by default the only one of the store
    cube: str
    #: payload columns of the result; None for all
    columns: Names | None = None
    #: dimensions of the result; None for all
    dimension_columns: Names | None = None
    #: datasets to join; None for all
    datasets: Names | None = None
    #: point in time of the states to read; None for the current ones
    as_of: CubeAsOf | None = None
    #: earlier point in time, of which a token is one: rows of the partitions that have changed since
    changed_since: CubeAsOf | None = None
    #: the dataset whose columns the result has, and that a stream reads; None for all and for the seed
    dataset: str | None = None
    #: text of the conditions, such as ``DAY >= 2020-01-31 & CITY == Ulm``; None for all rows
    conditions: str | None = None
    #: evaluate Spark's filters while files are read, also where Spark mixes up those of several scans
    push_filters: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options of a data source.

        >>> ReadOptions.of({"store": "hfs:///data", "cube": "geodata", "columns": "AVG_TEMP, WIND"}).columns
        ('AVG_TEMP', 'WIND')
        >>> ReadOptions.of({"store": "hfs:///data", "cube": "geodata", "versionAsOf": "3"}).as_of
        3
        """
        parsed = _parse(cls, options)
        texts = _by_lower_name(options)
        given = [name for name in ("as_of", _VERSION, _TIMESTAMP) if name.lower() in texts]
        if len(given) > 1:
            raise ValueError(f"Format {FORMAT}: give one of the options {', '.join(given)}, not several")
        as_of = texts.get(_TIMESTAMP.lower(), parsed.as_of)
        if given == [_VERSION]:
            as_of = _whole_number(_VERSION, texts[_VERSION.lower()])
        return attrs.evolve(parsed, as_of=as_of)


@attrs.frozen
class StreamOptions:
    """Options of a stream that reads what is appended to a dataset, named as those of Delta Lake."""

    #: options that reads have as well
    read: ReadOptions
    #: the first version whose rows are read, or ``latest``: what is appended from now on. None: the stream
    #: begins with all rows that are there
    starting_version: int | Literal["latest"] | None = None
    #: the same as a point in time
    starting_timestamp: str | None = None
    #: how many files a batch reads at most
    max_files: int | None = None
    #: leave out commits that remove or replace rows; otherwise they are an error
    skip_changes: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        """Read the options of a data source.

        >>> given = {"store": "hfs:///data", "cube": "geodata", "startingVersion": "7"}
        >>> StreamOptions.of(given).starting_version
        7
        """
        read = ReadOptions.of(options)
        texts = _by_lower_name(options)
        for name in ("as_of", _VERSION, _TIMESTAMP, "changed_since", "conditions", "datasets"):
            if name.lower() in texts:
                raise ValueError(
                    f"Format {FORMAT}: a stream has no option {name!r}; it has dataset, columns, "
                    f"{', '.join(_OF_STREAMS)}"
                )
        version, time, files, skip = (texts.get(name.lower()) for name in _OF_STREAMS)
        if version is not None and time is not None:
            raise ValueError(f"Format {FORMAT}: give startingVersion or startingTimestamp, not both")
        limit = None if files is None else _whole_number("maxFilesPerTrigger", files)
        if limit == 0:
            raise ValueError(f"Format {FORMAT}: option 'maxFilesPerTrigger' is 1 or more, got '0'")
        start: int | Literal["latest"] | None = None
        if version is not None:
            start = "latest" if version == "latest" else _whole_number("startingVersion", version)
        return cls(read, start, time, limit, skip is not None and _flag("skipChangeCommits", skip))


@attrs.frozen
class WriteOptions:
    """Options of a write, to a table or as a stream."""

    #: as in `ReadOptions`
    store: str
    cube: str
    #: id of the dataset to write; None for the seed
    dataset: str | None = None
    #: of a cube that does not exist yet; those of one that exists need not be given
    dimension_columns: Names | None = None
    partition_columns: Names | None = None
    #: more columns to index
    index_columns: Names | None = None
    #: id of the seed of a cube that does not exist yet
    seed_dataset: str = "seed"
    #: partition columns of a new dataset; by default those of the cube
    partition_on: Names | None = None
    #: save mode if the dataset exists: ``append``, ``error`` or ``ignore``
    if_exists: str = "append"
    #: whether appended rows have the columns of the dataset (``strict``), or may add some and leave out some
    #: (``merge``)
    schema_mode: SchemaMode = "strict"
    #: whether mode ``overwrite`` replaces only the partitions that are written, as Spark's
    #: ``partitionOverwriteMode=dynamic`` says
    overwrites_partitions: bool = False
    #: application and number of the write; if this number or a later one is committed, nothing is written
    batch: tuple[str, int] | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read the options of a data source.

        >>> WriteOptions.of({"store": "hfs:///data", "cube": "geodata", "data_set": "weather"})
        Traceback (most recent call last):
        ...
        ValueError: Format kartothek_cube: unknown option data_set; did you mean dataset? available: ...
        """
        texts = _by_lower_name(options)
        mode = texts.get(_OVERWRITE.lower(), texts.get(_SESSION_OVERWRITE.lower(), "static")).lower()
        _one_of("static", "dynamic")(_OVERWRITE, mode)
        application, number = texts.get(_APPLICATION.lower()), texts.get(_NUMBER.lower())
        if (application is None) != (number is None):
            raise ValueError(f"Format {FORMAT}: give both or none of the options {_APPLICATION}, {_NUMBER}")
        batch = None
        if application is not None and number is not None:
            batch = application, _whole_number(_NUMBER, number)
        return attrs.evolve(_parse(cls, options), overwrites_partitions=mode == "dynamic", batch=batch)


def _by_lower_name(options: Mapping[str, str]) -> dict[str, str]:
    return {str(name).lower(): value for name, value in options.items()}


def _parse(cls: type[Options], options: Mapping[str, str]) -> Options:
    """Options as a record; those that are not given have their default."""
    texts = _by_lower_name(options)
    names = [field.name for field in attrs.fields(cls) if field.name not in _DERIVED]
    # a table has options for reads and for writes
    fields = {field.name for kind in (ReadOptions, WriteOptions) for field in attrs.fields(kind)}
    known = [*sorted(fields.difference(_DERIVED)), *_SPELLED]
    unknown = set(texts) - {name.lower() for name in known} - _OF_SPARK
    if unknown:
        raise ValueError(f"Format {FORMAT}: {unknown_names('option', unknown, known)}")
    if "path" in texts:
        texts.setdefault("store", texts["path"])
    if not texts.get("store"):
        raise ValueError(f"Format {FORMAT}: option 'store' is missing: a URL such as hfs:///data. {_LOST}")
    if not texts.get("cube"):
        texts["cube"] = _find_only_cube(texts["store"])
    given = [name for name in names if name in texts]
    return cls(**{n: _PARSERS[n](n, texts[n]) if n in _PARSERS else texts[n] for n in given})


def _find_only_cube(store: str) -> str:
    cubes = sorted(list_cubes(store))
    if len(cubes) > 1:
        raise ValueError(f"Format {FORMAT}: option 'cube' is missing: one of {', '.join(cubes)}")
    if not cubes:
        raise ValueError(
            f"Format {FORMAT}: the store has no cube; to build one by a write, name it and its columns in "
            "the options cube, dimension_columns, partition_columns"
        )
    return cubes[0]


def _names(option: str, text: str) -> Names:
    """Names in text: separated by commas, or a JSON list for names with commas in them."""
    if not text.strip().startswith("["):
        return tuple(split_names(text))
    names = _load_json(option, text, "list")
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"Format {FORMAT}: option {option!r} has to be a list of names, got {text}")
    return tuple(names)


def _load_json(option: str, text: str, kind: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"Format {FORMAT}: option {option!r} is no JSON {kind}: {error}") from error


def _whole_number(option: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"Format {FORMAT}: option {option!r} is a whole number, got {text!r}")
    return int(text)


def _flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"Format {FORMAT}: option {option!r} is true or false, got {text!r}")
    return text.lower() == "true"


def _moment(option: str, text: str) -> CubeAsOf:
    """A version, a time or token, or a JSON object of dataset id to version or time."""
    if text.strip().isdecimal():
        return int(text)
    moments: CubeAsOf = _load_json(option, text, "object") if text.strip().startswith("{") else text
    return moments


def _one_of(*choices: str) -> Callable[[str, str], str]:
    """The parser of an option that is one of some texts."""

    def parse(option: str, text: str) -> str:
        if text not in choices:
            known = f"{', '.join(choices[:-1])} or {choices[-1]}"
            raise ValueError(f"Format {FORMAT}: option {option!r} is {known}, got {text!r}")
        return text

    return parse


#: when options of tables of the catalog get lost
_LOST = (
    "If this is a table of Spark's catalog, Spark has passed none of its options: create it by "
    f"CREATE TABLE ... USING {FORMAT} OPTIONS (...) without columns and AS SELECT, and insert into a "
    "temporary view that has the same options"
)
#: options with capital letters, as other formats of Spark spell them
_SPELLED = (_VERSION, _TIMESTAMP, _OVERWRITE, _APPLICATION, _NUMBER, *_OF_STREAMS)
#: fields that follow from several options
_DERIVED = ("overwrites_partitions", "batch")
_PARSERS: dict[str, Callable[[str, str], object]] = {
    **dict.fromkeys(("columns", "datasets", "dimension_columns", "index_columns"), _names),
    **dict.fromkeys(("partition_columns", "partition_on"), _names),
    **dict.fromkeys(("as_of", "changed_since"), _moment),
    "if_exists": _one_of("append", "error", "ignore"),
    "push_filters": _flag,
    "schema_mode": _one_of("strict", "merge"),
}


# -- tables of Spark's catalog -------------------------------------------------------------------------------


def keep_options(options: Mapping[str, str], schema: StructType) -> StructType:
    """The schema of a table, which also holds its options if it is one of Spark's catalog."""
    # Spark passes the options of such a table on when it asks for columns, and only then: it keeps the
    # schema. So they are in the metadata of the first column.
    if "provider" not in options or not len(schema):
        return schema
    given = {name: value for name, value in options.items() if not _is_of_catalog(name)}
    first = StructField(schema[0].name, schema[0].dataType, schema[0].nullable, {_TABLE: given})
    return StructType([first, *schema.fields[1:]])


def _is_of_catalog(name: str) -> bool:
    # Spark repeats each option as "option.<name>"
    return name.startswith("option.") or (name in _OF_SPARK and name != "path")


def table_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read, over those of the table whose schema this is unless they name another cube."""
    kept = [field.metadata[_TABLE] for field in schema if _TABLE in (field.metadata or {})]
    named = {name.lower(): value for name, value in options.items() if not _is_of_catalog(name)}
    return named if not kept or {"store", "cube", "path"} & set(named) else {**kept[0], **named}


# -- what `register` changes in PySpark ----------------------------------------------------------------------

_MODES = {"error": "error", "errorifexists": "error", "default": "error", "ignore": "ignore"}
#: attributes: what the user has chosen for a writer; that a method is changed already
_CHOSEN, _CHANGED = "_kartothek_cube_chosen", "_kartothek_cube_wraps"

_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = r"(?P<name>(?:`[^`]*`|[\w.])+)"
_CREATE_WITH_COLUMNS = re.compile(
    rf"\s*(?:CREATE|REPLACE|CREATE\s+OR\s+REPLACE)\s+(?:EXTERNAL\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?{_NAME}"
    rf"\s*\(.*\)\s*USING\s+`?{FORMAT}\b",
    re.DOTALL | re.IGNORECASE,
)
_ALTER_COLUMNS = re.compile(
    rf"\s*ALTER\s+TABLE\s+{_NAME}\s+(?:(?:ADD|DROP|REPLACE|RENAME)\s+COLUMNS?\b|(?:ALTER|CHANGE)\s(?!.*\bCOMMENT\b))",
    re.DOTALL | re.IGNORECASE,
)
_UNREADABLE = (
    f"Format {FORMAT}: Spark's catalog would keep no options of this table, which could not be read. Create "
    f"it by CREATE TABLE ... USING {FORMAT} OPTIONS (...) without columns; to write rows, use save(), or "
    "insert into a temporary view that has the same options"
)


def patch_pyspark() -> None:
    """Translate save modes, and refuse what would leave unreadable tables; repeatable."""
    for package in ("pyspark.sql", "pyspark.sql.connect"):
        readwriter = sys.modules.get(f"{package}.readwriter")
        if readwriter is None or hasattr(readwriter.DataFrameWriter.save, _CHANGED):
            continue
        writer = readwriter.DataFrameWriter
        _call_before(writer, "format", _remember)
        _call_before(writer, "mode", _remember)
        _call_before(writer, "save", _translate_mode)
        _call_before(writer, "saveAsTable", _refuse_unreadable)
        _call_before(readwriter.DataFrameWriterV2, "using", _refuse_unreadable)
        _call_before(import_module(f"{package}.catalog").Catalog, "createTable", _refuse_unreadable)
        _call_before(import_module(f"{package}.session").SparkSession, "sql", _check_statement)


def _call_before(cls: type, name: str, function: Callable[[Any, dict[str, Any]], None]) -> None:
    """Let a function see the object and the arguments of each call of a method, change them, or refuse it."""
    method = getattr(cls, name)
    signature = inspect.signature(method)

    @wraps(method)
    def call_method(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        function(args[0], given.arguments)
        return method(*given.args, **given.kwargs)

    setattr(call_method, _CHANGED, True)
    setattr(cls, name, call_method)


def _remember(writer: Any, arguments: dict[str, Any]) -> None:
    chosen = {name: arguments[name] for name in ("source", "saveMode") if arguments.get(name) is not None}
    vars(writer).setdefault(_CHOSEN, {}).update(chosen)


def _has_our_format(writer: Any, arguments: dict[str, Any]) -> bool:
    given = arguments.get("format") or arguments.get("provider") or arguments.get("source")
    return str(given or vars(writer).get(_CHOSEN, {}).get("source")).lower() == FORMAT


def _translate_mode(writer: Any, arguments: dict[str, Any]) -> None:
    if not _has_our_format(writer, arguments):
        return
    options = arguments.setdefault("options", {})
    mode = str(arguments.get("mode") or vars(writer).get(_CHOSEN, {}).get("saveMode", "error")).lower()
    if mode in _MODES:
        options["if_exists"], arguments["mode"] = _MODES[mode], "append"
    elif mode == "overwrite":
        # a data source does not see the options of the session
        options[_SESSION_OVERWRITE] = writer._spark.conf.get(_SESSION_OVERWRITE, "static")


def _refuse_unreadable(target: Any, arguments: dict[str, Any]) -> None:
    # without columns, Spark keeps the options of a table
    has_columns = "tableName" not in arguments or arguments.get("schema") is not None
    if has_columns and _has_our_format(target, arguments):
        raise AnalysisException(_UNREADABLE)


def _check_statement(session: SparkSession, arguments: dict[str, Any]) -> None:
    text = _COMMENTS.sub(" ", arguments["sqlQuery"])
    if _CREATE_WITH_COLUMNS.match(text):
        raise AnalysisException(_UNREADABLE)
    change = _ALTER_COLUMNS.match(text)
    if change and _has_our_provider(session, change["name"]):
        raise AnalysisException(
            f"Format {FORMAT}: ALTER TABLE changes columns of Spark's catalog, not those of the cube. "
            f"Use update_schema, then drop and create {change['name']}"
        )


def _has_our_provider(session: SparkSession, table: str) -> bool:
    """Whether a table of the catalog has the format; Spark explains what is wrong with other names."""
    namespace, _, name = table.rpartition(".")
    place = f"IN {namespace} " if namespace else ""
    try:
        rows = session.sql(f"SHOW TABLE EXTENDED {place}LIKE '{name.strip('`')}'").collect()
    except AnalysisException:
        return False
    return any(f"\nProvider: {FORMAT}\n" in row["information"] for row in rows)


# -- errors --------------------------------------------------------------------------------------------------

#: errors that users can correct; all others need their stack trace
_FOR_USERS = (KartothekCubeError, ValueError, TypeError, RuntimeError)
#: Spark's workers look for this when they report an error; then they end
HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


def concise_errors(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that a worker of Spark calls: errors carry their text, no stack trace."""

    @wraps(method)
    def call_method(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except _FOR_USERS:
            # whether Spark started this process to call the data source
            spec = getattr(sys.modules["__main__"], "__spec__", None)
            if spec is not None and spec.name.startswith("pyspark."):
                os.environ[HIDE_TRACEBACK] = "1"
            raise

    return call_method
