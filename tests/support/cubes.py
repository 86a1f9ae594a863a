"""Small cubes for the tests, and a look into what is stored without the code under test."""

import json
import re
from contextlib import contextmanager

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from storefact import get_store_from_url

from kartothek_cube.api import cube as api
from kartothek_cube.core.errors import MultiTableCommitAborted
from kartothek_cube.core.header import COMMIT_RECORD

CUBE = api.Cube(dimension_columns=["x"], partition_columns=["p"], uuid_prefix="cube")
HEADER = ".by-dataset-metadata."
#: words of the library's code, and names of its files, which tell users nothing
INTERNAL = re.compile(
    r"NoneType|pyarrow\.lib|ChangeSet|BlobStore|_plan|__\w|ktk_|\bkeys\(|object at 0x|_common_metadata|"
    r"SchemaWrapper|\(s\)"
)


def frame(**columns) -> pd.DataFrame:
    """Give a frame of these columns, in this order."""
    return pd.DataFrame(columns)


#: two partitions of one cell each
SEED = frame(x=[0, 1], p=[0, 1], v1=[10, 11])
ENRICH = frame(x=[0, 1], p=[0, 1], v2=[20, 21])
BOTH = {"seed": SEED, "enrich": ENRICH}


def build(store_factory, cube: api.Cube = CUBE, partition_on: dict | None = None, **datasets) -> None:
    """Build a cube, eagerly; a dataset is partitioned by those partition columns of the cube that it has."""
    own = {id_: [column for column in cube.partition_columns if column in df] for id_, df in datasets.items()}
    api.build_cube(datasets, cube, store_factory, partition_on={**own, **(partition_on or {})})


def as_dict(df: pd.DataFrame) -> dict[str, list]:
    """Give the columns of a frame as lists; every kind of missing value is None."""
    return {name: [None if _is_missing(v) else v for v in df[name].tolist()] for name in df.columns}


def _is_missing(value: object) -> bool:
    # of a list, pandas tells it for each element
    return not hasattr(value, "__len__") and bool(pd.isna(value))


def matching(driver, store, conditions, cube=CUBE, column="x"):
    """Give the values of a dimension of the cells that match, without asking for any payload."""
    found = rows(driver.query_cube(cube=cube, store=store, conditions=conditions, payload_columns=[]))
    return found[column] if found else []


def rows(frames: list[pd.DataFrame]) -> dict[str, list] | None:
    """Give the columns of the only frame of a query without ``partition_by``; None if there are no rows."""
    assert len(frames) <= 1
    return as_dict(frames[0]) if frames else None


def groups(frames: list[pd.DataFrame]) -> list[dict[str, list]]:
    return [as_dict(df) for df in frames]


def memory():
    """Give a new memory store that takes keys with ``=`` and ``%``."""
    return get_store_from_url("hmemory://")


def filled(content: dict[str, bytes]):
    store = memory()
    for key, data in content.items():
        store.put(key, data)
    return store


# what is in the store ----------------------------------------------------------------------------


def snapshot(store_factory) -> dict[str, bytes]:
    store = store_factory()
    return {key: store.get(key) for key in store.keys()}


def without_commit_ids(content: dict[str, bytes]) -> dict[str, object]:
    """A snapshot in which headers are the same that only differ by ids of commits and operations."""
    return {key: _header_without_id(data) if HEADER in key else data for key, data in content.items()}


def _header_without_id(data: bytes) -> dict:
    header = json.loads(data)
    record = header.get(COMMIT_RECORD, {})
    header[COMMIT_RECORD] = {"schema": record["schema"]} if "schema" in record else {}
    return header


def keys(store_factory) -> set[str]:
    return set(store_factory().keys())


def header(store_factory, uuid: str) -> dict:
    return json.loads(store_factory().get(f"{uuid}{HEADER}json"))


def edit_header(store_factory, uuid: str, change) -> None:
    """Let a function change the parsed header of a dataset, and store it."""
    content = header(store_factory, uuid)
    change(content)
    store_factory().put(f"{uuid}{HEADER}json", json.dumps(content).encode())


def read_parquet(store_factory, key: str) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(store_factory().get(key)))


