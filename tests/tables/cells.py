"""Values of records, each with what plain SQL is given for it, and the kinds of columns that they are for."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Misfit:
    """Stands for a value that the docs say is parked, whatever the database would make of it."""

    def __repr__(self) -> str:
        return "a misfit"


BAD = Misfit()


class Cell(NamedTuple):
    """A value as it is in JSON, and what a statement binds for it."""

    json: str
    bound: Any = BAD
    is_converted: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of column: its SQL type, values that mostly fit, and others that mostly do not.

    ``default`` is a literal. ``same`` finds the row of a key in DELETE, as the key's index compares. ``adds``: a
    number. ``keys``: it can be a key. ``unnamed``: the database refuses values by a code that says nothing about
    values.
    """

    sql: str
    cells: tuple[Cell, ...]
    bad: tuple[Cell, ...] = ()
    default: str | None = None
    same: str = "{c} = {p}"
    adds: bool = False
    keys: bool = True
    unnamed: bool = False


def same(*values: Any) -> tuple[Cell, ...]:
    """Values that are bound as they are sent."""
    return tuple(Cell(json.dumps(value, ensure_ascii=False), value) for value in values)


def misfits(*values: Any) -> tuple[Cell, ...]:
    return tuple(Cell(json.dumps(value)) for value in values)


def binary(*values: bytes) -> tuple[Cell, ...]:
    return tuple(Cell(json.dumps(base64.b64encode(value).decode()), value) for value in values)


def converted(*pairs: tuple[str, Any]) -> tuple[Cell, ...]:
    """Values of another type than their column's, which go in without loss."""
    return tuple(Cell(*pair, True) for pair in pairs)


def raw(*pairs: tuple[str, Any]) -> tuple[Cell, ...]:
    return tuple(Cell(*pair) for pair in pairs)


INTEGER = Kind(
    "INTEGER",
    (*same(0, 1, 1, 2, 2, 3, 5, -3), *converted(("5.0", 5), ("1e0", 1))),
    (*same(3_000_000_000, -(2**40)), *misfits("x", 5.5, True, {"a": 1}, [1])),
    "7",
    adds=True,
)
_SMALL = Kind("SMALLINT", same(0, 1, 2, 300, -4), (*same(70_000), *misfits("one", 0.5)), "4", adds=True)
_BIG = Kind(
    "BIGINT",
    same(0, 1, 2, 2**62, 2**63 - 1, -(2**63), -(2**62)),
    (*misfits(2**63), *misfits("x")),
    "9",
    adds=True,
)
_CASES = same("a", "A", "b", "B", "a ", "ä", "", "ab")
_NOT_TEXT = converted(("5", "5"), ("1.50", "1.50"), ("true", "true"), ('{"a":1}', '{"a":1}'))
_MOMENTS = raw(
    ('"2026-05-01T12:00:00+02:00"', "2026-05-01 10:00:00"),
    ('"2026-05-01T10:00:00Z"', "2026-05-01 10:00:00"),
    ('"2026-05-01T10:00:00"', "2026-05-01 10:00:00"),
    ('"2026-05-01T10:00:00.5Z"', "2026-05-01 10:00:00.5"),
    ('"1970-01-01T00:00:00Z"', "1970-01-01 00:00:00"),
)
_NO_MOMENTS = misfits("yesterday", "2026-13-01T00:00:00Z", True)
_DAYS = same("2026-05-01", "2026-05-02", "1999-12-31")
_NO_DAYS = misfits("2026-02-30", "soon", 5)
_JSONS = raw(('{"a":1}', '{"a":1}'), ("[1,2]", "[1,2]"), ('"x"', '"x"'), ("1", "1"))
_DEEP = "[" * 101 + "]" * 101  # more than MySQL and MariaDB take

_LETTER = "ci_letters"

