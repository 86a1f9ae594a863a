"""Run a case of the golden data: datasets and cubes that kartothek 5.3 wrote, and what reading them gives.

tests/data/golden/README.md describes the cases; `check` runs one and says what differs.
"""

import datetime
import functools
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.api import cube as api
from kartothek_cube.api.discover import discover_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.schema import read_schema_metadata
from kartothek_cube.io import eager
from tests.support.paths import DATA
from tests.support.predicates import COMPARE
from tests.support.values import compare_frames, compare_json, decode, encode

ROOT = DATA / "golden"
CASES: list[dict[str, Any]] = json.loads((ROOT / "manifest.json").read_text(encoding="utf-8"))["cases"]

#: a frame per table of a dataset, for each partition or group
Frames = list[dict[str, pd.DataFrame]]


def check(case: Mapping[str, Any]) -> str | None:
    if case["expect"]["kind"] == "error":
        return _check_error(case)
    actual = execute(case)
    reasons = [compare(actual, expect) for expect in (case["expect"], *case.get("also_accepted", ()))]
    return None if None in reasons else reasons[0]


def _check_error(case: Mapping[str, Any]) -> str | None:
    try:
        execute(case)
    except (ImportError, AttributeError):
        raise  # the code under test is broken, whatever the case expects
    except Exception as exc:
        names = {cls.__name__ for cls in type(exc).__mro__}
        if names & set(case["expect"]["any_of"]):
            return None
        raise
    return f"raised nothing instead of {case['expect']['any_of']}"


def execute(case: Mapping[str, Any]) -> Any:
    store = "hfs://" + quote(str(ROOT / case["store"]))
    return OPERATIONS[case["operation"]](store, case, decode(case["args"]))


def compare(actual: Any, expect: Mapping[str, Any]) -> str | None:
    if expect["kind"] == "json":
        return compare_json(actual, json.loads((ROOT / expect["file"]).read_text(encoding="utf-8")))
    categorical = expect.get("categorical", ())
    expected = [{table: _read(name, categorical) for table, name in item.items()} for item in expect["files"]]
    if select := expect.get("select_columns"):
        actual = [{table: frame[select] for table, frame in item.items()} for item in actual]
    if len(actual) != len(expected):
        return f"{len(actual)} frames instead of {len(expected)}"
    order = {name: expect[name] for name in ("row_order", "column_order")}
    same = functools.partial(_compare_tables, **order)
    return _compare_all(actual, expected, same, in_order=expect["frame_order"])


def _compare_tables(got: Any, exp: Any, **order: bool) -> str | None:
    if sorted(got) != sorted(exp):
        return f"tables are {sorted(got)} instead of {sorted(exp)}"
    reasons = ((table, compare_frames(got[table], exp[table], **order)) for table in sorted(exp))
    return next((f"table {table!r}: {why}" for table, why in reasons if why), None)


def _compare_all(
    actual: Frames, expected: Frames, same: Callable[..., str | None], *, in_order: bool
) -> str | None:
    todo = list(actual)
    for i, exp in enumerate(expected):
        reasons = [same(got, exp) for got in (todo[:1] if in_order else todo)]
        if None not in reasons:
            return f"frame {i}: {reasons[0]}"
        del todo[reasons.index(None)]
    return None


def _read(name: str, categorical: Any) -> pd.DataFrame:
    table = pq.read_table(ROOT / name)
    df = table.to_pandas()
    for field in table.schema:
        if pa.types.is_integer(field.type) and table[field.name].null_count:
            # integers stay exact, also next to missing values
            df[field.name] = pd.Series(table[field.name].to_pylist(), dtype=object)
    return df.astype({column: "category" for column in categorical if column in df})


def type_name(dtype: pa.DataType) -> str:
    """Name of an Arrow type without the unit of timestamps and the width of offsets."""
    t = pa.types
    if t.is_timestamp(dtype):
        return "timestamp" if dtype.tz is None else f"timestamp, tz={dtype.tz}"
    if t.is_list(dtype) or t.is_large_list(dtype):
        return f"list<{type_name(dtype.value_type)}>"
    if t.is_dictionary(dtype):
        return f"dictionary<{type_name(dtype.value_type)}>"
    if t.is_floating(dtype):
        return f"float{dtype.bit_width}"
    if t.is_decimal(dtype):
        return f"decimal({dtype.precision}, {dtype.scale})"
    if t.is_date(dtype):
        return "date"
    return str(dtype).removeprefix("large_")


# what an operation calls -----------------------------------------------------------------------------------

CONDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    **COMPARE,
    "in": lambda column, values: column.isin(values),
    "in_interval": lambda column, interval: column.in_interval(*interval),
}


def _conditions(triples: Any) -> Any:
    conditions = [CONDITIONS[op](api.C(column), value) for column, op, value in triples or ()]
    return functools.reduce(operator.and_, conditions) if conditions else None


def _load(case: Mapping[str, Any], store: str, *, indices: bool = True) -> DatasetMetadata:
    return DatasetMetadata.load_from_store(case["dataset_uuid"], store, load_all_indices=indices)


