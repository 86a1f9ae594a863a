"""The only source of time, replaceable in tests."""
# Call the functions through the module (``clock.datetime_utcnow()``), so that a frozen time is seen
# everywhere.

from __future__ import annotations

import datetime

__all__ = ("datetime_now", "datetime_utcnow")


def datetime_now() -> datetime.datetime:
    """Current time, naive, UTC: the same clock as `datetime_utcnow`, as nothing stored is local time."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def datetime_utcnow() -> datetime.datetime:
    """Current time, naive, UTC: the source of all timestamps in headers and index keys."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
