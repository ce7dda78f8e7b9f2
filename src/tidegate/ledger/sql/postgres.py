"""The SQL dialect of the ledger for PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from zlib import crc32

from sqlalchemy import Connection, Engine, event, text

from tidegate.errors import ConfigurationError, LedgerDenied, LedgerError, SchemaError
from tidegate.ledger.sql.dialect import HANDED_OVER, JOURNAL, Blame, Dialect, as_json
from tidegate.ledger.sql.schema import SchemaLayout
from tidegate.ledger.transaction import Conflict, ConnectionLost, Limits, LockWaitOver, NoWrites, Retriable

__all__ = ["PostgresDialect"]

ADVANCE = """
    UPDATE {positions} AS p
       SET next_offset = v.end_offset, commit_token = :token, updated_at = clock_timestamp(), {entry},
           sentinel = CASE WHEN p.topic = :first_topic AND p.partition_id = :first_partition THEN 1 END
      FROM {rows}
     WHERE p.consumer_group = :group AND p.topic = v.topic AND p.partition_id = v.partition_id
       AND p.next_offset = v.start_offset AND p.epoch = v.epoch AND p.owner = v.owner AND {condition}
"""

_CONFLICT = {"40001", "40P01"}
_LOCK_NOT_AVAILABLE = "55P03"
_GONE = {"25P03", "53300", "57P01", "57P02", "57P03"}  # idle too long, too many clients, shut down, crashed, starting
_UNIQUE = "23505"
_FOREIGN_KEY = "23503"
_ABORTED = "25P02"
_DENIED = "42501"
_NOT_WRITABLE = {"25006", "53100", "53200", "58030"}  # read-only, disk full, out of memory, disk error
_NO_TABLE = "42P01"
_OWN_COMMIT = "only_the_ledger_commits"  # the ledger's constraint, which any other COMMIT violates

# States that a record's values never cause: classes or whole codes. Of class 42, only missing privileges, missing
# objects and invalid SQL; 2200H is an exhausted sequence.
_NEVER_ABOUT_VALUES = (
    *("08", "25", "28", "2D", "3B", "3D", "3F", "40", "53", "55", "57", "58", "72", "F0", "HV", "XX001", "XX002"),
    *("2200H", "42501", "42601", "42703", "42704", "42883", "42P01", "42P02"),
)
_VALUES = ("21", "22", "23", "44", "54", "P0")
_INVALID_SQL = "42601"
_INTERNAL, _HSTORE = "XX000", "hstore_io.c"  # reports invalid texts as internal errors before PostgreSQL 16
_POLICY = "ExecWithCheckOptions"  # the server's function that reports rows refused by a policy as missing privileges

_LIMITS = text(
    "SELECT set_config('lock_timeout', :lock_wait, :local), "
    "set_config('idle_in_transaction_session_timeout', :hold, :local)"
)
_BRIEF_LOCK_WAITS = tuple(number / 100 for number in range(5, 26))  # seconds; the server looks for deadlocks after one
_TYPES = {"note": "text"}
_LIMITED = "tidegate_limited"
_SHARED = "tidegate_shared"
_DATE_STYLE = "tidegate_date_style"
_CREATE_LOCK = text("SELECT pg_advisory_xact_lock(:key)")


def _table_options(name: str) -> dict[str, Any]:
    # PostgreSQL writes a new version of the row for each change of a position. With free space in the page, it stays
    # there and the index is not updated.
    return {"postgresql_with": {"fillfactor": 50} if name == "positions" else {}}


class PostgresDialect(Dialect):
    """The dialect for PostgreSQL: a deferred foreign key, the sentinel, keeps a handler from committing.

    The advance sets a foreign key to a row that does not exist, which the server checks at COMMIT. The ledger sets it
    back to NULL just before its own COMMIT. So any other COMMIT fails and rolls everything back. After a ROLLBACK, the
    ledger finds no sentinel to set back, and so notices it.
    """

    driver = "psycopg"
    extra = "postgres"
    advance = ADVANCE
    now = "clock_timestamp()"
    locking = " FOR UPDATE OF p"
    layout = SchemaLayout(collation="C", sentinel=True, numbered_parts=True, options=_table_options)
    locks_first = True
    # On higher isolation levels turns do not help: the snapshot is older than the wait for the turn, so the transaction
    # fails on rows that changed meanwhile.
    if_turns_help = " AND current_setting('transaction_isolation') = 'read committed'"

    def __init__(self, engine: Engine, limits: Limits, *, owned: bool) -> None:
        super().__init__(engine, limits, owned=owned)
        self.brief_lock_waits = tuple(
            text(f"SET LOCAL lock_timeout = {_ms(min(wait, limits.lock_wait))}") for wait in _BRIEF_LOCK_WAITS
        )
        if owned:  # tables and pipelines use the engine too
            event.listen(engine, "connect", self._connected)

    def _connected(self, driver: Any, record: Any) -> None:
        with suppress(self.engine.dialect.loaded_dbapi.Error):  # the first use of the connection fails with it as well
            _look(driver, record.info)

    def rows(self, columns: Mapping[str, str]) -> str:
        """Return the rows as ``json_to_recordset``, for which the planner expects 100 rows.

        For arrays it expects 10 rows, and may then scan the whole group for each of a thousand.
        """
        typed = ", ".join(f"{column} {_TYPES.get(kind, kind)}" for column, kind in columns.items())
        return f"json_to_recordset(CAST(:rows AS json)) AS v({typed})"

    def row(self, columns: Mapping[str, str]) -> str:
        """Return a one-row subquery, for which the planner uses the index; for 100 rows it may scan the whole group."""
        typed = ", ".join(
            f"CAST(:{column} AS {_TYPES.get(kind, kind)}) AS {column}" for column, kind in columns.items()
        )
        return f"(SELECT {typed}) AS v"

    def parameters(self, common: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the parameters with the rows as JSON objects, whose values PostgreSQL reads by name."""
        return {**common, "rows": as_json(rows)}

    def before(self, seconds: int) -> str:
        """Return SQL for the time so many seconds ago."""
        return f"{self.now} - interval '{seconds} seconds'"

    def marked(self) -> dict[str, str]:
        """Set the sentinel on the first row of the advance."""
        return {"sentinel": "CASE WHEN p.topic = :first_topic AND p.partition_id = :first_partition THEN 1 END"}

    def hand_over(self, positions: str, journal: str, rows: str, same_key: str, closed: Mapping[str, str]) -> list[str]:
        """Return one statement that changes the owner of rows and writes their journal entries."""
        update = self.update(positions, rows, {**self._handed_over, **closed}, same_key)
        return [_journalled(journal, update, HANDED_OVER.format(now=self.now))]

    def holders(self, positions: str, rows: str, same_key: str) -> str | None:
        """Return a statement that ends the sessions that hold the rows' locks.

        The server's idle timeout does not end a client that froze in the middle of COPY, nor one that froze after
        psycopg's executemany, whose pipeline leaves the timer off. The xmax of a locked row is the transaction that
        holds the lock, and every transaction holds a lock on its own number, which pg_locks maps to a process.
        """
        return (
            "SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l WHERE l.locktype = 'transactionid' AND l.granted "
            f"AND l.transactionid IN (SELECT p.xmax FROM {self.join(rows, positions, same_key)})"
        )

    def greet(self, conn: Connection) -> None:
        """Check the session once per connection, and raise if psycopg cannot read its times."""
        if _SHARED not in conn.info:
            try:
                _look(conn.connection.dbapi_connection, conn.info)
            except self.engine.dialect.loaded_dbapi.Error:
                conn.invalidate()  # this query bypassed the pool, which would otherwise reuse the dead connection
                raise
        style = conn.info[_DATE_STYLE]
        if not style.startswith("ISO"):
            raise ConfigurationError(
                f"DateStyle is {style!r} in the sessions of this login, and psycopg reads times only as ISO; run ALTER "
                "ROLE … SET DateStyle = ISO, or take the setting out of the URL"
            )

    def begin_snapshot(self, conn: Connection) -> None:
        """Make the transaction REPEATABLE READ and read-only."""
        conn.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def begin(self, conn: Connection) -> None:
        """Begin a transaction and set its timeouts, or those of the whole session if the ledger owns it."""
        if getattr(conn.connection.dbapi_connection, "autocommit", False):
            raise ConfigurationError(
                "the engine is in AUTOCOMMIT mode, so that data and position cannot commit together; pass "
                "engine.execution_options(isolation_level='READ COMMITTED')"
            )
        conn.begin()
        if _LIMITED in conn.info:
            return
        own_session = self.owned and not conn.info[_SHARED]  # otherwise the timeouts are set for the transaction only
        limits = {"lock_wait": _ms(self.limits.lock_wait), "hold": _ms(self.limits.hold)}
        conn.execute(_LIMITS, {**limits, "local": not own_session})
        if own_session:
            conn.connection.commit()  # otherwise a rollback would undo the settings
            conn.info[_LIMITED] = True

    def commit(self, conn: Connection) -> None:
        """Commit the transaction."""
        conn.connection.commit()

    def rollback(self, conn: Connection) -> None:
        """Roll the transaction back."""
        conn.connection.rollback()

    def is_closed(self, conn: Connection) -> bool:
        """Return whether psycopg has closed the connection."""
        return bool(getattr(conn.connection.dbapi_connection, "closed", False))

    @contextmanager
    def one_creator(self, conn: Connection, name: str) -> Iterator[None]:
        """Hold an advisory lock so that only one process at a time creates tables; commit at the end."""
        conn.execute(_CREATE_LOCK, {"key": crc32(name.encode())})
        yield
        conn.commit()

    def trouble(self, error: BaseException) -> Retriable | None:
        """Return the :class:`Retriable` that an error stands for; ``None`` if a retry does not help."""
        state = self._state(error)
        if state in _CONFLICT:
            return Conflict(_line(error))
        if state == _LOCK_NOT_AVAILABLE:
            return LockWaitOver(f"the rows' locks were not free within {self.limits.lock_wait:g} s")
        if state in _GONE or (state or "").startswith("08") or self._is_broken(error):
            return ConnectionLost(_line(error))
        return NoWrites(_line(error)) if state in _NOT_WRITABLE else None

    def is_duplicate(self, error: BaseException) -> bool:
        """Return whether an inserted row existed already."""
        return self._state(error) == _UNIQUE

    def meddled(self, error: BaseException) -> bool:
        """Return whether an error means that the handler tried to commit, or went on in an aborted transaction."""
        state = self._state(error)
        return state == _ABORTED or (state == _FOREIGN_KEY and _OWN_COMMIT in str(error))

    @staticmethod
    def blame(error: Any, *, about_values: bool) -> Blame | None:
        """Judge by the error's state, and by the place in the server that reported it."""
        state = str(getattr(error, "sqlstate", None) or "")
        if not state or isinstance(error.args[0] if error.args else None, int):
            return None
        diagnosis = getattr(error, "diag", None)
        if _OWN_COMMIT in str(error):
            return Blame.DATABASE
        if state == _DENIED and getattr(diagnosis, "source_function", None) == _POLICY:
            return Blame.UNCERTAIN
        if state == _INVALID_SQL and not _places_of(diagnosis):
            return Blame.RECORD  # invalid syntax within a value: an ltree, an hstore, a tsquery, a JSON path
        if state == _INTERNAL and getattr(diagnosis, "source_file", None) == _HSTORE:
            return Blame.RECORD
        return Blame.of(never=state.startswith(_NEVER_ABOUT_VALUES), values=about_values or state.startswith(_VALUES))

    def refusal(self, error: BaseException) -> type[LedgerError] | None:
        """Return the public error for a missing privilege or a missing table; ``None`` for other errors."""
        state = self._state(error)
        if state == _DENIED:
            return LedgerDenied
        return SchemaError if state == _NO_TABLE else None

    def _is_broken(self, error: BaseException) -> bool:
        driver = self.engine.dialect.loaded_dbapi
        return isinstance(error, (driver.OperationalError, driver.InterfaceError)) and self._state(error) is None

    @staticmethod
    def _state(error: BaseException) -> str | None:
        return getattr(error, "sqlstate", None)


