"""Work on the ledger beside the polling: one job at a time, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

__all__ = ["Jobs"]

T = TypeVar("T")
_LOOK = 0.005  # seconds


class Jobs:
    """At most one job is under way; how it ended is told on the thread that asks.

    So polling goes on while a handler runs, for as long as it likes, and everything that decides stays on one thread.
    """

    def __init__(self, name: str, meanwhile: Callable[[], object]) -> None:
        """``meanwhile`` is done while a job is waited for: it may need something that the waiting thread has."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._meanwhile = meanwhile
        self._job: tuple[Future[Any], Callable[[Any], None], Callable[[Exception], None]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is under way, or has ended and was not asked about."""
        return self._job is not None

    def start(self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Begin a job; ``done`` or ``failed`` is called by :meth:`settle` or :meth:`wait`."""
        if self._job is not None:
            raise RuntimeError("a job is under way")
        self._job = self._pool.submit(work), done, failed

    def settle(self, within: float = 0.0) -> None:
        """If the job has ended, or ends within so many seconds, tell how."""
        if self._job is not None and not wait([self._job[0]], within).not_done:
            self.wait()

    def wait(self) -> None:
        """Wait for the job, if there is one, and tell how it ended."""
        if self._job is None:
            return
        future, done, failed = self._job
        while wait([future], _LOOK).not_done:
            self._meanwhile()
        error = future.exception()
        self._job = None
        if error is None:
            done(future.result())
        elif isinstance(error, Exception):
            failed(error)
        else:
            raise error

    def close(self) -> None:
        """No more jobs."""
        self._pool.shutdown(wait=True)
