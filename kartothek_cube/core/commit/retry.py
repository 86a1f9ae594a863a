"""How often, and after which pauses, a swap is tried again when somebody else was faster."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

__all__ = ("attempts",)

#: attempts before a writer gives up against faster ones; with the pauses below this is about a minute
_ATTEMPTS = 60
_LONGEST_PAUSE_S = 2.0


def attempts() -> Iterator[int]:
    """
    Count attempts; wait before each but the first, longer and longer, and not all writers equally long.

    Yields
    ------
    int
        Number of the attempt, from 0.

    Examples
    --------
    >>> next(attempts())
    0
    """
    yield 0
    for attempt in range(1, _ATTEMPTS):
        time.sleep(min(_LONGEST_PAUSE_S, 0.005 * 1.5 ** (attempt - 1)) * random.random())
        yield attempt
