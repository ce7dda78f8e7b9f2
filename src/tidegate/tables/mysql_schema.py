"""Columns of MySQL and MariaDB, by their information schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Dialect, text

from tidegate.core.errors import ConfigurationError
from tidegate.ledger.sql.engines import without_transactions
from tidegate.tables.column import Column
from tidegate.tables.naming import Names
from tidegate.tables.table import Mode, Table
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["MySQLSchema"]

_COLUMNS = text(
    "SELECT column_name, data_type, column_type, is_nullable, column_default, extra, character_maximum_length, "
    "character_octet_length, character_set_name, numeric_precision, numeric_scale, datetime_precision, collation_name "
    "FROM information_schema.columns WHERE table_schema = :schema AND table_name = :name "
    "ORDER BY ordinal_position"
)
_JSON_CHECKS = text(
    "SELECT check_clause FROM information_schema.check_constraints "
    "WHERE constraint_schema = :schema AND table_name = :name"
)
_JSON_CHECK = re.compile(r"\(*json_valid\(`(.+)`\)\)*", re.IGNORECASE)
_UNIQUE = text(
    "SELECT index_name, column_name FROM information_schema.statistics "
    "WHERE table_schema = :schema AND table_name = :name AND non_unique = 0"
)
_NUMBERED = text(
    "SELECT column_name FROM information_schema.columns "
    "WHERE table_schema = :schema AND table_name = :name AND extra LIKE '%auto_increment%'"
)
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_ENCODINGS = {"utf8mb3": "utf8mb3", "utf8": "utf8mb3", "latin1": "cp1252", "ascii": "ascii"}
_EXACT = ("_nopad_bin", "_0900_bin")  # all others take texts for the same that differ in case or spaces at the end
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_BINARIES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_SINGLE = 3.4028234663852886e38


class MySQLSchema:
    """New texts are compared byte for byte, as Kafka's are; those of a key are bounded, as an index needs it."""

    names = Names("`")

    def columns(self, conn: Connection, table: Table) -> Sequence[Column]:
        """See :meth:`Schema.columns`."""
        where = _where(conn, table)
        found = conn.execute(_COLUMNS, where).all()
        is_json: set[str] = set()
        if found and getattr(conn.engine.dialect, "is_mariadb", False):  # where JSON is a text with a check
            clauses = conn.execute(_JSON_CHECKS, where).scalars()
            is_json = {match[1].replace("``", "`") for clause in clauses if (match := _JSON_CHECK.fullmatch(clause))}
        return [_column(row, table, is_json=row[0] in is_json) for row in found]

    def written(self, kind: ColumnType, dialect: Dialect, *, in_key: bool) -> str:
        """See :meth:`Schema.written`."""
        match kind.name:
            case TypeName.TEXT:
                collation = "utf8mb4_nopad_bin" if getattr(dialect, "is_mariadb", False) else "utf8mb4_0900_bin"
                return ("VARCHAR(255)" if in_key else "LONGTEXT") + f" CHARACTER SET utf8mb4 COLLATE {collation}"
            case TypeName.BYTES:
                return "VARBINARY(255)" if in_key else "LONGBLOB"
            case TypeName.DECIMAL:
                return f"DECIMAL({kind.precision or 65},{30 if kind.scale is None else kind.scale})"
        return _WRITTEN[kind.name]

    def check(self, conn: Connection, table: Table) -> None:
        """See :meth:`Schema.check`."""
        modes = str(conn.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar_one())
        if "STRICT_TRANS_TABLES" not in modes and "STRICT_ALL_TABLES" not in modes:
            raise ConfigurationError(
                f"table {table}: the session's sql_mode is not strict, so that the server changes values that do not "
                "fit instead of refusing them; add STRICT_TRANS_TABLES to it"
            )
        for engine in without_transactions(conn, [table.name], table.schema).values():
            raise ConfigurationError(
                f"table {table}: its engine {engine} has no transactions, so that rows would stay when the transaction "
                f"is rolled back, and come twice; run ALTER TABLE {self.names.table(table)} ENGINE=InnoDB"
            )
        if table.kind is not Mode.APPEND:
            self._check_indexes(conn, table)

    @staticmethod
    def _check_indexes(conn: Connection, table: Table) -> None:
        """ON DUPLICATE KEY UPDATE takes any unique index for the key, and would change the row of another one."""
        where = _where(conn, table)
        numbered = set(conn.execute(_NUMBERED, where).scalars())
        unique: dict[str, set[str]] = {}
        for index, column in conn.execute(_UNIQUE, where):
            unique.setdefault(index, set()).add(column)
        for index, columns in unique.items():
            if columns != set(table.key) and not columns & numbered:
                raise ConfigurationError(
                    f"table {table}: beside its key it has the unique index {index!r}; MySQL would take a row with the "
                    f"same value there for the row of the key. Drop the index, or use mode='append'"
                )


