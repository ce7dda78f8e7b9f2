"""Waiting for a ledger or a broker that is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tidegate.core.errors import BrokerUnavailable, LedgerBusy, LedgerUnavailable, NotCommitted
from tidegate.observe.observer import Event
from tidegate.observe.outages import Outages

__all__ = ["AWAY", "Waiting"]

AWAY = (LedgerUnavailable, LedgerBusy, NotCommitted)
"""What the ledger raises that passes by itself."""

_PATIENCE = 300.0  # seconds for which the ledger or the broker may be away
_PAUSE = 1.0  # seconds between two tries


class Waiting:
    """Outages of one run: told once each, waited for within bounds, and ended by a stop."""

    def __init__(self, group: str, stopping: threading.Event, tell: Callable[[Event], None]) -> None:
        self._stopping = stopping
        self._outages = Outages(group, tell)
        self._since: float | None = None

    def until_done(self, work: Callable[[], object]) -> bool:
        """Do something as often as it takes; whether it was done before a stop."""
        while not self._stopping.is_set():
            if self.tried(work):
                self.over()
                return True
        return False

    def tried(self, work: Callable[[], object]) -> bool:
        """Do something; if what it needs is away, wait for a moment instead."""
        try:
            work()
        except (*AWAY, BrokerUnavailable) as error:
            self.out(error)
            return False
        return True

    def out(self, error: Exception) -> None:
        """Wait for a moment; raise the error if it has taken too long. Nothing is held, so nobody waits for us."""
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > _PATIENCE:
            raise error
        self._outages.begin("broker" if isinstance(error, BrokerUnavailable) else "ledger", str(error))
        self._stopping.wait(_PAUSE)

    def failed(self, error: Exception, seconds: float) -> None:
        """A job of Spark failed: tell, and wait before the next try."""
        self._outages.begin("Spark", str(error))
        self._stopping.wait(seconds)

    def over(self) -> None:
        """Ledger and broker have answered."""
        for what in ("ledger", "broker"):
            self._outages.end(what)
        self._since = None

    def succeeded(self) -> None:
        """A job of Spark succeeded."""
        self._outages.end("Spark")
        self.over()
