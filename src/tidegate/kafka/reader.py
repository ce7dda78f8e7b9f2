"""A reader for the records of a topic: it joins no group and commits nothing."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tidegate.core.policies import GroupProtocol, LogOffsets, Start, StartStrategy, Timestamp
from tidegate.core.records import Record, TopicPartition
from tidegate.errors import BrokerUnavailable, ConfigurationError
from tidegate.kafka.cluster import Admin
from tidegate.kafka.codes import error_of
from tidegate.kafka.config import ClientLog, address_of, admin_config, consumer_config, opened
from tidegate.kafka.records import as_record

__all__ = ["Place", "TopicReader"]

_SESSION = 45.0  # seconds; required by consumer_config, but unused because the group is never joined
_AT_ONCE = 500

Place: TypeAlias = Start | int
"""Where to begin: a start, an offset, or a negative number -n for n offsets before the end of each partition."""


class TopicReader:
    """Reads partitions of one topic. It commits nothing and joins no group."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, partitions: Collection[int] = ()) -> None:
        self._topic = topic
        self._address = address_of(kafka)
        self._admin = Admin(admin_config(kafka))
        known = self._admin.partitions([topic])
        if not known:
            raise ConfigurationError(
                f"there is no topic {topic}; create it (tidegate topics create {topic}), or check it"
            )
        self._partitions = sorted(tp for tp in known if not partitions or tp.partition in partitions)
        if missing := set(partitions) - {tp.partition for tp in known}:
            raise ConfigurationError(f"{topic} has {len(known)} partitions, and not number {min(missing)}")
        config = consumer_config(kafka, f"tidegate-reader-{secrets.token_hex(4)}", GroupProtocol.RANGE, _SESSION)
        self._consumer = opened(Consumer, {"logger": ClientLog(), **config}, "consumer")

    def records(self, place: Place, *, follow: bool = False) -> Iterator[Record]:
        """Yield the records from ``place`` to the end of every partition; with ``follow``, never stop."""
        starts = self._starts(place)
        self._consumer.assign([KafkaPartition(*tp, offset) for tp, offset in starts.items()])
        left = set(starts)
        while left or follow:
            first = self._consumer.poll(0.2)
            for message in [] if first is None else [first, *self._consumer.consume(_AT_ONCE, 0)]:
                error = message.error()
                if error is None:
                    yield as_record(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(TopicPartition(message.topic(), message.partition()))
                elif not error.retriable():
                    raise BrokerUnavailable(f"{self._topic} of {self._address} cannot be read: {error.str()}")

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _starts(self, place: Place) -> dict[TopicPartition, int]:
        at = place.at if isinstance(place, Timestamp) else None
        try:
            logs = self._admin.logs(self._partitions, at)
        except KafkaException as exception:
            raise BrokerUnavailable(
                f"{self._topic} of {self._address} cannot be read: {error_of(exception).str()}"
            ) from exception
        if isinstance(place, int):
            return {tp: _within(log, place) for tp, log in logs.items()}
        return StartStrategy(place).offsets(self._partitions, logs)


def _within(log: LogOffsets, offset: int) -> int:
    wanted = log.latest + offset if offset < 0 else offset
    return min(max(wanted, log.earliest), log.latest)
