"""Write the matrix of docs/tables.md: which JSON value goes into which column, as the databases themselves answer."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError

from tidegate.sandbox import MariaDB, MySQL, Postgres
from tidegate.tables import Feed, Rows, Table, Target

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"
START, END = "<!-- made by make values -->\n", "<!-- end of the matrix -->"
STORED, CONVERTED, PARKED = "S", "C", "\u2013"
VALUES = (
    "1",
    "5",
    "5.0",
    "5.5",
    "1e400",
    "true",
    '"5"',
    '"AAEC"',
    '"2026-05-01"',
    '"2026-05-01T12:00:00Z"',
    "[1, 2]",
    '{"a": 1}',
    "null",
)
OWN = {
    "time": '"12:30:00"',
    "interval": '"1 day"',
    "uuid": '"6f1b2c3d-0000-4000-8000-000000000001"',
    "bit(1)": '"1"',
    "bit(4)": '"0101"',
    "inet": '"10.0.0.1"',
    "int4range": '"[1,5)"',
    "integer[]": '"{1,2}"',
    "text[]": '"{a,b}"',
    "hstore": '"a=>1"',
    "year": '"2026"',
    "set('5', 'a')": '"5,a"',
    "inet6": '"::1"',
}
"""Of types that have a text of their own: one such text."""

_SHARED = (
    "BOOLEAN",
    "TINYINT UNSIGNED",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(4,2)",
    "CHAR(4)",
    "VARCHAR(4)",
    "TEXT",
    "BINARY(3)",
    "BLOB",
    "DATE",
    "DATETIME(6)",
    "TIMESTAMP(6)",
    "TIME",
    "YEAR",
    "ENUM('5', 'a')",
    "SET('5', 'a')",
    "BIT(1)",
    "BIT(4)",
    "JSON",
)
TYPES: Mapping[str, Sequence[str]] = {
    "PostgreSQL": (
        "boolean",
        "smallint",
        "bigint",
        "real",
        "double precision",
        "numeric",
        "numeric(4,2)",
        "char(4)",
        "varchar(4)",
        "text",
        '"char"',
        "bytea",
        "date",
        "timestamp",
        "timestamptz",
        "time",
        "interval",
        "uuid",
        "json",
        "jsonb",
        "bit(1)",
        "bit(4)",
        "inet",
        "money",
        "int4range",
        "xml",
        "integer[]",
        "text[]",
        "hstore",
    ),
    "MySQL": _SHARED,
    "MariaDB": (*_SHARED, "UUID", "INET6"),
    "SQLite": (
        "BOOLEAN",
        "INTEGER",
        "REAL",
        "DECIMAL(4,2)",
        "DECIMAL_TEXT",
        "NUMERIC",
        "VARCHAR(4)",
        "TEXT",
        "BLOB",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMPTZ",
        "JSON",
        "",
    ),
}


def marks_of(engine: Engine, types: Sequence[str]) -> dict[str, list[str]]:
    """By the type of a column, what becomes of each value: stored as it is, converted, or parked."""
    name = f"matrix_{secrets.token_hex(4)}"
    columns = ", ".join(f"c{number} {kind} NULL" for number, kind in enumerate(types))
    with engine.begin() as conn:
        if "hstore" in types:
            conn.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS hstore")
        conn.exec_driver_sql(f"CREATE TABLE {name} ({columns})")
    cells = [(number, value) for number, kind in enumerate(types) for value in (*VALUES, OWN.get(kind.lower(), "null"))]
    feed = Feed([f'{{"c{number}": {value}}}'.encode() for number, value in cells])
    exact = {misfit.place for misfit in Target(engine, Table(name, exact=True)).read(feed).misfits}
    target = Target(engine, Table(name))
    rows = target.read(feed)
    parked = {misfit.place for misfit in rows.misfits}
    with engine.begin() as conn:
        for place in set(range(len(cells))) - parked:
            if not _takes(conn, target, rows.between(place, place + 1)):
                parked.add(place)
        conn.exec_driver_sql(f"DROP TABLE {name}")
    marks = [PARKED if place in parked else CONVERTED if place in exact else STORED for place in range(len(cells))]
    width = len(VALUES) + 1
    found = {kind: marks[number * width : (number + 1) * width] for number, kind in enumerate(types)}
    return {kind: [*row[:-1], row[-1] if kind.lower() in OWN else ""] for kind, row in found.items()}


def _takes(conn: Connection, target: Target, rows: Rows) -> bool:
    try:
        with conn.begin_nested():
            target.write(conn, rows)
    except DBAPIError:
        return False
    return True


def section(title: str, marks: Mapping[str, Sequence[str]]) -> str:
    """The table of one database."""
    head = [title, *(f"`{value}`" for value in VALUES), "its own text"]
    lines = [head, ["---"] * len(head)]
    lines += [[f"`{kind}`" if kind else "no type", *found] for kind, found in marks.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def written() -> str:
    """The matrix as it stands on the page."""
    return PAGE.read_text().partition(START)[2].partition(END)[0]


if __name__ == "__main__":
    with Postgres() as postgres, MariaDB() as mariadb, MySQL() as mysql:
        urls = {"PostgreSQL": postgres.url, "MySQL": mysql.url, "MariaDB": mariadb.url, "SQLite": "sqlite://"}
        found = "\n".join(section(name, marks_of(create_engine(url), TYPES[name])) for name, url in urls.items())
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n{found}\n{END}{rest.partition(END)[2]}")
