"""The only source of unique ids, replaceable in tests."""

from __future__ import annotations

import uuid

__all__ = ("gen_uuid", "gen_uuid_object")


def gen_uuid_object() -> uuid.UUID:
    """Make a random id (UUID version 4)."""
    return _uuid_hook_object()


def gen_uuid() -> str:
    """Make a random id as text, 32 hexadecimal digits; fit for the name of a dataset or of a file."""
    return _uuid_hook_str()


def _uuid_hook_object() -> uuid.UUID:
    """Generate an id; tests replace this."""
    return uuid.uuid4()


def _uuid_hook_str() -> str:
    """Generate an id as text; tests replace this."""
    return gen_uuid_object().hex
