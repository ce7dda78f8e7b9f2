"""Columns of tables of MySQL and MariaDB: their types, and which values fit them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Dialect, text

from tidegate.tables.column import Column, Form
from tidegate.tables.database import Unalterable
from tidegate.tables.names import Names
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["TEXTS", "alteration_of", "is_neutral", "mysql_columns", "on_mariadb", "type_written"]


TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_NEUTRAL = re.compile(
    r"latin1_swedish_ci|(utf8mb4|utf8mb3|utf8|latin1|ascii)_"
    r"(bin|0900_bin|nopad_bin|((general|unicode|unicode_520|general_nopad|unicode_nopad|unicode_520_nopad)_(ci|cs))"
    r"|(0900|uca1400|uca1400_nopad)_a[is]_c[is])"
)


def is_neutral(collation: str) -> bool:
    """Whether the collation has no language-specific rules.

    It then considers two texts of printable ASCII equal only if they differ in case and trailing spaces alone.
    """
    return _NEUTRAL.fullmatch(collation) is not None


def on_mariadb(dialect: Dialect) -> bool:
    """Whether the server is MariaDB, and not MySQL."""
    return bool(getattr(dialect, "is_mariadb", False))


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
_JSON_CHECK = re.compile(r"\(*json_valid\(([`\"])(.+)\1\)\)*", re.IGNORECASE)
_SIZED = {"varchar", "tinytext", "text", "mediumtext", "varbinary", "tinyblob", "blob", "mediumblob"}
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_ENCODINGS = {"utf8mb3": "utf8mb3", "utf8": "utf8mb3", "latin1": "cp1252", "ascii": "ascii"}
_BYTE_CHARSETS = {"latin1", "ascii"}  # a character is a byte, other than in the UTF-8 in which texts are sent
_EXACT_COLLATIONS = ("_nopad_bin", "_0900_bin")  # all others ignore differences in case or trailing spaces
_BINARIES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_SPATIAL = {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
_SPATIAL |= {"geometrycollection", "geomcollection", "vector"}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "0": "\0", "Z": "\x1a", "t": "\t"}
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_NOT_ASCII, _NO_NUMBER = r"[^\x09-\x0d\x20-\x7e]", r"[^\x09-\x0d 0-9+-]"  # match a text with such a character
_LITERAL = re.compile(r"NULL|[xb]?'(?:[^'\\]|\\.|'')*'|[-+.0-9e]+", re.DOTALL | re.IGNORECASE)  # in MariaDB's syntax
_UUID = 36  # characters of a UUID
_FITTING = {
    TypeName.TIMESTAMP: re.compile(r"(current_timestamp|now)(\(\d?\))?"),
    TypeName.DATE: re.compile(r"(curdate|current_date)\(\)"),
    TypeName.JSON: re.compile(r"json_(array|object)\(\)|_utf8mb4\\'(\[\]|\{\})\\'"),
    TypeName.TEXT: re.compile(rf"uuid\(\)|_utf8mb4\\'[ -&(-\[\]-~]{{0,{_UUID}}}\\'"),
}
_SINGLE = 3.4028234663852886e38


def mysql_columns(conn: Connection, table: Table) -> Sequence[Column]:
    """Return the table's columns in order; none if the table does not exist."""
    where = _where(conn, table)
    found = conn.execute(_COLUMNS, where).all()
    is_mariadb = on_mariadb(conn.dialect)
    is_json: set[str] = set()
    if found and is_mariadb:  # MariaDB's JSON is a text column with a check
        clauses = conn.execute(_JSON_CHECKS, where).scalars()
        found_in = (match for clause in clauses if (match := _JSON_CHECK.fullmatch(clause)))
        is_json = {match[2].replace(match[1] * 2, match[1]) for match in found_in}
    return [_column(row, is_json=row[0] in is_json, is_mariadb=is_mariadb) for row in found]


def type_written(kind: ColumnType, dialect: Dialect, *, in_key: bool) -> str:
    """Return the SQL type of a new column.

    New text columns get a binary collation, so that keys are equal exactly if they are equal in Kafka. Text columns in
    a key have a bounded length, because an index requires it.
    """
    match kind.name:
        case TypeName.TEXT:
            collation = "utf8mb4_nopad_bin" if on_mariadb(dialect) else "utf8mb4_0900_bin"
            return ("VARCHAR(255)" if in_key else "LONGTEXT") + f" CHARACTER SET utf8mb4 COLLATE {collation}"
        case TypeName.BYTES:
            return "VARBINARY(255)" if in_key else "LONGBLOB"
        case TypeName.DECIMAL:
            return f"DECIMAL({kind.precision or 65},{30 if kind.scale is None else kind.scale})"
    return _WRITTEN[kind.name]


