"""The broker as listeners see it: an interface that opens consumers and answers questions about the cluster.

Kafka implements it here; the test kit has an implementation without a broker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tidegate.core.policies import GroupProtocol, LogOffsets
from tidegate.core.positions import Identity, KeptOffset
from tidegate.core.records import TopicPartition, check_group
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.kafka.cluster import Admin
from tidegate.kafka.config import address_of, admin_config, consumer_config, milliseconds
from tidegate.kafka.consumer import Fetched, GroupConsumer, RebalanceListener

__all__ = ["Broker", "Cluster", "KafkaBroker", "Membership", "RecordSource"]


class Membership(NamedTuple):
    """The group of a consumer, with its rebalance protocol and its session timeout in seconds."""

    group: str
    protocol: GroupProtocol
    session_timeout: float

    @classmethod
    def of(cls, kafka: Mapping[str, Any]) -> Membership:
        """Read the membership from a consumer's settings; raises if they have no ``group.id``."""
        values = {key: str(value).strip().lower() for key, value in kafka.items()}
        protocol = GroupProtocol.RANGE  # the eager protocols are treated alike, so any of them will do
        if values.get("group.protocol") == "consumer":
            protocol = GroupProtocol.CONSUMER
        elif values.get("partition.assignment.strategy") == "cooperative-sticky":
            protocol = GroupProtocol.COOPERATIVE
        group = kafka.get("group.id")
        if not is_text(group):
            raise ConfigurationError("the consumer's settings name no group; give them a 'group.id', such as 'billing'")
        return cls(check_group(group), protocol, milliseconds(kafka, "session.timeout.ms", 45_000) / 1000)


class RecordSource(Protocol):
    """Interface of one consumer: :class:`~tidegate.kafka.consumer.GroupConsumer`, or its replacement in tests."""

    def subscribe(self, topics: list[str]) -> None:
        """Join the group for these topics or patterns; an empty list leaves the group."""

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions, without joining the group."""

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        """Poll: return what arrived within ``timeout`` seconds. The rebalance listener is called in here.

        Returns at most ``most`` records, and about ``room`` bytes.
        """

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """Continue reading at ``offset``; returns whether the seek was possible."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching from these partitions."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch from these partitions again."""

    def mirror(self, positions: Mapping[TopicPartition, int]) -> None:
        """Copy positions to Kafka's group offsets, best effort, for tools that look there."""

    def commit(self, positions: Mapping[TopicPartition, KeptOffset], *, asynchronous: bool = False) -> None:
        """Commit positions to Kafka's group offsets."""

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        """Return the positions that the group has committed to Kafka."""

    def end(self, partition: TopicPartition) -> int | None:
        """Return the end offset of a partition's log, or ``None`` if it is not known."""

    def serve(self) -> None:
        """Run the calls that other threads wait for; the polling thread calls this while it waits for one of them."""

    def close(self) -> None:
        """Leave the group."""


class Cluster(Protocol):
    """Interface for questions to a cluster: :class:`~tidegate.kafka.cluster.Admin`, or its replacement in tests."""

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        """Return the identity of each of these topics that exists."""

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        """Return every partition of these topics."""

    def logs(self, partitions: Iterable[TopicPartition], at: int | None = None) -> dict[TopicPartition, LogOffsets]:
        """Return where the logs of these partitions begin and end, and their first offset not before time ``at``."""

    def unanswered(self) -> str | None:
        """Return why the cluster does not answer; ``None`` if it does."""


class Broker(Protocol):
    """Interface through which listeners reach a cluster."""

    def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """Return an object that answers questions about the cluster; ``settings`` are librdkafka's."""

    def source(self, settings: Mapping[str, Any], membership: Membership, rebalance: RebalanceListener) -> RecordSource:
        """Open a consumer that reports its rebalances to ``rebalance``."""


class KafkaBroker:
    """A real Kafka cluster, at the address in the settings."""

    def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """Open an admin client with the settings."""
        return Admin(admin_config(settings))

    def source(self, settings: Mapping[str, Any], membership: Membership, rebalance: RebalanceListener) -> RecordSource:
        """Open a consumer; raises a :class:`ConfigurationError` for settings that would break the guarantee."""
        config = consumer_config(settings, *membership)
        return GroupConsumer(
            config, rebalance, incremental=membership.protocol.is_incremental, address=address_of(config)
        )
