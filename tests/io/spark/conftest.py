"""A session of Spark for all tests of this folder, in a time zone that is not that of the data.

Most of the tests also run with Spark Connect: ``SPARK_REMOTE="local[2]" pytest tests/io/spark``.
"""

import os
from pathlib import Path

import pytest

from tests.support.spark_session import REMOTE, shared_session


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With Spark Connect, leave out what looks into the JVM, which only classic sessions have."""
    if REMOTE in os.environ:
        classic = [item for item in items if "jvm" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=classic)
        items[:] = [item for item in items if item not in classic]


@pytest.fixture(scope="session")
def session():
    """A session with two workers; other tests may have started it."""
    return shared_session()


@pytest.fixture
def spark(session):
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield session
    session.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def jvm(spark):
    """The session, for tests that look at what only classic ones have: plans, jobs, RDDs."""
    return spark


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "store").mkdir()
    return f"hfs://{tmp_path / 'store'}"
