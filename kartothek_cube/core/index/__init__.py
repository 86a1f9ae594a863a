"""Inverted indices: value of a column -> partitions."""

from kartothek_cube.core.index.data import IndexColumns
from kartothek_cube.core.index.secondary import ExplicitSecondaryIndex, IndexBase, PartitionIndex
from kartothek_cube.core.index.secondary import IndexDictType as IndexDictType  # not in a star import
from kartothek_cube.core.index.secondary import ValueType as ValueType
from kartothek_cube.core.index.secondary import filter_indices as filter_indices
from kartothek_cube.core.index.secondary import merge_indices as merge_indices
from kartothek_cube.core.index.secondary import (
    remove_partitions_from_indices as remove_partitions_from_indices,
)

__all__ = ("ExplicitSecondaryIndex", "IndexBase", "IndexColumns", "PartitionIndex")
