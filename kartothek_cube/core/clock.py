"""The only source of time, replaceable in tests."""
# Call the functions through the module (``clock.datetime_utcnow()``), so that a frozen time is seen
# everywhere.

from __future__ import annotations

import datetime

__all__ = ("datetime_utcnow",)


def datetime_utcnow() -> datetime.datetime:
    """Current time, naive, UTC: the source of all timestamps in headers and index keys."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
