"""Queries whose rows are those of Parquet files: Spark reads them by itself, without Python."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.types as pat
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kartothek_cube.core.naming import quote
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io.spark._conversion import arrow_schema
from kartothek_cube.io.spark._session import changed_setting, column_functions, quote_column
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan
from kartothek_cube.io_components.scan import CHECK_PAGES, read_columns

#: files whose footers are read to learn their types; Spark lists them one by one
_MAX_FILES = 1000
#: characters of patterns in paths of Hadoop
_PATTERN = re.compile(r"[{}\[\]*?\\]")
#: partition values that Spark decodes as this library does: it takes escapes for characters, not for UTF-8
_VALUES: dict[pa.DataType, str] = {
    pa.string(): r"(?!__HIVE_DEFAULT_PARTITION__/)(?:[A-Za-z0-9_.~-]|%[2-7][0-9A-F])+",
    pa.int64(): r"-?[0-9]{1,19}",
    pa.date32(): r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
}
_PLAIN_TYPES = (pa.bool_(), pa.string(), pa.binary(), pa.date32())
_LISTING_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"


def find_obstacle(plan: PhysicalPlan, schema: StructType, session: SparkSession) -> str | None:
    """Why Spark cannot read the files of a query by itself, in the types of a schema; None if it can."""
    context, files = plan.context, plan.files[0]
    scan, blobs = files.scan, context.open_store()
    if len(context.scans) > 1 or context.join_filters:
        return "it joins datasets"
    if plan.is_empty:
        return "there is no file to read"
    if (files.count_files() > 1).any():
        return "partitions have several files, which may hold versions of a cell; compact the cube"
    if scan.mapping is not None:
        return "files are older than the schema"
    keys = files.storage_keys()
    if len(keys) > _MAX_FILES:
        return f"it reads more than {_MAX_FILES:,} files"
    if os.environ.get(CHECK_PAGES):
        return f"Spark does not check pages, as {CHECK_PAGES} says"
    if not files.has_derived_keys or len(set(keys)) < len(keys):
        return "files are not those of the dataset alone"
    if not blobs.is_local or blobs.local_path(keys[0]) is None:
        return "the store is no local directory"
    if _PATTERN.search(f"{blobs.local_path(keys[0])}"):
        return "Spark takes the path for a pattern"
    types = {name: scan.schema.field(name).type for name in scan.partition_keys}
    if not all(types[name] in _VALUES and _is_simple(name) for name in types):
        return "Spark reads other types of partition columns"
    folders = "".join(f"{name}={_VALUES[dtype]}/" for name, dtype in types.items())
    label = re.compile(
        rf"{re.escape(f'{scan.uuid}/{scan.table}/')}{folders}[A-Za-z0-9][A-Za-z0-9_.-]*\.parquet"
    )
    if not all(map(label.fullmatch, keys)):
        return "Spark reads other values of partition columns, or other files"
    is_case_sensitive = session.conf.get("spark.sql.caseSensitive", "false") == "true"
    return _find_other_types(blobs, keys, schema, types, is_case_sensitive=is_case_sensitive)


def _is_simple(name: str) -> bool:
    # Spark does not decode names
    return quote(name) == name and not name.startswith((".", "_"))


def _find_other_types(
    blobs: BlobStore,
    keys: Sequence[str],
    schema: StructType,
    partition_keys: Collection[str],
    *,
    is_case_sensitive: bool,
) -> str | None:
    fields = [field for field in arrow_schema(schema) if field.name not in partition_keys]
    for key in keys:
        columns = read_columns(blobs, key)
        types = dict(zip(columns.names, columns.types, strict=True))
        for field in fields:
            if field.name not in types or not _is_readable(types[field.name], field.type):
                return f"Spark reads other types of column {field.name}"
        names = {*types, *partition_keys}
        if not is_case_sensitive and len({name.lower() for name in names}) < len(names):
            return "columns differ in upper and lower case only"
    return None


def _is_readable(stored: pa.DataType, target: pa.DataType) -> bool:
    """Whether Spark reads exact values of a type out of files."""
    if pat.is_dictionary(stored):
        stored = stored.value_type
    if pat.is_timestamp(stored) and pat.is_timestamp(target):
        return stored.unit in ("ms", "us") and (stored.tz is None) == (target.tz is None)
    for kind in (pat.is_signed_integer, pat.is_floating):
        if kind(stored) and kind(target):
            return not pat.is_float16(stored) and bool(stored.bit_width <= target.bit_width)
    if pat.is_large_string(stored) or pat.is_large_binary(stored):
        stored = pa.string() if pat.is_large_string(stored) else pa.binary()
    return stored in _PLAIN_TYPES and bool(stored.equals(target))


def scan_parquet(plan: PhysicalPlan, schema: StructType, session: SparkSession) -> DataFrame:
    """The rows of a query without obstacles, as Spark reads its files."""
    blobs, files = plan.context.open_store(), plan.files[0]
    scan = files.scan
    paths = [f"file://{os.path.abspath(str(blobs.local_path(key)))}" for key in files.storage_keys()]
    root = paths[0][: paths[0].rindex(f"/{scan.uuid}/{scan.table}/")]
    reader = session.read.schema(schema).options(
        basePath=f"{root}/{scan.uuid}/{scan.table}",
        # what sessions may have set: all files count, and days are those of the Gregorian calendar
        datetimeRebaseMode="CORRECTED",
        ignoreMissingFiles="false",
        ignoreCorruptFiles="false",
    )
    with changed_setting(session, _LISTING_THRESHOLD, str(_MAX_FILES)):
        df = reader.parquet(*paths)
    f = column_functions(df)
    columns = []
    for field in arrow_schema(schema):
        column = f.col(quote_column(field.name))
        if pat.is_floating(field.type):
            column = f.nanvl(column, f.lit(None).cast(schema[field.name].dataType)).alias(field.name)
        columns.append(column)
    return df.select(*columns)
