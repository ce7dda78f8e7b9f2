"""The topics of a broker that is none: lists of records in this process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Iterable

from tidegate.core.names import check_topic
from tidegate.core.positions import Identity
from tidegate.core.records import Record, TopicPartition
from tidegate.core.start import LogOffsets

__all__ = ["Topics"]


class Topics:
    """Topics with their partitions, and the records in them. Nothing is ever removed.

    ``changed`` is notified whenever there is something new, and guards everything that the broker holds.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._cluster_id = f"kit-{uuid.uuid4()}"
        self._ids: dict[str, str] = {}
        self._logs: dict[TopicPartition, list[Record]] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._ids

    @property
    def all(self) -> list[TopicPartition]:
        """Every partition that there is."""
        return sorted(self._logs)

    def create(self, topic: str, partitions: int) -> None:
        """A new topic; or more partitions for one that there is."""
        with self.changed:
            self._ids.setdefault(check_topic(topic), str(uuid.uuid4()))
            for number in range(partitions):
                self._logs.setdefault(TopicPartition(topic, number), [])
            self.changed.notify_all()

    def append(self, record: Record) -> Record:
        """Put a record at the end of its partition, which gives it its offset."""
        with self.changed:
            log = self._logs[record.source]
            stored = record._replace(offset=len(log))
            log.append(stored)
            self.changed.notify_all()
        return stored

    def read(self, partition: TopicPartition, offset: int, most: int) -> list[Record]:
        """The records from an offset on."""
        return self._logs[partition][offset : offset + most]

    def end(self, partition: TopicPartition) -> int:
        """The offset that the next record gets."""
        return len(self._logs[partition])

    def has(self, partition: TopicPartition, offset: int) -> bool:
        """Whether that is a place to read from."""
        return 0 <= offset <= self.end(partition)

    # What a cluster is asked

    def identities(self, topics: Iterable[str]) -> dict[str, Identity]:
        """See :meth:`Cluster.identities`."""
        return {topic: Identity(self._cluster_id, self._ids[topic]) for topic in topics if topic in self._ids}

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        """See :meth:`Cluster.partitions`."""
        return {tp for tp in self.all if tp.topic in topics}

    def logs(self, partitions: Iterable[TopicPartition], at: int | None = None) -> dict[TopicPartition, LogOffsets]:
        """See :meth:`Cluster.logs`."""
        with self.changed:
            return {
                tp: LogOffsets(0, self.end(tp), None if at is None else self._since(tp, at))
                for tp in partitions
                if tp in self._logs
            }

    def answers(self) -> bool:
        """See :meth:`Cluster.answers`."""
        return True

    def _since(self, partition: TopicPartition, at: int) -> int | None:
        """The first offset whose timestamp is not before ``at``; records may have come with any timestamp."""
        log = self._logs[partition]
        return next((record.offset for record in log if record.timestamp is not None and record.timestamp >= at), None)
