"""Transactions in DuckDB: what a handler gets, the session behind it, and the file that all sessions share."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import duckdb

from tidegate.core.work import Work
from tidegate.errors import LedgerDenied, LedgerError, LedgerUnavailable, TransactionBroken
from tidegate.ledger.transaction import Conflict, ConnectionLost, LockWaitOver, NoWrites, Retriable, Transaction

__all__ = [
    "FATAL",
    "Begin",
    "DuckdbFile",
    "DuckdbSession",
    "DuckdbTransaction",
    "Found",
    "Values",
    "file_at",
    "first_line",
    "give_up",
    "not_opened",
]

# The statements that a handler may run. All others are refused: transaction control, and what may contain it (IMPORT
# DATABASE runs a script), takes effect outside of the transaction (SET, ATTACH, INSTALL) or hides another statement
# (EXECUTE, and EXPLAIN, whose ANALYZE runs what it explains, even a COMMIT).
_ALLOWED = {
    *("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE_INTO", "COPY", "CREATE", "CREATE_FUNC", "ALTER", "DROP"),
    "RELATION",
}

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""The parameters of a statement: a list for ``?`` and ``$1``, a dictionary for ``$name``."""

Found: TypeAlias = list[tuple[Any, ...]]
Begin: TypeAlias = Callable[[duckdb.DuckDBPyConnection], None]

_ABOUT_SQL = (duckdb.ParserException, duckdb.SyntaxException, duckdb.BinderException, duckdb.CatalogException)


FATAL = (duckdb.FatalException, duckdb.InternalException)
"""Errors after which DuckDB refuses everything until the file is reopened."""

_FULL = re.compile("Could not write|No space left|Read-only file system")
_CONFLICT = re.compile("conflict|Failed to commit", re.IGNORECASE)


class DuckdbTransaction(Transaction):
    """A transaction in DuckDB. Its statements commit together with the positions; only the ledger can commit.

    DuckDB has no savepoints, and a statement that fails aborts the whole transaction. To undo a savepoint, the ledger
    therefore rolls the transaction back, advances the positions again in a new one, and runs the statements before the
    savepoint again. If one of them now returns something else, the handler could have seen what is no longer true: that
    is a conflict, and the whole handler runs again.
    """

    def __init__(self, work: Work, session: DuckdbSession, *, advances: bool = False) -> None:
        super().__init__(work, advances=advances)
        self._session = session
        self._done: list[_Statement] = []
        self._tried = 0

    def execute(self, statement: str, parameters: Values | None = None) -> Found:
        """Run one SQL statement and return its rows; a statement that changes rows returns how many, as ``[(3,)]``."""
        kind = _kind_of(statement)
        if kind not in _ALLOWED:
            raise TransactionBroken(
                f"{self.work}: {kind} cannot run in the ledger's transaction, which the ledger alone begins and ends. "
                "Run one statement at a time that reads or writes tables"
            )
        given = None if parameters is None else deepcopy(parameters)
        self._tried += 1
        found = self._session.run(statement, parameters)
        self._done.append(_Statement(statement, given, found))
        return found

    def executemany(self, statement: str, parameters: Iterable[Values]) -> None:
        """Run one SQL statement for each set of parameters.

        For many rows, one INSERT that unnests a list for each column is much faster.
        """
        for each in parameters:
            self.execute(statement, each)

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        done, tried = len(self._done), self._tried
        try:
            yield
        except BaseException:
            if self._tried > tried:
                with self._session.or_spoiled():
                    self._undo(done)
            raise

    def _undo(self, length: int) -> None:
        """Begin again, and run the first statements again."""
        del self._done[length:]
        self._session.restart()
        for statement, parameters, found in self._done:
            try:
                same = self._session.run(statement, deepcopy(parameters)) == found
            except (duckdb.Error, LedgerError) as error:
                raise Conflict(f"a statement before the savepoint fails now: {first_line(error)}") from error
            if not same:
                raise Conflict("a statement before the savepoint does not return what it returned at first")


class _Statement(NamedTuple):
    text: str
    parameters: Values | None
    found: Found


class DuckdbSession:
    """One write transaction, and how to begin it again."""

    def __init__(self, conn: duckdb.DuckDBPyConnection, begin: Begin) -> None:
        self.conn = conn
        self._begin = begin
        self._id: object = None
        self.failed: duckdb.Error | None = None
        """The error that has aborted the transaction; the handler may have swallowed it."""
        self.spoiled: BaseException | None = None
        """Why the transaction could not be begun again: it lacks earlier statements, and must not commit."""

    def start(self) -> None:
        """Begin the transaction."""
        self._begin(self.conn)
        self._id, self.failed = self._current(), None

    def restart(self) -> None:
        """Roll back, and begin again."""
        self.conn.execute("ROLLBACK")
        self.start()

    def run(self, statement: str, parameters: Values | None) -> Found:
        """Run a statement of the handler. One that does not fit the database is not the fault of a record."""
        if self.spoiled is not None:
            raise self.spoiled
        try:
            return self.conn.execute(statement, parameters).fetchall()
        except duckdb.Error as error:
            self.failed = self.failed or error
            if isinstance(error, _ABOUT_SQL):
                raise LedgerError(f"DuckDB refused a statement of the handler: {first_line(error)}") from error
            raise

    @contextmanager
    def or_spoiled(self) -> Iterator[None]:
        """Spoil the transaction if the block fails, even if the handler swallows the error."""
        try:
            yield
        except BaseException as error:
            self.spoiled = error
            raise

    @property
    def is_intact(self) -> bool:
        """Whether this is still the transaction that began here, and no statement has aborted it."""
        try:
            return self._current() == self._id
        except duckdb.TransactionException:
            return False

    def _current(self) -> object:
        return self.conn.execute("SELECT txid_current()").fetchall()


