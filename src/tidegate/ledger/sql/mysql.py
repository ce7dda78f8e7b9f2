"""The SQL dialect of the ledger for MySQL and MariaDB, and a check for tables without transactions."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tidegate.errors import LedgerDenied, LedgerError, SchemaError
from tidegate.ledger.sql.dialect import NOTE_LENGTH, Blame, Dialect
from tidegate.ledger.sql.schema import BY_PARTITION, SchemaLayout
from tidegate.ledger.transaction import Conflict, ConnectionLost, Limits, LockWaitOver, NoWrites, Retriable

__all__ = ["MySqlDialect", "unfit_session", "without_transactions"]


# The join goes row by row through the unique key, so that no other rows are locked.
ADVANCE = f"""
    UPDATE {{rows}} STRAIGHT_JOIN {{positions}} AS p FORCE INDEX ({BY_PARTITION})
        ON p.consumer_group = :group AND p.topic = v.topic AND p.partition_id = v.partition_id
       AND p.next_offset = v.start_offset AND p.epoch = v.epoch AND p.owner = v.owner AND {{condition}}
       SET p.next_offset = v.end_offset, p.commit_token = :token, p.updated_at = UTC_TIMESTAMP(6), {{entry}}
"""

_OTHERS = "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = {} AND engine <> 'InnoDB' AND"
_TRANSACTIONAL = text("SELECT engine FROM information_schema.engines WHERE transactions = 'YES'")


def without_transactions(conn: Connection, names: Sequence[str], schema: str | None = None) -> dict[str, str]:
    """Return the given tables whose storage engine has no transactions, each with its engine; views have no engine."""
    each = _OTHERS.format("DATABASE()" if schema is None else ":schema")
    given = {f"name{place}": name for place, name in enumerate(names)}
    if getattr(conn.engine.dialect, "is_mariadb", False):  # it opens all tables of the database unless one is named
        query = " UNION ALL ".join(f"{each} table_name = :{place}" for place in given)
    else:
        query = f"{each} table_name IN ({', '.join(f':{place}' for place in given)})"
    found = conn.execute(text(query), {**given, **({} if schema is None else {"schema": schema})}).all()
    transactional = set(conn.execute(_TRANSACTIONAL).scalars()) if found else set()
    return {str(name): str(engine) for name, engine in found if engine not in transactional}


_LOCAL_FILES = 128  # the protocol's capability flag CLIENT_LOCAL_FILES
_ALL_ROWS = (1 << 32) - 1  # the least value of sql_select_limit that stands for "no limit"; it depends on the platform


def unfit_session(conn: Connection) -> str | None:
    """Return the setting of a session with which statements go wrong, and what to do; ``None`` if there is none."""
    limit, is_safe = conn.exec_driver_sql("SELECT @@SESSION.sql_select_limit, @@SESSION.sql_safe_updates").one()
    if int(limit) < _ALL_ROWS:
        return (
            f"the session's sql_select_limit is {limit}, so that the server leaves rows out of the results of queries; "
            "run SET SESSION sql_select_limit = 18446744073709551615 in the connection's init_command, or take the "
            "setting away"
        )
    if is_safe:
        return (
            "the session's sql_safe_updates is on, so that the server refuses an UPDATE or DELETE for which it chooses "
            "not to use an index; switch it off"
        )
    return None


_CONFLICT = {
    1020,  # changed since it was read
    1213,  # deadlock
    1402,  # XA transaction rolled back,
    1613,  # by a timeout,
    1614,  # by a deadlock
    1467,  # no AUTO_INCREMENT value: MariaDB's error for a deadlock over the table's AUTO-INC lock
}
_LOCK_WAIT = 1205
_GONE = {0, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1927, 2003, 2006, 2013, 2014, 2055, 4031}
_NO_LOGIN = {1042, 1043, 1044, 1045, 1047, 1049, 1129, 1130, 1203, 1226, 1251, 1275, 1524, 1698, 1820, 1862}
_NO_LOGIN |= {3032, 3118, 3159, 3955, 4151}  # the accounts are locked, or need TLS
_OF_CLIENT = range(2000, 3000)
_DUPLICATE = 1062
_XA_STATE = 1399
_DENIED = {1044, 1142, 1143, 1227}
_READ_ONLY = {1792, 1836}  # a read-only transaction; a server in read-only mode
_OPTION = 1290  # a server option, such as read_only, forbids the statement
_FULL = {3, 20, 1021, 1114}  # a file cannot be written; disk full (two codes); table full
_ERRNO = {1026, 1030}  # an error of the operating system, whose number is in the message
_NO_SPACE = re.compile(r"\b28\b|No space left")
_NO_TABLE = 1146
_TEMPORARY = 4091

_NEVER_ABOUT_VALUES = frozenset(
    {
        *_CONFLICT,
        *_GONE,
        *_DENIED,
        *_READ_ONLY,
        *_FULL,
        *_ERRNO,
        *(_LOCK_WAIT, _XA_STATE, _OPTION, _NO_TABLE, _TEMPORARY),
        *(1045, 1129, 1130, 1203, 1226, 1370, 1419, 3032),  # logins, privileges, hourly limits of a login
        *(1015, 1016, 1017, 1023, 1024, 1034, 1035, 1194, 1195),  # files that cannot be opened or are damaged
        *(1028, 1037, 1038, 1041, 1135, 1206),  # out of memory, threads or locks
        *(1099, 1100, 1223, 1317, 1412, 1969, 3024, 3101, 3572),  # locked, interrupted, timed out, table altered
        *(1049, 1051, 1052, 1054, 1064, 1109, 1149, 1305),  # missing databases, tables or columns; invalid SQL
        4084,  # sequence exhausted
    }
)
"""Error numbers that a record's values never cause."""

