"""The only source of time and of pauses, replaceable in tests."""
# Call the functions through the module (``clock.datetime_utcnow()``), so that a frozen time is seen
# everywhere.

from __future__ import annotations

import datetime
import time


def datetime_utcnow() -> datetime.datetime:
    """Current time, naive, UTC: the source of all timestamps in headers and index keys."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def sleep(seconds: float) -> None:
    """Pause before another attempt."""
    time.sleep(seconds)
