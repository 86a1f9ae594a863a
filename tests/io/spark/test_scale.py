"""What travels between driver and tasks, and what the driver holds, per partition."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io_components.query.logical_plan import QueryCube
from kartothek_cube.io_components.query.physical_plan import plan_query, split_into_tasks
from kartothek_cube.io_components.write.cube_writes import BuildCube
from kartothek_cube.io_components.write.write_commit import finish_write
from kartothek_cube.io_components.write.write_tasks import write_stream
from tests.io.dataset.test_memory import measured

pytestmark = pytest.mark.slow("runs many Spark jobs")

CUBE = Cube(["x", "y"], ["p"], "cube")
FEW, MANY = 100, 300
#: bytes per partition
SENT, HELD = 1000, 2000


def rows(n: int) -> pa.Table:
    numbers = np.arange(n)
    return pa.table({"p": numbers, "x": numbers, "y": [f"y{i % 7}" for i in range(n)], "v1": numbers / 7})


class Written:
    """A cube of so many partitions, written by four tasks."""

    def __init__(self, url: str, n: int) -> None:
        self.url, self.n = url, n
        self.plan = BuildCube(None, CUBE, url).plan(["seed"])
        self.shared = pickle.dumps(self.plan.without_commit_state())
        tables = [rows(n).filter(pa.array(np.arange(n) % 4 == task)) for task in range(4)]
        self.outcomes = [pickle.dumps(write_stream(pickle.loads(self.shared), "seed", [t])) for t in tables]

    def commit(self) -> None:
        finish_write(self.plan, map(pickle.loads, self.outcomes))

    def query_tasks(self) -> list[bytes]:
        return [pickle.dumps(task) for task in split_into_tasks(plan_query(QueryCube(CUBE, self.url)), 4)]


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return Written(f"hfs://{tmp_path_factory.mktemp('few')}", FEW)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return Written(f"hfs://{tmp_path_factory.mktemp('many')}", MANY)


def per_partition(small: int, large: int) -> float:
    return (large - small) / (MANY - FEW)


def test_what_writing_tasks_get_does_not_grow_and_what_they_send_is_small(few, many):
    assert len(few.shared) == pytest.approx(len(many.shared), abs=50)
    assert per_partition(sum(map(len, few.outcomes)), sum(map(len, many.outcomes))) < SENT


def test_the_driver_commits_and_plans_in_little_memory(few, many):
    peaks = []
    for written in (few, many):
        with measured() as commit:
            written.commit()
        with measured() as query:
            written.query_tasks()
        peaks.append((commit.total, query.total))
    for small, large in zip(*peaks):
        assert per_partition(small, large) < HELD


def test_tasks_of_a_query_are_small(few, many):
    for written in (few, many):
        written.commit()  # a no-op if another test has committed the same write
    small, large = (sum(map(len, written.query_tasks())) for written in (few, many))
    assert per_partition(small, large) < SENT
    contexts = [
        len(pickle.dumps(plan_query(QueryCube(CUBE, written.url)).context)) for written in (few, many)
    ]
    assert contexts[0] == pytest.approx(contexts[1], abs=50)
