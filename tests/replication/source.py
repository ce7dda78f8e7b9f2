"""The source of a replication: tables in PostgreSQL, and random transactions on them, each version of a row noted."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, create_engine

Row = Mapping[str, Any]
Version = frozenset[tuple[str, Any]]


class Replicated(NamedTuple):
    """A table: its key, its columns, and which of them may be so long that PostgreSQL keeps them apart (TOAST)."""

    name: str
    key: tuple[str, ...]
    columns: str
    long: str | None = None
    identity: str = "DEFAULT"


ACCOUNTS = Replicated(
    "accounts",
    ("id",),
    "id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(14,2), opened date, changed timestamptz, "
    "plain timestamp, note text, version bigint NOT NULL",
    long="note",
)
ITEMS = Replicated(
    "items",
    ("purchase", "line"),
    "purchase int, line int, sku text NOT NULL, ratio double precision, flag boolean, raw bytea, "
    "version bigint NOT NULL, PRIMARY KEY (purchase, line)",
)
FULL = Replicated(
    "whole", ("id",), "id int PRIMARY KEY, body text NOT NULL, n numeric, version bigint NOT NULL", "body", "FULL"
)
STAGING = Replicated("staging", ("id",), "id int PRIMARY KEY, v text, version bigint NOT NULL")
"""Is truncated, so its topic has one partition."""
TABLES = (ACCOUNTS, ITEMS, FULL, STAGING)
KEYS = 40
GUARD = "position"
"""The column of the targets that some have, and the source has not."""


def shown(row: Row) -> Version:
    """A row in a form that is the same from every database, without what is null: a column may not be there yet."""
    return frozenset((name, _plain(value)) for name, value in row.items() if value is not None and name != GUARD)


def _plain(value: Any) -> Any:
    match value:
        case bool():
            return int(value)
        case Decimal():
            return value.normalize()
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        case bytes() | memoryview() | bytearray():
            return bytes(value)
    return value


def rows_of(conn: Connection, table: Replicated, name: str | None = None) -> dict[tuple[Any, ...], Version]:
    """All rows by their keys, from the table with this name, by default that of the source."""
    found = conn.exec_driver_sql(f"SELECT * FROM {name or table.name}").mappings().all()
    return {tuple(row[name] for name in table.key): shown(row) for row in found}


class Source:
    """Changes the tables at random, and keeps every version that a row has had."""

    def __init__(self, url: str, seed: int) -> None:
        self.engine: Engine = create_engine(url)
        self._random = random.Random(seed)
        self._version = 0
        self._added: list[str] = []
        self._lock = threading.Lock()
        self.history: dict[str, dict[tuple[Any, ...], dict[int, Version]]] = {table.name: {} for table in TABLES}
        self.counts: dict[str, int] = {}

    def create(self) -> None:
        with self.engine.begin() as conn:
            for table in TABLES:
                conn.exec_driver_sql(f"CREATE TABLE {table.name} ({table.columns})")
                conn.exec_driver_sql(f"ALTER TABLE {table.name} REPLICA IDENTITY {table.identity}")
        for table in TABLES:  # a snapshot of an empty table creates no topic
            with self.engine.begin() as conn:
                self._note(table, [self._insert(conn, table) for _ in range(5)])

    def transaction(self) -> None:
        """Some statements in one transaction, which is sometimes rolled back."""
        kept: list[tuple[Replicated, list[Row]]] = []
        with self.engine.connect() as conn:
            transaction = conn.begin()
            for _ in range(self._random.randint(1, 4)):
                table = self._random.choice((ACCOUNTS, ACCOUNTS, ITEMS, FULL, STAGING))
                kept.append((table, list(self._statement(conn, table))))
            if self._random.random() < 0.1:
                transaction.rollback()
                return
            for table, rows in kept:  # before the COMMIT, after which a target may have them
                self._note(table, rows)
            transaction.commit()

    def add_column(self) -> None:
        """Add a column without a default, whose value rows that are there would get without an event."""
        name = f"extra{len(self._added)}"
        kind = self._random.choice(("int", "numeric(10,3)", "text", "timestamptz", "date"))
        with self.engine.begin() as conn:
            conn.exec_driver_sql(f"ALTER TABLE accounts ADD COLUMN {name} {kind}")
        self._added.append(f"{name} {kind}")

    def version(self, table: Replicated, key: tuple[Any, ...], number: int) -> Version:
        """The row as this statement left it: each statement has a number of its own."""
        with self._lock:
            return self.history[table.name][key][number]

    def _note(self, table: Replicated, rows: Iterable[Row]) -> None:
        with self._lock:
            for row in filter(None, rows):
                key = tuple(row[name] for name in table.key)
                self.history[table.name].setdefault(key, {})[row["version"]] = shown(row)

    def _statement(self, conn: Connection, table: Replicated) -> Sequence[Row]:
        kind = self._random.choices(
            ("insert", "update", "many", "delete", "key", "truncate"), (30, 40, 5, 12, 10, 8 if table is STAGING else 0)
        )[0]
        self.counts[kind] = self.counts.get(kind, 0) + 1
        match kind:
            case "insert":
                return [self._insert(conn, table)]
            case "update":
                return self._update(conn, table, f"WHERE {self._where(conn, table)}")
            case "many":
                return self._update(conn, table, f"WHERE {table.key[0]} %% 5 = {self._random.randrange(5)}")
            case "delete":
                conn.exec_driver_sql(f"DELETE FROM {table.name} WHERE {self._where(conn, table)}")
            case "key":
                return self._change_key(conn, table)
            case "truncate":
                conn.exec_driver_sql(f"TRUNCATE {table.name}")
        return []

    def _insert(self, conn: Connection, table: Replicated) -> Row:
        row = self._values(table) | {name: self._random.randrange(KEYS) for name in table.key}
        names = ", ".join(row)
        marks = ", ".join(f"%({name})s" for name in row)
        found = conn.exec_driver_sql(
            f"INSERT INTO {table.name} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING RETURNING *", row
        )
        return found.mappings().first() or {}

    def _update(self, conn: Connection, table: Replicated, where: str, more: Row | None = None) -> Sequence[Row]:
        row = self._values(table)
        if table.long and self._random.random() < 0.7 and not more:
            del row[table.long]  # and its value, if long, is not in the event
        row |= more or {}
        changes = ", ".join(f"{name} = %({name})s" for name in row)
        return conn.exec_driver_sql(f"UPDATE {table.name} SET {changes} {where} RETURNING *", row).mappings().all()

    def _change_key(self, conn: Connection, table: Replicated) -> Sequence[Row]:
        """Change the key; with a long value that stays, only where events have whole rows."""
        where = self._where(conn, table)
        new = {table.key[-1]: KEYS + self._random.randrange(KEYS)}
        savepoint = conn.begin_nested()
        with suppress(Exception):  # the new key may be taken
            if table.identity == "FULL":
                new["version"] = self._next()
                changes = ", ".join(f"{name} = %({name})s" for name in new)
                statement = f"UPDATE {table.name} SET {changes} WHERE {where} RETURNING *"
                found = conn.exec_driver_sql(statement, new).mappings().all()
            else:
                found = self._update(conn, table, f"WHERE {where}", new)
            savepoint.commit()
            return found
        savepoint.rollback()
        return []

    def _where(self, conn: Connection, table: Replicated) -> str:
        """A row that is there."""
        listed = ", ".join(table.key)
        rows = conn.exec_driver_sql(f"SELECT {listed} FROM {table.name} ORDER BY {listed}").all()
        if not rows:
            return "false"
        return " AND ".join(
            f"{name} = {value}" for name, value in zip(table.key, self._random.choice(rows), strict=True)
        )

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _values(self, table: Replicated) -> dict[str, Any]:
        number = self._random
        long = number.randbytes(number.choice((10, 6000))).hex()
        moment = datetime(2024, 1, 1, tzinfo=UTC).replace(
            hour=number.randrange(24), minute=number.randrange(60), microsecond=number.randrange(10**6)
        )
        values: dict[str, dict[str, Any]] = {
            "accounts": {
                "owner": f"owner ü {number.randrange(1000)}",
                "balance": None if number.random() < 0.2 else Decimal(number.randrange(-(10**9), 10**9)) / 100,
                "opened": date.fromordinal(number.randrange(700_000, 740_000)),
                "changed": moment,
                "plain": moment.replace(tzinfo=None),
                "note": None if number.random() < 0.1 else long,
            },
            "items": {
                "sku": number.choice(("", "a", "NULL", "\\N")),
                "ratio": number.choice((None, 0.1, -1e300, float(number.randrange(100)))),
                "flag": number.choice((None, True, False)),
                "raw": number.randbytes(number.randrange(5)),
            },
            "whole": {"body": long, "n": number.choice((None, Decimal("1.50"), Decimal("-12345678901234567890.125")))},
            "staging": {"v": str(number.random())},
        }
        return values[table.name] | self._extra(table) | {"version": self._next()}

    def _extra(self, table: Replicated) -> dict[str, Any]:
        if table is not ACCOUNTS or not self._added:
            return {}
        name, kind = self._random.choice(self._added).split(" ", 1)
        made = {
            "int": self._random.randrange(10**6),
            "numeric(10,3)": Decimal(self._random.randrange(10**6)) / 1000,
            "text": "words",
            "timestamptz": datetime(2020, 2, 3, 4, 5, 6, 7, tzinfo=UTC),
            "date": date(1969, 12, 31),
        }
        return {name: made[kind]}
