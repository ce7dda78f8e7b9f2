"""The ledger of a run: the real one, watched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tidegate.core.journal import Entry, Kind
from tidegate.core.letters import ParkedLetter
from tidegate.core.positions import GroupState
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Move, Span, Work
from tidegate.core.totals import Totals
from tidegate.ledger import Ledger, Reclaimed, Result
from tidegate.ledger.base import Claims, Decide, Rows
from tidegate.ledger.claiming import StartAt
from tidegate.testing.process import Process
from tidegate.testing.steps import Step

__all__ = ["WatchedLedger"]


class WatchedLedger(Ledger[Any]):
    """Does what the ledger below it does, and tells the process of the steps.

    The contract's own code runs here, on the store of the ledger below. A dead process reaches the store no more: what
    it asks for is not done, and what it would release stays claimed.
    """

    def __init__(self, ledger: Ledger[Any], process: Process, settle: Callable[[], None]) -> None:
        """``settle`` waits for those whom a transaction of ours had to wait."""
        super().__init__(ledger.limits)
        self._ledger = ledger
        self._process = process
        self._settle = settle
        self.engine = getattr(ledger, "engine", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    # What listeners do

    def claim(
        self, group: str, partitions: Iterable[TopicPartition], start_at: StartAt = 0, **options: Any
    ) -> dict[TopicPartition, Claim]:
        """See :meth:`Ledger.claim`."""
        claims = super().claim(group, partitions, start_at, **options)
        self._process.reached(Step.CLAIMED, group, list(claims))
        return claims

    def reclaim(self, claims: Claims, *, take: bool = False) -> Reclaimed:
        """See :meth:`Ledger.reclaim`."""
        reclaimed = super().reclaim(claims, take=take)
        if reclaimed.claims:
            self._process.reached(Step.CLAIMED, _group(claims), list(reclaimed.claims))
        return reclaimed

    def release(self, claims: Claims) -> set[TopicPartition]:
        """See :meth:`Ledger.release`."""
        if self._process.dead or not claims:
            return set()
        released = super().release(claims)
        self._process.reached(Step.RELEASED, _group(claims), sorted(released))
        return released

    def transact(
        self,
        claims: Claims,
        spans: Iterable[Span],
        handler: Callable[[Any], object] | None = None,
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
    ) -> Result:
        """See :meth:`Ledger.transact`."""
        wanted = list(spans)
        result = super().transact(claims, wanted, handler, move=move, note=note)
        self._process.reached(Step.ACKNOWLEDGED, _group(claims), [span.partition for span in wanted])
        return result

    # What the store does

    @contextmanager
    def _open(self, work: Work) -> Iterator[Any]:
        self._process.live()
        try:
            with self._ledger._open(work) as tx:
                self._process.reached(Step.ADVANCED, work.group, work.partitions)
                yield tx
                self._process.reached(Step.WRITTEN, work.group, work.partitions)
        finally:
            self._settle()
        self._process.reached(Step.COMMITTED, work.group, work.partitions)

    @contextmanager
    def _detached(self, work: Work) -> Iterator[Any]:
        self._process.live()
        with self._ledger._detached(work) as tx:
            yield tx
            self._process.reached(Step.WRITTEN, work.group, work.partitions)
        self._process.reached(Step.COMMITTED, work.group, work.partitions)

    @contextmanager
    def _replaying(self, work: Work, number: int) -> Iterator[Any]:
        self._process.live()
        try:
            with self._ledger._replaying(work, number) as tx:
                yield tx
                self._process.reached(Step.WRITTEN, work.group, work.partitions)
        finally:
            self._settle()
        self._process.reached(Step.COMMITTED, work.group, work.partitions)

    def _change(self, group: str, partitions: list[TopicPartition], decide: Decide) -> None:
        self._process.live()
        self._ledger._change(group, partitions, decide)

    def _forced_by(self, group: str, deployment: str) -> frozenset[str]:
        self._process.live()
        return self._ledger._forced_by(group, deployment)

    def _locked(self, work: Work) -> Rows:
        self._process.live()
        return self._ledger._locked(work)

    def _set_paused(self, group: str, kind: Kind, note: str | None) -> bool:
        return self._ledger._set_paused(group, kind, note)

    def create(self) -> None:
        """The run has done so: a process that joins it would wait for the transaction that it joins in."""

    def close(self) -> None:
        """The ledger below is not ours to close."""

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """See :meth:`Ledger.read`."""
        self._process.live()
        return self._ledger.read(group, partitions)

    def read_all(self) -> dict[str, GroupState]:
        """See :meth:`Ledger.read_all`."""
        return self._ledger.read_all()

    def totals(self) -> list[Totals]:
        """See :meth:`Ledger.totals`."""
        return self._ledger.totals()

    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """See :meth:`Ledger.newest`."""
        return self._ledger.newest(group, partition)

    def journal(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """See :meth:`Ledger.journal`."""
        return self._ledger.journal(group, partition)

    def prune(self, older_than: timedelta, group: str | None = None) -> int:
        """See :meth:`Ledger.prune`."""
        return self._ledger.prune(older_than, group)

    def failed_again(self, parked: ParkedLetter, error: str) -> bool:
        """See :meth:`Ledger.failed_again`."""
        return self._ledger.failed_again(parked, error)

    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[ParkedLetter]:
        """See :meth:`Ledger.dead_letters`."""
        return self._ledger.dead_letters(group, after=after, limit=limit)

    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """See :meth:`Ledger.drop_letters`."""
        return self._ledger.drop_letters(group, ids)


def _group(claims: Claims) -> str:
    return next(iter(claims.values())).group
