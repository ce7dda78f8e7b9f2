"""Columns of SQLite, which declares types and holds to none of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect

from tidegate.tables.column import Column
from tidegate.tables.naming import Names
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["SQLiteSchema"]

_DECLARED = re.compile(r"([^(]*)(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?.*")
_EXACT_DIGITS = 15  # what a number keeps that SQLite stores as a float
_GENERATED = (2, 3)
_TIMES = {"DATETIME": False, "TIMESTAMP": False, "TIMESTAMPTZ": True, "TIMESTAMP WITH TIME ZONE": True}


class SQLiteSchema:
    """New decimals of up to 15 digits are numbers to SQLite; longer ones are text, which keeps every digit."""

    names = Names('"')

    def columns(self, conn: Connection, table: Table) -> Sequence[Column]:
        """See :meth:`Schema.columns`."""
        schema = f"{self.names.quote(table.schema)}." if table.schema else ""
        rows = conn.exec_driver_sql(f"PRAGMA {schema}table_xinfo({self.names.quote(table.name)})").all()
        keys = [row for row in rows if row[5]]
        return [_column(row, is_row_id=row[5] and len(keys) == 1 and row[2].upper() == "INTEGER") for row in rows]

    def written(self, kind: ColumnType, dialect: Dialect, *, in_key: bool) -> str:
        """See :meth:`Schema.written`."""
        if kind.name is TypeName.DECIMAL:
            bounds = f"({kind.precision},{kind.scale})" if kind.precision else ""
            exact = kind.precision is not None and kind.precision <= _EXACT_DIGITS
            return ("DECIMAL" if exact else "DECIMAL_TEXT") + bounds
        return _WRITTEN[kind.name]

    def check(self, conn: Connection, table: Table) -> None:
        """See :meth:`Schema.check`."""


def _column(row: Any, *, is_row_id: bool) -> Column:
    _, name, declared, not_null, default, _, hidden = row
    return Column(
        name,
        sql_type=declared,
        nullable=not not_null and not is_row_id,
        has_default=default is not None or bool(is_row_id),
        generated=hidden in _GENERATED,
        **_facts(declared.upper().strip()),
    )


def _facts(declared: str) -> Mapping[str, Any]:
    """By the name if it is one of ours, otherwise by the affinity, which is what SQLite goes by."""
    match = _DECLARED.fullmatch(declared)
    name, first, second = (match[1].strip(), match[2], match[3]) if match else (declared, None, None)
    if name in ("BOOLEAN", "BOOL"):
        return {"type": ColumnType(TypeName.BOOLEAN)}
    if name in _TIMES:
        return {"type": ColumnType(TypeName.TIMESTAMP), "has_zone": _TIMES[name]}
    if name == "DATE":
        return {"type": ColumnType(TypeName.DATE)}
    if name in ("JSON", "JSON_TEXT"):
        return {"type": ColumnType(TypeName.JSON)}
    if name == "DECIMAL_TEXT":
        return {"type": _decimal(first, second)}
    if "INT" in name:
        return {"type": ColumnType(TypeName.INTEGER)}
    if any(word in name for word in ("CHAR", "CLOB", "TEXT")):
        length = int(first) if first is not None and "CHAR" in name else None
        return {"type": ColumnType(TypeName.TEXT), "length": length}
    if "BLOB" in name or not name:
        return {"type": ColumnType(TypeName.BYTES if name else TypeName.TEXT)}
    if any(word in name for word in ("REAL", "FLOA", "DOUB")):
        return {"type": ColumnType(TypeName.DOUBLE), "takes_nan": False}
    kind = _decimal(first, second)
    return {"type": kind, "digits": None if (kind.precision or 99) <= _EXACT_DIGITS else _EXACT_DIGITS}


def _decimal(first: str | None, second: str | None) -> ColumnType:
    if first is None or int(first) < 1 or int(second or 0) > int(first):
        return ColumnType(TypeName.DECIMAL)
    return ColumnType.decimal(int(first), int(second or 0))


_WRITTEN = {
    TypeName.BOOLEAN: "BOOLEAN",
    TypeName.INTEGER: "BIGINT",
    TypeName.DOUBLE: "DOUBLE",
    TypeName.TEXT: "TEXT",
    TypeName.BYTES: "BLOB",
    TypeName.DATE: "DATE",
    TypeName.TIMESTAMP: "TIMESTAMPTZ",
    TypeName.JSON: "JSON_TEXT",
}
