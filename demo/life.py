"""One life of a driver: a process of its own, from its start to its end or to the kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tools import spark_classes

from tidegate import Delivery

_ROOT = Path(__file__).resolve().parents[1]
_END_SECONDS = 20.0


class Life:
    """A driver, its Java machine and its workers: a session of processes."""

    def __init__(self, file: Path, delivery: Delivery, log: Path, aim: int | None) -> None:
        """``aim`` is after how many micro-batches :meth:`wait_for_aim` returns; ``None``: there is no aim."""
        self._log = log
        self._mark, mark = os.pipe()
        command = [sys.executable, "-m", "demo.driver", str(file), delivery.value]
        command += [] if aim is None else [str(aim), str(mark)]
        try:
            with log.open("wb") as said:
                self._process = subprocess.Popen(
                    command,
                    cwd=_ROOT,
                    env={"SPARK_SUBMIT_OPTS": spark_classes.options(), **os.environ},
                    stdin=subprocess.PIPE,  # it ends when the other end of it is gone
                    stdout=said,
                    stderr=said,
                    pass_fds=(mark,),
                    start_new_session=True,
                )
        finally:
            os.close(mark)

    def wait_for_aim(self) -> bool:
        """Wait until the driver is where the kill is aimed at; whether it is, and has not ended instead."""
        return bool(os.read(self._mark, 1))

    def ended(self, within: float) -> bool:
        """Wait for its end, so many seconds at most; whether it has ended."""
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True

    def finish(self) -> None:
        """Wait for its end, which has to be a good one."""
        code = self._process.wait()
        if code != 0:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise RuntimeError(
                f"the driver ended with {code}: {lines[-1] if lines else 'it said nothing'} ({self._log})"
            )

    def kill(self) -> None:
        """SIGKILL to the driver, and to nothing else: what it leaves behind has to be harmless."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Wait until the Java machine and the workers are gone too; end those that are not."""
        if self._process.poll() is None:
            self.kill()
        os.close(self._mark)
        if self._process.stdin is not None:
            self._process.stdin.close()
        deadline = time.monotonic() + _END_SECONDS
        while (left := _session(self._process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """The processes of the session that are left: Spark's workers leave the group, but not the session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return found
