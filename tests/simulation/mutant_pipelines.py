"""Drivers, their claims and tasks with one rule left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tidegate.core.positions import GroupState
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.errors import LedgerError
from tidegate.spark import driver as drivers
from tidegate.spark.claims import ClaimedTopics
from tidegate.spark.driver import FAILURES, BatchDone, Driver, MicroBatch
from tidegate.spark.executor import Ended, ExecutorCommit, Kept, TaskResult, TaskTarget
from tidegate.spark.jobs import JobFailed
from tidegate.spark.loop import Loop
from tidegate.spark.rows import RowWise
from tidegate.tables.plan import PlanStep

from .store import GROUP, StoreTransaction


class FenceTakenForDone(ExecutorCommit):
    """A task that is fenced reports that its work was already done."""

    def _commit(
        self, target: TaskTarget, source: TopicPartition, count: int, kept: Kept, *, is_retried: bool
    ) -> TaskResult:
        result = super()._commit(target, source, count, kept, is_retried=is_retried)
        return result._replace(ended=Ended.ALREADY_DONE) if result.ended is Ended.FENCED else result


class FencedTaskWritesAgain(ExecutorCommit):
    """A task that is fenced writes its records by the row as it is now."""

    def _commit(
        self, target: TaskTarget, source: TopicPartition, count: int, kept: Kept, *, is_retried: bool
    ) -> TaskResult:
        result = super()._commit(target, source, count, kept, is_retried=is_retried)
        store: Any = self.address.open()
        row, span = store.row(source), self.spans[source]
        if result.ended is not Ended.FENCED or row is None or row.owner is None or row.next_offset >= span.end:
            return result

        def write(tx: StoreTransaction) -> None:
            for rows, *_ in kept.steps():
                tx.load(str(source), rows.records)

        try:
            store.transact({source: row.claim(GROUP)}, [Span(source, row.next_offset, span.end, count)], write)
        except LedgerError:
            return result
        return result._replace(ended=Ended.COMMITTED)


class AlreadyDoneWrittenAgain(ExecutorCommit):
    """A task whose work was committed by another attempt does not look at the token, and writes its rows again."""

    def _commit(
        self, target: TaskTarget, source: TopicPartition, count: int, kept: Kept, *, is_retried: bool
    ) -> TaskResult:
        result = super()._commit(target, source, count, kept, is_retried=is_retried)
        if result.ended is Ended.ALREADY_DONE:
            store: Any = self.address.open()
            for rows, *_ in kept.steps():
                store.data.setdefault(str(source), []).extend(rows.records)
        return result


class PartTakenForWhole(ExecutorCommit):
    """A task that was given a part of its records commits the whole span."""

    def _commit(
        self, target: TaskTarget, source: TopicPartition, count: int, kept: Kept, *, is_retried: bool
    ) -> TaskResult:
        if count > 1 and not self.parks:
            ((rows, *_),) = kept.steps()
            kept = Kept()
            part: Any = type(rows)(rows.records[:-1])
            kept.add(self.rowwise.make(part, self.into), [PlanStep(part)])
            count -= 1
        return super()._commit(target, source, count, kept, is_retried=is_retried)


class FailedTaskTakenForEmpty(Driver):
    """The driver advances the span of a task that has failed, as if the task had seen no record."""

    def _tasks(self, batch: MicroBatch, spans: Sequence[Span], rowwise: RowWise, *, parks: bool) -> list[TaskResult]:
        return [each for each in super()._tasks(batch, spans, rowwise, parks=parks) if each.ended not in FAILURES]


class UnreportedTaskTakenForEmpty(Driver):
    """The driver advances the spans of a job that has failed, as if its tasks had seen no record."""

    def _tasks(self, batch: MicroBatch, spans: Sequence[Span], rowwise: RowWise, *, parks: bool) -> list[TaskResult]:
        try:
            return super()._tasks(batch, spans, rowwise, parks=parks)
        except JobFailed:
            return []


class EmptySpansLeft(Driver):
    """The driver does not advance spans in which no task saw a record."""

    def _advance(self, claims: Mapping[TopicPartition, Claim], spans: list[Span], done: BatchDone) -> None:
        pass


class FencedSpansRewritten(Driver):
    """The driver takes a commit of all spans that was fenced for one of the spans that are still its own."""

    def together(self, claims: Mapping[TopicPartition, Claim], spans: Sequence[Span], writes: Any) -> BatchDone:
        done = super().together(claims, spans, writes)
        rows = self._ledger.read(GROUP, list(claims)).positions
        mine = [span for span in spans if rows[span.partition].owner == claims[span.partition].owner]
        if done.fenced and mine:
            return super().together({tp: rows[tp].claim(GROUP) for tp in claims}, mine, writes)
        return done


class GoesOnFromPlannedEnd(Loop):
    """The driver goes on behind what it has planned, whatever the ledger says."""

    _planned: Mapping[TopicPartition, tuple[int, int]] = {}

    def _plan(self, ends: Mapping[TopicPartition, int] | None) -> list[Span]:
        for tp, (epoch, end) in self._planned.items():
            if self._holding.claims[tp].epoch == epoch and end <= self._holding.ends[tp]:
                self._holding.positions[tp] = end
        spans = super()._plan(ends)
        claims = self._holding.claims
        self._planned = {span.partition: (claims[span.partition].epoch, span.end) for span in spans}
        return spans


class ZombieTakesBack(ClaimedTopics):
    """A driver takes partitions back that another owner has claimed, instead of stopping."""

    def _reclaim(self) -> None:
        self.claims, _ = self._ledger.reclaim(self.claims, take=True)
        self.positions = {tp: claim.position for tp, claim in self.claims.items()}


class FreePartitionsTaken(ClaimedTopics):
    """A driver that was replaced claims partitions that an operator has edited, before it stops."""

    def _reclaim(self) -> None:
        real = self._ledger.reclaim
        with patch.object(self._ledger, "reclaim", lambda claims, **options: real(claims, owner=options["owner"])):
            super()._reclaim()


class UnansweredClaimForgotten(ClaimedTopics):
    """A driver does not know the claims of a call that was not answered, and takes them for those of another."""

    def _reclaim(self) -> None:
        self._owner = None
        super()._reclaim()


class ClaimsBeforeItLooks(ClaimedTopics):
    """A driver claims new partitions before it looks whether it was replaced."""

    def _refuse_if_replaced(self) -> None:
        pass


class EditsUnseen(ClaimedTopics):
    """A driver does not notice that an operator has edited a position."""

    def _are_mine(self, state: GroupState) -> bool:
        return True


class PipelinePauseUnheard(ClaimedTopics):
    """A pipeline goes on when its group is paused."""

    def look(self, *, firmly: bool = False) -> None:
        super().look(firmly=firmly)
        self.paused = False


def task(replaced: type[ExecutorCommit]) -> AbstractContextManager[object]:
    """Drivers start other tasks."""
    return patch.object(drivers, "ExecutorCommit", replaced)
