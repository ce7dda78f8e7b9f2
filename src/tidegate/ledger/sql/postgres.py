"""PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from zlib import crc32

from sqlalchemy import Connection, Engine, event, text

from tidegate.core.errors import ConfigurationError, LedgerDenied, LedgerError, SchemaError
from tidegate.ledger.limits import Limits
from tidegate.ledger.sql.dialect import COMPARE, HANDED_OVER, JOURNAL, JOURNALLED, Dialect, as_json
from tidegate.ledger.sql.schema import Layout
from tidegate.ledger.trouble import Conflict, ConnectionLost, LockWaitOver, Trouble

__all__ = ["Postgres"]

_CONFLICT = {"40001", "40P01"}
_LOCK_NOT_AVAILABLE = "55P03"
_GONE = {"25P03", "53300", "57P01", "57P02", "57P03"}  # idle too long, too many clients, shut down, crashed, starting
_UNIQUE = "23505"
_FOREIGN_KEY = "23503"
_ABORTED = "25P02"
_DENIED = {"25006", "42501"}
_NO_TABLE = "42P01"

_LIMITS = text(
    "SELECT set_config('lock_timeout', :lock_wait, :local), "
    "set_config('idle_in_transaction_session_timeout', :hold, :local)"
)
_TYPES = {"note": "text"}
_LIMITED = "tidegate_limited"
_SHARED = "tidegate_shared"
_CREATE_LOCK = text("SELECT pg_advisory_xact_lock(:key)")


class Postgres(Dialect):
    """The advance leaves a foreign key dangling that is checked at COMMIT, and the ledger takes it back before its own.

    So a COMMIT by anybody else fails in the server and rolls everything back, and after a ROLLBACK there is nothing
    left to take back.
    """

    now = "clock_timestamp()"
    locking = " FOR UPDATE OF p"
    layout = Layout(collation="C", sentinel=True, numbered_parts=True)
    locks_first = True

    def __init__(self, engine: Engine, limits: Limits, *, owned: bool) -> None:
        super().__init__(engine, limits, owned=owned)
        if owned:  # others use it too: tables, pipelines
            event.listen(engine, "connect", self._connected)

    def _connected(self, driver: Any, record: Any) -> None:
        with suppress(self.engine.dialect.loaded_dbapi.Error):  # whoever uses the connection is told
            _look(driver, record.info)

    def rows(self, columns: Mapping[str, str]) -> str:
        """See :meth:`Dialect.rows`: as JSON, of which the planner expects 100 rows. Of arrays it expects 10, and then
        it may go through a whole group for each of a thousand."""
        typed = ", ".join(f"{column} {_TYPES.get(kind, kind)}" for column, kind in columns.items())
        return f"json_to_recordset(CAST(:rows AS json)) AS v({typed})"

    def row(self, columns: Mapping[str, str]) -> str:
        """See :meth:`Dialect.row`: its key is looked up, where the planner reads the whole group for a hundred."""
        typed = ", ".join(
            f"CAST(:{column} AS {_TYPES.get(kind, kind)}) AS {column}" for column, kind in columns.items()
        )
        return f"(SELECT {typed}) AS v"

    def parameters(self, common: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        """See :meth:`Dialect.parameters`: by name."""
        return {**common, "rows": as_json(rows)}

    def advance(self, positions: str, journal: str, rows: str, same_key: str) -> list[str]:
        """See :meth:`Dialect.advance`: one statement here."""
        first = "p.topic = :first_topic AND p.partition_id = :first_partition"
        moved = {**self._moved, "sentinel": f"CASE WHEN {first} THEN 1 END"}
        update = self.update(positions, rows, moved, f"{same_key} AND {COMPARE}")
        return [_journalled(journal, update, JOURNALLED.format(now=self.now))]

    def hand_over(self, positions: str, journal: str, rows: str, same_key: str) -> list[str]:
        """See :meth:`Dialect.hand_over`: one statement here."""
        update = self.update(positions, rows, self._handed_over, same_key)
        return [_journalled(journal, update, HANDED_OVER.format(now=self.now))]

    def holders(self, positions: str, rows: str, same_key: str) -> str | None:
        """See :meth:`Dialect.holders`: the server's limit does not end a client that is frozen in the middle of COPY,
        nor one that was frozen after psycopg's executemany, whose pipeline leaves the timer off.

        A locked row's xmax is the transaction that holds it, and every transaction holds the lock of its own number.
        """
        return (
            "SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l WHERE l.locktype = 'transactionid' AND l.granted "
            f"AND l.transactionid IN (SELECT p.xmax FROM {self.join(rows, positions, same_key)})"
        )

    def greet(self, conn: Connection) -> None:
        """See :meth:`Dialect.greet`."""
        if _SHARED not in conn.info:
            _look(conn.connection.dbapi_connection, conn.info)

    def begin(self, conn: Connection) -> None:
        """See :meth:`Dialect.begin`."""
        if getattr(conn.connection.dbapi_connection, "autocommit", False):
            raise ConfigurationError(
                "the engine is in AUTOCOMMIT mode, so that data and position cannot commit together; pass "
                "engine.execution_options(isolation_level='READ COMMITTED')"
            )
        conn.begin()
        if _LIMITED in conn.info:
            return
        own_session = self.owned and not conn.info[_SHARED]  # otherwise the limits are the transaction's
        limits = {"lock_wait": _ms(self.limits.lock_wait), "hold": _ms(self.limits.hold)}
        conn.execute(_LIMITS, {**limits, "local": not own_session})
        if own_session:
            conn.connection.commit()  # or a rollback would take them back
            conn.info[_LIMITED] = True

    def commit(self, conn: Connection) -> None:
        """See :meth:`Dialect.commit`."""
        conn.connection.commit()

    def rollback(self, conn: Connection) -> None:
        """See :meth:`Dialect.rollback`."""
        conn.connection.rollback()

    def is_closed(self, conn: Connection) -> bool:
        """See :meth:`Dialect.is_closed`."""
        return bool(getattr(conn.connection.dbapi_connection, "closed", False))

    @contextmanager
    def one_creator(self, conn: Connection, name: str) -> Iterator[None]:
        """See :meth:`Dialect.one_creator`."""
        conn.execute(_CREATE_LOCK, {"key": crc32(name.encode())})
        yield
        conn.commit()

    def trouble(self, error: BaseException) -> Trouble | None:
        """See :meth:`Dialect.trouble`."""
        state = self._state(error)
        if state in _CONFLICT:
            return Conflict(_line(error))
        if state == _LOCK_NOT_AVAILABLE:
            return LockWaitOver(f"the rows' locks were not free within {self.limits.lock_wait:g} s")
        if state in _GONE or (state or "").startswith("08") or self._is_broken(error):
            return ConnectionLost(_line(error))
        return None

    def is_duplicate(self, error: BaseException) -> bool:
        """See :meth:`Dialect.is_duplicate`."""
        return self._state(error) == _UNIQUE

    def meddled(self, error: BaseException) -> bool:
        """See :meth:`Dialect.meddled`."""
        state = self._state(error)
        return state == _ABORTED or (state == _FOREIGN_KEY and "only_the_ledger_commits" in str(error))

    def refusal(self, error: BaseException) -> type[LedgerError] | None:
        """See :meth:`Dialect.refusal`."""
        state = self._state(error)
        if state in _DENIED:
            return LedgerDenied
        return SchemaError if state == _NO_TABLE else None

    def _is_broken(self, error: BaseException) -> bool:
        driver = self.engine.dialect.loaded_dbapi
        return isinstance(error, (driver.OperationalError, driver.InterfaceError)) and self._state(error) is None

    @staticmethod
    def _state(error: BaseException) -> str | None:
        return getattr(error, "sqlstate", None)


def _look(driver: Any, info: dict[str, Any]) -> None:
    """Find out whether a pooler such as PgBouncer lends the session of the server for one transaction at a time.

    Then the process that serves us is not the one that greeted us. What a session is told would stay behind for
    strangers, and statements that psycopg prepared in one would be missing in another.
    """
    (serving,) = driver.execute("SELECT pg_backend_pid()").fetchone()
    driver.rollback()
    info[_SHARED] = serving != driver.info.backend_pid
    if info[_SHARED]:
        driver.prepare_threshold = None


def _journalled(journal: str, update: str, entry: str) -> str:
    """An UPDATE and the journal's entries about its rows, as one statement."""
    columns = JOURNAL.split(", ", 1)[1]
    return (
        f"WITH moved({columns}) AS ({update} RETURNING {entry}) "
        f"INSERT INTO {journal} ({JOURNAL}) SELECT :group, {columns} FROM moved"
    )


def _ms(seconds: float) -> str:
    return str(max(1, int(seconds * 1000)))


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
