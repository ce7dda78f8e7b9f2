"""Bulk loads that children of a test carry out: orders, a table in each mode, and what has to come of them."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine

from tidegate import Ledger, Limits, Table, TopicPartition, open_ledger
from tidegate.tables import Mode

GROUP = "loading"
CUSTOMERS = 1499
LIMITS = Limits(hold=1.0, lock_wait=3.0)
_PADDING = "some words that make the record as long as records are"


@dataclass(frozen=True)
class Orders:
    """A topic of orders: every partition has the same number of them."""

    bootstrap: str
    name: str
    partitions: int
    records: int

    @classmethod
    def create(cls, bootstrap: str, partitions: int, records: int) -> Orders:
        orders = cls(bootstrap, f"orders-{secrets.token_hex(6)}", partitions, records)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(orders.name, partitions, 1)])[orders.name].result(30)
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True})
        for partition in range(partitions):
            for offset in range(records):
                value = {
                    "customer": customer(partition, offset),
                    "amount": amount(partition, offset),
                    "orders": 1,
                    "note": f"{_PADDING} {offset}",
                }
                producer.produce(orders.name, json.dumps(value), partition=partition)
            producer.poll(0)
        assert producer.flush(30) == 0
        return orders

    @property
    def all(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


def customer(partition: int, offset: int) -> int:
    """A customer belongs to one partition, as a key does."""
    return partition * CUSTOMERS + offset * 7 % CUSTOMERS


def amount(partition: int, offset: int) -> int:
    """Different for each record, so that one lost and one twice do not make up for each other."""
    return 1 + (offset * 31 + partition) ** 2


@dataclass(frozen=True)
class Load:
    """One sink: from the orders into a table of its own."""

    orders: Orders
    url: str = field(repr=False)  # has a password in it
    mode: Mode
    name: str = field(default_factory=lambda: f"l{secrets.token_hex(6)}")

    @property
    def table(self) -> Table:
        if self.mode is Mode.APPEND:
            return Table(self.name)
        return Table(self.name, key="customer", mode=self.mode, add=["amount", "orders"] if self.adds else ())

    @property
    def adds(self) -> bool:
        return self.mode is Mode.ACCUMULATE

    def prepare(self) -> None:
        key = "" if self.mode is Mode.APPEND else ", PRIMARY KEY (customer)"
        self._run(
            f"CREATE TABLE {self.name} "
            f"(customer INTEGER NOT NULL, amount BIGINT, orders BIGINT, note VARCHAR(100){key})"
        )
        if self.mode is Mode.UPDATE:  # which changes rows that are there
            everyone = ", ".join(f"({who}, 0, 0, '')" for who in range(self.orders.partitions * CUSTOMERS))
            self._run(f"INSERT INTO {self.name} VALUES {everyone}")
        with self.ledger() as ledger:
            ledger.create()

    def ledger(self, url: str | None = None) -> Ledger[Any]:
        return open_ledger(url or self.url, prefix=f"{self.name}_", limits=LIMITS)

    def check(self) -> None:
        """The table is what the topic says, every record once; the positions are at its end, and the journal agrees."""
        found = {row[0]: row[1:] for row in self._run(f"SELECT customer, {self._figures} FROM {self.name}{self._by}")}
        assert {key: tuple(map(int, figures)) for key, figures in found.items()} == self._expected()
        with self.ledger() as ledger:
            positions = ledger.read(GROUP).positions
            assert {tp: row.next_offset for tp, row in positions.items()} == dict.fromkeys(
                self.orders.all, self.orders.records
            )
            verification = ledger.verify(GROUP)
            assert verification.ok, verification.breaks
            assert not ledger.dead_letters(GROUP)

    def position(self) -> int:
        with self.ledger() as ledger:
            return sum(row.next_offset for row in ledger.read(GROUP).positions.values())

    @property
    def _figures(self) -> str:
        return "sum(amount), count(*)" if self.mode is Mode.APPEND else "amount, orders"

    @property
    def _by(self) -> str:
        return " GROUP BY customer" if self.mode is Mode.APPEND else ""

    def _expected(self) -> dict[int, tuple[int, int]]:
        sums, counts = Counter[int](), Counter[int]()
        for partition in range(self.orders.partitions):
            for offset in range(self.orders.records):
                who = customer(partition, offset)
                if self.mode in (Mode.UPSERT, Mode.UPDATE) or (self.mode is Mode.IGNORE and who not in sums):
                    sums[who], counts[who] = amount(partition, offset), 1
                elif self.mode is not Mode.IGNORE:
                    sums[who] += amount(partition, offset)
                    counts[who] += 1
        return {who: (sums[who], counts[who]) for who in sums}

    def _run(self, statement: str) -> list[Any]:
        engine = create_engine(self.url)
        try:
            with engine.begin() as conn:
                result = conn.exec_driver_sql(statement)
                return list(result) if result.returns_rows else []
        finally:
            engine.dispose()
