"""Shows downloads while they run: a line that counts up on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["downloading", "show_downloads"]

_PLAIN_EVERY = 5.0  # seconds between two plain lines
_LIVE_EVERY = 0.1  # seconds between two updates of a terminal's line
_WIDEST = 100  # columns of a terminal's line; a line that wraps could not be replaced

_out: TextIO | None = None


def show_downloads(out: TextIO | None = None) -> None:
    """Show the downloads of this process from now on, by default on standard error. A library's caller sees none."""
    global _out  # noqa: PLW0603 - one process has one terminal
    _out = out or sys.stderr


@contextmanager
def downloading(what: str) -> Iterator[Callable[[str], None]]:
    """Show one download for the length of the block; the yielded function takes how far it has come."""
    shown = _Silent(what) if _out is None else _Live(what, _out) if _out.isatty() else _Plain(what, _out)
    shown.begin()
    try:
        yield shown.update
    except BaseException:
        shown.end("failed")
        raise
    shown.end("done")


class _Silent:
    """Shows nothing."""

    every = 0.0

    def __init__(self, what: str, out: TextIO | None = None) -> None:
        self._what = what
        self._out = out
        self._began = time.monotonic()
        self._next = self._began + self.every
        self._state = ""

    def begin(self) -> None:
        """Show that the download begins."""
        self._show(f"downloading {self._what}")

    def update(self, state: str) -> None:
        """Show the state, unless one was shown a moment ago."""
        self._state = state
        if (now := time.monotonic()) >= self._next:
            self._next = now + self.every
            self._show(f"downloading {self._what}: {state}")

    def end(self, how: str) -> None:
        """Show that the download has ended."""
        seconds = time.monotonic() - self._began
        said = f"{self._state}, " if self._state else ""
        self._show(f"downloading {self._what}: {said}{how} after {seconds:.0f} s", last=True)

    def _show(self, line: str, *, last: bool = False) -> None:
        pass


class _Plain(_Silent):
    every = _PLAIN_EVERY

    def _show(self, line: str, *, last: bool = False) -> None:
        print(line, file=self._out, flush=True)


class _Live(_Silent):
    every = _LIVE_EVERY

    def _show(self, line: str, *, last: bool = False) -> None:
        print(f"\r\x1b[K{line[:_WIDEST]}", end="\n" if last else "", file=self._out, flush=True)