def _where(conn: Connection, table: Table) -> dict[str, Any]:
    """Return schema and name as parameters: with constants, the server need not open all other tables."""
    schema = table.schema or conn.exec_driver_sql("SELECT DATABASE()").scalar()
    return {"schema": schema, "name": table.name}


def _column(row: Any, *, is_json: bool, is_mariadb: bool) -> Column:
    name, data_type, column_type, is_nullable, default, extra = row[:6]
    extra = extra.lower()
    # MariaDB shows the word NULL as the default of a column without one.
    has_default = (default is not None and default != "NULL") or "auto_increment" in extra
    has_default |= data_type.lower() == "enum" and is_nullable == "NO"  # its default is its first label
    facts = _facts(data_type.lower(), column_type, row)
    if is_json:
        facts = {**_JSON, "is_settled": data_type.lower() == "longtext" and row[8] == "utf8mb4"}
    is_computed = not _LITERAL.fullmatch(default or "NULL") if is_mariadb else "default_generated" in extra
    if is_computed and not _always_fits(default, data_type.lower(), facts):
        facts = {**facts, "is_settled": False}
    return Column(
        name,
        nullable=is_nullable == "YES",
        has_default=has_default,
        generated="generated" in extra.replace("default_generated", ""),
        spelled=column_type if not is_json and _may_widen(data_type.lower(), column_type, facts) else "",
        **{"sql_type": data_type.lower(), **facts},
    )


def _may_widen(data_type: str, column_type: str, facts: Mapping[str, Any]) -> bool:
    """Whether the column may be altered to a wider type; one with ZEROFILL shows its length, so it stays."""
    if facts["type"].name is TypeName.BOOLEAN or "zerofill" in column_type.lower():
        return False
    is_rounded = data_type in ("float", "double") and (facts["largest"] or facts["places"] is not None)
    return data_type in {*_BITS, "decimal", *_SIZED} or bool(is_rounded)


_INDEXED = text(
    "SELECT 1 FROM information_schema.statistics "
    "WHERE table_schema = :schema AND table_name = :name AND column_name = :column LIMIT 1"
)
_BOUND = Names("`", bound=True)
_LONGEST_KEY = 3072  # bytes of an indexed value
_NOT_NULL = re.compile(r"^((?:[^']|'(?:[^'\\]|\\.|'')*')*?) NOT NULL")  # not within the quotes of a label


def alteration_of(conn: Connection, table: Table, old: Column, new: Column) -> str:
    """Return the statement that alters a column. It repeats all else of its definition, which the server would drop."""
    found = str(conn.exec_driver_sql(f"SHOW CREATE TABLE {_BOUND.table(table)}").one()[1])
    quoted = Names("`").quote(old.name)
    lines = (line.strip().removesuffix(",") for line in found.splitlines())
    line = next((each.removeprefix(f"{quoted} ") for each in lines if each.startswith(f"{quoted} ")), "")
    rest = line[len(old.spelled) :] if old.spelled else line
    if not line or not line.lower().startswith(old.spelled.lower()):
        raise Unalterable("its definition is written in a way that is not known here")
    kind = old.spelled if replace(new, nullable=old.nullable) == old else _wider(conn, table, old, new)
    if new.nullable and not old.nullable:
        rest = _NOT_NULL.sub(r"\1 NULL", rest, count=1)
    return f"ALTER TABLE {Names('`').table(table)} MODIFY COLUMN {quoted} {kind}{rest}"


