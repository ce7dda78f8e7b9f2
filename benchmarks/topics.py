"""Topics full of records to measure with."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

__all__ = ["fill"]


def fill(bootstrap: str, topic: str, count: int, partitions: int = 4, keys: int | None = None) -> None:
    """Create a topic and put ``count`` JSON records of about 100 bytes into it, with so many different keys."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.num.messages": 10_000, "compression.type": "lz4"}
    )
    for number in range(count):
        value = b'{"id": %d, "customer": "customer-%d", "amount": %d, "note": "one order of very many"}' % (
            number,
            number % 997,
            number * 31 % 100_000,
        )
        key = None if keys is None else b"%d" % (number % keys)
        while True:
            try:
                producer.produce(topic, value, key, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(120)
