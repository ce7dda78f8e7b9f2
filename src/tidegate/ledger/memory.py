"""The reference ledger: the contract in plain Python, for tests and simulation."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from tidegate.core.errors import TransactionBroken
from tidegate.core.journal import Entry, Kind, in_time
from tidegate.core.letters import ParkedLetter
from tidegate.core.positions import Change, GroupState, Position, forced_starts
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Work
from tidegate.core.totals import Totals
from tidegate.ledger.base import Decide, Ledger, Rows
from tidegate.ledger.limits import Limits
from tidegate.ledger.totals import totals_of
from tidegate.ledger.transaction import Transaction
from tidegate.ledger.trouble import Conflict, LockWaitOver, NotMoved

__all__ = ["MemoryLedger", "MemoryTransaction"]


class MemoryTransaction(Transaction):
    """A transaction whose data are rows appended to named tables."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.changes: list[Change] = []
        self.rows: list[tuple[str, object]] = []
        self.sealed = False

    def append(self, table: str, row: object) -> None:
        """Write a row."""
        self.rows.append((table, row))

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        written = len(self.rows)
        try:
            yield
        except BaseException:
            del self.rows[written:]
            raise

    def rollback(self) -> None:
        """What a database does behind a handler's back: everything so far is gone, the rest would be a new
        transaction.
        """
        self.changes.clear()
        self.rows.clear()
        self.letters.clear()
        self.sealed = False


class _Group:
    def __init__(self) -> None:
        self.paused = False
        self.positions: dict[TopicPartition, Position] = {}
        self.forced: set[tuple[str, str]] = set()  # topic and deployment
        self.journal: dict[TopicPartition | None, list[Entry]] = {}
        self.letters: list[ParkedLetter] = []


