"""The report page: partitions, growth, columns, index selectivity, and warnings with a command each."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartothek_cube.cli import context, output
from kartothek_cube.core import errors, partition, tuning
from kartothek_cube.core.arrow import Ints
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import format_count
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.store import Blob, BlobStore
from kartothek_cube.io_components import kernels, runtime, scan
from kartothek_cube.io_components.runtime import bytes_text
from kartothek_cube.serialization.parquet import read_footer

Floats: TypeAlias = npt.NDArray[np.float64]
Keys: TypeAlias = Mapping[str, pa.Array]

#: number of largest partitions to list
_N_LARGEST = 12
#: number of footers from which the bytes per column are derived
_COLUMN_SAMPLE = 200
#: files that are missing or damaged have no rows; `verify` reports them
_DAMAGED = (errors.MissingFileError, errors.CorruptDatasetError)


def render(page: dict[str, Any]) -> str:
    """Render the page as HTML; all text from the store is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kartothek_cube.cli"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"thousands": "{:,}".format, "bytes": bytes_text, "format_count": format_count}
    return environment.get_template("report.html").render(page=page)


def build_page(
    cube: Cube, datasets: Mapping[str, DatasetMetadata], blobs: BlobStore, store: str
) -> dict[str, Any]:
    """Collect the data of the page from indices, footers and listings; ``store`` is its name in commands."""
    files = {name: collect_file_stats(cube, dataset, blobs) for name, dataset in datasets.items()}
    pages = [
        _describe_dataset(cube, name, datasets[name].load_all_indices(blobs), files[name], store)
        for name in cube.join_order(datasets)
    ]
    garbage, young = context.list_garbage_by_age(cube, blobs, context.DEFAULT_RETENTION)
    advice = Advice(
        f"Garbage: {context.describe_garbage(garbage)}",
        "Overwrites, removals or failed writes have left them in the store for more than 24 hours.",
        _shell_command(store, cube.uuid_prefix, "cleanup"),
    )
    return {
        "cube": cube,
        "store": store,
        "time": _format_time(datetime.now(UTC).timestamp()),
        "version": version("kartothek_cube"),
        **{key: sum(page[key] for page in pages) for key in ("files", "partitions", "bytes", "rows")},
        "growth": build_growth(files),
        "datasets": pages,
        "advice": [advice] if garbage else [],
        "young_garbage": context.describe_garbage(young) if young else "",
    }


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
    order = np.argsort(-sizes, kind="stable")[:_N_LARGEST]
    first = pa.array(np.unique(files.partition, return_index=True)[1][order])
    shown = {key: _format_values(values.take(first)) for key, values in files.keys.items()}
    keys = [[f"{key}={text}" for text in texts] for key, texts in shown.items()]
    names = [" / ".join(parts) for parts in zip(*keys, strict=True)] or ["(not partitioned)"] * len(order)
    columns = (numbers[order].tolist() for numbers in (np.bincount(files.partition), sizes, rows))
    return list(zip(names, *columns, strict=True))


def _describe_columns(cube: Cube, dataset: DatasetMetadata, files: DataFiles) -> Iterator[dict[str, Any]]:
    """Describe columns; the share is the percentage of the bytes, None for keys, which are not in files."""
    total = sum(files.column_bytes.values()) or 1
    for field in arrow_schema(dataset):
        name = field.name
        is_key, is_dimension = name in dataset.partition_keys, name in cube.dimension_columns
        if not context.is_internal_column(name):
            yield {
                "name": name,
                "type": field.type,
                "role": "dimension" if is_dimension else "partition key" if is_key else "payload",
                "indexed": "in labels" if is_key else "index" if name in dataset.indices else "",
                "share": None if is_key else 100 * files.column_bytes.get(name, 0) / total,
            }


class Index(NamedTuple):
    """A secondary index; ``skipped`` is the percentage of files that ``== value`` skips on average."""

    column: str
    values: int
    files_per_value: float
    skipped: float


def _measure_indices(dataset: DatasetMetadata, n_files: int) -> Iterator[Index]:
    for column, index in sorted(dataset.indices.items()):
        data = index.columns_data
        if isinstance(index, ExplicitSecondaryIndex) and data is not None and len(data.values) and n_files:
            mean = len(data.codes) / len(data.values)
            yield Index(column, len(data.values), mean, 100 * (1 - mean / n_files))


