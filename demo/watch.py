"""Watching a table grow, from outside of the pipeline that fills it."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

_EVERY = 0.1  # seconds


class Sample(NamedTuple):
    """How many rows there were, so many seconds after the beginning."""

    at: float
    rows: int


class Watch:
    """Looks at the table ten times a second, and remembers."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._began = time.monotonic()
        self._grown = threading.Condition()
        self._over = threading.Event()
        self.samples = [Sample(0.0, 0)]
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def rows(self) -> int:
        return self.samples[-1].rows

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def wait_beyond(self, rows: int, seconds: float) -> bool:
        """Wait until there are more rows than that, so long at most; whether there are."""
        with self._grown:
            return self._grown.wait_for(lambda: self.rows > rows, seconds)

    def close(self) -> None:
        """Look once more, and stop."""
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY):
            self._look()

    def _look(self) -> None:
        rows = count_rows(self._database)
        with self._grown:
            self.samples.append(Sample(self.seconds, rows))
            self._grown.notify_all()


def count_rows(database: Path) -> int:
    """The rows of the table, which only ever grows; none if there is no table yet."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
            return int(connection.execute("SELECT max(rowid) FROM orders").fetchone()[0] or 0)
    except sqlite3.OperationalError:
        return 0
