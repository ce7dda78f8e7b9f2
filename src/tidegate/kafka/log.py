"""The client's own log: among the others, and without its endless repetitions."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from tidegate.settings.masking import masked

__all__ = ["ClientLog"]

_AGAIN = 3600.0  # seconds after which something is news again
_MOST = 1000  # different things to remember
_VARYING = re.compile(r"\(after .*|\d+")
_NO_ALARM = {"FAIL", "SESSTMOUT"}  # one connection failed, and others may do; the group gave the consumer up


class ClientLog:
    """What librdkafka says, passed on to the logger ``tidegate.kafka`` instead of to standard error.

    A broker that is away makes it say the same about twenty times a second: what was said within the hour is logged
    as DEBUG. What observers are told of, if it matters, is no alarm here.
    """

    def __init__(self, logger: logging.Logger | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger or logging.getLogger("tidegate.kafka")
        self._clock = clock
        self._said: dict[str, float] = {}

    def log(self, level: int, _: str, facility: str, client: str, text: str) -> None:
        """What the client calls while it is polled."""
        if facility in _NO_ALARM:
            level = min(level, logging.INFO)
        if self._is_old(f"{facility} {_VARYING.sub('', text)}"):
            level = logging.DEBUG
        self._logger.log(level, "%s [%s] %s", facility, client, masked(text))

    def _is_old(self, what: str) -> bool:
        now = self._clock()
        if now - self._said.get(what, -_AGAIN) < _AGAIN:
            return True
        if len(self._said) >= _MOST:
            self._said.clear()
        self._said[what] = now
        return False
