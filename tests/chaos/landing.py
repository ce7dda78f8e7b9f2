"""Where the records of the storm land: in a table, or in a list of Redis."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import redis
from sqlalchemy import BigInteger, Column, Integer, MetaData, NullPool, Table, create_engine, insert, select

from tidegate.core.records import Record

# No key that could hide a record that comes twice; the order of the ids is the order of the writing.
LANDED = Table(
    "landed",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("partition_id", Integer, nullable=False),
    Column("record_offset", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
)


class Row(NamedTuple):
    partition_id: int
    record_offset: int
    number: int
    amount: int


class Landing(Protocol):
    def prepare(self) -> None:
        """Begin with nothing."""

    def write(self, tx: Any, records: list[Record]) -> None:
        """Add records, in the transaction."""

    def rows(self) -> list[Row]:
        """All that landed, in the order of the writing."""

    def commits_records(self, seen: bytes) -> bool:
        """Whether a client asks to commit a transaction that has records in it."""


class InTable:
    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, poolclass=NullPool)  # the database is restarted

    def prepare(self) -> None:
        LANDED.drop(self._engine, checkfirst=True)
        LANDED.create(self._engine)

    def write(self, tx: Any, records: list[Record]) -> None:
        tx.execute(insert(LANDED).values([row_of(record)._asdict() for record in records]))

    def rows(self) -> list[Row]:
        with self._engine.connect() as conn:
            return [Row(*row[1:]) for row in conn.execute(select(LANDED).order_by(LANDED.c.id))]

    def commits_records(self, seen: bytes) -> bool:
        written = seen.rfind(b"INSERT INTO landed")
        return written >= 0 and b"COMMIT" in seen[written:]


class InList:
    def __init__(self, url: str) -> None:
        self._url = url

    def prepare(self) -> None:
        with redis.Redis.from_url(self._url) as client:
            client.delete("landed")

    def write(self, tx: Any, records: list[Record]) -> None:
        tx.redis.rpush("landed", *[" ".join(map(str, row_of(record))) for record in records])

    def rows(self) -> list[Row]:
        with redis.Redis.from_url(self._url) as client:
            return [Row(*map(int, text.split())) for text in client.lrange("landed", 0, -1)]

    def commits_records(self, seen: bytes) -> bool:
        return b"\r\nlanded\r\n" in seen


def landing_at(url: str) -> Landing:
    return InList(url) if url.startswith("redis:") else InTable(url)


def row_of(record: Record) -> Row:
    number, amount = map(int, (record.value or b"").split(b":"))
    return Row(record.partition, record.offset, number, amount)
