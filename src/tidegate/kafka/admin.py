"""What has to be asked of a cluster: who it is, which topics it has, where their logs begin and end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidegate.core.errors import BrokerUnavailable
from tidegate.core.positions import Identity
from tidegate.core.records import TopicPartition
from tidegate.core.start import LogOffsets
from tidegate.kafka.client import open_client
from tidegate.kafka.config import address_of

__all__ = ["Admin"]

_SECONDS = 10.0


class Admin:
    """Questions to one cluster, each answered within ten seconds or by a :class:`BrokerUnavailable`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._client = open_client(AdminClient, config, "administration client")
        self._address = address_of(config)
        self._cluster_id: str | None = None

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        """The identity of each of these topics that there is."""
        try:
            if self._cluster_id is None:
                self._cluster_id = self._client.describe_cluster(request_timeout=_SECONDS).result(_SECONDS).cluster_id
            wanted = TopicCollection(sorted(topics))
            found: dict[str, Identity] = {}
            for topic, future in self._client.describe_topics(wanted, request_timeout=_SECONDS).items():
                try:
                    found[topic] = Identity(self._cluster_id, str(future.result(_SECONDS).topic_id))
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
            return found
        except (KafkaException, TimeoutError) as error:
            raise BrokerUnavailable(f"{self._address} did not say which topics it has: {_reason(error)}") from error

    def logs(self, partitions: Iterable[TopicPartition], at: int | None = None) -> dict[TopicPartition, LogOffsets]:
        """Where the logs of these partitions begin and end, and their first offset not before the timestamp ``at``."""
        wanted = sorted(partitions)
        earliest = self._offsets(wanted, OffsetSpec.earliest())
        latest = self._offsets(wanted, OffsetSpec.latest())
        times = {} if at is None else self._offsets(wanted, OffsetSpec.for_timestamp(at))
        return {
            tp: LogOffsets(earliest[tp], latest[tp], None if times.get(tp, -1) < 0 else times[tp])
            for tp in wanted
            if tp in earliest and tp in latest
        }

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The positions that a group keeps in Kafka, of those partitions that have one.

        What an open transaction may still move is waited for: such a position is not known.
        """
        unknown = f"{self._address} did not say where group {group!r} is"
        wanted = [KafkaPartition(tp.topic, tp.partition) for tp in partitions]
        asked = ConsumerGroupTopicPartitions(group, wanted)
        try:
            futures = self._client.list_consumer_group_offsets([asked], require_stable=True, request_timeout=_SECONDS)
            found = futures[group].result(_SECONDS).topic_partitions
        except (KafkaException, TimeoutError) as error:
            raise BrokerUnavailable(f"{unknown}: {_reason(error)}") from error
        for tp in found:
            if tp.error is not None:
                raise BrokerUnavailable(f"{unknown}: {tp.error.str()}")
        return {TopicPartition(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def answers(self, timeout: float = 0.5) -> bool:
        """Whether the cluster answers. A consumer is not asked: it would wait for its own callbacks."""
        try:
            self._client.list_topics(timeout=timeout)
        except KafkaException:
            return False
        return True

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        """Every partition of these topics."""
        try:
            metadata = self._client.list_topics(timeout=_SECONDS)
        except KafkaException as error:
            raise BrokerUnavailable(f"{self._address} did not say which topics it has: {_reason(error)}") from error
        return {
            TopicPartition(topic, number)
            for topic in topics
            if (known := metadata.topics.get(topic)) is not None
            for number in known.partitions
        }

    def _offsets(self, partitions: list[TopicPartition], which: OffsetSpec) -> dict[TopicPartition, int]:
        wanted = {KafkaPartition(tp.topic, tp.partition): which for tp in partitions}
        try:
            futures = self._client.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_SECONDS
            )
            found: dict[TopicPartition, int] = {}
            for tp, future in futures.items():
                try:
                    found[TopicPartition(tp.topic, tp.partition)] = future.result(_SECONDS).offset
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
            return found
        except (KafkaException, TimeoutError) as error:
            raise BrokerUnavailable(
                f"{self._address} did not say where its logs begin and end: {_reason(error)}"
            ) from error


def _reason(error: BaseException) -> str:
    if isinstance(error, KafkaException):
        return str(error.args[0].str())
    return str(error) or type(error).__name__
