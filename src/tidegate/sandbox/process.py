"""The processes of a server, run by a supervisor process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.sandbox.errors import SandboxError
from tidegate.sandbox.workspace import Workspace

_SCRIPT = Path(__file__).with_name("supervise.py")
_REPLY_SECONDS = 30.0
_KILL_SECONDS = 30.0
_SLICE_SECONDS = 0.05


# Servers get no other variables, because those may hold secrets of the program that starts them.
_INHERITED = ("PATH", "JAVA_HOME", "LD_LIBRARY_PATH", "TMPDIR", "TZ")


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


@dataclass(frozen=True)
class Command:
    """A program to run as the server's user, in the server's directory."""

    argv: Sequence[str | Path]
    environment: Mapping[str, str] | None = None
    input: Path | None = None


class Process:
    """The processes of one server: a supervisor that runs as long as the directory exists, and what it launches.

    The supervisor kills the server and removes a temporary directory when this process ends, however it ends.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._lock = threading.RLock()
        self._pending = b""
        self._pid: int | None = None
        self._exit: int | None = None
        self._gone = False
        log_descriptor = os.open(workspace.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(log_descriptor, "ab") as log:
            self._supervisor = subprocess.Popen(  # noqa: S603 - this interpreter and our own script
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(_SCRIPT),
                    str(os.getpid()),
                    str(workspace.path) if workspace.temporary else "",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                env=_inherited(),
                start_new_session=True,
                bufsize=0,
            )
        assert self._supervisor.stdin is not None  # noqa: S101 - opened with PIPE
        assert self._supervisor.stdout is not None  # noqa: S101
        self._requests = self._supervisor.stdin
        self._replies = self._supervisor.stdout
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)

    @property
    def pid(self) -> int | None:
        """Process id of the server, or None when it is not running."""
        return self._pid if self.running else None

    @property
    def running(self) -> bool:
        """Whether the launched process is running."""
        with self._lock:
            while self._receive(0) is not None:
                pass
            return self._pid is not None

    def launch(self, command: Command) -> int:
        """Start a program and return its process id."""
        account = self._workspace.account
        order = {
            "argv": [str(argument) for argument in command.argv],
            "cwd": str(self._workspace.path),
            "env": {
                **_inherited(),
                "HOME": str(self._workspace.path),
                "LC_ALL": "C",
                **(command.environment or {}),
            },
            "uid": account.uid if account else None,
            "gid": account.gid if account else None,
            "input": str(command.input) if command.input else None,
        }
        with self._lock:
            answer = self._ask({"launch": order})
            if "error" in answer:
                raise SandboxError(f"{command.argv[0]} could not be started: {answer['error']}.")
            self._pid, self._exit = int(answer["pid"]), None
            return self._pid

    def run(self, command: Command, timeout: float) -> int:
        """Run a program to its end and return its exit status."""
        self.launch(command)
        status = self.wait(timeout)
        if status is None:
            self.kill()
            raise SandboxError(f"{command.argv[0]} did not end within {timeout:g} s.")
        return status

    def wait(self, timeout: float) -> int | None:
        """Wait until the launched process and all its descendants are gone.

        Returns its exit status, or ``None`` if some are still running after ``timeout``.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:  # held for short slices, so that another thread may kill what this one waits for
                while self._pid is not None and self._receive(min(_SLICE_SECONDS, timeout)) is not None:
                    pass
                if self._pid is None:
                    return self._exit
            if time.monotonic() >= deadline:
                return None

    def signal(self, number: signal.Signals, *, everyone: bool = False) -> None:
        """Send a signal to the launched process; with ``everyone``, to all its descendants as well."""
        with self._lock:
            answer = self._ask({"signal": int(number), "all": everyone})
            if "error" in answer:
                raise SandboxError(f"Signal {number.name} could not be sent: {answer['error']}.")

    def kill(self) -> None:
        """Kill everything that was launched, and wait until it is gone."""
        if self.running:
            self.signal(signal.SIGKILL, everyone=True)
            if self.wait(_KILL_SECONDS) is None:
                raise SandboxError(f"A process survived SIGKILL for {_KILL_SECONDS:g} s; is its disk hanging?")

    def close(self) -> None:
        """End the supervisor, which kills what is left and removes a temporary directory."""
        with self._lock:
            with contextlib.suppress(BrokenPipeError):
                self._requests.close()
            self._replies.close()
            self._pid = None
        try:
            self._supervisor.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        if self._workspace.temporary:
            shutil.rmtree(self._workspace.path, ignore_errors=True)  # in case the supervisor could not

    def _ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        deadline = time.monotonic() + _REPLY_SECONDS
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
        except (BrokenPipeError, ValueError):
            raise SandboxError("The supervisor of the server does not answer; was it killed?") from None
        while (left := deadline - time.monotonic()) > 0 and not self._gone:
            event = self._receive(left)
            if event is not None and "exit" not in event:
                return event
        raise SandboxError("The supervisor of the server does not answer; was it killed?")

    def _receive(self, timeout: float) -> Mapping[str, Any] | None:
        """Return the next event, or ``None`` if there is none in time. Notes the end of the server."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._pending:
            if self._gone or self._replies.closed:
                return None
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            data = self._replies.read(65536)
            if not data:  # the supervisor was killed, and the server with it
                self._pid, self._exit, self._gone = None, -int(signal.SIGKILL), True
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        event: Mapping[str, Any] = json.loads(line)
        if "exit" in event:
            self._pid, self._exit = None, int(event["exit"])
        return event
