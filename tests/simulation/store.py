"""The memory ledger with what a real store adds: row locks, idle limits, and connections that break."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from random import Random

from tidegate.core.journal import Entry, Kind
from tidegate.core.positions import Change, Identity
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Work
from tidegate.ledger.base import Decide, Rows
from tidegate.ledger.limits import Limits
from tidegate.ledger.memory import MemoryLedger, MemoryTransaction
from tidegate.ledger.trouble import ConnectionLost, LockWaitOver, OutcomeUnknown

GROUP = "billing"
HOLD = 15
"""Steps after which the store ends a transaction that its client has left idle."""
NO_WAIT = Limits(hold=0.05, lock_wait=0.05, attempts=1)  # the first trouble is the last


class Cut(IntEnum):
    """How the connection breaks under the next request."""

    NONE = 0
    REQUEST_LOST = 1
    REPLY_LOST = 2
    LANDS_LATE = 3


class Jump:
    """A move of a position over records that were not written: what it was, and how many rows the sink had then."""

    __slots__ = ("entry", "identity", "rows")

    def __init__(self, rows: int, entry: Entry, identity: Identity) -> None:
        self.rows = rows
        self.entry = entry
        self.identity = identity


class StoreTransaction(MemoryTransaction):
    """A transaction that the store may end."""

    def __init__(self, work: Work, store: Store) -> None:
        super().__init__(work)
        self.store = store
        self.idle_since = store.now
        self.ended = False
        self.lingers = False

    def append(self, table: str, row: object) -> None:
        if self.ended:
            raise ConnectionLost("the store ended the transaction")
        self.idle_since = self.store.now
        super().append(table, row)

    def rollback(self) -> None:
        super().rollback()
        self.store.unlock(self)


class Store(MemoryLedger):
    """One store, seen by all members; ``cut`` says what happens to the next request."""

    transaction_type = StoreTransaction

    def __init__(self, rng: Random) -> None:
        super().__init__(NO_WAIT)
        self.rng = rng
        self.now = 0
        self.cut = Cut.NONE
        self.away = False
        self.locks: dict[TopicPartition, object] = {}
        self.timers: list[tuple[int, Callable[[], object]]] = []
        self.transactions: list[StoreTransaction] = []
        self.jumps: dict[TopicPartition, list[Jump]] = {}

    def pass_time(self, now: int) -> None:
        """Carry out what lands late, and end transactions that sat idle for too long."""
        self.now = now
        if self.timers:
            due = [timer for timer in self.timers if timer[0] <= now]
            if due:
                self.timers = [timer for timer in self.timers if timer[0] > now]
                for _, act in due:
                    act()
        for tx in self.transactions:
            if now - tx.idle_since > HOLD and not tx.lingers:
                self.end(tx)
                return

    def end(self, tx: StoreTransaction) -> None:
        """Roll a transaction back on the server; its client notices when it next speaks."""
        tx.ended = True
        self.unlock(tx)

    def unlock(self, tx: StoreTransaction) -> None:
        if tx in self.transactions:
            self.transactions.remove(tx)
        for step in tx.work.steps:
            if self.locks.get(step.span.partition) is tx:
                del self.locks[step.span.partition]

    def linger(self, tx: StoreTransaction, then: Callable[[], object] | None = None) -> None:
        """The client is gone and the server has not noticed: it holds the locks for a while, and may still commit."""
        tx.lingers = True

        def over() -> None:
            if then is not None:
                then()
            self.end(tx)

        self.timers.append((self.now + 1 + int(self.rng.random() * HOLD), over))

    def _change(self, group: str, partitions: list[TopicPartition], decide: Decide) -> None:
        cut, self.cut = self.cut, Cut.NONE
        if cut == Cut.REQUEST_LOST:
            raise ConnectionLost("the request was lost")
        self._wait_for(partitions)
        changes = decide(self._rows(group, partitions))
        if cut == Cut.LANDS_LATE:
            self._store_later(group, partitions, changes)
            raise OutcomeUnknown("the connection broke")
        self._store(group, changes)
        if cut == Cut.REPLY_LOST:
            raise OutcomeUnknown("the reply was lost")

    def _store_later(self, group: str, partitions: list[TopicPartition], changes: Iterable[Change]) -> None:
        self.locks.update(dict.fromkeys(partitions, changes))

        def land() -> None:
            for tp in partitions:
                del self.locks[tp]
            self._store(group, changes)

        self.timers.append((self.now + 1 + int(self.rng.random() * HOLD), land))

    @contextmanager
    def _open(self, work: Work) -> Iterator[StoreTransaction]:
        cut, self.cut = self.cut, Cut.NONE
        if cut == Cut.REQUEST_LOST:
            raise ConnectionLost("the request was lost")
        self._wait_for(step.span.partition for step in work.steps)
        tx = self.transaction_type(work, self)
        self._advance(tx)
        self.transactions.append(tx)
        for step in work.steps:
            self.locks[step.span.partition] = tx
        try:
            if cut:
                if cut == Cut.LANDS_LATE:
                    self.linger(tx)
                raise ConnectionLost("the reply was lost")
            yield tx
            self._commit_over_the_wire(tx)
        finally:
            if not tx.lingers:
                self.unlock(tx)

    def _commit_over_the_wire(self, tx: StoreTransaction) -> None:
        cut, self.cut = self.cut, Cut.NONE
        if tx.ended:
            raise ConnectionLost("the store ended the transaction")
        if cut == Cut.REQUEST_LOST:
            self.linger(tx)
            raise OutcomeUnknown("the request was lost")
        self._check_sentinel(tx)
        if cut == Cut.LANDS_LATE:
            self.linger(tx, lambda: self._commit(tx))
            raise OutcomeUnknown("the connection broke")
        self._commit(tx)
        if cut == Cut.REPLY_LOST:
            raise OutcomeUnknown("the reply was lost")

    def _locked(self, work: Work) -> Rows:
        away, self.away = self.away, False
        if away:
            raise ConnectionLost("the store is still away")
        self._wait_for(step.span.partition for step in work.steps)
        return self._locked_rows(work)

    def _wait_for(self, partitions: Iterable[TopicPartition]) -> None:
        if self.locks:
            for tp in partitions:
                if tp in self.locks:
                    raise LockWaitOver(f"{tp} is locked")

    def _store(self, group: str, changes: Iterable[Change]) -> None:
        changes = list(changes)
        super()._store(group, changes)
        for change in changes:
            for entry in change.entries:
                if entry.kind in _JUMPS:
                    tp = change.position.partition
                    rows = len(self.data.get(str(tp), ()))
                    self.jumps.setdefault(tp, []).append(Jump(rows, entry, change.position.identity))


_JUMPS = {Kind.START, Kind.EDIT, Kind.LOSS, Kind.SKIP}
