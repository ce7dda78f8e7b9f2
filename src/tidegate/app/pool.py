"""A pool of threads that compute on records, in the order of their lanes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from tidegate.core.ordering import Lane, Ordering, lane
from tidegate.core.records import Record

__all__ = ["Computation", "Later", "Pool"]

T = TypeVar("T")


class Later(Exception):
    """What a computation raises to be run again in so many seconds; its lane waits, the threads do not."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:g} s")
        self.seconds = seconds


class Computation(Generic[T]):
    """The results of some records, in their order, once all of them are there."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.results: list[T | None] = [None] * len(records)
        self.left = len(records)
        self.is_wanted = True

    @property
    def is_done(self) -> bool:
        """Whether every result is there."""
        return self.left == 0


class _Task(NamedTuple, Generic[T]):
    computation: Computation[T]
    place: int
    attempt: int


class Pool(Generic[T]):
    """Computes on many records at once, and on those of one lane one after the other.

    ``compute`` is given the record and which attempt this is, from 1. It returns a result, or raises :class:`Later`;
    any other error ends the pool, and is raised by :meth:`check`. The threads begin with the first records.
    """

    def __init__(self, workers: int, ordering: Ordering, compute: Callable[[Record, int], T], name: str) -> None:
        self._ordering = ordering
        self._compute = compute
        # A lane is in here while it has something to do, and is then under way, waiting or ready: one of the three.
        self._lanes: dict[Lane, deque[_Task[T]]] = {}
        self._under_way: set[Lane] = set()
        self._waiting: list[tuple[float, int, Lane]] = []  # until when, and a number that breaks ties
        self._ready: deque[Lane] = deque()
        self._numbers = count()
        self._changed = threading.Condition()
        self._finished = threading.Event()
        self._held = self._closed = False
        self._error: BaseException | None = None
        self._begun = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(workers)
        ]

    def submit(self, records: Sequence[Record]) -> Computation[T]:
        """Begin with records, behind those of the same lanes that were submitted before."""
        computation: Computation[T] = Computation(records)
        with self._changed:
            for index, record in enumerate(records):
                where = lane(self._ordering, record)
                tasks = self._lanes.get(where)
                if tasks is None:
                    self._lanes[where] = tasks = deque()
                    self._ready.append(where)
                tasks.append(_Task(computation, index, 1))
            self._changed.notify(len(records))
        if records and not self._begun:
            self._begun = True
            for thread in self._threads:
                thread.start()
        return computation

    def cancel(self, computations: Collection[Computation[T]]) -> None:
        """Nobody wants these results any more: what has not begun is forgotten, and what is under way is ignored.

        Its lane still waits for it, so that a handler is never run twice at once for one key.
        """
        with self._changed:
            for computation in computations:
                computation.is_wanted = False
            for where, tasks in list(self._lanes.items()):
                kept = deque(task for task in tasks if task.computation.is_wanted)
                if kept or where in self._under_way:
                    self._lanes[where] = kept
                else:
                    del self._lanes[where]
            self._ready = deque(where for where in self._ready if where in self._lanes)
            waiting, self._waiting = self._waiting, []
            for entry in waiting:
                tasks = self._lanes.get(entry[2], deque())
                if tasks and tasks[0].attempt > 1:  # what it waits for is still there
                    self._waiting.append(entry)
                elif tasks:
                    self._ready.append(entry[2])
            heapify(self._waiting)
            self._changed.notify_all()

    def hold(self, held: bool) -> None:
        """Begin with nothing for now, or go on."""
        if held != self._held:
            with self._changed:
                self._held = held
                self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until something has been finished since the last call, or for so long."""
        if self._finished.wait(seconds):
            self._finished.clear()

    def check(self) -> None:
        """Raise what ended the pool, if something did."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the threads: what has not begun is forgotten, and what is under way is not waited for."""
        with self._changed:
            self._closed = True
            self._lanes.clear()
            self._ready.clear()
            self._waiting.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            where, task = taken
            wait: float | None = None
            try:
                result = self._compute(task.computation.records[task.place], task.attempt)
                task.computation.results[task.place] = result
            except Later as later:
                wait = later.seconds
            except BaseException as error:  # of the thread's own: it would end and its lane with it
                self._fail(task.computation, error)
            self._put_back(where, task, wait)

    def _next(self) -> tuple[Lane, _Task[T]] | None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                while self._waiting and self._waiting[0][0] <= now:
                    self._ready.append(heappop(self._waiting)[2])
                if self._ready and not self._held:
                    where = self._ready.popleft()
                    self._under_way.add(where)
                    return where, self._lanes[where].popleft()
                self._changed.wait(self._waiting[0][0] - now if self._waiting else None)
            return None

    def _fail(self, computation: Computation[T], error: BaseException) -> None:
        with self._changed:
            if isinstance(error, Exception) and not computation.is_wanted:
                return  # it may well be why it was cancelled
            self._error = self._error or error
        self.close()
        self._finished.set()

    def _put_back(self, where: Lane, task: _Task[T], wait: float | None) -> None:
        """The lane goes on with its next record; or with the same one, later."""
        with self._changed:
            self._under_way.discard(where)
            if self._closed:
                return
            tasks = self._lanes[where]
            if wait is not None and task.computation.is_wanted:
                tasks.appendleft(task._replace(attempt=task.attempt + 1))
                heappush(self._waiting, (time.monotonic() + wait, next(self._numbers), where))
                self._changed.notify()  # somebody may be waiting for longer than that
                return
            task.computation.left -= 1
            if task.computation.is_done:
                self._finished.set()
            if tasks:
                self._ready.append(where)
            else:
                del self._lanes[where]