POSTGRES: Mapping[str, Kind] = {
    "integer": INTEGER,
    "smallint": _SMALL,
    "bigint": _BIG,
    "text": Kind("TEXT", (*_CASES, *_NOT_TEXT), misfits("a\x00", "\ud800"), "'d'"),
    "varchar": Kind("VARCHAR(3)", _CASES, (*same("abcd"), *misfits("\ud800")), "'d'"),
    "char": Kind("CHAR(3)", same("a", "a ", "A", "ab", "ab ", "b"), same("abcd"), "'d'"),
    "caseless": Kind(f'VARCHAR(9) COLLATE "{_LETTER}2"', _CASES, same("a" * 10), "'d'"),
    "accentless": Kind(f'TEXT COLLATE "{_LETTER}1"', (*_CASES, *same("Ä", "ss", "ß")), (), "'d'"),
    "citext": Kind("CITEXT", _CASES, (), "'d'"),
    "name": Kind("NAME", same("a", "A", "b"), (), "'d'"),
    "numeric": Kind(
        "NUMERIC",
        raw(("1", "1"), ("1.0", "1.0"), ("1.00", "1.00"), ('"1.000"', "1.000"), ("2.5", "2.5"), ("-3", "-3")),
        misfits("many", True),
        "0.5",
        adds=True,
    ),
    "decimal": Kind(
        "NUMERIC(5,2)",
        raw(
            ("1", "1"), ("1.0", "1.0"), ("1.10", "1.10"), ('"1.1"', "1.1"), ("999.99", "999.99"), ("-999.99", "-999.99")
        ),
        (*raw(("1000", "1000")), *misfits(0.125, "lots")),
        "2.5",
        adds=True,
    ),
    "double": Kind(
        "DOUBLE PRECISION",
        raw(("0.0", "0.0"), ("-0.0", "-0.0"), ("0.1", "0.1"), ("1e16", "1e16"), ("-1e16", "-1e16"), ("3", "3")),
        misfits("x", True),
        "0.25",
        adds=True,
    ),
    "real": Kind(
        "REAL",
        raw(("0.1", "0.1"), ("0.5", "0.5"), ("-0.0", "-0.0"), ("0", "0"), ("1.1", "1.1")),
        misfits("x"),
        "0.1",
        adds=True,
    ),
    "boolean": Kind(
        "BOOLEAN",
        (*raw(("true", "true"), ("false", "false")), *converted(("1", "true"), ("0", "false"))),
        misfits("x", 2),
        "true",
    ),
    "date": Kind("DATE", _DAYS, _NO_DAYS, "'2020-01-01'"),
    "timestamptz": Kind(
        "TIMESTAMPTZ",
        tuple(Cell(each.json, f"{each.bound}+00") for each in _MOMENTS),
        _NO_MOMENTS,
        "'2020-01-01 00:00:00+00'",
    ),
    "timestamp": Kind("TIMESTAMP", _MOMENTS, _NO_MOMENTS, "'2020-01-01'"),
    "timestamp0": Kind(
        "TIMESTAMP(0)", (*raw(('"2026-05-01T10:00:00.9Z"', "2026-05-01 10:00:00")), *_MOMENTS[:2]), _NO_MOMENTS
    ),
    "time": Kind("TIME", same("01:00", "01:00:00", "1:00:00.0", "02:00"), same("25:00")),
    "interval": Kind("INTERVAL", same("1 day", "24 hours", "24:00:00", "2 days"), same("long")),
    "inet": Kind("INET", same("10.0.0.1", "10.0.0.1/32", "10.0.0.2", "::1", "0::1"), same("nowhere", "10.0.0.256")),
    "cidr": Kind("CIDR", same("10.0.0.0/8", "10/8", "10.1.0.0/16"), same("10.0.0.1/8")),
    "macaddr": Kind(
        "MACADDR", same("08:00:2b:01:02:03", "08-00-2b-01-02-03", "08002b010203", "08:00:2b:01:02:04"), same("08")
    ),
    "uuid": Kind(
        "UUID",
        raw(
            ('"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"', "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
            ('"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"', "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
            ('"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"', "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"),
        ),
        misfits("one"),
    ),
    "bytea": Kind("BYTEA", binary(b"a", b"\x00\xff", b""), misfits("%%", 5)),
    "integers": Kind(
        "INTEGER[]",
        (
            *raw(('"{1,2}"', "{1,2}"), ('"{1, 2}"', "{1,2}"), ('"{1,NULL}"', "{1,NULL}")),
            *converted(("[1,2]", "{1,2}"), ("[1,null]", "{1,NULL}")),
        ),
        same("{x}"),
    ),
    "varchars": Kind(
        "VARCHAR(3)[]",
        (*raw(('"{a,b}"', "{a,b}"), ('"{A}"', "{A}")), *converted(('["a","b"]', '{"a","b"}'), ("[]", "{}"))),
        same("{abcd}"),
    ),
    "bit": Kind("BIT(4)", same("1010", "0101", "1111"), same("101", "10101", "2222")),
    "varbit": Kind("VARBIT(4)", same("1010", "0101", "1"), same("10101")),
    "enum": Kind("SIZE", same("small", "large"), same("huge", "Small"), "'small'"),
    "domain": Kind("POSITIVE", same(1, 2, 5), (*same(-1, 0), *misfits("x")), adds=True),
    "jsonb": Kind("JSONB", _JSONS, raw(("1e400000", "1e400000")), keys=False),
    "risky": Kind("INTEGER", same(1, 2), default="(1 / 0)", keys=False),
    "range": Kind("INT4RANGE", same("[1,3)", "[1,2]", "[1,4)", "empty"), same("[3,1)"), keys=True),
    "ltree": Kind("LTREE", same("a.b", "a.B", "a"), same("a..b"), unnamed=True),
    "hstore": Kind("HSTORE", same("a=>1", "b=>2"), keys=False),
    "point": Kind("POINT", same("(1,2)", "(1.0,2)"), same("(1)"), keys=False),
    "money": Kind("MONEY", same("1.00", "$1.00", "2.00"), same("x")),
}
POSTGRES_NEEDS = (
    "CREATE EXTENSION IF NOT EXISTS citext",
    "CREATE EXTENSION IF NOT EXISTS ltree",
    "CREATE EXTENSION IF NOT EXISTS hstore",
    "CREATE EXTENSION IF NOT EXISTS btree_gist",
    *(
        f'CREATE COLLATION IF NOT EXISTS "{_LETTER}{level}" '
        f"(provider = icu, locale = 'und-u-ks-level{level}', deterministic = false)"
        for level in (1, 2)
    ),
    "DO $$ BEGIN CREATE TYPE size AS ENUM ('small', 'large'); EXCEPTION WHEN duplicate_object THEN NULL; END $$",
    "DO $$ BEGIN CREATE DOMAIN positive AS integer CHECK (value > 0); "
    "EXCEPTION WHEN duplicate_object THEN NULL; END $$",
)

_MYSQL_BOTH: Mapping[str, Kind] = {
    "integer": INTEGER,
    "smallint": _SMALL,
    "bigint": _BIG,
    "unsigned": Kind("INT UNSIGNED", same(0, 1, 2, 4_294_967_295), (*same(-1), *misfits("x")), "3", adds=True),
    "text": Kind("VARCHAR(10)", (*_CASES, *_NOT_TEXT), (*same("a" * 11), *misfits("\ud800")), "'d'"),
    "caseless": Kind("VARCHAR(3) COLLATE utf8mb4_unicode_ci", (*_CASES, *same("ss", "ß")), same("abcd"), "'d'"),
    "exact": Kind("VARCHAR(3) COLLATE utf8mb4_bin", _CASES, same("abcd"), "'d'"),
    "latin": Kind("VARCHAR(3) CHARACTER SET latin1", _CASES, (*same("abcd"), *misfits("\u4e00")), "'d'"),
    "char": Kind(
        "CHAR(3)", same("a", "a ", "A", "ab", "ab ", "b"), same("abcd"), "'d'", "{c} = TRIM(TRAILING ' ' FROM {p})"
    ),
    "char_exact": Kind(
        "CHAR(3) COLLATE utf8mb4_bin",
        same("a", "a ", "A", "ab "),
        same("abcd"),
        "'d'",
        "{c} = TRIM(TRAILING ' ' FROM {p})",
    ),
    "decimal": Kind(
        "DECIMAL(5,2)",
        raw(
            ("1", "1"), ("1.0", "1.0"), ("1.10", "1.10"), ('"1.1"', "1.1"), ("999.99", "999.99"), ("-999.99", "-999.99")
        ),
        (*raw(("1000", "1000")), *misfits(0.125, "lots")),
        "2.5",
        adds=True,
    ),
    "double": Kind(
        "DOUBLE",
        raw(("0.0", 0.0), ("-0.0", -0.0), ("0.1", 0.1), ("1e16", 1e16), ("-1e16", -1e16), ("3", 3.0)),
        misfits("x", True),
        "0.25",
        adds=True,
    ),
    "float": Kind(
        "FLOAT",
        raw(("0.5", 0.5), ("0", 0.0), ("0.1", 0.1), ("1.1", 1.1)),
        misfits("x"),
        "0.5",
        "{c} = CAST({p} AS FLOAT)",
        adds=True,
    ),
    "boolean": Kind("TINYINT(1)", (*raw(("true", 1), ("false", 0)), *converted(("1", 1), ("0", 0))), misfits("x"), "1"),
    "date": Kind("DATE", _DAYS, _NO_DAYS, "'2020-01-01'"),
    "datetime": Kind("DATETIME(6)", _MOMENTS, _NO_MOMENTS, "'2020-01-01'"),
    "datetime0": Kind(
        "DATETIME", (*raw(('"2026-05-01T10:00:00.9Z"', "2026-05-01 10:00:00")), *_MOMENTS[:2]), _NO_MOMENTS
    ),
    "time": Kind("TIME", same("01:00:00", "01:00", "02:00:00"), same("nonsense")),
    "year": Kind("YEAR", converted(("2026", 2026), ("1999", 1999)), misfits("soon")),
    "binary": Kind(
        "BINARY(3)", binary(b"a", b"a\x00", b"ab", b"abc"), binary(b"abcd"), None, "{c} = CAST({p} AS BINARY(3))"
    ),
    "varbinary": Kind("VARBINARY(3)", binary(b"a", b"a\x00", b"A", b""), binary(b"abcd")),
    "enum": Kind("ENUM('small','large','2')", same("small", "large", "2", "Small"), misfits("huge", "1"), "'small'"),
    "set": Kind("SET('a','b')", same("a", "a,b", "", "b", "B,a"), misfits("c", "3"), keys=False),
    "bit": Kind("BIT(4)", converted(("1", 1), ("2", 2), ("15", 15)), misfits(16)),
    "json": Kind("JSON", _JSONS, raw((_DEEP, _DEEP)), keys=False, unnamed=True),
}
MYSQL: Mapping[str, Kind] = {
    **_MYSQL_BOTH,
    "risky": Kind("TINYINT", same(1, 2), default="(1000 * ABS(-1))", keys=False),
    "padless": Kind("VARCHAR(3) COLLATE utf8mb4_0900_ai_ci", (*_CASES, *same("ß", "ss")), same("abcd"), "'d'"),
    "padded": Kind("VARCHAR(3) COLLATE utf8mb4_general_ci", _CASES, same("abcd"), "'d'"),
}
MARIADB: Mapping[str, Kind] = {
    **_MYSQL_BOTH,
    "inet6": Kind("INET6", same("::1", "0::1", "::2", "::1.2.3.4", "::102:304"), same("nowhere")),
    "uuid": Kind(
        "UUID", same("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"), same("one")
    ),
    "padless": Kind("VARCHAR(3) COLLATE utf8mb4_nopad_bin", _CASES, same("abcd"), "'d'"),
    "padded": Kind("VARCHAR(3) COLLATE utf8mb4_general_ci", _CASES, same("abcd"), "'d'"),
}

_WIDE = replace(INTEGER, bad=misfits("x", 5.5, True, 2**63), sql="INTEGER")
SQLITE: Mapping[str, Kind] = {
    "integer": replace(_WIDE, sql="INT"),
    "bigint": _BIG,
    "text": Kind("TEXT", (*_CASES, *_NOT_TEXT), misfits("\ud800"), "'d'"),
    "nocase": Kind("TEXT COLLATE NOCASE", _CASES, (), "'d'"),
    "rtrim": Kind("TEXT COLLATE RTRIM", (*_CASES, *same("b ", "b  ")), (), "'d'"),
    "varchar": Kind("VARCHAR(3) COLLATE NOCASE", _CASES, misfits("abcd"), "'d'"),
    "real": Kind(
        "REAL",
        raw(("0.0", 0.0), ("-0.0", -0.0), ("0.1", 0.1), ("1e16", 1e16), ("-1e16", -1e16), ("3", 3.0)),
        misfits("x", True),
        "0.25",
        adds=True,
    ),
    "decimal": Kind(
        "DECIMAL(5,2)",
        raw(("1", "1"), ("1.0", "1.0"), ("1.10", "1.10"), ('"1.1"', "1.1")),
        misfits(0.125, "lots", 1000),
        "2.5",
    ),
    "blob": Kind("BLOB", binary(b"a", b"\x00", b""), misfits("%%", 5)),
    "boolean": Kind("BOOLEAN", (*raw(("true", 1), ("false", 0)), *converted(("1", 1), ("0", 0))), misfits("x", 2), "1"),
    "date": Kind("DATE", _DAYS, _NO_DAYS, "'2020-01-01'"),
    "json": Kind("JSON_TEXT", _JSONS, keys=False),
}
KINDS: Mapping[str, Mapping[str, Kind]] = {
    "postgres": POSTGRES,
    "mysql": MYSQL,
    "mariadb": MARIADB,
    "sqlite": SQLITE,
}
