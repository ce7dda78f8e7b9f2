"""The ledger in a DuckDB file: :class:`DuckdbLedger`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from heapq import merge
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import duckdb

from tidegate.core.arguments import Accepts, Label, TablePrefix, argument, checked_text
from tidegate.core.findings import Clock, Finding
from tidegate.core.journal import HISTORY, Bucket, Entry, Kind, backwards, bucket_begin
from tidegate.core.positions import Change, GroupState, Position, Totals, forced_starts, with_rows
from tidegate.core.records import LetterHead, StoredLetter, TopicPartition
from tidegate.core.text import is_text
from tidegate.core.work import Work
from tidegate.errors import (
    CommitRefused,
    ConfigurationError,
    LedgerError,
    SchemaError,
    TransactionBroken,
)
from tidegate.ledger.duckdb.statements import (
    HAS_TABLE,
    HEADS,
    INSERT,
    INSERT_ENTRY,
    INSERT_GROUP,
    INSERT_LETTER,
    JOURNAL,
    LETTERS,
    NEWEST,
    OF_PARTITION,
    OPEN,
    POSITION,
    PRUNE,
    TABLES,
    UPDATE,
    VERSION,
)
from tidegate.ledger.duckdb.transaction import (
    FATAL,
    Begin,
    DuckdbSession,
    DuckdbTransaction,
    Found,
    Values,
    file_at,
    first_line,
    give_up,
    not_opened,
)
from tidegate.ledger.ledger import TABLE_PREFIX, Decide, Ledger, Rows
from tidegate.ledger.letters import LETTER_HEAD
from tidegate.ledger.once import Once
from tidegate.ledger.sql.codec import (
    as_entry,
    as_head,
    as_letter,
    as_position,
    error_text,
    letter_row,
    note_text,
    position_rows,
)
from tidegate.ledger.transaction import (
    Conflict,
    DoneBefore,
    Limits,
    NotMoved,
    OutcomeUnknown,
    Retriable,
)

__all__ = ["DuckdbLedger"]

# The compare-and-set. It changes exactly one row, or the whole transaction rolls back. It also writes what it compares:
# DuckDB refuses the second of two transactions that change a row only if both write the same column.
_ADVANCE = """
UPDATE {prefix}positions
   SET next_offset = $next_offset, epoch = $epoch, owner = $owner,
       commit_token = $commit_token, seq = $seq, updated_at = $now,
       open_seq = $open_seq, open_start = $open_start, open_end = $open_end, open_records = $open_records,
       open_epoch = $open_epoch, open_owner = $open_owner, open_since = $open_since,
       bucket = $bucket, bucket_records = $bucket_records
 WHERE consumer_group = $group AND topic = $topic AND partition_id = $partition_id
   AND next_offset = $start AND epoch = $epoch AND owner = $owner
