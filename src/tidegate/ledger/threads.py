"""Threads: the real :class:`~tidegate.core.runtime.Runtime`, with the clock and the threads of the system."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from random import Random
from typing import Any, TypeVar

from tidegate.core.runtime import Runtime, Worker

__all__ = ["THREADS", "Threads"]

T = TypeVar("T")


class Threads:
    """The real runtime: the clock of the system, and its threads."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    random = staticmethod(Random)
    token = staticmethod(secrets.token_hex)
    signal = staticmethod(threading.Event)
    condition = staticmethod(threading.Condition)

    def now(self) -> datetime:
        """Return the date and time, in UTC."""
        return datetime.now(UTC)

    def start(self, work: Callable[[], object], name: str) -> threading.Thread:
        """Run a function on a new thread, which does not keep the process alive."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def worker(self, name: str) -> Worker:
        """Return a new worker; its thread starts with its first job."""
        return _ThreadWorker(name)


class _ThreadWorker:
    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        return self._pool.submit(work)

    def has_ended(self, job: Any, within: float) -> bool:
        return not wait([job], within).not_done

    def close(self) -> None:
        self._pool.shutdown(wait=True)


THREADS: Runtime = Threads()
"""The real runtime."""
