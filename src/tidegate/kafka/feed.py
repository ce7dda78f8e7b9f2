"""A feed: topics that a test makes, fills and removes."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tidegate.core.errors import BrokerUnavailable
from tidegate.core.records import Record, TopicPartition
from tidegate.kafka.client import open_client
from tidegate.kafka.config import address_of

__all__ = ["Feed"]

_SECONDS = 30.0


class Feed:
    """Creates topics and appends records to them, one at a time: each has its offset when it is told."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._admin = open_client(AdminClient, config, "administration client")
        self._address = address_of(config)
        self._producer = Producer({**config, "linger.ms": 0, "acks": "all", "enable.idempotence": True})

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic and wait until it can be used. It keeps its records, however old their timestamps say."""
        wanted = NewTopic(topic, partitions, config={"retention.ms": "-1", "retention.bytes": "-1"})
        self._done(self._admin.create_topics([wanted])[topic], f"create {topic!r}")
        self._known(topic, partitions)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        self._done(self._admin.create_partitions([NewPartitions(topic, partitions)])[topic], f"grow {topic!r}")
        self._known(topic, partitions)

    def append(self, record: Record) -> int:
        """Store a record, and return its offset."""
        failures: list[KafkaError] = []
        offsets: list[int] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            failures.append(error) if error is not None else offsets.append(message.offset())

        options = {} if record.timestamp is None else {"timestamp": record.timestamp}
        self._producer.produce(
            record.topic,
            record.value,
            record.key,
            partition=record.partition,
            headers=list(record.headers),
            on_delivery=delivered,
            **options,
        )
        self._producer.flush(_SECONDS)
        if not offsets:
            said = failures[0].str() if failures else f"it was not acknowledged within {_SECONDS:g} s"
            raise BrokerUnavailable(f"{self._address} did not store a record for {record.source}: {said}")
        return offsets[0]

    def delete(self, topics: Collection[str]) -> None:
        """Remove topics, with everything in them."""
        if topics:
            for topic, future in self._admin.delete_topics(list(topics)).items():
                self._done(future, f"delete {topic!r}")

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that a group keeps in Kafka."""
        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        found = self._done(asked, f"say where group {group!r} is").topic_partitions
        return {TopicPartition(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def _known(self, topic: str, partitions: int) -> None:
        """Wait until the broker tells of all partitions: it does so a moment after it has answered."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            try:
                (future,) = self._admin.describe_topics(TopicCollection([topic])).values()
                if len(future.result(_SECONDS).partitions) >= partitions:
                    return
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise BrokerUnavailable(
                        f"{self._address} did not tell of {topic!r}: {error.args[0].str()}"
                    ) from error
            time.sleep(0.02)
        raise BrokerUnavailable(f"{topic!r} did not appear at {self._address} within {_SECONDS:g} s")

    def _done(self, future: Any, what: str) -> Any:
        try:
            return future.result(_SECONDS)
        except (KafkaException, TimeoutError) as error:
            said = error.args[0].str() if isinstance(error, KafkaException) else "it did not answer"
            raise BrokerUnavailable(f"{self._address} did not {what}: {said}") from error
