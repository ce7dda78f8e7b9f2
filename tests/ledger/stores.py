"""What the contract suite needs of a store, and the seven stores that it runs on."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import duckdb
import redis
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, create_engine, inspect, make_url, text

from tidegate.core.records import TopicPartition
from tidegate.ledger.duckdb import DuckdbTransaction
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.memory import MemoryLedger, MemoryTransaction
from tidegate.ledger.open import open_ledger
from tidegate.ledger.redis import RedisLedger, RedisTransaction
from tidegate.ledger.sql.sessions import SqlTransaction
from tidegate.ledger.transaction import Limits

_TABLES = {"groups", "positions", "journal", "dead_letters", "deployments", "history", "changes", "sentinel", "data"}


# The traceback of a failed test keeps its transaction open, with its locks: without a bound, clearing hangs.
_SHORT_WAITS = {
    "postgresql": "SET LOCAL lock_timeout = '10s'",
    "mysql": "SET SESSION lock_wait_timeout = 10, innodb_lock_wait_timeout = 10",
    "mariadb": "SET SESSION lock_wait_timeout = 10, innodb_lock_wait_timeout = 10",
}


def fresh_name() -> str:
    """A name that no other store of this run has."""
    return f"t{secrets.token_hex(5)}_"


def documented_grants(server: str) -> list[str]:
    """The GRANT statements that the page about the ledger lists for a server."""
    page = Path(__file__).parents[2].joinpath("docs", "ledger.md").read_text()
    block = page.partition(f"\n{server}:\n")[2].partition("```sql\n")[2].partition("```")[0]
    grants = [line.rstrip(";") for line in block.splitlines() if line.startswith("GRANT")]
    assert grants, f"no grants are documented for {server}"
    return grants


class Row(NamedTuple):
    """A row of data, as a handler writes it."""

    topic: str
    partition: int
    offset: int
    payload: str


class Store(Protocol):
    """A place for data and ledger."""

    ledger: Ledger[Any]
    in_process: bool
    """Whether only this process can see it."""
    has_one_writer: bool
    """Whether a transaction keeps all others waiting, whichever rows they want."""

    def open(self, limits: Limits | None = None) -> Ledger[Any]:
        """Another ledger on the same store, as another process would have it."""

    def write(self, tx: Any, row: Row) -> None:
        """Write a row of data in a transaction."""

    def rows(self) -> list[Row]:
        """The rows that are committed, in the order in which they were written."""

    def end_transaction(self, tx: Any) -> None:
        """Do what a handler must not: end the transaction that it was given."""

    def falsify(self, group: str, partition: TopicPartition, seq: int, end: int) -> None:
        """Change the end of a journal entry behind the ledger's back."""

    def meddle(self, group: str, partition: TopicPartition, **columns: int | None) -> None:
        """Change a position's row behind the ledger's back: columns as SQL stores name them."""

    def age(self, group: str, seconds: float) -> None:
        """Set all times of a group back, behind the ledger's back."""

    def recipe(self) -> Callable[[], Store]:
        """How another process comes by this store; it can be pickled."""

    def close(self) -> None:
        """Close every ledger that was opened."""


class _Opened:
    """Keeps track of the ledgers that were opened, the first of which is `ledger`."""

    in_process = has_one_writer = False

    def __init__(self) -> None:
        self._ledgers: list[Ledger[Any]] = []
        self.ledger = self.open()

    def open(self, limits: Limits | None = None) -> Ledger[Any]:
        ledger = self._open(limits)
        self._ledgers.append(ledger)
        return ledger

    def _open(self, limits: Limits | None) -> Ledger[Any]:
        raise NotImplementedError

    def close(self) -> None:
        for ledger in self._ledgers:
            ledger.close()


