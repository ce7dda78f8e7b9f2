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
    StatementTooLong,
    TidegateError,
)
from tidegate.ledger import Outcome, SqlLedger, SqlTransaction
from tidegate.ledger.blame import Blame, fault_of
from tidegate.ledger.delivery import deliver
from tidegate.ledger.threads import THREADS
from tidegate.spark.address import LedgerAddress
from tidegate.spark.records import RAW, Sizes, letters_read, letters_written
from tidegate.spark.rows import Into, Made, RowWise
from tidegate.spark.workers import ready_worker
from tidegate.spark.writer import TableAltered, Writing, line_of
from tidegate.tables.format import NewFields
from tidegate.tables.rows import Rows

__all__ = ["RESULT", "Ended", "ExecutorCommit", "Kept", "Shelf", "TaskResult"]


_TOMBSTONES = "tidegate_tombstones"
_LACKING = "tidegate_lacking."  # prefix of the column's name
_PREFIX = 8  # bytes of the length that precedes each block of rows in the file


class Shelf:
    """A buffer of rows that can be read in order several times, once for each attempt at the transaction.

    Up to ``most`` bytes stay in memory. The rest goes to an unnamed temporary file in Spark's local directory, so a
    task with large records needs no more memory.
    """

    def __init__(self, most: int = 32 << 20) -> None:
        self._left = most
        self._rows: list[Rows] = []
        self._file: BinaryIO | None = None

    def add(self, rows: Rows) -> None:
        """Append rows."""
        if not len(rows):
            return
        self._left -= rows.batch.nbytes
        if self._left >= 0:
            self._rows.append(rows)
            return
        if self._file is None:
            folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - close() closes it
        written = _written(rows)
        self._file.write(len(written).to_bytes(_PREFIX, "big"))
        self._file.write(written)

    def __iter__(self) -> Iterator[Rows]:
        yield from self._rows
        if self._file is not None:
            self._file.seek(0)
            while prefix := self._file.read(_PREFIX):
                yield _read(self._file.read(int.from_bytes(prefix, "big")))

    def close(self) -> None:
        """Close the temporary file, which deletes it."""
        if self._file is not None:
            self._file.close()


def _written(rows: Rows) -> memoryview:
    batch = rows.batch if rows.tombstones is None else rows.batch.append_column(_TOMBSTONES, rows.tombstones)
    for name, mask in rows.lacking.items():
        batch = batch.append_column(_LACKING + name, mask)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())


def _read(written: bytes) -> Rows:
    batch = pa.ipc.open_stream(written).read_next_batch()
    tombstones = None
    if _TOMBSTONES in batch.schema.names:
        tombstones = batch.column(_TOMBSTONES)
        batch = batch.drop_columns([_TOMBSTONES])
    lacking = {name: batch.column(name) for name in batch.schema.names if name.startswith(_LACKING)}
    return Rows(
        batch.drop_columns(list(lacking)),
        range(batch.num_rows),
        tombstones=tombstones,
        lacking={name.removeprefix(_LACKING): mask for name, mask in lacking.items()},
    )


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
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"
    """The ledger is away, which passes by itself."""
    TOO_LONG = "too long"
    """A statement ran longer than the limit; a retry of the same span would too."""
    FAILED = "failed"
    """Another failure, which would come again."""


class TaskResult(NamedTuple):
    """The report of a task to the driver; ``detail`` is the text of an error.

    ``parked`` lists the dead letters as JSON: offset and error of each. ``size`` is the expected size of a record.
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


@dataclass(frozen=True)
class ExecutorCommit:
    """The function that a task runs on an executor: reads the batches of one span, then writes, advances and commits.

    All batches are read before the transaction begins. So the transaction is short, and it can be repeated without
    reading again. Rows that do not fit into memory wait on disk.

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
        whole, sizes = _Whole(self.spans), Sizes()
        try:
            for batch in filter(len, batches):
                whole.add(batch, self.rowwise.read(batch))
                sizes.add(self.rowwise.sizes(batch))
                made = self.rowwise.make(batch, self.into)
                if self.parks:
                    kept.raw.add(Rows(batch, range(batch.num_rows)))
                else:
                    kept.add(made)
            whole.check(counted=self.rowwise.counts)
        except (NewFields, TidegateError) as error:
            return TaskResult.failed(whole.source or self._some, error)
        if whole.source is None:
            return None
        done = self._commit(whole.source, whole.count, kept, is_retried=_is_retried())
        return done._replace(size=sizes.expected)

    def _commit(self, source: TopicPartition, count: int, kept: Kept, *, is_retried: bool) -> TaskResult:
        """Commit what was made from the records. ``is_retried``: there was an attempt at the same task before."""
        began = self.runtime.monotonic()
        ledger = self.address.open()
        span = self.spans[source]._replace(records=count)

        def write(tx: SqlTransaction) -> None:
            park = partial(_park, ledger, tx)
            if self.parks:
                kept.begin()
                made = map(kept.counted, (self.rowwise.make(each.batch, self.into) for each in kept.raw))
                self.writing.write_or_park(tx, made, lambda letters: park(kept.noted(letters)))
                return
            for some in kept.letters():
                park(some)
            self.writing.write(tx, kept.rows)

        try:
            result = deliver(ledger, self.delivery, {source: self.claims[source]}, [span], write, shared=True)
        except (TidegateError, TableAltered, SQLAlchemyError, pa.ArrowException) as error:
            if isinstance(error, LedgerBusy) and is_retried:
                # an earlier attempt may still be committing, and Spark would kill it if this one returned a result
                raise
            if not self.parks and not isinstance(error, TableAltered) and fault_of(error).blame is not Blame.DATABASE:
                return TaskResult(*source, Ended.REFUSED, detail=line_of(error))
            return TaskResult.failed(source, error)
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

    @property
    def _some(self) -> TopicPartition:
        return next(iter(self.spans))


class Kept:
    """The rows, dead letters and raw records of a task, until they are written."""

    def __init__(self) -> None:
        self.raw = Shelf()
        self.rows = Shelf()
        self.count = 0
        self.misfits = 0
        self.parked: list[tuple[int, str]] = []
        self._letters = Shelf()

    def add(self, made: Made) -> None:
        """Append the rows and dead letters of a batch."""
        self.rows.add(self.counted(made).rows)
        if made.letters:
            self._letters.add(Rows(letters_written(self.noted(made.letters)), range(len(made.letters))))

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
        self.rows.close()
        self._letters.close()

    def letters(self) -> Iterator[list[FailedRecord]]:
        """Yield the dead letters in blocks."""
        for some in self._letters:
            yield letters_read(some.batch)


def _park(ledger: SqlLedger, tx: SqlTransaction, letters: list[FailedRecord]) -> None:
    for letter in letters:
        tx.park(letter)
    ledger.write_parked(tx)


class NotWhole(TidegateError):
    """A task did not receive the records of one span, each once and in order."""


class _Whole:
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


def _is_retried() -> bool:
    """Return whether an earlier attempt at this task exists. Speculative attempts are numbered in the same way."""
    from pyspark import TaskContext  # noqa: PLC0415 - only executors have one

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0
