"""Members, and parts of them, with one rule left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tidegate.app import intake as intakes
from tidegate.app import member as members
from tidegate.app.commit import Commit
from tidegate.app.intake import Intake
from tidegate.app.member import Member
from tidegate.core.assignment import (
    Assignment,
    Command,
    DropBuffers,
    ReadCommand,
    Reading,
    Received,
    ReclaimPartitions,
    SeekTo,
)
from tidegate.core.batches import Batch, Batching
from tidegate.core.positions import GroupState, Identity, Position
from tidegate.core.records import RecordColumns, TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.errors import Fenced, LedgerError
from tidegate.kafka.claims import Claimer
from tidegate.kafka.consumer import Fetched

from .broker import Cluster, Source
from .store import GROUP, Store, StoreTransaction


class IdentityIgnored(Cluster):
    """A claim does not say which incarnation of the topic it is for."""

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        return {topic: Identity("here", "0") for topic in topics}


class ReadByName(Source):
    """Fetches name the topic by its name, and read whatever bears it."""

    def _read(self, fetched: Fetched, most: int) -> None:
        self.topic_ids = dict.fromkeys(self.places, str(self.world.topic_id))
        super()._read(fetched, most)


def identity_known_before() -> AbstractContextManager[object]:
    """The topic id is looked up before the claim, which is then made with what was true before."""

    def claim(self: Claimer, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Claim]:
        wanted = list(partitions)
        known = self._admin.identities({tp.topic for tp in wanted})
        return self._ledger.claim(
            self._group,
            wanted,
            self._starts,
            identities=lambda: known,
            restart=self._recreated.restart,
            subscription=self._subscription,
        )

    return patch.object(Claimer, "claim", claim)


class WritesWhatIsLost(Member):
    """On loss it writes what it has read, past the compare-and-set."""

    def lost(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            if (buffer := self._intake._batching._buffers.get(tp)) is not None:
                self._ledger.data.setdefault(str(tp), []).extend(buffer.records)
        super().lost(partitions)


class SkipsInSilence(Member):
    """Where retention has passed the position, it reads on at the log's start and tells nobody."""

    def _step_over_what_is_gone(self, partition: TopicPartition) -> None:
        state = self._assignment.state(partition)
        if isinstance(state, Reading):
            log = self._ledger.world.logs[partition]
            self._obey(self._assignment.moved([Span(partition, state.position, log.start)]))


class DrainOutlastsSession(Member):
    """A drain that took too long commits and releases by the row as it is now, as if the session had lasted."""

    _drains = False

    def revoked(self, partitions: list[TopicPartition]) -> None:
        self._drains = True
        super().revoked(partitions)
        self._drains = False

    def _not_committed(self, commit: Commit, error: Exception) -> None:
        if self._drains and isinstance(error, Fenced):
            for batch in commit.rest():
                self._commit_anyway(batch)
        super()._not_committed(commit, error)

    def _commit_anyway(self, batch: Batch) -> None:
        store: Store = self._ledger
        tp, start, *_ = batch.span
        row = store.row(tp)
        if row is None or row.owner is None or row.next_offset != start:
            return

        def write(tx: StoreTransaction) -> None:
            for record in batch.records:
                tx.append(str(tp), record)

        try:
            store.transact({tp: row.claim(GROUP)}, [batch.span], write)
        except LedgerError:
            return
        row = store.row(tp)
        assert row is not None
        self._release([{tp: row.claim(GROUP)}])


class JobOutlivesRevoke(Member):
    """A rebalance does not wait for the job under way."""

    def _finish_job(self) -> None:
        self._hurry.set()


class CommitsAppliedBlindly(Assignment):
    """What a job has committed moves the position, whatever has become of the partition since the job began."""

    def committed(self, spans: Iterable[Span]) -> None:
        for span in spans:
            state = self._states.get(span.partition)
            if type(state) is Reading:
                self._states[span.partition] = Reading(state.claim, span.end, state.generation)


class IntakeKeepsBuffer(Intake):
    """What was read under one assignment is committed under the next one."""

    def obey(self, command: ReadCommand) -> None:
        if isinstance(command, DropBuffers):
            self._stop_computing(command.partitions)
            for tp in command.partitions:
                self._seeks.pop(tp, None)
        else:
            super().obey(command)

    def begin(self, at: SeekTo) -> None:
        old = self._batching._buffers.get(at.partition)
        super().begin(at)
        if old is not None and old.records:
            _keep(self._batching, old, at.partition)


class StaleRecordsUsed(Assignment):
    """A record is used if its offset is not below the position, whenever it was fetched."""

    def received(self, runs: Iterable[RecordColumns], since: int) -> Received:
        usable = [
            wanted
            for run in runs
            if type(state := self.state(run.source)) is Reading and (wanted := run.behind(state.position)) is not None
        ]
        return Received(usable, [])


class BatchesNeverVoid(Assignment):
    """A batch in hand is processed, whatever has become of the assignment that it was read under."""

    def holds(self, batch: Batch) -> bool:
        return type(self.state(batch.span.partition)) is Reading


class StandsDownForGood(Assignment):
    """A member that is fenced by another owner leaves the partition to it."""

    def tick(self, now: float) -> list[Command]:
        return [it for it in super().tick(now) if not (isinstance(it, ReclaimPartitions) and it.take)]


class NeverTakes(Assignment):
    """After standing down it asks again, and leaves the partition to the member that claimed it late."""

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
            _keep(self, old, partition)


def _keep(batching: Batching, old: Any, partition: TopicPartition) -> None:
    new = batching._buffers[partition]
    new.records, new.bytes = old.records, old.bytes
    new.end = max(new.start + 1, old.end)


class EndIsLastRecord(Batching):
    """A span ends behind its last record, wherever the source continues."""

    def reached(self, partition: TopicPartition, offset: int, now: float) -> None:
        pass


class StartIsFirstRecord(Batching):
    """A span starts at its first record, wherever the position is."""

    def ready(self, now: float, without: Collection[TopicPartition] = ()) -> list[Batch]:
        return [
            batch._replace(span=batch.span._replace(start=batch.records[0].offset)) if batch.records else batch
            for batch in super().ready(now, without)
        ]


@contextmanager
def part(
    assignment: type[Assignment] = Assignment, batching: type[Batching] = Batching, intake: type[Intake] = Intake
) -> Iterator[None]:
    """Members are made with another part."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(members, "Assignment", assignment))
        patches.enter_context(patch.object(members, "Intake", intake))
        patches.enter_context(patch.object(intakes, "Batching", batching))
        yield
