"""The consumers of the storm: each in a slot, where it is replaced when it was killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.chaos.consumer import Orders, consume
from tests.processes import start

_DEFAULT_FREEZE = 2.5


@dataclass
class Seat:
    """One process, and for how long it is to stay frozen when it is found so."""

    process: ForkServerProcess
    notes: Path
    freeze: float = _DEFAULT_FREEZE
    wakes_at: float | None = None

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def frozen(self) -> bool:
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    @property
    def left_before_it_began(self) -> bool:
        """Whether it was told to leave before it listened to that, and had done nothing yet."""
        idle = not (self.notes.exists() and self.notes.stat().st_size)
        return idle and self.process.exitcode == -signal.SIGTERM

    def signal(self, number: int) -> None:
        if self.process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass
class Fleet:
    orders: Orders
    folder: Path
    killed: dict[int, float] = field(default_factory=dict)
    """When each process was killed."""
    fallen: list[str] = field(default_factory=list)
    """Those that ended by themselves, with the reason."""
    _seats: dict[int, Seat] = field(default_factory=dict)
    _leaving: list[Seat] = field(default_factory=list)
    _started: int = 0

    def join(self, slot: int) -> None:
        notes = self.folder / f"{self._started:03}-{slot}.jsonl"
        self._started += 1
        self._seats[slot] = Seat(start(consume, self.orders, notes), notes)

    def leave(self, slots: Iterable[int]) -> None:
        for slot in slots:
            if seat := self._seats.pop(slot, None):
                seat.signal(signal.SIGTERM)
                self._leaving.append(seat)

    def kill(self, slot: int) -> None:
        seat = self._seats[slot]
        self.killed[seat.pid] = time.time()
        seat.signal(signal.SIGKILL)
        seat.process.join()
        self.join(slot)

    def stop(self, slot: int, seconds: float) -> None:
        self._seats[slot].freeze = seconds
        self._seats[slot].signal(signal.SIGSTOP)

    def freeze(self, slot: int, number: int, seconds: float) -> None:
        """Have it freeze by itself, at the next place that the signal stands for."""
        seat = self._seats[slot]
        if seat.notes.exists():  # a newborn does not know the signal yet, and would die of it
            seat.freeze = seconds
            seat.signal(number)

    def attend(self) -> None:
        """Wake those that were frozen for long enough; take note of those that ended."""
        now = time.monotonic()
        for seat in (*self._seats.values(), *self._leaving):
            if not seat.frozen:
                seat.wakes_at = None
            elif seat.wakes_at is None:
                seat.wakes_at = now + seat.freeze
            elif now >= seat.wakes_at:
                seat.wakes_at = None
                seat.signal(signal.SIGCONT)
        for slot, seat in list(self._seats.items()):
            if not seat.process.is_alive():
                self._mourn(seat)
                self.join(slot)
        for seat in [seat for seat in self._leaving if not seat.process.is_alive()]:
            self._leaving.remove(seat)
            if seat.process.exitcode != 0 and not seat.left_before_it_began:
                self._mourn(seat)

    def gone(self) -> bool:
        """Whether everybody has left."""
        return not (self._seats or self._leaving)

    def end(self) -> None:
        """Kill whoever is left."""
        for seat in (*self._seats.values(), *self._leaving):
            seat.signal(signal.SIGKILL)
            seat.process.join()
        self._seats.clear()
        self._leaving.clear()

    def _mourn(self, seat: Seat) -> None:
        log = seat.notes.with_suffix(".log")
        said = log.read_text(errors="replace")[-3000:] if log.exists() else ""
        self.fallen.append(f"{seat.notes.name} ended with {seat.process.exitcode}: {said}")
