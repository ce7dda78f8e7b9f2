"""Workers: processes that run the same app, started and stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from types import FrameType
from typing import NamedTuple, TypeAlias

import typer

from tidegate.cli.codes import ExitCode
from tidegate.core.errors import ConfigurationError

__all__ = ["Workers", "stop_with_parent"]

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class _Exited(NamedTuple):
    """A worker ended, with the code that :class:`subprocess.Popen` gives it: below 0 for a signal."""

    worker: subprocess.Popen[bytes]
    code: int


_Event: TypeAlias = "_Exited | signal.Signals"


class Workers:
    """Runs ``tidegate run`` in ``count`` processes of its own.

    They are started afresh, not forked, since librdkafka does not survive a fork. None is started again: if one fails,
    the others are asked to stop, and its code is the code of all. A signal asks all to stop; a second one kills them.
    """

    def __init__(self, target: str | None, count: int, options: Sequence[str], metrics_port: int | None = None) -> None:
        if metrics_port is not None and metrics_port + count - 1 > 65535:
            raise ConfigurationError(
                f"{count} workers need {count} ports for metrics, from {metrics_port} on, up to 65535"
            )
        self._commands = [
            [
                sys.executable,
                "-P",
                "-m",
                "tidegate.cli",
                "run",
                *([] if target is None else [target]),
                "--worker",
                str(number),
                *options,
            ]
            + ([] if metrics_port is None else ["--metrics-port", str(metrics_port + number)])
            for number in range(count)
        ]
        self._running: set[subprocess.Popen[bytes]] = set()
        self._events: SimpleQueue[_Event] = SimpleQueue()  # its put may be called by a signal handler
        self._stopping = False
        self._signalled = False
        self._code: int = ExitCode.OK

    def run(self) -> int:
        """Start them, wait until all have ended, and return the exit code."""
        before = {number: signal.signal(number, self._on_signal) for number in _STOPPING}
        try:
            for command in self._commands:
                self._start(command)
            while self._running:
                self._take(self._events.get())
        finally:
            self._kill()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._events.put(signal.Signals(number))

    def _start(self, command: list[str]) -> None:
        # A session of its own, or a Ctrl-C at the terminal would reach the worker twice: from there and from here.
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own program
        self._running.add(worker)
        threading.Thread(target=lambda: self._events.put(_Exited(worker, worker.wait())), daemon=True).start()

    def _take(self, event: _Event) -> None:
        if isinstance(event, _Exited):
            self._ended(event)
        elif self._signalled:
            self._code = 128 + event
            self._kill()
        else:
            self._signalled = True
            self._stop()

    def _ended(self, event: _Exited) -> None:
        self._running.discard(event.worker)
        if event.worker.stdin is not None:
            event.worker.stdin.close()
        # One that is asked to stop before it listens to signals ends by the signal, and has done nothing yet.
        is_clean = event.code == 0 or (self._stopping and event.code == -signal.SIGTERM)
        if not is_clean and not self._code:
            self._code = event.code if event.code > 0 else 128 - event.code
            if self._running and not self._stopping:
                typer.echo(f"error: a worker ended with exit code {self._code}; stopping the others", err=True)
        if self._code:
            self._stop()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            for worker in self._running:
                worker.send_signal(signal.SIGTERM)

    def _kill(self) -> None:
        for worker in self._running:
            worker.kill()


def stop_with_parent() -> None:
    """Stop this worker when the process that started it is gone: then nobody holds the other end of its input."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="tidegate-parent").start()
