"""What ``register`` changes in PySpark: save modes, and refusals of what would leave unreadable tables."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from kartothek_cube.io.spark._datasource_options import FORMAT, SESSION_OVERWRITE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, SparkSession
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.types import StructType

_MODES = {"error": "error", "errorifexists": "error", "default": "error", "ignore": "ignore"}
_CHOSEN = "_kartothek_cube_chosen"
_MARK = "_kartothek_cube_wraps"

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


def install() -> None:
    """Install the changes in all imported kinds of sessions; repeatable."""
    for package in ("pyspark.sql", "pyspark.sql.connect"):
        if f"{package}.readwriter" not in sys.modules:
            continue
        module = sys.modules[f"{package}.readwriter"]
        writer, writer_to = module.DataFrameWriter, module.DataFrameWriterV2
        if hasattr(writer.save, _MARK):
            continue
        writer.format = _wrap_setter("format", writer.format)
        writer.mode = _wrap_setter("mode", writer.mode)
        writer.save = _wrap_save(writer.save)
        writer.saveAsTable = _wrap_save_as_table(writer.saveAsTable)
        writer_to.using = _wrap_using(writer_to.using)
        session = import_module(f"{package}.session").SparkSession
        session.sql = _wrap_sql(session.sql)
        catalog = import_module(f"{package}.catalog").Catalog
        catalog.createTable = _wrap_create_table(catalog.createTable)


# -- save modes ----------------------------------------------------------------------------------------------


def _wrap_setter(
    what: str, method: Callable[[DataFrameWriter, str], DataFrameWriter]
) -> Callable[[DataFrameWriter, str], DataFrameWriter]:
    @wraps(method)
    def remember(self: DataFrameWriter, value: str) -> DataFrameWriter:
        if value is not None:
            self.__dict__.setdefault(_CHOSEN, {})[what] = value
        return method(self, value)

    return remember


def _wrap_save(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def save(
        self: DataFrameWriter,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,
        **options: object,
    ) -> None:
        chosen = self.__dict__.get(_CHOSEN, {})
        if _is_ours(format or chosen.get("format")):
            save_mode = str(mode or chosen.get("mode", "error")).lower()
            if save_mode in _MODES:
                options["if_exists"], mode = _MODES[save_mode], "append"
            elif save_mode == "overwrite":
                # a data source does not see the options of the session
                options[SESSION_OVERWRITE] = self._spark.conf.get(SESSION_OVERWRITE, "static")
        method(self, path, format, mode, partitionBy, **options)

    setattr(save, _MARK, True)
    return save


# -- tables of Spark's catalog -------------------------------------------------------------------------------


def _is_ours(source: object) -> bool:
    return str(source).lower() == FORMAT


def _wrap_save_as_table(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def save_as_table(
        self: DataFrameWriter, name: str, format: str | None = None, *args: Any, **options: Any
    ) -> None:
        if _is_ours(format or self.__dict__.get(_CHOSEN, {}).get("format")):
            raise AnalysisException(_UNREADABLE)
        method(self, name, format, *args, **options)

    return save_as_table


def _wrap_using(
    method: Callable[[DataFrameWriterV2, str], DataFrameWriterV2],
) -> Callable[[DataFrameWriterV2, str], DataFrameWriterV2]:
    @wraps(method)
    def using(self: DataFrameWriterV2, provider: str) -> DataFrameWriterV2:
        if _is_ours(provider):
            raise AnalysisException(_UNREADABLE)
        return method(self, provider)

    return using


def _wrap_create_table(method: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    @wraps(method)
    def create_table(
        self: Catalog,
        tableName: str,
        path: str | None = None,
        source: str | None = None,
        schema: StructType | None = None,
        *args: Any,
        **options: Any,
    ) -> DataFrame:
        if _is_ours(source) and schema is not None:
            raise AnalysisException(_UNREADABLE)
        return method(self, tableName, path, source, schema, *args, **options)

    return create_table


def _wrap_sql(method: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    @wraps(method)
    def sql(self: SparkSession, sqlQuery: str, *args: Any, **kwargs: Any) -> DataFrame:
        text = _COMMENTS.sub(" ", sqlQuery)
        if _CREATE_WITH_COLUMNS.match(text):
            raise AnalysisException(_UNREADABLE)
        change = _ALTER_COLUMNS.match(text)
        if change and _has_our_provider(self, change["name"]):
            raise AnalysisException(
                f"Format {FORMAT}: ALTER TABLE changes columns of Spark's catalog, not those of the cube. "
                f"Use update_schema, then drop and create {change['name']}"
            )
        return method(self, sqlQuery, *args, **kwargs)

    return sql


def _has_our_provider(session: SparkSession, table: str) -> bool:
    """Whether a table of the catalog has the format; Spark explains what is wrong with other names."""
    namespace, _, name = table.rpartition(".")
    place = f"IN {namespace} " if namespace else ""
    try:
        rows = session.sql(f"SHOW TABLE EXTENDED {place}LIKE '{name.strip('`')}'").collect()
    except AnalysisException:
        return False
    return any(f"\nProvider: {FORMAT}\n" in row["information"] for row in rows)
