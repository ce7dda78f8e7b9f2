"""Turns at a consumer: it lets one thread in at a time, and whoever polls is inside while its callbacks run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["Turns"]

_LOOK = 0.005  # seconds between two looks whether somebody has done it
T = TypeVar("T")


class Turns:
    """Calls of other threads go ahead between two polls, or are made by the polling thread while it waits for them.

    Without that, a callback that waits for a thread that waits for its turn would wait for ever.
    """

    def __init__(self) -> None:
        self._inside = threading.Lock()
        self._holder: int | None = None
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The consumer polls, or is closed."""
        with self._inside:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None

    @property
    def is_mine(self) -> bool:
        """Whether this thread is inside, which it is in callbacks."""
        return self._holder == threading.get_ident()

    def call(self, work: Callable[[], T]) -> T:
        """Do something with the consumer, from any thread, its callbacks included."""
        if self.is_mine:
            return work()
        done: Future[T] = Future()
        self._calls.append((done, work))
        while not done.done():
            if self._inside.acquire(timeout=_LOOK):
                try:
                    self.serve()
                finally:
                    self._inside.release()
        return done.result()

    def serve(self) -> None:
        """Make the calls that others wait for; for the thread whose turn it is."""
        while self._calls:
            try:
                done, work = self._calls.popleft()
            except IndexError:
                return
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)
