"""The drivers of the ordeal: one at work, one in reserve with its session open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.spark.faulty import FOLDER
from tests.chaos.spark.orders import Orders
from tests.chaos.spark.traps import Action, Place, Traps

ROOT = Path(__file__).parents[3]
PATIENCE = 300.0


def wait_until(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about within {timeout:g} s")
        time.sleep(0.02)


@dataclass
class Driver:
    """One process."""

    orders: Orders
    process: subprocess.Popen[bytes]
    traps: Traps

    @property
    def name(self) -> str:
        return self.orders.name

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ready(self) -> None:
        self.wait_for("ready")

    def go(self) -> None:
        self.orders.gate.touch()

    def notes(self, event: str) -> list[dict[str, Any]]:
        return self.traps.notes(event, driver=self.name)

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Until it has noted that so often; it may not end before it has."""
        wait_until(lambda: len(self.notes(event)) >= count or not self.alive, f"{event!r} of driver {self.name}")
        found = self.notes(event)
        assert len(found) >= count, f"driver {self.name} ended with {self.process.returncode}: {self.last_words}"
        return found[count - 1]

    def another(self, event: str) -> dict[str, Any]:
        """Until it notes that once more."""
        return self.wait_for(event, len(self.notes(event)) + 1)

    def ended(self) -> int:
        """Wait for its end; how it ended."""
        wait_until(lambda: not self.alive, f"the end of driver {self.name}")
        return int(self.process.returncode)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def last_words(self) -> str:
        stopped = [note.get("reason") for note in self.notes("stopped")]
        log = self.orders.place / f"{self.name}.log"
        return f"{stopped} {log.read_text(errors='replace')[-3000:]}"


@dataclass
class Crew:
    orders: Orders
    traps: Traps
    lives: int
    """How many drivers are needed in all."""
    with_reserve: bool = True
    kills: int = 0
    drivers: list[Driver] = field(default_factory=list)
    _reserve: Driver | None = None

    @property
    def at_work(self) -> Driver:
        return next(driver for driver in reversed(self.drivers) if driver is not self._reserve)

    def reserve(self) -> Driver:
        """One whose session is open, or about to be."""
        if self._reserve is None:
            self._reserve = self._started()
        return self._reserve

    def next(self) -> Driver:
        """Let the one in reserve go to work; it has claimed everything on return."""
        driver = self.reserve()
        driver.ready()
        self._reserve = None
        driver.go()
        driver.wait_for("claimed")
        if self.with_reserve and len(self.drivers) < self.lives:
            self.reserve()
        return driver

    def end(self) -> None:
        for driver in self.drivers:
            driver.kill()
            if driver.process.stdin is not None:
                driver.process.stdin.close()
        for note in self.traps.notes("sprung", action=Action.FREEZE):
            wake(note["pid"])

    def _started(self) -> Driver:
        orders = self.orders.named(f"d{len(self.drivers) + 1}")
        log = os.open(orders.place / f"{orders.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.spark.driver"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), FOLDER: orders.folder},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        finally:
            os.close(log)
        assert process.stdin is not None
        process.stdin.write(orders.dumped().encode() + b"\n")
        process.stdin.flush()
        self.drivers.append(Driver(orders, process, self.traps))
        return self.drivers[-1]

    def sprung(self, place: Place, action: Action) -> dict[str, Any]:
        """Lay a trap, and wait until somebody has fallen in; and, if it is to freeze, is frozen."""
        trap = self.traps.lay(place, action)
        driver = self.at_work

        def found() -> list[dict[str, Any]]:
            return self.traps.notes("sprung", trap=trap.name)

        wait_until(lambda: found() or not driver.alive, f"{trap.name}")
        assert found(), f"driver {driver.name} ended with {driver.process.returncode}: {driver.last_words}"
        note = found()[0]
        if action is Action.FREEZE:
            wait_until(lambda: frozen(note["pid"]), f"the freezing of {note['pid']}")
        return note


def frozen(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def wake(pid: int) -> None:
    """Let a frozen process of ours go on; one that is gone may have left its number to somebody else."""
    if frozen(pid) and "python" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    while pid > 1 and pid not in found:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found
