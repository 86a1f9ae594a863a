"""``Cube``: the specification of a cube."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Self, cast

import attrs

from kartothek_cube.core import arguments, naming
from kartothek_cube.core.cube.constants import KTK_CUBE_UUID_SEPARATOR
from kartothek_cube.core.transforms import PartitionTransform
from kartothek_cube.display import card, facts, table

__all__ = ("Cube",)


# parameters of ``Cube`` have the types of those of the converters
def _to_name(name: str) -> str:
    return arguments.converter_str(name)


def _to_prefix(name: str) -> str:
    return arguments.parse_name("uuid_prefix", name)


def _to_columns(columns: str | Iterable[str]) -> tuple[str, ...]:
    return arguments.converter_str_tupleset(columns)


def _to_partitions(columns: str | PartitionTransform | Iterable[str | PartitionTransform]) -> tuple[str, ...]:
    # the constructor takes the names of transforms
    items = arguments.converter_tuple(columns)
    has_transforms = any(isinstance(item, PartitionTransform) for item in items)
    is_ordered = not isinstance(columns, set | frozenset | dict)
    return items if has_transforms and is_ordered else arguments.converter_str_tupleset(cast(Any, columns))


def _to_tuple(transforms: Iterable[PartitionTransform]) -> tuple[PartitionTransform, ...]:
    return tuple(transforms)


def _repr_set(names: frozenset[str]) -> str:
    """Representation of a set in a reproducible order."""
    return f"frozenset({{{', '.join(repr(name) for name in sorted(names))}}})" if names else "frozenset()"


@attrs.frozen(repr=False)
class Cube(arguments.CopyMixin):
    """Specification of a cube: a set of datasets; immutable, comparable and hashable.

    Its files are described in :doc:`/format`.

    Parameters
    ----------
    dimension_columns
        The columns that identify a cell; their order is the sort order of the data. At least one.
    partition_columns
        The columns by which data is partitioned in the store, none of them a dimension. Without any, each
        dataset is one partition: it is removed and replaced as a whole. kartothek reads the datasets of such
        cubes only. A transform of a dimension, such as ``month("DAY")``, makes a column whose values are
        derived when rows are written, and by which conditions on the dimension prune partitions
        (:doc:`/partitioning`).
    uuid_prefix
        Common prefix of the uuids of all datasets.
    seed_dataset
        Id of the dataset that knows which cells exist.
    index_columns
        Further columns to be indexed, neither dimension nor partition columns.
    suppress_index_on
        Dimension columns that are *not* to be indexed in the seed.
    transforms
        Transforms of partition columns that are given by their names, as in :attr:`partition_columns`.

    Raises
    ------
    TypeError
        A name is not text, or a sequence of columns has no order.
    ValueError
        Columns are missing, occur twice or in two roles, or a name cannot be part of a dataset uuid.

    Examples
    --------
    >>> cube = Cube(
    ...     dimension_columns=["CITY", "DAY"],
    ...     partition_columns=["COUNTRY_CODE"],
    ...     uuid_prefix="geodata",
    ... )
    >>> cube.ktk_dataset_uuid("weather")
    'geodata++weather'
    >>> sorted(cube.ktk_index_columns)
    ['CITY', 'COUNTRY_CODE', 'DAY']
    """

    dimension_columns: tuple[str, ...] = attrs.field(converter=_to_columns)
    partition_columns: tuple[str, ...] = attrs.field(converter=_to_partitions)
    uuid_prefix: str = attrs.field(converter=_to_prefix)
    seed_dataset: str = attrs.field(converter=_to_name, default="seed")
    index_columns: frozenset[str] = attrs.field(converter=arguments.converter_str_set, default=None)
    suppress_index_on: frozenset[str] = attrs.field(converter=arguments.converter_str_set, default=None)
    transforms: tuple[PartitionTransform, ...] = attrs.field(converter=_to_tuple, default=(), kw_only=True)

    def __attrs_post_init__(self) -> None:
        columns: tuple[Any, ...] = self.partition_columns
        given = [*self.transforms, *(c for c in columns if isinstance(c, PartitionTransform))]
        names = arguments.converter_str_tupleset(
            column.name if isinstance(column, PartitionTransform) else column for column in columns
        )
        object.__setattr__(self, "partition_columns", names)
        by_name = {transform.name: transform for transform in given}
        object.__setattr__(self, "transforms", tuple(by_name[name] for name in names if name in by_name))
        if not self.dimension_columns:
            raise ValueError("dimension_columns must not be empty")
        self._check_disjoint("partition_columns", "dimension_columns")
        for transform in given:
            if transform.name not in names:
                raise ValueError(f"{transform!r} is not among the partition_columns ({_join_sorted(names)})")
            if transform.column not in self.dimension_columns:
                dimensions = _join_sorted(self.dimension_columns)
                raise ValueError(
                    f"{transform!r} must be of one of the dimension_columns ({dimensions}): "
                    "the cell determines the partition"
                )
        self._check_disjoint("index_columns", "dimension_columns")
        self._check_disjoint("index_columns", "partition_columns")
        unknown = self.suppress_index_on.difference(self.dimension_columns)
        if unknown:
            dimensions = _join_sorted(self.dimension_columns)
            raise ValueError(
                f"suppress_index_on must be a subset of dimension_columns ({dimensions}), "
                f"but also has: {_join_sorted(unknown)}"
            )
        _check_uuid_part("uuid_prefix", self.uuid_prefix)
        _check_uuid_part("seed_dataset", self.seed_dataset)

    def __repr__(self) -> str:
        values = attrs.asdict(self, recurse=False)
        by_name = {transform.name: transform for transform in values.pop("transforms")}
        values["partition_columns"] = tuple(by_name.get(name, name) for name in self.partition_columns)
        reprs = {n: _repr_set(v) if isinstance(v, frozenset) else repr(v) for n, v in values.items()}
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in reprs.items())})"

    def copy(self, **kwargs: Any) -> Self:
        """Rebuild the cube through its constructor, with some arguments changed.

        Other ``partition_columns`` replace the transforms as well.
        """
        return super().copy(**({"transforms": ()} if "partition_columns" in kwargs else {}) | kwargs)

    def _check_disjoint(self, field: str, other: str) -> None:
        shared = set(getattr(self, field)).intersection(getattr(self, other))
        if shared:
            raise ValueError(f"{field} and {other} must not share columns, but share: {_join_sorted(shared)}")

    def ktk_dataset_uuid(self, ktk_cube_dataset_id: str | bytes) -> str:
        """Build the uuid of one of the cube's datasets.

        Parameters
        ----------
        ktk_cube_dataset_id
            Id of the dataset within the cube.

        Returns
        -------
        str

        Raises
        ------
        TypeError
            The id is not text.
        ValueError
            The id cannot be part of a dataset uuid.

        Examples
        --------
        >>> Cube(["DAY"], ["COUNTRY_CODE"], "geodata").ktk_dataset_uuid("seed")
        'geodata++seed'
        """
        dataset_id = arguments.converter_str(ktk_cube_dataset_id)
        _check_uuid_part("dataset id", dataset_id)
        return f"{self.uuid_prefix}{KTK_CUBE_UUID_SEPARATOR}{dataset_id}"

    @property
    def ktk_index_columns(self) -> set[str]:
        """All columns that are indexed in the seed: partition, index and not suppressed dimension columns."""
        dimensions = set(self.dimension_columns) - self.suppress_index_on
        return dimensions.union(self.partition_columns, self.index_columns)

    def commit_order(self, names: Iterable[str]) -> list[str]:
        """Sort dataset ids, the seed last: it makes a cube of the others."""
        return sorted(names, key=lambda name: (name == self.seed_dataset, name))

    def join_order(self, names: Iterable[str]) -> list[str]:
        """Sort dataset ids, the seed first: the others are joined to its cells."""
        return sorted(names, key=lambda name: (name != self.seed_dataset, name))

    def _repr_html_(self) -> str:
        suppressed = self.suppress_index_on
        roles = {transform.name: f"partition: {transform!r}" for transform in self.transforms}
        columns: list[tuple[str, str, str]] = [
            *((name, "dimension", "no" if name in suppressed else "seed") for name in self.dimension_columns),
            *((name, roles.get(name, "partition"), "labels") for name in self.partition_columns),
            *((name, "payload", "every dataset that has it") for name in sorted(self.index_columns)),
        ]
        return card(
            f"Cube {self.uuid_prefix}",
            facts({"seed dataset": self.seed_dataset, "datasets are named": f"{self.uuid_prefix}++<id>"}),
            table("Columns of the specification", ["column", "role", "indexed"], columns),
        )


def ensure_cube(cube: object) -> None:
    """Raise TypeError unless the argument is a cube specification."""
    if not isinstance(cube, Cube):
        raise TypeError(
            f"expected a Cube or the name of a stored one, got {type(cube).__name__}; discover_cube("
            "uuid_prefix, store) gives the specification of a stored cube, .cube of an opened one"
        )


def _join_sorted(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _check_uuid_part(field: str, value: str) -> None:
    """Refuse a name that cannot be one side of ``++`` in the uuid of a cube's dataset."""
    try:
        naming.check_uuid(value)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    if KTK_CUBE_UUID_SEPARATOR in value:
        raise ValueError(f"{field} {value!r} must not contain {KTK_CUBE_UUID_SEPARATOR}")
