"""Rounds: something that is looked at again and again, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Rounds"]

_GRACE = 1.0  # seconds
_SHARE = 4  # looking takes at most one part of so many of the time


class Rounds:
    """Calls ``look`` every so many seconds, and at once when someone asks for it."""

    def __init__(self, name: str, look: Callable[[], None], every: float) -> None:
        self._look = look
        self._every = every
        self._due = threading.Event()
        self._turned = threading.Condition()
        self._begun = 0
        self._done = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Make no further round. The one under way may be waiting for a server; it is not waited for long."""
        self._stopping = True
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(_GRACE)

    def soon(self) -> None:
        """Begin the next round now, or as soon as the one under way is over."""
        self._due.set()

    def wait(self, seconds: float) -> bool:
        """Wait for a round that begins from now on; whether it ended in time."""
        with self._turned:
            wanted = self._begun + 1
            self._due.set()
            return self._turned.wait_for(lambda: self._done >= wanted, seconds)

    def wait_for_first(self, seconds: float) -> bool:
        """Wait until there was a round at all."""
        with self._turned:
            return self._turned.wait_for(lambda: self._done > 0, seconds)

    def _run(self) -> None:
        while not self._stopping:
            with self._turned:
                self._due.clear()
                self._begun += 1
            began = time.monotonic()
            self._look()
            with self._turned:
                self._done = self._begun
                self._turned.notify_all()
            self._due.wait(max(self._every, (time.monotonic() - began) * (_SHARE - 1)))
