"""MySQL and MariaDB: LOAD DATA LOCAL for new rows where it is allowed, INSERT with many rows otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tidegate.tables.column import Column
from tidegate.tables.lines import escaped, hexadecimal, joined, moments
from tidegate.tables.load_data import Loaded, can_load, load
from tidegate.tables.misfit import DoesNotFit
from tidegate.tables.naming import Names
from tidegate.tables.rows import Rows
from tidegate.tables.types import TypeName
from tidegate.tables.upserting import mysql_conflict
from tidegate.tables.writer import Writer, parameters_of

__all__ = ["MySQLWriter"]

_NAMES = Names("`")
_BOUND = Names("`", bound=True)
_LOAD_IS_OFF = {1148, 3948, 3950, 4166}  # not allowed, switched off: in words of MySQL and MariaDB, old and new
_ROWS, _BYTES = 1000, 1 << 20
_REFUSED = "tidegate_load_refused"


class MySQLWriter(Writer):
    """LOAD DATA LOCAL turns errors into warnings, in strict mode too. So it counts only if every row was stored without
    a warning; otherwise it is undone, and INSERT says what is wrong.
    """

    def write(self, conn: Connection, rows: Rows) -> None:
        """See :meth:`Writer.write`."""
        with self._in_utc(conn):
            super().write(conn, rows)

    @contextmanager
    def _in_utc(self, conn: Connection) -> Iterator[None]:
        """TIMESTAMP columns are read in the session's zone."""
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
            except SQLAlchemyError:  # after a deadlock, for instance; nobody else may get this session
                conn.invalidate()

    def _append(self, conn: Connection, batch: Any) -> None:
        if not can_load(conn) or _REFUSED in conn.info:
            self._insert(conn, batch, "")
            return
        savepoint = conn.begin_nested()
        try:
            loaded = self._load(conn, batch)
        except DBAPIError as error:
            with suppress(SQLAlchemyError):  # a deadlock has taken the savepoint with it, and is what has to be told
                savepoint.rollback()
            if not _LOAD_IS_OFF.intersection(getattr(error.orig, "args", ())[:1]):
                raise
            conn.info[_REFUSED] = True
            self._insert(conn, batch, "")
            return
        if loaded == Loaded(batch.num_rows, 0):
            savepoint.commit()
        else:
            savepoint.rollback()
            self._insert(conn, batch, "")

    def _load(self, conn: Connection, batch: Any) -> Loaded:
        names = batch.schema.names
        binary = [name for name in names if self.layout.by_name[name].type.name is TypeName.BYTES]
        variables = {name: f"@tidegate_{number}" for number, name in enumerate(binary)}
        targets = ", ".join(variables.get(name) or _NAMES.quote(name) for name in names)
        read = ", ".join(f"{_NAMES.quote(name)} = UNHEX({variable})" for name, variable in variables.items())
        statement = (
            f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {_NAMES.table(self.layout.table)} CHARACTER SET utf8mb4 "
            f"FIELDS TERMINATED BY 0x09 ESCAPED BY 0x5C LINES TERMINATED BY 0x0A ({targets})"
            + (f" SET {read}" if read else "")
        )
        return load(conn, statement, joined([_field(array, column) for column, array in self._columns(batch)]))

    def _merge(self, conn: Connection, batch: Any) -> None:
        self._insert(conn, batch, mysql_conflict(self.layout, batch.schema.names))

    def _insert(self, conn: Connection, batch: Any, conflict: str) -> None:
        names = batch.schema.names
        start = f"INSERT INTO {_BOUND.table(self.layout.table)} ({_BOUND.listed(names)}) VALUES "
        one = f"({', '.join(['%s'] * len(names))})"
        for chunk in _chunks(batch):
            statement = start + ", ".join([one] * chunk.num_rows) + conflict
            done = conn.exec_driver_sql(statement, self._parameters(chunk))
            # Even a strict server rounds decimals with no more than a note; a conflict clause makes notes of its own.
            if not conflict and getattr(done.context.cursor, "warning_count", None):
                raise DoesNotFit(
                    f"table {self.layout.table}: the server would have changed a value. If the table was altered, "
                    "start again: that is when it is looked at"
                )

    def _delete(self, conn: Connection, keys: Any) -> None:
        names = keys.schema.names
        one = f"({', '.join(['%s'] * len(names))})"
        for chunk in _chunks(keys):
            conn.exec_driver_sql(
                f"DELETE FROM {_BOUND.table(self.layout.table)} WHERE ({_BOUND.listed(names)}) "
                f"IN ({', '.join([one] * chunk.num_rows)})",
                self._parameters(chunk),
            )

    def _parameters(self, batch: Any) -> tuple[Any, ...]:
        columns = [parameters_of(array, column) for column, array in self._columns(batch)]
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


def _chunks(batch: Any) -> Iterator[Any]:
    """Parts that fit into a packet of the protocol."""
    if batch.num_rows > 1 and (batch.num_rows > _ROWS or batch.nbytes > _BYTES):
        half = batch.num_rows // 2
        yield from _chunks(batch.slice(0, half))
        yield from _chunks(batch.slice(half))
    else:
        yield batch