def _with_predicates(args: dict[str, Any]) -> dict[str, Any]:
    if args.get("predicates") is not None:
        args["predicates"] = [[tuple(literal) for literal in conj] for conj in args["predicates"]]
    return args


def _read_table(store: str, case: Mapping[str, Any], args: dict[str, Any]) -> Frames:
    if "table" in args:
        args["table_name"] = args.pop("table")
    return [{"table": eager.read_table(case["dataset_uuid"], store, **_with_predicates(args))}]


def _read_dataset_as_dataframes(store: str, case: Mapping[str, Any], args: dict[str, Any]) -> Frames:
    """Frames of each table, one call per table; ``columns`` may be given per table."""
    columns = args.pop("columns", None)
    args.pop("tables", None)
    tables = sorted({table for item in case["expect"].get("files", ()) for table in item}) or ["table"]
    frames = [
        eager.read_dataset_as_dataframes(
            case["dataset_uuid"],
            store,
            columns=columns.get(table) if isinstance(columns, dict) else columns,
            **_with_predicates(dict(args)),
            **({} if table == "table" else {"table_name": table}),
        )
        for table in tables
    ]
    return [dict(zip(tables, group)) for group in zip(*frames, strict=True)]


def _query_cube(store: str, case: Mapping[str, Any], args: dict[str, Any]) -> Frames:
    args["conditions"] = _conditions(args.get("conditions"))
    return [{"table": frame} for frame in api.query_cube(api.Cube(**case["cube"]), store, **args)]


def _discover_cube(store: str, case: Mapping[str, Any], args: dict[str, Any]) -> Any:
    cube, datasets = discover_cube(args["uuid_prefix"], store)
    return {
        "cube": {
            "dimension_columns": list(cube.dimension_columns),
            "partition_columns": list(cube.partition_columns),
            "uuid_prefix": cube.uuid_prefix,
            "seed_dataset": cube.seed_dataset,
            "index_columns": sorted(cube.index_columns),
            "suppress_index_on": sorted(cube.suppress_index_on),
        },
        "datasets": sorted(datasets),
    }


def _dataset_metadata(store: str, case: Mapping[str, Any], args: dict[str, Any]) -> Any:
    ds = _load(case, store, indices=False)
    dct = ds.to_dict()
    return {
        "dataset_uuid": dct["dataset_uuid"],
        "dataset_metadata_version": dct["dataset_metadata_version"],
        "metadata": encode(dict(ds.metadata)),
        "explicit_partitions": bool(ds.explicit_partitions),
        "partition_keys": list(ds.partition_keys),
        "partitions": [[label, dict(part["files"])] for label, part in dct.get("partitions", {}).items()],
        "secondary_indices": {k: v for k, v in dct.get("indices", {}).items() if isinstance(v, str)},
        "index_columns": sorted(ds.index_columns),
        "tables": sorted(ds.tables),
        "schema": {table: _schema(ds, table, store) for table in sorted(ds.tables)},
    }


def _schema(ds: Any, table: str, store: str) -> list[list[str]]:
    schema = ds.schema if len(ds.tables) == 1 else read_schema_metadata(ds.uuid, store, table)
    return [[name, type_name(schema.field(name).type)] for name in schema.names]


def _indices(store: str, case: Mapping[str, Any], args: dict[str, Any]) -> Any:
    ds = _load(case, store)
    columns = args.get("columns") or sorted(ds.indices)
    return {column: _index(ds.indices[column]) for column in columns}


def _index(index: Any) -> dict[str, Any]:
    kind = type_name(index.dtype)
    items = []
    for value, labels in index.index_dct.items():
        if kind == "date" and not isinstance(value, datetime.date):
            value = pd.Timestamp(value).date()
        items.append([encode(value), sorted(labels)])
    return {"type": kind, "values": sorted(items, key=lambda item: json.dumps(item, sort_keys=True))}


def _indices_as_dataframe(store: str, case: Mapping[str, Any], args: dict[str, Any]) -> Frames:
    frame = _load(case, store).get_indices_as_dataframe(**_with_predicates(args))
    return [{"table": frame.rename_axis(index="partition").reset_index()}]


OPERATIONS: dict[str, Callable[[str, Mapping[str, Any], dict[str, Any]], Any]] = {
    "query_cube": _query_cube,
    "collect_stats": lambda store, case, args: encode(
        api.collect_stats(api.Cube(**case["cube"]), store, **args)
    ),
    "discover_cube": _discover_cube,
    "dataset_metadata": _dataset_metadata,
    "indices": _indices,
    "indices_as_dataframe": _indices_as_dataframe,
    "query_partitions": lambda store, case, args: sorted(_load(case, store).query(**args["values"])),
    "storage_keys": lambda store, case, _: sorted(DatasetMetadata.storage_keys(case["dataset_uuid"], store)),
    "exists": lambda store, case, _: DatasetMetadata.exists(case["dataset_uuid"], store),
    "read_table": _read_table,
    "read_dataset_as_dataframes": _read_dataset_as_dataframes,
}