_VALUE_STATES = ("22", "23", "44", "45")  # 45 is the class for SIGNAL, which may come with any error number
_VALUES = {
    *(1022, 1169, 1364, 1369, 1586, 3819, 4025),  # duplicates, no default value, CHECK of a view or a column violated
    *(1118, 1153, 1242, 1292, 1365, 1411, 1690, 1713),  # too large, too many, wrong value, out of range
    *(1526, 1591, 1748, 1863),  # no table partition for the row, or not the named one
    *(1977, 3854),  # text that the character set of the column that it is compared with does not have
    *(1644, 3140, 3141, 4038),  # SIGNAL in a trigger; invalid JSON
    *(3751, 3752, 3903, 3904, 3905, 3906, 3907, 3908),  # value unfit for an index on an expression, or too many values
}
_MIXED, _CONSTANT = {1267, 1270}, ",COERCIBLE)"  # how MariaDB reports the same
_NOT_YET, _CAST = 1235, "CAST-ing JSON"  # "not supported yet": a JSON object in a multi-valued index

_NO_TEMPORARY_TABLES = (
    "the handler used a temporary table, which MySQL refuses in the XA transactions that keep data and position "
    "together; nothing was committed. Use an ordinary table, or pass the rows in the statement (JSON_TABLE); or have "
    "an administrator run SET PERSIST xa_detach_on_prepare = OFF, which is safe here, because Tidegate never prepares"
)

_XID = "tidegate_xid"
_FOUND = "tidegate_found"
_GUARD = "tidegate_guard"


def _layout(collation: str) -> SchemaLayout:
    from sqlalchemy.dialects import mysql  # noqa: PLC0415 - slow, and other databases do without it

    table = {
        f"{name}_{option}": value
        for name in ("mysql", "mariadb")
        for option, value in {"engine": "InnoDB", "default_charset": "utf8mb4"}.items()
    }
    return SchemaLayout(
        collation,
        # Positions are numbered, because an UPDATE with a join first collects primary keys: on disk, if those are long.
        numbered_positions=True,
        time=mysql.DATETIME(fsp=6),
        blob=mysql.LONGBLOB(),
        long_text=mysql.LONGTEXT(collation=collation),
        options=lambda _: table,
    )


