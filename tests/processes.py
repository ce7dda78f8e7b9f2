"""Processes that tests start, watch and kill.

Children that consume are forked from a clean process that has everything imported, so that they start at once.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]
CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tests.app.listener.consumer",
        "tests.app.listener.poison",
        "tests.app.listener.witness",
        "tests.chaos.consumer",
        "tests.app.sink.loader",
        "tests.ledger.contention",
        "tests.crash.worker",
    ]
)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """For a test that forks its own process: a child that collects garbage may destroy a Kafka client of an earlier
    test, whose threads it does not have, and crash."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def start(work: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    child = CONTEXT.Process(target=work, args=arguments, daemon=True)
    child.start()
    return child


@contextmanager
def running(work: Callable[..., None], *arguments: Any) -> Iterator[ForkServerProcess]:
    """A child that is killed in the end, if it still lives."""
    child = start(work, *arguments)
    try:
        yield child
    finally:
        child.kill()
        child.join()
        child.close()


def ended(child: ForkServerProcess, timeout: float = PATIENCE) -> int:
    """Wait for the end of a child; how it ended."""
    child.join(timeout)
    assert child.exitcode is not None, "the child did not end"
    return child.exitcode


def killed(work: Callable[..., None], *arguments: Any) -> None:
    """Run a child that dies by its own hand."""
    with running(work, *arguments) as child:
        assert ended(child) == -signal.SIGKILL


def finished(work: Callable[..., None], *arguments: Any) -> None:
    """Run a child to its good end."""
    with running(work, *arguments) as child:
        assert ended(child) == 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(delay: float) -> None:
    """Return at once, and die that many seconds later, whatever the process does then."""
    armed = threading.Event()

    def strike() -> None:
        armed.set()
        time.sleep(delay)
        die()

    threading.Thread(target=strike, daemon=True).start()
    armed.wait()


def program(module: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A module of the tests as a program of its own."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def wait_until_frozen(child: subprocess.Popen[str], timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while state_of(child.pid) != "T":
        assert child.poll() is None, "the child ended instead of freezing"
        assert time.monotonic() < deadline, "the child did not freeze"
        time.sleep(0.01)


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
def watched(pids: list[int]) -> Iterator[Watch]:
    """Hold on to processes, so that their end can be awaited; one that has ended since it was listed is not."""
    with ExitStack() as stack:
        handles = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                handles[pid] = os.pidfd_open(pid)
                stack.callback(os.close, handles[pid])
        yield Watch(handles)