def _wider(conn: Connection, table: Table, old: Column, new: Column) -> str:
    """Return the wider type without character set and collation: texts keep theirs, which decide what is equal."""
    if new.type.name not in (TypeName.TEXT, TypeName.BYTES):
        return type_written(new.type, conn.dialect, in_key=False)
    is_text = new.type.name is TypeName.TEXT
    needs_bound = conn.execute(_INDEXED, {**_where(conn, table), "column": old.name}).first() is not None
    if not (needs_bound or old.has_default) or old.sql_type not in ("varchar", "varbinary"):
        return "LONGTEXT" if is_text else "LONGBLOB"
    # An index and a default need a bounded length
    width = max(1, (old.size or 0) // old.length) if is_text and old.length else 1
    length = (new.length if is_text else new.size) or 0
    if needs_bound and length * width > _LONGEST_KEY:
        raise Unalterable(f"it is in an index, which takes {_LONGEST_KEY // width} characters at most")
    return f"{'VARCHAR' if is_text else 'VARBINARY'}({length})"


def _always_fits(default: str, data_type: str, facts: Mapping[str, Any]) -> bool:
    """Whether a default expression always yields a value that fits the column."""
    kind = facts["type"].name
    if kind not in _FITTING or _FITTING[kind].fullmatch(default.lower()) is None:
        return False
    return kind is not TypeName.TEXT or (data_type in TEXTS and (facts["length"] or _UUID) >= _UUID)


def _facts(data_type: str, column_type: str, row: Any) -> Mapping[str, Any]:
    """Return what a column's type says about the values that fit, as arguments of :class:`Column`."""
    characters, octets, charset, precision, scale, fraction, collation = row[6:]
    written, column_type = column_type, column_type.lower()
    unsigned = "unsigned" in column_type
    if column_type.startswith("tinyint(1)") or (data_type == "bit" and int(precision) == 1):
        return {"type": ColumnType(TypeName.BOOLEAN)}
    if data_type == "bit":
        return {"type": ColumnType(TypeName.INTEGER), "low": 0, "high": 2 ** int(precision) - 1}
    if data_type in _BITS:
        bits = _BITS[data_type]
        low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return {"type": ColumnType(TypeName.INTEGER), "low": low, "high": high}
    if data_type in ("float", "double"):
        largest = _SINGLE if data_type == "float" else None
        return {
            "type": ColumnType(TypeName.DOUBLE),
            "takes_nan": False,
            "takes_infinity": False,
            "largest": largest,
            "places": None if scale is None else int(scale),
            "is_settled": scale is None and not unsigned,  # FLOAT(7,4) has a narrower range
        }
    if data_type == "decimal":
        return {"type": ColumnType.decimal(int(precision), int(scale)), "is_settled": not unsigned}
    if data_type in TEXTS:
        length = int(characters) if data_type in ("char", "varchar") or charset in _BYTE_CHARSETS else None
        return {
            "type": ColumnType(TypeName.TEXT),
            "length": length,
            "size": int(octets) if str(charset).startswith("utf8") else None,
            "encoding": _ENCODINGS.get(charset or ""),
            "folds": not str(collation).endswith(_EXACT_COLLATIONS),
            "compared": str(collation),
            "is_settled": charset == "utf8mb4" or charset in _ENCODINGS,
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
    if data_type in ("enum", "set"):
        encoding = _ENCODINGS.get(charset or "")
        return {"type": ColumnType(TypeName.TEXT), "encoding": encoding, **_labels(data_type, written, str(collation))}
    return {"type": ColumnType(TypeName.TEXT), **_other(data_type, fraction)}


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[1], found[1])


def _labels(data_type: str, written: str, collation: str) -> Mapping[str, Any]:
    """Return which values an ENUM or SET accepts.

    A label may be spelled in any way that the collation considers equal, which the server checks. A text that looks
    like a number and is not a label must be refused here: the server would take it for the index of a label.
    """
    labels = [_ESCAPED.sub(_unescaped, label.replace("''", "'")) for label in _LABEL.findall(written)]
    one = f"(?:{'|'.join(map(re.escape, labels))})"
    known = f"{one} *" if data_type == "enum" else f"(?:{one}(?:,{one})*)? *"
    if is_neutral(collation) and all(label.isascii() for label in labels):
        case, doubtful = "(?i)" if collation.endswith("_ci") else "", _NOT_ASCII
    else:
        case, doubtful = "", _NO_NUMBER
    pattern = f"{case}^{known}$|{doubtful}"
    if data_type == "enum":
        return {"choices": tuple(labels), "pattern": pattern}
    return {"form": Form.SET, "choices": ("", *labels), "pattern": pattern}


def _other(data_type: str, fraction: Any) -> Mapping[str, Any]:
    """Return which texts fit types without a counterpart here; texts that the server would change are refused."""
    if data_type == "year":
        return {"pattern": "^(?:0000|190[1-9]|19[1-9][0-9]|20[0-9]{2}|21[0-4][0-9]|215[0-5])$"}
    if data_type == "time":
        return {"pattern": rf"^-?[0-9]{{1,3}}:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{{0,{int(fraction)}}}0*)?)?$"}
    if data_type == "uuid":
        return {"form": Form.UUID}
    if data_type in _SPATIAL:
        return {"refusal": f"a {data_type}, which cannot be written as text"}
    return {}


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
