"""The examples of the pages run as tests, each page in a directory of its own."""

from __future__ import annotations

import pytest

collect_ignore_glob = ["*.py"]


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
