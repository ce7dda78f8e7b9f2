"""Children that consume: forked from a clean process that has everything imported, so that they are there at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

_context: ForkServerContext = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "tests.listeners.child",
        "tests.listeners.poison",
        "tests.listeners.witness",
        "tests.chaos.consumer",
        "tests.sinks.child",
    ]
)


def start(work: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    child = _context.Process(target=work, args=arguments, daemon=True)
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


def ended(child: ForkServerProcess, timeout: float = 60) -> int:
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
