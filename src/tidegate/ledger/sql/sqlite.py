"""The SQL dialect of the ledger for SQLite, which has one writer at a time across all processes."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, TextClause, event

from tidegate.errors import ConfigurationError, LedgerDenied, LedgerError, SchemaError
from tidegate.ledger.sql.dialect import Blame, Dialect
from tidegate.ledger.sql.schema import SchemaLayout
from tidegate.ledger.transaction import ConnectionLost, Limits, LockWaitOver, NoWrites, Retriable

__all__ = ["SqliteDialect"]

# It is run once for each row. With a join, the planner would scan the whole group. Many statements cost little here,
# because there is no network.
ADVANCE = """
    UPDATE {positions} AS p
       SET next_offset = :end_offset, commit_token = :token, updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now'), {entry}
     WHERE p.consumer_group = :group AND p.topic = :topic AND p.partition_id = :partition_id
       AND p.next_offset = :start_offset AND p.epoch = :epoch AND p.owner = :owner AND {condition}
"""

_FOUND = "tidegate_found"  # the key under which a connection keeps the settings to restore
_MARK = "tidegate_transaction"  # a temporary view that exists as long as the transaction
_VALUES = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE}
_MISSING = re.compile("no such |syntax error|incomplete input|has no column named|unrecognized token")
_DUPLICATE = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)


def _table_options(name: str) -> dict[str, Any]:
    # No number of a letter is used twice, hence AUTOINCREMENT. Journal entries are numbered too, but the newest one is
    # never pruned, so SQLite needs no AUTOINCREMENT there. The other tables are stored by primary key, without a rowid.
    return {
        "sqlite_with_rowid": name in ("journal", "dead_letters", "history"),
        "sqlite_autoincrement": name == "dead_letters",
    }


class SqliteDialect(Dialect):
    """The dialect for SQLite: transactions begin with BEGIN IMMEDIATE, so the write lock of the database is the mutex.

    While a handler runs, the connection's authorizer denies BEGIN, COMMIT and ROLLBACK, to SQLAlchemy and the driver
    alike. If SQLite itself has rolled the transaction back, the authorizer denies every statement. SQLite calls the
    authorizer only when it prepares a statement, not when a prepared one runs again. Therefore each transaction begins
    with a change of the temporary schema: its rollback makes SQLite prepare all statements again, including those under
    way and those in the driver's cache.
    """

    driver = "pysqlite"
    has_server = False
    advance = ADVANCE
    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    locking = ""
    layout = SchemaLayout(options=_table_options)

    @staticmethod
    def check(url: URL) -> None:
        """Raise if the URL names a database in memory instead of a file."""
        name, query = url.database or "", url.query
        if name in ("", "file:") or ":memory:" in name or query.get("mode") == "memory" or query.get("vfs") == "memdb":
            raise ConfigurationError(_IN_MEMORY)

    @staticmethod
    def engine_options(limits: Limits) -> dict[str, Any]:
        """Return no arguments: connections to a file need no bound."""
        return {}

    @staticmethod
    def prepare(engine: Engine) -> None:
        """Create the file before the first connection does, so that only its owner can read it."""
        file = engine.url.database
        if file and not file.startswith(("file:", ":")):
            event.listen(engine, "do_connect", lambda *_: _make_private(file))

    @staticmethod
    def advice(url: URL, error: BaseException) -> str:
        """Return what is wrong with the path of the file."""
        path = Path(url.database or "").absolute()
        if path.is_dir():
            return f"{path} is a directory; name a file in it"
        if not path.parent.is_dir():
            return f"There is no directory {path.parent}; create it, or check the path"
        return f"May this user read and write {path}, and create files in {path.parent}?"

    def rows(self, columns: Mapping[str, str]) -> str:
        """Return the rows as a subquery ``v`` on ``json_each``."""
        picked = ", ".join(f"json_extract(value, '$[{index}]') AS {column}" for index, column in enumerate(columns))
        return f"(SELECT {picked} FROM json_each(:rows)) AS v"

    def update(self, table: str, rows: str, assignments: Mapping[str, str], on: str) -> str:
        """Return an UPDATE of one row, which is run once for each row, as the advance is."""
        return f"UPDATE {table} AS p SET {self.assigned(assignments)} WHERE {on}".replace("v.", ":")

    def advanced(self, positions: str, rows: str, entry: Mapping[str, str], condition: str) -> str:
        """Return the compare-and-set for one row."""
        return super().advanced(positions, rows, entry, condition).replace("v.", ":")

    def write_each(self, conn: Connection, statement: TextClause, rows: list[dict[str, Any]]) -> int:
        """Run a statement once for each row, directly on the driver; return how many rows were changed."""
        return _driver(conn).executemany(statement.text, rows).rowcount

    def before(self, seconds: int) -> str:
        """Return SQL for the time so many seconds ago."""
        return f"strftime('%Y-%m-%d %H:%M:%f', 'now', '-{seconds} seconds')"

    def join(self, rows: str, table: str, on: str) -> str:
        """Join with CROSS JOIN, which keeps the planner from scanning the whole group for each row."""
        return f"{rows} CROSS JOIN {table} AS p ON {on}"

    def room(self, conn: Connection) -> int | None:
        """Return twice SQLite's size limit, because values are bound and not written as hexadecimal digits."""
        return 2 * _driver(conn).getlimit(sqlite3.SQLITE_LIMIT_LENGTH)

    def begin_snapshot(self, conn: Connection) -> None:
        """Begin a read transaction."""
        _driver(conn).execute("BEGIN")

    def begin(self, conn: Connection) -> None:
        """Set the session's lock timeout if necessary, take the write lock and install the authorizer."""
        driver = _driver(conn)
        if _FOUND not in conn.info:
            (_, _, file), *_ = driver.execute("PRAGMA database_list").fetchall()
            if not file:  # the engine's own connect function opens a database in memory, which its URL does not show
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
        """Return whether a transaction is open; it is the ledger's, because no other can begin."""
        return _driver(conn).in_transaction

    def commit(self, conn: Connection) -> None:
        """Remove the authorizer and the temporary view, and commit."""
        driver = _driver(conn)
        driver.set_authorizer(None)
        driver.execute(f"DROP VIEW IF EXISTS temp.{_MARK}")
        driver.execute("COMMIT")

    def rollback(self, conn: Connection) -> None:
        """Remove the authorizer and roll back, if a transaction is still open."""
        driver = _driver(conn)
        driver.set_authorizer(None)
        if driver.in_transaction:
            driver.execute("ROLLBACK")

    def restore(self, conn: Connection) -> None:
        """Restore the isolation level and the lock timeout of a user's connection."""
        if not self.owned:
            driver = _driver(conn)
            driver.isolation_level, timeout = conn.info.pop(_FOUND)
            driver.execute(f"PRAGMA busy_timeout = {timeout}")

    @contextmanager
    def one_creator(self, conn: Connection, name: str) -> Iterator[None]:
        """Create tables in one transaction, whose write lock keeps other processes out."""
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
        """Switch the database to WAL mode, in which readers and the writer do not block each other.

        The mode is stored in the file, so this is not done for a user's engine. The switch needs exclusive access for a
        moment and SQLite does not wait for it, hence the loop.
        """
        deadline = time.monotonic() + self.limits.lock_wait
        while driver.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            try:
                driver.execute("PRAGMA journal_mode = WAL")
                return  # even if it is not in WAL mode now: not every database supports it
            except sqlite3.OperationalError as error:
                if self.trouble(error) is None or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def trouble(self, error: BaseException) -> Retriable | None:
        """Return the :class:`Retriable` that an error stands for; ``None`` if a retry does not help."""
        code = _code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return LockWaitOver(self._held())
        if isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error):
            return ConnectionLost(str(error))
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM):
            return NoWrites(str(error))
        if code == sqlite3.SQLITE_READONLY and self._is_mounted_read_only():
            return NoWrites(f"{error}: its file system is read-only")
        return None

    def _is_mounted_read_only(self) -> bool:
        """Return whether the file system is read-only, as after a disk error; otherwise a privilege is missing."""
        path = self.engine.url.database
        try:
            return bool(path and os.statvfs(Path(path).resolve().parent).f_flag & os.ST_RDONLY)
        except OSError:
            return False

    def is_duplicate(self, error: BaseException) -> bool:
        """Return whether an inserted row existed already."""
        return getattr(error, "sqlite_errorcode", 0) in _DUPLICATE

    def maybe_committed(self, error: BaseException) -> bool:
        """Return whether COMMIT failed with an I/O error, which leaves its outcome unknown."""
        return _code(error) == sqlite3.SQLITE_IOERR

    def meddled(self, error: BaseException) -> bool:
        """Return whether the authorizer denied a statement of the handler."""
        return _code(error) == sqlite3.SQLITE_AUTH

    @staticmethod
    def blame(error: Any, *, about_values: bool) -> Blame | None:
        """Judge by the primary result code; the generic one also stands for missing objects and invalid SQL."""
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return None
        primary = code & 0xFF
        missing = _MISSING.search(str(error)) is not None
        return Blame.of(
            never=primary not in _VALUES and (primary != sqlite3.SQLITE_ERROR or missing), values=primary in _VALUES
        )

    def refusal(self, error: BaseException) -> type[LedgerError] | None:
        """Return the public error for a missing privilege or a missing table; ``None`` for other errors."""
        if _code(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return LedgerDenied
        return SchemaError if "no such table" in str(error) else None

    def time_parameter(self, value: datetime) -> Any:
        """Convert a time to the text format in which SQLite stores it, in UTC with milliseconds."""
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


def _make_private(file: str) -> None:
    """Create a file that only its owner can read, unless it exists. SQLite gives its other files the same mode."""
    with suppress(OSError):  # connecting then fails with an error that names the cause
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _driver(conn: Connection) -> sqlite3.Connection:
    driver = conn.connection.dbapi_connection
    if not isinstance(driver, sqlite3.Connection):
        raise LedgerError(f"the SQLite ledger needs Python's own driver, not {type(driver).__name__}")
    return driver


def _only_inside(driver: sqlite3.Connection) -> Callable[..., int]:
    """Return an authorizer that denies statements that begin or end a transaction, and all others once it has ended."""

    def authorize(action: int, *_: Any) -> int:
        allowed = action != sqlite3.SQLITE_TRANSACTION and driver.in_transaction
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return authorize


def _code(error: BaseException) -> int:
    """Return SQLite's primary result code; 0 if the error is not SQLite's."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _lock_holders(database: Path) -> list[int]:
    """Return the processes that hold a write lock on the database file or its WAL index, as far as Linux lists them."""
    inodes = {path.stat().st_ino for path in (database, Path(f"{database}-shm")) if path.exists()}
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    locks = (line.split() for line in lines if "WRITE" in line and "->" not in line)
    return sorted({int(lock[4]) for lock in locks if int(lock[5].rsplit(":", 1)[-1]) in inodes})
