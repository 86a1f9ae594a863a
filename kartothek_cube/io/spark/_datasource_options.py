"""Options of the data source, its tables in Spark's catalog, and its errors: Spark shows their text alone."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial, wraps
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, ParamSpec, Self, TypeVar

import attrs
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from kartothek_cube.core.arguments import split_names
from kartothek_cube.core.cube.discover import list_cubes
from kartothek_cube.core.errors import KartothekCubeError, unknown_names
from kartothek_cube.io.spark._session import active_session
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.write.write_plan import SchemaMode

#: name of the format
FORMAT = "kartothek_cube"
#: the overwrite mode as an option of a session; that of a write takes precedence
_SESSION_OVERWRITE = "spark.sql.sources.partitionOverwriteMode"
#: options that Spark adds to those of users, also when it asks for the columns of a table of its catalog
_OF_SPARK = frozenset(
    {"path", "checkpointlocation", "queryname", "provider", "owner", "location", "external"}
    | {_SESSION_OVERWRITE.lower()}
)
#: fields that only streams have
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
    #: `as_of` by the names of Spark
    versionAsOf: int | None = None
    timestampAsOf: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read the options of a data source.

        >>> ReadOptions.of({"store": "hfs:///data", "cube": "geodata", "columns": "AVG_TEMP, WIND"}).columns
        ('AVG_TEMP', 'WIND')
        >>> ReadOptions.of({"store": "hfs:///data", "cube": "geodata", "versionAsOf": "3"}).as_of
        3
        """
        parsed = _parse(cls, options)
        moments = {name: getattr(parsed, name) for name in ("as_of", "versionAsOf", "timestampAsOf")}
        given = {name: moment for name, moment in moments.items() if moment is not None}
        if len(given) > 1:
            raise ValueError(f"Format {FORMAT}: give one of the options {', '.join(given)}, not several")
        return attrs.evolve(parsed, as_of=next(iter(given.values()), None))


@attrs.frozen
class StreamOptions(ReadOptions):
    """Options of a stream that reads what is appended to a dataset, named as those of Delta Lake."""

    #: the first version whose rows are read, or ``latest``: what is appended from now on. None: the stream
    #: begins with all rows that are there
    startingVersion: int | Literal["latest"] | None = None
    #: the same as a point in time
    startingTimestamp: str | None = None
    #: how many files a batch reads at most
    maxFilesPerTrigger: int | None = None
    #: leave out commits that remove or replace rows; otherwise they are an error
    skipChangeCommits: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read the options of a data source.

        >>> given = {"store": "hfs:///data", "cube": "geodata", "startingVersion": "7"}
        >>> StreamOptions.of(given).startingVersion
        7
        """
        parsed = super().of(options)
        texts = _by_lower_name(options)
        for name in ("as_of", "versionAsOf", "timestampAsOf", "changed_since", "conditions", "datasets"):
            if name.lower() in texts:
                raise ValueError(
                    f"Format {FORMAT}: a stream has no option {name!r}; it has dataset, columns, "
                    f"{', '.join(_OF_STREAMS)}"
                )
        if parsed.startingVersion is not None and parsed.startingTimestamp is not None:
            raise ValueError(f"Format {FORMAT}: give startingVersion or startingTimestamp, not both")
        return parsed


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
    #: whether mode ``overwrite`` replaces all partitions (``static``) or those that are written (``dynamic``)
    partitionOverwriteMode: str = "static"
    #: application and number of a write that is not to be repeated, as in Delta Lake
    txnAppId: str | None = None
    txnVersion: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read the options of a data source.

        >>> WriteOptions.of({"store": "hfs:///data", "cube": "geodata", "data_set": "weather"})
        Traceback (most recent call last):
        ...
        ValueError: Format kartothek_cube: unknown option data_set; did you mean dataset? available: ...
        """
        texts = _by_lower_name(options)
        mode = texts.get("partitionoverwritemode", texts.get(_SESSION_OVERWRITE.lower(), "static"))
        parsed = _parse(cls, {**texts, "partitionOverwriteMode": mode.lower()})
        if (parsed.txnAppId is None) != (parsed.txnVersion is None):
            raise ValueError(f"Format {FORMAT}: give both or none of the options txnAppId, txnVersion")
        return parsed

    @property
    def batch(self) -> tuple[str, int] | None:
        """Application and number of the write: it is done if this number or a later one is committed."""
        return None if self.txnAppId is None or self.txnVersion is None else (self.txnAppId, self.txnVersion)


