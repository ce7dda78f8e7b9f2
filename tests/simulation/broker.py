"""The broker as one process sees it: a consumer whose records and notices are on their way, and the cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.core.policies import LogOffsets
from tidegate.core.positions import Identity, KeptOffset
from tidegate.core.records import Record, TopicPartition
from tidegate.kafka.consumer import Fetched, RebalanceListener

from .coordinator import Notice
from .log import TOPIC
from .steps import Step
from .store import Cut

if TYPE_CHECKING:
    from .process import Process

FETCH = 4
"""Records of one partition that a fetch returns at most."""


class Source:
    """One consumer. Records that it has fetched are handed out at the next poll, whatever has happened by then."""

    def __init__(self, process: Process, rebalance: RebalanceListener) -> None:
        self.process = process
        self.world = process.world
        self.rebalance = rebalance
        self.places: dict[TopicPartition, int | None] = {}
        self.topic_ids: dict[TopicPartition, str | None] = {}
        self.stopped: set[TopicPartition] = set()
        self.told: dict[TopicPartition, int] = {}
        self.under_way: list[Record] = []
        self.is_subscribed = False

    # The interface RecordSource

    def subscribe(self, topics: list[str]) -> None:
        world = self.world
        self.is_subscribed = bool(topics)
        if topics:
            world.coordinator.join(self.process, world.now)
            world.coordinator.rebalance(world.now)
        else:
            world.coordinator.leave(self.process, world.now)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        raise NotImplementedError

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        """Poll: answer the coordinator, and hand out what was on its way before that."""
        process, world = self.process, self.world
        records: list[Record] = []
        fetched = Fetched(records, [], [], [])
        if not (self.under_way or process.inbox) and timeout:
            self._read(fetched, most)
        idle = timeout and not (self.under_way or process.inbox or any(fetched))
        world.scheduler.pause(Step.FETCH, world.now + timeout if idle else 0.0)
        stale, self.under_way = self.under_way, []
        while process.inbox and world.now >= process.deaf_until:
            self._heed(*process.inbox.popleft())
            if world.rng.random() < 0.5:
                break
        records.extend(stale)
        if process.cut:
            process.cut = Cut.NONE
        else:
            self._read(fetched, most)
        return fetched

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        if partition not in self.places or self.world.is_unlucky(0.1):
            return False
        self._begin(partition, offset)
        return True

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.stopped.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self.stopped.difference_update(partitions)

    def mirror(self, positions: Mapping[TopicPartition, int]) -> None:
        pass

    def commit(self, positions: Mapping[TopicPartition, KeptOffset], *, asynchronous: bool = False) -> None:
        raise NotImplementedError

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        raise NotImplementedError

    def end(self, partition: TopicPartition) -> int | None:
        return self.world.logs[partition].end

    def serve(self) -> None:
        pass

    def close(self) -> None:
        if self.is_subscribed and self.places:
            self.rebalance.revoked(sorted(self.places))
        self._drop(list(self.places))
        self.world.coordinator.leave(self.process, self.world.now)

    # Rebalances

    def _heed(self, notice: Notice, partitions: list[TopicPartition]) -> None:
        process, world = self.process, self.world
        if notice is Notice.ASSIGNED:
            for tp in partitions:
                self.places[tp] = None
            starts = self.rebalance.assigned(partitions)
            for tp in partitions:
                if tp in starts and tp in self.places:
                    self._begin(tp, starts[tp])
            self.stopped.difference_update(partitions)
        elif notice is Notice.REVOKED:
            self.rebalance.revoked(partitions)
            self._drop(partitions)
            world.coordinator.gave_up(process, partitions)
        else:
            self.rebalance.lost(sorted(self.places))
            self._drop(list(self.places))
            world.coordinator.join(process, world.now)
            world.coordinator.rebalance(world.now)

    def _begin(self, tp: TopicPartition, offset: int) -> None:
        self._purge([tp])
        self.places[tp] = offset
        self.topic_ids[tp] = self.topic_id(tp)

    def topic_id(self, tp: TopicPartition) -> str | None:
        """Fetches name the topic by its id: that of the claim."""
        row = self.process.store.row(tp)
        return None if row is None else row.identity.topic_id

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self.places.pop(tp, None)
            self.stopped.discard(tp)
        self._purge(partitions)

    def _purge(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self.told.pop(tp, None)
        if self.under_way:
            self.under_way = [record for record in self.under_way if record.source not in partitions]

    # Records

    def _read(self, fetched: Fetched, most: int) -> None:
        """Fetch: records are on their way from now on; ends and refused offsets are known at once."""
        world = self.world
        topic_id = str(world.topic_id)
        for tp, at in self.places.items():
            if at is None or tp in self.stopped or self.topic_ids.get(tp) != topic_id:
                continue
            log = world.logs[tp]
            if at < log.start or at > log.end:
                if self.told.get(tp) != ~at:
                    self.told[tp] = ~at
                    fetched.out_of_range.append(tp)
                continue
            if at == log.end:
                if self.told.get(tp) != at and not any(record.source == tp for record in self.under_way):
                    self.told[tp] = at
                    fetched.ends.append((tp, at))
                continue
            found, reached = log.fetch(at, min(FETCH, most))
            self.under_way += found
            self.places[tp] = reached


class Cluster:
    """The cluster's answers to the questions of one process."""

    def __init__(self, process: Process) -> None:
        self.world = process.world

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        self.world.scheduler.pause()
        return {TOPIC: Identity("here", str(self.world.topic_id))}

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        return set(self.world.logs)

    def logs(self, partitions: Iterable[TopicPartition], at: int | None = None) -> dict[TopicPartition, LogOffsets]:
        self.world.scheduler.pause()
        logs = self.world.logs
        return {tp: LogOffsets(logs[tp].start, logs[tp].end) for tp in partitions if tp in logs}

    def unanswered(self) -> None: ...
