"""SQLite: it stores anything anywhere, so what goes in has been checked before."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from decimal import Context, Decimal
from itertools import chain, islice
from typing import Any

from sqlalchemy import Connection

from tidegate.core.errors import ConfigurationError
from tidegate.tables.column import Column
from tidegate.tables.misfit import DoesNotFit
from tidegate.tables.naming import Names
from tidegate.tables.types import TypeName
from tidegate.tables.writer import Writer, driver_errors, parameters_of

__all__ = ["SQLiteWriter"]

_NAMES = Names('"')
_EXACT = Context(prec=200_000)
_ROWS = 500


class SQLiteWriter(Writer):
    """Prepared statements of many rows, which take little more than half the time of one row each."""

    def _append(self, conn: Connection, batch: Any) -> None:
        self._insert(conn, batch, "")

    def _merge(self, conn: Connection, batch: Any) -> None:
        unfit: list[str] = []
        changes = [
            f"{_NAMES.quote(name)} = {self._sum(conn, name, number, unfit)}"
            if name in self.layout.added
            else f"{_NAMES.quote(name)} = excluded.{_NAMES.quote(name)}"
            for number, name in enumerate(self._others(batch))
        ]
        action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        self._insert(conn, batch, f" ON CONFLICT ({_NAMES.listed(self.layout.table.key)}) DO {action}")
        if unfit:
            raise DoesNotFit(f"column {unfit[0]!r}: the sum of a key's row and its records does not fit the column")

    def _delete(self, conn: Connection, keys: Any) -> None:
        same = " AND ".join(f"{_NAMES.quote(name)} = ?" for name in keys.schema.names)
        statement = f"DELETE FROM {_NAMES.table(self.layout.table)} WHERE {same}"
        with driver_errors(conn, statement):
            _driver(conn).executemany(statement, zip(*self._parameters(keys), strict=True))

    def _insert(self, conn: Connection, batch: Any, conflict: str) -> None:
        driver, names = _driver(conn), batch.schema.names
        start = f"INSERT INTO {_NAMES.table(self.layout.table)} ({_NAMES.listed(names)}) VALUES "
        row = f"({', '.join('?' * len(names))})"
        most = min(_ROWS, driver.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // len(names))
        values = chain.from_iterable(zip(*self._parameters(batch), strict=True))
        with driver_errors(conn, start):
            for first in range(0, batch.num_rows, most):
                count = min(most, batch.num_rows - first)
                driver.execute(start + ", ".join([row] * count) + conflict, tuple(islice(values, count * len(names))))

    def _parameters(self, batch: Any) -> list[list[Any]]:
        return [
            parameters_of(array, column, zone="+00:00" if column.has_zone else "")
            for column, array in self._columns(batch)
        ]

    def _sum(self, conn: Connection, name: str, number: int, unfit: list[str]) -> str:
        """The expression that adds; SQLite itself would turn numbers that are large or have a fraction into floats."""
        column, quoted = self.layout.by_name[name], _NAMES.quote(name)
        old = f"{_NAMES.quote(self.layout.table.name)}.{quoted}"
        if column.type.name is TypeName.DOUBLE:
            return f"COALESCE({old} + excluded.{quoted}, {old}, excluded.{quoted})"
        _driver(conn).create_function(f"exact_sum_{number}", 2, _adder(column, unfit), deterministic=True)
        return f"exact_sum_{number}({old}, excluded.{quoted})"


def _driver(conn: Connection) -> sqlite3.Connection:
    driver = conn.connection.dbapi_connection
    if not isinstance(driver, sqlite3.Connection):
        raise ConfigurationError(f"tables on SQLite need Python's own driver, not {type(driver).__name__}")
    return driver


def _adder(column: Column, unfit: list[str]) -> Callable[[Any, Any], Any]:
    """Adds exactly; what does not fit is noted, for an error inside of SQLite would not say what it is."""

    def add(old: Any, new: Any) -> Any:
        if old is None or new is None:
            return new if old is None else old
        total = _EXACT.add(Decimal(str(old)), Decimal(str(new)))
        if not _fits(total, column):
            unfit.append(column.name)
            return None
        return int(total) if column.type.name is TypeName.INTEGER else f"{total:f}"

    return add


def _fits(total: Decimal, column: Column) -> bool:
    if column.type.name is TypeName.INTEGER:
        return column.low <= total <= column.high
    digits = "".join(map(str, total.as_tuple().digits)).strip("0")
    if column.digits is not None and len(digits) > column.digits:
        return False
    precision, scale = column.type.precision, column.type.scale or 0
    return precision is None or total.is_zero() or total.adjusted() < precision - scale
