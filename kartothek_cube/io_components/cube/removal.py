"""Choosing physical partitions of a cube, to be removed, replaced or compacted."""

from __future__ import annotations

from typing import Any

from kartothek_cube.core.cube.conditions import Conjunction
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.dataset import DatasetMetadata

__all__ = ("partition_scope", "removal_conditions")

Predicates = list[list[tuple[str, str, Any]]]


def partition_scope(conditions: Conjunction, dataset: DatasetMetadata) -> Predicates:
    """
    The conditions that concern partition keys of a dataset.

    Parameters
    ----------
    conditions
        Conditions on partition columns of the cube.
    dataset
        The dataset.

    Returns
    -------
    list
        Predicate; ``[]`` (everything) if no condition concerns the dataset.
    """
    keys = set(dataset.partition_keys or ())
    literals = Conjunction([c for c in conditions.conditions if c.column in keys]).predicate
    return [literals] if literals else []


def removal_conditions(cube: Cube, conditions: Any) -> Conjunction:
    """
    Conditions that choose physical partitions.

    Parameters
    ----------
    cube
        The cube.
    conditions
        What a user gave.

    Returns
    -------
    Conjunction

    Raises
    ------
    ValueError
        If one is on another column than the partition columns of the cube.
    """
    ensure_cube(cube)
    conjunction = Conjunction(conditions)
    wrong = conjunction.columns - set(cube.partition_columns)
    if wrong:
        raise ValueError(
            "Can only remove partitions with conditions concerning cubes physical partition columns "
            f"({', '.join(cube.partition_columns)}), but got conditions on: {', '.join(sorted(wrong))}"
        )
    return conjunction
