"""Disks that are full: each dataset is in its old or its new state, whole."""

import shutil

import pytest

from tests.support import crash

pytestmark = pytest.mark.slow("each operation, in processes that cannot write files of many sizes")


@pytest.mark.parametrize("name", sorted(crash.OPERATIONS.keys() - {"delete", "cleanup"}))
def test_full_disk(name, tmp_path):
    operation = crash.OPERATIONS[name]
    before = tmp_path / "before"
    # reading creates no directory
    before.mkdir()
    operation.before(crash.Place.below(before))
    old = crash.contents(crash.Place.below(before))
    shutil.copytree(before, tmp_path / "after")
    operation.run(crash.Place.below(tmp_path / "after"))
    new = crash.contents(crash.Place.below(tmp_path / "after"))
    sizes = {path.stat().st_size for path in (tmp_path / "after").rglob("*") if path.is_file()}

    failed = 0
    for size in (0, *(size - 1 for size in sorted(sizes))):
        root = tmp_path / "full"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(before, root)
        place = crash.Place.below(root)
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
