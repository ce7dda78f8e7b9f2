"""What one member of a group may read and commit: a state for each assigned partition, events in, commands out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from random import Random
from typing import NamedTuple, TypeAlias

from tidegate.core.batching import Batch
from tidegate.core.commands import (
    ClaimPartitions,
    Command,
    DropBuffers,
    PausePartitions,
    ReclaimPartitions,
    ReleaseClaims,
    ResumePartitions,
    SeekTo,
)
from tidegate.core.positions import GroupState
from tidegate.core.records import Record, TopicPartition
from tidegate.core.spans import Claim, Span

__all__ = ["Assignment", "Claiming", "Reading", "Received", "Reclaiming", "StoodDown"]

Partitions: TypeAlias = Iterable[TopicPartition]
Claims: TypeAlias = Mapping[TopicPartition, Claim]


class Claiming(NamedTuple):
    """Assigned, but without a position: nothing can be read."""


class Reading(NamedTuple):
    """Claimed. ``position`` is where the next commit starts, ``generation`` names this stretch of reading."""

    claim: Claim
    position: int
    generation: int


class Reclaiming(NamedTuple):
    """Fenced, or in doubt about a commit: the row has to be looked at, and claimed again if it may be."""

    claim: Claim
    take: bool


class StoodDown(NamedTuple):
    """Another owner has it. If it is still assigned here at ``until``, that owner came late, and it is taken back."""

    claim: Claim
    until: float


State: TypeAlias = Claiming | Reading | Reclaiming | StoodDown


class Received(NamedTuple):
    """What may be used of the records that one fetch returned, and what to do about the rest."""

    records: list[Record]
    commands: list[Command]


class Assignment:
    """The partitions of one member.

    The caller carries the commands out in their order and reports back: a claim by :meth:`claimed`, a reclaim by
    :meth:`reclaimed`. What failed needs no report: :meth:`tick` asks for it again.

    Every stretch of reading has a generation, and so has every batch: a batch is used only while the stretch that it
    was read in goes on. Whatever ends it (revocation, loss, a fence, a seek) voids its batches, wherever they are.
    """

    __slots__ = ("_due", "_generation", "_paused", "_rng", "_session_timeout", "_states")

    def __init__(self, session_timeout: float, rng: Random) -> None:
        self._session_timeout = session_timeout
        self._rng = rng
        self._states: dict[TopicPartition, State] = {}
        self._generation = 0
        self._paused = False
        self._due = math.inf

    # What holds now

    @property
    def generation(self) -> int:
        """To be noted before records are fetched, and handed to :meth:`received` with them."""
        return self._generation

    @property
    def paused(self) -> bool:
        """Whether the group is paused, as far as was observed."""
        return self._paused

    @property
    def partitions(self) -> list[TopicPartition]:
        """Every assigned partition, claimed or not."""
        return sorted(self._states)

    def state(self, partition: TopicPartition) -> State | None:
        """The state of a partition; ``None`` if it is not assigned."""
        return self._states.get(partition)

    def reading(self) -> Iterator[tuple[TopicPartition, Reading]]:
        """The partitions that can be read, those of a paused group included."""
        for tp, state in self._states.items():
            if type(state) is Reading:
                yield tp, state

    def accepts(self, record: Record, since: int) -> bool:
        """Whether a record may be used that was returned by a fetch which began at generation ``since``.

        That its partition is claimed and its offset not below the position is not enough: a record from before a seek
        back would hide those in front of it.
        """
        state = self._states.get(record.source)
        return type(state) is Reading and state.generation <= since and record.offset >= state.position

    def reads_since(self, partition: TopicPartition, since: int) -> bool:
        """Whether a partition is read, in a stretch that was under way at generation ``since``."""
        state = self._states.get(partition)
        return type(state) is Reading and state.generation <= since

    def received(self, records: Iterable[Record], since: int) -> Received:
        """Sort out what a fetch that began at generation ``since`` returned.

        A partition whose reading began during the fetch may have records of both stretches in it, and nobody can tell
        which: they are all dropped and read again.
        """
        usable: list[Record] = []
        again: dict[TopicPartition, Reading] = {}
        topic, number, state = "", -1, None
        for record in records:
            if record[1] != number or record[0] != topic:  # by place: every record passes through here
                topic, number = record.topic, record.partition
                state = self._states.get(record.source)
            if type(state) is not Reading:
                continue
            if state.generation > since:
                again[record.source] = state
            elif record[2] >= state.position:
                usable.append(record)
        return Received(usable, [SeekTo(tp, again[tp].position, again[tp].generation) for tp in sorted(again)])

    def holds(self, batch: Batch) -> bool:
        """Whether what a batch was read under still holds: only then is it processed, and otherwise dropped."""
        state = self._states.get(batch.span.partition)
        return type(state) is Reading and state.generation == batch.generation and state.position == batch.span.start

    def claims(self, batches: Iterable[Batch]) -> dict[TopicPartition, Claim]:
        """The claims under which batches are committed, of those partitions that are claimed."""
        wanted = (batch.span.partition for batch in batches)
        return {tp: state.claim for tp in wanted if type(state := self._states.get(tp)) is Reading}

    # What the group coordinator says

    def assigned(self, partitions: Partitions) -> list[Command]:
        """Partitions were added. Those that are assigned already are left as they are."""
        new = tuple(sorted(tp for tp in set(partitions) if tp not in self._states))
        for tp in new:
            self._states[tp] = Claiming()
        self._reckon()
        return [ClaimPartitions(new)] if new else []

    def revoked(self, partitions: Partitions) -> list[Command]:
        """Partitions go to another member; to be called once what was in flight is committed or discarded."""
        gone = self._remove(partitions)
        held = {tp: state.claim for tp, state in gone.items() if isinstance(state, Reading | Reclaiming)}
        return [*_drop(gone), *([ReleaseClaims(held)] if held else [])]

    def lost(self, partitions: Partitions) -> list[Command]:
        """Partitions belong to another member already: there is nothing left to commit or to release."""
        return _drop(self._remove(partitions))

    # What the ledger says

    def claimed(self, claims: Claims) -> list[Command]:
        """Partitions were claimed. Those that are not assigned any more are given back."""
        return self._held(claims)

    def committed(self, spans: Iterable[Span]) -> None:
        """Batches were committed. A span of a stretch that has ended meanwhile says nothing about the new one."""
        for span in spans:
            state = self._states.get(span.partition)
            if type(state) is Reading and state.position == span.start:
                self._states[span.partition] = Reading(state.claim, span.end, state.generation)

    def discarded(self, partitions: Partitions) -> list[Command]:
        """Batches that held were dropped all the same: what was read of their partitions is read again."""
        seeks = [
            self._read_from(tp, state.claim, state.position)
            for tp in sorted(partitions)
            if type(state := self._states.get(tp)) is Reading
        ]
        return [*_drop([seek.partition for seek in seeks]), *seeks]

    def moved(self, spans: Iterable[Span]) -> list[Command]:
        """Positions were moved over records that are not read: a skip, or a loss. Reading begins anew behind them."""
        seeks = [
            self._read_from(span.partition, state.claim, span.end)
            for span in sorted(spans)
            if type(state := self._states.get(span.partition)) is Reading and state.position == span.start
        ]
        return [*_drop([seek.partition for seek in seeks]), *seeks]

    def fenced(self, partitions: Partitions) -> list[Command]:
        """The ledger refused a commit of these partitions, or nobody can tell whether it was carried out."""
        claims: dict[TopicPartition, Claim] = {}
        for tp in sorted(partitions):
            state = self._states.get(tp)
            if type(state) is Reading:
                claims[tp] = state.claim
                self._states[tp] = Reclaiming(state.claim, take=False)
        if not claims:
            return []
        self._reckon()
        return [*_drop(claims), PausePartitions(tuple(claims)), ReclaimPartitions(claims, take=False)]

    def reclaimed(self, claims: Claims, owners: Mapping[TopicPartition, str], now: float) -> list[Command]:
        """What became of a :class:`ReclaimPartitions`: the claims held now, and the partitions that others have."""
        for tp in sorted(owners):
            state = self._states.get(tp)
            if type(state) is Reclaiming:
                wait = self._session_timeout * (1 + self._rng.random() / 2)
                self._states[tp] = StoodDown(state.claim, now + wait)
        commands = self._held(claims)
        resumed = tuple(command.partition for command in commands if type(command) is SeekTo)
        return [*commands, ResumePartitions(resumed)] if resumed and not self._paused else commands

    def observed(self, group: GroupState) -> list[Command]:
        """The group's rows were read, as is done about every second: edits and pauses reach a quiet topic too.

        The rows may have been read before the last claim: only what is newer than the claim speaks against it.
        """
        rows = group.positions
        gone: list[TopicPartition] = []
        fenced: list[TopicPartition] = []
        for tp, state in self.reading():
            row = rows.get(tp)
            if row is None:
                gone.append(tp)
            elif row.epoch > state.claim.epoch or (row.epoch == state.claim.epoch and row.owner != state.claim.owner):
                fenced.append(tp)
        commands = [*self.claim_anew(gone), *self.fenced(fenced)] if gone or fenced else []
        if group.paused != self._paused:
            self._paused = group.paused
            if reading := tuple(sorted(tp for tp, _ in self.reading())):
                commands.append(PausePartitions(reading) if group.paused else ResumePartitions(reading))
        return commands

    # What time says

    def tick(self, now: float) -> list[Command]:
        """What is due: claims that were not answered, and partitions to be taken back from an owner that came late."""
        if now < self._due:
            return []
        claiming: list[TopicPartition] = []
        reclaiming: dict[bool, dict[TopicPartition, Claim]] = {False: {}, True: {}}
        for tp in sorted(self._states):
            state = self._states[tp]
            if type(state) is StoodDown and state.until <= now:
                state = self._states[tp] = Reclaiming(state.claim, take=True)
            if type(state) is Reclaiming:
                reclaiming[state.take][tp] = state.claim
            elif type(state) is Claiming:
                claiming.append(tp)
        self._reckon()
        commands: list[Command] = [ClaimPartitions(tuple(claiming))] if claiming else []
        return commands + [ReclaimPartitions(claims, take) for take, claims in reclaiming.items() if claims]

    def claim_anew(self, partitions: Partitions) -> list[Command]:
        """Their rows were deleted, or their topics recreated: the claim says where they begin, if they may."""
        gone = tuple(sorted(tp for tp in partitions if tp in self._states))
        for tp in gone:
            self._states[tp] = Claiming()
        self._reckon()
        return [*_drop(gone), PausePartitions(gone), ClaimPartitions(gone)] if gone else []

    def _held(self, claims: Claims) -> list[Command]:
        seeks: list[Command] = []
        stray: dict[TopicPartition, Claim] = {}
        for tp in sorted(claims):
            if tp in self._states:
                seeks.append(self._read_from(tp, claims[tp], claims[tp].position))
            else:
                stray[tp] = claims[tp]
        self._reckon()
        commands = [*seeks, *([ReleaseClaims(stray)] if stray else [])]
        if seeks and self._paused:
            commands.append(PausePartitions(tuple(sorted(claims.keys() - stray.keys()))))
        return commands

    def _read_from(self, partition: TopicPartition, claim: Claim, offset: int) -> SeekTo:
        self._generation += 1
        self._states[partition] = Reading(claim, offset, self._generation)
        return SeekTo(partition, offset, self._generation)

    def _remove(self, partitions: Partitions) -> dict[TopicPartition, State]:
        gone = {tp: self._states.pop(tp) for tp in sorted(partitions) if tp in self._states}
        self._reckon()
        return gone

    def _reckon(self) -> None:
        """When :meth:`tick` has something to do next."""
        self._due = math.inf
        for state in self._states.values():
            if type(state) is StoodDown:
                self._due = min(self._due, state.until)
            elif type(state) is not Reading:
                self._due = -math.inf
                return


def _drop(partitions: Collection[TopicPartition]) -> list[Command]:
    return [DropBuffers(tuple(sorted(partitions)))] if partitions else []
