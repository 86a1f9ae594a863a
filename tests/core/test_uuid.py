import uuid

import pytest

from kartothek_cube.core import uuid as uuids
from kartothek_cube.core.naming import validate_uuid


def test_ids_are_random_and_fit_for_names():
    assert uuids.gen_uuid() != uuids.gen_uuid()
    assert uuids.gen_uuid_object() != uuids.gen_uuid_object()
    assert validate_uuid(uuids.gen_uuid())
    assert uuid.UUID(hex=uuids.gen_uuid()).version == uuids.gen_uuid_object().version == 4


def test_hooks_decide_about_objects_and_texts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uuids, "_uuid_hook_object", lambda: uuid.UUID(int=5))
    assert uuids.gen_uuid_object() == uuid.UUID(int=5)
    assert uuids.gen_uuid() == "00000000000000000000000000000005"
    monkeypatch.setattr(uuids, "_uuid_hook_str", lambda: "abc")
    assert uuids.gen_uuid() == "abc"
    assert len(uuids.gen_uuid_object().hex) == 32
