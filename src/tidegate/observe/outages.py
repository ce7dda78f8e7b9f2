"""Outages of the ledger and the broker: told once when they begin, and once when they are over."""

from __future__ import annotations

import time
from collections.abc import Callable

from tidegate.observe.observer import Event, StoreBack, StoreLost

__all__ = ["Outages"]


class Outages:
    """What is away at present."""

    def __init__(self, group: str, tell: Callable[[Event], None]) -> None:
        self._group = group
        self._tell = tell
        self._since: dict[str, float] = {}
        self.reasons: dict[str, str] = {}

    def begin(self, what: str, reason: str) -> None:
        """It does not answer."""
        if what not in self._since:
            self._since[what] = time.monotonic()
            self.reasons[what] = reason
            self._tell(StoreLost(self._group, what, reason))

    def end(self, what: str) -> None:
        """It answers."""
        since = self._since.pop(what, None)
        self.reasons.pop(what, None)
        if since is not None:
            self._tell(StoreBack(self._group, what, time.monotonic() - since))

    def __contains__(self, what: str) -> bool:
        return what in self._since
