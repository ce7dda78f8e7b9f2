"""Writing to MySQL and MariaDB: by LOAD DATA LOCAL, or by INSERT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tidegate.tables.column import Column
from tidegate.tables.layout import Layout, Order
from tidegate.tables.mysql.columns import TEXTS, is_neutral
from tidegate.tables.names import Names
from tidegate.tables.plan import Plan, PlanStep
from tidegate.tables.rows import DoesNotFit, Rows
from tidegate.tables.statements import changed_columns, escaped, hexadecimal, joined, moments
from tidegate.tables.table import Mode
from tidegate.tables.types import TypeName
from tidegate.tables.writer import Ask, Writer, driver_errors, parameters_of

__all__ = ["Loaded", "MySQLWriter", "can_load", "conflict_clause", "load"]


_LOCAL_FILES = 128  # the protocol's capability flag CLIENT_LOCAL_FILES
_QUERY = 3  # the protocol's command COM_QUERY
_PACKET_BYTES = 1 << 18


class Loaded(NamedTuple):
    """The server's answer to a load: the rows stored, and the warnings; each warning may be a value that it changed."""

    rows: int
    warnings: int


def can_load(conn: Connection) -> bool:
    """Whether this connection can run LOAD DATA LOCAL: the driver is PyMySQL, with local files switched on."""
    driver = conn.connection.dbapi_connection
    return type(driver).__module__.partition(".")[0] == "pymysql" and bool(
        getattr(driver, "client_flag", 0) & _LOCAL_FILES
    )


def load(conn: Connection, statement: str, lines: memoryview, most: int = _PACKET_BYTES) -> Loaded:
    """Run a LOAD DATA LOCAL statement and send it the lines, in packets of at most ``most`` bytes.

    The file name in the statement is a dummy: no file is read.
    """
    from pymysql.protocol import OKPacketWrapper  # noqa: PLC0415 - pymysql is an extra

    driver: Any = conn.connection.dbapi_connection
    with driver_errors(conn, statement):
        driver._execute_command(_QUERY, statement)
        request = driver._read_packet()
        if not request.is_load_local_packet():
            raise driver.InternalError("the server did not ask for the rows of LOAD DATA LOCAL")
        try:
            size = min(_PACKET_BYTES, most)
            for start in range(0, len(lines), size):
                driver.write_packet(bytes(lines[start : start + size]))
            driver.write_packet(b"")
            packet = driver._read_packet()
        except driver.Error:
            raise
        except BaseException:  # an interrupt leaves the protocol in an undefined state
            driver._force_close()
            raise
        answer = OKPacketWrapper(packet)
    return Loaded(answer.affected_rows, answer.warning_count)


_BOUND = Names("`", bound=True)
_NAMES = Names("`")
_LOAD_IS_OFF = {1148, 3948, 3950, 4166}  # LOAD DATA LOCAL is disabled: error codes of MySQL and MariaDB, old and new
_ROWS, _BYTES = 1000, 1 << 20
_REFUSED = "tidegate_load_refused"
_PACKET = "tidegate_packet"
_OF_A_VALUE = 24  # bytes of overhead per value in a statement, beyond twice its own bytes (they may be escaped)


