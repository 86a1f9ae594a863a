"""The model of the report page: all data that the template shows, and warnings with a command each."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.cli.charts import Growth, HeatMap, build_growth, build_heat_map, format_values
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
class Column:
    """A column; ``share`` is its percentage of the bytes of the dataset, None if it is not in the files."""

    name: str
    type: str
    role: str
    indexed: str
    share: float | None


@attrs.frozen
class Index:
    """A secondary index; ``skipped`` is the percentage of files that ``== value`` skips on average."""

    column: str
    values: int
    files_per_value: float
    skipped: float


@attrs.frozen
class DatasetPage:
    """The section of a dataset: figures, charts and tables."""

    name: str
    role: str
    uuid: str
    partition_keys: tuple[str, ...]
    partitions: int
    files: int
    size: str
    rows: int
    superseded: int
    estimated: bool
    heat: HeatMap | None
    largest: tuple[tuple[str, int, str, int], ...]
    columns: tuple[Column, ...]
    indices: tuple[Index, ...]
    advice: tuple[Advice, ...]


@attrs.frozen
class Page:
    """The complete page."""

    cube: Cube
    store: str
    time: str
    version: str
    files: int
    partitions: int
    size: str
    rows: int
    estimated: bool
    growth: Growth | None
    datasets: tuple[DatasetPage, ...]
    advice: tuple[Advice, ...]
    #: orphaned files that are too young to be deleted, formatted; empty if there are none
    young_garbage: str


def build_page(
    cube: Cube, datasets: Mapping[str, DatasetMetadata], blobs: BlobStore, store: str, version: str
) -> Page:
    """Collect the data of the page from indices, footers and listings; ``store`` is its name in commands."""
    files = {name: collect_file_stats(cube, dataset, blobs) for name, dataset in datasets.items()}
    pages = [
        _build_dataset_page(cube, name, datasets[name].load_all_indices(blobs), files[name], store)
        for name in cube.join_order(datasets)
    ]
    garbage, young = list_garbage_by_age(cube, blobs, DEFAULT_RETENTION)
    return Page(
        cube=cube,
        store=store,
        time=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=version,
        files=sum(page.files for page in pages),
        partitions=sum(page.partitions for page in pages),
        size=bytes_text(sum(int(f.sizes.sum()) for f in files.values())),
        rows=sum(page.rows for page in pages),
        estimated=any(page.estimated for page in pages),
        growth=build_growth(files),
        datasets=tuple(pages),
        advice=_warn_garbage(cube, garbage, store),
        young_garbage=_describe_files(young) if young else "",
    )


def _describe_files(blobs: Sequence[Blob]) -> str:
    return (
        f"{format_count(len(blobs), 'orphaned file')} ({bytes_text(sum(blob.size or 0 for blob in blobs))})"
    )


def _warn_garbage(cube: Cube, garbage: Sequence[Blob], store: str) -> tuple[Advice, ...]:
    if not garbage:
        return ()
    return (
        Advice(
            f"Garbage: {_describe_files(garbage)}",
            "Overwrites, removals or failed writes have left them in the store for more than 24 hours.",
            shell_command(store, cube.uuid_prefix, "cleanup"),
        ),
    )


def _build_dataset_page(
    cube: Cube, name: str, dataset: DatasetMetadata, files: DataFiles, store: str
) -> DatasetPage:
    is_seed = name == cube.seed_dataset
    indices = _indices(dataset, len(files))
    advice = advise(name, files, store, cube.uuid_prefix, is_seed=is_seed)
    return DatasetPage(
        name=name,
        role="seed" if is_seed else "",
        uuid=dataset.uuid,
        partition_keys=tuple(dataset.partition_keys),
        partitions=files.n_partitions,
        files=len(files),
        size=bytes_text(int(files.sizes.sum())),
        rows=int(files.rows.sum()),
        estimated=files.estimated,
        heat=build_heat_map(files),
        largest=_largest_partitions(files),
        columns=_columns(cube, dataset, files),
        superseded=files.superseded,
        indices=indices,
        advice=(*advice, *warn_useless_indices(cube, name, indices, len(files))),
    )


def _largest_partitions(files: DataFiles) -> tuple[tuple[str, int, str, int], ...]:
    """Return the largest partitions: name, files, bytes, rows."""
    if not len(files):
        return ()
    sizes, rows = files.per_partition(files.sizes), files.per_partition(files.rows)
    counts = np.bincount(files.partition, minlength=files.n_partitions)
    order = np.argsort(-sizes, kind="stable")[:_N_LARGEST]
    first = np.unique(files.partition, return_index=True)[1][order]
    names = _partition_names(files, first)
    return tuple(
        (label, int(counts[i]), bytes_text(int(sizes[i])), int(rows[i]))
        for label, i in zip(names, order.tolist(), strict=True)
    )


def _partition_names(files: DataFiles, at: npt.NDArray[np.int64]) -> list[str]:
    """Return the names of the partitions of the given files."""
    if not files.keys:
        return ["(not partitioned)"] * len(at)
    columns = [
        [f"{key}={text}" for text in format_values(values.take(pa.array(at)))]
        for key, values in files.keys.items()
    ]
    return [" / ".join(parts) for parts in zip(*columns, strict=True)]


def _columns(cube: Cube, dataset: DatasetMetadata, files: DataFiles) -> tuple[Column, ...]:
    total = sum(files.column_bytes.values()) or 1
    return tuple(
        Column(
            name=field.name,
            type=str(field.type),
            role=_role(cube, dataset, field.name),
            indexed=_index_kind(dataset, field.name),
            share=(
                None
                if field.name in dataset.partition_keys
                else 100 * files.column_bytes.get(field.name, 0) / total
            ),
        )
        for field in arrow_schema(dataset)
        if not is_internal_column(field.name)
    )


def _role(cube: Cube, dataset: DatasetMetadata, column: str) -> str:
    if column in cube.dimension_columns:
        return "dimension"
    if column in dataset.partition_keys:
        return "partition key"
    return "payload"


def _index_kind(dataset: DatasetMetadata, column: str) -> str:
    if column in dataset.partition_keys:
        return "in labels"
    return "index" if column in dataset.indices else ""


def _indices(dataset: DatasetMetadata, n_files: int) -> tuple[Index, ...]:
    result = []
    for column, index in sorted(dataset.indices.items()):
        data = index.columns_data
        if isinstance(index, ExplicitSecondaryIndex) and data is not None and len(data.values) and n_files:
            mean = len(data.codes) / len(data.values)
            result.append(Index(column, len(data.values), mean, 100 * (1 - mean / n_files)))
    return tuple(result)


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


def shell_command(store: str, cube: str, *arguments: str) -> str:
    """Return a command line, quoted for the shell."""
    return shlex.join(["kartothek_cube", "--store", store, cube, *arguments])


def advise(name: str, files: DataFiles, store: str, cube: str, *, is_seed: bool) -> list[Advice]:
    """Warn about partitions with several files, skewed partitions and small partitions of a dataset."""
    if not len(files):
        return []
    counts = np.bincount(files.partition)
    sizes = files.per_partition(files.sizes)
    warnings = [_warn_several_files(files, counts, shell_command(store, cube, "compact", "--include", name))]
    if len(sizes) >= _MIN_PARTITIONS:
        build = _rebuild_command(name, files, is_seed)
        warnings += [_warn_skew(files, sizes, build), _warn_small_partitions(counts, sizes, build)]
    return [advice for advice in warnings if advice is not None]


def _warn_several_files(files: DataFiles, counts: np.ndarray, command: str) -> Advice | None:
    several = counts[files.partition] > 1
    if not several.any():
        return None
    mean = float(files.sizes[several].mean())
    have = "has" if (counts > 1).sum() == 1 else "have"
    small = "Small files: " if mean < _SMALL_FILE else ""
    return Advice(
        f"{small}{int((counts > 1).sum()):,} of {len(counts):,} partitions {have} several files",
        f"{int(several.sum()):,} files of {bytes_text(mean)} on average, up to {int(counts.max()):,} in a "
        "partition. Every query opens all of them and filters superseded rows.",
        command,
    )


def _warn_skew(files: DataFiles, sizes: np.ndarray, build: str) -> Advice | None:
    median, largest = float(np.median(sizes)), int(sizes.max())
    if largest <= _SKEW_FACTOR * max(median, 1.0) or largest < _SMALL_FILE:
        return None
    number = int((sizes > _SKEW_FACTOR * median).sum())
    at = int(np.flatnonzero(files.partition == int(np.argmax(sizes)))[0])
    keys = ", ".join(f"{key}={values[at].as_py()}" for key, values in files.keys.items())
    return Advice(
        f"Skew: {format_count(number, 'partition')} more than {_SKEW_FACTOR} times as large as the median",
        f"{keys} has {bytes_text(largest)}, the median is {bytes_text(median)}. "
        "The largest partition delays the whole job. Partition by one more column.",
        build,
        "python",
    )


def _warn_small_partitions(counts: np.ndarray, sizes: np.ndarray, build: str) -> Advice | None:
    mean = float(sizes.mean())
    if mean >= _SMALL_FILE / 4 or len(sizes) < 4 * _MIN_PARTITIONS:
        return None
    return Advice(
        f"Small partitions: {len(sizes):,} partitions of {bytes_text(mean)} on average",
        "Opening files takes longer than reading them. "
        "Partition by fewer or coarser columns, and index the other ones.",
        build,
        "python",
    )


def warn_useless_indices(cube: Cube, name: str, indices: Iterable[Index], n_files: int) -> list[Advice]:
    """Warn about indices whose values are in all files, so that conditions on them skip none."""
    useless = [index for index in indices if n_files > 1 and index.skipped < _MIN_SKIPPED]
    if not useless:
        return []
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
    return [
        Advice(
            f"{format_count(len(useless), 'index', 'indices')} {verb} no files: {', '.join(sorted(columns))}",
            "Each value is in nearly all files, so conditions on these columns open all of them, and each "
            "commit writes the indices. Partition by these columns, or leave the indices out.",
            command,
            "python",
        )
    ]


def _rebuild_command(name: str, files: DataFiles, is_seed: bool) -> str:
    if is_seed:
        return "build_cube(data, cube.copy(partition_columns=[...]), store, overwrite=True)"
    return (
        f"extend_cube({{{name!r}: frame}}, cube, store, overwrite=True, "
        f"partition_on={{{name!r}: [...]}})  # currently {list(files.keys)}"
    )