class MySqlDialect(Dialect):
    """The dialect for MySQL and MariaDB: transactions are XA transactions of one branch, committed in one phase.

    Inside an XA transaction, the server refuses COMMIT, ROLLBACK and every statement that commits implicitly, such as
    DDL. One that a deadlock has rolled back can only be rolled back by the client as well. They are never prepared, so
    they end with their connection.
    """

    driver = "pymysql"
    extra = "mysql"
    transactional_engine = "InnoDB"
    advance = ADVANCE
    now = "UTC_TIMESTAMP(6)"

    def __init__(self, engine: Engine, limits: Limits, *, owned: bool) -> None:
        super().__init__(engine, limits, owned=owned)
        mariadb = getattr(engine.dialect, "is_mariadb", False)
        self.skip_locked = " LOCK IN SHARE MODE SKIP LOCKED"
        if not mariadb:  # MariaDB has no OF clause; MySQL needs it, because it cannot lock the rows of a JSON_TABLE
            self.locking = " FOR UPDATE OF p"
            self.skip_locked = " FOR SHARE OF p SKIP LOCKED"
        self.layout = _layout("utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin")
        hold = math.ceil(limits.hold) or 1
        self._settings = {
            "innodb_lock_wait_timeout": max(math.ceil(limits.lock_wait), hold + 1),
            "net_read_timeout": hold,
            "idle_transaction_timeout" if mariadb else "wait_timeout": hold,
        }

    def rows(self, columns: Mapping[str, str]) -> str:
        """Return the rows as a JSON_TABLE ``v``."""
        string = f"VARCHAR({{}}) CHARACTER SET utf8mb4 COLLATE {self.layout.collation}"
        kinds = {"text": string.format(255), "note": string.format(NOTE_LENGTH), "int": "INT", "bigint": "BIGINT"}
        typed = (f"{column} {kinds[kind]} PATH '$[{index}]'" for index, (column, kind) in enumerate(columns.items()))
        return f"JSON_TABLE(:rows, '$[*]' COLUMNS ({', '.join(typed)})) AS v"

    def packed(self, columns: list[str]) -> str:
        """Select each row as one JSON value, because PyMySQL is slow at reading many values."""
        return f"JSON_ARRAY({', '.join(columns)})"

    def unpacked(self, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the values of rows that were selected with :meth:`packed`."""
        values: list[list[Any]] = json.loads(f"[{','.join(row[0] for row in rows)}]")
        return values

    def join(self, rows: str, table: str, on: str) -> str:
        """Join row by row through the unique key, so that no other rows are locked."""
        return f"{rows} STRAIGHT_JOIN {table} AS p FORCE INDEX ({BY_PARTITION}) ON {on}"

    def update(self, table: str, rows: str, assignments: Mapping[str, str], on: str) -> str:
        """Return an UPDATE with a join, which is how MySQL updates from rows."""
        return f"UPDATE {self.join(rows, table, on)} SET {self.assigned(assignments)}"

    def assigned(self, assignments: Mapping[str, str]) -> str:
        """Return the assignments of an UPDATE with a join."""
        return ", ".join(f"p.{column} = {value}" for column, value in assignments.items())

    def before(self, seconds: int) -> str:
        """Return SQL for the time so many seconds ago."""
        return f"{self.now} - INTERVAL {seconds} SECOND"

    def room(self, conn: Connection) -> int | None:
        """Return the server's ``max_allowed_packet``."""
        guard: _Guard = conn.info[_GUARD]
        return guard.packet

    def without_transactions(self, conn: Connection, names: Sequence[str]) -> dict[str, str]:
        """Return the given tables whose storage engine has no transactions, each with its engine."""
        return without_transactions(conn, names)

    @staticmethod
    def advice(url: URL, error: BaseException) -> str:
        """Return what to do; some logins need a package, whose absence PyMySQL reports as a RuntimeError."""
        if isinstance(error, RuntimeError) and "cryptography" in str(error):
            return (
                "The server asks for the password over a connection without TLS; use TLS, or pip install 'pymysql[rsa]'"
            )
        return Dialect.advice(url, error)

    @staticmethod
    def completed(url: URL) -> URL:
        """Return the URL with LOAD DATA LOCAL allowed, by which sinks send rows from memory.

        The server still cannot read local files: PyMySQL refuses such requests unless local_infile is set as well.
        """
        flags = url.query.get("client_flag", "0")
        given = int(flags) if isinstance(flags, str) and flags.isdigit() else 0
        return url.update_query_dict({"client_flag": str(given | _LOCAL_FILES)})

    @staticmethod
    def engine_options(limits: Limits) -> dict[str, Any]:
        """Return arguments with an isolation level that takes fewer locks than the default.

        Without gap locks, claims of different partitions do not block each other.
        """
        return {"pool_timeout": limits.lock_wait, "isolation_level": "READ COMMITTED"}

    @staticmethod
    def is_logged_in(error: BaseException) -> bool:
        """Return whether a connection failed after the login, for instance at its ``init_command``."""
        code = _code(error)
        return code is not None and code not in _NO_LOGIN and code not in _GONE and code not in _OF_CLIENT

    def unfit_session(self, conn: Connection) -> str | None:
        """Return the setting of the session with which the ledger's statements go wrong, and what to do."""
        return unfit_session(conn)

    def begin_snapshot(self, conn: Connection) -> None:
        """Begin a read-only transaction with a consistent snapshot."""
        conn.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def greet(self, conn: Connection) -> None:
        """Install the guard on the connection."""
        if _GUARD not in conn.info:
            conn.info[_GUARD] = _Guard(conn.connection.dbapi_connection)

    def begin(self, conn: Connection) -> None:
        """Set the session's timeouts if necessary, and start an XA transaction."""
        conn.begin()
        guard: _Guard = conn.info[_GUARD]
        if _FOUND not in conn.info:
            variables = ", ".join(f"@@SESSION.{name}" for name in (*self._settings, "max_allowed_packet"))
            *found, guard.packet = conn.exec_driver_sql(f"SELECT {variables}").one()
            self._set(conn, self._settings)
            conn.info[_FOUND] = dict(zip(self._settings, found, strict=True))
            conn.info[_XID] = f"'tidegate-{secrets.token_hex(12)}'"
            conn.connection.rollback()  # XA cannot start inside the transaction that the SELECT may have begun
        conn.exec_driver_sql(f"XA START {conn.info[_XID]}")
        guard.is_changed = False

    def tidy(self, conn: Connection) -> None:
        """Return to the ledger's database, if the handler may have left it."""
        guard: _Guard = conn.info[_GUARD]
        if guard.is_changed and guard.database:
            conn.exec_driver_sql(f"USE {self.engine.dialect.identifier_preparer.quote_identifier(guard.database)}")

    def intact(self, conn: Connection) -> bool:
        """End the XA transaction; this fails if it was rolled back or is another transaction."""
        conn.exec_driver_sql(f"XA END {conn.info[_XID]}")
        return True

    def commit(self, conn: Connection) -> None:
        """Commit the XA transaction in one phase."""
        conn.exec_driver_sql(f"XA COMMIT {conn.info[_XID]} ONE PHASE")

    def rollback(self, conn: Connection) -> None:
        """Roll the XA transaction back; it has to be ended first, unless that was done."""
        with suppress(DBAPIError):
            conn.exec_driver_sql(f"XA END {conn.info[_XID]}")
        conn.exec_driver_sql(f"XA ROLLBACK {conn.info[_XID]}")

    def restore(self, conn: Connection) -> None:
        """Restore a user's connection, or drop one whose session the handler has changed."""
        guard: _Guard = conn.info[_GUARD]
        if guard.is_changed:  # the former settings are not known
            conn.invalidate()
        elif not self.owned:
            self._set(conn, conn.info.pop(_FOUND))
            guard.leave()
            del conn.info[_GUARD]

    def is_closed(self, conn: Connection) -> bool:
        """Return whether PyMySQL has closed the connection."""
        return not getattr(conn.connection.dbapi_connection, "open", True)

    @contextmanager
    def one_creator(self, conn: Connection, name: str) -> Iterator[None]:
        """Hold a named lock so that only one process at a time creates tables; commit at the end."""
        conn.execute(_CREATE_LOCK, {"name": name, "wait": math.ceil(self.limits.lock_wait)})
        try:
            yield
            conn.commit()
        finally:
            if not conn.invalidated:  # otherwise the lock ended with the connection
                conn.execute(_CREATE_UNLOCK, {"name": name})

    def trouble(self, error: BaseException) -> Retriable | None:
        """Return the :class:`Retriable` that an error stands for; ``None`` if a retry does not help."""
        code = _code(error)
        if code in _CONFLICT or (code == _XA_STATE and "ROLLBACK ONLY" in _message(error)):
            return Conflict(_message(error))
        if code == _LOCK_WAIT:
            return LockWaitOver(f"the rows' locks were not free within {self._settings['innodb_lock_wait_timeout']} s")
        if code in _GONE:
            return ConnectionLost(_message(error))
        return NoWrites(_message(error)) if self._takes_no_writes(code, _message(error)) else None

    def is_duplicate(self, error: BaseException) -> bool:
        """Return whether an inserted row existed already."""
        return _code(error) == _DUPLICATE

    def meddled(self, error: BaseException) -> bool:
        """Return whether an error means that the handler tried to end the transaction."""
        return _code(error) == _XA_STATE

    def forbidden(self, error: BaseException) -> str | None:
        """Explain a refused temporary table, which MySQL forbids in XA transactions."""
        return _NO_TEMPORARY_TABLES if _code(error) == _TEMPORARY else None

    @staticmethod
    def blame(error: Any, *, about_values: bool) -> Blame | None:
        """Judge by the error's number, and then by its state: PyMySQL gives HY000 for a violated CHECK."""
        number = error.args[0] if error.args else None
        if not isinstance(number, int):
            return None
        state = str(getattr(error, "sqlstate", None) or "")
        return Blame.of(
            never=number in _NEVER_ABOUT_VALUES or number in _OF_CLIENT,
            values=about_values
            or number in _VALUES
            or state.startswith(_VALUE_STATES)
            or (number == _NOT_YET and _CAST in str(error))
            or (number in _MIXED and _CONSTANT in str(error)),
        )

    def refusal(self, error: BaseException) -> type[LedgerError] | None:
        """Return the public error for a missing privilege or a missing table; ``None`` for other errors."""
        code = _code(error)
        if code in _DENIED:
            return LedgerDenied
        return SchemaError if code == _NO_TABLE else None

    @staticmethod
    def _takes_no_writes(code: int | None, message: str) -> bool:
        if code == _OPTION:
            return re.search("read.only", message) is not None
        return code in _READ_ONLY or code in _FULL or (code in _ERRNO and _NO_SPACE.search(message) is not None)

    @staticmethod
    def _set(conn: Connection, settings: Mapping[str, Any]) -> None:
        conn.exec_driver_sql("SET SESSION " + ", ".join(f"{name} = {int(value)}" for name, value in settings.items()))


class _Guard:
    """Inspects every statement of a connection before it is sent to the server.

    It refuses a statement that is larger than the server accepts: the server would close the connection, which looks
    like an outage. It also notes whether a handler switched the session to another database or changed its settings,
    because such a session must not be reused as it is.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._send = driver._execute_command
        self.database: str = (driver.db or b"").decode()
        self.packet: int | None = None
        self.is_changed = False
        driver._execute_command = self._checked

    def _checked(self, command: int, sql: str | bytes | bytearray) -> Any:
        if self.packet is not None and len(sql) + 1 >= self.packet:  # one byte for the command
            raise self._driver.OperationalError(
                _TOO_LARGE,
                f"a statement of {len(sql)} bytes does not fit into a packet of the server, whose max_allowed_packet "
                f"is {self.packet}; write less in one statement, or raise it",
            )
        if command == _INIT_DB or _CHANGES.match(sql[:40].encode() if isinstance(sql, str) else sql):
            self.is_changed = True
        return self._send(command, sql)

    def leave(self) -> None:
        """Remove the guard from the connection."""
        del self._driver._execute_command


_INIT_DB = 2  # the number of the command in MySQL's protocol
_TOO_LARGE = 1153
# SET of a user variable (@x) does not affect others, and the code in tables/ restores the time zone itself.
_CHANGES = re.compile(rb"\s*(?:USE\b|SET\s+(?!@[^@]|SESSION time_zone\b))", re.IGNORECASE)

_CREATE_LOCK = text("SELECT GET_LOCK(:name, :wait)")
_CREATE_UNLOCK = text("SELECT RELEASE_LOCK(:name)")


def _code(error: BaseException | None) -> int | None:
    """Return the server's or client's error number; ``None`` if it is not an error of the driver."""
    if error is None or type(error).__module__.partition(".")[0] != "pymysql":
        return None
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else None


def _message(error: BaseException) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)