class MySQLWriter(Writer):
    """Writes rows to MySQL and MariaDB, by LOAD DATA LOCAL where possible.

    LOAD DATA LOCAL turns errors into warnings, even in strict mode. So a load is kept only if every row was stored
    without a warning. Otherwise it is rolled back, and INSERT raises the actual error.
    """

    names = _BOUND
    for_share = " LOCK IN SHARE MODE"
    nested = 30  # MariaDB accepts 32 levels, MySQL 100

    def _plan(self, rows: Rows, ask: Ask) -> Plan:
        """Plan to write every row if some may be too large: a merge could leave that one out, and hide the error."""
        if self.layout.order is not Order.FREE:
            return super()._plan(rows, ask)
        with ask() as conn:
            packet = _packet(conn)
        if _longest(rows.batch) < packet:
            return super()._plan(rows, ask)
        return super(MySQLWriter, MySQLWriter(replace(self.layout, order=Order.KEPT)))._plan(rows, ask)

    def run(self, conn: Connection, steps: Iterable[PlanStep]) -> None:
        """Run planned steps in order."""
        with self._in_utc(conn):
            super().run(conn, steps)

    @contextmanager
    def _in_utc(self, conn: Connection) -> Iterator[None]:
        """Set the session's time zone to UTC during the write: the server reads TIMESTAMP values in that zone."""
        if not any(column.sql_type.startswith("timestamp") for column in self.layout.columns):
            yield
            return
        found = conn.exec_driver_sql("SELECT @@SESSION.time_zone").scalar_one()
        conn.exec_driver_sql("SET SESSION time_zone = '+00:00'")
        try:
            yield
        finally:
            try:
                conn.exec_driver_sql("SET SESSION time_zone = %s", (found,))
            except SQLAlchemyError:  # for instance after a deadlock; the session must not return to the pool
                conn.invalidate()

    def _load(self, conn: Connection, batch: Any) -> None:
        """Load the rows, or insert them. Rows too large for INSERT are not loaded: clients could not read them back."""
        usable = can_load(conn) and _REFUSED not in conn.info and _longest(batch) < _packet(conn)
        if not (usable and not self._leaves_out(batch) and self._is_loaded(conn, batch)):
            self._insert(conn, batch, single=False)

    def _leaves_out(self, batch: Any) -> bool:
        """Whether some row has no value for a NOT NULL column.

        If the table has a trigger that might set the value but does not, LOAD DATA stores zero without a warning.
        """
        needing = (column for column in self.layout.by_name.values() if not column.nullable)
        return any(
            batch.column(each.name).null_count if each.name in batch.schema.names else not each.has_default
            for each in needing
        )

    def _is_loaded(self, conn: Connection, batch: Any) -> bool:
        """Load the batch in a savepoint; return whether every row was stored unchanged."""
        savepoint = conn.begin_nested()
        try:
            loaded = self._loaded(conn, batch)
        except DBAPIError as error:
            with suppress(SQLAlchemyError):  # after a deadlock the savepoint is gone; raise the deadlock
                savepoint.rollback()
            if not _LOAD_IS_OFF.intersection(getattr(error.orig, "args", ())[:1]):
                raise
            conn.info[_REFUSED] = True
            return False
        if loaded == Loaded(batch.num_rows, 0):
            savepoint.commit()
            return True
        savepoint.rollback()
        return False

    def _loaded(self, conn: Connection, batch: Any) -> Loaded:
        names = batch.schema.names
        made = {name: call for name in names if (call := _read_by(self.layout.by_name[name]))}
        variables = {name: f"@tidegate_{number}" for number, name in enumerate(made)}
        targets = ", ".join(variables.get(name) or _NAMES.quote(name) for name in names)
        read = ", ".join(f"{_NAMES.quote(name)} = {made[name].format(at)}" for name, at in variables.items())
        statement = (
            f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {_NAMES.table(self.layout.table)} CHARACTER SET utf8mb4 "
            f"FIELDS TERMINATED BY 0x09 ESCAPED BY 0x5C LINES TERMINATED BY 0x0A ({targets})"
            + (f" SET {read}" if read else "")
        )
        lines = joined([_field(array, column) for column, array in self._columns(batch)])
        return load(conn, statement, lines, _packet(conn) // 2)

    def _insert(self, conn: Connection, batch: Any, *, single: bool) -> None:
        names = batch.schema.names
        start = f"INSERT INTO {self._table} ({_BOUND.listed(names)}) VALUES "
        conflict = conflict_clause(self.layout, names)
        room = _packet(conn) - len(start) - len(conflict)
        for chunk in _chunks(batch, 1 if single else _ROWS, room):
            statement = start + ", ".join([_marks(names)] * chunk.num_rows) + conflict
            # A conflict clause causes notes, so warnings cannot be checked.
            values = _flat(self._values(chunk))
            if chunk.num_rows == 1 and _size(chunk) > room:
                self._refuse_large(conn, statement, values, names)
            self._run(conn, statement, values, is_noted=bool(conflict))

    def _update(self, conn: Connection, batch: Any, *, single: bool) -> None:
        """Update one row at a time: MySQL has no statement that updates several rows in order."""
        key, others = list(self.layout.table.key), self._others(batch)
        named = [*key, *self._guard]
        changes = ", ".join(f"{_BOUND.quote(name)} = %s" for name in others)
        same = " AND ".join(f"{_BOUND.quote(name)} = %s" for name in key)
        older = "".join(f" AND ({each} IS NULL OR {each} <= %s)" for each in map(_BOUND.quote, self._guard))
        statement = f"UPDATE {self._table} SET {changes} WHERE {same}{older}"
        is_large = _size(batch) > _packet(conn) - len(statement)
        for row in zip(*self._values(batch.select(others)), *self._compared(batch.select(named)), strict=True):
            if is_large:
                self._refuse_large(conn, statement, row, [*others, *named])
            self._run(conn, statement, row)

    def _delete(self, conn: Connection, keys: Any, *, single: bool) -> None:
        for chunk in _chunks(keys, 1 if single else _ROWS, _packet(conn) // 2):
            statement = f"DELETE FROM {self._table} WHERE {self._among(chunk)}"
            self._run(conn, statement, _flat(self._compared(chunk)), is_noted=True)

    def _empty(self, conn: Connection, batch: Any) -> None:
        conn.exec_driver_sql(self._emptied(self._table, _BOUND, batch))

    def _count(self, conn: Connection, keys: Any) -> int:
        return sum(
            int(conn.exec_driver_sql(statement, _flat(self._compared(chunk))).scalar_one())
            for chunk in _chunks(keys, _ROWS, _packet(conn) // 2)
            for statement in (f"SELECT COUNT(*) FROM {self._table} WHERE {self._among(chunk)}",)
        )

    def _among(self, keys: Any) -> str:
        """Return the condition that is true for the rows that have one of these keys, and are not newer, if guarded."""
        names = keys.schema.names
        guard = self.layout.table.guard
        if guard not in names and all(self._is_plain(name) for name in names):
            return f"({_BOUND.listed(names)}) IN ({', '.join([_marks(names)] * keys.num_rows)})"
        same = " AND ".join(
            f"({quoted} IS NULL OR {quoted} <= %s)" if name == guard else f"{quoted} = %s"
            for name, quoted in ((name, _BOUND.quote(name)) for name in names)
        )
        return " OR ".join([f"({same})"] * keys.num_rows)

    def _run(self, conn: Connection, statement: str, values: tuple[Any, ...], *, is_noted: bool = False) -> None:
        """Run a statement; unless ``is_noted``, raise if it causes a warning.

        Even in strict mode, the server rounds decimals and reports it only as a note.
        """
        done = conn.exec_driver_sql(statement, values)
        if not is_noted and getattr(done.context.cursor, "warning_count", None):
            raise DoesNotFit(
                f"table {self.layout.table}: the server would have changed a value. If the table was altered, "
                "restart: tables are inspected at the start"
            )

    def _refuse_large(self, conn: Connection, statement: str, values: Sequence[Any], names: Sequence[str]) -> None:
        """Raise if a statement is too large: the server would drop the connection, which looks like an outage."""
        driver: Any = conn.connection.dbapi_connection
        size = len(driver.cursor().mogrify(statement, values).encode(driver.encoding, "surrogateescape"))
        if size + 1 >= _packet(conn):
            lengths = [len(value) if isinstance(value, str | bytes) else 0 for value in values]
            longest = names[lengths.index(max(lengths))]
            raise DoesNotFit(
                f"column {longest!r}: a row of {size} bytes, most of them in this column, does not fit into a packet "
                f"of the server, whose max_allowed_packet is {_packet(conn)}; raise that to take it"
            )

    @property
    def _table(self) -> str:
        return _BOUND.table(self.layout.table)

    def _is_plain(self, name: str) -> bool:
        """Whether IN compares the column as "=" does; it would compare a TIME as text."""
        column = self.layout.by_name[name]
        return column.type.name is not TypeName.TEXT or column.sql_type in TEXTS

    def _values(self, batch: Any) -> list[list[Any]]:
        return [parameters_of(array, column) for column, array in self._columns(batch)]

    def _compared(self, keys: Any) -> list[list[Any]]:
        """Return key values to compare; decimals as numbers, since the server compares them with text as floats."""
        return [
            [Decimal(value) for value in array.to_pylist()]
            if column.type.name is TypeName.DECIMAL
            else parameters_of(array, column)
            for column, array in self._columns(keys)
        ]

    def _folded(self, array: Any, column: Column) -> Any | None:
        """Lower-case texts and strip trailing spaces, if they are printable ASCII in a neutral collation.

        Floats and bytes stay as they are: in their stored form, the database compares them as Python does.
        """
        if column.type.name in (TypeName.DOUBLE, TypeName.BYTES):
            return array
        if not is_neutral(column.compared) or not pc.all(pc.ascii_is_printable(array)).as_py():
            return None
        return pc.ascii_lower(pc.utf8_rtrim(array, " "))

    def _as_stored(self, array: Any, column: Column) -> Any:
        """Pad BINARY with zeros, strip trailing spaces of CHAR and ENUM, and order the labels of SET.

        The server does so when it stores a value, but not when it compares one with a column.
        """
        if column.sql_type.startswith("binary") and column.size:
            values = array.to_pylist()
            return pa.array([None if each is None else each.ljust(column.size, b"\0") for each in values], array.type)
        if column.sql_type.startswith(("char", "enum")):
            return pc.utf8_rtrim(array, " ")
        if column.sql_type == "set" and column.choices is not None:
            values = array.to_pylist()
            return pa.array([None if each is None else _ordered(each, column.choices) for each in values], array.type)
        return super()._as_stored(array, column)


def conflict_clause(layout: Layout, names: Sequence[str]) -> str:
    """Return the ON DUPLICATE KEY clause of an INSERT of these columns.

    To do nothing, it sets the key to itself: INSERT IGNORE would suppress errors too.
    """
    if layout.table.kind is Mode.APPEND:
        return ""

    def own(name: str) -> str:  # qualified: the SELECT may have a column of the same name
        return f"{_BOUND.table(layout.table)}.{_BOUND.quote(name)}"

    guard = layout.table.guard

    def change(name: str) -> str:
        quoted = _BOUND.quote(name)
        if guard is not None:
            newer = f"{own(guard)} IS NULL OR {own(guard)} <= VALUES({_BOUND.quote(guard)})"
            return f"{quoted} = IF({newer}, VALUES({quoted}), {own(name)})"
        if name not in layout.added:
            return f"{quoted} = VALUES({quoted})"
        return f"{quoted} = COALESCE({own(name)} + VALUES({quoted}), {own(name)}, VALUES({quoted}))"

    first = layout.table.key[0]
    # The guard comes last: the assignments before it compare with its old value.
    changed = sorted(changed_columns(layout, names), key=lambda name: name == guard)
    changes = [change(name) for name in changed] or [f"{_BOUND.quote(first)} = {own(first)}"]
    return f" ON DUPLICATE KEY UPDATE {', '.join(changes)}"


def _ordered(value: str, labels: Sequence[str]) -> str:
    """Return a SET with its labels as they are defined, each once; unchanged if only the server knows a spelling."""
    places = {label.lower(): place for place, label in reversed(list(enumerate(labels)))}
    places |= {label: place for place, label in enumerate(labels)}
    found = {places.get(each, places.get(each.lower())) for each in value.rstrip(" ").split(",")}
    return value if None in found else ",".join(labels[place] for place in sorted(filter(None, found)))


def _marks(names: Sequence[str]) -> str:
    return f"({', '.join(['%s'] * len(names))})"


def _flat(columns: list[list[Any]]) -> tuple[Any, ...]:
    return tuple(value for row in zip(*columns, strict=True) for value in row)


def _field(array: Any, column: Column) -> Any:
    match column.type.name:
        case TypeName.BOOLEAN:
            return array.cast(pa.int8()).cast(pa.string())
        case TypeName.BYTES:
            return hexadecimal(array)
        case TypeName.TIMESTAMP:
            return moments(array)
        case TypeName.TEXT | TypeName.JSON:
            return escaped(array)
    return array.cast(pa.string())


def _packet(conn: Connection) -> int:
    """Return max_allowed_packet; it cannot change during a session, so it is cached with the connection."""
    if _PACKET not in conn.info:
        conn.info[_PACKET] = int(conn.exec_driver_sql("SELECT @@SESSION.max_allowed_packet").scalar_one())
    return int(conn.info[_PACKET])


def _read_by(column: Column) -> str | None:
    """Return the SQL expression that converts a field in LOAD DATA; ``None`` if the plain field is read correctly."""
    if column.type.name is TypeName.BYTES:
        return "UNHEX({})"
    return "CAST({} AS UNSIGNED)" if column.sql_type == "bit" else None


def _chunks(batch: Any, most: int, room: int) -> Iterator[Any]:
    """Split a batch so that each statement has at most ``most`` rows and fits a packet, or has a single row."""
    if batch.num_rows > 1 and (batch.num_rows > most or batch.nbytes > _BYTES or _size(batch) > room):
        half = batch.num_rows // 2
        yield from _chunks(batch.slice(0, half), most, room)
        yield from _chunks(batch.slice(half), most, room)
    else:
        yield batch


def _size(batch: Any) -> int:
    """Return an upper bound of the bytes that the rows take in a statement."""
    return int(2 * batch.nbytes + _OF_A_VALUE * batch.num_rows * batch.num_columns)


def _longest(batch: Any) -> int:
    """Return an upper bound of the bytes of the largest row in a statement; of all rows, if these are few bytes."""
    size = _size(batch)
    if size < _BYTES:
        return size
    others = 3 * _OF_A_VALUE * int(batch.num_columns)
    lengths = [pc.fill_null(pc.binary_length(each), 0) for each in batch.columns if _is_long(each.type)]
    longest: int = pc.max(reduce(pc.add, lengths)).as_py() if lengths else 0
    return others + 2 * longest


def _is_long(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
