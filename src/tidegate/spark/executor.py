"""The executor's part of a commit: each task commits one span in one transaction."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.exc import SQLAlchemyError

from tidegate.core.policies import Delivery
from tidegate.core.records import FailedRecord, TopicPartition
from tidegate.core.runtime import Runtime
from tidegate.core.work import Claim, Span
from tidegate.errors import (
    Fenced,
    LedgerBusy,
    LedgerConflict,
    LedgerUnavailable,
    NotCommitted,
    RegistryUnavailable,
    StatementTooLong,
    TidegateError,
)
from tidegate.ledger import Outcome, SqlLedger, SqlTransaction
from tidegate.ledger.blame import Blame, fault_of
from tidegate.ledger.ledger import deliver
from tidegate.ledger.threads import THREADS
from tidegate.spark.address import LedgerAddress
from tidegate.spark.records import RAW, Sizes, letters_read, letters_written
from tidegate.spark.rows import Into, Made, RowWise
from tidegate.spark.workers import ready_worker
from tidegate.spark.writer import Writing, line_of, public_error
from tidegate.tables.format import NewFields
from tidegate.tables.plan import PlanStep
from tidegate.tables.rows import DoesNotFit, Rows
from tidegate.tables.writer import GuardedWriter, TableAltered

__all__ = [
    "RESULT",
    "Ended",
    "ExecutorCommit",
    "Kept",
    "Shelf",
    "SpanRecords",
    "TaskResult",
    "TaskTarget",
    "park_all",
    "task_is_retried",
]


_BATCH_BYTES = 2_500  # what a batch takes in memory beside its data: a step may have a single row
_PREFIX = 8  # bytes of the length that precedes each batch in the file
_MOST = 32 << 20  # bytes of a shelf that stay in memory
_FLAGS = PlanStep._fields[1:]  # each is a bit of the mark of a planned step


class Shelf:
    """A buffer of Arrow batches that can be read in order several times, once for each attempt at the transaction.

    Each batch has a mark, a small number that says what it is for.

    Up to ``most`` bytes stay in memory. The rest goes to an unnamed temporary file in Spark's local directory, so a
    task with large records needs no more memory.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._batches: list[tuple[Any, int]] = []
        self._file: BinaryIO | None = None

    def add(self, batch: Any, mark: int = 0) -> None:
        """Append a batch, unless it has neither rows nor a mark: a step that empties the table has no rows."""
        if not (batch.num_rows or mark):
            return
        self._left -= batch.nbytes + _BATCH_BYTES
        if self._left >= 0:
            self._batches.append((batch, mark))
            return
        if self._file is None:
            folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - close() closes it
        written = _written(batch)
        self._file.write(len(written).to_bytes(_PREFIX, "big") + bytes([mark]))
        self._file.write(written)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        yield from self._batches
        if self._file is not None:
            self._file.seek(0)
            while prefix := self._file.read(_PREFIX):
                (mark,) = self._file.read(1)
                yield _read(self._file.read(int.from_bytes(prefix, "big"))), mark

    def close(self) -> None:
        """Close the temporary file, which deletes it."""
        if self._file is not None:
            self._file.close()


def _written(batch: Any) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())


def _read(written: bytes) -> Any:
    return pa.ipc.open_stream(written).read_next_batch()


class Ended(StrEnum):
    """How a task ended.

    A task does not raise for errors that a retry by Spark would not fix: it reports them, and the driver decides.
    """

    COMMITTED = "committed"
    ALREADY_DONE = "already done"
    FENCED = "fenced"
    OUTDATED = "outdated"
    REFUSED = "refused"
    """The database refused rows; with ``parks``, the task can be run again."""
    WAITING = "waiting"
    """The first record waits for a row that a foreign key refers to; nothing is committed."""
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"
    """The ledger is unavailable; a later attempt may succeed."""
    NO_SCHEMAS = "no schemas"
    """The schema registry is unavailable; a later attempt may succeed."""
    TOO_LONG = "too long"
    """A statement ran longer than the limit; a retry of the same span would too."""
    FAILED = "failed"
    """Another failure, at which a retry would fail too."""


