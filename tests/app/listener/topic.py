"""A topic with amounts in it, and what they add up to."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

_SECONDS = 30


@dataclass(frozen=True)
class Topic:
    bootstrap: str
    name: str
    partitions: int

    @classmethod
    def create(cls, bootstrap: str, partitions: int) -> Topic:
        topic = cls(bootstrap, f"amounts-{secrets.token_hex(6)}", partitions)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic.name, partitions, 1)])[topic.name].result(_SECONDS)
        return topic

    def fill(self, records: int) -> dict[int, Sum]:
        """Put so many records into each partition; what each of them adds up to."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 5}
        )
        for number, partition in itertools.product(range(records), range(self.partitions)):
            producer.produce(self.name, str(amount(partition, number)), partition=partition)
        assert producer.flush(_SECONDS) == 0
        return {
            partition: Sum(sum(amount(partition, number) for number in range(records)), records)
            for partition in range(self.partitions)
        }


@dataclass(frozen=True)
class Sum:
    total: int
    records: int


def amount(partition: int, number: int) -> int:
    """Different for each record, so that one lost and one twice do not make up for each other."""
    return 1 + (number * 31 + partition) ** 2
