"""A session of Spark for all tests of this folder, in a time zone that is not that of the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from kartothek_cube.io.spark import local_session


@pytest.fixture(scope="session")
def session():
    """A local session with two workers; other tests may have started it."""
    return local_session(2)


@pytest.fixture
def spark(session):
    """The session, in the time zone of Tokyo."""
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield session
    session.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """URL of an empty store."""
    (tmp_path / "store").mkdir()
    return f"hfs://{tmp_path / 'store'}"
