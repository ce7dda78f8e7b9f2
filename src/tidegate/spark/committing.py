"""Committing one micro-batch: by its partitions, each in its task; or by the driver, in one transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from tidegate.core.errors import Fenced, LedgerUnavailable, PipelineStopped
from tidegate.core.letters import Letter
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.ledger import Outcome, SqlLedger, SqlTransaction
from tidegate.ledger.delivering import deliver
from tidegate.observe.observer import Committed, DeadLettered, Event, FencedOff
from tidegate.spark.address import LedgerAddress
from tidegate.spark.destination import Destination
from tidegate.spark.executing import RESULT, Ended, SpanCommit, TaskResult
from tidegate.spark.plans import refuse_exchange
from tidegate.spark.reading import RAW
from tidegate.spark.rows import RowWise
from tidegate.spark.sizes import Sizes
from tidegate.spark.spec import PipelineSpec
from tidegate.spark.staging import RowRefused, Staged, Staging
from tidegate.spark.transforming import Transformed
from tidegate.spark.waiting import AWAY
from tidegate.spark.writing import Outdated, line_of
from tidegate.tables.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Batch", "Commits", "Done"]


class Batch(NamedTuple):
    """A micro-batch: its spans, the claims that they are advanced under, and its records as they are read."""

    number: int
    spans: tuple[Span, ...]
    claims: Mapping[TopicPartition, Claim]
    raw: DataFrame

    @property
    def length(self) -> int:
        """How many offsets it covers."""
        return sum(span.end - span.start for span in self.spans)


class Writes(NamedTuple):
    """What one transaction of the driver writes, besides the positions."""

    mode: str
    rows: Sequence[Rows] = ()
    letters: Sequence[Letter] = ()
    staged: Staged | None = None

    @property
    def total(self) -> int:
        """How many rows."""
        return self.staged.total if self.staged is not None else sum(map(len, self.rows))


@dataclass
class Done:
    """What became of a micro-batch."""

    mode: str
    records: int = 0
    rows: int = 0
    letters: int = 0
    fenced: int = 0
    already_done: int = 0
    outdated: bool = False
    sizes: dict[TopicPartition, float] = field(default_factory=dict)


class Commits:
    """Commits micro-batches of one pipeline."""

    def __init__(
        self, spec: PipelineSpec, ledger: SqlLedger, destination: Destination, tell: Callable[[Event], None]
    ) -> None:
        self._spec = spec
        self._ledger = ledger
        self._destination = destination
        self._tell = tell
        # Of a file of SQLite there is none that executors could use.
        self._address = None if destination.is_local else LedgerAddress.of(ledger)
        self._staging = Staging(ledger, spec.group, self._address)

    def by_partition(self, batch: Batch, rowwise: RowWise) -> Done:
        """Each task commits its span. Spans in which there is no record to be seen are advanced here."""
        done = Done("partition")
        spans = {span.partition: span for span in batch.spans}
        assert self._address is not None  # noqa: S101 - or the driver writes
        commit = SpanCommit(
            self._address,
            self._destination.writing(),
            rowwise,
            self._destination.fixed(),
            self._spec.delivery,
            batch.claims,
            spans,
        )
        frame = rowwise.frame(batch.raw).mapInArrow(commit, RESULT)
        self._refuse_exchange(frame, rowwise)
        results = [TaskResult(*row) for row in frame.collect()]
        failed = [result for result in results if result.ended == Ended.FAILED]
        for result in results:  # those that went well are told of before one that did not ends it
            if result not in failed:
                self._take(result, spans.pop(result.source), done)
            done.sizes[result.source] = result.size
        for result in failed:
            self._fail(result)
        if spans:
            self._advance(batch.claims, list(spans.values()), done)
        return done

    def by_driver(self, batch: Batch, rowwise: RowWise) -> Done:
        """All of it is collected and written here."""
        frame = rowwise.frame(batch.raw)
        self._refuse_exchange(frame, rowwise)
        table = frame.toArrow()
        batches = table.combine_chunks().to_batches()
        made = self._destination.made(lambda target: [rowwise.make(each, target) for each in batches])
        counts = _counted(table)
        spans = [span._replace(records=counts.get(span.partition, 0)) for span in batch.spans]
        letters = [letter for each in made for letter in each.letters]
        done = self._together(batch.claims, spans, Writes("driver", [each.rows for each in made], letters))
        done.sizes = _sizes(batches, rowwise)
        return done

    def transformed(self, batch: Batch, transformed: Transformed, *, collect: bool) -> Done:
        """The rows of all partitions in one transaction: collected here, or staged by executors."""
        spans = [span._replace(records=transformed.counts.get(span.partition, 0)) for span in batch.spans]
        try:
            if collect:
                writes = Writes("driver", self._collected(transformed), transformed.letters)
            else:
                staged = self._staging.load(transformed.rows, self._destination.target.layout)
                writes = Writes("staged", (), transformed.letters, staged)
            done = self._together(batch.claims, spans, writes)
            done.sizes = transformed.sizes
            return done
        except RowRefused as refused:
            raise PipelineStopped(
                f"{self._spec.about}: a row of the transform does not fit: {refused}. No record is to blame for a row "
                "of several; correct the transform or the table"
            ) from None

    def close(self) -> None:
        """Remove what was made for the run."""
        self._staging.close()

    def _collected(self, transformed: Transformed) -> list[Rows]:
        batches = transformed.rows.toArrow().combine_chunks().to_batches()
        rows = self._destination.made(lambda target: [target.fit(each) for each in batches])
        for each in rows:
            if each.misfits:
                raise RowRefused(str(each.misfits[0]))
        return rows

    def _together(self, claims: Mapping[TopicPartition, Claim], spans: Sequence[Span], writes: Writes) -> Done:
        """Advance all spans, write and park, in one transaction."""
        began = time.monotonic()
        is_there = self._destination.layout is not None  # not, if no record has shown yet what to create
        writing = self._destination.writing() if is_there and (writes.rows or writes.staged) else None

        def work(tx: SqlTransaction) -> None:
            if writes.staged is not None:
                writes.staged.move(tx)
            for letter in writes.letters:
                tx.park(letter)
            if writing is not None:
                writing.write(tx, writes.rows)

        try:
            result = deliver(self._ledger, self._spec.delivery, claims, spans, work)
        except Fenced as fenced:
            self._tell(FencedOff(self._spec.group, fenced.owners, str(fenced)))
            return Done(writes.mode, fenced=len(fenced.owners))
        except Outdated:
            return Done(writes.mode, outdated=True)
        except SQLAlchemyError as error:
            raise PipelineStopped(f"{self._spec.about}: the database refused the rows: {line_of(error)}") from error
        is_done = result.outcome is Outcome.ALREADY_DONE
        taken = (time.monotonic() - began, result.attempts, result.unknown_outcomes, is_done)
        self._tell(Committed(self._spec.group, tuple(spans), *taken))
        for record, why, _ in writes.letters:
            self._tell(DeadLettered(self._spec.group, record.source, record.offset, why))
        records = sum(span.records for span in spans)
        return Done(writes.mode, records, writes.total, len(writes.letters), already_done=int(is_done))

    def _take(self, result: TaskResult, span: Span, done: Done) -> None:
        match Ended(result.ended):
            case Ended.FENCED:
                done.fenced += 1
                self._tell(FencedOff(self._spec.group, {span.partition: None}, result.detail))
            case Ended.OUTDATED:
                done.outdated = True
            case ended:
                done.records += result.records
                done.rows += result.rows
                done.letters += result.letters
                done.already_done += ended is Ended.ALREADY_DONE
                covered = (span._replace(records=result.records),)
                taken = (result.seconds, result.attempts, result.unknown, ended is Ended.ALREADY_DONE)
                self._tell(Committed(self._spec.group, covered, *taken))
                for offset, error in json.loads(result.parked or "[]"):
                    self._tell(DeadLettered(self._spec.group, span.partition, offset, error))

    def _refuse_exchange(self, frame: DataFrame, rowwise: RowWise) -> None:
        """Which joins Spark takes depends on what else is read: so every micro-batch is looked at."""
        if rowwise.counts:
            refuse_exchange(frame, self._spec.about)

    def _fail(self, result: TaskResult) -> None:
        text = f"{self._spec.about}, {result.source}: {result.detail}"
        if result.error in {kind.__name__ for kind in AWAY}:
            raise LedgerUnavailable(text)
        raise PipelineStopped(text)

    def _advance(self, claims: Mapping[TopicPartition, Claim], spans: list[Span], done: Done) -> None:
        done.fenced += self._together(claims, spans, Writes("partition")).fenced


def _counted(table: Any) -> dict[TopicPartition, int]:
    """How many records of each partition a table of raw records has."""
    if not table.num_rows:
        return {}
    names = [RAW["topic"], RAW["partition"]]
    found = table.select(names).group_by(names).aggregate([([], "count_all")]).to_pylist()
    return {TopicPartition(row[names[0]], row[names[1]]): row["count_all"] for row in found}


def _sizes(batches: Iterable[Any], rowwise: RowWise) -> dict[TopicPartition, float]:
    """How large records of each partition are to be expected, by those of a micro-batch that was collected."""
    found: dict[TopicPartition, Sizes] = {}
    for batch in batches:
        sizes = rowwise.sizes(batch)
        sources = zip(*(batch.column(RAW[part]).to_pylist() for part in ("topic", "partition")), strict=True)
        places: dict[TopicPartition, list[int]] = {}
        for place, source in enumerate(sources):
            places.setdefault(TopicPartition(*source), []).append(place)
        for source, taken in places.items():
            found.setdefault(source, Sizes()).add(sizes.take(taken))
    return {source: sizes.expected for source, sizes in found.items()}
