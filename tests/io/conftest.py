"""A store in a directory, which other libraries read, too."""

import pytest


@pytest.fixture
def url(tmp_path):
    return f"hfs://{tmp_path}/store?create_if_missing=true"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"
