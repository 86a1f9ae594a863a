"""Partitions of a dataset: `PartitionTable` as Arrow columns, `Partition` as single objects."""

from kartothek_cube.core.partition.table import Partition, PartitionDictType, PartitionTable

__all__ = ("Partition", "PartitionDictType", "PartitionTable")