# -- data files --------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class DataFiles:
    """The data files of a dataset in commit order; all arrays have one element per file."""

    #: typed values of the partition keys
    keys: Keys
    #: ids of the physical partitions
    partition: Ints
    #: bytes
    sizes: Ints
    #: numbers of visible rows, which no later file supersedes
    rows: Ints
    #: modification times in seconds since 1970; NaN if unknown to the store
    times: Floats
    #: compressed bytes of each column in a sample of the files
    column_bytes: Mapping[str, int]
    #: number of superseded rows
    superseded: int = 0

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def n_partitions(self) -> int:
        """Number of physical partitions."""
        return int(self.partition.max(initial=-1)) + 1

    def per_partition(self, values: Ints) -> Ints:
        """Sum values over the files of each physical partition."""
        return np.bincount(self.partition, values).astype(np.int64)


def collect_file_stats(cube: Cube, dataset: DatasetMetadata, blobs: BlobStore) -> DataFiles:
    """List the data files of a dataset, read their footers, and count the visible rows."""
    table = dataset.partition_table
    files = table.files.get(dataset.table_name, pa.array([], pa.string())).to_pylist()
    keys = table.keys(list(dataset.partition_keys), dataset.schema)
    listed = {blob.key: blob for blob in blobs.list(f"{dataset.uuid}/")}
    step = max(1, len(files) // _COLUMN_SAMPLE)
    column_bytes = Counter[str]()

    def read(key: str) -> tuple[int, float, int, pq.FileMetaData | None]:
        blob = listed.get(key, Blob(key))
        time = np.nan if blob.mtime is None else blob.mtime
        try:
            footer, size = read_footer(blobs, key)
        except _DAMAGED:
            runtime.progress_advance(0)
            return blob.size or 0, time, 0, None
        runtime.progress_advance(footer.serialized_size)
        return size, time, footer.num_rows, footer

    runtime.progress_add_total(len(files))
    rows, threads = [], 1 if blobs.is_local else tuning.REMOTE_REQUESTS
    for number, (size, time, n_rows, footer) in enumerate(runtime.ordered_map(read, files, threads)):
        rows.append((size, time, n_rows))
        if footer is not None and number % step == 0:
            for group in map(footer.row_group, range(footer.num_row_groups)):
                for chunk in map(group.column, range(group.num_columns)):
                    column_bytes[chunk.path_in_schema.partition(".")[0]] += chunk.total_compressed_size
    sizes, times, stored = np.array(rows, float).reshape(-1, 3).T
    stored = stored.astype(np.int64)
    visible = _count_visible_rows(cube, dataset, blobs, files, keys, stored)
    return DataFiles(
        keys=keys,
        partition=kernels.group_codes(list(keys.values()), len(table)),
        sizes=sizes.astype(np.int64),
        rows=visible,
        times=times,
        column_bytes=column_bytes,
        superseded=int((stored - visible).sum()),
    )


def _count_visible_rows(
    cube: Cube, dataset: DatasetMetadata, blobs: BlobStore, files: list[str], keys: Keys, stored: Ints
) -> Ints:
    """Count the visible rows of each file; the dimension columns are read where others may hide them."""
    schema = arrow_schema(dataset)
    cell = [column for column in cube.dimension_columns if column in schema.names]
    in_files = [column for column in cell if column not in keys]

    def count(members: Ints) -> Ints:
        try:
            tables = [scan.read_file(blobs, files[i], in_files, schema=schema) for i in members]
            table = scan.concat_tables(tables, dataset.uuid)
        except _DAMAGED:
            return stored[members]
        owner = np.repeat(np.arange(len(members)), [len(each) for each in tables])
        of_rows = pa.array(members[owner])
        columns = [table.column(c) if c in in_files else keys[c].take(of_rows) for c in cell]
        last = kernels.last_rows_mask(columns, len(table))
        return np.bincount(owner if last is None else owner[last], minlength=len(members))

    if not in_files:
        return stored
    codes = kernels.group_codes([keys[c] for c in cube.partition_columns if c in keys], len(files))
    several = [members for members in partition.group_positions(codes) if len(members) > 1]
    visible = stored.copy()
    threads = runtime.available_cores() if blobs.is_local else tuning.REMOTE_REQUESTS
    for members, counts in zip(several, runtime.ordered_map(count, several, threads), strict=True):
        visible[members] = counts
    return visible


# -- warnings ----------------------------------------------------------------------------------------------

#: bytes; smaller files cost more to open than to read
_SMALL_FILE = 1 << 20
#: a partition is skewed if it has more than this many times the bytes of the median
_SKEW_FACTOR = 8
#: percentage of files; an index that skips fewer of them is useless
_MIN_SKIPPED = 1.0
#: minimum number of partitions for warnings about their sizes
_MIN_PARTITIONS = 8


class Advice(NamedTuple):
    """A warning: problem, explanation with figures, and the command that solves it."""

    title: str
    text: str
    command: str
    #: of the command: ``shell`` or ``python``
    language: str = "shell"


def _shell_command(store: str, cube: str, *arguments: str) -> str:
    """Return a command line, quoted for the shell."""
    return shlex.join(["kartothek_cube", "--store", store, cube, *arguments])


def advise(name: str, files: DataFiles, store: str, cube: str, *, is_seed: bool) -> Iterator[Advice]:
    """Warn about partitions with several files, skewed partitions and small partitions of a dataset."""
    counts, sizes = np.bincount(files.partition), files.per_partition(files.sizes)
    if n_several := int((counts > 1).sum()):
        several = files.sizes[counts[files.partition] > 1]
        small = "Small files: " if several.mean() < _SMALL_FILE else ""
        verb = "has" if n_several == 1 else "have"
        yield Advice(
            f"{small}{n_several:,} of {len(counts):,} partitions {verb} several files",
            f"{len(several):,} files of {bytes_text(several.mean())} on average, up to {counts.max():,} in a "
            "partition. Every query opens all of them and filters superseded rows.",
            _shell_command(store, cube, "compact", "--include", name),
        )
    if len(counts) < _MIN_PARTITIONS:
        return
    rebuild = (
        "build_cube(data, cube.copy(partition_columns=[...]), store, overwrite=True)"
        if is_seed
        else f"extend_cube({{{name!r}: frame}}, cube, store, overwrite=True, "
        f"partition_on={{{name!r}: [...]}})  # currently {list(files.keys)}"
    )
    median, largest = float(np.median(sizes)), int(sizes.max())
    if largest > _SKEW_FACTOR * max(median, 1.0) and largest >= _SMALL_FILE:
        n_larger = format_count(int((sizes > _SKEW_FACTOR * median).sum()), "partition")
        at = int(np.flatnonzero(files.partition == np.argmax(sizes))[0])
        keys = ", ".join(f"{key}={values[at].as_py()}" for key, values in files.keys.items())
        yield Advice(
            f"Skew: {n_larger} more than {_SKEW_FACTOR} times as large as the median",
            f"{keys} has {bytes_text(largest)}, the median is {bytes_text(median)}. "
            "The largest partition delays the whole job. Partition by one more column.",
            rebuild,
            "python",
        )
    if sizes.mean() < _SMALL_FILE / 4 and len(sizes) >= 4 * _MIN_PARTITIONS:
        yield Advice(
            f"Small partitions: {len(sizes):,} partitions of {bytes_text(sizes.mean())} on average",
            "Opening files takes longer than reading them. "
            "Partition by fewer or coarser columns, and index the other ones.",
            rebuild,
            "python",
        )


def _warn_useless_indices(cube: Cube, name: str, indices: Iterable[Index], n_files: int) -> Iterator[Advice]:
    """Warn about indices whose values are in all files, so that conditions on them skip none."""
    useless = [index for index in indices if n_files > 1 and index.skipped < _MIN_SKIPPED]
    if not useless:
        return
    columns = {index.column for index in useless}
    changes = []
    if dimensions := columns & set(cube.dimension_columns):
        changes.append(f"suppress_index_on={sorted(dimensions.union(cube.suppress_index_on))}")
    if columns & set(cube.index_columns):
        changes.append(f"index_columns={sorted(set(cube.index_columns) - columns)}")
    is_seed, copied = name == cube.seed_dataset, f"cube.copy({', '.join(changes)})"
    call = "build_cube(data" if is_seed else f"extend_cube({{{name!r}: frame}}"
    verb = "skips" if len(useless) == 1 else "skip"
    yield Advice(
        f"{format_count(len(useless), 'index', 'indices')} {verb} no files: {', '.join(sorted(columns))}",
        "Each value is in nearly all files, so conditions on these columns open all of them, and each "
        "commit writes the indices. Partition by these columns, or leave the indices out.",
        f"{call}, {copied}, store, overwrite=True)",
        "python",
    )


# -- heat maps ---------------------------------------------------------------------------------------------

# The axes are partition keys. Neighbours are binned to limit the size, and sums become levels.

#: number of colours
LEVELS = 7
_MAX_COLUMNS, _MAX_ROWS = 60, 30
#: ratio of largest to smallest value above which the scale is logarithmic
_LOG_SCALE_RATIO = 30


class _Axis(NamedTuple):
    """Ordered values of an axis, or combinations of them: a code per file, a name per code."""

    title: str
    codes: Ints
    names: list[str]

    def bin_values(self, max_bins: int) -> tuple[Ints, list[str]]:
        """Merge equal numbers of neighbours into at most ``max_bins`` bins."""
        step = max(1, -(-len(self.names) // max_bins))
        bins = runtime.batched(self.names, step)
        return self.codes // step, [_format_range(names[0], names[-1]) for names in bins]


def _format_range(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"


def _format_values(values: pa.Array) -> list[str]:
    """Format values of partition keys; timestamps at midnight become dates."""
    if pa.types.is_timestamp(values.type):
        values = output.shorten_timestamps(values, to_dates=True)
    texts: list[str] = pc.fill_null(values.cast(pa.string()), "null").to_pylist()
    return texts


def _build_axis(keys: Keys) -> _Axis:
    """Make an axis of all combinations of values; the last key varies fastest."""
    ranks = np.stack([pc.rank(values, tiebreaker="dense").to_numpy() for values in keys.values()], axis=1)
    _, first, codes = np.unique(ranks, axis=0, return_index=True, return_inverse=True)
    shown = zip(*(_format_values(values.take(pa.array(first))) for values in keys.values()), strict=True)
    # a column in NumPy 2.0
    return _Axis(" / ".join(keys), codes.ravel(), [" / ".join(texts) for texts in shown])


def build_heat_map(files: DataFiles) -> dict[str, Any] | None:
    """Build the heat map of a dataset; None if it has no partition keys or no files."""
    if not files.keys or not len(files):
        return None
    # keys with a single value get no axis
    several = [name for name, values in files.keys.items() if len(values.unique()) > 1]
    *others, last = several or list(files.keys)[:1]
    across, y_title = _build_axis({last: files.keys[last]}), ""
    if others:
        down = _build_axis({name: files.keys[name] for name in others})
        if len(down.names) > len(across.names):
            across, down = down, across
        x, x_names = across.bin_values(_MAX_COLUMNS)
        y, y_names = down.bin_values(_MAX_ROWS)
        width, y_title, squares = len(x_names), down.title, y * len(x_names) + x
        names = [f"{a} / {b}" for a in y_names for b in x_names]
    else:
        # a single key is wrapped like lines of text
        squares, names = across.bin_values(_MAX_COLUMNS * _MAX_ROWS)
        width = min(len(names), _MAX_COLUMNS)
        rows = runtime.batched(names, width)
        y_names = [_format_range(row[0].partition(" … ")[0], row[-1].rpartition(" … ")[2]) for row in rows]
    is_wrapped = not others and len(y_names) > 1
    return {
        "x_title": across.title,
        "y_title": y_title,
        "x_ends": ("", "") if is_wrapped else (across.names[0], across.names[-1]),
        "y_labels": y_names if others or is_wrapped else [""],
        **_fill_squares(files, squares, names, width),
    }


def _fill_squares(files: DataFiles, square: Ints, names: Sequence[str], width: int) -> dict[str, Any]:
    """Sum up the files of each square, whose numbers go row by row; empty squares are left out."""
    used, at = np.unique(square, return_inverse=True)
    sums = {
        "rows": np.bincount(at, weights=files.rows),
        "bytes": np.bincount(at, weights=files.sizes),
        "files": np.bincount(at).astype(float),
    }
    partitions = np.bincount(np.unique(np.stack([at, files.partition]), axis=1)[0])
    scales = {metric: _scale(values) for metric, values in sums.items()}
    by_metric = [np.searchsorted(scales[m], sums[m], side="right").clip(1) - 1 for m in sums]
    levels = np.stack(by_metric, axis=1).tolist()
    names = [names[number] for number in used.tolist()]
    texts = list(map(_describe_square, names, *sums.values(), partitions.tolist()))
    largest = sums["bytes"]
    most, least = int(np.argmax(largest)), int(np.argmin(largest))
    return {
        "width": width,
        "height": -(-int(square.max() + 1) // width),
        #: coloured squares: column, row, the level of each metric, a tooltip
        "cells": [
            {"x": number % width, "y": number // width, "levels": level, "text": text}
            for number, level, text in zip(used.tolist(), levels, texts, strict=True)
        ],
        #: lowest value of each level, by metric
        "legends": {
            metric: [bytes_text(value) if metric == "bytes" else f"{round(value):,}" for value in scale]
            for metric, scale in scales.items()
        },
        #: maximum number of partitions per square
        "binned": int(partitions.max()),
        #: description for screen readers
        "summary": (
            f"{format_count(files.n_partitions, 'partition')}, {format_count(len(files), 'file')}, "
            f"{bytes_text(int(files.sizes.sum()))}; most bytes in {names[most]} "
            f"({bytes_text(largest[most])}), fewest in {names[least]} ({bytes_text(largest[least])})."
        ),
    }


def _scale(values: Floats) -> Floats:
    """Return the lowest value of each level, on a linear or logarithmic scale."""
    low, high = float(values.min()), float(values.max())
    if high > _LOG_SCALE_RATIO * max(low, 1.0):
        return np.geomspace(max(low, 1.0), high, LEVELS + 1)[:-1]
    return np.linspace(0, high, LEVELS + 1)[:-1]


def _describe_square(name: str, rows: float, size: float, n_files: float, n_partitions: int) -> str:
    n_rows, files = format_count(round(rows), "row"), format_count(round(n_files), "file")
    partitions = f" in {n_partitions:,} partitions" if n_partitions > 1 else ""
    return f"{name}: {n_rows}, {bytes_text(size)}, {files}{partitions}"


# -- growth ------------------------------------------------------------------------------------------------

#: size of the plot area
WIDTH, HEIGHT = 960, 220
_N_POINTS = 160
_MAX_LINES = 6


def build_growth(files: Mapping[str, DataFiles]) -> dict[str, Any] | None:
    """Build the chart for the data files of all datasets; None if the store has no modification times."""
    with_times = {name: f for name, f in files.items() if not np.isnan(f.times).all()}
    if not with_times:
        return None
    times = np.concatenate([f.times[~np.isnan(f.times)] for f in with_times.values()])
    start, last = float(times.min()), float(times.max())
    # labels have minutes
    span = max(last - start, 4 * 60)
    edges = np.linspace(start, start + span, _N_POINTS)
    sums = {name: _cumulative_bytes(f, edges) for name, f in with_times.items()}
    order = sorted(sums, key=lambda name: -sums[name][-1])
    shown = {name: sums[name] for name in order[:_MAX_LINES]}
    if len(order) > _MAX_LINES:
        shown["others"] = np.sum([sums[name] for name in order[_MAX_LINES:]], axis=0)
    ends = [float(line[-1]) for line in shown.values()]
    highest = max(ends) or 1.0
    # 1, 2, 4 or 8 times a power of ten, whose quarters are round numbers as well
    power = 10.0 ** np.floor(np.log10(highest))
    top = float(next(step * power for step in (1, 2, 4, 8, 10) if highest <= step * power))
    quarters = [i / 4 for i in range(5)]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "lines": [_describe_line(name, line, top, with_times.get(name)) for name, line in shown.items()],
        #: positions and labels
        "x_ticks": [(WIDTH * q, _format_time(start + span * q)) for q in quarters],
        "y_ticks": [(HEIGHT * (1 - q), bytes_text(top * q)) for q in quarters],
        #: description for screen readers
        "summary": f"{bytes_text(sum(ends))} stored between {_format_time(start)} and {_format_time(last)}.",
    }


def _cumulative_bytes(files: DataFiles, edges: Floats) -> Floats:
    """Sum the bytes up to each edge; files without a time count from the start."""
    times = np.where(np.isnan(files.times), edges[0], files.times)
    added, _ = np.histogram(times, bins=[-np.inf, *edges[:-1] + 1e-6, np.inf], weights=files.sizes)
    return np.cumsum(added)


def _describe_line(name: str, sums: Floats, top: float, files: DataFiles | None) -> dict[str, str]:
    """Describe the line of a dataset, or of the others: path of SVG, bytes, times of first and last file."""
    x = np.linspace(0, WIDTH, len(sums))
    y = HEIGHT * (1 - sums / top)
    steps = "".join(f"H{x[i]:.1f}V{y[i]:.1f}" for i in np.flatnonzero(np.diff(sums, prepend=-1.0))[1:])
    return {
        "name": name,
        "path": f"M{x[0]:.1f} {y[0]:.1f}{steps}H{x[-1]:.1f}",
        "added": bytes_text(float(sums[-1])) + (f" in {format_count(len(files), 'file')}" if files else ""),
        "first": _format_time(float(np.nanmin(files.times))) if files else "",
        "last": _format_time(float(np.nanmax(files.times))) if files else "",
    }


def _format_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
