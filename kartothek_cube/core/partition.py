"""Partitions of a dataset: labels, ``PartitionTable`` as Arrow columns, and ``Partition``, a view of one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, NoReturn, Self
from urllib.parse import unquote_to_bytes

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import arrow, errors, header
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX, check_table_name, check_uuid, quote, unquote
from kartothek_cube.core.store import check_owned_keys

__all__ = ("Partition", "PartitionDictType", "PartitionTable", "partition_folders")

_PLAIN_IN_JSON = bytes(set(range(0x20, 0x7F)) - set(b'"\\'))


def derived_keys(prefix: str, labels: pa.StringArray) -> pa.StringArray:
    """Storage keys by the specification: ``<uuid>/<table>/<label>.parquet``."""
    return pc.binary_join_element_wise(prefix, labels, PARQUET_FILE_SUFFIX, "").cast(pa.string())


def common_prefix(labels: pa.StringArray, keys: pa.StringArray) -> str | None:
    """Common prefix of all keys before ``<label>.parquet``; None if they have another form."""
    if not len(labels):
        return ""
    tail, first = labels[0].as_py() + PARQUET_FILE_SUFFIX, keys[0].as_py()
    if not first.endswith(tail):
        return None
    prefix: str = first[: len(first) - len(tail)]
    return prefix if derived_keys(prefix, labels).equals(keys) else None


def needs_escapes(texts: pa.StringArray) -> bool:
    """Whether a text has a character that JSON may escape."""
    data = texts.buffers()[2]
    return data is not None and bool(data.to_pybytes().translate(None, _PLAIN_IN_JSON))


def decode_labels(
    labels: pa.StringArray, partition_keys: Sequence[str], types: Sequence[pa.DataType]
) -> dict[str, pa.Array]:
    """Typed values of the partition keys by column; raises CorruptDatasetError."""
    column_types = dict(zip(partition_keys, types, strict=True))
    if not len(labels):
        return {column: arrow.parse_texts(labels, dtype) for column, dtype in column_types.items()}
    # into one component per partition key and the file name
    components = pc.split_pattern(_quote_slashes(labels, partition_keys), "/")
    _check_all(pc.equal(pc.list_value_length(components), len(types) + 1), labels, partition_keys)
    values: dict[str, pa.Array] = {}
    for position in range(len(column_types)):
        encoded = pc.list_element(components, position).dictionary_encode()
        column, texts = _split_component(encoded, labels, partition_keys)
        if column in values:
            _raise_for(labels[0].as_py(), partition_keys)
        values[column] = _parse_values(texts, encoded.indices, column_types[column], column, labels)
    return {column: values[column] for column in column_types}


def _quote_slashes(labels: pa.StringArray, partition_keys: Sequence[str]) -> pa.StringArray:
    """Quote the slashes within values, which kartothek 5.3 does not quote."""
    has_slashes = pc.greater(pc.count_substring(labels, "/"), len(partition_keys))
    if not pc.any(has_slashes).as_py():
        return labels
    pairs = "/".join(f"(?P<c{i}>{re.escape(quote(column))}=.*)" for i, column in enumerate(partition_keys))
    parts = pc.extract_regex(labels.filter(has_slashes), f"^{pairs}/(?P<file>[^/]+)$")
    texts = [pc.struct_field(parts, i) for i in range(len(partition_keys) + 1)]
    quoted = [pc.replace_substring(text, pattern="/", replacement="%2F") for text in texts]
    joined = pc.coalesce(pc.binary_join_element_wise(*quoted, "/"), labels.filter(has_slashes))
    return pc.replace_with_mask(labels, has_slashes, joined)


def unquote_texts(texts: pa.Array) -> pa.Array:
    """Apply :func:`~kartothek_cube.core.unquote` to a column without nulls."""
    # Fast path for the escapes of timestamps, blanks and large floats: as no decoded character can be part of
    # an escape, replacing them one after the other equals decoding from left to right.
    for escape, character in (("%20", " "), ("%3A", ":"), ("%2B", "+")):
        texts = pc.replace_substring(texts, pattern=escape, replacement=character)
    if not pc.any(pc.match_substring(texts, "%")).as_py():
        return texts
    encoded = texts.to_pylist()
    # all in one call, unless a decoded text contains the separator
    decoded = unquote("\n".join(encoded)).split("\n")
    return pa.array(decoded if len(decoded) == len(encoded) else map(unquote, encoded), pa.string())


def encode_component(column: str, values: pa.Array) -> pa.StringArray:
    """Label components of the values of a partition key."""
    encoded = values.dictionary_encode()
    texts = pc.binary_join_element_wise(f"{quote(column)}=", _quote_values(encoded.dictionary), "")
    return texts.take(encoded.indices)


def join_components(values: Mapping[str, pa.Array], length: int) -> pa.StringArray:
    """Label components of rows of partition keys, joined; equal for 0.0 and -0.0, unlike labels."""
    if not values:
        return pa.repeat("", length)
    parts = [encode_component(column, arrow.normalize_zeros(array)) for column, array in values.items()]
    return pc.binary_join_element_wise(*parts, "/")


def _quote_values(values: pa.Array) -> pa.StringArray:
    """Quoted values as in labels: ``str`` of the pandas or Python object."""
    if pa.types.is_integer(values.type):
        return values.cast(pa.string())
    if pa.types.is_string(values.type):
        return quote_texts(values)
    try:
        objects = values.to_pandas() if pa.types.is_timestamp(values.type) else values.to_pylist()
        return pa.array([quote(item) for item in objects], pa.string())
    except (OverflowError, NotImplementedError) as error:
        problem = f"The partition column holds a time after the year 9999 in its zone, {values.type.tz}"
        raise ValueError(problem) from error


def quote_texts(texts: pa.StringArray) -> pa.StringArray:
    """Apply :func:`~kartothek_cube.core.naming.quote` to a column without nulls."""
    special = pc.match_substring_regex(texts, "[^A-Za-z0-9_.~-]")
    if not pc.any(special).as_py():
        return texts
    quoted = pa.array([quote(text) for text in texts.filter(special).to_pylist()], pa.string())
    return pc.replace_with_mask(texts, special, quoted)


def _split_component(
    encoded: pa.DictionaryArray, labels: pa.StringArray, partition_keys: Sequence[str]
) -> tuple[str, pa.Array]:
    """Column named in a component of the labels, and the distinct encoded texts of its values."""
    pairs = pc.split_pattern(encoded.dictionary, "=")
    well_formed = pc.equal(pc.list_value_length(pairs), 2)
    _check_all(well_formed.take(encoded.indices), labels, partition_keys)
    names = pc.list_element(pairs, 0).dictionary_encode()
    columns = [_column(name) for name in names.dictionary.to_pylist()]
    column = next((c for c in columns if c in partition_keys), None)
    if column is None:
        _raise_for(labels[0].as_py(), partition_keys)
    if any(c != column for c in columns):
        right = pa.array([c == column for c in columns]).take(names.indices)
        _check_all(right.take(encoded.indices), labels, partition_keys)
    return column, pc.list_element(pairs, 1)


def _column(name: str) -> str | None:
    try:
        return unquote(name)
    except UnicodeDecodeError:
        return None


def _parse_values(
    texts: pa.StringArray, codes: pa.Array, dtype: pa.DataType, column: str, labels: pa.StringArray
) -> pa.Array:
    """Parse the distinct texts and spread the values over the labels."""
    try:
        return _parse_quoted(texts, dtype).take(codes)
    except ValueError as error:
        code = arrow.first_failure(texts, lambda part: _parse_quoted(part, dtype))
        label = labels[pc.index(codes, pa.scalar(code, codes.type)).as_py()].as_py()
        problem = f"the partition label has no value of type {dtype} for column {column!r}"
        raise errors.CorruptDatasetError(label, problem) from error


def _parse_quoted(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        # bytes need not be UTF-8 and are quoted one by one
        return pa.array([unquote_to_bytes(text) for text in texts.to_pylist()], pa.binary())
    return arrow.parse_texts(unquote_texts(texts), dtype)


def _check_all(is_valid: pa.BooleanArray, labels: pa.StringArray, partition_keys: Sequence[str]) -> None:
    mask = arrow.to_numpy(is_valid)
    if not mask.all():
        _raise_for(labels[int(np.argmin(mask))].as_py(), partition_keys)


def _raise_for(label: str, partition_keys: Sequence[str]) -> NoReturn:
    form = "/".join([f"{column}=…" for column in partition_keys] + ["…"])
    raise errors.CorruptDatasetError(label, f"a partition label of this dataset has the form {form}")


PartitionDictType = dict[str, dict[str, str]]


@attrs.define(weakref_slot=False)
class Partition:
    """One partition of a dataset: its files, one per table.

    Parameters
    ----------
    label
        Name of the partition within its dataset.
    files
        Storage key of the file of each table.
    metadata
        Ignored; metadata per partition of old versions.

    Examples
    --------
    >>> Partition("COUNTRY_CODE=DE/a1", {"table": "sales/table/COUNTRY_CODE=DE/a1.parquet"}).to_dict()
    {'files': {'table': 'sales/table/COUNTRY_CODE=DE/a1.parquet'}}
    """

    label: str
    files: dict[str, str]

    def __init__(
        self, label: str, files: Mapping[str, str] | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self.label = label
        self.files = dict(files or {})

    @staticmethod
    def from_dict(label: str, dct: Mapping[str, Any]) -> Partition:
        """Read a partition from its form in the header: ``{"files": {<table>: <storage key>}}``.

        Raises
        ------
        CorruptDatasetError
            ``dct`` has another form.

        Examples
        --------
        >>> Partition.from_dict("a1", {"files": {"table": "sales/table/a1.parquet"}}).files
        {'table': 'sales/table/a1.parquet'}
        """
        _, files = header.partition_texts({label: dct}, label)
        return Partition(label, {table: keys[0].as_py() for table, keys in files.items()})

    def to_dict(self, version: int | None = None) -> PartitionDictType:
        """The form of the partition in the header; there is one version."""
        return {"files": dict(self.files)}


@attrs.frozen(init=False, eq=False, repr=False)
class PartitionTable:
    """All partitions of a dataset in commit order: labels, and storage keys per table; immutable.

    Examples
    --------
    >>> table = PartitionTable.from_labels("sales", "table", ["COUNTRY_CODE=DE/a1", "COUNTRY_CODE=CH/a1"])
    >>> table.files["table"][0].as_py()
    'sales/table/COUNTRY_CODE=DE/a1.parquet'
    >>> table.positions(["COUNTRY_CODE=CH/a1", "unknown"]).tolist()
    [1, -1]
    """

    labels: pa.StringArray
    files: dict[str, pa.StringArray]
    #: decoded values of partition keys, results of has_derived_keys
    _cache: dict[Any, Any]
    _partitions: dict[str, Partition]

    def __init__(
        self,
        labels: Iterable[str] | pa.Array,
        files: Mapping[str, Iterable[str] | pa.Array] | None = None,
        *,
        cache: dict[Any, Any] | None = None,
    ) -> None:
        names, *keys = map(arrow.label_array, (labels, *(files or {}).values()))
        columns = dict(zip(files or (), keys, strict=True))
        if {*map(len, keys)} - {len(names)}:
            raise ValueError("Every table needs exactly one file per partition label")
        self.__attrs_init__(names, columns, {} if cache is None else cache, {})

    def __reduce__(self) -> tuple[Callable[..., PartitionTable], tuple[Any, ...]]:
        labels = arrow.compact_buffers(self.labels)
        return _restore, (labels, {table: _pack_files(labels, keys) for table, keys in self.files.items()})

    def __len__(self) -> int:
        return len(self.labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionTable):
            return NotImplemented
        same_tables = self.files.keys() == other.files.keys() or not (len(self) or len(other))
        pairs = [(keys, other.files[name]) for name, keys in self.files.items() if name in other.files]
        return same_tables and all(a.equals(b) for a, b in [(self.labels, other.labels), *pairs])

    def __repr__(self) -> str:
        return f"PartitionTable({errors.format_count(len(self), 'partition')}, tables={sorted(self.files)})"

    @classmethod
    def empty(cls, tables: Iterable[str] = ()) -> Self:
        """Table without partitions."""
        return cls([], {table: [] for table in tables})

    @classmethod
    def from_labels(cls, uuid: str, table: str, labels: Iterable[str] | pa.Array) -> Self:
        """Partitions with the storage keys of the specification: ``<uuid>/<table>/<label>.parquet``."""
        check_uuid(uuid)
        check_table_name(table)
        names = arrow.label_array(labels)
        return cls(names, {table: derived_keys(f"{uuid}/{table}/", names)})

    @classmethod
    def from_partitions(cls, partitions: Mapping[str, Partition]) -> Self:
        """Table of partition objects, in commit order; raises ValueError for different tables."""
        files = [partition.files for partition in partitions.values()]
        tables = header.common_tables(files)
        if tables is None:
            sets = errors.list_names(header.table_sets(files))
            raise ValueError(f"All partitions need files of the same tables; found {sets}")
        return cls(partitions, {table: list(map(itemgetter(table), files)) for table in tables})

    @classmethod
    def from_header(cls, dct: Any, key: str = "header") -> Self:
        """Table of the ``partitions`` of a header; raises CorruptDatasetError, see `check_owned`."""
        return cls(*header.partition_texts(dct, key))

    def to_header(self) -> dict[str, PartitionDictType]:
        """The ``partitions`` of a header: ``{<label>: {"files": {<table>: <storage key>}}}``."""
        files = {table: keys.to_pylist() for table, keys in self.files.items()}
        labels = enumerate(self.labels.to_pylist())
        return {label: {"files": {t: keys[i] for t, keys in files.items()}} for i, label in labels}

    def to_json(self) -> str:
        """JSON of `to_header`; ten times as fast as :func:`json.dumps` for ordinary labels."""
        if any(map(needs_escapes, (self.labels, *self.files.values()))):
            return json.dumps(self.to_header())
        fragments: list[Any] = ['"', self.labels, '": {"files": {']
        for number, (table, keys) in enumerate(self.files.items()):
            fragments += [(", " if number else "") + json.dumps(table) + ': "', keys, '"']
        rows = pc.binary_join_element_wise(*fragments, "}}", "")
        return "{" + ", ".join(rows.to_pylist()) + "}"

    def to_partitions(self) -> dict[str, Partition]:
        """One object per partition, for users; cached."""
        if not self._partitions:
            entries = self.to_header().items()
            self._partitions.update({label: Partition(label, entry["files"]) for label, entry in entries})
        return self._partitions

    def share(self) -> PartitionTable:
        """Copy that shares caches, but not the objects of `to_partitions`, which users may change."""
        return PartitionTable(self.labels, self.files, cache=self._cache)

    def has_derived_keys(self, uuid: str, table: str) -> bool:
        """Whether all storage keys are those of `from_labels`; cached."""
        if ("derived", uuid, table) not in self._cache:
            is_derived = PartitionTable.from_labels(uuid, table, self.labels) == self
            self._cache["derived", uuid, table] = is_derived
        return bool(self._cache["derived", uuid, table])

    def keys(self, partition_keys: Sequence[str], schema: Any) -> dict[str, pa.Array]:
        """Typed values of the partition keys by column, decoded from the labels."""
        if not partition_keys:
            return {}
        types = tuple(_type_of(schema, column) for column in partition_keys)
        cache_key = (tuple(partition_keys), types)
        if cache_key not in self._cache:
            self._cache[cache_key] = self._decode(partition_keys, types)
        return dict(self._cache[cache_key])

    def _decode(self, partition_keys: Sequence[str], types: Sequence[pa.DataType]) -> dict[str, pa.Array]:
        try:
            return decode_labels(self.labels, partition_keys, types)
        except errors.CorruptDatasetError:
            paths = next(iter(self.files.values()), self.labels)
            if common_prefix(self.labels, paths) is not None:
                raise
            # kartothek reads the keys from the paths, which labels equal since version 3 only
            inner = pc.replace_substring_regex(paths, pattern="^[^/]*/[^/]*/", replacement="")
            return decode_labels(inner, partition_keys, types)

    def check_owned(self, uuid: str) -> None:
        """Raise CorruptDatasetError if a storage key is illegal or outside of the dataset."""
        for keys in self.files.values():
            check_owned_keys(keys, uuid)

    def positions(self, labels: Iterable[str] | pa.Array) -> arrow.Ints:
        """Position of each label, -1 for unknown ones."""
        return arrow.lookup(labels if labels is self.labels else arrow.label_array(labels), self.labels)

    def take(self, positions: Sequence[int] | npt.NDArray[np.integer[Any]] | pa.Array) -> PartitionTable:
        """Partitions at some positions, in that order."""
        indices = positions if isinstance(positions, pa.Array) else pa.array(positions, pa.int64())
        files = {table: keys.take(indices) for table, keys in self.files.items()}
        return PartitionTable(self.labels.take(indices), files)

    def filter(self, mask: arrow.Mask | pa.BooleanArray) -> PartitionTable:
        """Partitions where the mask is true."""
        selected = mask if isinstance(mask, pa.Array) else pa.array(mask, pa.bool_())
        files = {table: keys.filter(selected) for table, keys in self.files.items()}
        return PartitionTable(self.labels.filter(selected), files)

    def concat(self, other: PartitionTable) -> PartitionTable:
        """Append the partitions of a table; raises ValueError for duplicates or different tables."""
        if not len(other):
            return self
        labels = pa.concat_arrays([self.labels, other.labels])
        if len(labels.unique()) < len(labels):
            counts = pc.value_counts(labels)
            names = errors.list_names(counts.field(0).filter(pc.greater(counts.field(1), 1)).to_pylist())
            raise ValueError(f"Partition labels have to be unique, these occur twice: {names}")
        if not len(self):
            return other
        if self.files.keys() != other.files.keys():
            tables = errors.list_names([sorted(self.files), sorted(other.files)])
            raise ValueError(f"Partitions have different tables: {tables}")
        files = {table: pa.concat_arrays([keys, other.files[table]]) for table, keys in self.files.items()}
        return PartitionTable(labels, files)


def _restore(labels: pa.StringArray, packed: Mapping[str, str | pa.StringArray]) -> PartitionTable:
    files = {t: derived_keys(keys, labels) if isinstance(keys, str) else keys for t, keys in packed.items()}
    return PartitionTable(labels, files)


def _pack_files(labels: pa.StringArray, keys: pa.StringArray) -> str | pa.StringArray:
    """Files for a pickle: only their common prefix if the keys follow from the labels."""
    prefix = common_prefix(labels, keys)
    return arrow.compact_buffers(keys) if prefix is None else prefix


def _type_of(schema: Any, column: str) -> pa.DataType:
    names = [] if schema is None else list(schema.names)
    errors.check_names("Cannot find type information for a partition key: ", "column", [column], names)
    return schema.field(column).type


def group_positions(codes: npt.NDArray[np.integer[Any]]) -> list[arrow.Ints]:
    """Positions of each code, in the order of the codes."""
    if not len(codes):
        return []
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def partition_folders(
    partitions: PartitionTable, columns: Sequence[str], partition_keys: Sequence[str], schema: Any
) -> pa.StringArray:
    """Label components of some of the partition keys, joined, for each partition; empty texts without any."""
    values = partitions.keys(partition_keys, schema)
    return join_components({column: values[column] for column in columns}, len(partitions))


# -- content of files ---------------------------------------------------------------------------------------

# Files are immutable and have unique names, so that equal names are equal rows. A compaction replaces files
# and keeps the rows: the name of its file identifies the replaced files. Each file has a number of 128
# bits, the hash of its label; that of a compacted file is the sum over the files that it replaces, which may
# be compacted ones. The rows of a partition have changed if the sum over its files has. This needs nothing in
# the header, and commits of other software count as well.

# The name of a file of a cube also has its number of rows and a digest of its cells, if these are sorted
# and unique: files of several datasets with the same digest have the same cells, row by row. A query finds
# rows of one file in another by their position, and compares the cells: another program may have replaced a
# file. Files of other software have no such names, and are joined by their cells.

_NAME = re.compile("[0-9a-f]{32}(?:-([0-9a-f]{8})-([0-9a-f]{16}))?(?:-([0-9a-f]{32}))?")


def content_sums(labels: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Numbers that stand for the rows of files, in two columns of 64 bits; equal sums are equal rows."""
    digests = []
    for label in labels:
        match = _NAME.fullmatch(label.rpartition("/")[2])
        replaced = match and match[3]
        digests.append(
            bytes.fromhex(replaced) if replaced else blake2b(label.encode(), digest_size=16).digest()
        )
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64).reshape(-1, 2)


