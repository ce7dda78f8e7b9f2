"""A ledger in memory: the reference implementation in plain Python, for tests and simulation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TypeVar

from tidegate.core.findings import Clock, Finding
from tidegate.core.journal import HISTORY, Bucket, Entry, Kind, bucket_begin, in_time
from tidegate.core.positions import Change, GroupState, Position, Totals, forced_starts, totals_of, with_rows
from tidegate.core.records import LetterHead, StoredLetter, TopicPartition
from tidegate.core.runtime import Runtime
from tidegate.core.work import Work
from tidegate.errors import TransactionBroken
from tidegate.ledger.ledger import Decide, Ledger, Rows
from tidegate.ledger.letters import LETTER_HEAD
from tidegate.ledger.once import Once
from tidegate.ledger.threads import THREADS
from tidegate.ledger.transaction import Conflict, DoneBefore, Limits, LockWaitOver, NotMoved, Transaction

__all__ = ["MemoryLedger", "MemoryTransaction"]

T = TypeVar("T")


class MemoryTransaction(Transaction):
    """A transaction of a :class:`MemoryLedger`; its data are rows appended to named tables."""

    def __init__(self, work: Work, *, advances: bool = False) -> None:
        super().__init__(work, advances=advances)
        self.changes: list[Change] = []
        self.rows: list[tuple[str, object]] = []
        self.sealed = False

    def append(self, table: str, row: object) -> None:
        """Append a row to a table when the transaction commits."""
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
        """Discard everything so far, like a database that rolls back on its own: later writes would form a new
        transaction, so the ledger refuses to commit.
        """
        self.changes.clear()
        self.rows.clear()
        self.letters.clear()
        self.sealed = False


class _Group:
    def __init__(self) -> None:
        self.paused = False
        self.positions: dict[TopicPartition, Position] = {}
        self.forced: set[tuple[str, str]] = set()  # topics and deployments that forced their start there
        self.journal: dict[TopicPartition | None, list[Entry]] = {}
        self.history: dict[int, int] = {}
        self.pruned_at: datetime | None = None
        self.letters: list[StoredLetter] = []


class MemoryLedger(Ledger[MemoryTransaction]):
    """A ledger that keeps positions and data in this process, with one writer at a time; ``data`` holds the tables."""

    def __init__(self, limits: Limits | None = None, runtime: Runtime = THREADS) -> None:
        super().__init__(limits, runtime)
        self.data: dict[str, list[object]] = {}
        self._groups: dict[str, _Group] = {}
        self._made: set[str] = set()  # the ids of changes that took effect
        self._writer = threading.Lock()
        self._letter_id = 0

    def create(self) -> None:
        """Do nothing: there is nothing to create."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def examine(self, now: Clock) -> Iterator[Finding]:
        """Warn that the positions are in memory, for ``tidegate doctor``."""
        advice = "they end with the process; name a database for anything but tests"
        yield Finding.warning("ledger", "positions are kept in memory", advice)

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """Return whether a group is paused, and its stored positions: all, or those of ``partitions``."""
        stored = self._groups.get(group)
        if stored is None:
            return GroupState(group, False, {})
        if partitions is None:
            return GroupState(group, stored.paused, dict(stored.positions))
        found = {tp: stored.positions[tp] for tp in partitions if tp in stored.positions}
        return GroupState(group, stored.paused, found)

    def read_all(self) -> dict[str, GroupState]:
        """Return the state of every group in the ledger."""
        return {group: self.read(group) for group in sorted(self._groups)}

    def totals(self) -> list[Totals]:
        """Return the totals of every group and topic, in order."""
        return totals_of(self.read_all().values())

    def journal(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate over the journal of a group or of one of its partitions, each partition's entries oldest first."""
        stored = self._groups.get(group, _Group())
        wanted = sorted(stored.journal, key=lambda tp: tp or ("", -1)) if partition is None else [partition]
        for tp in wanted:
            yield from self._entries(stored, tp)

    def _entries(self, stored: _Group, partition: TopicPartition | None) -> list[Entry]:
        """Return the entries of one partition, including the one that is still open."""
        entries = list(stored.journal.get(partition, ()))
        row = stored.positions.get(partition) if partition is not None else None
        return [*entries, row.open.entry(row)] if row is not None and row.open is not None else entries

    def _evidence(self, group: str) -> Iterator[Entry | Position]:
        with self._lock():
            entries, rows = list(self.journal(group)), list(self.read(group).positions.values())
        yield from entries
        yield from rows

    def history(self, group: str, since: datetime) -> list[Bucket]:
        """Return how many records a group has advanced since then, over all partitions, in buckets of ten minutes."""
        stored = self._groups.get(group, _Group())
        return with_rows(stored.history, stored.positions.values(), bucket_begin(since))

    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate backwards over the journal of a group or of one of its partitions, newest entries first."""
        return iter(sorted(self.journal(group, partition), key=in_time, reverse=True))

    def begin_pruning(self, group: str, every: timedelta) -> bool:
        """Return whether to prune a group's journal now, and if so, note that pruning begins."""

        def begin() -> bool:
            stored, now = self._groups.get(group), self._now()
            if stored is None or (stored.pruned_at is not None and now - stored.pruned_at < every):
                return False
            stored.pruned_at = now
            return True

        return self._tried_once("begin to prune the journal", begin)

    def _delete_entries(self, older_than: timedelta, group: str | None) -> int:
        """Delete old journal entries and coarse history; return the number of entries."""
        cutoff = self._now() - older_than
        oldest = bucket_begin(self._now() - max(older_than, HISTORY))

        def prune() -> int:
            pruned = 0
            for stored in self._groups.values() if group is None else filter(None, [self._groups.get(group)]):
                stored.history = {begin: records for begin, records in stored.history.items() if begin >= oldest}
                for entries in stored.journal.values():
                    fresh = (i for i, entry in enumerate(entries) if entry.at is None or entry.at >= cutoff)
                    old = min(next(fresh, len(entries)), len(entries) - 1)
                    del entries[:old]
                    pruned += old
            return pruned

        return self._tried_once("prune the journal", prune)

    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[StoredLetter]:
        """Return up to ``limit`` dead letters of a group in the order they were parked, with ids above ``after``."""
        letters = self._groups[group].letters if group in self._groups else []
        return [parked for parked in letters if parked.id > after][:limit]

    def letter_heads(
        self, group: str, *, after: int = 0, limit: int = 100, most: int = LETTER_HEAD
    ) -> list[LetterHead]:
        """Return the beginnings of dead letters, in the order of :meth:`dead_letters`."""
        return [_head(parked, most) for parked in self.dead_letters(group, after=after, limit=limit)]

    def count_letters(self) -> dict[str, int]:
        """Return how many dead letters each group has; groups without any are left out."""
        return {name: len(stored.letters) for name, stored in self._groups.items() if stored.letters}

    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """Delete dead letters and return how many were deleted."""
        doomed = set(ids)

        def drop() -> int:
            stored = self._groups.get(group, _Group())
            kept = [parked for parked in stored.letters if parked.id not in doomed]
            dropped = len(stored.letters) - len(kept)
            stored.letters = kept
            return dropped

        return self._tried_once(f"drop dead letters of group {group!r}", drop)

    def failed_again(self, parked: StoredLetter, error: str) -> bool:
        """Note that a replay failed: count an attempt and store the new error. Returns whether the letter exists."""

        def note() -> bool:
            letters = self._groups[parked.group].letters if parked.group in self._groups else []
            for place, each in enumerate(letters):
                if each.id == parked.id:
                    letter = each.letter._replace(error=error, attempts=each.letter.attempts + 1)
                    letters[place] = each._replace(letter=letter)
                    return True
            return False

        return self._tried_once(f"note a failed replay of group {parked.group!r}", note)

    def _change(self, once: Once[T], group: str, partitions: list[TopicPartition], decide: Decide[T]) -> T:
        def change() -> T:
            changes, result = decide(self._rows(group, partitions))
            forced = forced_starts(changes)
            if forced & self._groups[group].forced:
                raise Conflict("another claim has forced the same starts")
            self._groups[group].forced |= forced
            self._store(group, changes)
            return result

        return self._made_once(once, change)

    def _tried_once(self, what: str, change: Callable[[], T]) -> T:
        once = Once[T](what, self._runtime)
        return self._once(once, lambda: self._made_once(once, change))

    def _made_once(self, once: Once[T], change: Callable[[], T]) -> T:
        """Make a change and store its id, in one transaction; if the id exists already, return the earlier result."""
        with self._lock():
            if once.id not in self._made:
                once.unknown = False
                once.result = change()
                self._made.add(once.id)
            return once.result

    def _forced_by(self, group: str, deployment: str) -> frozenset[str]:
        stored = self._groups.get(group, _Group())
        return frozenset(topic for topic, name in stored.forced if name == deployment)

    @contextmanager
    def _open(self, work: Work) -> Iterator[MemoryTransaction]:
        with self._lock():
            tx = MemoryTransaction(work, advances=True)
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
    def _replaying(self, once: Once[MemoryTransaction], work: Work, number: int) -> Iterator[MemoryTransaction]:
        with self._lock():
            if once.id in self._made:
                raise DoneBefore
            if self.dead_letter(work.group, number) is None:
                raise NotMoved({})
            tx = MemoryTransaction(work)
            tx.sealed = True
            yield tx
            self._check_sentinel(tx)
            stored = self._groups[work.group]
            stored.letters = [parked for parked in stored.letters if parked.id != number]
            self._commit(tx)
            self._made.add(once.id)

    def _advance(self, tx: MemoryTransaction) -> None:
        """Run the compare-and-set on every row, or raise."""
        rows = self._locked_rows(tx.work)
        if not all((row := rows.get(step.span.partition)) and row.matches(step) for step in tx.work.steps):
            raise NotMoved(rows)
        self._move(tx, rows)
        tx.sealed = True

    def _move(self, tx: MemoryTransaction, rows: Rows) -> None:
        """Set the transaction's changes: advance the partitions of its steps, and leave the others where they are."""
        tx.changes = [rows[step.span.partition].advanced(step, tx.work, self._now()) for step in tx.steps]
        moved = {step.span.partition for step in tx.steps}
        tx.changes += [rows[tp].left(tx.work) for tp in tx.work.partitions if tp not in moved]

    def _check_sentinel(self, tx: MemoryTransaction) -> None:
        if not tx.sealed:
            raise TransactionBroken(f"{tx.work}: the handler rolled its transaction back; nothing was committed")

    def _commit(self, tx: MemoryTransaction) -> None:
        if tx.changes and tx.steps != tx.work.steps:
            self._move(tx, self._locked_rows(tx.work))
        self._store(tx.work.group, tx.changes)
        for table, row in tx.rows:
            self.data.setdefault(table, []).append(row)
        for letter in tx.letters:
            self._letter_id += 1
            parked = StoredLetter(self._letter_id, tx.work.group, letter, self._now())
            self._groups[tx.work.group].letters.append(parked)

    def _locked(self, work: Work) -> Rows:
        with self._lock():
            return self._locked_rows(work)

    def _locked_rows(self, work: Work) -> Rows:
        return self._rows(work.group, [step.span.partition for step in work.steps])

    def _rows(self, group: str, partitions: Iterable[TopicPartition]) -> Rows:
        positions = self._groups.setdefault(group, _Group()).positions
        return {tp: positions[tp] for tp in partitions if tp in positions}

    def _set_paused(self, once: Once[bool], group: str, kind: Kind, note: str | None) -> bool:
        def set_paused() -> bool:
            stored = self._groups.setdefault(group, _Group())
            paused = kind is Kind.PAUSE
            if stored.paused == paused:
                return False
            stored.paused = paused
            entries = stored.journal.setdefault(None, [])
            seq = entries[-1].seq + 1 if entries else 1
            entries.append(Entry(None, seq, kind, 0, 0, 0, 0, None, None, note, self._now()))
            return True

        return self._made_once(once, set_paused)

    def _store(self, group: str, changes: Iterable[Change]) -> None:
        stored = self._groups.setdefault(group, _Group())
        now = self._now()
        for change in changes:
            tp = change.position.partition
            stored.positions[tp] = change.position._replace(updated_at=now)
            closed = () if change.closed is None else (change.closed,)
            stored.journal.setdefault(tp, []).extend((*closed, *(entry._replace(at=now) for entry in change.entries)))
            if change.past is not None:
                stored.history[change.past.begin] = stored.history.get(change.past.begin, 0) + change.past.records

    def _now(self) -> datetime:
        return self._runtime.now()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        if not self._writer.acquire(timeout=self.limits.lock_wait):
            raise LockWaitOver(f"another transaction has held the ledger for {self.limits.lock_wait} s")
        try:
            yield
        finally:
            self._writer.release()


def _head(parked: StoredLetter, most: int) -> LetterHead:
    record, error, attempts = parked.letter
    size = sum(len(name) + len(value or b"") for name, value in record.headers)
    return LetterHead(
        parked.id,
        parked.group,
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        attempts,
        parked.at,
        error[:most],
        len(error) > most,
        None if record.key is None else record.key[:most],
        None if record.key is None else len(record.key),
        None if record.value is None else record.value[:most],
        None if record.value is None else len(record.value),
        record.headers if size <= most else None,
        size,
    )
