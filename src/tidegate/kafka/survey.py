"""A survey: what an operator asks a cluster about its logs, while consumers are left alone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidegate.core.errors import BrokerUnavailable
from tidegate.core.positions import Identity
from tidegate.core.protocols import Protocol
from tidegate.core.records import TopicPartition
from tidegate.kafka.admin import Admin
from tidegate.kafka.client import open_client
from tidegate.kafka.config import address_of, admin_config, consumer_config
from tidegate.kafka.groups import GroupDescription, GroupListing, describe_group, list_groups
from tidegate.kafka.log import ClientLog
from tidegate.kafka.records import as_record
from tidegate.kafka.topics import TopicDescription, TopicListing, describe_topic, list_topics

__all__ = ["LogEnds", "Survey"]

_SESSION = 45.0  # seconds, of a group that nobody joins
_SMALL_FETCHES = {
    "queued.min.messages": 1,
    "max.partition.fetch.bytes": 64 << 10,
    "fetch.max.bytes": 1 << 20,
    "message.max.bytes": 1 << 20,
}

T = TypeVar("T")


class LogEnds(NamedTuple):
    """Where the log of a partition begins and ends.

    ``stable_end`` is the last stable offset: before it, no transaction is open. ``log_end`` is the high watermark.
    ``at_time`` is the first offset not before the time that was asked for: ``None`` if there is none, or none was.
    """

    begin: int
    stable_end: int
    log_end: int
    at_time: int | None = None


class Survey:
    """Questions to one cluster, each answered within ``seconds`` or by a :class:`BrokerUnavailable`.

    Each has a client of its own: one whose connection was lost may never answer questions about groups again.
    """

    def __init__(self, kafka: Mapping[str, Any], *, seconds: float = 5.0) -> None:
        """``kafka``: settings of librdkafka."""
        self._kafka = dict(kafka)
        self._seconds = seconds

    def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each of these topics has, of those that there are."""
        return self._partitions(self._client(), topics)

    def stable_ends(self, topics: Collection[str], at: int | None = None) -> dict[TopicPartition, int]:
        """The last stable offsets of these topics, or else where their logs ended at the timestamp ``at``."""
        if not topics:
            return {}
        client = self._client()
        wanted = [tp for topic, count in self._partitions(client, topics).items() for tp in _all(topic, count)]
        ends = self._offsets(client, wanted, OffsetSpec.latest())
        if at is None:
            return ends
        return ends | {
            tp: offset
            for tp, offset in self._offsets(client, wanted, OffsetSpec.for_timestamp(at)).items()
            if offset >= 0
        }

    def logs(self, topics: Collection[str], at: int | None = None) -> dict[TopicPartition, LogEnds]:
        """Where the logs of these topics begin and end, and their first offset not before the timestamp ``at``."""
        if not topics:
            return {}
        client = self._client()
        wanted = [tp for topic, count in self._partitions(client, topics).items() for tp in _all(topic, count)]
        begins = self._offsets(client, wanted, OffsetSpec.earliest())
        stable = self._offsets(client, wanted, OffsetSpec.latest())
        ends = self._offsets(client, wanted, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        times = {} if at is None else self._offsets(client, wanted, OffsetSpec.for_timestamp(at))
        return {
            tp: LogEnds(begins[tp], stable[tp], ends[tp], None if times.get(tp, -1) < 0 else times[tp])
            for tp in wanted
            if tp in begins and tp in stable and tp in ends
        }

    def oldest(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The timestamp of the first record from each of these positions on, in milliseconds; ``None`` if none is left.

        What cannot be read in time, or has no time, is left out.
        """
        if not positions:
            return {}
        config = consumer_config(self._kafka, f"tidegate-survey-{secrets.token_hex(4)}", Protocol.RANGE, _SESSION)
        consumer = open_client(Consumer, {"logger": ClientLog(), **config, **_SMALL_FETCHES}, "consumer")
        found: dict[TopicPartition, int | None] = {}
        left = set(positions)
        deadline = time.monotonic() + self._seconds
        try:
            consumer.assign([KafkaPartition(*tp, offset) for tp, offset in positions.items()])
            while left and (remaining := deadline - time.monotonic()) > 0:
                message = consumer.poll(remaining)
                if message is None or message.topic() is None:  # an error that concerns no partition
                    continue
                tp = TopicPartition(message.topic(), message.partition())
                if tp not in left:
                    continue
                error = message.error()
                if error is None:
                    if (at := as_record(message).timestamp) is not None:
                        found[tp] = at
                elif error.code() == KafkaError._PARTITION_EOF:
                    found[tp] = None
                elif error.retriable():
                    continue
                left.discard(tp)
                consumer.pause([KafkaPartition(*tp)])
        except KafkaException as error:
            raise self._unavailable(error) from error
        finally:
            consumer.close()
        return found

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        """The identity of each of these topics that there is."""
        return Admin(admin_config(self._kafka)).identities(topics)

    def groups(self) -> list[GroupListing]:
        """Every consumer group that the cluster knows, by name."""
        return self._asked(lambda client: list_groups(client, self._seconds))

    def group(self, name: str) -> GroupDescription | None:
        """A consumer group and its members; ``None`` if the cluster does not know it."""
        return self._asked(lambda client: describe_group(client, name, self._seconds))

    def topics(self) -> list[TopicListing]:
        """Every topic but the cluster's own, by name."""
        return self._asked(lambda client: list_topics(client, self._seconds))

    def topic(self, name: str) -> TopicDescription | None:
        """A topic, its partitions and the settings that matter here; ``None`` if there is none."""
        logs = self.logs([name])
        if not logs:
            return None
        ends = {tp.partition: (log.begin, log.log_end) for tp, log in logs.items()}
        return self._asked(lambda client: describe_topic(client, name, ends, self._seconds))

    def _asked(self, ask: Callable[[AdminClient], T]) -> T:
        try:
            return ask(self._client())
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: BaseException) -> BrokerUnavailable:
        reason = error.args[0].str() if isinstance(error, KafkaException) else "it did not answer in time"
        return BrokerUnavailable(
            f"Kafka cannot be asked: {reason}; are address and login of {address_of(self._kafka)} right, and is it "
            "running?"
        )

    def _client(self) -> AdminClient:
        return open_client(AdminClient, admin_config(self._kafka), "administration client")

    def _partitions(self, client: AdminClient, topics: Collection[str]) -> dict[str, int]:
        try:
            known = client.list_topics(timeout=self._seconds).topics
        except KafkaException as error:
            raise self._unavailable(error) from error
        return {topic: len(known[topic].partitions) for topic in sorted(topics) if topic in known}

    def _offsets(
        self,
        client: AdminClient,
        partitions: Iterable[TopicPartition],
        which: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        wanted = {KafkaPartition(*tp): which for tp in partitions}
        if not wanted:
            return {}
        found: dict[TopicPartition, int] = {}
        try:
            futures = client.list_offsets(wanted, isolation_level=isolation, request_timeout=self._seconds)
            for tp, future in futures.items():
                try:
                    found[TopicPartition(tp.topic, tp.partition)] = future.result(self._seconds + 1).offset
                except KafkaException as error:
                    if error.args[0].code() not in _PARTITION_AWAY:
                        raise
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error
        return found


_PARTITION_AWAY = {  # deleted meanwhile, or its leader is not there yet: the others can be told all the same
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
}


def _all(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]