"""

T = TypeVar("T")


def _file_path(given: Any) -> Path | None:
    is_name = isinstance(given, os.PathLike) or (is_text(given) and checked_text(given).strip())
    path = Path(given) if is_name else None
    return None if path is None or "\0" in str(path) else path


_FilePath: TypeAlias = Annotated[Path, Accepts("the path of a file", _file_path)]


class DuckdbLedger(Ledger[DuckdbTransaction]):
    """A ledger that keeps positions in the same DuckDB file as the data.

    Only one process at a time can open the file, be it to read or to write. Within the process any number of threads,
    ledgers and other connections can use it. Transactions of ledgers run one after the other.
    """

    transaction_class = DuckdbTransaction

    def __init__(self, path: str | Path, *, prefix: str = TABLE_PREFIX, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.path: Path = argument("path", _FilePath, path)
        self._prefix: str = argument("prefix", TablePrefix, prefix)
        self._file = file_at(self.path)
        self._ready = False
        self._forget_at = 0.0

    @classmethod
    def from_url(cls, url: str, *, prefix: str = TABLE_PREFIX, limits: Limits | None = None) -> Self:
        """Open the ledger at a URL: ``duckdb:///shop.duckdb``, or ``duckdb:////var/lib/shop.duckdb``."""
        scheme, _, name = argument("url", Label, url).partition(":///")
        if scheme != "duckdb" or not name or name.startswith(":") or "?" in name:
            raise ConfigurationError(
                "url: a ledger in DuckDB is in a file, and its URL has no options: use duckdb:///shop.duckdb, or "
                "memory:// for a ledger without a database"
            )
        return cls(name, prefix=prefix, limits=limits)

    def __str__(self) -> str:
        return f"duckdb:///{self.path}"

    # Opening

    def create(self) -> None:
        """Create the ledger's tables. Safe to call at any time."""
        self._once(Once[None](f"create the ledger at {self}"), self._create)

    def _create(self) -> None:
        with self._writing(self._begin) as session, self._own_errors():
            if self._version(session.conn) == 0:
                session.conn.execute(self._sql(TABLES))
                session.conn.execute(self._sql("INSERT INTO {prefix}schema VALUES (?)"), [VERSION])
        self._ready = True

    def close(self) -> None:
        """Close the file, unless another ledger of this process uses it."""
        self._file.leave(id(self))

    def examine(self, now: Clock) -> Iterator[Finding]:
        """Yield the findings about the file for ``tidegate doctor``, without creating it."""
        if not self.path.exists():
            yield Finding.warning(
                "ledger", f"{self.path} does not exist yet", "it is created on first use; check the path"
            )
            return
        try:
            with self._reading() as conn:
                version = self._version(conn)
        except (Retriable, LedgerError) as error:
            said, _, advice = str(error).partition(". ")
            yield Finding.fault("ledger", said, advice or "check the path, and who may write the file")
            return
        yield Finding.ok("ledger", f"{self} opens; no other process can use it meanwhile")
        if version == 0:
            yield Finding.warning("tables", f"the ledger at {self} has no tables yet", "they are created on first use")
        else:
            yield Finding.ok("tables", f"the tables have schema version {version}")

    def _check(self) -> None:
        """Check the schema on first use; create the tables if there are none."""
        if self._ready:
            return
        with self._reading() as conn:
            version = self._version(conn)
        if version == 0:
            self.create()
        self._ready = True

    def _version(self, conn: duckdb.DuckDBPyConnection) -> int:
        name = f"{self._prefix}schema"
        if not conn.execute(HAS_TABLE, [name]).fetchall():
            return 0
        ((version,),) = conn.execute(f"SELECT COALESCE(max(version), 0) FROM {name}").fetchall()
        if version > VERSION:
            raise SchemaError(
                f"the ledger at {self} has schema version {version}, this Tidegate knows only up to {VERSION}; "
                "upgrade Tidegate"
            )
        return int(version)

    def _sql(self, statement: str) -> str:
        return statement.replace("{prefix}", self._prefix)

    # Connections and transactions

    def _connect(self) -> duckdb.DuckDBPyConnection:
        try:
            return self._file.connect(id(self))
        except duckdb.Error as error:
            raise not_opened(str(self), self._file.path, first_line(error)) from error

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a connection on which all queries read the same snapshot."""
        conn = self._connect()
        try:
            with self._own_errors():
                conn.execute("BEGIN TRANSACTION READ ONLY")
                yield conn
        finally:
            give_up(conn)

    def _query(self, statement: str, parameters: Values | None = None) -> Found:
        def ask() -> Found:
            with self._reading() as conn:
                return conn.execute(self._sql(statement), parameters).fetchall()

        self._check()
        return self._patiently(f"reading the ledger at {self}", ask)

    @contextmanager
    def _streaming(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Read without retries: the caller has already received a part of what is being read."""
        self._check()
        try:
            with self._reading() as conn:
                yield conn
        except Retriable as trouble:
            raise trouble.amounts_to(f"reading the journal at {self}") from trouble

    @contextmanager
    def _writing(self, begin: Begin) -> Iterator[DuckdbSession]:
        """Open a transaction that commits at the end of the block; ``begin`` runs its first statements."""
        with self._file.turn(self.limits.lock_wait):
            session = DuckdbSession(self._connect(), begin)
            try:
                with self._own_errors():
                    session.start()
                yield session
                self._commit(session.conn)
            finally:
                give_up(session.conn)

    def _begin(self, conn: duckdb.DuckDBPyConnection) -> None:
        conn.execute("BEGIN TRANSACTION")

    def _commit(self, conn: duckdb.DuckDBPyConnection) -> None:
        try:
            conn.execute("COMMIT")
        except duckdb.Error as error:
            if isinstance(error, FATAL):
                self._file.reopen()
            if not isinstance(error, duckdb.TransactionException):
                raise OutcomeUnknown(first_line(error)) from error
            if trouble := self._file.trouble(error):
                raise trouble from error
            raise CommitRefused(
                f"the ledger at {self}: the database refused COMMIT: {first_line(error)}; nothing was committed"
            ) from error

    @contextmanager
    def _handled(self, session: DuckdbSession, work: Work, *, advances: bool = False) -> Iterator[DuckdbTransaction]:
        """Run the handler's part of a transaction, and store the letters that it parked."""
        tx = DuckdbTransaction(work, session, advances=advances)
        try:
            yield tx
        except duckdb.Error as error:
            if trouble := self._file.trouble(error):
                raise trouble from error
            raise
        if session.spoiled is not None:
            raise session.spoiled
        if not session.is_intact:
            trouble = None if session.failed is None else self._file.trouble(session.failed)
            raise trouble or TransactionBroken(f"{work}: {_ABORTED}")
        letters = [{"group": work.group, "now": _utc_now(), **letter_row(letter)} for letter in tx.letters]
        with self._own_errors():
            self._write(session.conn, INSERT_LETTER, letters)

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Translate errors of the ledger's own statements into the ledger's exceptions."""
        try:
            yield
        except duckdb.Error as error:
            raise self._file.trouble(error) or self._refused(error) from error

    def _refused(self, error: BaseException) -> LedgerError:
        if isinstance(error, duckdb.CatalogException):
            return SchemaError(f"the ledger at {self} refused: {first_line(error)}; run ledger.create()")
        return LedgerError(f"the ledger at {self} refused: {first_line(error)}")

    def _write(self, conn: duckdb.DuckDBPyConnection, statement: str, rows: Iterable[Mapping[str, Any]]) -> int:
        """Run a statement once for each row; return how many rows of the table were changed."""
        text, changed = self._sql(statement), 0
        for row in rows:
            ((count,),) = conn.execute(text, row).fetchall()
            changed += count
        return changed

    # Reading

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """Read in one snapshot whether a group is paused, and its stored positions: all, or those of ``partitions``."""

        def ask() -> GroupState:
            with self._reading() as conn:
                paused = conn.execute(self._sql("SELECT paused FROM {prefix}groups WHERE consumer_group = ?"), [group])
                return GroupState(group, any(row[0] for row in paused.fetchall()), self._rows(conn, group, partitions))

        self._check()
        return self._patiently(f"reading the ledger at {self}", ask)

    def read_all(self) -> dict[str, GroupState]:
        """Read the state of every group in the ledger, in one query."""
        groups: dict[str, GroupState] = {}
        for group, paused, *row in self._query(
            f"SELECT g.consumer_group, g.paused, {POSITION} FROM {{prefix}}groups AS g "
            "LEFT JOIN {prefix}positions AS p ON p.consumer_group = g.consumer_group ORDER BY 1"
        ):
            state = groups.setdefault(group, GroupState(group, paused, {}))
            if row[0] is not None:
                position = as_position(row, _time)
                state.positions[position.partition] = position
        return groups

    def totals(self) -> list[Totals]:
        """Return the totals of every group and topic, in order, from one query."""
        found = self._query(
            "SELECT g.consumer_group, g.paused, p.topic, count(p.topic), count(p.owner), sum(p.next_offset), "
            "max(p.updated_at) FROM {prefix}groups AS g LEFT JOIN {prefix}positions AS p "
            "ON p.consumer_group = g.consumer_group GROUP BY ALL"
        )
        totals = (
            Totals(group, paused, None)
            if topic is None
            else Totals(group, paused, topic, partitions, owned, offsets, _time(at))
            for group, paused, topic, partitions, owned, offsets, at in found
        )
        return sorted(totals, key=lambda total: (total.group, total.topic or ""))

    def journal(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate over the journal of a group or of one of its partitions, each partition's entries oldest first."""
        wanted = None if partition is None else [partition]
        with self._streaming() as conn:
            rows = self._rows(conn, group, wanted).values()
            yield from self._entries(conn, group, partition, rows)

    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate backwards, page by page, over the journal of a group or of one of its partitions."""
        topic, number = partition or (None, None)
        key = {"group": group, "topic": topic, "partition_id": number, "before": 1 << 62, "limit": _PAGE}
        wanted = None if partition is None else [partition]

        def first_page() -> tuple[list[Position], Found]:
            with self._reading() as conn:
                rows = list(self._rows(conn, group, wanted).values())
                return rows, conn.execute(self._sql(NEWEST), key).fetchall()

        def written(page: Found) -> Iterator[Entry]:
            while page:
                yield from (as_entry(row[1:], _time) for row in page)
                page = self._query(NEWEST, key | {"before": page[-1][0]}) if len(page) == _PAGE else []

        self._check()
        rows, page = self._patiently(f"reading the ledger at {self}", first_page)
        return backwards(_open_entries(rows), written(page))

    def _evidence(self, group: str) -> Iterator[Entry | Position]:
        with self._streaming() as conn:
            rows = self._rows(conn, group).values()
            yield from self._entries(conn, group, None, rows)
            yield from rows

    def history(self, group: str, since: datetime) -> list[Bucket]:
        """Return how many records a group has advanced since then, over all partitions, in buckets of ten minutes."""
        begin = bucket_begin(since)
        statement = (
            "SELECT bucket, sum(records) FROM {prefix}history WHERE consumer_group = ? AND bucket >= ? GROUP BY 1"
        )

        def ask() -> list[Bucket]:
            with self._reading() as conn:
                stored = {
                    bucket: int(count)
                    for bucket, count in conn.execute(self._sql(statement), [group, begin]).fetchall()
                }
                return with_rows(stored, self._rows(conn, group).values(), begin)

        self._check()
        return self._patiently(f"reading the ledger at {self}", ask)

    def _rows(
        self, conn: duckdb.DuckDBPyConnection, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Position]:
        statement = f"SELECT {POSITION} FROM {{prefix}}positions AS p"
        parameters: dict[str, Any] = {"group": group}
        if partitions is not None:
            statement += (
                " JOIN (SELECT unnest($topics::VARCHAR[]) AS topic, unnest($numbers::INTEGER[]) AS partition_id) AS v "
                "ON p.topic = v.topic AND p.partition_id = v.partition_id"
            )
            topics, numbers = [tp.topic for tp in partitions], [tp.partition for tp in partitions]
            parameters |= {"topics": topics, "numbers": numbers}
        found = conn.execute(self._sql(f"{statement} WHERE p.consumer_group = $group"), parameters).fetchall()
        return {position.partition: position for position in (as_position(row, _time) for row in found)}

    def _entries(
        self,
        conn: duckdb.DuckDBPyConnection,
        group: str,
        partition: TopicPartition | None,
        rows: Iterable[Position],
    ) -> Iterator[Entry]:
        """Iterate over the journal in order, including the entries that are still open in ``rows``."""
        key: dict[str, Any] = {"group": group}
        where = "consumer_group = $group"
        if partition is not None:
            key |= {"topic": partition.topic, "partition_id": partition.partition}
            where = OF_PARTITION
        order = "ORDER BY topic, partition_id, seq"
        result = conn.execute(self._sql(f"SELECT {JOURNAL} FROM {{prefix}}journal WHERE {where} {order}"), key)
        pages = iter(lambda: result.fetchmany(_PAGE), [])
        written = (as_entry(row, _time) for page in pages for row in page)
        yield from merge(written, sorted(_open_entries(rows), key=_in_order), key=_in_order)

    # Changes

    def _change(self, once: Once[T], group: str, partitions: list[TopicPartition], decide: Decide[T]) -> T:
        def change(conn: duckdb.DuckDBPyConnection) -> T:
            changes, result = decide(self._rows(conn, group, partitions))
            now = _utc_now()
            forced = [{"group": group, "topic": t, "name": name, "now": now} for t, name in forced_starts(changes)]
            insert = "INSERT INTO {prefix}deployments VALUES ($group, $topic, $name, $now) ON CONFLICT DO NOTHING"
            if self._write(conn, insert, forced) != len(forced):
                raise Conflict("another claim has forced the same starts")
            new = [change for change in changes if change.is_new]
            if new:
                self._write(conn, INSERT_GROUP, [{"group": group, "now": now}])
            self._write(conn, INSERT, _position_rows(group, new, now))
            self._write(conn, UPDATE, _position_rows(group, [c for c in changes if not c.is_new], now))
            self._journalize(conn, group, changes, now)
            return result

        return self._made_once(once, change)

    def _journalize(
        self, conn: duckdb.DuckDBPyConnection, group: str, changes: Iterable[Change], now: datetime
    ) -> None:
        """Write the entries of changes to the journal, and completed buckets to the coarse history."""
        for change in changes:
            closed = () if change.closed is None else (change.closed,)
            entries = (*closed, *change.entries)
            self._write(conn, INSERT_ENTRY, (_entry_row(group, entry, now) for entry in entries))
            if change.past is not None:
                past = {"group": group, "bucket": change.past.begin, "records": change.past.records}
                self._write(conn, "INSERT INTO {prefix}history VALUES ($group, $bucket, $records)", [past])

    def _made_once(self, once: Once[T], change: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Make a change and store its id, in one transaction; if the id exists already, return the earlier result."""
        self._check()
        with suppress(DoneBefore), self._writing(self._begin) as session, self._own_errors():
            self._begin_once(session.conn, once)
            once.result = change(session.conn)
        return once.result

    def _begin_once(self, conn: duckdb.DuckDBPyConnection, once: Once[Any]) -> None:
        """Store the id of a change; raise :class:`DoneBefore` if it exists."""
        if conn.execute(self._sql("SELECT 1 FROM {prefix}changes WHERE id = ?"), [once.id]).fetchall():
            raise DoneBefore
        once.unknown = False
        now = _utc_now()
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + _FORGET_EVERY
            conn.execute(self._sql('DELETE FROM {prefix}changes WHERE "at" < ?'), [now - _REMEMBERED])
        conn.execute(self._sql("INSERT INTO {prefix}changes VALUES (?, ?)"), [once.id, now])

    def _tried_once(self, what: str, change: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        once = Once[T](what)
        return self._once(once, lambda: self._made_once(once, change))

    def _forced_by(self, group: str, deployment: str) -> frozenset[str]:
        statement = "SELECT topic FROM {prefix}deployments WHERE consumer_group = ? AND deployment = ?"
        return frozenset(topic for (topic,) in self._query(statement, [group, deployment]))

    def _set_paused(self, once: Once[bool], group: str, kind: Kind, note: str | None) -> bool:
        def set_paused(conn: duckdb.DuckDBPyConnection) -> bool:
            now = _utc_now()
            row = {"group": group, "now": now}
            self._write(conn, INSERT_GROUP, [row])
            update = (
                "UPDATE {prefix}groups SET paused = $paused, seq = seq + 1, updated_at = $now "
                "WHERE consumer_group = $group AND paused <> $paused RETURNING seq"
            )
            found = conn.execute(self._sql(update), row | {"paused": kind is Kind.PAUSE}).fetchall()
            for (seq,) in found:
                entry = Entry(None, seq, kind, 0, 0, 0, 0, None, None, note)
                self._write(conn, INSERT_ENTRY, [_entry_row(group, entry, now)])
            return bool(found)

        return self._made_once(once, set_paused)

    def begin_pruning(self, group: str, every: timedelta) -> bool:
        """Return whether to prune a group's journal now, and if so, note that pruning begins."""
        statement = (
            "UPDATE {prefix}groups SET pruned_at = $now WHERE consumer_group = $group "
            "AND (pruned_at IS NULL OR pruned_at > $now OR pruned_at < $before)"
        )

        def begin(conn: duckdb.DuckDBPyConnection) -> bool:
            now = _utc_now()  # at each attempt: another process may have begun since the one before
            return self._write(conn, statement, [{"group": group, "now": now, "before": now - every}]) == 1

        return self._tried_once("begin to prune the journal", begin)

    def _delete_entries(self, older_than: timedelta, group: str | None) -> int:
        """Delete old journal entries and coarse history, a group per transaction; return the number of entries."""
        every = "SELECT consumer_group FROM {prefix}groups"
        names = [group] if group is not None else [name for (name,) in self._query(every)]
        now = _utc_now()
        oldest = bucket_begin((now - max(older_than, HISTORY)).replace(tzinfo=UTC))

        def prune(name: str) -> int:
            def delete(conn: duckdb.DuckDBPyConnection) -> int:
                history = "DELETE FROM {prefix}history WHERE consumer_group = ? AND bucket < ?"
                conn.execute(self._sql(history), [name, oldest])
                return self._write(conn, PRUNE, [{"group": name, "cutoff": now - older_than}])

            return self._tried_once(f"prune the journal of group {name!r}", delete)

        with self._pruning() as pruned:
            for name in names:
                pruned.append(prune(name))
        return sum(pruned)

    # Dead letters

    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[StoredLetter]:
        """Return up to ``limit`` dead letters of a group in the order they were parked, with ids above ``after``."""
        found = self._query(LETTERS, {"group": group, "after": after, "limit": limit})
        return [as_letter(group, row, _time) for row in found]

    def letter_heads(
        self, group: str, *, after: int = 0, limit: int = 100, most: int = LETTER_HEAD
    ) -> list[LetterHead]:
        """Return the beginnings of dead letters, in the order of :meth:`dead_letters`."""
        asked = {"group": group, "after": after, "limit": limit, "most": most}
        return [as_head(group, row, _time, most) for row in self._query(HEADS, asked)]

    def count_letters(self) -> dict[str, int]:
        """Return how many dead letters each group has; groups without any are left out."""
        return dict(self._query("SELECT consumer_group, count(*) FROM {prefix}dead_letters GROUP BY consumer_group"))

    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """Delete dead letters and return how many were deleted."""
        keys = [{"group": group, "id": number} for number in ids]
        return self._tried_once(
            f"drop dead letters of group {group!r}", lambda conn: self._write(conn, _DROP_LETTER, keys)
        )

    def failed_again(self, parked: StoredLetter, error: str) -> bool:
        """Note that a replay failed: count an attempt and store the new error. Returns whether the letter exists."""
        row = {"group": parked.group, "id": parked.id, "error": error_text(error)}
        statement = (
            "UPDATE {prefix}dead_letters SET attempts = attempts + 1, error = $error "
            "WHERE consumer_group = $group AND id = $id"
        )
        return self._tried_once(
            f"note a failed replay of group {parked.group!r}", lambda conn: self._write(conn, statement, [row]) == 1
        )

    # Transactions

    @contextmanager
    def _open(self, work: Work) -> Iterator[DuckdbTransaction]:
        before: dict[TopicPartition, Position] = {}
        now = _utc_now()

        def moved(steps: Iterable[Any]) -> list[Change]:
            aware = now.replace(tzinfo=UTC)
            return [before[step.span.partition].advanced(step, work, aware) for step in steps]

        def begin(conn: duckdb.DuckDBPyConnection) -> None:
            self._begin(conn)
            before.clear()
            before.update(self._rows(conn, work.group, work.partitions))
            if before.keys() != set(work.partitions):
                raise NotMoved(before)
            for row, step in zip(_position_rows(work.group, moved(work.steps), now), work.steps, strict=True):
                compared = {"start": step.span.start, "epoch": step.claim.epoch, "owner": step.claim.owner}
                given = {name: value for name, value in (row | compared).items() if f"${name}" in _ADVANCE}
                if self._write(conn, _ADVANCE, [given]) != 1:
                    raise NotMoved(before)

        self._check()
        with self._writing(begin) as session:
            with self._handled(session, work, advances=True) as tx:
                yield tx
            with self._own_errors():
                changes = moved(tx.steps)
                if tx.steps != work.steps:
                    kept = {step.span.partition for step in tx.steps}
                    changes += [before[tp].left(work) for tp in work.partitions if tp not in kept]
                    self._write(session.conn, UPDATE, _position_rows(work.group, changes, now))
                self._journalize(session.conn, work.group, changes, now)

    @contextmanager
    def _detached(self, work: Work) -> Iterator[DuckdbTransaction]:
        self._check()
        with self._writing(self._begin) as session, self._handled(session, work) as tx:
            yield tx

    @contextmanager
    def _replaying(self, once: Once[DuckdbTransaction], work: Work, number: int) -> Iterator[DuckdbTransaction]:
        def begin(conn: duckdb.DuckDBPyConnection) -> None:
            self._begin(conn)
            self._begin_once(conn, once)
            # The letter is deleted first: a replay on another connection gets a conflict.
            if self._write(conn, _DROP_LETTER, [{"group": work.group, "id": number}]) != 1:
                raise NotMoved({})

        self._check()
        with self._writing(begin) as session, self._handled(session, work) as tx:
            yield tx

    def _locked(self, work: Work) -> Rows:
        with self._file.turn(self.limits.lock_wait), self._reading() as conn:
            return self._rows(conn, work.group, work.partitions)


_PAGE = 1000
_FORGET_EVERY = 3600.0  # seconds
_REMEMBERED = timedelta(days=3)  # longer than any operation is retried: ``lock_wait`` is a day at most

_DROP_LETTER = "DELETE FROM {prefix}dead_letters WHERE consumer_group = $group AND id = $id"

_ABORTED = (
    "a statement of the handler failed, which aborts a transaction in DuckDB, and the handler swallowed its error; "
    "nothing was committed. Run statements that may fail inside `with tx.savepoint():`"
)


def _utc_now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


def _utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC).replace(tzinfo=None)


