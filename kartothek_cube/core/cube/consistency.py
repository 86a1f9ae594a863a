"""The rules of the cube format, checked on headers and schemas of datasets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import pyarrow as pa

from kartothek_cube.core import arrow, errors, naming
from kartothek_cube.core.cube import constants
from kartothek_cube.core.index import ExplicitSecondaryIndex, PartitionIndex
from kartothek_cube.core.transforms import METADATA_KEY

if TYPE_CHECKING:
    from kartothek_cube.core.cube.cube import Cube
    from kartothek_cube.core.dataset import DatasetMetadata

__all__ = (
    "arrow_schema",
    "check_cube",
    "check_datasets",
    "get_cube_payload",
    "get_dataset_columns",
    "get_payload_subset",
    "is_internal",
)


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def get_dataset_columns(dataset: DatasetMetadata) -> set[str]:
    """Columns of a dataset that a user can see.

    Parameters
    ----------
    dataset
        A dataset with its schema loaded.

    Returns
    -------
    set of str
        All columns of the schema except internal ones: those that start with two underscores, and the
        timestamp column of old cubes.
    """
    if dataset.schema is None:
        return set()
    return {name for name in dataset.schema.names if not is_internal(name)}


def is_internal(column: str) -> bool:
    """Whether queries never show a column of this name."""
    return column.startswith("__") or column == constants.KLEE_TIMESTAMP_COLUMN


def arrow_schema(dataset: DatasetMetadata) -> pa.Schema:
    """The schema of a dataset of a cube, without metadata."""
    if dataset.schema is None:
        raise ValueError(f"The schema of dataset {dataset.uuid} is not loaded")
    return dataset.schema.internal().remove_metadata()


def column_types(datasets: Iterable[DatasetMetadata]) -> dict[str, pa.DataType]:
    """Types of all columns, each of the first dataset that knows it: one with nulls only has type null."""
    types: dict[str, pa.DataType] = {}
    for field in chain.from_iterable(map(arrow_schema, datasets)):
        if pa.types.is_null(types.get(field.name, pa.null())):
            types[field.name] = field.type
    return types


def get_payload_subset(columns: Iterable[str], cube: Cube) -> set[str]:
    """Those of the given columns that are payload, which is neither dimension nor partition column.

    Examples
    --------
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> get_payload_subset(["CITY", "COUNTRY_CODE", "AVG_TEMP"], cube)
    {'AVG_TEMP'}
    """
    return set(columns) - set(cube.dimension_columns) - set(cube.partition_columns)


def get_cube_payload(datasets: Mapping[str, DatasetMetadata], cube: Cube) -> set[str]:
    """Payload columns of all given datasets."""
    return set().union(*(get_payload_subset(get_dataset_columns(ds), cube) for ds in datasets.values()))


_OLD_KEYS = {
    constants.KTK_CUBE_METADATA_DIMENSION_COLUMNS: constants.KLEE_METADATA_DIMENSION_COLUMNS,
    constants.KTK_CUBE_METADATA_KEY_IS_SEED: constants.KLEE_METADATA_KEY_IS_SEED,
    constants.KTK_CUBE_METADATA_PARTITION_COLUMNS: constants.KLEE_METADATA_PARTITION_COLUMNS,
}


def cube_metadata(cube: Cube, name: str) -> dict[str, Any]:
    """Metadata of a dataset ("Metadata" in the cube format), under old and new names."""
    dimensions, partitions = list(cube.dimension_columns), list(cube.partition_columns)
    values = dict(zip(_OLD_KEYS, (dimensions, name == cube.seed_dataset, partitions), strict=True))
    return {
        **values,
        constants.KTK_CUBE_METADATA_SUPPRESS_INDEX_ON: sorted(cube.suppress_index_on),
        **({METADATA_KEY: {t.name: t.to_dict() for t in cube.transforms}} if cube.transforms else {}),
        **{_OLD_KEYS[key]: value for key, value in values.items()},
    }


def read_specification(metadata: Mapping[str, Any], key: str) -> Any:
    """Entry of the specification in the metadata of a dataset, under its new or its old name."""
    names = (key, _OLD_KEYS.get(key, key))
    return next((metadata[name] for name in names if metadata.get(name) is not None), None)


def lacks_specification(dataset: DatasetMetadata) -> bool:
    """Whether the metadata say nothing of a cube: ``build_dataset_indices`` of kartothek drops them."""
    return read_specification(dataset.metadata, constants.KTK_CUBE_METADATA_KEY_IS_SEED) is None


def check_datasets(datasets: Mapping[str, DatasetMetadata], cube: Cube) -> dict[str, DatasetMetadata]:
    """Check that datasets form the given cube, and load their partition indices.

    Parameters
    ----------
    datasets, cube
        As in :func:`check_cube`.

    Returns
    -------
    dict
        The same datasets with their partition indices loaded.

    Raises
    ------
    ValueError
        As :func:`check_cube`.
    """
    check_cube(datasets, cube)
    return {name: datasets[name].load_partition_indices() for name in sorted(datasets)}


def check_cube(datasets: Mapping[str, DatasetMetadata], cube: Cube) -> None:
    """Check that datasets form the given cube (see "Format" in the cube specification).

    Parameters
    ----------
    datasets
        Dataset id (the part behind ``++``) to metadata with a loaded schema.
    cube
        The cube that they form.

    Raises
    ------
    ValueError
        If a rule does not hold; the text names the dataset and the columns.
    """
    for violation in find_violations(datasets, cube):
        raise violation.error


class Rule(Enum):
    """The rules of the cube format, in the order in which they are checked."""

    SEED = "there is a seed"
    VERSION = "headers have the version of cubes"
    TABLE = "a dataset has one table"
    OVERLAP = "a payload column belongs to one dataset"
    TYPES = "shared columns have one type"
    PARTITION_KEYS = "partition columns are partition keys"
    DIMENSIONS = "datasets have dimension columns, the seed all of them"
    SPECIFICATION = "the seed was written with these dimension columns"
    INDICES = "dimension columns of the seed and index columns have an index"
    KEY_INDICES = "partition keys have no secondary index"


@attrs.frozen
class Violation:
    """A dataset that breaks a rule."""

    rule: Rule
    dataset: str
    error: ValueError
    columns: tuple[str, ...] = ()
    #: the dataset with which it is in conflict
    other: str = ""


_Violations: TypeAlias = Iterator[Violation]


def find_violations(datasets: Mapping[str, DatasetMetadata], cube: Cube) -> Iterator[Violation]:
    """Find all violations of the rules of a cube; the next rule is checked when its result is asked for."""
    if cube.seed_dataset not in datasets:
        error = ValueError(
            f"Seed dataset ({cube.seed_dataset}) is missing. "
            f"The cube {cube.uuid_prefix} has{': ' + _join(datasets) if datasets else ' no datasets'}"
        )
        yield Violation(Rule.SEED, cube.seed_dataset, error)
    ordered = {name: datasets[name] for name in sorted(datasets)}
    version = constants.KTK_CUBE_METADATA_VERSION
    for name, dataset in ordered.items():
        if dataset.metadata_version != version:
            error = ValueError(
                f"Invalid metadata version in dataset {name}: {dataset.metadata_version}, "
                f"a cube needs version {version}"
            )
            yield Violation(Rule.VERSION, name, error)
    for name, dataset in ordered.items():
        tables = set(dataset.tables)
        if tables != {naming.SINGLE_TABLE} or dataset.schema is None:
            error = ValueError(
                f"Invalid table(s) in dataset {name}: a dataset of a cube has exactly the table "
                f"{naming.SINGLE_TABLE!r}, this one has: {_join(tables) or 'none'}"
            )
            yield Violation(Rule.TABLE, name, error)
    columns = {name: get_dataset_columns(dataset) for name, dataset in ordered.items()}
    yield from _overlaps(columns, cube)
    yield from _type_conflicts(ordered)
    for rule in (_key_violations, _dimension_violations, _metadata_violations, _index_violations):
        for name, dataset in ordered.items():
            yield from rule(name, dataset, columns[name], cube)


def _overlaps(columns: Mapping[str, set[str]], cube: Cube) -> Iterator[Violation]:
    owners: dict[str, list[str]] = {}
    # the seed owns a column before others do
    order = cube.join_order(columns)
    for name in order:
        for column in get_payload_subset(columns[name], cube):
            owners.setdefault(column, []).append(name)
    clashes = {column: names for column, names in owners.items() if len(names) > 1}
    text = "; ".join(f"{column} in {_join(names)}" for column, names in sorted(clashes.items()))
    problem = f"Found columns present in multiple datasets: {text}. A payload column belongs to one dataset"
    error = ValueError(problem)
    for name in order:
        for column, (owner, *others) in sorted(clashes.items()):
            if name in others:
                yield Violation(Rule.OVERLAP, name, error, (column,), owner)


def _type_conflicts(datasets: Mapping[str, DatasetMetadata]) -> Iterator[Violation]:
    first: dict[str, tuple[str, pa.DataType]] = {}
    for name, dataset in datasets.items():
        for field in () if dataset.schema is None else dataset.schema.internal():
            if pa.types.is_null(field.type):
                continue
            other, dtype = first.setdefault(field.name, (name, field.type))
            if other != name and not arrow.same_type(dtype, field.type):
                types = f"is {dtype} in dataset {other!r} but {field.type} in dataset {name!r}"
                error = errors.SchemaConflictError(f"Column {field.name!r} {types}")
                yield Violation(Rule.TYPES, name, error, (field.name,), other)


def _key_violations(name: str, dataset: DatasetMetadata, columns: set[str], cube: Cube) -> _Violations:
    keys = list(dataset.partition_keys or [])
    missing = set(cube.partition_columns) - set(keys)
    if name == cube.seed_dataset and missing:
        error = ValueError(
            f"Seed dataset {name!r} has missing partition keys: {_join(missing)} "
            f"(it is partitioned by: {_join(keys) or 'nothing'})"
        )
        yield Violation(Rule.PARTITION_KEYS, name, error, tuple(sorted(missing)))
        return
    unused = missing & columns
    if unused:
        error = ValueError(
            f"Unspecified but provided partition columns in dataset {name!r}: {_join(unused)}. A cube "
            "partition column that a dataset contains must be one of its partition keys"
        )
        yield Violation(Rule.PARTITION_KEYS, name, error, tuple(sorted(unused)))


def _dimension_violations(name: str, dataset: DatasetMetadata, columns: set[str], cube: Cube) -> _Violations:
    missing = set(cube.dimension_columns) - columns
    names = _join(missing)
    if name == cube.seed_dataset:
        problem = f"Seed dataset {name!r} has missing dimension columns: {names}"
    elif len(missing) == len(cube.dimension_columns):
        problem = f"Dataset {name!r} must have at least one of the following dimension columns: {names}"
    else:
        return
    if missing:
        yield Violation(Rule.DIMENSIONS, name, ValueError(problem), tuple(sorted(missing)))


def _metadata_violations(name: str, dataset: DatasetMetadata, columns: set[str], cube: Cube) -> _Violations:
    stored = read_specification(dataset.metadata, constants.KTK_CUBE_METADATA_DIMENSION_COLUMNS)
    is_seed = read_specification(dataset.metadata, constants.KTK_CUBE_METADATA_KEY_IS_SEED)
    # another dataset may be read as a cube of its own, with the dimensions that it has
    if name != cube.seed_dataset or not is_seed or not isinstance(stored, list):
        return
    # with other dimensions, queries and merges would take rows of several cells for versions of one
    stored = set(map(str, stored))
    if stored != set(cube.dimension_columns):
        error = ValueError(
            f"Seed dataset {name!r} was written with the dimension columns {_join(stored)}, the "
            f"specification has {_join(cube.dimension_columns)}. Pass {cube.uuid_prefix!r} or what "
            "discover_cube returns; queries with fewer dimensions take dimension_columns"
        )
        yield Violation(Rule.SPECIFICATION, name, error)


def _index_violations(name: str, dataset: DatasetMetadata, columns: set[str], cube: Cube) -> _Violations:
    keys = set(dataset.partition_keys or [])
    required = columns & set(cube.index_columns)
    explicit: set[str] = set()
    if name == cube.seed_dataset:
        explicit = set(cube.dimension_columns) - set(cube.suppress_index_on)
    for column in sorted(keys | required | explicit):
        index = dataset.indices.get(column)
        rule, expected = Rule.INDICES, "ExplicitSecondaryIndex"
        if column in keys - explicit:
            # without an index, the labels imply one
            if index is None or isinstance(index, PartitionIndex):
                continue
            rule, expected = Rule.KEY_INDICES, "PartitionIndex"
        elif isinstance(index, ExplicitSecondaryIndex):
            continue
        problem = f"ExplicitSecondaryIndex is missing in dataset {name!r} for column: {column}"
        if index is not None or column in keys:
            problem = (
                f"Wrong index type in dataset {name!r} for column {column}: "
                f"expected {expected} but got {type(index).__name__}"
            )
        yield Violation(rule, name, ValueError(problem), (column,))


def ensure_valid_cube_indices(existing_datasets: Mapping[str, DatasetMetadata], cube: Cube) -> Cube:
    """Extend a cube by the indices of its datasets; ValueError if a dataset lacks one of the cube."""
    indexed: set[str] = set()
    for name, dataset in sorted(existing_datasets.items()):
        required = set(cube.index_columns) & get_dataset_columns(dataset)
        missing = required - set(dataset.secondary_indices)
        if missing:
            raise ValueError(
                f"Dataset {name!r} has no index on {', '.join(sorted(missing))}, which is an index column of "
                f"{cube}; indexed are: {', '.join(sorted(dataset.secondary_indices)) or 'none'}"
            )
        indexed |= set(dataset.secondary_indices)
    key_columns = {*cube.dimension_columns, *cube.partition_columns}
    return cube.copy(
        index_columns=set(cube.index_columns) | (indexed - key_columns),
        suppress_index_on=set(cube.suppress_index_on) - indexed,
    )
