"""Exponential backoff: attempts of a compare-and-swap, repetitions of a failed request."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from kartothek_cube.core import clock

__all__ = ("attempts", "retry_request")

T = TypeVar("T")

#: attempts before a writer gives up against faster ones; with the pauses below this is about a minute
_ATTEMPTS = 60
_LONGEST_PAUSE_S = 2.0
#: stores repeat requests themselves; this is for errors that remain
_REPETITIONS = 3
_PAUSE_S = 0.1


def attempts() -> Iterator[int]:
    """Count attempts, with a pause before each but the first that grows and is random.

    >>> next(attempts())
    0
    """
    # random, so that writers that met once do not meet again
    yield 0
    for attempt in range(1, _ATTEMPTS):
        clock.sleep(min(_LONGEST_PAUSE_S, 0.005 * 1.5 ** (attempt - 1)) * random.random())
        yield attempt


def retry_request(request: Callable[[], T]) -> T:
    """Repeat a request that fails, a few times."""
    # for requests after a successful commit: a lost one must not turn it into an error
    for attempt in range(_REPETITIONS):
        if attempt:
            clock.sleep(_PAUSE_S * attempt)
        try:
            return request()
        except OSError as error:
            failure = error
    raise failure
