"""A pace: so many a second, and no more."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Pace"]

_BURST = 0.1  # seconds that may be caught up on


class Pace:
    """Waits as long as it takes to keep to a rate. What was not used is not saved up."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._gap = 1 / rate
        self._clock = clock
        self._sleep = sleep
        self._next = clock()

    def wait(self) -> None:
        """Wait until the next one may go."""
        now = self._clock()
        if self._next > now:
            self._sleep(self._next - now)
        self._next = max(self._next, now - _BURST) + self._gap
