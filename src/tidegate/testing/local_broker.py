"""A broker that is none: topics and groups in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.core.records import Record, TopicPartition
from tidegate.kafka.broker import Cluster, Membership, RecordSource
from tidegate.kafka.source import Rebalance
from tidegate.testing.group import Group
from tidegate.testing.local_source import LocalSource
from tidegate.testing.log import Topics

__all__ = ["LocalBroker"]


class LocalBroker:
    """Stands where Kafka stands: no network, no waiting."""

    can_aim = True

    def __init__(self) -> None:
        self.topics = Topics()
        self._groups: dict[str, Group] = {}
        self._moving: set[TopicPartition] = set()
        self._losing = False

    # What listeners need

    def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """See :meth:`Broker.cluster`."""
        return self.topics

    def source(self, settings: Mapping[str, Any], membership: Membership, rebalance: Rebalance) -> RecordSource:
        """See :meth:`Broker.source`."""
        return LocalSource(self, self._group(membership.group), rebalance)

    def join(self, source: LocalSource, group: Group) -> None:
        """A consumer subscribes."""
        with self.topics.changed:
            group.join(source, self.topics.all, self._moving)
            if self._losing:
                group.lose(self._moving)
            self._moving, self._losing = set(), False
            self.topics.changed.notify_all()

    def leave(self, source: LocalSource, group: Group) -> None:
        """A consumer closes."""
        with self.topics.changed:
            group.leave(source, self.topics.all)
            self.topics.changed.notify_all()

    # What a test needs

    def create(self, topic: str, partitions: int) -> None:
        """See :meth:`KitBroker.create`."""
        with self.topics.changed:
            self.topics.create(topic, partitions)
            for group in self._groups.values():
                group.share_out(self.topics.all)

    def partitions(self, topic: str) -> int:
        """See :meth:`KitBroker.partitions`."""
        return sum(tp.topic == topic for tp in self.topics.all)

    def append(self, record: Record) -> Record:
        """See :meth:`KitBroker.append`."""
        return self.topics.append(record)

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """See :meth:`KitBroker.ends`."""
        wanted = set(topics)
        return {tp: self.topics.end(tp) for tp in self.topics.all if tp.topic in wanted}

    def names(self) -> list[str]:
        """See :meth:`KitBroker.names`."""
        return sorted({tp.topic for tp in self.topics.all})

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """See :meth:`KitBroker.committed`."""
        return {tp: kept.offset for tp, kept in sorted(self._group(group).offsets.items())}

    def bounce(self, group: str, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """See :meth:`KitBroker.bounce`."""
        with self.topics.changed:
            known = self._group(group)
            known.lose(partitions) if lost else known.bounce(partitions)
            self.topics.changed.notify_all()

    def expect_move(self, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """See :meth:`KitBroker.expect_move`."""
        with self.topics.changed:
            self._moving, self._losing = set(partitions), lost

    def close(self) -> None:
        """Nothing was opened."""

    def _group(self, name: str) -> Group:
        with self.topics.changed:
            return self._groups.setdefault(name, Group())
