"""Executors of Spark: the processes that a worker starts for an application."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidegate.sandbox.errors import SandboxError

__all__ = ["Executor", "executors_below"]

_MAIN = "CoarseGrainedExecutorBackend"
_GONE_SECONDS = 30.0
_STILL_SECONDS = 5.0


@dataclass(frozen=True)
class Executor:
    """One executor: a Java process and its Python workers."""

    pid: int

    @property
    def running(self) -> bool:
        """Whether the process exists, even if it is paused."""
        return _is_executor(self.pid)

    def kill(self) -> None:
        """Kill the executor (SIGKILL) and wait until it is gone. Its Python workers then end by themselves."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.running:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            deadline = time.monotonic() + _GONE_SECONDS
            while self.running:
                if time.monotonic() > deadline:
                    raise SandboxError(f"Executor {self.pid} survived SIGKILL for {_GONE_SECONDS:g} s.")
                time.sleep(0.005)
        finally:
            os.close(handle)

    def pause(self) -> None:
        """Freeze the executor and its Python workers (SIGSTOP), and wait until it has stopped."""
        self._signal_all(signal.SIGSTOP)
        deadline = time.monotonic() + _STILL_SECONDS
        while _state(self.pid) not in "TtZX" and time.monotonic() < deadline:
            time.sleep(0.001)

    def resume(self) -> None:
        """Let the executor and its Python workers continue (SIGCONT)."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        if not self.running:
            raise SandboxError(f"Executor {self.pid} is not running.")
        for pid in (self.pid, *_below(self.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def executors_below(pid: int) -> tuple[Executor, ...]:
    """Return the executors among a worker's descendant processes, ordered by process id."""
    return tuple(Executor(child) for child in sorted(_below(pid)) if _is_executor(child))


def _is_executor(pid: int) -> bool:
    try:
        return _MAIN in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return False


def _state(pid: int) -> str:
    """Return the state letter of a process; ``X``, for dead, if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _below(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = (entry / "stat").read_text(errors="replace")
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]
