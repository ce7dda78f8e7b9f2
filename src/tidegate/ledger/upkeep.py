"""Upkeep: consumers prune old entries of their group's journal in the background."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from tidegate.core.runtime import Runtime, Strand
from tidegate.errors import LedgerDenied, TidegateError
from tidegate.ledger.position_store import PositionStore
from tidegate.ledger.threads import THREADS

__all__ = ["EVERY", "Upkeep"]

_log = logging.getLogger("tidegate")

EVERY = 600.0
"""Seconds between two prunings of a group's journal, by any of its members."""

_JITTER = 60.0
_CLOSE = 1.0


class Upkeep:
    """Prunes the journal of a group regularly, in its own thread; its errors are only logged.

    Every consumer of a group has one. The ledger stores when the group's journal was last pruned, so that only one of
    them prunes it each time.
    """

    def __init__(
        self, ledger: PositionStore[Any], group: str, first: float = 0.0, *, runtime: Runtime = THREADS
    ) -> None:
        """``first``: seconds until the first pruning."""
        self._ledger = ledger
        self._group = group
        self._runtime = runtime
        self._rng = runtime.random()
        self._due = runtime.monotonic() + first
        self._thread: Strand | None = None
        self._is_denied = not ledger.limits.retention

    def look(self) -> None:
        """Begin to prune if it is time. Call it about every second."""
        if self._is_denied or self._runtime.monotonic() < self._due:
            return
        self._due = self._runtime.monotonic() + EVERY + self._rng.uniform(0, _JITTER)
        if self._thread is None or not self._thread.is_alive():
            self._thread = self._runtime.start(self._prune, f"tidegate-upkeep-{self._group}")

    def close(self) -> None:
        """Wait up to a second for a pruning under way."""
        if self._thread is not None:
            self._thread.join(_CLOSE)

    def _prune(self) -> None:
        try:
            if self._ledger.begin_pruning(self._group, timedelta(seconds=EVERY)):
                pruned = self._ledger.prune(timedelta(seconds=self._ledger.limits.retention), self._group)
                _log.debug("group %s: pruned %d old entries of the journal", self._group, pruned)
        except LedgerDenied as error:
            self._is_denied = True
            _log.info("group %s: the journal is not pruned by this process: %s", self._group, error)
        except TidegateError as error:
            _log.info("group %s: pruning the journal failed, and will be tried again: %s", self._group, error)
        except Exception:
            _log.exception("group %s: pruning the journal failed", self._group)
