"""A real broker for a test: every test has topics and groups of its own there, whatever they are called."""

from __future__ import annotations

import atexit
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from tidegate.core.positions import Identity, KeptOffset
from tidegate.core.protocols import Protocol
from tidegate.core.records import Record, TopicPartition
from tidegate.core.start import LogOffsets
from tidegate.kafka.broker import Cluster, KafkaBroker, Membership, RecordSource
from tidegate.kafka.feed import Feed
from tidegate.kafka.source import Fetched, Rebalance
from tidegate.testing.errors import FaultImpossible
from tidegate.testing.renaming import Renaming

__all__ = ["RealBroker", "sandbox"]

_SESSION = 6.0  # seconds: the shortest that a broker allows unless told otherwise


@cache
def sandbox() -> str:
    """The address of a broker that is started now, and stopped when this process ends."""
    from tidegate.sandbox import Kafka  # noqa: PLC0415 - needs Java, which most tests do without

    server = Kafka()
    server.start()
    atexit.register(server.stop)
    return server.bootstrap


class RealBroker:
    """Topics and groups on a real broker, under names that no other test has; listeners see the names that they know.

    So tests can share a broker, also with people, and nothing is touched that was not made here.
    """

    can_aim = False

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = {"log_level": 0, **settings}
        self._names = Renaming(f"tidegate-test-{uuid.uuid4().hex[:12]}.")
        self._broker = KafkaBroker()
        self._feed = Feed(self._settings)
        self._cluster = _RenamedCluster(self._broker.cluster(self._settings), self._names)
        self._partitions: dict[str, int] = {}

    # What listeners need: the app's own settings are for another broker

    def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """See :meth:`Broker.cluster`."""
        return self._cluster

    def source(self, settings: Mapping[str, Any], membership: Membership, rebalance: Rebalance) -> RecordSource:
        """See :meth:`Broker.source`."""
        here = membership._replace(group=self._names.there(membership.group), session_timeout=_SESSION)
        told = _RenamedRebalance(rebalance, self._names)
        brisk = {} if membership.protocol is Protocol.CONSUMER else {"heartbeat.interval.ms": 100}
        return _RenamedSource(self._broker.source({**self._settings, **brisk}, here, told), self._names)

    # What a test needs

    def create(self, topic: str, partitions: int) -> None:
        """See :meth:`KitBroker.create`."""
        known = self._partitions.get(topic, 0)
        if known == 0:
            self._feed.create(self._names.there(topic), partitions)
        elif partitions > known:
            self._feed.grow(self._names.there(topic), partitions)
        self._partitions[topic] = max(known, partitions)

    def names(self) -> list[str]:
        """See :meth:`KitBroker.names`."""
        return sorted(self._partitions)

    def partitions(self, topic: str) -> int:
        """See :meth:`KitBroker.partitions`."""
        return self._partitions.get(topic, 0)

    def append(self, record: Record) -> Record:
        """See :meth:`KitBroker.append`."""
        stored = record._replace(topic=self._names.there(record.topic))
        return record._replace(offset=self._feed.append(stored))

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """See :meth:`KitBroker.ends`."""
        wanted = [TopicPartition(name, number) for name in topics for number in range(self.partitions(name))]
        return {tp: log.latest for tp, log in self._cluster.logs(wanted).items()}

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """See :meth:`KitBroker.committed`."""
        return self._names.keys_here(self._feed.committed(self._names.there(group)))

    def bounce(self, group: str, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """See :meth:`KitBroker.bounce`."""
        raise FaultImpossible("a real broker cannot be told to take partitions away")

    def expect_move(self, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """What moves is for the group's protocol to say."""

    def close(self) -> None:
        """See :meth:`KitBroker.close`."""
        self._feed.delete([self._names.there(topic) for topic in self._partitions])
        self._partitions = {}


class _RenamedCluster:
    def __init__(self, cluster: Cluster, names: Renaming) -> None:
        self._cluster = cluster
        self._names = names
        self.answers = cluster.answers

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        found = self._cluster.identities([self._names.there(topic) for topic in topics])
        return {self._names.here(topic): identity for topic, identity in found.items()}

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        return set(self._names.all_here(self._cluster.partitions([self._names.there(topic) for topic in topics])))

    def logs(self, partitions: Iterable[TopicPartition], at: int | None = None) -> dict[TopicPartition, LogOffsets]:
        return self._names.keys_here(self._cluster.logs(self._names.all_there(partitions), at))


class _RenamedRebalance:
    def __init__(self, rebalance: Rebalance, names: Renaming) -> None:
        self._rebalance = rebalance
        self._names = names

    def assigned(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._names.keys_there(self._rebalance.assigned(self._names.all_here(partitions)))

    def revoked(self, partitions: list[TopicPartition]) -> None:
        self._rebalance.revoked(self._names.all_here(partitions))

    def lost(self, partitions: list[TopicPartition]) -> None:
        self._rebalance.lost(self._names.all_here(partitions))


class _RenamedSource:
    def __init__(self, source: RecordSource, names: Renaming) -> None:
        self._source = source
        self._names = names
        self.close, self.serve = source.close, source.serve

    def subscribe(self, topics: list[str]) -> None:
        self._source.subscribe([self._names.subscription(topic) for topic in topics])

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._source.assign(self._names.all_there(partitions))

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        names = self._names
        records, ends, out_of_range, troubles = self._source.fetch(most, timeout, room)
        return Fetched(
            [record._replace(topic=names.here(record.topic)) for record in records],
            [(names.partition_here(tp), offset) for tp, offset in ends],
            names.all_here(out_of_range),
            troubles,
        )

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        return self._source.seek(self._names.partition_there(partition), offset)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._source.pause(self._names.all_there(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._source.resume(self._names.all_there(partitions))

    def mirror(self, positions: Mapping[TopicPartition, int]) -> None:
        self._source.mirror(self._names.keys_there(positions))

    def commit(self, positions: Mapping[TopicPartition, KeptOffset], *, asynchronous: bool = False) -> None:
        self._source.commit(self._names.keys_there(positions), asynchronous=asynchronous)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        return self._names.keys_here(self._source.committed(self._names.all_there(partitions)))

    def end(self, partition: TopicPartition) -> int | None:
        return self._source.end(self._names.partition_there(partition))