def _by_lower_name(options: Mapping[str, str]) -> dict[str, str]:
    return {str(name).lower(): value for name, value in options.items()}


def _parse(cls: type[Options], options: Mapping[str, str]) -> Options:
    """Options as a record, whose fields have their names; those that are not given have their default."""
    texts = _by_lower_name(options)
    # a table has options for reads and for writes
    known = {field.name for kind in (StreamOptions, WriteOptions) for field in attrs.fields(kind)}
    unknown = set(texts) - {name.lower() for name in known} - _OF_SPARK
    if unknown:
        raise ValueError(f"Format {FORMAT}: {unknown_names('option', unknown, known)}")
    if "path" in texts:
        texts.setdefault("store", texts["path"])
    if not texts.get("store"):
        raise ValueError(f"Format {FORMAT}: option 'store' is missing: a URL such as hfs:///data. {_LOST}")
    if not texts.get("cube"):
        texts["cube"] = _find_only_cube(texts["store"])
    given = {name: texts[name.lower()] for name in attrs.fields_dict(cls) if name.lower() in texts}
    return cls(**{n: _PARSERS[n](n, text) if n in _PARSERS else text for n, text in given.items()})


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


def _whole_number(option: str, text: str, least: int = 0) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"Format {FORMAT}: option {option!r} is a whole number, got {text!r}")
    if int(text) < least:
        raise ValueError(f"Format {FORMAT}: option {option!r} is {least} or more, got {text!r}")
    return int(text)


def _first_version(option: str, text: str) -> int | str:
    return text if text == "latest" else _whole_number(option, text)


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


def _flag(option: str, text: str) -> bool:
    return _one_of("true", "false")(option, text.lower()) == "true"