def compacted_suffixes(replaced: Iterable[str]) -> Iterator[str]:
    """Suffixes of the names of files that together have the rows of others; the first has the sum."""
    total = content_sums(replaced).sum(axis=0, dtype=np.uint64).astype(">u8").tobytes().hex()
    return chain([f"-{total}"], repeat(f"-{0:032x}"))


def cells_suffix(n_rows: int, digest: bytes) -> str:
    """Suffix of the name of a file: its number of rows, and 8 bytes for its cells; empty for huge files."""
    return f"-{n_rows:08x}-{digest.hex()}" if n_rows < 1 << 32 else ""


def rows_of_name(key: str) -> int | None:
    """Number of rows of the data file at a key; None if it is not part of its name."""
    match = _NAME.fullmatch(key.removesuffix(PARQUET_FILE_SUFFIX), key.rfind("/") + 1)
    return int(match[1], 16) if match and match[1] else None


def cells_of_names(labels: Iterable[str]) -> tuple[list[int], list[str]] | None:
    """Number of rows and digest of the cells of each file; None unless they are part of all names."""
    matches = [_NAME.fullmatch(label, label.rfind("/") + 1) for label in labels]
    found = [(int(match[1], 16), match[2]) for match in matches if match and match[1]]
    if len(found) < len(matches) or not found:
        return None
    rows, digests = zip(*found, strict=True)
    return list(rows), list(digests)
