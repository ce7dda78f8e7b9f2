"""Orders of which every tenth is bad, each in a way of its own, and a process that works through them."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass
from typing import Any

import redis
from confluent_kafka import Producer
from sqlalchemy import text
from tests.app.listener.books import GROUP, LIMITS, Books
from tests.app.listener.consumer import SESSION_TIMEOUT, Order, Steps, watch_ledger
from tests.app.listener.topic import Topic, amount

from tidegate import open_ledger
from tidegate.app.app import App
from tidegate.core.batches import BatchBounds
from tidegate.core.policies import DeadLetter
from tidegate.core.records import Record
from tidegate.ledger import Transaction

BAD = {
    "not JSON": b"{",
    "wrong type": b'{"number": "seven", "amount": 1}',
    "empty": b"",
    "tombstone": None,
    "not UTF-8": b'{"number": 1, "amount": 1, "note": "\xff"}',
    "handler raises": b'{"number": 1, "amount": 1, "note": "raise"}',
    "database refuses": b'{"number": 1, "amount": -1}',
}
EVERY = 10


@dataclass
class Entry:
    number: int
    amount: int
    note: str = ""


def value(partition: int, offset: int) -> bytes | None:
    if offset % EVERY == EVERY - 1:
        return list(BAD.values())[(offset // EVERY + partition) % len(BAD)]
    return json.dumps({"number": offset, "amount": amount(partition, offset)}).encode()


def fill(topic: Topic, records: int) -> None:
    producer = Producer(
        {"bootstrap.servers": topic.bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 5}
    )
    for offset, partition in itertools.product(range(records), range(topic.partitions)):
        producer.produce(topic.name, value(partition, offset), partition=partition)
    assert producer.flush(30) == 0


@dataclass(frozen=True)
class Entries:
    """What was written of the good ones: nothing hides one that was written twice."""

    books: Books

    def prepare(self) -> None:
        if self.books.is_redis:
            with redis.Redis.from_url(self.books.url) as client:
                client.set(f"{self.books.prefix}text", "no list")
        else:
            self.books.run(
                f"CREATE TABLE {self.books.prefix}entries "
                "(partition_id INTEGER, record_offset BIGINT, amount BIGINT, CHECK (amount > 0))"
            )

    def add(self, records: list[Record], entries: list[Entry], tx: Any) -> None:
        rows = [(r.partition, r.offset, e.amount) for r, e in zip(records, entries, strict=True)]
        if self.books.is_redis:
            for record, row in zip(records, rows, strict=True):
                key = "entries" if row[2] > 0 else "text"  # which is no list, so that Redis refuses
                tx.execute("RPUSH", f"{self.books.prefix}{key}", json.dumps(row), record=record)
        else:
            statement = text(f"INSERT INTO {self.books.prefix}entries VALUES (:partition, :offset, :amount)")
            tx.execute(statement, [dict(zip(("partition", "offset", "amount"), row, strict=True)) for row in rows])
        if any(entry.note == "raise" for entry in entries):
            raise ValueError("told to")

    def read(self) -> list[tuple[int, ...]]:
        if self.books.is_redis:
            with redis.Redis.from_url(self.books.url) as client:
                return [tuple(json.loads(row)) for row in client.lrange(f"{self.books.prefix}entries", 0, -1)]
        return [tuple(row) for row in self.books.run(f"SELECT * FROM {self.books.prefix}entries")]


def work_through(order: Order) -> None:
    steps = Steps(order)
    ledger: Any = open_ledger(order.books.url, prefix=order.books.prefix, limits=LIMITS)
    watch_ledger(ledger, steps)
    app = App({"bootstrap.servers": order.topic.bootstrap, "log_level": 0}, ledger)
    entries = Entries(order.books)

    @app.listener(
        order.topic.name,
        group=GROUP,
        batch=BatchBounds(count=25),
        session_timeout=SESSION_TIMEOUT,
        kafka={"heartbeat.interval.ms": 150},
        on_error=DeadLetter(),
    )
    def enter(records: list[Record], batch: list[Entry], tx: Transaction) -> None:
        steps.reached("handle")
        entries.add(records, batch, tx)
        steps.reached("write")

    app.run(until_caught_up=order.until_caught_up)
    ledger.close()
    os._exit(0)  # without waiting for threads of the client
