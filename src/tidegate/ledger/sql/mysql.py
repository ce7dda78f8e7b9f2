"""MySQL and MariaDB."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tidegate.core.errors import LedgerDenied, LedgerError, SchemaError
from tidegate.ledger.limits import Limits
from tidegate.ledger.sql.dialect import NOTE_LENGTH, Dialect
from tidegate.ledger.sql.engines import without_transactions
from tidegate.ledger.sql.schema import BY_PARTITION, Layout
from tidegate.ledger.trouble import Conflict, ConnectionLost, LockWaitOver, Trouble

__all__ = ["MySQL"]

_CONFLICT = {
    1020,
    1213,
    1402,
    1613,
    1614,
}  # changed since read, deadlock, XA rolled back: by itself, time-out, deadlock
_LOCK_WAIT = 1205
_GONE = {0, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1927, 2003, 2006, 2013, 2014, 2055, 4031}
_DUPLICATE = 1062
_XA_STATE = 1399
_DENIED = {1044, 1142, 1143, 1227, 1290, 1792, 1836}
_NO_TABLE = 1146
_TEMPORARY = 4091

_NO_TEMPORARY_TABLES = (
    "the handler used a temporary table, which MySQL refuses in the XA transactions that keep data and position "
    "together; nothing was committed. Use an ordinary table, or pass the rows in the statement (JSON_TABLE); or have "
    "an administrator run SET PERSIST xa_detach_on_prepare = OFF, which is safe here, because Tidegate never prepares"
)

_XID = "tidegate_xid"
_FOUND = "tidegate_found"


class MySQL(Dialect):
    """Transactions are XA transactions of one branch, committed in one phase.

    In one, the server refuses COMMIT, ROLLBACK and every statement that commits by itself, such as DDL; and one that
    was rolled back by a deadlock can only be given up. They are never prepared, so that they end with their
    connection.
    """

    now = "UTC_TIMESTAMP(6)"

    def __init__(self, engine: Engine, limits: Limits, *, owned: bool) -> None:
        super().__init__(engine, limits, owned=owned)
        mariadb = getattr(engine.dialect, "is_mariadb", False)
        if not mariadb:  # which has no such words; MySQL cannot lock the rows of a JSON_TABLE
            self.locking = " FOR UPDATE OF p"
        # Numbered, because an UPDATE with a join notes the primary keys of its rows first: on disk, if those are long.
        self.layout = Layout("utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin", numbered_positions=True)
        hold = math.ceil(limits.hold) or 1
        self._settings = {
            "innodb_lock_wait_timeout": max(math.ceil(limits.lock_wait), hold + 1),
            "net_read_timeout": hold,
            "idle_transaction_timeout" if mariadb else "wait_timeout": hold,
        }

    def rows(self, columns: Mapping[str, str]) -> str:
        """See :meth:`Dialect.rows`."""
        string = f"VARCHAR({{}}) CHARACTER SET utf8mb4 COLLATE {self.layout.collation}"
        kinds = {"text": string.format(255), "note": string.format(NOTE_LENGTH), "int": "INT", "bigint": "BIGINT"}
        typed = (f"{column} {kinds[kind]} PATH '$[{index}]'" for index, (column, kind) in enumerate(columns.items()))
        return f"JSON_TABLE(:rows, '$[*]' COLUMNS ({', '.join(typed)})) AS v"

    def packed(self, columns: list[str]) -> str:
        """See :meth:`Dialect.packed`: as one value, because PyMySQL takes its time for each."""
        return f"JSON_ARRAY({', '.join(columns)})"

    def unpacked(self, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """See :meth:`Dialect.unpacked`."""
        values: list[list[Any]] = json.loads(f"[{','.join(row[0] for row in rows)}]")
        return values

    def join(self, rows: str, table: str, on: str) -> str:
        """See :meth:`Dialect.join`: row by row through the unique key, so that no other row is locked."""
        return f"{rows} STRAIGHT_JOIN {table} AS p FORCE INDEX ({BY_PARTITION}) ON {on}"

    def update(self, table: str, rows: str, assignments: Mapping[str, str], on: str) -> str:
        """See :meth:`Dialect.update`."""
        assigned = ", ".join(f"p.{column} = {value}" for column, value in assignments.items())
        return f"UPDATE {self.join(rows, table, on)} SET {assigned}"

    def without_transactions(self, conn: Connection, names: Sequence[str]) -> dict[str, str]:
        """See :meth:`Dialect.without_transactions`."""
        return without_transactions(conn, names)

    def begin(self, conn: Connection) -> None:
        """See :meth:`Dialect.begin`."""
        conn.begin()
        if _FOUND not in conn.info:
            variables = ", ".join(f"@@SESSION.{name}" for name in self._settings)
            found = conn.exec_driver_sql(f"SELECT {variables}").one()
            self._set(conn, self._settings)
            conn.info[_FOUND] = dict(zip(self._settings, found, strict=True))
            conn.info[_XID] = f"'tidegate-{secrets.token_hex(12)}'"
            conn.connection.rollback()  # XA cannot start inside of the transaction that the SELECT may have begun
        conn.exec_driver_sql(f"XA START {conn.info[_XID]}")

    def intact(self, conn: Connection) -> bool:
        """See :meth:`Dialect.intact`: one that was rolled back, or is another's, cannot be ended in good order."""
        conn.exec_driver_sql(f"XA END {conn.info[_XID]}")
        return True

    def commit(self, conn: Connection) -> None:
        """See :meth:`Dialect.commit`."""
        conn.exec_driver_sql(f"XA COMMIT {conn.info[_XID]} ONE PHASE")

    def rollback(self, conn: Connection) -> None:
        """See :meth:`Dialect.rollback`."""
        with suppress(DBAPIError):
            conn.exec_driver_sql(f"XA END {conn.info[_XID]}")
        conn.exec_driver_sql(f"XA ROLLBACK {conn.info[_XID]}")

    def restore(self, conn: Connection) -> None:
        """See :meth:`Dialect.restore`."""
        if not self.owned:
            self._set(conn, conn.info.pop(_FOUND))

    def is_closed(self, conn: Connection) -> bool:
        """See :meth:`Dialect.is_closed`."""
        return not getattr(conn.connection.dbapi_connection, "open", True)

    @contextmanager
    def one_creator(self, conn: Connection, name: str) -> Iterator[None]:
        """See :meth:`Dialect.one_creator`."""
        conn.execute(_CREATE_LOCK, {"name": name, "wait": math.ceil(self.limits.lock_wait)})
        try:
            yield
            conn.commit()
        finally:
            conn.execute(_CREATE_UNLOCK, {"name": name})

    def trouble(self, error: BaseException) -> Trouble | None:
        """See :meth:`Dialect.trouble`."""
        code = _code(error)
        if code in _CONFLICT or (code == _XA_STATE and "ROLLBACK ONLY" in _message(error)):
            return Conflict(_message(error))
        if code == _LOCK_WAIT:
            return LockWaitOver(f"the rows' locks were not free within {self._settings['innodb_lock_wait_timeout']} s")
        if code in _GONE:
            return ConnectionLost(_message(error))
        return None

    def is_duplicate(self, error: BaseException) -> bool:
        """See :meth:`Dialect.is_duplicate`."""
        return _code(error) == _DUPLICATE

    def meddled(self, error: BaseException) -> bool:
        """See :meth:`Dialect.meddled`."""
        return _code(error) == _XA_STATE

    def forbidden(self, error: BaseException) -> str | None:
        """See :meth:`Dialect.forbidden`."""
        return _NO_TEMPORARY_TABLES if _code(error) == _TEMPORARY else None

    def refusal(self, error: BaseException) -> type[LedgerError] | None:
        """See :meth:`Dialect.refusal`."""
        code = _code(error)
        if code in _DENIED:
            return LedgerDenied
        return SchemaError if code == _NO_TABLE else None

    @staticmethod
    def _set(conn: Connection, settings: Mapping[str, Any]) -> None:
        conn.exec_driver_sql("SET SESSION " + ", ".join(f"{name} = {int(value)}" for name, value in settings.items()))


_CREATE_LOCK = text("SELECT GET_LOCK(:name, :wait)")
_CREATE_UNLOCK = text("SELECT RELEASE_LOCK(:name)")


def _code(error: BaseException | None) -> int | None:
    """The server's or client's error number; ``None`` if it is no error of the driver."""
    if error is None or type(error).__module__.partition(".")[0] != "pymysql":
        return None
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else None


def _message(error: BaseException) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)
