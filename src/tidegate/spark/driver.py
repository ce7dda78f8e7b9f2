"""The driver's part of a commit: each task commits a partition, or the driver commits all in one transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from tidegate.core.policies import Delivery
from tidegate.core.records import FailedRecord, TopicPartition
from tidegate.core.runtime import Runtime
from tidegate.core.work import Claim, Span
from tidegate.errors import (
    ConfigurationError,
    Fenced,
    LedgerConflict,
    LedgerUnavailable,
    PipelineStopped,
    RegistryUnavailable,
    StatementTooLong,
    TidegateError,
)
from tidegate.ledger import Ledger, Outcome, SqlLedger, SqlTransaction
from tidegate.ledger.ledger import deliver
from tidegate.ledger.threads import THREADS
from tidegate.observe.events import Committed, DeadLettered, Event, FencedOff
from tidegate.spark.address import LedgerAddress
from tidegate.spark.executor import Ended, ExecutorCommit, TaskResult
from tidegate.spark.jobs import JobFailed, RecordJobs
from tidegate.spark.routes import Drafted, PipelineRoute, RouteCommit, RouteWriting, before_waits
from tidegate.spark.rows import FixedTable, Made, RowWise
from tidegate.spark.spec import WriteSpec
from tidegate.spark.staging import RowRefused, Staged, Staging
from tidegate.spark.transforms import Transformed
from tidegate.spark.versions import installed
from tidegate.spark.writer import Writing, line_of
from tidegate.tables.layout import Layout
from tidegate.tables.registry import database_of
from tidegate.tables.rows import Rows
from tidegate.tables.shape import look_at_shape
from tidegate.tables.target import Target
from tidegate.tables.writer import TableAltered

__all__ = ["FAILURES", "BatchDone", "Driver", "MicroBatch", "PipelineTable"]


T = TypeVar("T")

FAILURES: dict[Ended, type[TidegateError]] = {
    Ended.CONFLICT: LedgerConflict,
    Ended.UNAVAILABLE: LedgerUnavailable,
    Ended.NO_SCHEMAS: RegistryUnavailable,
    Ended.TOO_LONG: StatementTooLong,
    Ended.FAILED: PipelineStopped,
}
"""What the driver raises for a task that has failed."""


class PipelineTable:
    """The table of a pipeline or a query. It is inspected, created and altered between transactions only."""

    def __init__(self, spec: WriteSpec, ledger: Ledger[Any]) -> None:
        if not isinstance(ledger, SqlLedger):
            raise ConfigurationError(
                f"{spec.about}: it needs a ledger in a SQL database, since rows and positions commit together"
            )
        self.engine = ledger.engine
        self._ledger = ledger
        self._spec = spec
        self._shape: str | None = None
        self.target = self._target()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can write to the table: its database is a file."""
        return database_of(self.engine).is_local

    @property
    def address(self) -> LedgerAddress | None:
        """Where executors open the ledger; ``None`` if they cannot, because its database is a file of this machine."""
        return None if self.is_local else LedgerAddress.of(self._ledger)

    @property
    def is_ready(self) -> bool:
        """Whether executors may write: only the driver creates the table."""
        return self.layout is not None

    @property
    def layout(self) -> Layout | None:
        """The table's layout; ``None`` if the table does not exist yet and will be created from the first rows."""
        return self.target.prepare()

    def look(self) -> None:
        """Inspect the table again, and create it if the pipeline asks for that.

        Raises :class:`LedgerUnavailable` only for temporary errors. Others become a
        :class:`ConfigurationError`, since waiting for them would never end.
        """
        try:
            self._look()
        except LedgerUnavailable as error:
            cause = error.__cause__
            if cause is not None and self._ledger.passing(cause, "looking at the table") is None:
                raise ConfigurationError(str(error)) from cause
            raise

    def _look(self) -> None:
        """Read the shape before the layout, so that a change in between is noticed as a different shape."""
        shape: object = object()
        self._shape = look_at_shape(self.engine, self._spec.table)
        while shape != self._shape:  # repeat after a table was created or altered here
            shape = self._shape
            self.target = self._target()
            layout = self.target.prepare()
            self._shape = look_at_shape(self.engine, self._spec.table)
        if self._spec.is_plain and layout is not None and not self._spec.table.evolution.adds:
            self.target.read([])  # raises if the table lacks a column that a source is mapped to

    def made(self, make: Callable[[Target], T]) -> T:
        """Call ``make`` with the table; call it once more if the rows of the first call have altered the table."""
        known = self.layout
        result = make(self.target)
        if self.layout is not known:
            self.look()
            result = make(self.target)
        return result

    def writing(self) -> Writing:
        """Return the writer for rows that were made since the last :meth:`look`."""
        return Writing(self.target.layout, self._shape)

    def fixed(self) -> FixedTable:
        """Return the table in the form that is sent to executors, which cannot alter it."""
        spec = self._spec
        sources = spec.sources if spec.columns is not None else None
        return FixedTable(self.target.layout, spec.form, sources, spec.keys)

    def _target(self) -> Target:
        spec = self._spec
        plain = spec.is_plain and spec.columns is not None
        columns = {name: (source.part, *source.path) for name, source in spec.sources.items()} if plain else None
        return Target(
            self.engine, spec.table, format=spec.form, key_format=spec.keys or spec.key_format, columns=columns
        )


