"""Partitioners: choose the partition of a topic for a record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from itertools import count
from typing import Annotated, Any, Protocol, TypeAlias, assert_never, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from tidegate.core.arguments import Accepts, Count, argument, described, kind_of
from tidegate.errors import ConfigurationError, RecordRejected
from tidegate.kafka.codes import error_of, producer_error
from tidegate.kafka.delivery import blamed

__all__ = [
    "PartitionChoice",
    "Partitioner",
    "PartitionerChoice",
    "Partitioning",
    "RoundRobin",
    "chosen_partitioner",
    "java_partition",
    "murmur2",
]


_MIX = 0x5BD1E995
_SEED = 0x9747B28C
_WORD = 0xFFFFFFFF


class Partitioning(StrEnum):
    """The partitioners that come with Tidegate."""

    MURMUR2 = "murmur2"
    """By the hash of the key, as Java's default; records without a key stay on one partition for a batch."""

    ROUND_ROBIN = "round-robin"
    """One partition after the other, regardless of the key."""


class Partitioner(Protocol):
    """Interface of a user-defined partitioner. Every sending thread calls it, so it must be thread-safe."""

    def __call__(self, key: Any, value: Any, partitions: int, /) -> int | None:
        """Return the partition, from 0 to ``partitions - 1``, or ``None`` for the default choice.

        ``key`` and ``value`` are as the user passed them, before serialization.
        """


PartitionerChoice: TypeAlias = Partitioning | str | Partitioner


class RoundRobin:
    """Partitioner that takes one partition after the other; one instance serves one topic."""

    def __init__(self) -> None:
        self._next = count()

    def __call__(self, key: Any, value: Any, partitions: int, /) -> int:
        """Return the next partition."""
        return next(self._next) % partitions


def java_partition(key: bytes, partitions: int) -> int:
    """Return the partition that Java's default partitioner chooses for a key."""
    if not isinstance(key, bytes):
        raise ConfigurationError(f"key: expected bytes, not {described(key)}")
    partitions = argument("partitions", Count, partitions)
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Return the hash that Kafka's Java client uses for keys, as an unsigned 32-bit number."""
    whole = len(data) & ~3
    state = _SEED ^ len(data)
    for word in _words(data[:whole]):
        state = (state * _MIX & _WORD) ^ _stirred(word)
    rest = data[whole:]
    if rest:
        state = (state ^ int.from_bytes(rest, "little")) * _MIX & _WORD
    state = (state ^ state >> 13) * _MIX & _WORD
    return state ^ state >> 15


def _words(data: bytes) -> Iterator[int]:
    for start in range(0, len(data), 4):
        yield int.from_bytes(data[start : start + 4], "little")


def _stirred(word: int) -> int:
    word = word * _MIX & _WORD
    return (word ^ word >> 24) * _MIX & _WORD


_FRESH = 10.0  # seconds that a partition count is cached: new partitions get records after at most this time
_NEW = 5.0  # seconds that a topic may take to be known to every broker after it was created
_LOOK = 1.0  # timeout in seconds for refreshing a count, while an older one is known


def chosen_partitioner(choice: PartitionerChoice) -> Partitioner | type[RoundRobin] | None:
    """Return the partitioner to call from Python; ``None`` if the client chooses itself, which is faster."""
    chosen = argument("partitioner", _PartitionerArgument, choice)
    if not isinstance(chosen, Partitioning):
        return cast("Partitioner", chosen)
    match chosen:
        case Partitioning.ROUND_ROBIN:
            return RoundRobin
        case Partitioning.MURMUR2:
            return None
        case other:
            assert_never(other)


def _partitioner(given: Any) -> Partitioning | Partitioner | None:
    if isinstance(given, (str, Partitioning)):
        named: Partitioning | None = kind_of(Partitioning).convert(given)
        return named
    return given if callable(given) and not isinstance(given, type) else None


_NAMES = tuple(each.value for each in Partitioning)
_PartitionerArgument: TypeAlias = Annotated[
    Any, Accepts(f"{', '.join(map(repr, _NAMES))} or a function", _partitioner, _NAMES)
]


class PartitionChoice:
    """Calls a partitioner with the topic's current number of partitions."""

    def __init__(self, client: Client, chosen: Partitioner | type[RoundRobin], max_block: float) -> None:
        self._client = client
        self._chosen = chosen
        self._max_block = max_block
        self._round_robins: dict[str, RoundRobin] = {}  # by topic, so that one does not make another skip
        self._counts: dict[str, tuple[int, float]] = {}

    def __call__(self, topic: str, key: Any, value: Any) -> int:
        """Return the partition, or -1 to leave the choice to the client."""
        count = self._count(topic)
        if isinstance(self._chosen, type):
            return self._round_robins.setdefault(topic, RoundRobin())(key, value, count)
        try:
            partition = self._chosen(key, value, count)
        except Exception as error:
            raise RecordRejected(f"{topic}: the partitioner failed with {blamed(error)}") from error
        if partition is None:
            return -1
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < count:
            raise RecordRejected(
                f"{topic}: the partitioner returned something other than a partition from 0 to {count - 1}, or None"
            )
        return partition

    def _count(self, topic: str) -> int:
        known, until = self._counts.get(topic, (0, 0.0))
        now = time.monotonic()
        if now < until:
            return known
        try:
            found = self._client.list_topics(topic, timeout=_LOOK if known else self._max_block).topics[topic]
            until = now + min(_NEW, self._max_block)
            while not known and _may_come(found.error) and time.monotonic() < until:
                time.sleep(0.05)
                found = self._client.list_topics(topic, timeout=self._max_block).topics[topic]
        except KafkaException as exception:
            if not known:
                raise producer_error(f"{topic}: its number of partitions is not known", error_of(exception)) from None
            found = None
        if found is not None and found.error is not None and not known:
            raise producer_error(f"{topic}: its number of partitions is not known", found.error)
        count = len(found.partitions) if found is not None and found.error is None else known
        self._counts[topic] = count, time.monotonic() + _FRESH
        return count


def _may_come(error: KafkaError | None) -> bool:
    return error is not None and error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
