"""The model of the report page: all data that the template shows, and warnings with a command each."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.cli.charts import build_growth, build_heat_map, format_values
from kartothek_cube.cli.context import DEFAULT_RETENTION, is_internal_column, list_garbage_by_age
from kartothek_cube.cli.file_stats import DataFiles, collect_file_stats
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import format_count
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.store import Blob, BlobStore
from kartothek_cube.io_components.runtime import bytes_text

#: number of largest partitions to list
_N_LARGEST = 12


@attrs.frozen
class Index:
    """A secondary index; ``skipped`` is the percentage of files that ``== value`` skips on average."""

    column: str
    values: int
    files_per_value: float
    skipped: float


def build_page(
    cube: Cube, datasets: Mapping[str, DatasetMetadata], blobs: BlobStore, store: str, version: str
) -> dict[str, Any]:
    """Collect the data of the page from indices, footers and listings; ``store`` is its name in commands."""
    files = {name: collect_file_stats(cube, dataset, blobs) for name, dataset in datasets.items()}
    pages = [
        _describe_dataset(cube, name, datasets[name].load_all_indices(blobs), files[name], store)
        for name in cube.join_order(datasets)
    ]
    garbage, young = list_garbage_by_age(cube, blobs, DEFAULT_RETENTION)
    return {
        "cube": cube,
        "store": store,
        "time": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "version": version,
        "files": sum(map(len, files.values())),
        "partitions": sum(each.n_partitions for each in files.values()),
        "bytes": sum(int(each.sizes.sum()) for each in files.values()),
        "rows": sum(int(each.rows.sum()) for each in files.values()),
        "estimated": any(each.estimated for each in files.values()),
        "growth": build_growth(files),
        "datasets": pages,
        "advice": list(_warn_garbage(cube, garbage, store)),
        "young_garbage": _describe_files(young) if young else "",
    }


def _describe_files(blobs: Sequence[Blob]) -> str:
    size = bytes_text(sum(blob.size or 0 for blob in blobs))
    return f"{format_count(len(blobs), 'orphaned file')} ({size})"


def _describe_dataset(
    cube: Cube, name: str, dataset: DatasetMetadata, files: DataFiles, store: str
) -> dict[str, Any]:
    """Collect figures, charts and tables of a dataset."""
    is_seed = name == cube.seed_dataset
    indices = list(_measure_indices(dataset, len(files)))
    return {
        "name": name,
        "role": "seed" if is_seed else "",
        "partition_keys": dataset.partition_keys,
        "partitions": files.n_partitions,
        "files": len(files),
        "bytes": int(files.sizes.sum()),
        "rows": int(files.rows.sum()),
        "superseded": files.superseded,
        "estimated": files.estimated,
        "heat": build_heat_map(files),
        "largest": _largest_partitions(files),
        "columns": _describe_columns(cube, dataset, files),
        "indices": indices,
        "advice": [
            *advise(name, files, store, cube.uuid_prefix, is_seed=is_seed),
            *_warn_useless_indices(cube, name, indices, len(files)),
        ],
    }


def _largest_partitions(files: DataFiles) -> list[tuple[str, int, int, int]]:
    """List the largest partitions: name, files, bytes, rows."""
    sizes, rows = files.per_partition(files.sizes), files.per_partition(files.rows)
    counts = files.per_partition(np.ones(len(files), np.int64))
    order = np.argsort(-sizes, kind="stable")[:_N_LARGEST]
    first = pa.array(np.unique(files.partition, return_index=True)[1][order])
    keys = [
        [f"{key}={text}" for text in format_values(values.take(first))] for key, values in files.keys.items()
    ]
    names = [" / ".join(parts) for parts in zip(*keys, strict=True)] or ["(not partitioned)"] * len(order)
    columns = (numbers[order].tolist() for numbers in (counts, sizes, rows))
    return list(zip(names, *columns, strict=True))


def _describe_columns(cube: Cube, dataset: DatasetMetadata, files: DataFiles) -> Iterator[dict[str, Any]]:
    """Describe columns; the share is the percentage of the bytes, None for keys, which are not in files."""
    total = sum(files.column_bytes.values()) or 1
    for field in arrow_schema(dataset):
        name = field.name
        is_key, is_dimension = name in dataset.partition_keys, name in cube.dimension_columns
        if not is_internal_column(name):
            yield {
                "name": name,
                "type": field.type,
                "role": "dimension" if is_dimension else "partition key" if is_key else "payload",
                "indexed": "in labels" if is_key else "index" if name in dataset.indices else "",
                "share": None if is_key else 100 * files.column_bytes.get(name, 0) / total,
            }


def _measure_indices(dataset: DatasetMetadata, n_files: int) -> Iterator[Index]:
    for column, index in sorted(dataset.indices.items()):
        data = index.columns_data
        if isinstance(index, ExplicitSecondaryIndex) and data is not None and len(data.values) and n_files:
            mean = len(data.codes) / len(data.values)
            yield Index(column, len(data.values), mean, 100 * (1 - mean / n_files))


# -- warnings --------------------------------------------------------------------------------------

#: bytes; smaller files cost more to open than to read
_SMALL_FILE = 1 << 20
#: a partition is skewed if it has more than this many times the bytes of the median
_SKEW_FACTOR = 8
#: percentage of files; an index that skips fewer of them is useless
_MIN_SKIPPED = 1.0
#: minimum number of partitions for warnings about their sizes
_MIN_PARTITIONS = 8


@attrs.frozen
class Advice:
    """A warning: problem, explanation with figures, and the command that solves it."""

    title: str
    text: str
    command: str
    #: of the command: ``shell`` or ``python``
    language: str = "shell"


def _shell_command(store: str, cube: str, *arguments: str) -> str:
    """Return a command line, quoted for the shell."""
    return shlex.join(["kartothek_cube", "--store", store, cube, *arguments])


def _warn_garbage(cube: Cube, garbage: Sequence[Blob], store: str) -> Iterator[Advice]:
    if garbage:
        yield Advice(
            f"Garbage: {_describe_files(garbage)}",
            "Overwrites, removals or failed writes have left them in the store for more than 24 hours.",
            _shell_command(store, cube.uuid_prefix, "cleanup"),
        )


def advise(name: str, files: DataFiles, store: str, cube: str, *, is_seed: bool) -> Iterator[Advice]:
    """Warn about partitions with several files, skewed partitions and small partitions of a dataset."""
    counts = np.bincount(files.partition)
    if (counts > 1).any():
        yield _describe_several_files(
            files, counts, _shell_command(store, cube, "compact", "--include", name)
        )
    if len(counts) < _MIN_PARTITIONS:
        return
    sizes = files.per_partition(files.sizes)
    rebuild = _rebuild_command(name, files, is_seed)
    if sizes.max() > _SKEW_FACTOR * max(np.median(sizes), 1.0) and sizes.max() >= _SMALL_FILE:
        yield _describe_skew(files, sizes, rebuild)
    mean = float(sizes.mean())
    if mean < _SMALL_FILE / 4 and len(sizes) >= 4 * _MIN_PARTITIONS:
        yield Advice(
            f"Small partitions: {len(sizes):,} partitions of {bytes_text(mean)} on average",
            "Opening files takes longer than reading them. "
            "Partition by fewer or coarser columns, and index the other ones.",
            rebuild,
            "python",
        )


def _describe_several_files(files: DataFiles, counts: np.ndarray, command: str) -> Advice:
    several = counts[files.partition] > 1
    mean = float(files.sizes[several].mean())
    n_partitions = int((counts > 1).sum())
    small = "Small files: " if mean < _SMALL_FILE else ""
    return Advice(
        f"{small}{n_partitions:,} of {len(counts):,} partitions {'has' if n_partitions == 1 else 'have'} "
        "several files",
        f"{int(several.sum()):,} files of {bytes_text(mean)} on average, up to {int(counts.max()):,} in a "
        "partition. Every query opens all of them and filters superseded rows.",
        command,
    )


def _describe_skew(files: DataFiles, sizes: np.ndarray, command: str) -> Advice:
    median = float(np.median(sizes))
    number = int((sizes > _SKEW_FACTOR * median).sum())
    at = int(np.flatnonzero(files.partition == int(np.argmax(sizes)))[0])
    keys = ", ".join(f"{key}={values[at].as_py()}" for key, values in files.keys.items())
    return Advice(
        f"Skew: {format_count(number, 'partition')} more than {_SKEW_FACTOR} times as large as the median",
        f"{keys} has {bytes_text(int(sizes.max()))}, the median is {bytes_text(median)}. "
        "The largest partition delays the whole job. Partition by one more column.",
        command,
        "python",
    )


def _warn_useless_indices(cube: Cube, name: str, indices: Iterable[Index], n_files: int) -> Iterator[Advice]:
    """Warn about indices whose values are in all files, so that conditions on them skip none."""
    useless = [index for index in indices if n_files > 1 and index.skipped < _MIN_SKIPPED]
    if not useless:
        return
    columns = {index.column for index in useless}
    changes = []
    if columns & set(cube.dimension_columns):
        suppressed = sorted(set(cube.suppress_index_on) | columns & set(cube.dimension_columns))
        changes.append(f"suppress_index_on={suppressed}")
    if columns & set(cube.index_columns):
        changes.append(f"index_columns={sorted(set(cube.index_columns) - columns)}")
    copied = f"cube.copy({', '.join(changes)})"
    if name == cube.seed_dataset:
        command = f"build_cube(data, {copied}, store, overwrite=True)"
    else:
        command = f"extend_cube({{{name!r}: frame}}, {copied}, store, overwrite=True)"
    verb = "skips" if len(useless) == 1 else "skip"
    yield Advice(
        f"{format_count(len(useless), 'index', 'indices')} {verb} no files: {', '.join(sorted(columns))}",
        "Each value is in nearly all files, so conditions on these columns open all of them, and each "
        "commit writes the indices. Partition by these columns, or leave the indices out.",
        command,
        "python",
    )


def _rebuild_command(name: str, files: DataFiles, is_seed: bool) -> str:
    if is_seed:
        return "build_cube(data, cube.copy(partition_columns=[...]), store, overwrite=True)"
    return (
        f"extend_cube({{{name!r}: frame}}, cube, store, overwrite=True, "
        f"partition_on={{{name!r}: [...]}})  # currently {list(files.keys)}"
    )