class MicroBatch(NamedTuple):
    """A micro-batch: its spans, the claims to advance them under, and the jobs that read its records."""

    spans: tuple[Span, ...]
    claims: Mapping[TopicPartition, Claim]
    jobs: RecordJobs
    over: Mapping[TopicPartition, int] = {}
    """Partitions that have waited long enough for parents, with the last offset that has waited."""

    @property
    def length(self) -> int:
        """The number of offsets that it covers."""
        return sum(span.end - span.start for span in self.spans)


class Writes(NamedTuple):
    """What one transaction of the driver writes in addition to the positions."""

    mode: str
    rows: Sequence[Rows] = ()
    letters: Sequence[FailedRecord] = ()
    staged: Staged | None = None
    made: Sequence[Made] | Sequence[Drafted] = ()
    """Rows with the dead letters found so far. Records whose rows the database refuses are parked as well."""
    routed: RouteWriting | None = None
    """Writes the rows of a route."""

    @property
    def total(self) -> int:
        """The number of rows, provided that the database refuses none."""
        rows = [*self.rows, *(each.rows for each in self.made)]
        return self.staged.total if self.staged is not None else sum(map(len, rows))


@dataclass
class BatchDone:
    """The outcome of a micro-batch; ``outdated`` if the table was altered, so that it has to run again."""

    mode: str
    records: int = 0
    rows: int = 0
    letters: int = 0
    fenced: int = 0
    already_done: int = 0
    outdated: bool = False
    sizes: dict[TopicPartition, float] = field(default_factory=dict)
    waiting: dict[TopicPartition, int] = field(default_factory=dict)
    """The offsets of records of a route that wait for their parents; their partitions were committed up to there."""
    waits: dict[TopicPartition, float] = field(default_factory=dict)
    """For how many seconds each of these partitions waits now."""
    tried: tuple[Span, ...] = ()
    """The spans, if they are not those of the micro-batch."""

    def add(self, other: BatchDone) -> None:
        """Add the outcome of another part of the micro-batch."""
        for name in ("records", "rows", "letters", "fenced", "already_done"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.outdated = self.outdated or other.outdated
        self.sizes |= other.sizes
        self.waiting |= other.waiting


class Driver:
    """Commits the micro-batches of one pipeline, or the batches of one query."""

    def __init__(
        self,
        spec: WriteSpec,
        ledger: SqlLedger,
        destination: PipelineTable | PipelineRoute,
        tell: Callable[[Event], None],
        runtime: Runtime = THREADS,
    ) -> None:
        self._spec = spec
        self._ledger = ledger
        self._destination = destination
        self._tell = tell
        self._runtime = runtime
        self._address = destination.address
        self._staging = Staging(ledger, spec.group, self._address)

    def by_partition(self, batch: MicroBatch, rowwise: RowWise) -> BatchDone:
        """Let each task commit its span. The driver advances spans for which no task saw a record."""
        done = BatchDone("partition")
        spans = {span.partition: span for span in batch.spans}
        rowwise = rowwise.of_partitions(len(batch.claims))
        # With at-most-once delivery the position moves first and no task can be repeated, so records are kept at once.
        results = self._tasks(batch, batch.spans, rowwise, parks=self._spec.delivery is Delivery.AT_MOST_ONCE)
        refused = [result for result in results if result.ended is Ended.REFUSED]
        if refused:
            again = [spans[result.source] for result in refused]
            results = [result for result in results if result not in refused]
            results += self._tasks(batch, again, rowwise, parks=True)
        failed = [result for result in results if result.ended in FAILURES]
        for result in results:  # report the tasks that succeeded before a failed one raises
            if result not in failed:
                self._take(result, spans.pop(result.source), done)
            done.sizes[result.source] = result.size
        for result in failed:
            raise FAILURES[result.ended](f"{self._spec.about}, {result.source}: {result.detail}")
        if spans:
            self._advance(batch.claims, list(spans.values()), done)
        return done

    def _tasks(self, batch: MicroBatch, spans: Sequence[Span], rowwise: RowWise, *, parks: bool) -> list[TaskResult]:
        assert self._address is not None  # noqa: S101 - it is None for a local database only, which the driver writes to
        of_partitions = {span.partition: span for span in spans}
        how = self._spec.delivery, batch.claims, of_partitions
        if isinstance(self._destination, PipelineRoute):
            routed = RouteCommit(self._destination.fixed, rowwise, *how, batch.over, self._runtime)
            return batch.jobs.commit(routed, spans)
        writing, into = self._destination.writing(), self._destination.fixed()
        task = ExecutorCommit(self._address, writing, rowwise, into, *how, parks, self._runtime)
        return batch.jobs.commit(task, spans)

    def by_driver(self, batch: MicroBatch, rowwise: RowWise) -> BatchDone:
        """Collect all records and write them here, in one transaction."""
        batches, counts, sizes = batch.jobs.collect(rowwise, batch.spans)
        if isinstance(self._destination, PipelineRoute):
            drafted = self._destination.made(batches)
            done = self._routed(batch, drafted, counts, self._destination.writing(batch.over))
            done.sizes = sizes
            return done
        rowwise = rowwise.of_partitions(len(batch.claims))
        made = self._destination.made(lambda target: [rowwise.make(each, target) for each in batches])
        spans = [span._replace(records=counts.get(span.partition, 0)) for span in batch.spans]
        done = self.together(batch.claims, spans, Writes("driver", made=made))
        done.sizes = sizes
        return done

    def _routed(
        self, batch: MicroBatch, made: Sequence[Drafted], counts: Mapping[TopicPartition, int], writing: RouteWriting
    ) -> BatchDone:
        """Write the rows of a route. A partition ends in front of a record that waits for its parent."""

        def attempt(ends: Mapping[TopicPartition, int]) -> BatchDone:
            left = sum((each.counts(ends) for each in made), Counter[TopicPartition]()) if ends else counts
            parts = [
                span._replace(end=ends.get(span.partition, span.end), records=left.get(span.partition, 0))
                for span in batch.spans
            ]
            spans = [span for span in parts if span.end > span.start]
            if not spans:
                return BatchDone("driver")
            writes = Writes("driver", made=[each.before(ends) for each in made], routed=writing)
            return self.together(batch.claims, spans, writes)

        done, ends = before_waits(attempt)
        done.waiting = ends
        return done

    def transformed(self, batch: MicroBatch, transformed: Transformed, *, collect: bool) -> BatchDone:
        """Write the transformed rows of all partitions in one transaction: collected here, or staged by executors."""
        spans = [span._replace(records=transformed.counts.get(span.partition, 0)) for span in batch.spans]
        try:
            if collect:
                writes = Writes("driver", self._collected(transformed), transformed.letters)
            else:
                staged = self._staging.load(transformed.rows, self._table.target.layout)
                writes = Writes("staged", (), transformed.letters, staged)
            done = self.together(batch.claims, spans, writes)
            done.sizes = transformed.sizes
            return done
        except RowRefused as refused:
            if not collect and self._spec.table.evolution.alters_columns:  # which only the driver does
                return BatchDone("staged", outdated=True)
            raise PipelineStopped(
                f"{self._spec.about}: a row of the transform does not fit: {refused}. The row may come from several "
                "records, so none of them is parked; correct the transform or the table"
            ) from None

    @property
    def _table(self) -> PipelineTable:
        assert isinstance(self._destination, PipelineTable)  # noqa: S101 - a transform with a route is refused
        return self._destination

    def close(self) -> None:
        """Drop the staging table of the run."""
        self._staging.close()

    def _collected(self, transformed: Transformed) -> list[Rows]:
        batches = installed().arrow_table(transformed.rows).combine_chunks().to_batches()
        rows = self._table.made(lambda target: [target.fit(each) for each in batches])
        for each in rows:
            if each.misfits:
                raise RowRefused(str(each.misfits[0]))
        return rows

    def together(self, claims: Mapping[TopicPartition, Claim], spans: Sequence[Span], writes: Writes) -> BatchDone:
        """Advance all spans, write and park, in one transaction."""
        began = self._runtime.monotonic()
        writing = self._writing(writes)
        parked = known = [*writes.letters, *(letter for each in writes.made for letter in each.letters)]
        rows = writes.total

        def work(tx: SqlTransaction) -> None:
            nonlocal parked, rows
            parked = list(known)
            if writes.staged is not None:
                writes.staged.move(tx)
            if writing is not None and writes.made:
                parked = []
                rows = writing.write_or_park(tx, writes.made, parked.extend)  # type: ignore[arg-type]
            elif isinstance(writing, Writing):
                writing.write(tx, writes.rows)
            for letter in parked:
                tx.park(letter)

        try:
            result = deliver(self._ledger, self._spec.delivery, claims, spans, work)
        except Fenced as fenced:
            self._tell(FencedOff(self._spec.group, fenced.owners, str(fenced)))
            return BatchDone(writes.mode, fenced=len(fenced.owners))
        except TableAltered:
            return BatchDone(writes.mode, outdated=True)
        except SQLAlchemyError as error:
            raise PipelineStopped(f"{self._spec.about}: the database refused the rows: {line_of(error)}") from error
        is_done = result.outcome is Outcome.ALREADY_DONE
        taken = (self._runtime.monotonic() - began, result.attempts, result.unknown_outcomes, is_done)
        self._tell(Committed(self._spec.group, tuple(spans), *taken))
        for record, why, _ in parked:
            self._tell(DeadLettered(self._spec.group, record.source, record.offset, why))
        records = sum(span.records for span in spans)
        return BatchDone(writes.mode, records, rows, len(parked), already_done=int(is_done))

    def _writing(self, writes: Writes) -> Writing | RouteWriting | None:
        """Return what writes the rows; ``None`` if there are none, and then the table need not exist yet."""
        if isinstance(self._destination, PipelineRoute):
            return writes.routed
        is_there = self._destination.layout is not None
        return self._destination.writing() if is_there and (writes.rows or writes.staged or writes.made) else None

    def _take(self, result: TaskResult, span: Span, done: BatchDone) -> None:
        if result.waiting >= 0:
            done.waiting[span.partition] = result.waiting
        match result.ended:
            case Ended.FENCED:
                done.fenced += 1
                self._tell(FencedOff(self._spec.group, {span.partition: None}, result.detail))
            case Ended.OUTDATED:
                done.outdated = True
            case Ended.WAITING:
                pass
            case Ended.COMMITTED | Ended.ALREADY_DONE as ended:
                done.records += result.records
                done.rows += result.rows
                done.letters += result.letters
                done.already_done += ended is Ended.ALREADY_DONE
                end = span.end if result.waiting < 0 else result.waiting
                covered = (span._replace(end=end, records=result.records),)
                taken = (result.seconds, result.attempts, result.unknown, ended is Ended.ALREADY_DONE)
                self._tell(Committed(self._spec.group, covered, *taken))
                for offset, error in json.loads(result.parked or "[]"):
                    self._tell(DeadLettered(self._spec.group, span.partition, offset, error))
            case other:
                raise JobFailed(f"{self._spec.about}, {result.source}: a task cannot have ended as {other.value!r}")

    def _advance(self, claims: Mapping[TopicPartition, Claim], spans: list[Span], done: BatchDone) -> None:
        done.fenced += self.together(claims, spans, Writes("partition")).fenced
