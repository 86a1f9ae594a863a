"""What the fixtures promise: factories are picklable, stores are fresh, every façade can be selected."""

from __future__ import annotations

import pickle

from tests.conftest import FACADE_NAMES


def test_factory_survives_pickle_and_gives_the_same_store(store_factory, store):
    store.put("key", b"data")
    again = pickle.loads(pickle.dumps(store_factory))
    assert again().get("key") == b"data"
    assert list(store_factory()) == ["key"]


def test_stores_start_empty_and_are_independent(store_factory, other_store_factory):
    store_factory().put("key", b"data")
    assert list(other_store_factory()) == []


def test_every_facade_has_a_name_for_the_command_line():
    from tests.support.facades import FACADES

    assert tuple(FACADES) == FACADE_NAMES
