"""A feed: creates, fills and deletes topics on a real broker, for tests."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tidegate.core.records import Record
from tidegate.errors import BrokerUnavailable
from tidegate.kafka.config import address_of, opened

__all__ = ["TopicFeed"]

_SECONDS = 30.0


class TopicFeed:
    """Creates topics and appends records to them, one at a time, so that each append returns its offset."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._admin = opened(AdminClient, config, "administration client")
        self._address = address_of(config)
        self._producer = Producer({**config, "linger.ms": 0, "acks": "all", "enable.idempotence": True})

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic and wait until it can be used.

        It has no retention limit, so that records with old timestamps stay.
        """
        wanted = NewTopic(topic, partitions, config={"retention.ms": "-1", "retention.bytes": "-1"})
        self._done(self._admin.create_topics([wanted])[topic], f"create {topic!r}")
        self._known(topic, partitions)

    def grow(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions of a topic to ``partitions``."""
        self._done(self._admin.create_partitions([NewPartitions(topic, partitions)])[topic], f"grow {topic!r}")
        self._known(topic, partitions)

    def append(self, record: Record) -> int:
        """Append a record, and return its offset."""
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
            why = failures[0].str() if failures else f"it was not acknowledged within {_SECONDS:g} s"
            raise BrokerUnavailable(f"{self._address} did not store a record for {record.source}: {why}")
        return offsets[0]

    def delete(self, topics: Collection[str]) -> None:
        """Delete topics with their records."""
        if topics:
            for topic, future in self._admin.delete_topics(list(topics)).items():
                self._done(future, f"delete {topic!r}")

    def _known(self, topic: str, partitions: int) -> None:
        """Wait until the broker reports all partitions, which happens a moment after it acknowledged their creation."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            try:
                (future,) = self._admin.describe_topics(TopicCollection([topic])).values()
                if len(future.result(_SECONDS).partitions) >= partitions:
                    return
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise BrokerUnavailable(
                        f"{self._address} did not describe {topic!r}: {error.args[0].str()}"
                    ) from error
            time.sleep(0.02)
        raise BrokerUnavailable(f"{topic!r} did not appear at {self._address} within {_SECONDS:g} s")

    def _done(self, future: Any, what: str) -> Any:
        try:
            return future.result(_SECONDS)
        except (KafkaException, TimeoutError) as error:
            why = error.args[0].str() if isinstance(error, KafkaException) else "it did not answer"
            raise BrokerUnavailable(f"{self._address} did not {what}: {why}") from error
