"""Columns of PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, inspect
from sqlalchemy import types as sql
from sqlalchemy.dialects import postgresql as pg

from tidegate.core.errors import ConfigurationError
from tidegate.tables.column import Column
from tidegate.tables.naming import Names
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["PostgresSchema"]

_WRITTEN = {
    TypeName.BOOLEAN: "boolean",
    TypeName.INTEGER: "bigint",
    TypeName.DOUBLE: "double precision",
    TypeName.DECIMAL: "numeric",
    TypeName.TEXT: "text",
    TypeName.BYTES: "bytea",
    TypeName.DATE: "date",
    TypeName.TIMESTAMP: "timestamptz",
    TypeName.JSON: "jsonb",
}
_SINGLE = 3.4028234663852886e38


class PostgresSchema:
    """Types without one of ours are written as text, and PostgreSQL judges it."""

    names = Names('"')

    def columns(self, conn: Connection, table: Table) -> Sequence[Column]:
        """See :meth:`Schema.columns`."""
        inspector = inspect(conn)
        if not inspector.has_table(table.name, table.schema):
            return ()
        return [self._column(conn, found) for found in inspector.get_columns(table.name, table.schema)]

    def written(self, kind: ColumnType, dialect: Dialect, *, in_key: bool) -> str:
        """See :meth:`Schema.written`."""
        bounds = f"({kind.precision},{kind.scale})" if kind.precision else ""
        return _WRITTEN[kind.name] + bounds

    def check(self, conn: Connection, table: Table) -> None:
        """See :meth:`Schema.check`."""

    def _column(self, conn: Connection, found: Any) -> Column:
        kind, nullable = found["type"], found["nullable"]
        while isinstance(kind, pg.DOMAIN):
            nullable = nullable and not kind.not_null
            kind = kind.data_type
        identity = found.get("identity") or {}
        return Column(
            found["name"],
            nullable=nullable,
            has_default=found.get("default") is not None or bool(identity),
            generated=bool(found.get("computed")) or bool(identity.get("always")),
            **_facts(kind, conn),
        )


def _facts(kind: sql.TypeEngine[Any], conn: Connection) -> Mapping[str, Any]:
    """What a type says of the values that fit."""
    spelled = kind.compile(dialect=conn.engine.dialect) if not isinstance(kind, sql.NullType) else "text"
    match kind:
        case sql.Boolean():
            return {"type": ColumnType(TypeName.BOOLEAN), "sql_type": "boolean"}
        case sql.Integer():
            bits = 16 if isinstance(kind, sql.SmallInteger) else 64 if isinstance(kind, sql.BigInteger) else 32
            bounds = {"low": -(2 ** (bits - 1)), "high": 2 ** (bits - 1) - 1}
            return {"type": ColumnType(TypeName.INTEGER), "sql_type": spelled, **bounds}
        case sql.Float():
            single = isinstance(kind, sql.REAL)
            return {"type": ColumnType(TypeName.DOUBLE), "sql_type": spelled, "largest": _SINGLE if single else None}
        case sql.Numeric():
            return {"type": _decimal(kind), "sql_type": "numeric"}
        case pg.ENUM():
            return {**_TEXT, "sql_type": spelled, "choices": frozenset(kind.enums)}
        case sql.String():
            return {**_TEXT, "sql_type": "text", "length": kind.length}
        case sql.LargeBinary():
            return {"type": ColumnType(TypeName.BYTES), "sql_type": "bytea"}
        case sql.Date():
            return {"type": ColumnType(TypeName.DATE), "sql_type": "date"}
        case pg.TIMESTAMP() | sql.DateTime():
            precision = getattr(kind, "precision", None)
            return {
                "type": ColumnType(TypeName.TIMESTAMP),
                "sql_type": "timestamp",
                "has_zone": bool(kind.timezone),
                "fraction": 6 if precision is None else precision,
            }
        case sql.JSON():
            return {"type": ColumnType(TypeName.JSON), "sql_type": spelled, "takes_nul": not isinstance(kind, pg.JSONB)}
        case sql.Uuid():
            return {**_TEXT, "sql_type": "uuid", "is_uuid": True}
    return {**_TEXT, "sql_type": spelled}


def _decimal(kind: sql.Numeric[Any]) -> ColumnType:
    if kind.precision is None:
        return ColumnType(TypeName.DECIMAL)
    scale = kind.scale or 0
    if not 0 <= scale <= kind.precision:
        raise ConfigurationError(
            f"numeric({kind.precision},{scale}) rounds what it is given; use a scale between 0 and the precision"
        )
    return ColumnType.decimal(kind.precision, scale)


_TEXT: dict[str, Any] = {"type": ColumnType(TypeName.TEXT), "takes_nul": False}
