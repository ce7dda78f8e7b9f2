"""The loop of a pipeline: check the ledger and the logs, plan a micro-batch, run it, report it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from tidegate.core.policies import Backoff, CommitMode
from tidegate.core.records import TopicPartition
from tidegate.core.runtime import Runtime, Signal
from tidegate.core.waits import ParentWaits
from tidegate.core.work import Claim, Span
from tidegate.errors import ConfigurationError, StatementTooLong
from tidegate.ledger.threads import THREADS
from tidegate.observe.events import Event, LagSeen, Paused, Polled
from tidegate.spark.claims import AWAY, ClaimedTopics, Waiting
from tidegate.spark.driver import BatchDone, Driver, MicroBatch, PipelineTable
from tidegate.spark.jobs import JobFailed, SparkJobs, job
from tidegate.spark.plans import refuse_exchange, refuse_generators, refuse_partial
from tidegate.spark.report import BatchReport, Report
from tidegate.spark.routes import PipelineRoute
from tidegate.spark.rows import Expressions, Plain, RowWise
from tidegate.spark.spec import PipelineSpec
from tidegate.spark.staging import LoadFailed
from tidegate.spark.transforms import Transforming, expressions_of, parsing_of, rowwise_of, view_of
from tidegate.spark.versions import installed
from tidegate.tables.fit import check_schema
from tidegate.tables.layout import Layout, refuse_generated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["UNKNOWN", "Loop", "MicroBatches", "check_columns", "expected_bytes", "plan"]


UNKNOWN = 1024.0
"""Assumed size of a record in bytes, as long as no record has been seen."""


def plan(
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    most: int,
    *,
    most_bytes: float = inf,
    sizes: Mapping[TopicPartition, float] | None = None,
) -> list[Span]:
    """Return spans that begin at the positions, together at most about ``most`` offsets and ``most_bytes`` long.

    Each partition gets a share in proportion to its lag, and at least one offset if it has any, so that no partition is
    left behind. This can make the total slightly more than ``most``. ``sizes`` are the expected record sizes of the
    partitions.
    """
    behind = {tp: end - positions[tp] for tp, end in sorted(ends.items()) if tp in positions and end > positions[tp]}
    total = sum(behind.values())
    if total > most:
        behind = {tp: max(1, lag * most // total) for tp, lag in behind.items()}
    weight = expected_bytes(behind, sizes or {})
    if weight > most_bytes:
        behind = {tp: max(1, int(length * most_bytes / weight)) for tp, length in behind.items()}
    return [Span(tp, positions[tp], positions[tp] + length) for tp, length in behind.items()]


def expected_bytes(lengths: Mapping[TopicPartition, int], sizes: Mapping[TopicPartition, float]) -> float:
    """Return the expected bytes of so many records of each partition.

    A partition without a known size is assumed to have records as large as the largest known size.
    """
    unknown = max(sizes.values(), default=UNKNOWN)
    return sum(length * sizes.get(tp, unknown) for tp, length in lengths.items())


_BY_DRIVER = 10_000  # offsets of a route that the driver writes in between: the first ones, and those that wait
_COLLECTED = 4  # of micro-batches that executors can do, the driver takes those of at most a quarter of max_bytes


class MicroBatches:
    """Runs the micro-batches of one pipeline, on the driver or on executors.

    The driver writes small micro-batches, everything that goes to a local database, and row-by-row micro-batches that
    commit as a whole. Executors do the rest.
    """

    def __init__(
        self, spec: PipelineSpec, jobs: SparkJobs, commits: Driver, destination: PipelineTable | PipelineRoute
    ) -> None:
        self._spec = spec
        self._waits = ParentWaits(0.0 if spec.route is None else spec.route.parent_wait)
        self._jobs = jobs
        self._commits = commits
        self._destination = destination
        self._altering = False
        self._made_for: Layout | None = None
        self._rowwise: Plain | Expressions | None = None
        self._transforming: Transforming | None = None
        if spec.commit is CommitMode.PARTITION and destination.is_local:
            raise ConfigurationError(
                f"pipeline of group {spec.group!r}: commit='partition' lets executors write, and SQLite's file belongs "
                "to the driver's machine; leave commit out, or use PostgreSQL or MariaDB"
            )

    def check(self) -> None:
        """Let Spark analyse the query, and raise if the table cannot take its rows, before any row is made."""
        self._shape()
        made = self._transforming or self._rowwise
        layout = self._destination.layout
        if isinstance(made, Plain) or made is None:
            return
        nothing = [Span(TopicPartition(topic, 0), 0, 0) for topic in self._spec.topics]
        with job(f"pipeline of group {self._spec.group!r}"):
            raw = self._jobs.raw(nothing)
            rows = made.rows(raw)
            schema = installed().arrow_schema(rows.schema)
            if isinstance(made, Expressions):
                refuse_generators(rows, self._spec.about)
                refuse_exchange(made.frame(raw), self._spec.about)
            self._refuse_partial(rows)
        if layout is not None:
            check_columns(layout, schema, self._spec.about)

    def run(
        self, number: int, spans: Sequence[Span], claims: Mapping[TopicPartition, Claim], *, weight: float = 0.0
    ) -> BatchDone:
        """Run one micro-batch and return its outcome. ``weight``: its expected size in bytes."""
        with job(f"group {self._spec.group!r}, micro-batch {number}"):
            if self._altering:
                self._destination.look()
            self._shape()
            done = self._run(MicroBatch(tuple(spans), claims, self._jobs, self._waits.over), weight)
        self._altering = done.outdated
        for span in done.tried or spans:
            if (offset := done.waiting.get(span.partition)) is None:
                self._waits.settle(span.partition, span.end)
            else:
                done.waits[span.partition] = self._waits.next(span.partition, offset, span.end - 1) or 0.0
        return done

    def _run(self, batch: MicroBatch, weight: float) -> BatchDone:
        """Choose who writes. Only the driver may create or alter the table, so it writes while that is due."""
        alone = self._destination.is_local or self._altering or not self._destination.is_ready
        light = weight <= self._spec.max_bytes / _COLLECTED
        small = alone or (light and batch.length <= self._spec.collect)
        if self._transforming is not None:
            with self._transforming.of(self._jobs.raw(batch.spans)) as transformed:
                self._refuse_partial(transformed.rows)
                return self._commits.transformed(batch, transformed, collect=small)
        assert self._rowwise is not None  # noqa: S101 - _shape() has set one of the two
        weight = max(weight / batch.length, 1.0)  # of a record
        if not self._destination.is_ready and self._spec.route is not None and not self._destination.is_local:
            batch = batch._replace(spans=self._shortened(batch.spans, weight))
            done = self._commits.by_driver(batch, self._rowwise)
            done.tried = batch.spans
            return done
        if small or self._spec.mode is CommitMode.BATCH:
            return self._commits.by_driver(batch, self._rowwise)
        again = [span for span in batch.spans if span.partition in self._waits]
        if not again:
            return self._commits.by_partition(batch, self._rowwise)
        return self._with_waiting(batch, self._rowwise, self._shortened(again, weight))

    def _with_waiting(self, batch: MicroBatch, rowwise: RowWise, again: tuple[Span, ...]) -> BatchDone:
        """Let the driver write the partitions that wait for parents, together, since they may wait for each other."""
        done = BatchDone("partition")
        waiting = {span.partition for span in again}
        if others := tuple(span for span in batch.spans if span.partition not in waiting):
            done.add(self._commits.by_partition(batch._replace(spans=others), rowwise))
        if not done.outdated:
            done.add(self._commits.by_driver(batch._replace(spans=again), rowwise))
        done.tried = (*others, *again)
        return done

    def _shortened(self, spans: Sequence[Span], weight: float) -> tuple[Span, ...]:
        """Return the spans in a length that the driver can write; ``weight``: expected bytes of a record."""
        most = min(_BY_DRIVER, self._spec.max_bytes / _COLLECTED / weight)
        each = max(1, int(most / len(spans)))
        return tuple(span._replace(end=min(span.end, span.start + each)) for span in spans)

    def _refuse_partial(self, rows: DataFrame) -> None:
        if not self._spec.per_batch:
            refuse_partial(rows, self._spec.about, self._spec.table)

    def _shape(self) -> None:
        """Decide how rows are made; decide again after the table has changed."""
        layout = self._destination.layout
        if layout is self._made_for and (self._rowwise or self._transforming):
            return
        self._made_for = layout
        if self._spec.mode is CommitMode.PARTITION or self._spec.is_plain:
            self._rowwise = rowwise_of(self._spec, layout)
            return
        if self._spec.transform is not None:
            parsing = parsing_of(self._spec, layout)
            self._transforming = Transforming(parsing, view_of(parsing), self._spec.transform)
        else:
            made = expressions_of(self._spec, layout)
            self._transforming = Transforming(made.parsing, made.view, made.apply)


def check_columns(layout: Layout, schema: Any, about: str) -> None:
    """Raise if the table cannot take rows of this Arrow schema."""
    strange = [name for name in schema.names if name not in layout.by_name]
    if strange and not layout.table.evolution.adds:
        refuse_generated(layout, strange[0])
        raise ConfigurationError(
            f"{about}: the table has no column {strange[0]!r} that can be written to; it has "
            f"{', '.join(map(repr, layout.by_name))}"
        )
    check_schema(layout, schema)


_BACKOFF = Backoff(first=0.5, most=10.0)
_TRIES = 5  # attempts at a micro-batch whose job fails, before the pipeline gives up
_CUT = 4  # each attempt has this many times fewer records than the one before
_IDLE = 0.1  # seconds between two checks when no interval is set and there is nothing to read


class Loop:
    """Runs micro-batches until a stop is requested or the run has read what it is meant to read."""

    def __init__(
        self,
        holding: ClaimedTopics,
        batches: MicroBatches,
        report: Report,
        stopping: Signal,
        tell: Callable[[Event], None],
        *,
        waiting: Waiting,
        most: int,
        most_bytes: int,
        on_batch: Callable[[BatchReport], None] | None,
        runtime: Runtime = THREADS,
    ) -> None:
        self._holding = holding
        self._batches = batches
        self._report = report
        self._stopping = stopping
        self._tell = tell
        self._waiting = waiting
        self._most = most
        self._limit = most  # lower after a failed job, which may have had too many records at once
        self._most_bytes = most_bytes
        self._sizes: dict[TopicPartition, float] = {}
        self._on_batch = on_batch
        self._clock = runtime.monotonic
        self._paused = False
        self._failures = 0
        self._due: dict[TopicPartition, float] = {}  # when partitions that wait for parents are tried again
        self._refused = False  # whether the last micro-batch failed, possibly because of the ledger

    def run(self, every: float) -> None:
        """Run a micro-batch at each interval; without an interval, one right after the other."""
        while not self._stopping.is_set():
            began = self._clock()
            if not self._one() or every:
                due = min([began + (every or _IDLE), *self._due.values()])
                self._stopping.wait(max(0.0, due - self._clock()))
        self._report.stopped = "asked to stop"

    def run_once(self) -> None:
        """Run one micro-batch, if there is anything to read and the group is not paused.

        What of it waits for parents is tried again until it is settled.
        """
        ends: dict[TopicPartition, int] = {}
        self._one(covered=ends)
        while self._due and not self._stopping.is_set() and not self._paused:
            self._wait_for_parents()
            self._one(ends)
        stopped = "asked to stop" if self._stopping.is_set() else "one micro-batch"
        self._report.stopped = "paused" if self._paused else stopped

    def run_available(self) -> None:
        """Run micro-batches until everything is read that was there at the beginning."""
        self._waiting.until_done(self._holding.look)
        ends = dict(self._holding.ends)
        while not self._stopping.is_set():
            positions = self._holding.positions
            if all(positions.get(tp, end) >= end for tp, end in ends.items()):
                self._report.stopped = "caught up"
                return
            if not self._one(ends):
                if self._paused:
                    self._report.stopped = "paused"
                    return
                self._wait_for_parents()
        self._report.stopped = "asked to stop"

    def _wait_for_parents(self) -> None:
        """Wait until a partition is to be tried again."""
        if self._due:
            self._stopping.wait(max(0.0, min(self._due.values()) - self._clock()))

    def _one(
        self, ends: Mapping[TopicPartition, int] | None = None, *, covered: dict[TopicPartition, int] | None = None
    ) -> bool:
        """Plan and run a micro-batch until it succeeds. Returns whether there was anything to read.

        ``covered`` is filled with the end of each span.
        """
        while not self._stopping.is_set():
            if not self._looked():
                continue
            spans = self._plan(ends)
            if not spans:
                self._answered()
                return False
            if covered is not None:
                covered |= {span.partition: span.end for span in spans}
            if self._turn(spans):
                return True
        return False

    def _plan(self, ends: Mapping[TopicPartition, int] | None) -> list[Span]:
        """Plan the next micro-batch from the last positions and log offsets; empty while the group is paused."""
        if self._holding.paused != self._paused:
            self._paused = self._holding.paused
            self._tell(Paused(self._report.group, self._paused))
        if self._paused:
            return []
        known = self._holding.ends
        wanted = known if ends is None else {tp: min(end, ends.get(tp, end)) for tp, end in known.items()}
        now = self._clock()
        wanted = {tp: end for tp, end in wanted.items() if self._due.get(tp, now) <= now}
        return plan(self._holding.positions, wanted, self._limit, most_bytes=self._most_bytes, sizes=self._sizes)

    def _weight(self, spans: Sequence[Span]) -> float:
        return expected_bytes({span.partition: span.end - span.start for span in spans}, self._sizes)

    def _looked(self) -> bool:
        if not self._waiting.tried(lambda: self._holding.look(firmly=self._refused)):
            return False
        if not self._refused:  # a ledger that can be read may still refuse writes
            self._answered()
        return True

    def _answered(self) -> None:
        """Report the end of any outage."""
        self._waiting.over()
        self._refused = False

    def _turn(self, spans: list[Span]) -> bool:
        """Run a micro-batch. Returns whether it is finished, as a fenced one is; otherwise it is planned again."""
        began = self._clock()
        number = self._report.batches + 1
        try:
            done = self._batches.run(number, spans, self._holding.claims, weight=self._weight(spans))
        except AWAY as error:
            self._refused = True
            self._waiting.out(error)
            return False
        except (JobFailed, LoadFailed, StatementTooLong) as error:
            self._failures += 1
            if self._failures >= _TRIES:
                raise
            self._limit = max(1, sum(span.end - span.start for span in spans) // _CUT)
            self._refused = True  # it may have failed to get a lock that one of its tasks still holds
            self._waiting.failed(error, _BACKOFF.after(self._failures))
            return False
        self._failures = 0
        self._refused = False
        self._sizes |= done.sizes
        self._limit = min(self._most, 2 * self._limit)
        self._waiting.succeeded()
        now = self._clock()
        tried = {span.partition for span in spans}
        self._due = {tp: at for tp, at in self._due.items() if tp not in tried}
        self._due |= {tp: now + after for tp, after in done.waits.items()}
        if done.outdated and not (done.records or done.letters):
            return False
        self._tell(Polled(self._report.group, done.records, 0))
        self._looked()
        for tp, position in self._holding.positions.items():
            self._tell(LagSeen(self._report.group, tp, position, self._holding.ends.get(tp, position)))
        seconds = self._clock() - began
        counts = (done.records, done.rows, done.letters)
        batch = BatchReport(number, done.mode, *counts, self._holding.lag, seconds, done.fenced, done.already_done)
        self._report.add(batch)
        if self._on_batch is not None:
            self._on_batch(batch)
        return not done.outdated
