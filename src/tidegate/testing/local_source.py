"""A consumer without a broker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.core.positions import KeptOffset
from tidegate.core.records import TopicPartition
from tidegate.kafka.source import Fetched, Rebalance
from tidegate.testing.group import Group

if TYPE_CHECKING:
    from tidegate.testing.local_broker import LocalBroker

__all__ = ["LocalSource"]

_LONGEST = 0.01  # seconds without a record: nothing is under way that would take longer to come


class LocalSource:
    """Reads the topics of a :class:`LocalBroker` as :class:`~tidegate.kafka.source.Source` reads those of Kafka."""

    def __init__(self, broker: LocalBroker, group: Group, rebalance: Rebalance) -> None:
        self.subscription: list[str] = []
        self._broker = broker
        self._topics = broker.topics
        self._group = group
        self._rebalance = rebalance
        self._places: dict[TopicPartition, int | None] = {}
        self._paused: set[TopicPartition] = set()
        self._told: dict[TopicPartition, int] = {}  # the end of which log was told, and the places that were refused

    def subscribe(self, topics: list[str]) -> None:
        """See :meth:`RecordSource.subscribe`."""
        self.subscription = topics
        self._broker.join(self, self._group)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """See :meth:`RecordSource.assign`."""
        self._take(list(partitions))

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        """See :meth:`RecordSource.fetch`."""
        if self._rebalanced():
            return Fetched([], [], [], [])
        deadline = time.monotonic() + min(timeout, _LONGEST)
        with self._topics.changed:
            fetched = self._read(most, room)
            while not (any(fetched) or self._group.has_news(self)):
                if not self._topics.changed.wait(deadline - time.monotonic()):
                    break
                fetched = self._read(most, room)
        return fetched

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """See :meth:`RecordSource.seek`."""
        if partition not in self._places:
            return False
        self._places[partition] = offset
        self._told.pop(partition, None)
        return True

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """See :meth:`RecordSource.pause`."""
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """See :meth:`RecordSource.resume`."""
        self._paused.difference_update(partitions)

    def mirror(self, positions: Mapping[TopicPartition, int]) -> None:
        """See :meth:`RecordSource.mirror`."""
        self.commit({tp: KeptOffset(offset) for tp, offset in positions.items()})

    def commit(self, positions: Mapping[TopicPartition, KeptOffset], *, asynchronous: bool = False) -> None:
        """See :meth:`RecordSource.commit`."""
        with self._topics.changed:
            self._group.offsets.update(positions)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        """See :meth:`RecordSource.committed`."""
        with self._topics.changed:
            return {tp: self._group.offsets[tp] for tp in partitions if tp in self._group.offsets}

    def end(self, partition: TopicPartition) -> int | None:
        """See :meth:`RecordSource.end`."""
        return self._topics.end(partition)

    def serve(self) -> None:
        """See :meth:`RecordSource.serve`: there is nothing that only the polling thread could do."""

    def close(self) -> None:
        """See :meth:`RecordSource.close`."""
        if self.subscription and self._places:
            self._rebalance.revoked(sorted(self._places))
        self._drop(list(self._places))
        self._broker.leave(self, self._group)

    def _rebalanced(self) -> bool:
        """Tell what there is to tell of the group; whether there was something."""
        changed = self._topics.changed
        with changed:
            lost = self._group.to_lose(self)
        if lost:
            self._rebalance.lost(lost)
            self._drop(lost)
        with changed:
            revoked = self._group.to_revoke(self)
        if revoked:
            self._rebalance.revoked(revoked)
            self._drop(revoked)
            with changed:
                self._group.given_up(self, revoked)
                changed.notify_all()
        with changed:
            added = self._group.to_assign(self)
        if added:
            self._take(added)
        return bool(lost or revoked or added)

    def _take(self, partitions: list[TopicPartition]) -> None:
        starts = self._rebalance.assigned(partitions)
        self._places.update((tp, starts.get(tp)) for tp in partitions)
        self._paused.difference_update(partitions)

    def _drop(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._places.pop(tp, None)
            self._told.pop(tp, None)
            self._paused.discard(tp)

    def _read(self, most: int, room: int | None) -> Fetched:
        fetched = Fetched([], [], [], [])
        for tp, place in self._places.items():
            if place is None or tp in self._paused:
                continue
            if self._told.get(tp) == place and self._topics.end(tp) <= place:
                continue
            if not self._topics.has(tp, place):
                self._told[tp] = place
                fetched.out_of_range.append(tp)
                continue
            for record in self._topics.read(tp, place, most - len(fetched.records)):
                if room is not None and room <= 0:
                    break
                room = None if room is None else room - record.size
                fetched.records.append(record)
                self._places[tp] = record.offset + 1
            if (reached := self._places[tp]) == self._topics.end(tp):
                self._told[tp] = reached
                fetched.ends.append((tp, reached))
        return fetched
