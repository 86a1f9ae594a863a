"""Directories on file systems of other machines."""

import io

import pandas as pd
import pytest

from kartothek_cube.api.cube import C, Cube, build_cube, query_cube
from kartothek_cube.core.store import NoCompareAndSwapWarning, blob_store, local, open_blobs
from kartothek_cube.io_components import scan

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/x /mnt nfs4 rw 0 0
/dev/vdb /mnt/local xfs rw 0 0
sshfs /with\\040space fuse.sshfs rw 0 0
"""


@pytest.fixture
def mounts(monkeypatch):
    monkeypatch.setattr(local, "open", lambda name, **kw: io.StringIO(MOUNTS), raising=False)
    monkeypatch.setattr(local, "file_system", local.file_system.__wrapped__)


@pytest.mark.parametrize(
    "path, expected",
    [("/a", False), ("/mnt", True), ("/mnt/a", True), ("/mnt/local/b", False), ("/with space/a", True)],
)
def test_is_on_network(mounts, path, expected):
    assert local.is_on_network(path) is expected


def test_locks_of_one_machine_do_not_count(monkeypatch, tmp_path):
    for kind, expected in {"ext4": True, "ceph": True, "nfs4": False, "cifs": False}.items():
        monkeypatch.setattr(local, "file_system", lambda path, kind=kind: kind)
        assert open_blobs(tmp_path).can_swap is expected
    monkeypatch.setattr(blob_store, "_WARNED", set())
    with pytest.warns(NoCompareAndSwapWarning):
        open_blobs(tmp_path).put_if("header", b"1", None)


def test_files_on_a_network_are_not_mapped(monkeypatch, tmp_path):
    """Polars maps paths into memory, and reads URLs."""
    monkeypatch.setattr(local, "is_on_network", lambda path: True)
    located = []
    locate = scan._locate
    monkeypatch.setattr(scan, "_locate", lambda *args: located.append(locate(*args)) or located[-1])
    cube = Cube(["x"], ["p"], "cube")
    df = pd.DataFrame({"x": [1, 2, 3, 4], "p": ["a%2Fb", "a b", "ä?#", "[0]*"], "v": [1.0, 2.0, 3.0, 4.0]})
    build_cube(df, cube, f"hfs://{tmp_path}")
    (found,) = query_cube(cube, f"hfs://{tmp_path}")
    pd.testing.assert_frame_equal(found[["x", "p", "v"]], df, check_dtype=False)
    (found,) = query_cube(cube, f"hfs://{tmp_path}", conditions=C("v") > 2)
    assert found["p"].tolist() == ["ä?#", "[0]*"]
    urls = [url for sources, _ in located for url in sources]
    assert len(urls) == 8
    assert all(url.startswith("file:///") for url in urls)
