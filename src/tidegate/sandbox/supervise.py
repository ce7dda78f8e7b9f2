"""Runs a server on behalf of a parent process, and ends it when the parent ends.

This file is run as a script, not imported, and uses only the standard library: it has to start within milliseconds and
to survive whatever happens to its parent. One supervisor serves one sandbox server as long as its directory exists,
across kills and restarts.

The protocol is one JSON object per line. Requests arrive on standard input:

    {"launch": {"argv": [...], "cwd": ..., "env": {...}, "uid": ..., "gid": ..., "input": ...}}
    {"signal": 15, "all": false}

Replies go to standard output: ``{"pid": n}``, ``{"signalled": n}`` or ``{"error": "..."}`` for each request, and
``{"exit": status}`` once the launched process *and all its descendants* are gone. The server's output goes to the
supervisor's standard error, which is the log file.

When standard input ends or the parent dies, however it dies, the supervisor kills all processes and removes the
directory named on the command line. Watching the pipe alone would not suffice: a forked child of the parent keeps it
open.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SETTLE_SECONDS = 1.0


LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of every process that the server orphans, so that none escapes."""
    if LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_supervisor() -> None:
    """Make the kernel kill the server if the supervisor is killed. Runs in the new process, after its user was set."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def descendants() -> dict[int, str]:
    """Return all descendants of this process, each with its state letter.

    A process group would not do: PostgreSQL's backends leave it.
    """
    table: dict[int, tuple[int, str]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - called in a loop while processes die
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path("/proc", entry, "stat").read_text(errors="replace")
                state, parent = stat.rpartition(")")[2].split()[:2]
                table[int(entry)] = (int(parent), state)
    found: dict[int, str] = {}
    frontier = {os.getpid()}
    while frontier:
        frontier = {pid for pid, (parent, _) in table.items() if parent in frontier and pid not in found}
        found.update((pid, table[pid][1]) for pid in frontier)
    return found


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may already be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Supervisor:
    """The launched process and all its descendants."""

    def __init__(self) -> None:
        self._leader: int | None = None
        self._status: int | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request and return the reply."""
        try:
            if "launch" in request:
                return {"pid": self._launch(request["launch"])}
            return {"signalled": self._signal(request["signal"], everyone=request["all"])}
        except (OSError, subprocess.SubprocessError) as error:
            return {"error": str(error)}

    def _launch(self, order: dict[str, Any]) -> int:
        with open(order["input"] or os.devnull, "rb") as source:  # noqa: PTH123 - pathlib is not shorter here
            process = subprocess.Popen(  # noqa: S603 - the parent chooses what to run
                order["argv"],
                cwd=order["cwd"],
                env=order["env"],
                stdin=source,
                stdout=sys.stderr,
                stderr=sys.stderr,
                start_new_session=True,
                preexec_fn=die_with_supervisor,  # noqa: PLW1509 - this process has one thread
                umask=0o077,
                user=order["uid"],
                group=order["gid"],
                extra_groups=None if order["uid"] is None else [],
            )
        process.returncode = 0  # _reap() reaps it, not this object
        self._leader, self._status = process.pid, None
        return process.pid

    def _signal(self, number: int, *, everyone: bool) -> int:
        if number == signal.SIGKILL:
            return self.clear()
        if not everyone:
            if self._leader is None:
                return 0
            send(self._leader, number)
            return 1
        seen: set[int] = set()
        # A process may fork before the signal stops it, so repeat until no new process appears.
        while fresh := descendants().keys() - seen:
            for pid in sorted(fresh):
                send(pid, number)
            seen |= fresh
        if number == signal.SIGSTOP:
            limit = time.monotonic() + SETTLE_SECONDS
            while set(descendants().values()) - set("TtZX") and time.monotonic() < limit:
                time.sleep(0.001)
        return len(seen)

    def clear(self) -> int:
        """Kill all descendants, and wait until they are gone."""
        seen: set[int] = set()
        while left := descendants().keys():
            for pid in left:
                send(pid, signal.SIGKILL)
            seen |= left
            self._reap()
            time.sleep(0.002)
        return len(seen)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._leader:
                    self._status = os.waitstatus_to_exitcode(ended[1])

    def collect(self) -> dict[str, Any] | None:
        """Report the end of the launched process once, after all its descendants are gone as well."""
        self._reap()
        if self._leader is None or self._status is None:
            return None
        self.clear()
        report, self._leader, self._status = {"exit": self._status}, None, None
        return report


def reply(message: dict[str, Any]) -> None:
    """Write one line to the parent."""
    os.write(1, json.dumps(message).encode() + b"\n")


def serve(supervisor: Supervisor, parent: int) -> None:
    """Answer requests until the parent is gone or closes the pipe."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    guard = os.pidfd_open(parent)
    if os.getppid() != parent:
        return
    poll = select.poll()
    for descriptor in (0, wake, guard):
        poll.register(descriptor, select.POLLIN)
    pending = b""
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if guard in ready:
            return
        if wake in ready and set(os.read(wake, 4096)) - {signal.SIGCHLD}:
            return
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                reply(supervisor.handle(json.loads(line)))
        if report := supervisor.collect():
            reply(report)


def main(parent: int, directory: str) -> None:
    """Serve; then kill all processes and remove the directory."""
    adopt_orphans()
    supervisor = Supervisor()
    try:
        with contextlib.suppress(BrokenPipeError, ProcessLookupError):
            serve(supervisor, parent)
    finally:
        supervisor.clear()
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
