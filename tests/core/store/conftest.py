"""Directories of these tests are on a disk: other processes and crashes concern what a file system does."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty directory on a disk."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)
