"""Arrays in pages of their own: the same values, and memory that is given back at once."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from kartothek_cube.io_components import memory
from kartothek_cube.io_components.memory import in_own_pages


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "f8", "M8[ns]"])
def test_large_arrays_are_copied(dtype):
    values = np.arange(1 << 20).astype("u1").astype("i8").astype(dtype)[::2]
    found = in_own_pages(values)
    assert found.dtype == values.dtype
    assert found.flags.writeable
    assert isinstance(found.base, mmap.mmap) or isinstance(found.base.obj, mmap.mmap)
    np.testing.assert_array_equal(found, values)


def test_small_arrays_stay_where_they_are():
    values = np.zeros((1 << 16) - 1)
    assert in_own_pages(values) is values


def test_where_the_system_has_no_pages_left(monkeypatch):
    def refuse(size):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(memory, "_pages", refuse)
    values = np.zeros(1 << 16)
    assert in_own_pages(values) is values
