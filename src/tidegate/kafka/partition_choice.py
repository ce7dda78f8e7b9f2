"""Choosing partitions in Python: how many a topic has, and what the user's partitioner says."""

from __future__ import annotations

import time
from typing import Annotated, Any, TypeAlias, assert_never, cast

from confluent_kafka import KafkaException
from confluent_kafka import Producer as Client

from tidegate.core.arguments import Kind, argument, kind_of
from tidegate.core.partitioners import Partitioner, PartitionerChoice, Partitioning, RoundRobin
from tidegate.kafka.blame import blamed
from tidegate.kafka.errors import RecordRejected, error_of, producer_error

__all__ = ["PartitionChoice", "chosen_partitioner"]

_FRESH = 10.0  # seconds that a count holds: so soon records go to partitions that a topic has got
_LOOK = 1.0  # seconds that asking again may take, while an older count is known


def chosen_partitioner(choice: PartitionerChoice) -> Partitioner | type[RoundRobin] | None:
    """What chooses partitions in Python; ``None`` if the client does, which is faster."""
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
    Any, Kind(f"{', '.join(map(repr, _NAMES))} or a function", _partitioner, _NAMES)
]


class PartitionChoice:
    """Asks a partitioner, with the number of partitions that the topic has now."""

    def __init__(self, client: Client, chosen: Partitioner | type[RoundRobin], max_block: float) -> None:
        self._client = client
        self._chosen = chosen
        self._max_block = max_block
        self._round_robins: dict[str, RoundRobin] = {}  # one busy topic does not make another skip partitions
        self._counts: dict[str, tuple[int, float]] = {}

    def __call__(self, topic: str, key: Any, value: Any) -> int:
        """The partition, or -1 to leave it to the client."""
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
                f"{topic}: the partitioner chose something else than a partition from 0 to {count - 1}, or None"
            )
        return partition

    def _count(self, topic: str) -> int:
        known, until = self._counts.get(topic, (0, 0.0))
        now = time.monotonic()
        if now < until:
            return known
        try:
            found = self._client.list_topics(topic, timeout=_LOOK if known else self._max_block).topics[topic]
        except KafkaException as exception:
            if not known:
                raise producer_error(f"{topic}: how many partitions it has is not known", error_of(exception)) from None
            found = None
        if found is not None and found.error is not None and not known:
            raise producer_error(f"{topic}: how many partitions it has is not known", found.error)
        count = len(found.partitions) if found is not None and found.error is None else known
        self._counts[topic] = count, time.monotonic() + _FRESH
        return count
