"""Disks that are full: each dataset is in its old or its new state, whole."""

import pytest

from tests.support import crash

pytestmark = pytest.mark.slow("each operation, in processes that cannot write files of many sizes")


@pytest.fixture
def tmp_path(tmp_path_factory):
    """In memory: the limit is that of a process, and to flush files takes longer than all the rest."""
    return tmp_path_factory.mktemp("full_disk")


@pytest.mark.parametrize("name", sorted(crash.OPERATIONS.keys() - {"delete", "cleanup"}))
def test_full_disk(name, tmp_path):
    before = tmp_path / "before"
    old = crash.prepare(name, before)
    after = crash.copy_place(before, tmp_path / "after")
    crash.OPERATIONS[name].run(after)
    new = crash.contents(after)
    sizes = {path.stat().st_size for path in (tmp_path / "after").rglob("*") if path.is_file()}

    failed = 0
    for size in (0, *(size - 1 for size in sorted(sizes))):
        place = crash.copy_place(before, tmp_path / "full")
        failed += crash.run_on_full_disk(name, place, size)
        crash.check_old_or_new(place, old, new)
    assert failed


def test_a_cleanup_of_a_full_disk(tmp_path):
    """It deletes what a killed writer has not renamed, which needs no tombstones, and fails."""
    place = crash.Place.below(tmp_path)
    crash.litter(place)
    temporary = tmp_path / f"store/cube++seed/table/p=0/a.parquet.{'0' * 32}.tmp"
    temporary.write_bytes(b"")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert crash.run_on_full_disk("cleanup", place, 0)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before - {temporary}
