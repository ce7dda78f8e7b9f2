"""Watching processes by event."""

from __future__ import annotations

import os
import select
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def user_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def descendants_of(root: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]


class Watch:
    def __init__(self, handles: dict[int, int]) -> None:
        self._handles = handles

    def all_end_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        for handle in self._handles.values():
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return False
        return True


@contextmanager
def watched(pids: list[int]):
    """Hold on to processes, so that their end can be awaited; one that has ended since it was listed is not."""
    with ExitStack() as stack:
        handles = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                handles[pid] = os.pidfd_open(pid)
                stack.callback(os.close, handles[pid])
        yield Watch(handles)
