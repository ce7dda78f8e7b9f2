"""Connections, transactions and error handling of a SQL ledger: the base of ``SqlLedger``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable, TextClause, inspect
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError, TimeoutError

from tidegate.core.arguments import TablePrefix, argument
from tidegate.core.positions import Position
from tidegate.core.records import TopicPartition
from tidegate.core.work import Work
from tidegate.errors import (
    CommitRefused,
    ConfigurationError,
    LedgerDenied,
    LedgerError,
    LedgerUnavailable,
    SchemaError,
    StatementTooLong,
    TransactionBroken,
)
from tidegate.ledger.ledger import TABLE_PREFIX, Ledger
from tidegate.ledger.once import Once
from tidegate.ledger.registry import DIALECTS, dialect_of
from tidegate.ledger.sql.codec import as_position, key_rows, letter_row
from tidegate.ledger.sql.connections import revive_idle, watch_own, watch_users
from tidegate.ledger.sql.dialect import Dialect, driver_error
from tidegate.ledger.sql.schema import DEPLOYMENTS_IN_POSITIONS, STEPS, Tables, add_columns, tables
from tidegate.ledger.sql.statements import Statements
from tidegate.ledger.transaction import (
    Conflict,
    ConnectionLost,
    DoneBefore,
    HeldIdle,
    Limits,
    NoWrites,
    OutcomeUnknown,
    Retriable,
    Transaction,
    Turns,
)
from tidegate.ledger.watch import Line, line_of

__all__ = [
    "ENDED",
    "SqlSessions",
    "SqlTransaction",
    "Store",
    "Unchanged",
    "first_row",
    "is_denied",
    "passes",
]


class Store(NamedTuple):
    """What the ledger knows about its database after the first connection: dialect, tables and statements."""

    dialect: Dialect
    tables: Tables
    statements: Statements


class SqlTransaction(Transaction):
    """A transaction on a SQLAlchemy connection; the ledger advances the positions on it before the handler runs.

    Everything written through ``connection`` commits together with the positions. Only the ledger can commit: if the
    handler tries to, the database refuses.
    """

    def __init__(self, work: Work, connection: Connection, *, advances: bool = False) -> None:
        super().__init__(work, advances=advances)
        self.connection = connection

    def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Run a SQLAlchemy statement; ``parameters`` are passed to ``Connection.execute``."""
        return self.connection.execute(statement, parameters)

    def _savepoint(self) -> AbstractContextManager[object]:
        return self.connection.begin_nested()


T = TypeVar("T")


def passes(engine: Engine, error: BaseException) -> bool:
    """Return whether a statement's error is temporary: an outage, a conflict, or a database that refuses writes."""
    dialect = DIALECTS[engine.dialect.name](engine, Limits(), owned=False)
    return dialect.trouble(driver_error(error)) is not None


def is_denied(engine: Engine, error: BaseException) -> bool:
    """Return whether a statement failed because the login lacks a privilege."""
    dialect = DIALECTS[engine.dialect.name](engine, Limits(), owned=False)
    cause = driver_error(error)
    return dialect.refusal(cause) is LedgerDenied and dialect.trouble(cause) is None


ENDED = (
    "the handler ended the transaction that it was given (by COMMIT, ROLLBACK, a statement that commits by itself, by "
    "closing the connection, or by swallowing an error that had ended it); nothing was committed. Leave the "
    "transaction to Tidegate, and run statements that may fail inside `with tx.savepoint():`. An ORM session rolls "
    "back its own work only if it has join_transaction_mode='create_savepoint'"
)


