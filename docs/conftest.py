"""Run the examples of the pages as tests, each page in its own directory."""

from __future__ import annotations

import pytest

collect_ignore_glob = ["*.py"]


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
