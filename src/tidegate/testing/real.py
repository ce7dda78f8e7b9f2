"""A real broker for tests: a prefix gives each test its own topics and groups there."""

from __future__ import annotations

import atexit
import re
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from tidegate.core.policies import GroupProtocol, LogOffsets
from tidegate.core.positions import Identity, KeptOffset
from tidegate.core.records import Record, TopicPartition
from tidegate.kafka.broker import Cluster, KafkaBroker, Membership, RecordSource
from tidegate.kafka.cluster import Admin
from tidegate.kafka.consumer import Fetched, RebalanceListener
from tidegate.kafka.feed import TopicFeed
from tidegate.testing.faults import FaultImpossible

__all__ = ["RealBroker", "Renaming", "sandbox"]


V = TypeVar("V")


class Renaming:
    """Adds a prefix to every name that goes to the broker, and removes it from every name that comes back."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def there(self, name: str) -> str:
        """Return the broker's name for a topic or a group."""
        return self._prefix + name

    def here(self, name: str) -> str:
        """Return the listener's name for a topic."""
        return name.removeprefix(self._prefix)

    def subscription(self, wanted: str) -> str:
        """Return the broker's name for a topic or a pattern (which begins with ``^``) to subscribe to."""
        if not wanted.startswith("^"):
            return self.there(wanted)
        return f"^{re.escape(self._prefix)}({wanted.removeprefix('^')})"

    def partition_there(self, partition: TopicPartition) -> TopicPartition:
        """Return a partition with the broker's topic name."""
        return TopicPartition(self.there(partition.topic), partition.partition)

    def partition_here(self, partition: TopicPartition) -> TopicPartition:
        """Return a partition with the listener's topic name."""
        return TopicPartition(self.here(partition.topic), partition.partition)

    def all_there(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return partitions with the broker's topic names."""
        return [self.partition_there(tp) for tp in partitions]

    def all_here(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return partitions with the listener's topic names."""
        return [self.partition_here(tp) for tp in partitions]

    def keys_there(self, values: Mapping[TopicPartition, V]) -> dict[TopicPartition, V]:
        """Return the mapping with the broker's topic names in its keys."""
        return {self.partition_there(tp): value for tp, value in values.items()}

    def keys_here(self, values: Mapping[TopicPartition, V]) -> dict[TopicPartition, V]:
        """Return the mapping with the listener's topic names in its keys."""
        return {self.partition_here(tp): value for tp, value in values.items()}


_SESSION = 6.0  # seconds: the shortest session timeout that a broker allows by default


@cache
def sandbox() -> str:
    """Start a broker, once per process, and return its address; it is stopped when the process ends."""
    from tidegate.sandbox import Kafka  # noqa: PLC0415 - needs Java, which most tests do without

    server = Kafka()
    server.start()
    atexit.register(server.stop)
    return server.bootstrap


class RealBroker:
    """Topics and groups on a real broker, under unique names; listeners see the names that they use.

    So tests can share a broker with each other and with other users, and touch only what they created.
    """

    can_aim = False

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = {"log_level": 0, **settings}
        self._names = Renaming(f"tidegate-test-{uuid.uuid4().hex[:12]}.")
        self._broker = KafkaBroker()
        self._feed = TopicFeed(self._settings)
        self._cluster = _RenamedCluster(self._broker.cluster(self._settings), self._names)
        self._partitions: dict[str, int] = {}

    # The interface Broker, for listeners. The app's settings are ignored: they name another broker

    def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """Return an object that answers questions about the cluster, under the listener's names."""
        return self._cluster

    def source(self, settings: Mapping[str, Any], membership: Membership, rebalance: RebalanceListener) -> RecordSource:
        """Open a consumer that reads and rebalances under the listener's names."""
        here = membership._replace(group=self._names.there(membership.group), session_timeout=_SESSION)
        told = _RenamedRebalance(rebalance, self._names)
        brisk = {} if membership.protocol is GroupProtocol.CONSUMER else {"heartbeat.interval.ms": 100}
        return _RenamedSource(self._broker.source({**self._settings, **brisk}, here, told), self._names)

    # The interface KitBroker, for the test kit

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or add partitions to an existing one."""
        known = self._partitions.get(topic, 0)
        if known == 0:
            self._feed.create(self._names.there(topic), partitions)
        elif partitions > known:
            self._feed.grow(self._names.there(topic), partitions)
        self._partitions[topic] = max(known, partitions)

    def names(self) -> list[str]:
        """Return the names of all topics of the test, sorted."""
        return sorted(self._partitions)

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if it does not exist."""
        return self._partitions.get(topic, 0)

    def append(self, record: Record) -> Record:
        """Append a record; returns it with its offset."""
        stored = record._replace(topic=self._names.there(record.topic))
        return record._replace(offset=self._feed.append(stored))

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Return the log ends of all partitions of these topics."""
        wanted = [TopicPartition(name, number) for name in topics for number in range(self.partitions(name))]
        return {tp: log.latest for tp, log in self._cluster.logs(wanted).items()}

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed to Kafka."""
        every = [TopicPartition(name, number) for name, count in self._partitions.items() for number in range(count)]
        kept = Admin(self._settings).group_offsets(self._names.there(group), self._names.all_there(every))
        return self._names.keys_here({tp: each.offset for tp, each in kept.items()})

    def bounce(self, group: str, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """Raise :class:`FaultImpossible`: a real broker cannot take partitions away on demand."""
        raise FaultImpossible("a real broker cannot be made to take partitions away")

    def expect_move(self, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """Do nothing: the group's protocol decides which partitions move."""

    def close(self) -> None:
        """Delete the test's topics."""
        self._feed.delete([self._names.there(topic) for topic in self._partitions])
        self._partitions = {}


class _RenamedCluster:
    def __init__(self, cluster: Cluster, names: Renaming) -> None:
        self._cluster = cluster
        self._names = names
        self.unanswered = cluster.unanswered

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        found = self._cluster.identities([self._names.there(topic) for topic in topics])
        return {self._names.here(topic): identity for topic, identity in found.items()}

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        return set(self._names.all_here(self._cluster.partitions([self._names.there(topic) for topic in topics])))

    def logs(self, partitions: Iterable[TopicPartition], at: int | None = None) -> dict[TopicPartition, LogOffsets]:
        return self._names.keys_here(self._cluster.logs(self._names.all_there(partitions), at))


class _RenamedRebalance:
    def __init__(self, rebalance: RebalanceListener, names: Renaming) -> None:
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