def _where(conn: Connection, table: Table) -> dict[str, Any]:
    """The table as constants, by which the server finds it without opening all others."""
    schema = table.schema or conn.exec_driver_sql("SELECT DATABASE()").scalar()
    return {"schema": schema, "name": table.name}


def _column(row: Any, table: Table, *, is_json: bool) -> Column:
    name, data_type, column_type, is_nullable, default, extra = row[:6]
    extra = extra.lower()
    # MariaDB writes the word NULL for the default of a column that has none.
    has_default = (default is not None and default != "NULL") or "auto_increment" in extra
    # A number that only tells rows apart is left to the server: a clash of it would be taken for one of the key.
    numbered = "auto_increment" in extra and table.kind is not Mode.APPEND and name not in table.key
    generated = numbered or "generated" in extra.replace("default_generated", "")
    facts = _JSON if is_json else _facts(data_type.lower(), column_type.lower(), row)
    return Column(
        name,
        nullable=is_nullable == "YES",
        has_default=has_default,
        generated=generated,
        **{"sql_type": data_type.lower(), **facts},
    )


def _facts(data_type: str, column_type: str, row: Any) -> Mapping[str, Any]:
    """What a type says of the values that fit."""
    characters, octets, charset, precision, scale, fraction, collation = row[6:]
    if column_type.startswith("tinyint(1)"):
        return {"type": ColumnType(TypeName.BOOLEAN)}
    if data_type in _BITS:
        bits, unsigned = _BITS[data_type], "unsigned" in column_type
        low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return {"type": ColumnType(TypeName.INTEGER), "low": low, "high": high}
    if data_type in ("float", "double"):
        largest = _SINGLE if data_type == "float" else None
        return {"type": ColumnType(TypeName.DOUBLE), "takes_nan": False, "takes_infinity": False, "largest": largest}
    if data_type == "decimal":
        return {"type": ColumnType.decimal(int(precision), int(scale))}
    if data_type in _TEXTS:
        length = int(characters) if data_type in ("char", "varchar") else None
        return {
            "type": ColumnType(TypeName.TEXT),
            "length": length,
            "size": int(octets),
            "encoding": _ENCODINGS.get(charset or ""),
            "folds": not str(collation).endswith(_EXACT),
        }
    if data_type in _BINARIES:
        return {"type": ColumnType(TypeName.BYTES), "size": int(octets)}
    if data_type == "date":
        return {"type": ColumnType(TypeName.DATE)}
    if data_type in ("datetime", "timestamp"):
        bounds = _TIMESTAMPS if data_type == "timestamp" else {"has_zone": False}
        return {"type": ColumnType(TypeName.TIMESTAMP), "fraction": int(fraction), **bounds}
    if data_type == "json":
        return _JSON
    if data_type == "uuid":
        return {"type": ColumnType(TypeName.TEXT), "is_uuid": True}
    return {"type": ColumnType(TypeName.TEXT)}


_TIMESTAMPS: Mapping[str, Any] = {
    "first": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    "last": datetime(2038, 1, 19, 3, 14, 7, 999999, tzinfo=UTC),
}
_JSON: Mapping[str, Any] = {"type": ColumnType(TypeName.JSON), "sql_type": "json"}
_WRITTEN = {
    TypeName.BOOLEAN: "BOOLEAN",
    TypeName.INTEGER: "BIGINT",
    TypeName.DOUBLE: "DOUBLE",
    TypeName.DATE: "DATE",
    TypeName.TIMESTAMP: "DATETIME(6)",
    TypeName.JSON: "JSON",
}
