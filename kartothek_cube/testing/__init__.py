"""Contracts for authors of stores, as classes of tests to inherit from; they need pytest."""

from __future__ import annotations

import pytest

# before the import: failures show the values compared
pytest.register_assert_rewrite("kartothek_cube.testing.store_contract")

from kartothek_cube.testing.store_contract import (  # noqa: E402
    ILLEGAL_KEYS,
    CompareAndSwapContract,
    StoreContract,
    increment_counter,
)

__all__ = ("ILLEGAL_KEYS", "CompareAndSwapContract", "StoreContract", "increment_counter")
