"""A place in one of the stores: a ledger, and beside it the data, of which every record leaves exactly one trace."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import Any

import duckdb
import redis
from sqlalchemy import create_engine, text

from tidegate import Ledger, Limits, Span, TopicPartition, open_ledger

GROUP = "billing"
ORDERS = TopicPartition("orders", 0)
BATCH = 10
LIMITS = Limits(hold=1.0, lock_wait=5.0)

_serial = itertools.count()


@dataclass(frozen=True)
class Place:
    url: str
    prefix: str
    opened: list[Ledger[Any]] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def fresh(cls, url: str) -> Place:
        """Set up: the ledger's tables, and a table for the data without any key that could hide a duplicate."""
        name = f"crash{os.getpid()}_{next(_serial)}_"
        place = cls(url, f"{{{name}}}:" if url.startswith("redis") else name)
        place.ledger().create()
        if not place.is_redis:
            place.run(f"CREATE TABLE {place.data} (record_offset BIGINT NOT NULL)")
        return place

    @property
    def is_redis(self) -> bool:
        return self.url.startswith("redis")

    @property
    def is_duckdb(self) -> bool:
        return self.url.startswith("duckdb")

    @property
    def data(self) -> str:
        return f"{self.prefix}data"

    def ledger(self, limits: Limits = LIMITS, *, url: str | None = None) -> Ledger[Any]:
        """Open another ledger on the place, which closes it in the end."""
        at = url or self.url
        # A ledger's own URL may not allow LOAD DATA of a file; an engine of the user's may.
        whose = create_engine(at) if "local_infile" in at else at
        self.opened.append(open_ledger(whose, prefix=self.prefix, limits=limits))
        return self.opened[-1]

    def close(self) -> None:
        for ledger in self.opened:
            ledger.close()

    def write(self, tx: Any, span: Span) -> None:
        offsets = range(span.start, span.end)
        if self.is_redis:
            tx.redis.rpush(self.data, *offsets)
        elif self.is_duckdb:
            tx.execute(f"INSERT INTO {self.data} SELECT unnest(?)", [list(offsets)])
        else:
            insert = text(f"INSERT INTO {self.data} (record_offset) VALUES (:o)")
            tx.execute(insert, [{"o": offset} for offset in offsets])

    def offsets(self) -> list[int]:
        if self.is_redis:
            with redis.Redis.from_url(self.url) as client:
                return [int(value) for value in client.lrange(self.data, 0, -1)]
        return sorted(row[0] for row in self.run(f"SELECT record_offset FROM {self.data}"))

    def run(self, sql: str) -> list[Any]:
        """Run a statement as a bystander, in a transaction of its own."""
        if self.is_duckdb:
            with duckdb.connect(self.url.removeprefix("duckdb:///")) as connection:
                return connection.execute(sql).fetchall()
        engine = create_engine(self.url)
        try:
            with engine.begin() as conn:
                result = conn.execute(text(sql))
                return list(result) if result.returns_rows else []
        finally:
            engine.dispose()

    def check(self, ledger: Ledger[Any]) -> int:
        """Data and position agree, and the journal explains the position, which is returned."""
        position = ledger.read(GROUP).positions[ORDERS].next_offset
        assert self.offsets() == list(range(position)), f"data and position {position} do not agree"
        verification = ledger.verify(GROUP)
        assert verification.ok, verification.breaks
        return position


def span_at(position: int) -> Span:
    return Span(ORDERS, position, position + BATCH, BATCH)
