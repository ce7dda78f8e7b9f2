"""The books of a listener, in one of the stores: a total to which every record adds, so that none may count twice."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import redis
from sqlalchemy import create_engine, text
from tests.app.listener.topic import Sum, Topic

from tidegate import Ledger, Limits, TopicPartition, open_ledger
from tidegate.core.records import Record

GROUP = "billing"
LIMITS = Limits(hold=1.0, lock_wait=3.0)


@dataclass(frozen=True)
class Books:
    url: str = field(repr=False)  # has a password in it
    prefix: str

    @classmethod
    def open(cls, url: str, partitions: int) -> Books:
        name = f"books{secrets.token_hex(6)}_"
        books = cls(url, f"{{{name}}}:" if url.startswith("redis") else name)
        with books.ledger() as ledger:
            ledger.create()
        if not books.is_redis:
            books.run(f"CREATE TABLE {name}totals (partition_id INTEGER, total BIGINT, records BIGINT)")
            for partition in range(partitions):
                books.run(f"INSERT INTO {name}totals VALUES ({partition}, 0, 0)")
        return books

    @property
    def is_redis(self) -> bool:
        return self.url.startswith("redis")

    def ledger(self) -> Ledger[Any]:
        return open_ledger(self.url, prefix=self.prefix, limits=LIMITS)

    def add(self, records: list[Record], tx: Any) -> None:
        """Count records in: running it twice is not the same as running it once."""
        totals: Counter[int] = Counter()
        for record in records:
            totals[record.partition] += int(record.value or b"")
        counts = Counter(record.partition for record in records)
        for partition, total in totals.items():
            if self.is_redis:
                tx.redis.incrby(f"{self.prefix}total:{partition}", total)
                tx.redis.incrby(f"{self.prefix}records:{partition}", counts[partition])
            else:
                tx.execute(
                    text(
                        f"UPDATE {self.prefix}totals SET total = total + :total, records = records + :records "
                        "WHERE partition_id = :partition"
                    ),
                    {"total": total, "records": counts[partition], "partition": partition},
                )

    def load(self, size: int, tx: Any) -> None:
        """Write so many bytes, on SQLite, over those that were written before."""
        tx.execute(text(f"UPDATE {self.prefix}ballast SET content = randomblob(:size)"), {"size": size})

    def sums(self, partitions: int) -> dict[int, Sum]:
        if not self.is_redis:
            rows = self.run(f"SELECT partition_id, total, records FROM {self.prefix}totals")
            return {partition: Sum(int(total), int(records)) for partition, total, records in rows}
        with redis.Redis.from_url(self.url) as client:

            def number(name: str) -> int:
                return int(client.get(f"{self.prefix}{name}") or 0)

            return {p: Sum(number(f"total:{p}"), number(f"records:{p}")) for p in range(partitions)}

    def run(self, sql: str) -> list[Any]:
        """Run a statement as a bystander, in a transaction of its own."""
        engine = create_engine(self.url)
        try:
            with engine.begin() as conn:
                result = conn.execute(text(sql))
                return list(result) if result.returns_rows else []
        finally:
            engine.dispose()

    def positions(self) -> dict[TopicPartition, int]:
        with self.ledger() as ledger:
            return {tp: position.next_offset for tp, position in ledger.read(GROUP).positions.items()}

    def claimants(self) -> set[str | None]:
        """The owners of the partitions; ``None`` if one of them has none."""
        with self.ledger() as ledger:
            return {position.owner for position in ledger.read(GROUP).positions.values()}

    def owners(self) -> set[int]:
        """The processes that have claimed a partition; 0 if one of them has no owner."""
        return {int(name.split(":")[1]) if name else 0 for name in self.claimants()}

    def check(self, topic: Topic, sums: dict[int, Sum]) -> None:
        """Every record of the topic was counted once, and the journal proves it."""
        assert self.sums(topic.partitions) == sums
        ends = {TopicPartition(topic.name, number): sums[number].records for number in sums}
        assert self.positions() == ends
        with self.ledger() as ledger:
            verification = ledger.verify(GROUP)
        assert verification.ok, verification.breaks
