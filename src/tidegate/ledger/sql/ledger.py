"""The ledger in a SQL database: :class:`SqlLedger`, its dead letters, and how transactions of a group take turns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from heapq import merge
from random import Random
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, TextClause

from tidegate.core.findings import Clock, Finding
from tidegate.core.journal import BUCKET, HISTORY, Bucket, Entry, Kind, backwards, bucket_begin
from tidegate.core.positions import Change, GroupState, Position, Totals, forced_starts, with_rows
from tidegate.core.records import LetterErrors, LetterHead, StoredLetter, TopicPartition
from tidegate.core.work import Move, Work
from tidegate.errors import TransactionBroken
from tidegate.ledger.ledger import Decide, Rows
from tidegate.ledger.letters import LETTER_HEAD
from tidegate.ledger.once import Once
from tidegate.ledger.sql.codec import (
    as_entry,
    as_head,
    as_letter,
    as_position,
    as_totals,
    bucket_rows,
    changed_rows,
    cut_rows,
    entry_rows,
    error_text,
    key_rows,
    note_text,
    opened_rows,
    past_rows,
    position_rows,
    step_rows,
)
from tidegate.ledger.sql.sessions import (
    ENDED,
    SqlSessions,
    SqlTransaction,
    Store,
    Unchanged,
    first_row,
    passes,
)
from tidegate.ledger.transaction import Conflict, LockWaitOver, NotMoved, Retriable, Turns

__all__ = ["Contention", "Handover", "SqlLedger", "SqlLetters", "passes"]


class SqlLetters(SqlSessions):
    """The part of a SQL ledger that lists, drops and replays dead letters."""

    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[StoredLetter]:
        """Return up to ``limit`` dead letters of a group in the order they were parked, with ids above ``after``."""
        store = self._store()
        rows = self._query(store.statements.letters, {"group": group, "after": after, "limit": limit})
        return [as_letter(group, row, store.dialect.time) for row in rows]

    def letter_heads(
        self, group: str, *, after: int = 0, limit: int = 100, most: int = LETTER_HEAD
    ) -> list[LetterHead]:
        """Return the beginnings of dead letters, in the order of :meth:`dead_letters`."""
        store = self._store()
        given = {"group": group, "after": after, "limit": limit, "most": most, "more": most + 1}
        rows = self._query(store.statements.letter_heads, given)
        return [as_head(group, row, store.dialect.time, most) for row in rows]

    def count_letters(self) -> dict[str, int]:
        """Return how many dead letters each group has; groups without any are left out."""
        return dict(map(tuple, self._query(self._store().statements.count_letters, {})))

    def letter_errors(self, group: str, *, most: int = LETTER_HEAD, limit: int = 1000) -> list[LetterErrors]:
        """Return the errors of a group's dead letters, most frequent first; the database groups them."""
        rows = self._query(self._store().statements.letter_errors, {"group": group, "most": most, "limit": limit})
        return [LetterErrors(*row) for row in rows]

    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """Delete dead letters and return how many were deleted."""
        keys = [{"group": group, "id": number} for number in ids]
        what = f"drop dead letters of group {group!r}"
        return self._run_for_each(what, self._store().statements.drop_letter, keys) if keys else 0

    def failed_again(self, parked: StoredLetter, error: str) -> bool:
        """Note that a replay failed: count an attempt and store the new error. Returns whether the letter exists."""
        told = {"group": parked.group, "id": parked.id, "error": error_text(error)}
        what = f"note a failed replay of group {parked.group!r}"
        return self._run_for_each(what, self._store().statements.letter_failed, [told]) == 1

    @contextmanager
    def _replaying(self, once: Once[SqlTransaction], work: Work, number: int) -> Iterator[SqlTransaction]:
        statements, key = self._store().statements, {"group": work.group, "id": number}
        with self._session(work, moves=False) as conn:
            with self._own_errors():
                self._begin_once(conn, once)
                if conn.execute(statements.hold_letter, key).first() is None:
                    raise NotMoved({})
            with self._handled(conn, work) as tx:
                yield tx
            with self._own_errors():
                if conn.execute(statements.remove_letter, key).rowcount != 1:
                    raise TransactionBroken(f"{work}: {ENDED}")


