"""Members, assignments and buffers with one rule left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidegate.core.assignment import Assignment, Reading, Received
from tidegate.core.batching import Batch, Batching
from tidegate.core.commands import Command, ReclaimPartitions
from tidegate.core.positions import GroupState, Position
from tidegate.core.records import Record, TopicPartition
from tidegate.core.spans import Span

from .member import Member


class UnknownTakenForCommitted(Member):
    """An unanswered COMMIT is taken for a good one."""

    def _unknown(self) -> None:
        self._committed()


class IdentityIgnored(Member):
    """A claim that does not say which incarnation of the topic it is for."""

    def claim(self) -> None:
        super().claim()
        self.reader.topic_ids = dict.fromkeys(self.reader.topic_ids, self.world.topic_id)

    def current_topic_id(self) -> int:
        return 0


class IdentityKnownBefore(Member):
    """The topic id is looked up when the assignment arrives, and the claim made later with what was true then."""

    known = 0

    def _obey(self, commands: Iterable[Command]) -> None:
        before = self.todo
        super()._obey(commands)
        if self.todo is not before:
            self.known = self.world.topic_id

    def current_topic_id(self) -> int:
        return self.known


class WritesWhatIsLost(Member):
    """On loss it writes what it has in hand, past the compare-and-set."""

    def _lost(self) -> None:
        for batch in self.batches:
            self.store.data.setdefault(str(batch.span.partition), []).extend(batch.records)
        super()._lost()


class SkipsInSilence(Member):
    """Where retention has passed the position, it reads on at the log's start and tells nobody."""

    def _out_of_range(self, tp: TopicPartition, at: int) -> None:
        self._obey(self.assignment.moved([Span(tp, at, self.world.logs[tp].start)]))


class StaleRecordsUsed(Assignment):
    """A record is used if its offset is not below the position, whenever it was fetched."""

    def received(self, records: Iterable[Record], since: int) -> Received:
        usable = [
            record
            for record in records
            if type(state := self.state(record.source)) is Reading and record.offset >= state.position
        ]
        return Received(usable, [])


class BatchesNeverVoid(Assignment):
    """A batch in hand is processed, whatever has become of the assignment that it was read under."""

    def holds(self, batch: Batch) -> bool:
        return type(self.state(batch.span.partition)) is Reading


class StandsDownForGood(Assignment):
    """Whoever is fenced by another owner leaves the partition to it."""

    def tick(self, now: float) -> list[Command]:
        return [it for it in super().tick(now) if not (isinstance(it, ReclaimPartitions) and it.take)]


class NeverTakes(Assignment):
    """After standing down it asks again, and leaves the partition to whoever claimed it late."""

    def tick(self, now: float) -> list[Command]:
        return [it._replace(take=False) if isinstance(it, ReclaimPartitions) else it for it in super().tick(now)]


class IdleOwnersDeaf(Assignment):
    """An owner learns of an edit when it next commits, and not before."""

    def observed(self, group: GroupState) -> list[Command]:
        return super().observed(group._replace(positions=dict(self._as_claimed())))

    def _as_claimed(self) -> Iterator[tuple[TopicPartition, Position]]:
        for tp, state in self.reading():
            yield tp, Position(tp, state.position, state.claim.epoch, state.claim.owner, None, 0)


class PauseUnheard(Assignment):
    """A group goes on when it is paused."""

    def observed(self, group: GroupState) -> list[Command]:
        return super().observed(group._replace(paused=False))


class BuffersKept(Batching):
    """Buffers outlive the stretch of reading in which they were filled."""

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        pass

    def start(self, partition: TopicPartition, position: int, generation: int) -> None:
        old = self._buffers.get(partition)
        super().start(partition, position, generation)
        if old is not None and old.records:
            new = self._buffers[partition]
            new.records, new.bytes = old.records, old.bytes
            new.end = max(position + 1, old.end)


class EndIsLastRecord(Batching):
    """A span ends behind its last record, wherever the source continues."""

    def reached(self, partition: TopicPartition, offset: int, now: float) -> None:
        pass


class StartIsFirstRecord(Batching):
    """A span starts at its first record, wherever the position is."""

    def ready(self, now: float) -> list[Batch]:
        return [
            batch._replace(span=batch.span._replace(start=batch.records[0].offset)) if batch.records else batch
            for batch in super().ready(now)
        ]
