"""Exponential backoff of commit attempts and of failed requests."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ("attempts", "retry_request")

T = TypeVar("T")

#: commit attempts before a writer gives up; about a minute with the pauses below
_ATTEMPTS = 60
_LONGEST_PAUSE_S = 2.0
#: stores repeat failed requests themselves; this is for failures that remain
_REPETITIONS = 3
_PAUSE_S = 0.1


def attempts() -> Iterator[int]:
    """Numbers of commit attempts, with exponentially growing, randomised pauses in between."""
    yield 0
    for attempt in range(1, _ATTEMPTS):
        time.sleep(min(_LONGEST_PAUSE_S, 0.005 * 1.5 ** (attempt - 1)) * random.random())
        yield attempt


def retry_request(request: Callable[[], T]) -> T:
    """Repeat a request a few times if it fails with an OSError."""
    # For steps after a published commit: one lost request must not make an error of a success.
    for attempt in range(_REPETITIONS):
        if attempt:
            time.sleep(_PAUSE_S * attempt)
        try:
            return request()
        except OSError as error:
            failure = error
    raise failure
