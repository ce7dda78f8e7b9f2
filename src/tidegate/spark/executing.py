"""What an executor does in commit mode ``partition``: one task, one span, one transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, get_type_hints

import pyarrow as pa
from sqlalchemy.exc import SQLAlchemyError

from tidegate.core.delivery import Delivery
from tidegate.core.errors import Fenced, LedgerBusy, TidegateError
from tidegate.core.letters import Letter
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.ledger import Outcome, SqlTransaction
from tidegate.ledger.delivering import deliver
from tidegate.spark.address import LedgerAddress
from tidegate.spark.reading import RAW
from tidegate.spark.rows import Into, RowWise
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

    ``parked`` lists the letters as JSON: their offsets and errors.
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

    Everything is read before the transaction begins: it is short then, and can be run again without reading again.
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
        source: TopicPartition | None = None
        rows: list[Rows] = []
        letters: list[Letter] = []
        count = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            source = self._source(batch, source)
            try:
                made = self.rowwise.make(batch, self.into)
            except (NewFields, TidegateError) as error:
                yield self._failed(source, error).batch()
                return
            count += made.records
            rows.append(made.rows)
            letters += made.letters
        if source is not None:
            yield self._commit(source, count, rows, letters).batch()

    def _commit(self, source: TopicPartition, count: int, rows: list[Rows], letters: list[Letter]) -> TaskResult:
        began = time.monotonic()
        ledger = self.address.open()
        span = self.spans[source]._replace(records=count)

        def write(tx: SqlTransaction) -> None:
            for letter in letters:
                tx.park(letter)
            self.writing.write(tx, rows)

        try:
            result = deliver(ledger, self.delivery, {source: self.claims[source]}, [span], write, shared=True)
        except (TidegateError, Outdated, DoesNotFit, SQLAlchemyError) as error:
            if isinstance(error, LedgerBusy) and _is_retried():
                raise  # the first attempt may still be at it, and Spark would end that if this one had a result
            return self._failed(source, error)
        done = result.outcome is Outcome.ALREADY_DONE
        ended = Ended.ALREADY_DONE if done else Ended.COMMITTED
        written = sum(map(len, rows))
        parked = json.dumps([(letter.record.offset, letter.error) for letter in letters])
        return TaskResult(
            *source,
            ended,
            records=count,
            rows=written,
            letters=len(letters),
            attempts=result.attempts,
            unknown=result.unknown_outcomes,
            seconds=time.monotonic() - began,
            parked=parked,
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

    def _source(self, batch: Any, before: TopicPartition | None) -> TopicPartition:
        """The partition that the batch is of: never asked of Spark, whose numbers of tasks mean nothing."""
        first, last = batch.slice(0, 1), batch.slice(batch.num_rows - 1)
        of = {
            TopicPartition(end.column(RAW["topic"])[0].as_py(), end.column(RAW["partition"])[0].as_py())
            for end in (first, last)
        }
        source = of.pop()
        span = self.spans[source]
        starts, ends = first.column(RAW["offset"])[0].as_py(), last.column(RAW["offset"])[0].as_py()
        if of or before not in (None, source) or not span.start <= starts <= ends < span.end:
            raise RuntimeError(f"a task was given records outside of {span}")
        return source


def _is_retried() -> bool:
    """Whether there was an attempt at this task before this one; a speculative one is numbered likewise."""
    from pyspark import TaskContext  # noqa: PLC0415 - there is one on executors only

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0
