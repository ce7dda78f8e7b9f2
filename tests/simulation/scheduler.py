"""The runtime of a simulation: virtual time, and threads that are greenlets, of which a seed picks the next."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from .steps import Step

if TYPE_CHECKING:
    from .process import Client

T = TypeVar("T")

_BEGAN = datetime(2026, 11, 16, tzinfo=UTC)
HASTE = 8
"""How much faster the date goes than the clock: an entry of the journal stays open for eight seconds of a schedule."""


class Scheduler:
    """Virtual time, and the strands that are not finished."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.strands: list[GreenStrand] = []
        self.dead: list[GreenStrand] = []
        self.current: GreenStrand | None = None
        self.over = False
        self.tokens = 0
        self.hub = getcurrent()

    def pause(self, step: Step | None = None, until: float = 0.0) -> None:
        """Let others go on: until this strand is picked, which is not before ``until``, unless it is woken."""
        strand = self.current
        if strand is None:  # the world itself looks
            return
        if self.over:
            raise GreenletExit
        strand.step, strand.until = step, until
        self.hub.switch()
        if self.over:
            raise GreenletExit

    def run(self, strand: GreenStrand) -> None:
        """Let a strand go on until it pauses or ends."""
        self.current = strand
        strand.step, strand.until = None, 0.0
        strand.greenlet.switch()
        self.current = None

    def forget(self, process: Client) -> None:
        """Never run a process again: it was killed."""
        self.dead += [strand for strand in self.strands if strand.process is process]
        self.strands = [strand for strand in self.strands if strand.process is not process]

    def end(self) -> None:
        """End all strands. What they still do on their way out has no effect, because the schedule is over."""
        self.over = True
        for strand in [*self.dead, *self.strands]:
            if strand.greenlet and not strand.greenlet.dead:
                self.current = strand
                strand.greenlet.throw(GreenletExit)
        self.current = None


class GreenStrand:
    """A thread: a greenlet of one process. It is also the job of a worker."""

    __slots__ = ("_error", "_result", "_work", "ended", "greenlet", "process", "step", "until")

    def __init__(self, process: Client, work: Callable[[], Any]) -> None:
        self.process = process
        self.step: Step | None = None
        self.until = 0.0
        self.ended = GreenSignal(process.scheduler)
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self.greenlet = greenlet(self._run, parent=process.scheduler.hub)  # to which it returns when it ends
        process.scheduler.strands.append(self)

    def _run(self) -> None:
        scheduler = self.process.scheduler
        if scheduler.over:
            return
        try:
            self._result = self._work()
        except GreenletExit:
            return
        except BaseException as error:
            self._error = error
        if scheduler.over:
            return
        scheduler.strands.remove(self)
        self.ended.set()

    def is_alive(self) -> bool:
        return not self.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        self.ended.wait(timeout)

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self._result


class GreenSignal:
    """``threading.Event`` for greenlets."""

    __slots__ = ("_flag", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._flag = False
        self._waiting: list[GreenStrand] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        for strand in self._waiting:
            strand.until = 0.0

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        strand = self._scheduler.current
        if self._flag or strand is None:
            return self._flag
        self._waiting.append(strand)
        try:
            self._scheduler.pause(until=math.inf if timeout is None else self._scheduler.now + timeout)
        finally:
            self._waiting.remove(strand)
        return self._flag


class GreenCondition:
    """``threading.Condition`` for greenlets: they switch in :meth:`wait` only, so it needs no lock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[GreenStrand] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        strand = self._scheduler.current
        assert strand is not None
        self._waiting.append(strand)
        try:
            self._scheduler.pause(until=math.inf if timeout is None else self._scheduler.now + timeout)
        finally:
            was_notified = strand not in self._waiting
            if not was_notified:
                self._waiting.remove(strand)
        return was_notified

    def notify(self, n: int = 1) -> None:
        woken, self._waiting = self._waiting[:n], self._waiting[n:]
        for strand in woken:
            strand.until = 0.0

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class GreenWorker:
    """A second thread, which runs one job after the other."""

    def __init__(self, process: Client) -> None:
        self._process = process
        self._last: GreenStrand | None = None

    def submit(self, work: Callable[[], T]) -> GreenStrand:
        self._last = GreenStrand(self._process, work)
        return self._last

    def has_ended(self, job: Any, within: float) -> bool:
        return bool(job.ended.is_set() or (within > 0 and job.ended.wait(within)))

    def close(self) -> None:
        if self._last is not None:
            self._last.ended.wait()


class GreenRuntime:
    """The runtime that a simulated process gets."""

    def __init__(self, process: Client) -> None:
        self._process = process
        self._scheduler = process.scheduler

    def monotonic(self) -> float:
        return self._scheduler.now

    def sleep(self, seconds: float, /) -> None:
        self._scheduler.pause(until=self._scheduler.now + seconds)

    def now(self) -> datetime:
        return _BEGAN + timedelta(seconds=HASTE * self._scheduler.now)

    def random(self) -> Random:
        return self._scheduler.rng

    def token(self, size: int) -> str:
        self._scheduler.tokens += 1
        return f"{self._scheduler.tokens:0{2 * size}x}"

    def signal(self) -> GreenSignal:
        return GreenSignal(self._scheduler)

    def condition(self) -> GreenCondition:
        return GreenCondition(self._scheduler)

    def start(self, work: Callable[[], object], name: str) -> GreenStrand:
        return GreenStrand(self._process, work)

    def worker(self, name: str) -> GreenWorker:
        return GreenWorker(self._process)
