"""Small checks: versions of the format, strings, and where users find `ensure_store`."""

import pytest

from kartothek_cube.core import utils
from kartothek_cube.core.store import resolve


@pytest.mark.parametrize("version", [3, 5, 0, -1, True])
def test_other_versions(version):
    with pytest.raises(NotImplementedError, match=str(version)):
        utils.verify_metadata_version(version)


def test_ensure_string_type():
    for given, expected in (("a", "a"), (b"a", "a"), ("é".encode(), "é"), (1, "1"), (None, "None")):
        assert utils.ensure_string_type(given) == expected
    with pytest.raises(UnicodeDecodeError):
        utils.ensure_string_type(b"\xff")


def test_stores():
    names = {"ensure_store", "ensure_string_type", "lazy_store", "verify_metadata_version"}
    assert set(utils.__all__) == names
    assert utils.ensure_store is resolve.ensure_store
    assert utils.lazy_store is resolve.lazy_store
