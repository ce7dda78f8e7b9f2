"""Traps: files that wait for a driver or a task to come by, each for one of them; and notes of what happened."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Place(StrEnum):
    """Where a trap waits."""

    TASK_BEFORE = "task-before"
    """A task has read its span, and is about to commit it, or to load its rows."""
    TASK_LOADING = "task-loading"
    """A task is in its transaction, where there is one in the middle of its bulk load."""
    TASK_AFTER = "task-after"
    """A task has committed, and nobody knows yet."""
    DRIVER_BEFORE = "driver-before"
    """The driver is about to commit, of a staged batch to move its rows."""
    DRIVER_LOADING = "driver-loading"
    """The driver is in its transaction and has written its rows."""
    DRIVER_AFTER = "driver-after"
    """The driver knows of a commit, and has not planned the next micro-batch."""


class Action(StrEnum):
    FAIL = "fail"
    DIE = "die"
    FREEZE = "freeze"


class Planned(RuntimeError):
    """A task fails as planned."""


@dataclass(frozen=True)
class Traps:
    """A folder that all processes share."""

    folder: Path

    def lay(self, place: Place, action: Action) -> Path:
        """Whoever comes to the place first falls in."""
        trap = self.folder / f"{place}.{action}.{next(_serial)}"
        trap.touch()
        return trap

    def spring(self, place: Place, **about: Any) -> None:
        """Fall into a trap, if one waits here."""
        for trap in sorted(self.folder.glob(f"{place}.*")):
            try:
                trap.unlink()
            except FileNotFoundError:  # somebody else did
                continue
            action = Action(trap.name.split(".")[1])
            self.note("sprung", place=place, action=action, trap=trap.name, **about)
            if action is Action.FAIL:
                raise Planned(f"planned: {place}")
            os.kill(os.getpid(), signal.SIGKILL if action is Action.DIE else signal.SIGSTOP)
            return

    def note(self, event: str, **fields: Any) -> None:
        """One write, so that notes of several processes do not mix."""
        line = json.dumps({"event": event, "pid": os.getpid(), "at": time.time(), **fields}) + "\n"
        notes = os.open(self.folder / "notes.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(notes, line.encode())
        finally:
            os.close(notes)

    def notes(self, event: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        file = self.folder / "notes.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [note for note in found if (event is None or note["event"] == event) and fields.items() <= note.items()]


_serial = itertools.count(1)
