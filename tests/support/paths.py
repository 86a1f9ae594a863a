"""Directories of the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
#: datasets and cubes of other libraries and versions, never changed
DATA = ROOT / "tests" / "data"
