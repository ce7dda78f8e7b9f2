"""Databases to write to, each by every way that rows can take."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import Connection

from tidegate import Record
from tidegate.tables import Feed, Rows, Table, Target

WAYS = ["sqlite", "postgres", "mariadb", "mariadb-insert", "mysql", "mysql-insert"]
DATABASES = ["sqlite", "postgres", "mariadb", "mysql"]
LOCAL_FILES = "&client_flag=128"


class Place:
    """A database, and the way in which rows get into it."""

    def __init__(self, way: str, url: str) -> None:
        self.way = way
        server = way.partition("-")[0]
        self.database = "mysql" if server == "mariadb" else server
        """Whose SQL it understands."""
        url += LOCAL_FILES if way in {"mariadb", "mysql"} else ""
        self.engine: Engine = create_engine(url)
        self.url = url
        self.statements: list[str] = []
        event.listen(self.engine, "before_cursor_execute", self._note)

    def name(self) -> str:
        return f"t{uuid.uuid4().hex[:12]}"

    def create(self, columns: str, name: str | None = None) -> str:
        """A new table; the columns are written in standard SQL with double quotes."""
        name = name or self.name()
        self.run(f"CREATE TABLE {self.quote(name)} ({columns})")
        return name

    def quote(self, name: str) -> str:
        mark = "`" if self.database == "mysql" else '"'
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def run(self, statement: str) -> None:
        with self.engine.begin() as conn:
            conn.exec_driver_sql(statement.replace("%", "%%") if self.database != "sqlite" else statement)

    def rows(self, name: str, order: str = "1") -> list[tuple[Any, ...]]:
        with self.engine.connect() as conn:
            return [tuple(row) for row in conn.exec_driver_sql(f"SELECT * FROM {self.quote(name)} ORDER BY {order}")]

    def rows_of(self, query: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as conn:
            return [tuple(row) for row in conn.exec_driver_sql(query)]

    def write(self, target: Target, rows: Rows) -> None:
        with self.engine.begin() as conn:
            target.write(conn, rows)

    def put(self, table: Table, values: Sequence[Mapping[str, Any] | bytes | None], **how: Any) -> Rows:
        """Read values as JSON, write what fits."""
        target = Target(self.engine, table, **how)
        rows = target.read(feed(values))
        self.write(target, rows)
        return rows

    def _note(self, conn: Connection, cursor: Any, statement: str, *_: Any) -> None:
        self.statements.append(statement)


def feed(values: Sequence[Mapping[str, Any] | bytes | None]) -> Feed:
    return Feed([json.dumps(value).encode() if isinstance(value, Mapping) else value for value in values])


def records(*values: Any, key: bytes | None = None) -> list[Record]:
    encoded = [json.dumps(value).encode() if isinstance(value, dict) else value for value in values]
    return [Record("orders", 3, 70 + place, key, value, (), 1_700_000_000_123) for place, value in enumerate(encoded)]