class MemoryStore(_Opened):
    in_process = has_one_writer = True

    def _open(self, limits: Limits | None) -> Ledger[Any]:
        if not self._ledgers:
            return MemoryLedger(limits)
        other = MemoryLedger(limits)
        other.__dict__.update({k: v for k, v in vars(self._ledgers[0]).items() if k != "limits"})
        return other

    def write(self, tx: MemoryTransaction, row: Row) -> None:
        tx.append("data", row)

    def rows(self) -> list[Row]:
        return list(self._memory.data.get("data", ()))  # type: ignore[arg-type]

    def end_transaction(self, tx: MemoryTransaction) -> None:
        tx.rollback()

    def falsify(self, group: str, partition: TopicPartition, seq: int, end: int) -> None:
        stored = self._memory._groups[group]
        row = stored.positions[partition]
        if row.open is not None and row.open.seq == seq:
            stored.positions[partition] = row._replace(open=row.open._replace(end=end))
            return
        entries = stored.journal[partition]
        index = next(i for i, entry in enumerate(entries) if entry.seq == seq)
        entries[index] = entries[index]._replace(end=end)

    def meddle(self, group: str, partition: TopicPartition, **columns: int | None) -> None:
        positions = self._memory._groups[group].positions
        row = positions[partition]
        for column, value in columns.items():
            what, _, part = column.partition("_")
            if what == "open" and part == "seq" and value is None:
                row = row._replace(open=None)
            elif what == "open" and row.open is not None:
                row = row._replace(open=row.open._replace(**{part: value}))  # type: ignore[arg-type]
            elif what != "open":
                row = row._replace(**{column: value})  # type: ignore[arg-type]
        positions[partition] = row

    def age(self, group: str, seconds: float) -> None:
        stored, by = self._memory._groups[group], timedelta(seconds=seconds)
        for tp, row in stored.positions.items():
            assert row.updated_at is not None
            last = row.open and row.open._replace(since=row.open.since and row.open.since - by)
            stored.positions[tp] = row._replace(updated_at=row.updated_at - by, open=last)
        for entries in stored.journal.values():
            entries[:] = [
                entry._replace(at=entry.at and entry.at - by, since=entry.since and entry.since - by)
                for entry in entries
            ]

    def recipe(self) -> Callable[[], Store]:
        return lambda: self

    @property
    def _memory(self) -> MemoryLedger:
        assert isinstance(self.ledger, MemoryLedger)
        return self.ledger


