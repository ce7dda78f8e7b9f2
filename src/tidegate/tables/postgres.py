"""PostgreSQL: COPY for new rows, one INSERT from arrays for the rows of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection

from tidegate.tables.checks import has_byte
from tidegate.tables.column import Column
from tidegate.tables.lines import escaped, hexadecimal, joined, moments
from tidegate.tables.naming import Names
from tidegate.tables.types import TypeName
from tidegate.tables.upserting import postgres_conflict
from tidegate.tables.writer import Writer, driver_errors

__all__ = ["PostgresWriter"]

_NAMES = Names('"')
_BOUND = Names('"', bound=True)

# Without lengths and scales: a cast to varchar(5) cuts what an assignment to it refuses.
_ARRAYS = {
    TypeName.BOOLEAN: "boolean",
    TypeName.INTEGER: "bigint",
    TypeName.DOUBLE: "double precision",
    TypeName.DECIMAL: "numeric",
    TypeName.BYTES: "bytea",
    TypeName.DATE: "date",
}
_TEXTS = ("text", "varchar", "char")


class PostgresWriter(Writer):
    """COPY needs psycopg; with another driver new rows go in as those of keys do."""

    def _append(self, conn: Connection, batch: Any) -> None:
        driver: Any = conn.connection.dbapi_connection
        if driver is None or type(driver).__module__.partition(".")[0] != "psycopg":
            self._insert(conn, batch, "")
            return
        columns = _NAMES.listed(batch.schema.names)
        statement = f"COPY {_NAMES.table(self.layout.table)} ({columns}) FROM STDIN (ENCODING 'UTF8')"
        lines = joined([_field(array, column) for column, array in self._columns(batch)])
        with driver_errors(conn, statement), driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(lines)

    def _merge(self, conn: Connection, batch: Any) -> None:
        self._insert(conn, batch, postgres_conflict(self.layout, batch.schema.names))

    def _insert(self, conn: Connection, batch: Any, conflict: str) -> None:
        names = batch.schema.names
        selected = ", ".join(f"{_BOUND.quote(name)}{self._cast(name)}" for name in names)
        conn.exec_driver_sql(
            f"INSERT INTO {_BOUND.table(self.layout.table)} AS t ({_BOUND.listed(names)}) "
            f"SELECT {selected} FROM {self._unnested(names)}{conflict}",
            self._arrays(batch),
        )

    def _delete(self, conn: Connection, keys: Any) -> None:
        names = keys.schema.names
        same = " AND ".join(f"t.{_BOUND.quote(name)} = v.{_BOUND.quote(name)}{self._cast(name)}" for name in names)
        conn.exec_driver_sql(
            f"DELETE FROM {_BOUND.table(self.layout.table)} AS t USING {self._unnested(names)} WHERE {same}",
            self._arrays(keys),
        )

    def _unnested(self, names: Sequence[str]) -> str:
        arrays = ", ".join(f"%s::{self._element(self.layout.by_name[name])}[]" for name in names)
        return f"unnest({arrays}) AS v ({_BOUND.listed(names)})"

    def _element(self, column: Column) -> str:
        if column.type.name is TypeName.TIMESTAMP:
            return "timestamptz" if column.has_zone else "timestamp"
        return _ARRAYS.get(column.type.name, "text")

    def _cast(self, name: str) -> str:
        """From text to what no assignment makes of it: uuid, json, an enum, any type that is read as text."""
        column = self.layout.by_name[name]
        needed = self._element(column) == "text" and column.sql_type not in _TEXTS
        return f"::{column.sql_type.replace('%', '%%')}" if needed else ""

    def _arrays(self, batch: Any) -> tuple[str, ...]:
        return tuple(_literal(_text(array, column)) for column, array in self._columns(batch))


def _field(array: Any, column: Column) -> Any:
    texts = _text(array, column)
    return escaped(texts) if column.type.name in (TypeName.TEXT, TypeName.JSON, TypeName.BYTES) else texts


def _text(array: Any, column: Column) -> Any:
    match column.type.name:
        case TypeName.BYTES:
            return hexadecimal(array, "\\x")
        case TypeName.TIMESTAMP:
            return moments(array, "+00" if column.has_zone else "")
    return array.cast(pa.string())


def _literal(texts: Any) -> str:
    """An array as PostgreSQL writes it: elements in quotes, so that the word NULL is one if it stands without."""
    for plain, escape in (("\\", "\\\\"), ('"', '\\"')):
        if has_byte(texts, plain.encode()):
            texts = pc.replace_substring(texts, plain, escape)
    elements = pc.binary_join_element_wise('"', texts, '"', "").to_pylist()
    return "{" + ",".join("NULL" if element is None else element for element in elements) + "}"