class MemoryLedger(Ledger[MemoryTransaction]):
    """Positions and data in this process. One writer at a time, as in SQLite; ``data`` holds the tables."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.data: dict[str, list[object]] = {}
        self._groups: dict[str, _Group] = {}
        self._writer = threading.Lock()
        self._letter_id = 0

    def create(self) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Nothing was opened."""

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """See :meth:`Ledger.read`."""
        stored = self._groups.get(group)
        if stored is None:
            return GroupState(group, False, {})
        if partitions is None:
            return GroupState(group, stored.paused, dict(stored.positions))
        found = {tp: stored.positions[tp] for tp in partitions if tp in stored.positions}
        return GroupState(group, stored.paused, found)

    def read_all(self) -> dict[str, GroupState]:
        """See :meth:`Ledger.read_all`."""
        return {group: self.read(group) for group in sorted(self._groups)}

    def totals(self) -> list[Totals]:
        """See :meth:`Ledger.totals`."""
        return totals_of(self.read_all().values())

    def journal(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """See :meth:`Ledger.journal`."""
        journal = self._groups[group].journal if group in self._groups else {}
        wanted = sorted(journal, key=lambda tp: tp or ("", -1)) if partition is None else [partition]
        for tp in wanted:
            yield from list(journal.get(tp, ()))

    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """See :meth:`Ledger.newest`."""
        return iter(sorted(self.journal(group, partition), key=in_time, reverse=True))

    def prune(self, older_than: timedelta, group: str | None = None) -> int:
        """See :meth:`Ledger.prune`."""
        cutoff = datetime.now(UTC) - older_than
        pruned = 0
        with self._lock():
            for stored in self._groups.values() if group is None else filter(None, [self._groups.get(group)]):
                for entries in stored.journal.values():
                    fresh = (i for i, entry in enumerate(entries) if entry.at is None or entry.at >= cutoff)
                    old = min(next(fresh, len(entries)), len(entries) - 1)
                    del entries[:old]
                    pruned += old
        return pruned

    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[ParkedLetter]:
        """See :meth:`Ledger.dead_letters`."""
        letters = self._groups[group].letters if group in self._groups else []
        return [parked for parked in letters if parked.id > after][:limit]

    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """See :meth:`Ledger.drop_letters`."""
        doomed = set(ids)
        with self._lock():
            stored = self._groups.get(group, _Group())
            kept = [parked for parked in stored.letters if parked.id not in doomed]
            dropped = len(stored.letters) - len(kept)
            stored.letters = kept
        return dropped

    def failed_again(self, parked: ParkedLetter, error: str) -> bool:
        """See :meth:`Ledger.failed_again`."""
        with self._lock():
            letters = self._groups[parked.group].letters if parked.group in self._groups else []
            for place, each in enumerate(letters):
                if each.id == parked.id:
                    letter = each.letter._replace(error=error, attempts=each.letter.attempts + 1)
                    letters[place] = each._replace(letter=letter)
                    return True
        return False

    def _change(self, group: str, partitions: list[TopicPartition], decide: Decide) -> None:
        with self._lock():
            changes = decide(self._rows(group, partitions))
            forced = forced_starts(changes)
            if forced & self._groups[group].forced:
                raise Conflict("another claim has forced the same starts")
            self._groups[group].forced |= forced
            self._store(group, changes)

    def _forced_by(self, group: str, deployment: str) -> frozenset[str]:
        stored = self._groups.get(group, _Group())
        return frozenset(topic for topic, name in stored.forced if name == deployment)

    @contextmanager
    def _open(self, work: Work) -> Iterator[MemoryTransaction]:
        with self._lock():
            tx = MemoryTransaction(work)
            self._advance(tx)
            yield tx
            self._check_sentinel(tx)
            self._commit(tx)

    @contextmanager
    def _detached(self, work: Work) -> Iterator[MemoryTransaction]:
        with self._lock():
            tx = MemoryTransaction(work)
            yield tx
            self._commit(tx)

    @contextmanager
    def _replaying(self, work: Work, number: int) -> Iterator[MemoryTransaction]:
        with self._lock():
            if self.dead_letter(work.group, number) is None:
                raise NotMoved({})
            tx = MemoryTransaction(work)
            tx.sealed = True
            yield tx
            self._check_sentinel(tx)
            stored = self._groups[work.group]
            stored.letters = [parked for parked in stored.letters if parked.id != number]
            self._commit(tx)

    def _advance(self, tx: MemoryTransaction) -> None:
        """The compare-and-set: every row, or none."""
        rows = self._locked_rows(tx.work)
        changes = [
            row.advanced(step, tx.work)
            for step in tx.work.steps
            if (row := rows.get(step.span.partition)) and row.matches(step)
        ]
        if len(changes) < len(tx.work.steps):
            raise NotMoved(rows)
        tx.changes = changes
        tx.sealed = True

    def _check_sentinel(self, tx: MemoryTransaction) -> None:
        if not tx.sealed:
            raise TransactionBroken(f"{tx.work}: the handler rolled its transaction back; nothing was committed")

    def _commit(self, tx: MemoryTransaction) -> None:
        self._store(tx.work.group, tx.changes)
        for table, row in tx.rows:
            self.data.setdefault(table, []).append(row)
        for letter in tx.letters:
            self._letter_id += 1
            parked = ParkedLetter(self._letter_id, tx.work.group, letter, datetime.now(UTC))
            self._groups[tx.work.group].letters.append(parked)

    def _locked(self, work: Work) -> Rows:
        with self._lock():
            return self._locked_rows(work)

    def _locked_rows(self, work: Work) -> Rows:
        return self._rows(work.group, [step.span.partition for step in work.steps])

    def _rows(self, group: str, partitions: Iterable[TopicPartition]) -> Rows:
        positions = self._groups.setdefault(group, _Group()).positions
        return {tp: positions[tp] for tp in partitions if tp in positions}

    def _set_paused(self, group: str, kind: Kind, note: str | None) -> bool:
        with self._lock():
            stored = self._groups.setdefault(group, _Group())
            paused = kind is Kind.PAUSE
            if stored.paused == paused:
                return False
            stored.paused = paused
            entries = stored.journal.setdefault(None, [])
            seq = entries[-1].seq + 1 if entries else 1
            entries.append(Entry(None, seq, kind, 0, 0, 0, 0, None, None, note, datetime.now(UTC)))
            return True

    def _store(self, group: str, changes: Iterable[Change]) -> None:
        stored = self._groups.setdefault(group, _Group())
        now = datetime.now(UTC)
        for change in changes:
            tp = change.position.partition
            stored.positions[tp] = change.position._replace(updated_at=now)
            stored.journal.setdefault(tp, []).extend(entry._replace(at=now) for entry in change.entries)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        if not self._writer.acquire(timeout=self.limits.lock_wait):
            raise LockWaitOver(f"another transaction has held the ledger for {self.limits.lock_wait} s")
        try:
            yield
        finally:
            self._writer.release()
