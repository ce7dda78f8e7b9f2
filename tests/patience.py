"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 180.0  # seconds: a machine that does five other things takes a minute for what takes two seconds


def wait_until(holds: Callable[[], bool], what: str, timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.05)


def next_millisecond() -> None:
    """Wait until the next journal entry has a later time than the last: SQLite's times have milliseconds, and entries
    of one millisecond are shown in the order of their partitions."""
    time.sleep(0.002)
