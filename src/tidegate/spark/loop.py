"""The loop of a pipeline: look at the ledger and the logs, plan, run, report; and what to do when something is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tidegate.core.records import TopicPartition
from tidegate.core.recovery import Backoff
from tidegate.core.spans import Span
from tidegate.observe.observer import Event, LagSeen, Paused, Polled
from tidegate.spark.failures import JobFailed, job
from tidegate.spark.holding import Holding
from tidegate.spark.microbatch import MicroBatches
from tidegate.spark.planning import expected_bytes, plan
from tidegate.spark.report import BatchReport, Report
from tidegate.spark.staging import LoadFailed
from tidegate.spark.waiting import AWAY, Waiting

__all__ = ["Loop"]

_BACKOFF = Backoff(first=0.5, most=10.0)
_TRIES = 5  # of a micro-batch whose job fails, before the pipeline gives up
_CUT = 4  # each of these tries has so many times fewer records than the one before
_IDLE = 0.1  # seconds between two looks, where no interval was asked for


class Loop:
    """Runs micro-batches until told to stop, or until there is nothing left that the run is for."""

    def __init__(
        self,
        holding: Holding,
        batches: MicroBatches,
        report: Report,
        stopping: threading.Event,
        tell: Callable[[Event], None],
        *,
        waiting: Waiting,
        most: int,
        most_bytes: int,
        on_batch: Callable[[BatchReport], None] | None,
    ) -> None:
        self._holding = holding
        self._batches = batches
        self._report = report
        self._stopping = stopping
        self._tell = tell
        self._waiting = waiting
        self._most = most
        self._limit = most  # below that after a job has failed, for it may have been too much at once
        self._most_bytes = most_bytes
        self._sizes: dict[TopicPartition, float] = {}
        self._on_batch = on_batch
        self._paused = False
        self._failures = 0
        self._refused = False  # the last micro-batch, maybe by the ledger

    def run(self, every: float) -> None:
        """One micro-batch every so often; without an interval, one after the other."""
        while not self._stopping.is_set():
            began = time.monotonic()
            if not self._one() or every:
                self._stopping.wait(max(0.0, began + (every or _IDLE) - time.monotonic()))
        self._report.stopped = "asked to stop"

    def run_once(self) -> None:
        """One micro-batch, if there is anything to read and the group is not paused."""
        self._one()
        stopped = "asked to stop" if self._stopping.is_set() else "one micro-batch"
        self._report.stopped = "paused" if self._paused else stopped

    def run_available(self) -> None:
        """Until all is read that was there at the beginning."""
        self._waiting.until_done(self._holding.look)
        ends = dict(self._holding.ends)
        while not self._stopping.is_set():
            positions = self._holding.positions
            if all(positions.get(tp, end) >= end for tp, end in ends.items()):
                self._report.stopped = "caught up"
                return
            if not self._one(ends) and self._paused:
                self._report.stopped = "paused"
                return
        self._report.stopped = "asked to stop"

    def _one(self, ends: Mapping[TopicPartition, int] | None = None) -> bool:
        """One micro-batch, planned anew and tried again until it goes well; whether there was anything to read."""
        while not self._stopping.is_set():
            if not self._looked():
                continue
            spans = self._plan(ends)
            if not spans:
                self._answered()
                return False
            if self._turn(spans):
                return True
        return False

    def _plan(self, ends: Mapping[TopicPartition, int] | None) -> list[Span]:
        """What comes next, by the rows and the logs as they were looked at."""
        if self._holding.paused != self._paused:
            self._paused = self._holding.paused
            self._tell(Paused(self._report.group, self._paused))
        if self._paused:
            return []
        known = self._holding.ends
        wanted = known if ends is None else {tp: min(end, ends.get(tp, end)) for tp, end in known.items()}
        return plan(self._holding.positions, wanted, self._limit, most_bytes=self._most_bytes, sizes=self._sizes)

    def _weight(self, spans: Sequence[Span]) -> float:
        return expected_bytes({span.partition: span.end - span.start for span in spans}, self._sizes)

    def _looked(self) -> bool:
        if not self._waiting.tried(lambda: self._holding.look(firmly=self._refused)):
            return False
        if not self._refused:  # a ledger that can be read is not one that can be written to
            self._answered()
        return True

    def _answered(self) -> None:
        """Nothing is away."""
        self._waiting.over()
        self._refused = False

    def _turn(self, spans: list[Span]) -> bool:
        """Run a micro-batch; whether it is done with. One that was fenced is."""
        began = time.monotonic()
        number = self._report.batches + 1
        try:
            with job(f"group {self._report.group!r}, micro-batch {number}"):
                done = self._batches.run(number, spans, self._holding.claims, weight=self._weight(spans))
        except AWAY as error:
            self._refused = True
            self._waiting.out(error)
            return False
        except (JobFailed, LoadFailed) as error:
            self._failures += 1
            if self._failures >= _TRIES:
                raise
            self._limit = max(1, sum(span.end - span.start for span in spans) // _CUT)
            self._refused = True  # it may have failed for want of a lock, which a task of it keeps
            self._waiting.failed(error, _BACKOFF.after(self._failures))
            return False
        self._failures = 0
        self._refused = False
        self._sizes |= done.sizes
        self._limit = min(self._most, 2 * self._limit)
        self._waiting.succeeded()
        if done.outdated:
            return False
        self._tell(Polled(self._report.group, done.records, 0))
        self._looked()
        for tp, position in self._holding.positions.items():
            self._tell(LagSeen(self._report.group, tp, position, self._holding.ends.get(tp, position)))
        seconds = time.monotonic() - began
        counts = (done.records, done.rows, done.letters)
        batch = BatchReport(number, done.mode, *counts, self._holding.lag, seconds, done.fenced, done.already_done)
        self._report.add(batch)
        if self._on_batch is not None:
            self._on_batch(batch)
        return True
