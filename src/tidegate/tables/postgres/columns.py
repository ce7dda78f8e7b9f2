"""Columns of tables of PostgreSQL: their types, and which values fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, text

from tidegate.errors import ConfigurationError
from tidegate.tables.column import Column, Form
from tidegate.tables.names import Names
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["alteration_of", "postgres_columns", "type_written"]


# A domain is resolved to its base type; for an array, the type of its elements is returned as well. A domain over an
# array has the category of an array, but its base type is that array and not an element. Types are spelled without
# lengths (typmod -1): a cast to varchar(3) truncates what an assignment refuses.
_COLUMNS = text(
    """
    WITH RECURSIVE chain AS (
        SELECT attnum, 0 AS depth, false AS is_element, atttypid AS type, atttypmod AS typmod,
               attnotnull AS required, atthasdef OR attidentity <> '' AS has_default
        FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped
        UNION ALL
        SELECT attnum, depth + 1, is_element OR typtype <> 'd',
               CASE typtype WHEN 'd' THEN typbasetype ELSE typelem END,
               CASE typtype WHEN 'd' THEN typtypmod ELSE typmod END,
               required OR (typnotnull AND NOT is_element), has_default OR (typdefault IS NOT NULL AND NOT is_element)
        FROM chain JOIN pg_type ON pg_type.oid = type
        WHERE typtype = 'd' OR (typcategory = 'A' AND typelem <> 0 AND NOT is_element)
    )
    SELECT attname AS name, is_element, typname, nspname = 'pg_catalog' AS is_builtin, typtype, typcategory, typmod,
           format_type(type, -1) AS spelled, format_type(type, typmod) AS whole, depth, required, has_default,
           attgenerated <> '' AS generated,
           (SELECT array_agg(enumlabel::text) FROM pg_enum WHERE enumtypid = type) AS labels
    FROM chain JOIN pg_type ON pg_type.oid = type JOIN pg_namespace ON pg_namespace.oid = typnamespace
         JOIN pg_attribute USING (attnum) JOIN pg_class ON pg_class.oid = attrelid
    WHERE attrelid = to_regclass(:name) AND typtype <> 'd' AND relkind IN ('r', 'p', 'v', 'm', 'f')
    ORDER BY attnum, is_element
    """
)
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
_WIDENED = {"int2", "int4", "int8", "float4", "numeric", "varchar"}
_BITS = {"int2": 16, "int4": 32, "int8": 64}


def postgres_columns(conn: Connection, table: Table) -> Sequence[Column]:
    """Return the table's columns in order; none if the table does not exist.

    Values of types without a counterpart in :class:`TypeName` are written as text, which PostgreSQL parses.
    """
    found = conn.execute(_COLUMNS, {"name": Names('"').table(table)}).all()
    elements = {row.name: row for row in found if row.is_element}
    return [_column(row, elements.get(row.name)) for row in found if not row.is_element]


def type_written(kind: ColumnType) -> str:
    """Return the SQL type of a new column."""
    bounds = f"({kind.precision},{kind.scale})" if kind.precision else ""
    return _WRITTEN[kind.name] + bounds


_COLLATION = text(
    "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.collname) FROM pg_attribute a "
    "JOIN pg_collation c ON c.oid = a.attcollation JOIN pg_namespace n ON n.oid = c.collnamespace "
    "WHERE a.attrelid = to_regclass(:table) AND a.attname = :name"
)


def alteration_of(conn: Connection, table: Table, old: Column, new: Column) -> str:
    """Return the statement that alters a column; a text keeps its collation, which decides what is equal."""
    names = Names('"')
    changes, start = [], f"ALTER COLUMN {names.quote(old.name)}"
    if replace(new, nullable=old.nullable) != old:
        where = {"table": names.table(table), "name": old.name}
        collation = conn.execute(_COLLATION, where).scalar() if new.type.name is TypeName.TEXT else None
        changes.append(f"{start} TYPE {type_written(new.type)}{f' COLLATE {collation}' if collation else ''}")
    if new.nullable and not old.nullable:
        changes.append(f"{start} DROP NOT NULL")
    return f"ALTER TABLE {names.table(table)} {', '.join(changes)}"


def _column(row: Row[Any], element: Row[Any] | None) -> Column:
    of_element = None if element is None else Column(row.name, **_facts(element))
    widens = row.is_builtin and not row.depth and row.typname in _WIDENED
    return Column(
        row.name,
        nullable=not row.required,
        has_default=row.has_default,
        generated=row.generated,
        spelled=row.whole if widens else "",
        **_facts(row, of_element),
    )


def _facts(row: Row[Any], element: Column | None = None) -> Mapping[str, Any]:
    """Return what a column's type says about the values that fit, as arguments of :class:`Column`."""
    spelled, length = row.spelled, row.typmod if row.typmod >= 0 else None
    if element is not None:
        refusal = f"an array, each element of which is {element.refusal}" if element.refusal else ""
        return {**_TEXT, "sql_type": spelled, "form": Form.ARRAY, "element": element, "refusal": refusal}
    match row.typname if row.is_builtin else "":
        case "bool":
            return {"type": ColumnType(TypeName.BOOLEAN), "sql_type": "boolean"}
        case "int2" | "int4" | "int8" as name:
            bounds = {"low": -(2 ** (_BITS[name] - 1)), "high": 2 ** (_BITS[name] - 1) - 1}
            return {"type": ColumnType(TypeName.INTEGER), "sql_type": spelled, **bounds}
        case "float4" | "float8" as name:
            largest = _SINGLE if name == "float4" else None
            return {"type": ColumnType(TypeName.DOUBLE), "sql_type": spelled, "largest": largest}
        case "numeric":
            return {"type": _decimal(length), "sql_type": "numeric"}
        case "text" | "varchar" | "bpchar":
            return {**_TEXT, "sql_type": "text", "length": None if length is None else length - 4}
        case "bytea":
            return {"type": ColumnType(TypeName.BYTES), "sql_type": "bytea"}
        case "date":
            return {"type": ColumnType(TypeName.DATE), "sql_type": "date", "has_infinity": True}
        case "timestamp" | "timestamptz" as name:
            return {
                "type": ColumnType(TypeName.TIMESTAMP),
                "sql_type": "timestamp",
                "has_zone": name == "timestamptz",
                "fraction": 6 if length is None else length,
                "has_infinity": True,
            }
        case "json" | "jsonb" as name:
            return {"type": ColumnType(TypeName.JSON), "sql_type": name, "takes_nul": name == "json"}
    return {**_TEXT, "sql_type": spelled, **_other(row, length)}