class Handover(NamedTuple):
    """A claim or release of many rows that changes nothing but their owner; the statement then needs only their keys.

    A claim increments the epoch and clears the token; a release changes neither.
    """

    kind: Kind
    owner: str | None
    by: str | None

    @classmethod
    def of(cls, changes: list[Change], rows: Mapping[TopicPartition, Position]) -> Handover | None:
        """Return the handover that all changes have in common, or ``None`` if they differ or change more than that."""
        if not changes:
            return None
        entry = changes[0].entries[0]
        common = cls(entry.kind, changes[0].position.owner, entry.owner)
        if entry.kind not in (Kind.CLAIM, Kind.RELEASE):
            return None
        return common if all(common._is(change, rows[change.position.partition]) for change in changes) else None

    def _is(self, change: Change, row: Position) -> bool:
        position, entries, *_ = change
        return (
            len(entries) == 1
            and self == (entries[0].kind, position.owner, entries[0].owner)
            and (self.kind is Kind.RELEASE or position.token is None)
            and position.identity == row.identity
            and position.deployment == row.deployment
        )

    def parameters(self, group: str) -> dict[str, Any]:
        """Return the parameters of the handover's statements, apart from the keys."""
        epochs = int(self.kind is Kind.CLAIM)
        return {"group": group, "kind": self.kind.value, "owner": self.owner, "by": self.by, "epochs": epochs}


class Contention:
    """How one transaction deals with others that want the same rows.

    While its group takes turns, it first waits for its turn: the lock of the group's row, which it holds until it ends.
    Otherwise hasty work waits for locks only briefly, on stores where that finds a deadlock before the store does.
    """

    def __init__(
        self,
        store: Store,
        turns: Turns,
        work: Work,
        own_errors: Callable[[], AbstractContextManager[None]],
        chance: Random,
    ) -> None:
        self._store = store
        self._chance = chance
        self._turns = turns
        self._group = work.group
        self._own_errors = own_errors
        self._is_hasty = work.hasty and sum(step.span.records for step in work.steps) > 1
        self._waits_briefly = False
        self.in_turn = turns.taken_by(work.group)

    @property
    def should_look(self) -> bool:
        """Whether to check first if other members of the group take turns."""
        return self._is_hasty and self._store.dialect.skip_locked is not None and self._turns.should_look(self._group)

    def look(self, conn: Connection) -> None:
        """Raise a conflict if other members of the group take turns; the next transaction then takes turns as well, and
        should be shorter."""
        find_turn = self._store.statements.find_turn
        if find_turn is not None:
            with self._own_errors():
                is_free = conn.execute(find_turn, {"group": self._group}).first() is not None
            if not is_free:
                raise Conflict(f"others of group {self._group!r} take turns")

    def take_turn(self, conn: Connection) -> None:
        """Wait for this transaction's turn, if the group takes turns. Call it before anything else is locked."""
        if not self.in_turn:
            return
        try:
            with self._own_errors():
                conn.execute(self._store.statements.take_turn, {"group": self._group})
        except LockWaitOver as over:
            self._turns.missed(self._group)
            raise Conflict(f"the turn of group {self._group!r} did not come: {over}") from over

    def wait_briefly(self, conn: Connection) -> None:
        """Shorten the lock timeout for the handler's statements, if the work is hasty and did not wait for its turn.

        Work of a single record keeps the normal timeout, because it cannot be retried with fewer records.
        """
        brief = self._store.dialect.brief_lock_waits
        if brief and self._is_hasty and not self.in_turn:
            with self._own_errors():
                conn.execute(self._chance.choice(brief))
            self._waits_briefly = True

    def met(self, trouble: Retriable) -> Retriable:
        """Note a conflict for the turns, and return it. A lock timeout is a conflict only if it was shortened."""
        if isinstance(trouble, LockWaitOver):
            if not self._waits_briefly:
                return trouble
            trouble = Conflict("a row was locked by another transaction")
        self._turns.conflicted(self._group, in_turn=self.in_turn)
        return trouble


