"""Write the rows of a table by partition: split, files, index entries; delete files of a failed write."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain, pairwise
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import (
    dataset_files,
    errors,
    evolution,
    history,
    index,
    naming,
    pandas_conversion,
    tuning,
)
from kartothek_cube.core.arrow import Ints, count_nulls, is_text, normalize_zeros, storage_type, widen
from kartothek_cube.core.commit.change import IndexUpdate
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.partition import cells_suffix, derived_keys, encode_component
from kartothek_cube.core.pruning import collect_statistics
from kartothek_cube.core.schema import SchemaWrapper, make_meta
from kartothek_cube.core.store import BlobStore, StoreFactory, StoreInput, open_blobs
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components import kernels, runtime
from kartothek_cube.io_components.write.write_plan import NO_CUBE, WritePlan, WriteResult, WriteSpec
from kartothek_cube.serialization import CsvSerializer, DataFrameSerializer, ParquetSerializer

#: limits of the task of a thread
_BYTES_AT_A_TIME, _FILES_AT_A_TIME = 1 << 18, 64
#: smaller files are built in memory and written by one request
_SMALL = 1 << 22
#: From so many files on, those of fewer bytes get SNAPPY instead of ZSTD, whose set-up per column
#: takes longer than the rest: 500 rows of five columns take 0.15 ms and 18 KB, with ZSTD 0.37 ms and 16 KB.
_MANY, _LITTLE = 256, 1 << 15


#: key of a file, and its row range
_FileSlice = tuple[str, int, int]


def write_files(
    spec: WriteSpec, table: pa.Table, starts: Ints, keys: pa.StringArray, threads: int | None = None
) -> pa.StringArray:
    """Write each slice of a table, from one start to the next, as a file; return the keys."""
    blobs, serializer = open_blobs(spec.store), spec.serializer
    stops = np.append(starts[1:], len(table))
    slices = list(zip(keys.to_pylist(), starts.tolist(), stops.tolist(), strict=True))
    runtime.progress_add_total(len(slices))
    if isinstance(serializer, ParquetSerializer):
        table = serializer.storable(table)
        fast = serializer
        if len(slices) >= _MANY and serializer.compression.upper() == "ZSTD":
            fast = ParquetSerializer("SNAPPY", serializer.chunk_size)
        work = partial(_write_parquet, blobs, serializer, fast, _slice_metadata(table), table)
    else:
        _check_csv_values(spec, table)
        # files without types are read with those of the schema: 0.1 is another number as float64
        wide = pa.schema([(field.name, widen(field.type)) for field in table.schema])
        work = partial(_write_other, blobs, serializer, pandas_conversion.cast_to_schema(table, wide))
    size = 1
    if blobs.is_local:
        # to hand a task to a thread costs as much as to write a small file
        size = max(1, min(_FILES_AT_A_TIME, _BYTES_AT_A_TIME * len(slices) // max(table.nbytes, 1)))
    if threads is None:
        threads = runtime.available_cores() if blobs.is_local else tuning.REMOTE_REQUESTS
    written = list(chain.from_iterable(runtime.ordered_map(work, runtime.batched(slices, size), threads)))
    return pa.array(written, pa.string())


def _write_parquet(
    blobs: BlobStore,
    serializer: ParquetSerializer,
    fast: ParquetSerializer,
    with_length: Callable[[int], pa.Table],
    table: pa.Table,
    slices: Sequence[_FileSlice],
) -> list[str]:
    width = table.nbytes / max(len(table), 1)
    for key, start, stop in slices:
        rows = with_length(stop - start).slice(start, stop - start)
        size = width * len(rows)
        if size < _SMALL:
            buffer = pa.BufferOutputStream()
            (fast if size < _LITTLE else serializer).write_storable(rows, buffer)
            content = buffer.getvalue()
            blobs.put(key, content)
            runtime.progress_advance(content.size)
        else:
            with blobs.open_write(key) as sink:
                serializer.write_storable(rows, sink)
                runtime.progress_advance(partial(_size, sink))
    return [key for key, _, _ in slices]


def _slice_metadata(table: pa.Table) -> Callable[[int], pa.Table]:
    """Function of a row count: the table with the pandas metadata that a slice of that length has."""
    meta = json.loads(table.schema.metadata[b"pandas"])
    names = set(table.column_names)
    meta["columns"] = [c for c in meta.get("columns", []) if c.get("field_name") in names]
    if meta.get("index_columns"):
        return lambda rows: table
    meta["index_columns"] = [{"kind": "range", "name": None, "start": 0, "step": 1, "stop": "@"}]
    head, tail = json.dumps(meta, sort_keys=True).split('"@"')

    @lru_cache(maxsize=_FILES_AT_A_TIME)
    def with_length(rows: int) -> pa.Table:
        return table.replace_schema_metadata({b"pandas": f"{head}{rows}{tail}".encode()})

    return with_length


def _size(sink: str | BinaryIO) -> int:
    return os.path.getsize(sink) if isinstance(sink, str) else sink.tell()


def _check_csv_values(spec: WriteSpec, table: pa.Table) -> None:
    """Raise an error for a column whose values no read makes of the text that pandas writes to a CSV file."""
    rows = table if isinstance(spec.serializer, CsvSerializer) else pa.table({})
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        problem = f"Column {name!r} of type {column.type} cannot be stored as CSV"
        if pa.types.is_binary(column.type) or pa.types.is_nested(column.type):
            raise TypeError(f"{problem}, which has texts only; use ParquetSerializer")
        if is_text(column.type) and pc.any(pc.match_substring_regex(column, r"^$|\r")).as_py():
            raise ValueError(f"{problem}: it has empty texts or carriage returns; use ParquetSerializer")


def _write_other(
    blobs: BlobStore, serializer: DataFrameSerializer, table: pa.Table, slices: Sequence[_FileSlice]
) -> list[str]:
    keys = []
    for key, start, stop in slices:
        rows = table.slice(start, stop - start)
        frame = pandas_conversion.to_pandas(rows, dates_as_object=True)
        keys.append(serializer.store(blobs.store, key.removesuffix(naming.PARQUET_FILE_SUFFIX), frame))
        runtime.progress_advance(rows.nbytes)
    return keys


def write_table(
    spec: WriteSpec,
    table: pa.Table,
    *,
    threads: int | None = None,
    name_files: Callable[[pa.StringArray], pa.StringArray] | None = None,
) -> WriteResult:
    """Write one input table as data files, without a commit; ``name_files`` replaces the labels."""
    origin = f"{spec.uuid}/{spec.table}"
    schema = make_meta(table.schema, origin=origin, partition_keys=list(spec.partition_on))
    types = {column: schema.field(column).type for column in spec.index_columns(table.column_names)}
    if spec.partition_on and not len(table):
        # with empty entries a new dataset gets its indices
        typed = {column: dtype for column, dtype in types.items() if not pa.types.is_null(dtype)}
        indices = {column: IndexUpdate.empty(dtype) for column, dtype in typed.items()}
        return WriteResult(spec.uuid, spec.table, schema, indices=indices)
    name = spec.write_id + gen_uuid()[len(spec.write_id) :]
    starts, prefixes, table = split_by_partition(table, spec.partition_on)
    suffixes = cells_suffixes(() if spec.cube is NO_CUBE else spec.cube.dimension_columns, table, starts)
    labels = pc.binary_join_element_wise(prefixes, name, pa.array(suffixes), "")
    labels = labels if name_files is None else name_files(labels)
    indices = {c: index_entries(table.column(c), starts, labels, dtype) for c, dtype in types.items()}
    statistics = statistics_of(spec, table, starts, labels, schema)
    rows = table.drop_columns(list(spec.partition_on))
    derived = derived_keys(f"{spec.uuid}/{spec.table}/", labels)
    keys = write_files(spec, rows, starts, derived, threads)
    schema = schema.with_origin({f"{origin}/{labels[0].as_py()}"})
    own, widths = None if keys.equals(derived) else keys, _widths_of_rows(spec, rows)
    return spec.result(
        schema, labels, indices=indices, rows=len(table), keys=own, widths=widths, statistics=statistics
    )


def cells_suffixes(dimensions: Iterable[str], table: pa.Table, starts: Ints) -> list[str]:
    """Row counts and digests of cells for the names of files that begin at `starts`; empty if unknown."""
    names = [c for c in dimensions if c in table.column_names]
    columns = [c.cast(widen(c.type)) for c in map(kernels.decode_dictionary, table.select(names).columns)]
    equal = kernels.equal_neighbours(columns, len(table), starts[1:]) if names else None
    words = []
    if equal is not None and not equal.any():
        words = [numbers for column in columns if (numbers := _words(column)) is not None]
    if not words or len(words) < len(columns):
        return [""] * len(starts)
    types = "".join(f"{name}\0{c.type}\0" for name, c in zip(names, columns, strict=True)).encode()
    suffixes = []
    for start, stop in pairwise([*starts.tolist(), len(table)]):
        # 1.4 GB per second, where BLAKE2 takes twice as long
        digest = sha256(types)
        for numbers in words:
            digest.update(numbers[start:stop].data)
        suffixes.append(cells_suffix(stop - start, digest.digest()[:8]))
    return suffixes


def _words(column: pa.ChunkedArray) -> npt.NDArray[Any] | None:
    """A number for each value, which depends on nothing else; None for types that rarely are dimensions."""
    if not pa.types.is_string(column.type):
        return kernels.integers(column)
    encoded = column.dictionary_encode().combine_chunks()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    hashes: npt.NDArray[Any] = pd.util.hash_array(values, categorize=False)[encoded.indices.to_numpy()]
    return hashes


def _widths_of_rows(spec: WriteSpec, rows: pa.Table) -> evolution.Widths:
    """Bits of the columns of numbers in the files of a table."""
    # files of other formats have no types: they are read with those of the schema
    file_type = storage_type if isinstance(spec.serializer, ParquetSerializer) else widen
    # nulls that got the type of the schema fit into every width
    typed = [
        (f.name, file_type(f.type))
        for f, column in zip(rows.schema, rows.columns, strict=True)
        if column.null_count < len(column) or not f.type.equals(widen(f.type))
    ]
    return evolution.column_widths(pa.schema(typed))


def check_files(spec: WriteSpec, table: pa.Table) -> None:
    """Refuse names that are too long for files and directories, and values that CSV does not hold."""
    _check_csv_values(spec, table.drop_columns(list(spec.partition_on)))
    # headers are written to temporary files with longer names
    names = [f"{'':37}{naming.metadata_key_from_uuid(spec.uuid)}"]
    names += map(naming.quote, spec.index_columns(table.column_names))
    for column in spec.partition_on:
        values, prefix = table.column(column), f"{naming.quote(column)}="
        names.append(prefix)
        if is_text(values.type) or pa.types.is_binary(values.type):
            # a byte is encoded as up to three
            is_long = pc.greater(pc.binary_length(values), (naming.MAX_FILE_NAME - len(prefix)) // 3)
            long = values.filter(is_long).unique().to_pylist()
            names += [f"{prefix}{naming.quote(value)}" for value in long]
    too_long = next((name for name in names if len(name) > naming.MAX_FILE_NAME), None)
    # the store is opened only if its kind matters
    if too_long is not None and open_blobs(spec.store).is_local:
        raise naming.name_too_long(too_long.strip())


def check_input(spec: WriteSpec, table: pa.Table) -> None:
    """Check that a table can be written; without rows, its columns only."""
    names = set(table.column_names)
    naming.check_column_names(table.column_names)
    where = f"missing in the input for dataset {spec.uuid}: "
    errors.check_names(f"Partition column(s) {where}", "column", spec.partition_on, names)
    if spec.partition_on and names == set(spec.partition_on):
        raise ValueError(
            f"No data left to save outside partition columns for dataset {spec.uuid}: "
            f"the input has only {', '.join(spec.partition_on)}"
        )
    overlap = set(spec.partition_on) & set(spec.indices)
    if overlap:
        raise RuntimeError(
            f"Trying to create non-unique index on partition column(s): {', '.join(sorted(overlap))}"
        )
    errors.check_names(f"Column(s) to index {where}", "column", spec.indices, names, error=RuntimeError)
    uses = {"partition": spec.partition_on, "index": spec.index_columns(names), "sort": spec.sort_by}
    for use, columns in uses.items():
        for column in set(columns) & names:
            dtype = table.schema.field(column).type
            if pa.types.is_nested(dtype):
                raise NotImplementedError(
                    f"Cannot {use} dataset {spec.uuid} by column {column} of type {dtype}: "
                    "nested values have no order"
                )
    check_files(spec, table)
    for column in spec.partition_on:
        nulls = count_nulls(table.column(column))
        if nulls:
            raise ValueError(
                f"Partition column {column} of dataset {spec.uuid} holds null: "
                f"{nulls:,} of {errors.format_count(len(table), 'row')} would be lost. "
                "Fill or drop them before writing"
            )


def split_by_partition(table: pa.Table, partition_on: Sequence[str]) -> tuple[Ints, pa.StringArray, pa.Table]:
    """Group rows by partition: first row and path of each group, in order of appearance, and the rows."""
    if not partition_on:
        return np.zeros(1, dtype=np.int64), pa.array([""]), table
    encoded = [kernels.encode_ordered(table.column(c)) for c in partition_on]
    codes, _bound = kernels.combine_keys(encoded, len(table))
    starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    if len(np.unique(codes[starts])) < len(starts):
        # equal codes together, in the order of their first appearance; stable
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        order = np.argsort(first[inverse], kind="stable")
        table, codes = table.take(pa.array(order)), codes[order]
        starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    keys = {c: kernels.take_values(table.column(c), starts, missing=False) for c in partition_on}
    parts = [encode_component(column, values) for column, values in keys.items()]
    return starts, pc.binary_join_element_wise(*parts, "", "/"), table


# -- index entries ---------------------------------------------------------------------------------------


def index_entries(
    values: pa.ChunkedArray, starts: Ints, labels: pa.StringArray, dtype: pa.DataType
) -> IndexUpdate:
    """Entries of one column of a table whose partitions begin at `starts`; nulls are not indexed."""
    values = values.cast(dtype) if pa.types.is_null(values.type) else kernels.decode_dictionary(values)
    partition = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))
    if kernels.strictly_increasing([values], len(values)):
        # copied: users may change the memory of their input, while caches and staged writes keep the entries
        distinct = pa.concat_arrays([kernels.to_single_array(values).cast(widen(dtype))])
        return IndexUpdate(index.IndexColumns.from_pairs(distinct, labels, partition), labels)
    codes = kernels.encode_ordered(values)
    distinct = kernels.take_values(values, kernels.last_rows(*codes), missing=False)
    distinct = normalize_zeros(distinct).cast(widen(dtype))
    ranks = kernels.make_dense(*codes)
    # marking all pairs in a mask is linear, while other pairs are sorted; the mask must not outgrow the rows
    if len(distinct) * len(starts) <= max(8 * len(values), 1 << 16):
        is_entry = np.zeros((len(distinct), len(starts)), dtype=bool)
        is_entry.ravel()[ranks * len(starts) + partition] = True
        return IndexUpdate(index.IndexColumns.from_mask(distinct, is_entry, labels), labels)
    return IndexUpdate(index.IndexColumns.from_pairs(distinct, labels, partition, ranks), labels)


def statistics_of(
    spec: WriteSpec, table: pa.Table, starts: Ints, labels: pa.StringArray, schema: SchemaWrapper
) -> pa.Table | None:
    """Statistics that a dataset keeps of its columns, as far as a table has them, by partition."""
    if not spec.statistics:
        return None
    known = {*table.column_names}.intersection(schema.names)
    types = {c: widen(schema.field(c).type) for c in spec.statistics if c in known}
    return collect_statistics({c: table.column(c).cast(dtype) for c, dtype in types.items()}, starts, labels)


# -- files of a failed write ------------------------------------------------------------------------------


def check_same_store(store: StoreFactory, uuid: str) -> None:
    """Raise ValueError if each call of a factory opens another store, so that a commit misses its files."""
    first, second = store(), store()
    # a store that fails now is not the reason of the error that led here
    with suppress(OSError):
        if first is not second and not runtime.is_same_store(open_blobs(first), open_blobs(second), uuid):
            raise ValueError(
                "The factory opens another store each time it is called, so what is written would be lost: "
                "open the store once, and pass the store or a function that returns it"
            )


def delete_uncommitted(store: StoreInput, results: Iterable[WriteResult]) -> None:
    """Delete written data files, except for those that did reach a dataset by a commit."""
    blobs = open_blobs(store)
    for result in results:
        if len(result.labels):
            _delete_untracked(blobs, result.uuid, result.partitions().files[result.table].to_pylist())


def delete_attempts(plan: WritePlan) -> None:
    """Delete the files of all attempts of a write that no commit refers to, with or without a result."""
    blobs = open_blobs(plan.store)
    for spec in plan.specs.values():
        names = {blob.key: blob.key.rpartition("/")[2] for blob in blobs.list(f"{spec.uuid}/{spec.table}/")}
        keys = [key for key, name in names.items() if name.startswith(spec.write_id)]
        if keys:
            _delete_untracked(blobs, spec.uuid, keys)


def _delete_untracked(blobs: BlobStore, uuid: str, keys: Iterable[str]) -> None:
    untracked = set(keys)
    with suppress(errors.DatasetNotFoundError):
        dataset = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
        # else they were found by a listing, not by a header
        if dataset.explicit_partitions:
            untracked.difference_update(dataset_files.data_keys(dataset))
        # An engine may repeat the tasks of a commit whose files others have replaced since. A state is
        # archived before its header is replaced, so the header is read first.
        for blob in blobs.list(history.history_folder(uuid)) if untracked else ():
            if history.is_snapshot_key(blob.key) or history.parse_pin(blob.key) is not None:
                try:
                    state = history.load_snapshot(uuid, blobs, blob.key)
                except KeyError:  # expired meanwhile
                    continue
                except errors.CorruptDatasetError:
                    return  # its files are unknown: a cleanup decides
                untracked.difference_update(dataset_files.data_keys(state))
    blobs.delete(sorted(untracked))
