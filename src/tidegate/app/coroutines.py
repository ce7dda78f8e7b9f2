"""Coroutines: awaits a function for many records at once, in an event loop, in order within each lane."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate.app.lifespan import Lifespan
from tidegate.app.pool import Computation, Lanes, Later, Task
from tidegate.core.policies import Lane, Ordering
from tidegate.errors import ListenerStopped

__all__ = ["CoroutinePool"]

T = TypeVar("T")

_log = logging.getLogger("tidegate")
_LONG = 30.0  # seconds after which a coroutine is reported, and again after each doubling


@dataclass(slots=True)
class _Running:
    task: Task[Any]
    since: float
    awaited: asyncio.Task[None]
    report_after: float


class CoroutinePool(Lanes[T]):
    """Awaits ``compute`` for up to ``concurrency`` records at once.

    ``compute`` takes the record and the number of the attempt, starting at 1. It returns a result, or raises
    :class:`Later` to be retried. Any other error ends the pool. A cancelled computation cancels its coroutines.
    """

    def __init__(
        self,
        concurrency: int,
        ordering: Ordering,
        compute: Callable[[Any, int], Coroutine[Any, Any, T]],
        name: str,
        lifespan: Lifespan,
    ) -> None:
        super().__init__(ordering)
        self._concurrency = concurrency
        self._compute = compute
        self._name = name
        self._lifespan = lifespan
        self._loop = lifespan.loop
        self._running: dict[Lane, _Running] = {}
        self._timer: asyncio.TimerHandle | None = None

    def check(self) -> None:
        """Raise the error that ended the pool, if there is one, and report coroutines that take very long.

        The member calls this on its own thread, so a coroutine that blocks the loop is reported too.
        """
        super().check()
        with self._changed:
            now = self.clock()
            for running in self._running.values():
                if now - running.since < _LONG:
                    return  # so did all that follow
                if now - running.since >= running.report_after:
                    running.report_after *= 2
                    _log.warning(
                        "%s: %s offset %d has been handled for %.0f s, and its partition waits for it; give the "
                        "listener a timeout=… if it waits for something that may never answer",
                        self._name,
                        running.task.record.source,
                        running.task.record.offset,
                        now - running.since,
                    )

    def cancel(self, computations: Any) -> None:
        """Cancel computations, and the coroutines of their records."""
        super().cancel(computations)
        self._lifespan.soon(self._cancel_unwanted)

    def close(self) -> None:
        """Drop records that have not started, and cancel the coroutines of those that are running."""
        super().close()
        self._lifespan.soon(self._cancel_unwanted)

    def _wake(self, records: int | None = None) -> None:
        self._lifespan.soon(self._fill)

    # From here on, everything runs in the loop.

    def _fill(self) -> None:
        """Start coroutines, as many as may run at once."""
        taken = []
        with self._changed:
            while len(self._under_way) < self._concurrency and (found := self._take()) is not None:
                taken.append(found)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if (pause := self._pause) is not None:
                self._timer = self._loop.call_later(max(pause, 0.001), self._fill)
        for where, task in taken:
            awaited = self._loop.create_task(self._one(where, task))
            with self._changed:
                if not awaited.done():  # a loop of the user's may run a new task at once
                    self._running[where] = _Running(task, self.clock(), awaited, _LONG)

    async def _one(self, where: Lane, task: Task[T]) -> None:
        wait: float | None = None
        try:
            task.computation.results[task.place] = await self._compute(task.record, task.attempt)
        except Later as later:
            wait = later.seconds
        except asyncio.CancelledError:
            if self._is_wanted(task.computation):
                self._fail(task.computation, ListenerStopped(f"{self._name}: the event loop was stopped"))
        except BaseException as error:  # otherwise the error would be lost, and the lane would stall
            self._fail(task.computation, error)
        with self._changed:
            self._running.pop(where, None)
        self._put_back(where, task, wait)
        self._fill()

    def _cancel_unwanted(self) -> None:
        with self._changed:
            unwanted = [each.awaited for each in self._running.values() if not self._is_wanted(each.task.computation)]
        for awaited in unwanted:
            awaited.cancel()

    def _is_wanted(self, computation: Computation[T]) -> bool:
        return computation.is_wanted and not self._closed
