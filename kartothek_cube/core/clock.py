"""The only source of time, replaceable in tests.

Call the functions through the module (``_time.datetime_utcnow()``), so that a frozen time is seen everywhere.
"""

from __future__ import annotations

import datetime

__all__ = ("datetime_now", "datetime_utcnow")


def datetime_now() -> datetime.datetime:
    """Tell the time: naive, UTC.

    The same clock as :func:`datetime_utcnow`; local time has no place in anything that is stored.

    Returns
    -------
    datetime.datetime
    """
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def datetime_utcnow() -> datetime.datetime:
    """Tell the time: naive, UTC; all time stamps in headers and index keys are made of it.

    Returns
    -------
    datetime.datetime

    Examples
    --------
    >>> datetime_utcnow().tzinfo is None
    True
    """
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
