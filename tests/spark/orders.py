"""A topic of orders, some of them rubbish of every kind, and what has to become of each."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine

from tidegate import Ledger, TopicPartition, open_ledger

USERS = 97
RUBBISH: list[bytes | None] = [
    b"\xff\xfe\xfa",
    b'{"id": 1, "user": "\xc3\x28", "total": 1.00}',
    b'{"id": 1, "user": "u1", "tot',
    b"null",
    b"",
    b'{"id": 1, "user": "u1", "total": 1.00}{"id": 2, "user": "u2", "total": 2.00}',
    b'{"id": "one", "user": "u1", "total": 1.00}',
    b'{"id": 1, "user": "u1", "total": "much"}',
    b'[1, "u1", 1.00]',
    b"7",
    None,
]


@dataclass(frozen=True)
class Orders:
    """``count`` orders over the partitions; every ``every``-th is rubbish instead."""

    bootstrap: str
    name: str
    partitions: int
    count: int
    every: int
    padding: int

    @classmethod
    def create(
        cls, bootstrap: str, *, partitions: int = 3, count: int = 3000, every: int = 100, padding: int = 40
    ) -> Orders:
        orders = cls(bootstrap, f"orders-{secrets.token_hex(6)}", partitions, count, every, padding)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(orders.name, partitions, 1)])[orders.name].result(30)
        orders.produce(0, count)
        return orders

    def produce(self, first: int, last: int) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "log_level": 0, "queue.buffering.max.kbytes": 1 << 20}
        producer = Producer(
            {**settings, "queue.buffering.max.messages": 2_000_000, "linger.ms": 20, "enable.idempotence": True}
        )
        for number in range(first, last):
            producer.produce(self.name, self.value(number), partition=number % self.partitions)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0

    def is_rubbish(self, number: int) -> bool:
        return number % self.every == 0

    def value(self, number: int) -> bytes | None:
        if self.is_rubbish(number):
            return RUBBISH[number // self.every % len(RUBBISH)]
        total = float(f"{number % 1000}.{number % 100:02}")
        text = json.dumps({"id": number, "user": f"u{number % USERS}", "total": total, "note": "ä" * self.padding})
        return text.encode()

    def row(self, number: int) -> tuple[int, str, Decimal]:
        return number, f"u{number % USERS}", Decimal(f"{number % 1000}.{number % 100:02}")

    @property
    def good(self) -> list[tuple[int, str, Decimal]]:
        return [self.row(number) for number in range(self.count) if not self.is_rubbish(number)]

    @property
    def bad(self) -> Counter[tuple[int, int, bytes | None]]:
        """Partition, offset and value of what has to be parked."""
        numbers = (number for number in range(self.count) if self.is_rubbish(number))
        return Counter((n % self.partitions, n // self.partitions, self.value(n)) for n in numbers)

    @property
    def totals(self) -> dict[str, tuple[Decimal, int]]:
        """By user: the sum and the number of orders."""
        found: dict[str, tuple[Decimal, int]] = {}
        for _, user, total in self.good:
            before = found.get(user, (Decimal(), 0))
            found[user] = before[0] + total, before[1] + 1
        return found

    @property
    def ends(self) -> dict[TopicPartition, int]:
        counts = Counter(number % self.partitions for number in range(self.count))
        return {TopicPartition(self.name, number): counts[number] for number in range(self.partitions)}


class Place:
    """A database for one test: a table and a ledger with names of their own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = f"t{secrets.token_hex(6)}"
        self.engine = create_engine(url, hide_parameters=True)
        self.ledger: Ledger[Any] = open_ledger(url, prefix=f"{self.name}_")

    def rows(self, columns: str, by: str = "") -> list[tuple[Any, ...]]:
        with self.engine.connect() as conn:
            return [tuple(row) for row in conn.exec_driver_sql(f"SELECT {columns} FROM {self.name} {by}")]

    def run(self, statement: str) -> None:
        with self.engine.begin() as conn:
            conn.exec_driver_sql(statement)

    def letters(self, group: str) -> Counter[tuple[int, int, bytes | None]]:
        found = self.ledger.dead_letters(group, limit=1_000_000)
        return Counter(
            (parked.letter.record.partition, parked.letter.record.offset, parked.letter.record.value)
            for parked in found
        )

    def tables(self) -> list[str]:
        from sqlalchemy import inspect

        return [name for name in inspect(self.engine).get_table_names() if self.name in name]

    def close(self) -> None:
        self.ledger.close()
        self.engine.dispose()
