"""SQLite: one writer at a time, in this process or another."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, TextClause

from tidegate.core.errors import ConfigurationError, LedgerDenied, LedgerError, SchemaError
from tidegate.ledger.sql.dialect import Dialect
from tidegate.ledger.trouble import ConnectionLost, LockWaitOver, Trouble

__all__ = ["SQLite", "refuse_memory"]

_FOUND = "tidegate_found"  # where a connection of the user's engine keeps what has to be restored
_MARK = "tidegate_transaction"  # a view of a connection's own, for as long as the transaction lasts
_DUPLICATE = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)


class SQLite(Dialect):
    """Transactions begin with BEGIN IMMEDIATE: the write lock of the whole database is the mutex.

    While a handler is let in, the connection's authorizer denies BEGIN, COMMIT and ROLLBACK, to SQLAlchemy and to the
    driver alike; and once SQLite has rolled the transaction back by itself, it denies every statement. It is asked when
    a statement is prepared, not when one is run again: so the transaction begins with a change of the temporary schema,
    whose rollback makes SQLite prepare every statement anew, those under way and in the driver's cache included.
    """

    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    locking = ""

    def rows(self, columns: Mapping[str, str]) -> str:
        """See :meth:`Dialect.rows`."""
        picked = ", ".join(f"json_extract(value, '$[{index}]') AS {column}" for index, column in enumerate(columns))
        return f"(SELECT {picked} FROM json_each(:rows)) AS v"

    def update(self, table: str, rows: str, assignments: Mapping[str, str], on: str) -> str:
        """See :meth:`Dialect.update`: for one row, and run for each. For a join the planner would go through the whole
        group, and nothing has to travel here."""
        assigned = ", ".join(f"{column} = {value}" for column, value in assignments.items())
        return f"UPDATE {table} AS p SET {assigned} WHERE {on}".replace("v.", ":")

    def write_each(self, conn: Connection, statement: TextClause, rows: list[dict[str, Any]]) -> int:
        """See :meth:`Dialect.write_each`."""
        return _driver(conn).executemany(statement.text, rows).rowcount

    def join(self, rows: str, table: str, on: str) -> str:
        """See :meth:`Dialect.join`: CROSS keeps the planner from going through the whole group for each of the rows."""
        return f"{rows} CROSS JOIN {table} AS p ON {on}"

    def begin(self, conn: Connection) -> None:
        """See :meth:`Dialect.begin`."""
        driver = _driver(conn)
        if _FOUND not in conn.info:
            (_, _, file), *_ = driver.execute("PRAGMA database_list").fetchall()
            if not file:  # the engine connects by a function of its own, which its URL does not tell
                raise ConfigurationError(_IN_MEMORY)
            (found,) = driver.execute("PRAGMA busy_timeout").fetchone()
            conn.info[_FOUND] = (driver.isolation_level, found)
            driver.isolation_level = "IMMEDIATE"
            driver.execute(f"PRAGMA busy_timeout = {int(self.limits.lock_wait * 1000)}")
        conn.begin()
        conn.exec_driver_sql("BEGIN IMMEDIATE")
        driver.execute(f"CREATE TEMP VIEW {_MARK} AS SELECT 1")
        driver.set_authorizer(_only_inside(driver))

    def intact(self, conn: Connection) -> bool:
        """See :meth:`Dialect.intact`: nobody else can begin a transaction, so an open one is ours."""
        return _driver(conn).in_transaction

    def commit(self, conn: Connection) -> None:
        """See :meth:`Dialect.commit`."""
        driver = _driver(conn)
        driver.set_authorizer(None)
        driver.execute(f"DROP VIEW IF EXISTS temp.{_MARK}")
        driver.execute("COMMIT")

    def rollback(self, conn: Connection) -> None:
        """See :meth:`Dialect.rollback`."""
        driver = _driver(conn)
        driver.set_authorizer(None)
        if driver.in_transaction:
            driver.execute("ROLLBACK")

    def restore(self, conn: Connection) -> None:
        """See :meth:`Dialect.restore`."""
        if not self.owned:
            driver = _driver(conn)
            driver.isolation_level, timeout = conn.info.pop(_FOUND)
            driver.execute(f"PRAGMA busy_timeout = {timeout}")

    @contextmanager
    def one_creator(self, conn: Connection, name: str) -> Iterator[None]:
        """See :meth:`Dialect.one_creator`."""
        if self.owned:
            self._use_write_ahead_log(_driver(conn))
        self.begin(conn)
        try:
            yield
            self.commit(conn)
        except BaseException:
            self.rollback(conn)
            raise

    def _use_write_ahead_log(self, driver: sqlite3.Connection) -> None:
        """Readers and a writer do not stop each other then. It stays with the file: a user's own engine is left alone.

        Changing it needs the database for itself for a moment, and does not wait for that by itself.
        """
        deadline = time.monotonic() + self.limits.lock_wait
        while driver.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            try:
                driver.execute("PRAGMA journal_mode = WAL")
                return  # whatever became of it: not every database can have one
            except sqlite3.OperationalError as error:
                if self.trouble(error) is None or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def trouble(self, error: BaseException) -> Trouble | None:
        """See :meth:`Dialect.trouble`."""
        if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return LockWaitOver(self._held())
        if isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error):
            return ConnectionLost(str(error))
        return None

    def is_duplicate(self, error: BaseException) -> bool:
        """See :meth:`Dialect.is_duplicate`."""
        return getattr(error, "sqlite_errorcode", 0) in _DUPLICATE

    def maybe_committed(self, error: BaseException) -> bool:
        """See :meth:`Dialect.maybe_committed`."""
        return _code(error) == sqlite3.SQLITE_IOERR

    def meddled(self, error: BaseException) -> bool:
        """See :meth:`Dialect.meddled`."""
        return _code(error) == sqlite3.SQLITE_AUTH

    def refusal(self, error: BaseException) -> type[LedgerError] | None:
        """See :meth:`Dialect.refusal`."""
        if _code(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return LedgerDenied
        return SchemaError if "no such table" in str(error) else None

    def time_parameter(self, value: datetime) -> Any:
        """See :meth:`Dialect.time_parameter`."""
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]

    def _held(self) -> str:
        path = self.engine.url.database
        holders = _lock_holders(Path(path)) if path else []
        who = f"held by process {', '.join(map(str, holders))}" if holders else "held by another process or connection"
        return f"the write lock of {path or 'the database'} was not free within {self.limits.lock_wait:g} s, {who}"


_IN_MEMORY = (
    "a SQLite database in memory belongs to one connection, or goes away with the last one, so that threads would not "
    "share its positions; use a file, such as sqlite:///shop.db, or memory:// for a ledger without a database"
)


def refuse_memory(url: URL) -> None:
    """Raise if a SQLite database is not in a file."""
    name, query = url.database or "", url.query
    if name in ("", "file:") or ":memory:" in name or query.get("mode") == "memory" or query.get("vfs") == "memdb":
        raise ConfigurationError(_IN_MEMORY)


def _driver(conn: Connection) -> sqlite3.Connection:
    driver = conn.connection.dbapi_connection
    if not isinstance(driver, sqlite3.Connection):
        raise LedgerError(f"the SQLite ledger needs Python's own driver, not {type(driver).__name__}")
    return driver


def _only_inside(driver: sqlite3.Connection) -> Callable[..., int]:
    """An authorizer that allows whatever neither ends the transaction nor comes after its end."""

    def authorize(action: int, *_: Any) -> int:
        allowed = action != sqlite3.SQLITE_TRANSACTION and driver.in_transaction
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return authorize


def _code(error: BaseException) -> int:
    """The primary result code; 0 if it is no error of SQLite."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _lock_holders(database: Path) -> list[int]:
    """The processes that hold a write lock on the database file or its WAL index, where the system lists them."""
    inodes = {path.stat().st_ino for path in (database, Path(f"{database}-shm")) if path.exists()}
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    locks = (line.split() for line in lines if "WRITE" in line and "->" not in line)
    return sorted({int(lock[4]) for lock in locks if int(lock[5].rsplit(":", 1)[-1]) in inodes})
