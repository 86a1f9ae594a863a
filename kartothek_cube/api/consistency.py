"""Consistency checks of the datasets of a cube."""

from __future__ import annotations

from kartothek_cube.core.cube.consistency import check_datasets, get_cube_payload, get_payload_subset

__all__ = ("check_datasets", "get_cube_payload", "get_payload_subset")