def _look(driver: Any, info: dict[str, Any]) -> None:
    """Store the session's date style, and whether a pooler such as PgBouncer lends out sessions per transaction.

    With such a pooler, the backend's process id differs from the one at login. Session settings would then leak to
    other clients, so they are not used; and statements prepared in one session would be missing in another, so psycopg
    must not prepare any.
    """
    (serving,) = driver.execute("SELECT pg_backend_pid()").fetchone()
    driver.rollback()
    info[_DATE_STYLE] = driver.info.parameter_status("DateStyle") or "ISO"
    info[_SHARED] = serving != driver.info.backend_pid
    if info[_SHARED]:
        driver.prepare_threshold = None


def _journalled(journal: str, update: str, entry: str) -> str:
    """Return an UPDATE and the INSERT of the journal entries about its rows as one statement."""
    columns = JOURNAL.split(", ", 1)[1]
    return (
        f"WITH moved({columns}) AS ({update} RETURNING {entry}) "
        f"INSERT INTO {journal} ({JOURNAL}) SELECT :group, {columns} FROM moved"
    )


def _ms(seconds: float) -> str:
    return str(max(1, int(seconds * 1000)))


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _places_of(diagnosis: Any) -> list[Any]:
    """Return the positions in a statement that the server reports for an error; empty if it reports none."""
    found = (getattr(diagnosis, name, None) for name in ("statement_position", "internal_position"))
    return [place for place in found if place]
