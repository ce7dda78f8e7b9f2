"""The broker as listeners see it: what makes their consumers, and what answers questions about the cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tidegate.core import protocols
from tidegate.core.errors import ConfigurationError
from tidegate.core.names import check_group
from tidegate.core.positions import Identity, KeptOffset
from tidegate.core.records import TopicPartition
from tidegate.core.start import LogOffsets
from tidegate.core.texts import is_text
from tidegate.kafka.admin import Admin
from tidegate.kafka.config import address_of, admin_config, consumer_config, milliseconds
from tidegate.kafka.source import Fetched, Rebalance, Source

__all__ = ["Broker", "Cluster", "KafkaBroker", "Membership", "RecordSource"]


class Membership(NamedTuple):
    """The group that a consumer belongs to, and how it belongs to it."""

    group: str
    protocol: protocols.Protocol
    session_timeout: float

    @classmethod
    def of(cls, kafka: Mapping[str, Any]) -> Membership:
        """That of a consumer which was made with these settings."""
        said = {key: str(value).strip().lower() for key, value in kafka.items()}
        protocol = protocols.Protocol.RANGE  # of the eager ones, it does not matter which
        if said.get("group.protocol") == "consumer":
            protocol = protocols.Protocol.CONSUMER
        elif said.get("partition.assignment.strategy") == "cooperative-sticky":
            protocol = protocols.Protocol.COOPERATIVE
        group = kafka.get("group.id")
        if not is_text(group):
            raise ConfigurationError("the consumer's settings name no group; give them a 'group.id', such as 'billing'")
        return cls(check_group(group), protocol, milliseconds(kafka, "session.timeout.ms", 45_000) / 1000)


class RecordSource(Protocol):
    """One consumer: :class:`~tidegate.kafka.source.Source`, or what stands in for it."""

    def subscribe(self, topics: list[str]) -> None:
        """Join the group, for topics or patterns."""

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read partitions without a group's assignment."""

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        """What there is to read; rebalances are told meanwhile."""

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """Go on reading there; whether that was possible."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch nothing from these."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch from these again."""

    def mirror(self, positions: Mapping[TopicPartition, int]) -> None:
        """Tell Kafka where the group is, best effort."""

    def commit(self, positions: Mapping[TopicPartition, KeptOffset], *, asynchronous: bool = False) -> None:
        """Keep positions in Kafka."""

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        """The positions that are kept in Kafka."""

    def end(self, partition: TopicPartition) -> int | None:
        """Where the log of a partition ends, as far as is known."""

    def serve(self) -> None:
        """Do what other threads ask for, while the polling one waits for one of them."""

    def close(self) -> None:
        """Leave the group."""


class Cluster(Protocol):
    """Questions to one cluster: :class:`~tidegate.kafka.admin.Admin`, or what stands in for it."""

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        """The identity of each of these topics that there is."""

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        """Every partition of these topics."""

    def logs(self, partitions: Iterable[TopicPartition], at: int | None = None) -> dict[TopicPartition, LogOffsets]:
        """Where the logs of these partitions begin and end."""

    def answers(self) -> bool:
        """Whether the cluster answers."""


class Broker(Protocol):
    """Where listeners read."""

    def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """Whom to ask about the cluster; ``settings`` are librdkafka's."""

    def source(self, settings: Mapping[str, Any], membership: Membership, rebalance: Rebalance) -> RecordSource:
        """A consumer that tells its rebalances to ``rebalance``."""


class KafkaBroker:
    """A Kafka cluster, at the address that the settings name."""

    def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """See :meth:`Broker.cluster`."""
        return Admin(admin_config(settings))

    def source(self, settings: Mapping[str, Any], membership: Membership, rebalance: Rebalance) -> RecordSource:
        """See :meth:`Broker.source`."""
        config = consumer_config(settings, *membership)
        return Source(config, rebalance, incremental=membership.protocol.is_incremental, address=address_of(config))
