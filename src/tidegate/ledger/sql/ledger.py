"""The ledger on a SQL store, through SQLAlchemy Core."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, inspect
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError

from tidegate.core.arguments import Label, argument
from tidegate.core.errors import (
    ConfigurationError,
    LedgerDenied,
    LedgerError,
    LedgerUnavailable,
    SchemaError,
    TransactionBroken,
)
from tidegate.core.journal import Entry, Kind
from tidegate.core.positions import GroupState, Position, forced_starts
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Work
from tidegate.core.totals import Totals
from tidegate.ledger.base import Decide, Rows
from tidegate.ledger.limits import Limits
from tidegate.ledger.sql.codec import (
    as_entry,
    as_position,
    as_totals,
    entry_rows,
    key_rows,
    letter_row,
    note_text,
    position_rows,
    step_rows,
)
from tidegate.ledger.sql.dialect import Dialect, driver_error
from tidegate.ledger.sql.handover import Handover
from tidegate.ledger.sql.idle import revive_idle
from tidegate.ledger.sql.letters import ENDED, SqlLetters
from tidegate.ledger.sql.mysql import MySQL
from tidegate.ledger.sql.postgres import Postgres
from tidegate.ledger.sql.schema import DEPLOYMENTS_IN_POSITIONS, STEPS, tables
from tidegate.ledger.sql.sqlite import SQLite, refuse_memory
from tidegate.ledger.sql.statements import Statements
from tidegate.ledger.sql.store import Store
from tidegate.ledger.sql.transaction import SqlTransaction
from tidegate.ledger.trouble import Conflict, ConnectionLost, LockWaitOver, NotMoved, OutcomeUnknown

__all__ = ["DRIVERS", "SqlLedger", "check_driver"]

_DIALECTS: dict[str, type[Dialect]] = {"sqlite": SQLite, "postgresql": Postgres, "mysql": MySQL, "mariadb": MySQL}

DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql", "sqlite": "pysqlite"}
"""The one driver of each database whose errors the ledger understands."""


def check_driver(database: str, driver: str) -> None:
    """Refuse what the ledger was never run on: it would take a lost connection for an error of the handler."""
    if database not in DRIVERS:
        raise ConfigurationError(f"there is no ledger for {database!r}; use SQLite, MySQL/MariaDB, PostgreSQL or Redis")
    if driver != DRIVERS[database]:
        supported = ", ".join(sorted({f"{name}+{known}" for name, known in DRIVERS.items()}))
        raise ConfigurationError(
            f"there is no ledger for the driver {driver!r}; use {database}+{DRIVERS[database]}:// (drivers that the "
            f"ledger knows: {supported})"
        )


class SqlLedger(SqlLetters):
    """Positions as rows of the database that the data goes to."""

    def __init__(
        self, engine: Engine, *, prefix: str = "tidegate_", limits: Limits | None = None, owned: bool = False
    ) -> None:
        """``owned``: the engine was made for this ledger, and is disposed of with it."""
        super().__init__(limits)
        argument("engine", Engine, engine)
        check_driver(engine.dialect.name, engine.dialect.driver)
        if engine.dialect.name == "sqlite":
            refuse_memory(engine.url)
        self.engine = engine
        self.prefix: str = argument("prefix", Label, prefix)
        self._owned: bool = argument("owned", bool, owned)
        self._met: Store | None = None
        self._ready = False
        self._meeting = threading.RLock()
        if owned and engine.dialect.name != "sqlite":
            revive_idle(engine, self.limits.hold / 2)

    # Opening

    def create(self) -> None:
        """See :meth:`Ledger.create`."""
        self._patiently(f"creating the ledger at {self}", self._create)

    def _create(self) -> None:
        store = self._meet()
        with self._connection() as conn, self._own_errors(), store.dialect.one_creator(conn, f"{self.prefix}create"):
            version = self._version(conn)
            for step in STEPS[version:]:
                for table in step(store.tables):
                    table.create(conn, checkfirst=True)
            if 0 < version <= DEPLOYMENTS_IN_POSITIONS:
                conn.execute(store.statements.adopt_deployments)
            # Last, and at once: where DDL commits by itself, others must not see a version that is half there.
            numbers = [{"version": number} for number in range(version + 1, len(STEPS) + 1)]
            if numbers:
                conn.execute(store.statements.set_version, numbers)
        self._ready = True

    def close(self) -> None:
        """See :meth:`Ledger.close`."""
        if self._owned:
            self.engine.dispose()

    @property
    def is_met(self) -> bool:
        """Whether the database has answered once."""
        return self._met is not None

    def passing(self, error: BaseException, what: str) -> LedgerError | None:
        """What an error of a statement on its engine amounts to, if it is one that passes by itself."""
        trouble = self._meet().dialect.trouble(driver_error(error))
        return None if trouble is None else trouble.amounts_to(what)

    def _meet(self) -> Store:
        """Connect for the first time. Whoever cannot be reached now was never there: that is an error at once."""
        with self._meeting:
            if self._met is None:
                try:
                    with self.engine.connect():
                        pass
                except _NO_CONNECTION as error:
                    raise LedgerUnavailable(
                        f"cannot open the ledger at {self}: {_line(error).rstrip('.?')}. {_advice(error)}"
                    ) from None
                dialect = _DIALECTS[self.engine.dialect.name](self.engine, self.limits, owned=self._owned)
                defined = tables(self.prefix, dialect.layout)
                self._met = Store(dialect, defined, Statements(dialect, defined))
            return self._met

    def _store(self) -> Store:
        """The store, with tables that fit."""
        store = self._meet()
        if not self._ready:
            with self._meeting, self._connection() as conn, self._own_errors():
                version = self._version(conn)
                self._check_engines(conn)
            if version == 0:
                self.create()
            elif version < len(STEPS):
                raise SchemaError(
                    f"the ledger at {self} has schema version {version}, this Tidegate needs {len(STEPS)}; run "
                    "ledger.create() once, with a login that may alter tables"
                )
            self._ready = True
        return store

    def _check_engines(self, conn: Connection) -> None:
        store = self._meet()
        names = [table.name for table in store.tables.all]
        for name, engine in store.dialect.without_transactions(conn, names).items():
            raise SchemaError(
                f"the ledger at {self}: its table {name} has the engine {engine}, which has no transactions, so that "
                f"data and position would not commit together; run ALTER TABLE `{name}` ENGINE=InnoDB"
            )

    def _version(self, conn: Connection) -> int:
        """The schema's version; 0 if there is none."""
        store = self._meet()
        if not inspect(conn).has_table(store.tables.schema.name):
            return 0
        version = int(conn.execute(store.statements.version).scalar() or 0)
        if version > len(STEPS):
            raise SchemaError(
                f"the ledger at {self} has schema version {version}, this Tidegate knows only up to {len(STEPS)}; "
                "upgrade Tidegate"
            )
        return version

    # Reading

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """See :meth:`Ledger.read`."""
        statements = self._store().statements
        if partitions:
            rows = self._query(statements.read, self._keys(group, partitions))
        else:
            rows = self._query(statements.read_group, {"group": group})
        wanted = rows if partitions or partitions is None else ()
        found = (self._position(row[3:]) for row in wanted if row[3] is not None)
        return GroupState(group, any(row[2] for row in rows), {row.partition: row for row in found})

    def read_all(self) -> dict[str, GroupState]:
        """See :meth:`Ledger.read_all`."""
        groups: dict[str, GroupState] = {}
        for group, _, paused, *row in self._query(self._store().statements.read_all, {}):
            state = groups.setdefault(group, GroupState(group, bool(paused), {}))
            if row[0] is not None:
                position = self._position(row)
                state.positions[position.partition] = position
        return dict(sorted(groups.items()))

    def totals(self) -> list[Totals]:
        """See :meth:`Ledger.totals`."""
        store = self._store()
        found = (as_totals(row, store.dialect.time) for row in self._query(store.statements.totals, {}))
        return sorted(found, key=lambda total: (total.group, total.topic or ""))

    def journal(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """See :meth:`Ledger.journal`."""
        statements = self._store().statements
        if partition is None:
            return self._entries(statements.journal, {"group": group})
        key = {"group": group, "topic": partition.topic, "partition_id": partition.partition}
        return self._entries(statements.journal_of, key)

    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """See :meth:`Ledger.newest`."""
        store = self._store()
        key: dict[str, Any] = {"group": group, "before": 1 << 62, "limit": _FIRST_PAGE}
        statement = store.statements.newest
        if partition is not None:
            statement = store.statements.newest_of
            key |= {"topic": partition.topic, "partition_id": partition.partition}
        while rows := store.dialect.unpacked(self._query(statement, key)):
            yield from (as_entry(row[1:], store.dialect.time) for row in rows)
            if len(rows) < key["limit"]:
                break
            key |= {"before": rows[-1][0], "limit": _READ_AT_ONCE}

    def _history(self, group: str) -> Iterator[Entry]:
        return self._entries(self._store().statements.history, {"group": group})

    def _entries(self, statement: TextClause, parameters: dict[str, Any]) -> Iterator[Entry]:
        dialect = self._store().dialect
        with self._connection() as conn, self._own_errors():
            result = conn.execution_options(yield_per=_READ_AT_ONCE).execute(statement, parameters)
            for rows in result.partitions(_READ_AT_ONCE):
                for row in dialect.unpacked(rows):
                    yield as_entry(row, dialect.time)

    def _query(self, statement: TextClause, parameters: dict[str, Any]) -> list[Any]:
        def ask() -> list[Any]:
            with self._connection() as conn, self._own_errors():
                return list(conn.execute(statement, parameters).all())

        return self._patiently(f"reading the ledger at {self}", ask)

    # Writing

    def _change(self, group: str, partitions: list[TopicPartition], decide: Decide) -> None:
        try:
            self._change_once(group, partitions, decide)
        except LockWaitOver:
            if not self._evicted(group, partitions):
                raise
            self._change_once(group, partitions, decide)

    def _change_once(self, group: str, partitions: list[TopicPartition], decide: Decide) -> None:
        dialect, _, statements = self._store()
        with self._session() as conn, self._own_errors():
            rows = self._lock(conn, group, partitions)
            changes = decide(rows)
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
            if handover := Handover.of(old, rows):
                keys = key_rows(change.position.partition for change in old)
                dialect.write(conn, statements.hand_over, handover.parameters(group), keys)
            elif old:
                dialect.write(conn, [statements.update_positions], {"group": group}, position_rows(old))
            journalled = entry_rows(new if handover else changes)
            if journalled:
                dialect.write(conn, [statements.insert_journal], {"group": group}, journalled)

    def _forced_by(self, group: str, deployment: str) -> frozenset[str]:
        name = {"group": group, "deployment": deployment}
        return frozenset(topic for (topic,) in self._query(self._store().statements.deployments, name))

    def _evicted(self, group: str, partitions: list[TopicPartition]) -> bool:
        """End the sessions that hold rows longer than anybody may, where the store does not do so itself."""
        holders = self._store().statements.holders
        if holders is None:
            return False
        with self._connection() as conn, self._own_errors():
            return bool(conn.execute(holders, self._keys(group, partitions)).all())

    @contextmanager
    def _open(self, work: Work) -> Iterator[SqlTransaction]:
        try:
            with self._session(work) as conn:
                with self._own_errors():
                    self._advance(conn, work)
                with self._handled(conn, work) as tx:
                    yield tx
        except _NoMatch:
            raise NotMoved(self._locked(work)) from None

    @contextmanager
    def _detached(self, work: Work) -> Iterator[SqlTransaction]:
        with self._session() as conn, self._handled(conn, work) as tx:
            yield tx

    @contextmanager
    def _handled(self, conn: Connection, work: Work) -> Iterator[SqlTransaction]:
        """The handler's part of a transaction, and the letters that it parked."""
        tx = SqlTransaction(work, conn)
        with self._handler_errors(conn, work):
            yield tx
        if _was_closed(conn):
            raise TransactionBroken(f"{work}: {ENDED}")
        if conn.invalidated:  # and the handler swallowed the error that told it so
            raise ConnectionLost("the connection broke while the handler ran")
        with self._own_errors():
            self._write_letters(tx)

    def write_parked(self, tx: SqlTransaction) -> None:
        """Write the letters parked so far, and forget them: where they are too many to wait for the end. Not inside of
        a savepoint, which could undo letters that were parked before it."""
        self._write_letters(tx)
        tx.letters.clear()

    def _write_letters(self, tx: SqlTransaction) -> None:
        if tx.letters:
            letters = [{"group": tx.work.group, **letter_row(letter)} for letter in tx.letters]
            tx.connection.execute(self._store().statements.insert_letter, letters)

    def _advance(self, conn: Connection, work: Work) -> None:
        """The compare-and-set: every row, or none."""
        dialect, _, statements = self._store()
        many = len(work.steps) > 1
        if many and dialect.locks_first:
            conn.execute(statements.lock_only, self._keys(work.group, work.partitions))
        common = {"token": work.token, "move": work.move.value, "note": note_text(work.note)}
        advance = statements.advance_many if many else statements.advance_one
        if not dialect.write(conn, advance, common | _first_row(work), step_rows(work)):
            raise _NoMatch

    def _locked(self, work: Work) -> Rows:
        with self._session() as conn, self._own_errors():
            return self._lock(conn, work.group, work.partitions)

    def _lock(self, conn: Connection, group: str, partitions: Iterable[TopicPartition]) -> Rows:
        store = self._store()
        rows = conn.execute(store.statements.lock, self._keys(group, partitions)).all()
        return {position.partition: position for position in map(as_position, store.dialect.unpacked(rows))}

    def _set_paused(self, group: str, kind: Kind, note: str | None) -> bool:
        statements = self._store().statements
        with self._session() as conn, self._own_errors():
            conn.execute(statements.insert_group, {"group": group})
            paused = {"group": group, "paused": kind is Kind.PAUSE}
            changed = conn.execute(statements.set_paused, paused).rowcount == 1
            if changed:
                conn.execute(statements.journal_group, {"group": group, "kind": kind, "note": note_text(note)})
        return changed

    def prune(self, older_than: timedelta, group: str | None = None) -> int:
        """See :meth:`Ledger.prune`."""
        store = self._store()
        ((now,),) = self._query(store.statements.now, {})
        cutoff = store.dialect.time_parameter(store.dialect.time(now) - older_than)
        names = [row[0] for row in self._query(store.statements.group_names, {})] if group is None else [group]
        return sum(self._prune(name, cutoff) for name in names)

    def _prune(self, group: str, cutoff: Any) -> int:
        """Delete a group's oldest entries up to the first one that is young enough: a prefix of each partition's."""
        statements = self._store().statements
        pruned = after = 0
        young = None
        while young is None:
            chunk = {"group": group, "after": after, "cutoff": cutoff, "limit": _PRUNED_AT_ONCE}
            ((last, young),) = self._query(statements.oldest_entries, chunk)
            if last is None:
                break
            bounds = {"last": last if young is None else young - 1, "group": group, "after": after, "cutoff": cutoff}
            pruned += self._run_for_each("prune the journal", statements.prune, [bounds])
            after = last
        return pruned

    def _run_for_each(self, what: str, statement: TextClause, parameters: list[dict[str, Any]]) -> int:
        def run() -> int:
            with self._session() as conn, self._own_errors():
                return sum(conn.execute(statement, each).rowcount for each in parameters)

        return self._patiently(what, run)

    # Sessions and errors

    @contextmanager
    def _session(self, work: Work | None = None) -> Iterator[Connection]:
        """A transaction that commits at the end of the block, if it is still the one that began there."""
        dialect = self._store().dialect
        with self._connection() as conn:
            driver = conn.connection.driver_connection
            try:
                with self._own_errors():
                    dialect.begin(conn)
                yield conn
                with self._own_errors():
                    if not (self._sentinel_taken_back(conn, work) and dialect.intact(conn)):
                        raise TransactionBroken(f"{work}: {ENDED}")
                with self._commit_errors():
                    dialect.commit(conn)
            except BaseException:
                self._give_up(conn, driver)
                raise
            self._restore(conn)

    def _sentinel_taken_back(self, conn: Connection, work: Work | None) -> bool:
        store = self._store()
        if work is None or not store.dialect.layout.sentinel:
            return True
        return conn.execute(store.statements.take_back_sentinel, _first_row(work)).rowcount == 1

    def _restore(self, conn: Connection) -> None:
        """Leave the connection as it was found. What it did is committed: if it breaks now, it is closed, no more."""
        try:
            self._store().dialect.restore(conn)
        except Exception:
            conn.invalidate()

    def _give_up(self, conn: Connection, driver: Any) -> None:
        """Roll back; a connection on which that fails is closed, which rolls back as well.

        One that a handler has closed went back to the pool in the middle of its transaction: then the driver's is
        closed, whoever may have it by now.
        """
        dialect = self._store().dialect
        try:
            dialect.rollback(conn)
            dialect.restore(conn)
        except Exception:
            with suppress(Exception):
                conn.invalidate()
            with suppress(Exception):
                driver.close()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        try:
            conn = self.engine.connect()
        except _NO_CONNECTION as error:
            raise ConnectionLost(f"no connection to the ledger at {self}: {_line(error)}") from error
        try:
            if self._met is not None:
                with self._own_errors():
                    self._met.dialect.greet(conn)
            yield conn
        finally:
            self._hand_back(conn)

    @staticmethod
    def _hand_back(conn: Connection) -> None:
        """Close, which may roll back; that this fails says nothing about what was committed."""
        try:
            conn.close()
        except SQLAlchemyError:
            if not conn.closed:
                conn.invalidate()
                conn.close()

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Say what an error of the ledger's own statements means."""
        dialect = self._meet().dialect
        try:
            yield
        except (DBAPIError, self.engine.dialect.loaded_dbapi.Error) as error:
            cause = driver_error(error)
            if trouble := dialect.trouble(cause):
                raise trouble from error
            if dialect.is_duplicate(cause):
                raise Conflict(_line(error)) from error
            if dialect.meddled(cause):
                raise TransactionBroken(ENDED) from error
            raise self._refused(dialect.refusal(cause) or LedgerError, error) from error

    @contextmanager
    def _handler_errors(self, conn: Connection, work: Work) -> Iterator[None]:
        """Pick out of a handler's errors those that concern its transaction; the others are the handler's own."""
        dialect = self._store().dialect
        try:
            yield
        except Exception as error:
            cause = driver_error(error)
            if isinstance(cause, self.engine.dialect.loaded_dbapi.Error):
                if trouble := dialect.trouble(cause):
                    raise trouble from error
                if dialect.meddled(cause):
                    raise TransactionBroken(f"{work}: {ENDED}") from error
                if reason := dialect.forbidden(cause):
                    raise TransactionBroken(f"{work}: {reason}") from error
            if _was_closed(conn):
                raise TransactionBroken(f"{work}: {ENDED}") from error
            if conn.invalidated or dialect.is_closed(conn):
                raise ConnectionLost(f"the connection broke while the handler ran: {_line(error)}") from error
            if isinstance(error, PendingRollbackError):  # SQLAlchemy's word for it, after a commit that was refused
                raise TransactionBroken(f"{work}: {ENDED}") from error
            raise

    @contextmanager
    def _commit_errors(self) -> Iterator[None]:
        dialect = self._store().dialect
        try:
            yield
        except Exception as error:
            cause = driver_error(error)
            if dialect.maybe_committed(cause):
                raise OutcomeUnknown(_line(error)) from error
            if trouble := dialect.trouble(cause):
                raise trouble from error
            if dialect.refusal(cause) is LedgerDenied:  # in a failover the server may have become read-only
                raise self._refused(LedgerDenied, error) from error
            raise  # such as a deferred constraint on a table of the handler's

    def _refused(self, kind: type[LedgerError], error: BaseException) -> LedgerError:
        return kind(f"the ledger at {self} refused: {_line(error)}{_ADVICE.get(kind, '')}")

    def _keys(self, group: str, partitions: Iterable[TopicPartition]) -> dict[str, Any]:
        return self._store().dialect.parameters({"group": group}, key_rows(partitions))

    def _position(self, row: Sequence[Any]) -> Position:
        return as_position(row, self._store().dialect.time)

    def __str__(self) -> str:
        url = self.engine.url
        return f"{url.get_backend_name()}://{url.host or ''}{f':{url.port}' if url.port else ''}/{url.database or ''}"


_FIRST_PAGE = 200  # journal entries, newest first: most questions are answered by these
_READ_AT_ONCE = 1000  # journal entries that are in memory at a time
_PRUNED_AT_ONCE = 5000  # entries looked at in one transaction, so that locks are held for moments


class _NoMatch(Exception):
    """The compare-and-set matched fewer rows than there are steps."""


_ADVICE = {
    LedgerDenied: "; the ledger's login needs SELECT, INSERT, UPDATE and DELETE on its tables, and CREATE for create()",
    SchemaError: "; run ledger.create() with a login that may create tables",
}

_NO_CONNECTION = (SQLAlchemyError, RuntimeError)  # PyMySQL's word for a login that needs a package


def _advice(error: BaseException) -> str:
    if isinstance(error, RuntimeError) and "cryptography" in str(error):
        return "The server asks for the password over a connection without TLS; use TLS, or pip install 'pymysql[rsa]'"
    return "Is the database running, and are address, user and password right?"


def _first_row(work: Work) -> dict[str, Any]:
    """The key of the row that carries the sentinel: one is enough, for the rows commit together."""
    first = work.partitions[0]
    return {"group": work.group, "first_topic": first.topic, "first_partition": first.partition}


def _was_closed(conn: Connection) -> bool:
    """Whether it was closed by whoever has it, and not because it broke."""
    return conn.closed or (not conn.invalidated and conn.connection.dbapi_connection is None)


def _line(error: BaseException) -> str:
    """An error in one line, as the driver put it: without SQLAlchemy's statement and parameters."""
    cause = driver_error(error)
    text = str(cause.args[1]) if len(cause.args) > 1 else str(cause)
    return " ".join(text.split())
