"""Topics to send to, and what is in them afterwards."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.patience import wait_until

_SECONDS = 30


def create(
    bootstrap: str,
    partitions: int = 1,
    replicas: int = 1,
    config: Mapping[str, str] | None = None,
    topic: str | None = None,
) -> str:
    """A new topic, by default with a name that no other has."""
    topic = topic or f"sent-{secrets.token_hex(6)}"
    new = NewTopic(topic, partitions, replicas, config=dict(config or {}))
    admin = _admin(bootstrap)
    admin.create_topics([new])[topic].result(_SECONDS)
    return topic


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    admin = _admin(bootstrap)
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(_SECONDS)


def leaders(client: AdminClient | Consumer, topic: str) -> dict[int, int]:
    """The leader of each partition. A broker learns of a new topic a moment after the controller has made it."""
    found: dict[int, int] = {}

    def are_known() -> bool:
        partitions = client.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
        found.update({number: partition.leader for number, partition in partitions.items()})
        return bool(found) and all(leader >= 0 for leader in found.values())

    wait_until(are_known, f"each partition of {topic} has a leader")
    return found


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    """Everything in a topic, each partition from its beginning to its end, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": secrets.token_hex(6),
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    numbers = leaders(consumer, topic)
    consumer.assign([KafkaPartition(topic, number, 0) for number in numbers])
    found: list[Message] = []
    ended: set[int] = set()
    deadline = time.monotonic() + _SECONDS
    while ended != set(numbers):
        assert time.monotonic() < deadline, f"{topic} has no end"
        for message in consumer.consume(10_000, 0.2):
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def values(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    return [message.value() for message in read(bootstrap, topic, isolation)]


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
