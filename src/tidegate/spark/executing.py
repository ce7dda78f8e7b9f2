"""What an executor does in commit mode ``partition``: one task, one span, one transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.exc import SQLAlchemyError

from tidegate.core.delivery import Delivery
from tidegate.core.errors import Fenced, LedgerBusy, TidegateError
from tidegate.core.letters import Letter
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.ledger import Outcome, SqlTransaction
from tidegate.ledger.delivering import deliver
from tidegate.spark.address import LedgerAddress
from tidegate.spark.reading import RAW, letters_read, letters_written
from tidegate.spark.rows import Into, Made, RowWise
from tidegate.spark.shelf import Shelf
from tidegate.spark.sizes import Sizes
from tidegate.spark.workers import ready_worker
from tidegate.spark.writing import Outdated, Writing, line_of
from tidegate.tables.format import NewFields
from tidegate.tables.misfit import DoesNotFit
from tidegate.tables.rows import Rows

__all__ = ["RESULT", "Ended", "SpanCommit", "TaskResult"]


class Ended(StrEnum):
    """How a task ended. It does not fail for what to fail again would not help: the driver decides."""

    COMMITTED = "committed"
    ALREADY_DONE = "already done"
    FENCED = "fenced"
    OUTDATED = "outdated"
    FAILED = "failed"


class TaskResult(NamedTuple):
    """What a task tells the driver; ``error`` is the kind of what went wrong, ``detail`` its text.

    ``parked`` lists the letters as JSON: their offsets and errors. ``size``: how large records are to be expected.
    """

    topic: str
    partition: int
    ended: str
    records: int = 0
    rows: int = 0
    letters: int = 0
    attempts: int = 0
    unknown: int = 0
    seconds: float = 0.0
    size: float = 0.0
    parked: str = ""
    error: str = ""
    detail: str = ""

    @property
    def source(self) -> TopicPartition:
        """The partition whose span the task had."""
        return TopicPartition(self.topic, self.partition)

    def batch(self) -> Any:
        """As Arrow takes it."""
        return pa.RecordBatch.from_pylist([self._asdict()], schema=_SCHEMA)


_TYPES: dict[type, tuple[str, Any]] = {
    str: ("string", pa.string()),
    int: ("long", pa.int64()),
    float: ("double", pa.float64()),
}
_SCHEMA = pa.schema([(name, _TYPES[kind][1]) for name, kind in get_type_hints(TaskResult).items()])
RESULT = ", ".join(f"{name} {_TYPES[kind][0]}" for name, kind in get_type_hints(TaskResult).items())
"""The schema of task results, as Spark writes it."""


@dataclass(frozen=True)
class SpanCommit:
    """Goes to every executor: reads the batches of one span, then advances, writes and commits.

    Everything is read before the transaction begins: it is short then, and can be run again without reading again. What
    does not fit into memory waits on disk.
    """

    address: LedgerAddress
    writing: Writing
    rowwise: RowWise
    into: Into
    delivery: Delivery
    claims: Mapping[TopicPartition, Claim]
    spans: Mapping[TopicPartition, Span]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Do the work of one task, and tell how it ended."""
        ready_worker()
        with closing(_Kept()) as kept:
            result = self._done(batches, kept)
        if result is not None:
            yield result.batch()

    def _done(self, batches: Iterable[Any], kept: _Kept) -> TaskResult | None:
        """``None`` if there is no record to be seen."""
        whole, sizes = _Whole(self.spans), Sizes()
        try:
            for batch in filter(len, batches):
                whole.add(batch, self.rowwise.read(batch))
                sizes.add(self.rowwise.sizes(batch))
                made = self.rowwise.make(batch, self.into)
                kept.add(made)
            whole.check(counted=self.rowwise.counts)
        except (NewFields, TidegateError) as error:
            return self._failed(whole.source or self._some, error)
        if whole.source is None:
            return None
        return self._commit(whole.source, whole.count, kept)._replace(size=sizes.expected)

    def _commit(self, source: TopicPartition, count: int, kept: _Kept) -> TaskResult:
        began = time.monotonic()
        ledger = self.address.open()
        span = self.spans[source]._replace(records=count)

        def write(tx: SqlTransaction) -> None:
            for some in kept.letters():
                for letter in some:
                    tx.park(letter)
                ledger.write_parked(tx)
            self.writing.write(tx, kept.rows)

        try:
            result = deliver(ledger, self.delivery, {source: self.claims[source]}, [span], write, shared=True)
        except (TidegateError, Outdated, DoesNotFit, SQLAlchemyError) as error:
            if isinstance(error, LedgerBusy) and _is_retried():
                raise  # the first attempt may still be at it, and Spark would end that if this one had a result
            return self._failed(source, error)
        done = result.outcome is Outcome.ALREADY_DONE
        ended = Ended.ALREADY_DONE if done else Ended.COMMITTED
        return TaskResult(
            *source,
            ended,
            records=count,
            rows=kept.count,
            letters=len(kept.parked),
            attempts=result.attempts,
            unknown=result.unknown_outcomes,
            seconds=time.monotonic() - began,
            parked=json.dumps(kept.parked),
        )

    def _failed(self, source: TopicPartition, error: Exception) -> TaskResult:
        match error:
            case Fenced():
                ended = Ended.FENCED
            case NewFields() | Outdated():
                ended = Ended.OUTDATED
            case _:
                ended = Ended.FAILED
        return TaskResult(*source, ended, error=type(error).__name__, detail=line_of(error))

    @property
    def _some(self) -> TopicPartition:
        return next(iter(self.spans))


class _Kept:
    """What a task has made of its records, until it is written."""

    def __init__(self) -> None:
        self.rows = Shelf()
        self.count = 0
        self.parked: list[tuple[int, str]] = []
        self._letters = Shelf()

    def add(self, made: Made) -> None:
        """Some more."""
        self.rows.add(made.rows)
        self.count += len(made.rows)
        if made.letters:
            self.parked += [(letter.record.offset, letter.error) for letter in made.letters]
            self._letters.add(Rows(letters_written(made.letters), range(len(made.letters))))

    def close(self) -> None:
        """Give back what it took on disk."""
        self.rows.close()
        self._letters.close()

    def letters(self) -> Iterator[list[Letter]]:
        """The letters, some at a time."""
        for some in self._letters:
            yield letters_read(some.batch)


class NotWhole(TidegateError):
    """A task was not given the records of one span, each once and in order."""


class _Whole:
    """What a task was given: has to be all records that were read of one span. Of which partition, they tell
    themselves; it is never asked of Spark, whose numbers of tasks mean nothing.
    """

    def __init__(self, spans: Mapping[TopicPartition, Span]) -> None:
        self._spans = spans
        self._last = -1
        self._read: int | None = None
        self.source: TopicPartition | None = None
        self.count = 0

    def add(self, records: Any, read: int | None) -> None:
        """Some more; ``read`` tells how many there are in all, with the last of them."""
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
        """All have come. ``counted``: their number was told."""
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
    """Whether there was an attempt at this task before this one; a speculative one is numbered likewise."""
    from pyspark import TaskContext  # noqa: PLC0415 - there is one on executors only

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0