class DuckdbFile:
    """A database file. All ledgers of the process share one instance of the database, and its writers' lock.

    With the lock, ledgers write one after the other, and wait instead of running their handlers in vain. Against other
    connections of the process there are DuckDB's conflicts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder = "nothing"
        self._writing = threading.Lock()
        self._opening = threading.Lock()
        self._root: duckdb.DuckDBPyConnection | None = None
        self._opened_by = 0  # the id of a process
        self._users: set[int] = set()

    def connect(self, user: int) -> duckdb.DuckDBPyConnection:
        """Open a connection; the file stays open until the last user has left."""
        self._refuse_forks()
        with self._opening:
            self._users.add(user)
            if self._root is None:
                self._root, self._opened_by = duckdb.connect(self.path), os.getpid()
            return self._root.cursor()

    def _refuse_forks(self) -> None:
        """A fork inherits the open database, but not the lock on its file: it would write beside its parent.

        It may also have inherited locks of this object as they were held, so this comes before them.
        """
        if self._is_inherited:
            raise LedgerUnavailable(
                f"cannot use the ledger in {self.path}: process {self._opened_by} has it open, from which this process "
                "was forked, and DuckDB allows one process at a time. Open the ledger in one process only, and after "
                "the fork"
            )

    @property
    def _is_inherited(self) -> bool:
        return self._root is not None and self._opened_by != os.getpid()

    def leave(self, user: int) -> None:
        """Close the file if this was its last user."""
        if self._is_inherited:  # closing it would write to the file
            return
        with self._opening:
            self._users.discard(user)
            if not self._users:
                self._close()

    def reopen(self) -> None:
        """Close the database after a fatal error, so that the next connection opens it again."""
        with self._opening:
            self._close()

    def trouble(self, error: BaseException) -> Retriable | None:
        """Return the :class:`Retriable` that an error stands for; ``None`` if a retry does not help."""
        text = first_line(error)
        if isinstance(error, FATAL):
            self.reopen()
            return ConnectionLost(f"{text}; the file is opened again, for which its other connections must be closed")
        # Errors of other classes may quote a value of the record, which may be any text.
        is_full = isinstance(error, duckdb.OperationalError) and _FULL.search(text)
        if is_full or isinstance(error, duckdb.OutOfMemoryException):
            return NoWrites(text)
        if isinstance(error, duckdb.TransactionException) and _CONFLICT.search(text):
            return Conflict(text)
        return ConnectionLost(text) if isinstance(error, duckdb.ConnectionException) else None

    def _close(self) -> None:
        root, self._root = self._root, None
        if root is not None:
            with suppress(duckdb.Error):
                root.close()

    @contextmanager
    def turn(self, within: float) -> Iterator[None]:
        """Hold the writers' lock of the file."""
        self._refuse_forks()
        if not self._writing.acquire(timeout=within):
            raise LockWaitOver(
                f"the write lock of {self.path} was not free within {within:g} s, held by thread {self.holder}"
            )
        try:
            self.holder = threading.current_thread().name
            yield
        finally:
            self._writing.release()


_FILES: WeakValueDictionary[Path, DuckdbFile] = WeakValueDictionary()
_FINDING = threading.Lock()


def file_at(path: Path) -> DuckdbFile:
    """Return the file of this process at a path."""
    resolved = path.resolve()
    with _FINDING:
        return _FILES.setdefault(resolved, DuckdbFile(resolved))


def not_opened(ledger: str, path: Path, why: str) -> LedgerError:
    """Return the error for a file that DuckDB did not open, with what to do about it."""
    if "Conflicting lock" in why:
        found = re.search(r"\(PID (\d+)\)", why)
        who = f"process {found[1]}" if found else "another process"
        return LedgerUnavailable(
            f"cannot open the ledger at {ledger}: {who} has the file {path} open, and DuckDB allows one process at a "
            "time, even to read. Stop that process first; to work in several processes, use a server such as PostgreSQL"
        )
    if "different configuration" in why:
        return LedgerUnavailable(
            f"cannot open the ledger at {ledger}: this process has the file {path} open with a different "
            "configuration. Open it with `duckdb.connect` without `config` and `read_only`, and set options with SET "
            "GLOBAL"
        )
    if "Permission denied" in why or "Read-only file system" in why:
        return LedgerDenied(f"cannot open the ledger at {ledger}: {why}. This process must be able to write to it")
    return LedgerUnavailable(f"cannot open the ledger at {ledger}: {why.rstrip('.!')}. Check the path")


@lru_cache(maxsize=1000)
def _kind_of(statement: str) -> str:
    """Return the kind of a SQL statement, as DuckDB's parser sees it."""
    try:
        found = duckdb.extract_statements(statement)
    except duckdb.Error as error:
        raise LedgerError(f"DuckDB refused a statement of the handler: {first_line(error)}") from error
    if len(found) != 1:
        return f"a text of {len(found)} statements"
    return found[0].type.name


def give_up(conn: duckdb.DuckDBPyConnection) -> None:
    """Close a connection, which rolls back its transaction if that is still open."""
    with suppress(duckdb.Error):
        conn.close()


def first_line(error: BaseException) -> str:
    """Return the first line of DuckDB's message; the lines after it may quote the statement and its values."""
    return str(error).strip().partition("\n")[0]
