"""A store in a directory, which other libraries read, too."""

import pytest


@pytest.fixture
def url(tmp_path):
    """URL of an empty store."""
    return f"hfs://{tmp_path}/store?create_if_missing=true"


@pytest.fixture
def path(tmp_path):
    """Directory of that store."""
    return tmp_path / "store"