T = TypeVar("T")


class SqlLedger(SqlLetters):
    """A ledger that keeps positions as rows in the same SQL database as the data."""

    def examine(self, now: Clock) -> Iterator[Finding]:
        """Yield the findings of ``tidegate doctor`` about the database."""
        from tidegate.ledger.sql.doctor import examine_sql  # noqa: PLC0415 - it imports this module

        return examine_sql(self, now)

    # Reading

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """Read in one query whether a group is paused, and its stored positions: all, or those of ``partitions``."""
        statements = self._store().statements
        if partitions:
            rows = self._query(statements.read, self._keys(group, partitions))
        else:
            rows = self._query(statements.read_group, {"group": group})
        wanted = rows if partitions or partitions is None else ()
        found = (self._position(row[3:]) for row in wanted if row[3] is not None)
        return GroupState(group, any(row[2] for row in rows), {row.partition: row for row in found})

    def read_all(self) -> dict[str, GroupState]:
        """Read the state of every group in the ledger, in one query."""
        groups: dict[str, GroupState] = {}
        for group, _, paused, *row in self._query(self._store().statements.read_all, {}):
            state = groups.setdefault(group, GroupState(group, bool(paused), {}))
            if row[0] is not None:
                position = self._position(row)
                state.positions[position.partition] = position
        return dict(sorted(groups.items()))

    def totals(self) -> list[Totals]:
        """Return the totals of every group and topic, in order, from one query."""
        store = self._store()
        found = (as_totals(row, store.dialect.time) for row in self._query(store.statements.totals, {}))
        return sorted(found, key=lambda total: (total.group, total.topic or ""))

    def journal(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate over the journal of a group or of one of its partitions, each partition's entries oldest first."""
        with self._reading(), self._snapshot() as conn:
            rows = self._rows(conn, group, partition)
            written = self._entries(conn, group, partition)
            yield from merge(written, sorted(_open_entries(rows), key=_in_order), key=_in_order)

    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate backwards, page by page, over the journal of a group or of one of its partitions."""
        store = self._store()
        statement = store.statements.newest if partition is None else store.statements.newest_of
        key: dict[str, Any] = {**_key(group, partition), "before": 1 << 62, "limit": _FIRST_PAGE}

        def first_page() -> tuple[list[Position], list[Any]]:
            with self._snapshot() as conn:
                return self._rows(conn, group, partition), list(conn.execute(statement, key).all())

        rows, page = self._patiently(f"reading the ledger at {self}", first_page)
        return backwards(_open_entries(rows), self._pages(statement, key, page))

    def _pages(self, statement: TextClause, key: dict[str, Any], page: list[Any]) -> Iterator[Entry]:
        """Iterate backwards over the entries in the journal table; ``page`` is the last page."""
        dialect = self._store().dialect
        while page:
            found = dialect.unpacked(page)
            yield from (as_entry(row[1:], dialect.time) for row in found)
            is_last = len(found) < key["limit"]
            key |= {"before": found[-1][0], "limit": _READ_AT_ONCE}
            page = [] if is_last else self._query(statement, key)

    def _evidence(self, group: str) -> Iterator[Entry | Position]:
        with self._reading(), self._snapshot() as conn:
            rows = self._rows(conn, group)
            yield from merge(self._entries(conn, group), sorted(_open_entries(rows), key=_in_order), key=_in_order)
            yield from rows

    def history(self, group: str, since: datetime) -> list[Bucket]:
        """Return how many records a group has advanced since then, over all partitions, in buckets of ten minutes."""
        store, begin = self._store(), bucket_begin(since)

        def ask() -> tuple[list[Position], dict[int, int]]:
            with self._snapshot() as conn:
                stored = conn.execute(store.statements.history, {"group": group, "since": begin}).all()
                return self._rows(conn, group), {bucket: int(records) for bucket, records in stored}

        rows, stored = self._patiently(f"reading the ledger at {self}", ask)
        return with_rows(stored, rows, begin)

    def _rows(self, conn: Connection, group: str, partition: TopicPartition | None = None) -> list[Position]:
        """Return a group's positions, or the one of ``partition``."""
        statements = self._store().statements
        if partition is None:
            found = conn.execute(statements.read_group, {"group": group})
        else:
            found = conn.execute(statements.read, self._keys(group, [partition]))
        return [self._position(row[3:]) for row in found if row[3] is not None]

    def _entries(self, conn: Connection, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate over the entries in the journal table, in order; entries that are still open are not there yet."""
        store = self._store()
        statement = store.statements.journal if partition is None else store.statements.journal_of
        with conn.execution_options(yield_per=_READ_AT_ONCE).execute(statement, _key(group, partition)) as result:
            for rows in result.partitions(_READ_AT_ONCE):
                for row in store.dialect.unpacked(rows):
                    yield as_entry(row, store.dialect.time)

    # Writing

    def _change(self, once: Once[T], group: str, partitions: list[TopicPartition], decide: Decide[T]) -> T:
        dialect, _, statements = self._store()

        def change(conn: Connection) -> T:
            rows = self._lock(conn, group, partitions)
            changes, once.result = decide(rows)
            if not changes:
                raise Unchanged
            new = [change for change in changes if change.is_new]
            old = [change for change in changes if not change.is_new]
            forced = [
                {"group": group, "topic": topic, "deployment": name} for topic, name in sorted(forced_starts(changes))
            ]
            if forced:
                conn.execute(statements.insert_deployment, forced)
            if new:
                conn.execute(statements.insert_group, {"group": group})
                dialect.write(conn, [statements.insert_positions], {"group": group}, position_rows(new))
            closed = self._close(conn, group, old)
            if handover := Handover.of(old, rows):
                if closed:
                    dialect.write(conn, statements.hand_over_closed, handover.parameters(group), bucket_rows(old))
                else:
                    keys = key_rows(change.position.partition for change in old)
                    dialect.write(conn, statements.hand_over, handover.parameters(group), keys)
            elif old:
                dialect.write(conn, [statements.update_positions], {"group": group}, changed_rows(old))
            journalled = entry_rows(new if handover else changes)
            if journalled:
                dialect.write(conn, [statements.insert_journal], {"group": group}, journalled)
            return once.result

        try:
            return self._made_once(once, change)
        except LockWaitOver:
            if not self._evicted(group, partitions):
                raise
            return self._made_once(once, change)

    def _close(self, conn: Connection, group: str, changes: Iterable[Change]) -> list[Change]:
        """Write open entries to the journal before their rows change; return the changes that close one."""
        dialect, _, statements = self._store()
        closed = [change for change in changes if change.closed is not None]
        if closed:
            keys = key_rows(change.position.partition for change in closed)
            dialect.write(conn, [statements.close], {"group": group}, keys)
        if past := past_rows(closed):
            dialect.write(conn, [statements.insert_history], {"group": group}, past)
        return closed

    def _forced_by(self, group: str, deployment: str) -> frozenset[str]:
        name = {"group": group, "deployment": deployment}
        return frozenset(topic for (topic,) in self._query(self._store().statements.deployments, name))

    def _evicted(self, group: str, partitions: list[TopicPartition]) -> bool:
        """End the sessions that hold these rows for too long, on stores that may fail to do so themselves.

        Returns whether any session was ended.
        """
        holders = self._store().statements.holders
        if holders is None:
            return False
        with self._connection() as conn, self._own_errors():
            return bool(conn.execute(holders, self._keys(group, partitions)).all())

    @contextmanager
    def _open(self, work: Work) -> Iterator[SqlTransaction]:
        for careful in (work.move is not Move.ADVANCE, True):
            try:
                with self._contending(work) as contention, self._session(work) as conn:
                    contention.take_turn(conn)
                    with self._own_errors():
                        self._advance(conn, work, careful=careful)
                    contention.wait_briefly(conn)
                    with self._handled(conn, work, advances=True) as tx:
                        tx.in_turn = contention.in_turn
                        yield tx
                    if tx.steps != work.steps:
                        with self._own_errors():
                            self._cut(tx)
                return
            except _SomeMoved:
                continue

    @contextmanager
    def _detached(self, work: Work) -> Iterator[SqlTransaction]:
        with self._contending(work) as contention, self._session(work, moves=False) as conn:
            contention.take_turn(conn)
            with self._handled(conn, work) as tx:
                yield tx

    @contextmanager
    def _contending(self, work: Work) -> Iterator[Contention]:
        """Check for turns before a transaction, and note its conflicts."""
        contention = Contention(self._store(), self._turns, work, self._own_errors, self._chance)
        try:
            if contention.should_look:
                with self._connection() as conn:
                    contention.look(conn)
            yield contention
        except (Conflict, LockWaitOver) as trouble:
            raise contention.met(trouble) from trouble

    def _advance(self, conn: Connection, work: Work, *, careful: bool) -> None:
        """Run the compare-and-set on every row, or raise.

        Normally one statement compares the rows, moves them and extends their open entries. If it matches no row, or if
        ``careful`` is true, the rows are locked and read instead, because an open entry may have to be closed first. If
        it matches only some rows, :class:`_SomeMoved` makes the caller start over, carefully.
        """
        dialect, _, statements = self._store()
        common = {"token": work.token, **first_row(work)}
        if not careful:
            one = len(work.steps) == 1
            if not one and dialect.locks_first:
                conn.execute(statements.lock_only, self._keys(work.group, work.partitions))
            moved = dialect.moved(
                conn, statements.extend_one if one else statements.extend_many, common, step_rows(work.steps)
            )
            if moved == len(work.steps):
                return
            if moved:
                raise _SomeMoved
        rows, now = self._lock_at(conn, work.group, work.partitions)
        if not all((row := rows.get(step.span.partition)) and row.matches(step) for step in work.steps):
            raise NotMoved(rows)
        changes = [rows[step.span.partition].advanced(step, work, now) for step in work.steps]
        self._close(conn, work.group, changes)
        pairs = list(zip(changes, work.steps, strict=True))
        extended = step_rows(step for change, step in pairs if change.extends)
        opened = [pair for pair in pairs if pair[0].opens]
        is_done = True
        if extended:
            is_done &= dialect.write(conn, [statements.extend_locked], common, extended)
        if opened:
            is_done &= dialect.write(conn, [statements.open], common, opened_rows(*zip(*opened, strict=True)))
        if work.move is not Move.ADVANCE:
            is_done &= dialect.write(conn, [statements.update_positions], common, changed_rows(changes))
            is_done &= dialect.write(conn, [statements.insert_journal], common, entry_rows(changes))
            if statements.mark is not None:
                is_done &= dialect.write(conn, [statements.mark], common, key_rows(work.partitions))
        if not is_done:
            raise Conflict("the rows are not as they were when they were locked")

    def _cut(self, tx: SqlTransaction) -> None:
        """Move the positions back to where the handler cut the transaction."""
        dialect, _, statements = self._store()
        work, common = tx.work, {"group": tx.work.group, "token": tx.work.token}
        ends = {step.span.partition: step.span for step in tx.steps}
        if not dialect.write(tx.connection, [statements.cut], common, cut_rows(work.steps, ends)):
            raise TransactionBroken(f"{work}: {ENDED}")
        if left := [tp for tp in work.partitions if tp not in ends]:
            dialect.write(tx.connection, [statements.cut_off], common, key_rows(left))

    def _locked(self, work: Work) -> Rows:
        with self._session() as conn, self._own_errors():
            return self._lock(conn, work.group, work.partitions)

    def _lock(self, conn: Connection, group: str, partitions: Iterable[TopicPartition]) -> Rows:
        """Lock and read rows, as far as changes need them: whole rows only where an entry is open."""
        store = self._store()
        locked = store.dialect.unpacked(conn.execute(store.statements.lock, self._keys(group, partitions)).all())
        found = {position.partition: position for position in map(as_position, locked)}
        is_open = [TopicPartition(row[0], row[1]) for row in locked if row[10] is not None]
        return found | self._lock_at(conn, group, is_open)[0] if is_open else found

    def _lock_at(
        self, conn: Connection, group: str, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, Position], datetime]:
        """Lock and read whole rows; return them and the store's time."""
        store = self._store()
        locked = conn.execute(store.statements.lock_whole, self._keys(group, partitions)).all()
        rows = store.dialect.unpacked(locked)
        found = {position.partition: position for position in map(self._position, rows)}
        return found, store.dialect.time(rows[0][-1]) if rows else datetime.now(UTC)

    def _set_paused(self, once: Once[bool], group: str, kind: Kind, note: str | None) -> bool:
        statements = self._store().statements

        def set_paused(conn: Connection) -> bool:
            conn.execute(statements.insert_group, {"group": group})
            paused = {"group": group, "paused": kind is Kind.PAUSE}
            changed = conn.execute(statements.set_paused, paused).rowcount == 1
            if changed:
                conn.execute(statements.journal_group, {"group": group, "kind": kind, "note": note_text(note)})
            return changed

        return self._made_once(once, set_paused)

    def begin_pruning(self, group: str, every: timedelta) -> bool:
        """Return whether to prune a group's journal now, and if so, note that pruning begins."""
        dialect, _, statements = self._store()
        key = {"group": group, "before": dialect.time_parameter(self._now() - every)}
        return self._run_for_each("begin to prune the journal", statements.begin_pruning, [key]) == 1

    def _delete_entries(self, older_than: timedelta, group: str | None) -> int:
        """Delete old journal entries and coarse history in small transactions; return the number of entries."""
        store, now = self._store(), self._now()
        cutoff = store.dialect.time_parameter(now - older_than)
        names = [row[0] for row in self._query(store.statements.group_names, {})] if group is None else [group]
        for name in names:
            self._prune_history(name, bucket_begin(now - max(older_than, HISTORY)))
        with self._pruning() as pruned:
            for name in names:
                pruned.extend(self._prune(name, cutoff))
        return sum(pruned)

    def _now(self) -> datetime:
        """Return the store's current time."""
        store = self._store()
        ((now,),) = self._query(store.statements.now, {})
        return store.dialect.time(now)

    def _prune_history(self, group: str, before: int) -> None:
        """Delete coarse history before a bucket, a few buckets per transaction."""
        statements = self._store().statements
        while True:
            ((oldest,),) = self._query(statements.oldest_bucket, {"group": group})
            if oldest is None or oldest >= before:
                return
            bounds = {"group": group, "before": min(oldest + _BUCKETS_AT_ONCE, before)}
            self._run_for_each("prune the history", statements.prune_history, [bounds])

    def _prune(self, group: str, cutoff: Any) -> Iterator[int]:
        """Delete a group's oldest entries up to the first one that is young enough; yield the number per transaction.

        So each partition loses only its oldest entries.
        """
        statements = self._store().statements
        after = 0
        young = None
        while young is None:
            chunk = {"group": group, "after": after, "cutoff": cutoff, "limit": _PRUNED_AT_ONCE}
            ((last, young),) = self._query(statements.oldest_entries, chunk)
            if last is None:
                break
            bounds = {"last": last if young is None else young - 1, "group": group, "after": after, "cutoff": cutoff}
            yield self._run_for_each(f"prune the journal of group {group!r}", statements.prune, [bounds])
            after = last


_FIRST_PAGE = 200  # journal entries, newest first: most callers need no more

_READ_AT_ONCE = 1000  # journal entries in memory at a time

_BUCKETS_AT_ONCE = 6 * BUCKET

_PRUNED_AT_ONCE = 5000  # entries examined per transaction, so that locks are held only briefly


class _SomeMoved(Exception):
    """The compare-and-set matched some rows but not all, so the transaction has to be rolled back."""


def _key(group: str, partition: TopicPartition | None) -> dict[str, Any]:
    if partition is None:
        return {"group": group}
    return {"group": group, "topic": partition.topic, "partition_id": partition.partition}


def _open_entries(rows: Iterable[Position]) -> list[Entry]:
    return [row.open.entry(row) for row in rows if row.open is not None]


def _in_order(entry: Entry) -> tuple[TopicPartition | tuple[str, int], int]:
    return entry.partition or ("", -1), entry.seq