class TaskResult(NamedTuple):
    """The report of a task to the driver; ``detail`` is the text of an error.

    ``parked`` lists the dead letters as JSON: offset and error of each. ``size`` is the expected size of a record.
    ``waiting`` is the offset of a record of a route that waits for its parent, in front of which the commit ends.
    """

    topic: str
    partition: int
    ended: Ended
    records: int = 0
    rows: int = 0
    letters: int = 0
    attempts: int = 0
    unknown: int = 0
    seconds: float = 0.0
    size: float = 0.0
    parked: str = ""
    detail: str = ""
    waiting: int = -1

    @classmethod
    def of(cls, row: Iterable[Any]) -> TaskResult:
        """Return the result that a row of Spark holds."""
        result = cls(*row)
        return result._replace(ended=Ended(result.ended))

    @classmethod
    def failed(cls, source: TopicPartition, error: Exception) -> TaskResult:
        """Return the result of a task that wrote nothing because of an error."""
        match error:
            case Fenced():
                ended = Ended.FENCED
            case NewFields() | TableAltered():
                ended = Ended.OUTDATED
            case LedgerConflict():  # a conflict is not an outage
                ended = Ended.CONFLICT
            case LedgerUnavailable() | LedgerBusy() | NotCommitted():
                ended = Ended.UNAVAILABLE
            case RegistryUnavailable():
                ended = Ended.NO_SCHEMAS
            case StatementTooLong():
                ended = Ended.TOO_LONG
            case _:
                ended = Ended.FAILED
        return cls(*source, ended, detail=line_of(error))

    @property
    def source(self) -> TopicPartition:
        """The partition whose span the task committed."""
        return TopicPartition(self.topic, self.partition)

    def batch(self) -> Any:
        """Return the result as an Arrow batch of one row."""
        return pa.RecordBatch.from_pylist([self._asdict()], schema=_SCHEMA)


_TYPES: dict[type, tuple[str, Any]] = {
    str: ("string", pa.string()),
    Ended: ("string", pa.string()),
    int: ("long", pa.int64()),
    float: ("double", pa.float64()),
}
_SCHEMA = pa.schema([(name, _TYPES[kind][1]) for name, kind in get_type_hints(TaskResult).items()])
RESULT = ", ".join(f"{name} {_TYPES[kind][0]}" for name, kind in get_type_hints(TaskResult).items())
"""The schema of task results, in Spark's DDL syntax."""


class TaskTarget(NamedTuple):
    """Where a task commits to: the ledger, and the writer of the table."""

    ledger: SqlLedger
    writer: GuardedWriter

    def planned(self, rows: Rows) -> Iterator[PlanStep]:
        """Yield the steps that write the rows, before the transaction begins."""
        self.ledger.meet()  # raises errors with advice if there is no way to connect
        return self.writer.planned(rows, self.ledger.engine.connect)


