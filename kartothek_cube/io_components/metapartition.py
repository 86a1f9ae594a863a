"""Name of the only table of a dataset, where users of kartothek import it from."""

from __future__ import annotations

from kartothek_cube.core.naming import SINGLE_TABLE

__all__ = ("SINGLE_TABLE",)