def _time(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC)


def _position_rows(group: str, changes: Sequence[Change], now: datetime) -> list[dict[str, Any]]:
    """Return the new rows of changes as parameters of a statement."""
    rows = []
    for state, change in zip(position_rows(changes), changes, strict=True):
        still_open, bucket = change.position.open, change.position.bucket
        opened: Sequence[Any] = (None,) * len(OPEN) if still_open is None else still_open
        row = {**state, **dict(zip(OPEN, opened, strict=True)), "group": group, "now": now}
        row["open_since"] = _utc(row["open_since"])
        row["bucket"], row["bucket_records"] = (None, None) if bucket is None else bucket
        rows.append(row)
    return rows


def _entry_row(group: str, entry: Entry, now: datetime) -> dict[str, Any]:
    topic, partition = entry.partition or ("", -1)
    return {
        "group": group,
        "topic": topic,
        "partition_id": partition,
        "seq": entry.seq,
        "kind": entry.kind.value,
        "start_offset": entry.start,
        "end_offset": entry.end,
        "records": entry.records,
        "epoch": entry.epoch,
        "owner": entry.owner,
        "commit_token": entry.token,
        "note": note_text(entry.note),
        "at": _utc(entry.at) or now,
        "since": _utc(entry.since),
    }


def _open_entries(rows: Iterable[Position]) -> list[Entry]:
    return [row.open.entry(row) for row in rows if row.open is not None]


def _in_order(entry: Entry) -> tuple[TopicPartition | tuple[str, int], int]:
    return entry.partition or ("", -1), entry.seq