class SqlStore(_Opened):
    """A SQL database: the ledger's tables under a prefix, and one table for the data.

    A server's ledger is opened by a login that has the documented rights and no others.
    """

    def __init__(
        self, url: str, prefix: str | None = None, runtime_url: str | None = None, through: int | None = None
    ) -> None:
        """``through``: the port of a pooler that stands between the ledger and the server."""
        self.url = url
        self.prefix = prefix or fresh_name()
        self.engine = create_engine(url)
        self.has_one_writer = self.engine.dialect.name == "sqlite"
        self.runtime_url = runtime_url or url
        self.data = Table(
            f"{self.prefix}data",
            MetaData(),
            Column("id", Integer, primary_key=True, autoincrement=True),
            Column("topic", String(255), nullable=False),
            Column("partition", Integer, nullable=False),
            Column("offset", BigInteger, nullable=False),
            Column("payload", String(255), nullable=False),
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )
        if prefix is None:
            self.data.create(self.engine)
            if self.engine.dialect.name != "sqlite":
                self.runtime_url = self._restricted(through)
        super().__init__()

    def _restricted(self, through: int | None) -> str:
        """The URL of a new login, for which an administrator has done what the documentation says."""
        with open_ledger(self.url, prefix=self.prefix) as admin:
            admin.create()
        is_mysql = self.engine.dialect.name == "mysql"
        user = f"{self.prefix}user"
        create = f"CREATE USER {user} IDENTIFIED BY '{user}'" if is_mysql else f"CREATE USER {user} PASSWORD '{user}'"
        grants = documented_grants("MariaDB and MySQL" if is_mysql else "PostgreSQL")
        with self.engine.begin() as connection:
            for statement in [create, *grants, "GRANT SELECT, INSERT ON tidegate_data TO billing"]:
                fitted = statement.replace("tidegate_", self.prefix).replace("TO billing", f"TO {user}")
                connection.execute(text(fitted))
            if not is_mysql:
                connection.execute(text(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {user}"))
        restricted = make_url(self.url).set(username=user, password=user, port=through or make_url(self.url).port)
        return restricted.render_as_string(hide_password=False)

    def _open(self, limits: Limits | None) -> Ledger[Any]:
        return open_ledger(self.runtime_url, prefix=self.prefix, limits=limits)

    def write(self, tx: SqlTransaction, row: Row) -> None:
        tx.execute(self.data.insert().values(row._asdict()))

    def rows(self) -> list[Row]:
        columns = [self.data.c[name] for name in Row._fields]
        with self.engine.connect() as connection:
            return [
                Row(*row) for row in connection.execute(self.data.select().with_only_columns(*columns).order_by("id"))
            ]

    def end_transaction(self, tx: SqlTransaction) -> None:
        tx.execute(text("ROLLBACK"))

    def falsify(self, group: str, partition: TopicPartition, seq: int, end: int) -> None:
        key = "WHERE consumer_group = :group AND topic = :topic AND partition_id = :partition"
        statements = (
            text(f"UPDATE {self.prefix}journal SET end_offset = :end {key} AND seq = :seq"),
            text(f"UPDATE {self.prefix}positions SET open_end = :end {key} AND open_seq = :seq"),
        )
        parameters = {"group": group, "seq": seq, "end": end, **partition._asdict()}
        with self.engine.begin() as connection:
            assert sum(connection.execute(statement, parameters).rowcount for statement in statements) == 1

    def meddle(self, group: str, partition: TopicPartition, **columns: int | None) -> None:
        assigned = ", ".join(f"{column} = :{column}" for column in columns)
        statement = text(
            f"UPDATE {self.prefix}positions SET {assigned} "
            "WHERE consumer_group = :group AND topic = :topic AND partition_id = :partition"
        )
        with self.engine.begin() as connection:
            parameters = {"group": group, **columns, **partition._asdict()}
            assert connection.execute(statement, parameters).rowcount == 1

    def age(self, group: str, seconds: float) -> None:
        def ago(column: str) -> str:
            match self.engine.dialect.name:
                case "sqlite":
                    return f"{column} = strftime('%Y-%m-%d %H:%M:%f', {column}, '{-seconds:+} seconds')"
                case "postgresql":
                    return f"{column} = {column} - interval '{seconds} seconds'"
                case _:
                    return f"{column} = {column} - INTERVAL {seconds} SECOND"

        times = {"positions": ("updated_at", "open_since"), "journal": ("at", "since")}
        with self.engine.begin() as connection:
            for table, columns in times.items():
                assigned = ", ".join(map(ago, columns))
                statement = f"UPDATE {self.prefix}{table} SET {assigned} WHERE consumer_group = :group"
                connection.execute(text(statement), {"group": group})

    def recipe(self) -> Callable[[], Store]:
        return _Recipe(SqlStore, self.url, self.prefix, self.runtime_url)

    def clear(self) -> None:
        """Make the store as it was when it was new: no rows, no tables of a test's own, and a new ledger."""
        super().close()
        self._ledgers.clear()
        with self.engine.begin() as connection:
            connection.execute(text(_SHORT_WAITS[self.engine.dialect.name]))
            for table in inspect(connection).get_table_names():
                name = table.removeprefix(self.prefix)
                if name in _TABLES:
                    connection.execute(text(f"DELETE FROM {table}"))
                elif table != name and name != "schema":
                    connection.execute(text(f"DROP TABLE {table}"))
        self.ledger = self.open()

    def close(self) -> None:
        super().close()
        self.engine.dispose()


class RedisStore(_Opened):
    """A Redis: the ledger's keys under a prefix, and one list for the data."""

    def __init__(self, url: str, prefix: str | None = None) -> None:
        self.url = url
        self.prefix = prefix or f"{{{fresh_name()}}}:"
        self.client = redis.Redis.from_url(url)
        super().__init__()

    def _open(self, limits: Limits | None) -> Ledger[Any]:
        return RedisLedger.from_url(self.url, prefix=self.prefix, limits=limits)

    def write(self, tx: RedisTransaction, row: Row) -> None:
        tx.redis.rpush(f"{self.prefix}data", json.dumps(row))

    def rows(self) -> list[Row]:
        stored: Any = self.client.lrange(f"{self.prefix}data", 0, -1)
        return [Row(*json.loads(row)) for row in stored]

    def end_transaction(self, tx: RedisTransaction) -> None:
        tx.redis.execute()

    def falsify(self, group: str, partition: TopicPartition, seq: int, end: int) -> None:
        key = f"{self.prefix}journal:{partition.topic}:{partition.partition}:{group}"
        stored: Any = self.client.lrange(key, 0, -1)
        index, entry = next((i, e) for i, e in enumerate(map(json.loads, stored)) if e[0] == seq)
        entry[3] = end
        self.client.lset(key, index, json.dumps(entry))

    def meddle(self, group: str, partition: TopicPartition, **columns: int | None) -> None:
        places = {"next_offset": 2, "epoch": 3, "seq": 6}
        beside = {"open_seq": 1, "open_start": 2, "open_records": 3}
        rows, field = f"{self.prefix}positions:{group}", f"{partition.topic}:{partition.partition}"
        row = json.loads(str(self.client.hget(rows, field), "utf-8"))  # type: ignore[arg-type]
        for column, value in columns.items():
            if column in places:
                row[places[column]] = value
            elif column in beside:
                row[10][beside[column]] = value
        self.client.hset(rows, field, json.dumps(row, separators=(",", ":")))

    def age(self, group: str, seconds: float) -> None:
        by = round(seconds * 1e6)
        rows = f"{self.prefix}positions:{group}"
        stored: Any = self.client.hgetall(rows)
        for field, stored_row in stored.items():
            row = json.loads(stored_row)
            row[11] -= by
            row[10][4] = row[10][4] and row[10][4] - by
            self.client.hset(rows, field, json.dumps(row, separators=(",", ":")))
        for key in self.client.scan_iter(f"{self.prefix}journal:*:{group}"):
            entries: Any = self.client.lrange(key, 0, -1)
            for index, entry in enumerate(map(json.loads, entries)):
                entry[-1] -= by
                entry[-2] = entry[-2] and entry[-2] - by
                self.client.lset(key, index, json.dumps(entry, separators=(",", ":")))

    def recipe(self) -> Callable[[], Store]:
        return _Recipe(RedisStore, self.url, self.prefix)

    def close(self) -> None:
        super().close()
        self.client.close()


class DuckdbStore(_Opened):
    """A DuckDB file: the ledger's tables under a prefix, and one table for the data."""

    in_process = has_one_writer = True

    def __init__(self, path: Path) -> None:
        self.prefix = fresh_name()
        self.path = path
        self.run("CREATE SEQUENCE numbers")
        self.run(
            "CREATE TABLE data (id BIGINT DEFAULT nextval('numbers'), topic TEXT, part INT, spot BIGINT, said TEXT)"
        )
        super().__init__()

    def run(self, sql: str, parameters: list[Any] | None = None) -> list[Any]:
        """Run a statement on another connection of this process."""
        with duckdb.connect(self.path) as conn:
            return conn.execute(sql, parameters).fetchall()

    def _open(self, limits: Limits | None) -> Ledger[Any]:
        return open_ledger(f"duckdb:///{self.path}", prefix=self.prefix, limits=limits)

    def write(self, tx: DuckdbTransaction, row: Row) -> None:
        tx.execute("INSERT INTO data (topic, part, spot, said) VALUES (?, ?, ?, ?)", list(row))

    def rows(self) -> list[Row]:
        return [Row(*row) for row in self.run("SELECT topic, part, spot, said FROM data ORDER BY id")]

    def end_transaction(self, tx: DuckdbTransaction) -> None:
        tx.execute("ROLLBACK")

    def falsify(self, group: str, partition: TopicPartition, seq: int, end: int) -> None:
        key = "WHERE consumer_group = ? AND topic = ? AND partition_id = ?"
        given = [end, group, *partition, seq]
        written = self.run(f"UPDATE {self.prefix}journal SET end_offset = ? {key} AND seq = ?", given)
        still_open = self.run(f"UPDATE {self.prefix}positions SET open_end = ? {key} AND open_seq = ?", given)
        assert written[0][0] + still_open[0][0] == 1

    def meddle(self, group: str, partition: TopicPartition, **columns: int | None) -> None:
        assigned = ", ".join(f"{column} = ?" for column in columns)
        key = "WHERE consumer_group = ? AND topic = ? AND partition_id = ?"
        given = [*columns.values(), group, *partition]
        assert self.run(f"UPDATE {self.prefix}positions SET {assigned} {key}", given) == [(1,)]

    def age(self, group: str, seconds: float) -> None:
        for table, columns in {"positions": ("updated_at", "open_since"), "journal": ('"at"', "since")}.items():
            assigned = ", ".join(f"{column} = {column} - to_seconds({seconds})" for column in columns)
            self.run(f"UPDATE {self.prefix}{table} SET {assigned} WHERE consumer_group = ?", [group])

    def recipe(self) -> Callable[[], Store]:
        return lambda: self


class _Recipe:
    def __init__(self, kind: Callable[..., Store], *arguments: str) -> None:
        self._made_of = kind, arguments

    def __call__(self) -> Store:
        kind, arguments = self._made_of
        return kind(*arguments)


Kept = dict[str, SqlStore]
"""Stores by their names: tables, a login and its rights take half a second to make, and rows are soon gone."""


@contextmanager
def empty_store(kept: Kept, name: str, make: Callable[[], Store]) -> Iterator[Store]:
    """A store with a ledger and no data: one that was kept or a new one. That of a server is kept for the next test."""
    name = f"{__name__} {name}"  # tests may import this module by two names, and then have two classes of stores
    store: Store = kept.pop(name, None) or make()
    store.ledger.create()
    yield store
    if isinstance(store, SqlStore) and not store.has_one_writer:
        store.clear()
        kept[name] = store
    else:
        store.close()