#: when options of tables of the catalog get lost
_LOST = (
    "If this is a table of Spark's catalog, Spark has passed none of its options: create it by "
    f"CREATE TABLE ... USING {FORMAT} OPTIONS (...) without columns and AS SELECT, and insert into a "
    "temporary view that has the same options"
)
_PARSERS: dict[str, Callable[[str, str], object]] = {
    **dict.fromkeys(("columns", "datasets", "dimension_columns", "index_columns"), _names),
    **dict.fromkeys(("partition_columns", "partition_on"), _names),
    **dict.fromkeys(("as_of", "changed_since"), _moment),
    **dict.fromkeys(("push_filters", "skipChangeCommits"), _flag),
    **dict.fromkeys(("versionAsOf", "txnVersion"), _whole_number),
    "if_exists": _one_of("append", "error", "ignore"),
    "schema_mode": _one_of("strict", "merge"),
    "partitionOverwriteMode": _one_of("static", "dynamic"),
    "startingVersion": _first_version,
    "maxFilesPerTrigger": partial(_whole_number, least=1),
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
#: layouts of other formats, and the argument `partitionBy` of `save` and `start`
_LAYOUTS = ("partitionBy", "clusterBy")
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
        try:
            _patch_package(package, readwriter)
        except (AttributeError, ImportError) as error:
            warnings.warn(
                f"This version of PySpark is unknown ({error}): format {FORMAT} may lack the modes 'error' "
                "and 'ignore', and not refuse tables that cannot be read. Use kartothek_cube.io.spark.cube",
                stacklevel=3,
            )


def _patch_package(package: str, readwriter: ModuleType) -> None:
    writer = readwriter.DataFrameWriter
    stream_writer = import_module(f"{package}.streaming.readwriter").DataStreamWriter
    _call_before(writer, "format", _remember)
    _call_before(writer, "mode", _remember)
    for layout in _LAYOUTS:
        for cls in (writer, stream_writer):
            _call_before(cls, layout, partial(_remember_layout, layout))
    _call_before(writer, "save", _translate_mode)
    _call_before(writer, "saveAsTable", _refuse_unreadable)
    _call_before(readwriter.DataFrameWriterV2, "using", _refuse_unreadable)
    _call_before(import_module(f"{package}.catalog").Catalog, "createTable", _refuse_unreadable)
    _call_before(import_module(f"{package}.session").SparkSession, "sql", _check_statement)
    _call_before(stream_writer, "format", _remember)
    _call_before(stream_writer, "outputMode", _remember)
    _call_before(stream_writer, "start", _prepare_stream)
    _call_before(stream_writer, "toTable", _refuse_new_table)


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
    names = ("source", "saveMode", "outputMode")
    chosen = {name: arguments[name] for name in names if arguments.get(name) is not None}
    vars(writer).setdefault(_CHOSEN, {}).update(chosen)


def _remember_layout(layout: str, writer: Any, arguments: dict[str, Any]) -> None:
    vars(writer).setdefault(_CHOSEN, {})[layout] = any(arguments.get("cols", ()))


def _has_our_format(writer: Any, arguments: dict[str, Any]) -> bool:
    given = arguments.get("format") or arguments.get("provider") or arguments.get("source")
    return str(given or vars(writer).get(_CHOSEN, {}).get("source")).lower() == FORMAT


def _refuse_layout(writer: Any, arguments: dict[str, Any]) -> None:
    # Spark ignores it in streams
    chosen = vars(writer).get(_CHOSEN, {})
    given = [layout for layout in _LAYOUTS if chosen.get(layout) or arguments.get(layout)]
    if given:
        raise AnalysisException(
            f"Format {FORMAT}: leave out {given[0]}: the cube defines the partition columns, for a new cube "
            "by the option 'partition_columns'"
        )


def _translate_mode(writer: Any, arguments: dict[str, Any]) -> None:
    if not _has_our_format(writer, arguments):
        return
    _refuse_layout(writer, arguments)
    options = arguments.setdefault("options", {})
    mode = str(arguments.get("mode") or vars(writer).get(_CHOSEN, {}).get("saveMode", "error")).lower()
    if mode in _MODES:
        options["if_exists"], arguments["mode"] = _MODES[mode], "append"
    elif mode == "overwrite":
        # a data source does not see the options of the session
        options[_SESSION_OVERWRITE] = _session_of(writer).conf.get(_SESSION_OVERWRITE, "static")


def _prepare_stream(writer: Any, arguments: dict[str, Any]) -> None:
    if not _has_our_format(writer, arguments):
        return
    _refuse_layout(writer, arguments)
    mode = arguments.get("outputMode") or vars(writer).get(_CHOSEN, {}).get("outputMode")
    if str(mode).lower() == "update":
        raise AnalysisException(
            f"Format {FORMAT}: there is no output mode 'update': append the batches by foreachBatch, as "
            "queries return the last row of a cell"
        )
    # Spark looks for the format of a sink in the active session alone, and a new thread has none; those of
    # Spark Connect are on the server
    session = _session_of(writer)
    if isinstance(session, SparkSession):
        session.createDataFrame([], "a int")  # makes it the active one


def _session_of(writer: Any) -> SparkSession:
    """The session of a writer, which has no public name; in unknown versions of PySpark the active one."""
    names = [name for name in ("_spark", "_session") if hasattr(writer, name)]
    return getattr(writer, names[0]) if names else active_session()


def _refuse_new_table(writer: Any, arguments: dict[str, Any]) -> None:
    if not _has_our_format(writer, arguments):
        return
    _refuse_layout(writer, arguments)
    if not _session_of(writer).catalog.tableExists(arguments["tableName"]):
        raise AnalysisException(_UNREADABLE)


def _refuse_unreadable(target: Any, arguments: dict[str, Any]) -> None:
    # without columns, Spark keeps the options of a table
    has_columns = "tableName" not in arguments or arguments.get("schema") is not None
    if has_columns and _has_our_format(target, arguments):
        raise AnalysisException(_UNREADABLE)


def _check_statement(session: SparkSession, arguments: dict[str, Any]) -> None:
    text = _COMMENTS.sub(" ", str(arguments.get("sqlQuery")))
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