def _other(row: Row[Any], length: int | None) -> Mapping[str, Any]:
    """Return which texts fit types without a counterpart here; texts that PostgreSQL would change are refused."""
    if row.typtype == "e":
        return {"choices": tuple(row.labels or ())}
    if row.typname == "hstore":
        return {"form": Form.MAP}
    match row.typname if row.is_builtin else "":
        case "uuid":
            return {"form": Form.UUID}
        case "name":
            return {"size": 63}
        case "char":
            return {"size": 1}
        case "bit" | "varbit" as name:
            least = length if name == "bit" else 0
            return {"form": Form.BITS, "pattern": f"^[01]{{{least},{'' if length is None else length}}}$"}
        case "time" | "timetz":
            return {"pattern": _no_finer(6 if length is None else length)}
        case "money":
            return {"pattern": _no_finer(2)}
        case "interval" if length is not None:
            return {"refusal": "an interval with fields or a precision, which cuts what it is given"}
    return {}


def _no_finer(digits: int) -> str:
    """Return a pattern for text with at most so many decimal places, trailing zeros apart: PostgreSQL rounds more."""
    return rf"^[^.]*(\.[0-9]{{0,{digits}}}0*([^0-9.][^.]*)?)?$"


def _decimal(typmod: int | None) -> ColumnType:
    if typmod is None:
        return ColumnType(TypeName.DECIMAL)
    precision, scale = (typmod - 4) >> 16, ((typmod - 4 & 0x7FF) ^ 1024) - 1024
    if not 0 <= scale <= precision:
        raise ConfigurationError(
            f"numeric({precision},{scale}) rounds what it is given; use a scale between 0 and the precision"
        )
    return ColumnType.decimal(precision, scale)


_TEXT: dict[str, Any] = {"type": ColumnType(TypeName.TEXT), "takes_nul": False}
