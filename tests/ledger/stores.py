"""What the contract suite needs of a store, and the six stores that it runs on."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import redis
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, create_engine, make_url, text

from tidegate.core.records import TopicPartition
from tidegate.ledger.base import Ledger
from tidegate.ledger.limits import Limits
from tidegate.ledger.memory import MemoryLedger, MemoryTransaction
from tidegate.ledger.open import open_ledger
from tidegate.ledger.redis import RedisLedger, RedisTransaction
from tidegate.ledger.sql.transaction import SqlTransaction


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
        entries = self._memory._groups[group].journal[partition]
        index = next(i for i, entry in enumerate(entries) if entry.seq == seq)
        entries[index] = entries[index]._replace(end=end)

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
        statement = text(
            f"UPDATE {self.prefix}journal SET end_offset = :end "
            "WHERE consumer_group = :group AND topic = :topic AND partition_id = :partition AND seq = :seq"
        )
        parameters = {"group": group, "seq": seq, "end": end, **partition._asdict()}
        with self.engine.begin() as connection:
            assert connection.execute(statement, parameters).rowcount == 1

    def recipe(self) -> Callable[[], Store]:
        return _Recipe(SqlStore, self.url, self.prefix, self.runtime_url)

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

    def recipe(self) -> Callable[[], Store]:
        return _Recipe(RedisStore, self.url, self.prefix)

    def close(self) -> None:
        super().close()
        self.client.close()


class _Recipe:
    def __init__(self, kind: Callable[..., Store], *arguments: str) -> None:
        self._made_of = kind, arguments

    def __call__(self) -> Store:
        kind, arguments = self._made_of
        return kind(*arguments)
