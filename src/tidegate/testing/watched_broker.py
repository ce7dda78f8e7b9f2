"""The broker of a run: the test's, watched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidegate.core.positions import KeptOffset
from tidegate.core.records import TopicPartition
from tidegate.kafka.broker import Broker, Cluster, Membership, RecordSource
from tidegate.kafka.source import Fetched, Rebalance
from tidegate.testing.process import Died, Process
from tidegate.testing.steps import Step

__all__ = ["WatchedBroker"]


class WatchedBroker:
    """Makes consumers that belong to a process, and end with it."""

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._process = process
        self._sources: list[_WatchedSource] = []

    def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """See :meth:`Broker.cluster`."""
        return self._broker.cluster(settings)

    def source(self, settings: Mapping[str, Any], membership: Membership, rebalance: Rebalance) -> RecordSource:
        """See :meth:`Broker.source`."""
        told = _WatchedRebalance(rebalance, self._process)
        below = self._broker.source(settings, membership, told)
        source = _WatchedSource(below, membership.group, self._process)
        self._sources.append(source)
        return source

    def close(self) -> None:
        """Close what a process that died has left open."""
        for source in self._sources:
            source.close()


class _WatchedRebalance:
    """Tells a listener of rebalances while it lives. As for any :class:`Rebalance`, nothing is raised here."""

    def __init__(self, rebalance: Rebalance, process: Process) -> None:
        self._rebalance = rebalance
        self._process = process

    def assigned(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        if self._process.dead:
            return {}
        try:
            return self._rebalance.assigned(partitions)
        except Died:
            return {}

    def revoked(self, partitions: list[TopicPartition]) -> None:
        self._tell(self._rebalance.revoked, partitions)

    def lost(self, partitions: list[TopicPartition]) -> None:
        self._tell(self._rebalance.lost, partitions)

    def _tell(self, tell: Any, partitions: list[TopicPartition]) -> None:
        if self._process.dead:
            return
        self._process.told.set()
        try:
            tell(partitions)
        except Died:
            return


class _WatchedSource:
    """A consumer that tells the process of its steps, and does nothing for a dead one."""

    def __init__(self, source: RecordSource, group: str, process: Process) -> None:
        self._source = source
        self._group = group
        self._process = process
        self._closed = False
        self._polled: set[TopicPartition] = set()
        self.seek = source.seek
        self.pause = source.pause
        self.resume = source.resume
        self.end = source.end

    def subscribe(self, topics: list[str]) -> None:
        self._source.subscribe(topics)
        self._process.joined.set()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._source.assign(partitions)
        self._process.joined.set()

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        self._process.live()
        fetched = self._source.fetch(most, timeout, room)
        self._process.live()
        if fetched.records:
            polled = sorted({record.source for record in fetched.records})
            self._polled.update(polled)
            self._process.reached(Step.POLLED, self._group, polled)
        return fetched

    def mirror(self, positions: Mapping[TopicPartition, int]) -> None:
        self._process.live()
        self._source.mirror(positions)

    def commit(self, positions: Mapping[TopicPartition, KeptOffset], *, asynchronous: bool = False) -> None:
        self._process.live()
        written = [tp for tp in positions if tp in self._polled]  # a start is committed before anything is read
        if written:
            self._process.reached(Step.WRITTEN, self._group, written)
        self._source.commit(positions, asynchronous=asynchronous)
        if written:
            self._process.reached(Step.COMMITTED, self._group, written)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        self._process.live()
        return self._source.committed(partitions)

    def serve(self) -> None:
        self._source.serve()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._source.close()