class SqlSessions(Ledger[SqlTransaction]):
    """The base of a SQL ledger: opens connections, runs transactions on them and interprets their errors."""

    transaction_class = SqlTransaction
    engine: Engine

    def __init__(
        self, engine: Engine, *, prefix: str = TABLE_PREFIX, limits: Limits | None = None, owned: bool = False
    ) -> None:
        """``owned``: the engine was created for this ledger, and :meth:`close` disposes of it."""
        super().__init__(limits)
        argument("engine", Engine, engine)
        dialect = dialect_of(engine.dialect.name, engine.dialect.driver)
        dialect.check(engine.url)
        self.prefix: str = argument("prefix", TablePrefix, prefix)
        self._owned: bool = argument("owned", bool, owned)
        self._met: Store | None = None
        self._ready = False
        self._forget_at = 0.0
        self._turns = Turns()
        self._chance = self._runtime.random()
        self._meeting = threading.RLock()
        self._overdue: set[tuple[str, TopicPartition, int]] = set()  # work with one unanswered handler statement so far
        self.engine = engine
        self._unwatch: Callable[[], None] = lambda: None
        if not dialect.has_server:
            return
        if owned:
            revive_idle(engine, self.limits.hold / 2)
            watch_own(engine, self._watch, self.limits)
        else:
            self.engine, self._unwatch = watch_users(engine, self._watch)

    # Opening

    def create(self) -> None:
        """Create the ledger's tables, or upgrade them to this version. Safe to call at any time."""
        self._once(Once[None](f"create the ledger at {self}"), self._create)

    def _create(self) -> None:
        try:
            self._create_tables()
        except ConnectionLost as lost:  # where DDL commits implicitly, some tables may exist already
            raise OutcomeUnknown(str(lost)) from lost
        self._ready = True

    def _create_tables(self) -> None:
        store = self.meet()
        with self._connection() as conn, self._own_errors(), store.dialect.one_creator(conn, f"{self.prefix}create"):
            version = self._version(conn)
            for step in STEPS[version:]:
                for table in step(store.tables):
                    table.create(conn, checkfirst=True)
            if version < len(STEPS):
                for table in (store.tables.positions, store.tables.journal, store.tables.groups):
                    add_columns(conn, table)
            if 0 < version <= DEPLOYMENTS_IN_POSITIONS:
                conn.execute(store.statements.adopt_deployments)
            # Last, and all at once: where DDL commits implicitly, others must not see a version that is half created.
            numbers = [{"version": number} for number in range(version + 1, len(STEPS) + 1)]
            if numbers:
                conn.execute(store.statements.set_version, numbers)

    def close(self) -> None:
        """Dispose of the engine if the ledger created it; stop watching the connections of a passed-in engine."""
        self._unwatch()
        self._unwatch = lambda: None
        if self._owned:
            self.engine.dispose()

    @property
    def is_met(self) -> bool:
        """Whether the first connection to the database has succeeded."""
        return self._met is not None

    def passing(self, error: BaseException, what: str) -> LedgerError | None:
        """Return the public error for a temporary error of a statement on the ledger's engine; ``None`` for others."""
        trouble = self.meet().dialect.trouble(driver_error(error))
        return None if trouble is None else trouble.amounts_to(what)

    def meet(self) -> Store:
        """Return the store. The first call connects to find out its dialect, and does not retry: if that fails, the
        address or login is probably wrong."""
        with self._meeting:
            if self._met is None:
                try:
                    with self.engine.connect():
                        pass
                except _NO_CONNECTION as error:
                    dialect_class = DIALECTS[self.engine.dialect.name]
                    is_logged_in = dialect_class.is_logged_in(driver_error(error))
                    advice = _AFTER_LOGIN if is_logged_in else dialect_class.advice(self.engine.url, error)
                    raise LedgerUnavailable(
                        f"cannot open the ledger at {self}: {_line(error).rstrip('.?')}. {advice}"
                    ) from None
                dialect = DIALECTS[self.engine.dialect.name](self.engine, self.limits, owned=self._owned)
                defined = tables(self.prefix, dialect.layout)
                self._met = Store(dialect, defined, Statements(dialect, defined))
            return self._met

    def _store(self) -> Store:
        """Return the store after checking its schema version; creates the tables if there are none."""
        store = self.meet()
        if not self._ready:
            version = self._patiently(f"opening the ledger at {self}", self._checked_version)
            if version == 0:
                self.create()
            elif version < len(STEPS):
                raise SchemaError(
                    f"the ledger at {self} has schema version {version}, this Tidegate needs {len(STEPS)}; run "
                    "ledger.create() once, with a login that may alter tables"
                )
            self._ready = True
        return store

    def _checked_version(self) -> int:
        with self._meeting, self._connection() as conn, self._own_errors():
            version = self._version(conn)
            self._check_server(conn)
            return version

    def _check_server(self, conn: Connection) -> None:
        store = self.meet()
        if unfit := store.dialect.unfit_session(conn):
            raise ConfigurationError(f"the ledger at {self}: {unfit}")
        names = [table.name for table in store.tables.all]
        for name, engine in store.dialect.without_transactions(conn, names).items():
            raise SchemaError(
                f"the ledger at {self}: its table {name} has the engine {engine}, which has no transactions, so that "
                f"data and position would not commit together; run ALTER TABLE `{name}` "
                f"ENGINE={store.dialect.transactional_engine}"
            )

    def _check_server_again(self, conn: Connection) -> None:
        """Check session and engines on each new connection, which may lead to another server, and then every ten
        seconds."""
        checked = conn.info.get(_ENGINES)
        if checked is None or time.monotonic() - checked >= _ENGINES_EVERY:
            self._check_server(conn)
            conn.rollback()
            conn.info[_ENGINES] = time.monotonic()

    def _version(self, conn: Connection) -> int:
        """Return the schema version; 0 if there are no tables."""
        store = self.meet()
        if not inspect(conn).has_table(store.tables.schema.name):
            return 0
        version = int(conn.execute(store.statements.version).scalar() or 0)
        if version > len(STEPS):
            raise SchemaError(
                f"the ledger at {self} has schema version {version}, this Tidegate knows only up to {len(STEPS)}; "
                "upgrade Tidegate"
            )
        return version

    # Sessions

    def _query(self, statement: TextClause, parameters: dict[str, Any]) -> list[Any]:
        def ask() -> list[Any]:
            with self._connection() as conn, self._own_errors():
                return list(conn.execute(statement, parameters).all())

        return self._patiently(f"reading the ledger at {self}", ask)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise the public error instead of retrying: the caller has already received a part of what is being read."""
        try:
            yield
        except Retriable as trouble:
            raise trouble.amounts_to(f"reading the journal at {self}") from trouble

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """Open a connection on which all queries read the same snapshot."""
        dialect = self._store().dialect
        with self._connection() as conn, self._own_errors():
            dialect.begin_snapshot(conn)
            yield conn

    def _run_for_each(self, what: str, statement: TextClause, parameters: list[dict[str, Any]]) -> int:
        def run(conn: Connection) -> int:
            return sum(conn.execute(statement, each).rowcount for each in parameters)

        once = Once[int](what)
        return self._once(once, lambda: self._made_once(once, run))

    def _made_once(self, once: Once[T], change: Callable[[Connection], T]) -> T:
        """Make a change and store its id, in one transaction; if the id exists already, return the earlier result."""
        self._forget_changes()
        try:
            with self._session() as conn, self._own_errors():
                self._begin_once(conn, once)
                once.result = change(conn)
        except (DoneBefore, Unchanged):
            pass
        return once.result

    def _begin_once(self, conn: Connection, once: Once[Any]) -> None:
        """Store the id of a change as the first step of its transaction; raise :class:`DoneBefore` if it exists.

        If the COMMIT of an earlier attempt is still under way, the INSERT waits for that attempt's row.
        """
        dialect, _, statements = self._store()
        try:
            conn.execute(statements.insert_change, {"id": once.id})
        except DBAPIError as error:
            if dialect.is_duplicate(driver_error(error)):
                raise DoneBefore from error
            raise
        once.unknown = False

    def _forget_changes(self) -> None:
        """Delete ids of changes that are too old to be retried, at the first change and then every hour.

        A failure is ignored; the next round deletes them.
        """
        store, now = self._store(), time.monotonic()
        if now < self._forget_at:
            return
        self._forget_at = now + _FORGET_EVERY
        with suppress(Retriable):
            with self._connection() as conn, self._own_errors():
                cutoff = self._before(conn.execute(store.statements.now).scalar(), _REMEMBERED)
                chunk = {"cutoff": cutoff, "limit": _FORGOTTEN_AT_ONCE}
                old = [{"id": found} for (found,) in conn.execute(store.statements.old_changes, chunk)]
            if old:
                with self._session() as conn, self._own_errors():
                    conn.execute(store.statements.forget_change, old)

    def _before(self, now: Any, age: timedelta) -> Any:
        """Return the time ``age`` before the store's ``now``, as a statement's parameter."""
        dialect = self._store().dialect
        return dialect.time_parameter(dialect.time(now) - age)

    @contextmanager
    def _session(self, work: Work | None = None, *, moves: bool = True) -> Iterator[Connection]:
        """Open a transaction that commits at the end of the block, if it is still the one that began there.

        ``work`` is the handler's work, if one runs in it. ``moves``: the transaction also moves the work's positions.
        """
        dialect = self._store().dialect
        with self._connection() as conn:
            driver, line = conn.connection.driver_connection, line_of(conn.info)
            if line is not None:
                line.rest()
            try:
                with self._own_errors():
                    dialect.begin(conn)
                yield conn
                with self._own_errors():
                    if not (self._sentinel_taken_back(conn, work if moves else None) and dialect.intact(conn)):
                        raise TransactionBroken(f"{work}: {ENDED}")
                with self._commit_errors():
                    dialect.commit(conn)
            except BaseException as error:
                idle = 0.0 if line is None else line.idle
                self._give_up(conn, driver)
                if isinstance(error, NoWrites):
                    _drop(conn)  # a new connection may reach the new primary, and is not set to read-only
                if work is not None and isinstance(error, ConnectionLost) and idle >= self.limits.hold:
                    raise HeldIdle(str(error), idle, self.limits.hold) from error
                raise
            self._restore(conn)
        if work is not None:
            self._overdue.discard(_place_of(work))

    def _sentinel_taken_back(self, conn: Connection, work: Work | None) -> bool:
        store = self._store()
        if work is None or not store.dialect.layout.sentinel:
            return True
        return conn.execute(store.statements.take_back_sentinel, first_row(work)).rowcount == 1

    def _restore(self, conn: Connection) -> None:
        """Restore the connection's settings. The transaction is committed, so a failure only closes the connection."""
        try:
            self._store().dialect.restore(conn)
        except Exception:
            conn.invalidate()

    def _give_up(self, conn: Connection, driver: Any) -> None:
        """Roll back; if that fails, close the connection, which also rolls back.

        A connection that the handler closed went back to the pool in the middle of its transaction. Then the driver's
        connection is closed, even if the pool has handed it out again.
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
        if self._watch.is_over:
            raise LedgerUnavailable(_TOO_LATE.format(self, self._watch.silence))
        began = time.monotonic()
        try:
            conn = self.engine.connect()
        except (*_NO_CONNECTION, self.engine.dialect.loaded_dbapi.Error) as error:
            if not isinstance(error, TimeoutError):  # the pool's own, for too many connections in use
                self._watch.unheard(began)
            raise ConnectionLost(f"no connection to the ledger at {self}: {_line(error)}") from error
        try:
            if self._met is not None:
                with self._own_errors():
                    self._met.dialect.greet(conn)
                    if self._ready:
                        self._check_server_again(conn)
            yield conn
        finally:
            self._hand_back(conn)

    @staticmethod
    def _hand_back(conn: Connection) -> None:
        """Close the connection, which may roll back. A failure is ignored: it says nothing about what was committed."""
        try:
            conn.close()
        except SQLAlchemyError:
            if not conn.closed:
                conn.invalidate()
                conn.close()

    # The handler's part

    @contextmanager
    def _handled(self, conn: Connection, work: Work, *, advances: bool = False) -> Iterator[SqlTransaction]:
        """Run the handler's part of a transaction, and store the letters that it parked."""
        tx, line = SqlTransaction(work, conn, advances=advances), line_of(conn.info)
        with self._handler_errors(conn, work, line):
            yield tx
        if _was_closed(conn):
            raise TransactionBroken(f"{work}: {ENDED}")
        if conn.invalidated:  # the handler swallowed the error
            raise ConnectionLost("the connection broke while the handler ran")
        with self._own_errors():
            if line is not None and line.idle >= self.limits.hold:
                conn.exec_driver_sql("SELECT 1")  # a broken connection shows here, rather than as an unanswered COMMIT
            self._store().dialect.tidy(conn)
            self._write_letters(tx)

    def write_parked(self, tx: SqlTransaction) -> None:
        """Write the letters parked so far and remove them from memory, where they are too many to keep until the end.

        Do not call it inside a savepoint: undoing the savepoint would also undo letters that were parked before it.
        """
        self._write_letters(tx)
        tx.letters.clear()

    def _write_letters(self, tx: SqlTransaction) -> None:
        if not tx.letters:
            return
        dialect, _, statements = self._store()
        room = dialect.room(tx.connection)
        letters = [{"group": tx.work.group, **letter_row(letter, room)} for letter in tx.letters]
        if room is None or room > _ROOM_FOR_MANY:
            tx.connection.execute(statements.insert_letter, letters)
        else:
            for letter in letters:
                tx.connection.execute(statements.insert_letter, letter)

    # Errors

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Translate errors of the ledger's own statements into the ledger's exceptions."""
        dialect = self.meet().dialect
        try:
            yield
        except (SQLAlchemyError, self.engine.dialect.loaded_dbapi.Error) as error:
            cause = driver_error(error)
            if trouble := dialect.trouble(cause):
                raise trouble from error
            if dialect.is_duplicate(cause):
                raise Conflict(_line(error)) from error
            if dialect.meddled(cause):
                raise TransactionBroken(ENDED) from error
            raise self._refused(dialect.refusal(cause) or LedgerError, error) from error

    @contextmanager
    def _handler_errors(self, conn: Connection, work: Work, line: Line | None) -> Iterator[None]:
        """Translate those of a handler's errors that concern its transaction; let the handler's own errors through."""
        dialect = self._store().dialect
        try:
            yield
        except Exception as error:
            cause = driver_error(error)
            if line is not None and line.reason is not None:
                self._broken_off(work, line.reason, error)
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
            if isinstance(error, PendingRollbackError):  # raised by SQLAlchemy after a refused commit
                raise TransactionBroken(f"{work}: {ENDED}") from error
            raise

    def _broken_off(self, work: Work, reason: str, error: Exception) -> NoReturn:
        """Raise for a handler's statement that was not answered in time: to retry, or as too long the second time.

        The first time may be the connection's fault. If the store then answers the ledger on another connection, but
        again does not answer the handler, the statement itself takes too long.
        """
        if _place_of(work) in self._overdue and not self._watch.is_hurried:
            self._overdue.discard(_place_of(work))
            raise StatementTooLong(
                f"{work}: {reason}, twice, while it answered others: a statement of the handler takes too long. "
                "Nothing was committed. Write less in one transaction, or raise the limit"
            ) from error
        self._overdue.add(_place_of(work))
        raise ConnectionLost(reason) from error

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
            if dialect.refusal(cause) is LedgerDenied:  # a privilege may be revoked at any time
                raise self._refused(LedgerDenied, error) from error
            if dialect.meddled(cause):
                raise TransactionBroken(ENDED) from error
            raise CommitRefused(
                f"the ledger at {self}: the database refused COMMIT: {_first_line(cause)}; nothing was committed"
            ) from cause

    def _refused(self, kind: type[LedgerError], error: BaseException) -> LedgerError:
        return kind(f"the ledger at {self} refused: {_line(error)}{_ADVICE.get(kind, '')}")

    def _keys(self, group: str, partitions: Iterable[TopicPartition]) -> dict[str, Any]:
        return self._store().dialect.parameters({"group": group}, key_rows(partitions))

    def _position(self, row: Sequence[Any]) -> Position:
        return as_position(row, self._store().dialect.time)

    def __str__(self) -> str:
        url = self.engine.url
        return f"{url.get_backend_name()}://{url.host or ''}{f':{url.port}' if url.port else ''}/{url.database or ''}"


_REMEMBERED = timedelta(days=3)  # longer than any operation is retried: ``lock_wait`` is a day at most

_FORGET_EVERY = 3600.0  # seconds

_ENGINES, _ENGINES_EVERY = "tidegate_engines", 10.0  # seconds

_ROOM_FOR_MANY = 2 << 20  # bytes: PyMySQL combines rows into statements of up to half of that

_FORGOTTEN_AT_ONCE = 10_000


class Unchanged(Exception):
    """Raised to roll back a transaction that has nothing to change."""


_ADVICE = {
    LedgerDenied: "; the ledger's login needs SELECT, INSERT, UPDATE and DELETE on its tables, and CREATE for create()",
    SchemaError: "; run ledger.create() with a login that may create tables",
}

_NO_CONNECTION = (SQLAlchemyError, RuntimeError, OSError)  # PyMySQL raises RuntimeError if a login needs a package

_TOO_LATE = (
    "the ledger at {} has not answered for {:.0f} s, and this process is shutting down; whether the last request "
    "took effect will show when the partition is claimed again"
)


def _place_of(work: Work) -> tuple[str, TopicPartition, int]:
    """Return what identifies a piece of work however long its spans are: the group and the start of the first span."""
    first = work.steps[0].span
    return work.group, first.partition, first.start


def _drop(conn: Connection) -> None:
    with suppress(Exception):
        conn.invalidate()


_AFTER_LOGIN = (
    "The login succeeded, and the server refused what comes after it; check init_command and the URL's settings"
)


def first_row(work: Work) -> dict[str, Any]:
    """Return the key of the row that carries the sentinel. One row is enough, because all rows commit together."""
    first = work.partitions[0]
    return {"group": work.group, "first_topic": first.topic, "first_partition": first.partition}


def _was_closed(conn: Connection) -> bool:
    """Return whether the handler closed the connection, as opposed to the connection having broken."""
    return conn.closed or (not conn.invalidated and conn.connection.dbapi_connection is None)


def _first_line(error: BaseException) -> str:
    """Return the first line of the driver's message; the lines after it may quote values."""
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return text.strip().partition("\n")[0]


def _line(error: BaseException) -> str:
    """Return the driver's message on one line, without the statement and parameters that SQLAlchemy adds."""
    cause = driver_error(error)
    text = str(cause.args[1]) if len(cause.args) > 1 else str(cause)
    return " ".join(text.split())