def parquet_bytes(table: pa.Table, **options) -> bytes:
    """Give a table as a Parquet file of another program."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def file_keys(store_factory, uuid: str) -> dict[str, str]:
    """Give the key of the file of each partition, in the order of the header."""
    partitions = header(store_factory, uuid)["partitions"]
    return {label: part["files"]["table"] for label, part in partitions.items()}


def files(store_factory, uuid: str) -> dict[str, dict[str, list]]:
    """Give the columns that are in the file of each partition, in the order of the header."""
    keys = file_keys(store_factory, uuid)
    return {label: read_parquet(store_factory, key).read().to_pydict() for label, key in keys.items()}


def file_contents(store_factory, uuid: str) -> list[dict[str, list]]:
    """Give the columns of all files of a dataset without the labels, in the order of the header."""
    return list(files(store_factory, uuid).values())


def index(store_factory, uuid: str, column: str) -> dict[object, list[str]]:
    """Give the content of a secondary index: value -> sorted labels."""
    table = read_parquet(store_factory, header(store_factory, uuid)["indices"][column]).read().to_pydict()
    return {value: sorted(labels) for value, labels in zip(table[column], table["partition"])}


def index_of_files(store_factory, uuid: str, column: str) -> dict[object, list[str]]:
    """Give the index that fits the data files: what `index` has to give."""
    found: dict[object, set[str]] = {}
    for label, content in files(store_factory, uuid).items():
        for value in content[column]:
            if value is not None:
                found.setdefault(value, set()).add(label)
    return {value: sorted(labels) for value, labels in found.items()}


def index_columns(store_factory, uuid: str) -> set[str]:
    return set(header(store_factory, uuid).get("indices", {}))


def dataset_ids(store_factory, cube: api.Cube = CUBE) -> set[str]:
    """Give the ids of the datasets of a cube that have a header."""
    start = cube.uuid_prefix + "++"
    headers = [key for key in keys(store_factory) if key.startswith(start) and HEADER in key]
    return {key[len(start) :].split(".")[0] for key in headers}


def check_integrity(store_factory, cube: api.Cube = CUBE) -> None:
    for id_ in dataset_ids(store_factory, cube):
        check_dataset(store_factory, f"{cube.uuid_prefix}++{id_}")


def check_dataset(store_factory, uuid: str = "u") -> None:
    """Fail unless every file that the header names exists and every secondary index fits the data files."""
    content = header(store_factory, uuid)
    files = [file for part in content["partitions"].values() for file in part["files"].items()]
    schemas = {f"{uuid}/{table}/_common_metadata" for table in {table for table, _ in files} or {"table"}}
    named = {key for _, key in files} | schemas
    assert named | set(content.get("indices", {}).values()) <= keys(store_factory)
    for column in content.get("indices", {}):
        assert index(store_factory, uuid, column) == index_of_files(store_factory, uuid, column)


# what must not happen ----------------------------------------------------------------------------


@contextmanager
def unchanged(store_factory, garbage: bool = False):
    """Fail if the block changes a store; with ``garbage``, files and ids of commits, but no states."""
    before = snapshot(store_factory)
    yield
    after = snapshot(store_factory)
    if garbage:
        kept = {key: data for key, data in after.items() if key in before or HEADER in key}
        before, after = (dict(zip(s, map(without_id, s, s.values()), strict=True)) for s in (before, kept))
    assert after == before


def without_id(key: str, content: bytes) -> object:
    """A header without the id of its commit, which a failed put changes on remote stores."""
    if not key.endswith(f"{HEADER}json"):
        return content
    parsed = json.loads(content)
    parsed.get("kartothek_cube", {}).pop("commit", None)
    return parsed


@contextmanager
def refuses(store_factory, exception: type[BaseException], *fragments: str, garbage: bool = False):
    """Fail unless the block raises, with these fragments in the message, and leaves the store as it was."""
    with unchanged(store_factory, garbage=garbage):
        with pytest.raises(exception) as caught:
            yield
    check_message(caught.value, fragments)


def wrong(*fragments: str, error: type[BaseException] = ValueError, **arguments):
    """Give what `refuses` expects of a call with these arguments, and the arguments: a line of a table."""
    return (error, *fragments), arguments


@contextmanager
def aborts(store_factory, *fragments: str):
    """Fail unless the block is rolled back because of a ValueError with these fragments in its message."""
    with unchanged(store_factory, garbage=True):
        with pytest.raises(MultiTableCommitAborted) as caught:
            yield
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, ValueError)
    check_message(caught.value.__cause__, fragments)


def check_message(error: BaseException, fragments: tuple[str, ...]) -> None:
    assert [part for part in fragments if part not in str(error)] == [], str(error)
