"""Partitions of a dataset: `PartitionTable` as Arrow columns, `Partition` as single objects."""

from kartothek_cube.core.partition.partition import Partition, PartitionDictType
from kartothek_cube.core.partition.table import PartitionTable

__all__ = ("Partition", "PartitionDictType", "PartitionTable")