@dataclass(frozen=True)
class ExecutorCommit:
    """The function that a task runs on an executor: reads the batches of one span, then writes, advances and commits.

    All batches are read, and their writes planned, before the transaction begins. So the transaction is short, and it
    can be repeated without doing that again. Rows that do not fit into memory wait on disk.

    ``parks``: also keep the records, so that those whose rows the database refuses can be parked. Otherwise the task
    ends as ``REFUSED`` and has written nothing, and the driver runs it again with ``parks``. Refusals are rare, and
    keeping records takes time.
    """

    address: LedgerAddress
    writing: Writing
    rowwise: RowWise
    into: Into
    delivery: Delivery
    claims: Mapping[TopicPartition, Claim]
    spans: Mapping[TopicPartition, Span]
    parks: bool = False
    runtime: Runtime = THREADS

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Run one task and yield its result."""
        ready_worker()
        with closing(Kept()) as kept:
            result = self._done(batches, kept)
        if result is not None:
            yield result.batch()

    def _done(self, batches: Iterable[Any], kept: Kept) -> TaskResult | None:
        """Return the result of the task; ``None`` if it saw no record."""
        whole, sizes, target = SpanRecords(self.spans), Sizes(), self.target()
        try:
            for batch in filter(len, batches):
                whole.add(batch, self.rowwise.read(batch))
                sizes.add(self.rowwise.sizes(batch))
                made = self.rowwise.make(batch, self.into)
                if self.parks:
                    kept.raw.add(batch)
                else:
                    kept.add(made, target.planned(made.rows))
            whole.check(counted=self.rowwise.counts)
        except SQLAlchemyError as error:
            return self._failed(whole.source or self._some, public_error(target.ledger, error, "planning rows"))
        except (DoesNotFit, pa.ArrowException) as error:
            return self._failed(whole.source or self._some, error)
        except (NewFields, TidegateError) as error:
            return TaskResult.failed(whole.source or self._some, error)
        if whole.source is None:
            return None
        done = self._commit(target, whole.source, whole.count, kept, is_retried=task_is_retried())
        return done._replace(size=sizes.expected)

    def target(self) -> TaskTarget:
        """Open the ledger and prepare the writer of the table."""
        ledger = self.address.open()
        return TaskTarget(ledger, self.writing.on(ledger.engine))

    def _commit(
        self, target: TaskTarget, source: TopicPartition, count: int, kept: Kept, *, is_retried: bool
    ) -> TaskResult:
        """Commit what was made from the records. ``is_retried``: there was an attempt at the same task before."""
        began, ledger = self.runtime.monotonic(), target.ledger
        span = self.spans[source]._replace(records=count)

        def write(tx: SqlTransaction) -> None:
            park = partial(park_all, ledger, tx)
            if self.parks:
                kept.begin()
                made = map(kept.counted, (self.rowwise.make(batch, self.into) for batch, _ in kept.raw))
                self.writing.write_or_park(tx, made, lambda letters: park(kept.noted(letters)))
                return
            for some in kept.letters():
                park(some)
            target.writer.write(tx.connection, kept.steps())

        try:
            result = deliver(ledger, self.delivery, {source: self.claims[source]}, [span], write, shared=True)
        except (TidegateError, TableAltered, SQLAlchemyError, pa.ArrowException) as error:
            if isinstance(error, LedgerBusy) and is_retried:
                # an earlier attempt may still be committing, and Spark would kill it if this one returned a result
                raise
            return self._failed(source, error)
        done = result.outcome is Outcome.ALREADY_DONE
        ended = Ended.ALREADY_DONE if done else Ended.COMMITTED
        return TaskResult(
            *source,
            ended,
            records=count,
            rows=kept.written,
            letters=len(kept.parked),
            attempts=result.attempts,
            unknown=result.unknown_outcomes,
            seconds=self.runtime.monotonic() - began,
            parked=json.dumps(kept.parked),
        )

    def _failed(self, source: TopicPartition, error: Exception) -> TaskResult:
        if not self.parks and not isinstance(error, TableAltered) and fault_of(error).blame is not Blame.DATABASE:
            return TaskResult(*source, Ended.REFUSED, detail=line_of(error))
        return TaskResult.failed(source, error)

    @property
    def _some(self) -> TopicPartition:
        return next(iter(self.spans))


class Kept:
    """The planned steps, dead letters and raw records of a task, until they are written."""

    def __init__(self, most: int = _MOST) -> None:
        """``most``: how many bytes of each may stay in memory."""
        self.raw = Shelf(most)
        self.count = 0
        self.misfits = 0
        self.parked: list[tuple[int, str]] = []
        self._steps = Shelf(most)
        self._letters = Shelf(most)

    def add(self, made: Made, steps: Iterable[PlanStep]) -> None:
        """Append what a batch became: the steps that write its rows, and its dead letters."""
        self.counted(made)
        for batch, *flags in steps:
            self._steps.add(batch, sum(flag << bit for bit, flag in enumerate(flags)))
        if made.letters:
            self._letters.add(letters_written(self.noted(made.letters)))

    def begin(self) -> None:
        """Reset the counts before another attempt, which counts again by :meth:`counted` and :meth:`noted`."""
        self.count, self.misfits, self.parked = 0, 0, []

    def counted(self, made: Made) -> Made:
        """Add the rows and dead letters of a batch to the counts."""
        self.count += len(made.rows)
        self.misfits += len(made.letters)
        return made

    @property
    def written(self) -> int:
        """The number of rows written: all except those of records that the database refused."""
        return self.count - (len(self.parked) - self.misfits)

    def noted(self, letters: list[FailedRecord]) -> list[FailedRecord]:
        """Add dead letters to those that the task reports."""
        self.parked += [(letter.record.offset, letter.error) for letter in letters]
        return letters

    def close(self) -> None:
        """Delete the temporary files."""
        self.raw.close()
        self._steps.close()
        self._letters.close()

    def steps(self) -> Iterator[PlanStep]:
        """Yield the planned steps in order."""
        for batch, mark in self._steps:
            yield PlanStep(batch, *(bool(mark >> bit & 1) for bit in range(len(_FLAGS))))

    def letters(self) -> Iterator[list[FailedRecord]]:
        """Yield the dead letters in blocks."""
        for some, _ in self._letters:
            yield letters_read(some)


def park_all(ledger: SqlLedger, tx: SqlTransaction, letters: list[FailedRecord]) -> None:
    """Park dead letters in the transaction, and write them at once."""
    for letter in letters:
        tx.park(letter)
    ledger.write_parked(tx)


class NotWhole(TidegateError):
    """A task did not receive the records of one span, each once and in order."""


class SpanRecords:
    """Checks that a task receives all records of one span, in order.

    The partition is taken from the records. Spark's task numbers cannot be used: they do not identify a Kafka
    partition.
    """

    def __init__(self, spans: Mapping[TopicPartition, Span]) -> None:
        self._spans = spans
        self._last = -1
        self._read: int | None = None
        self.source: TopicPartition | None = None
        self.count = 0

    def add(self, records: Any, read: int | None) -> None:
        """Check a batch; with the last one, ``read`` is the number of records that the task has read in total."""
        if self._read is not None:
            raise self._not("there are more behind the last one")
        self._read = read
        topics, numbers, offsets = (records.column(RAW[part]) for part in ("topic", "partition", "offset"))
        source = TopicPartition(topics[0].as_py(), numbers[0].as_py())
        if self.source not in (None, source) or not (_all_like_first(topics) and _all_like_first(numbers)):
            raise self._not("they are of several partitions")
        span = self._spans.get(source)
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if span is None or first < span.start or last >= span.end:
            raise self._not(f"some are outside of {span or 'its spans'}")
        if first <= self._last or not _ascend(offsets):
            raise self._not("they are not in the order of their offsets")
        self.source, self._last = source, last
        self.count += records.num_rows

    def check(self, *, counted: bool) -> None:
        """Check, after the last batch, that no record is missing. ``counted``: :meth:`add` was given the number."""
        if counted and self.count and self._read != self.count:
            read = "an unknown number" if self._read is None else self._read
            raise self._not(f"there are {self.count} of {read}")

    def _not(self, why: str) -> NotWhole:
        return NotWhole(
            f"a task was not given the records of one span ({why}), so it wrote nothing; something moves records "
            "between tasks: use commit='batch'"
        )


def _all_like_first(array: Any) -> bool:
    return bool(pc.all(pc.equal(array, array[0])).as_py())


def _ascend(offsets: Any) -> bool:
    return bool(pc.all(pc.less(offsets[:-1], offsets[1:]), min_count=0).as_py())


def task_is_retried() -> bool:
    """Return whether an earlier attempt at this task exists. Speculative attempts are numbered in the same way."""
    from pyspark import TaskContext  # noqa: PLC0415 - only executors have one

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0
