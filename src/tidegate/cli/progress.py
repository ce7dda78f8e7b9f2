"""Progress on a terminal: one line that is written over; nothing where there is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

__all__ = ["Progress"]

_EVERY = 0.2  # seconds


class Progress:
    """Counts what was sent and what was delivered, and shows it."""

    def __init__(self, what: str, out: TextIO | None = None) -> None:
        self._what = what
        self._out = out or sys.stderr
        self._shows = self._out.isatty()
        self._began = time.monotonic()
        self._show_at = self._began + _EVERY
        self.sent_count = 0
        self.delivered_count = 0

    def sent(self) -> None:
        """One more is on its way."""
        self.sent_count += 1
        if self._shows and time.monotonic() >= self._show_at:
            self._show_at = time.monotonic() + _EVERY
            self._show()

    def delivered(self) -> None:
        """One more has arrived."""
        self.delivered_count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shows:
            self._show()
            self._out.write("\n")

    def _show(self) -> None:
        seconds = max(0.001, time.monotonic() - self._began)
        rate = self.delivered_count / seconds
        self._out.write(f"\r\x1b[K{self.delivered_count:,} {self._what}, {rate:,.0f} a second")
        self._out.flush()
