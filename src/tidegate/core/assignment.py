"""The partitions of one group member as a state machine: events go in, commands for the member come out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from random import Random
from typing import NamedTuple, TypeAlias

from tidegate.core.batches import Batch
from tidegate.core.positions import GroupState
from tidegate.core.records import Record, RecordColumns, TopicPartition
from tidegate.core.work import Claim, Span

__all__ = [
    "Assignment",
    "ClaimPartitions",
    "Claiming",
    "Command",
    "DropBuffers",
    "LedgerCommand",
    "PausePartitions",
    "ReadCommand",
    "Reading",
    "Received",
    "ReclaimPartitions",
    "Reclaiming",
    "ReleaseClaims",
    "ResumePartitions",
    "SeekTo",
    "StoodDown",
]


class ClaimPartitions(NamedTuple):
    """Command: claim these partitions in one transaction, then call :meth:`Assignment.claimed`."""

    partitions: tuple[TopicPartition, ...]


class ReclaimPartitions(NamedTuple):
    """Command: check these claims, claim again what may be claimed, then call :meth:`Assignment.reclaimed`.

    With ``take``, claim partitions that another owner holds as well.
    """

    claims: dict[TopicPartition, Claim]
    take: bool


class ReleaseClaims(NamedTuple):
    """Command: release these claims. This is best effort, since the next claim does not depend on it."""

    claims: dict[TopicPartition, Claim]


class SeekTo(NamedTuple):
    """Command: read the partition from ``offset`` on, and collect its batches under this generation.

    In a rebalance callback, assign the partition with this offset; at any other time, seek.
    """

    partition: TopicPartition
    offset: int
    generation: int


class DropBuffers(NamedTuple):
    """Command: drop the records of these partitions that were read but not committed."""

    partitions: tuple[TopicPartition, ...]


class PausePartitions(NamedTuple):
    """Command: stop fetching from these partitions for now."""

    partitions: tuple[TopicPartition, ...]


class ResumePartitions(NamedTuple):
    """Command: fetch from these partitions again."""

    partitions: tuple[TopicPartition, ...]


LedgerCommand: TypeAlias = ClaimPartitions | ReclaimPartitions | ReleaseClaims
"""A command to the ledger. The member runs these one after the other."""

ReadCommand: TypeAlias = SeekTo | DropBuffers | PausePartitions | ResumePartitions
"""A command that changes where or whether a partition is read. The member runs these immediately."""

Command: TypeAlias = LedgerCommand | ReadCommand


Partitions: TypeAlias = Iterable[TopicPartition]
Claims: TypeAlias = Mapping[TopicPartition, Claim]


class Claiming(NamedTuple):
    """State: the partition is assigned but not claimed. Its position is unknown, so it is not read."""


class Reading(NamedTuple):
    """State: the partition is claimed and can be read.

    ``position`` is where the next commit starts. ``generation`` identifies this uninterrupted stretch of reading.
    """

    claim: Claim
    position: int
    generation: int


class Reclaiming(NamedTuple):
    """State: a commit was fenced or its outcome is unknown. The ledger has to be read, and the partition reclaimed."""

    claim: Claim
    take: bool


class StoodDown(NamedTuple):
    """State: another owner holds the partition.

    If the partition is still assigned here at ``until``, the other owner claimed it after its own assignment had
    ended, and this member takes it back.
    """

    claim: Claim
    until: float


State: TypeAlias = Claiming | Reading | Reclaiming | StoodDown


class Received(NamedTuple):
    """The usable records of one fetch, and the commands that read the dropped ones again."""

    runs: list[RecordColumns]
    commands: list[Command]


class Assignment:
    """The state of every partition that is assigned to one member.

    The caller runs the commands in order and reports the results: claims to :meth:`claimed`, reclaims to
    :meth:`reclaimed`. It does not report failures: :meth:`tick` repeats the command.

    Every uninterrupted stretch of reading a partition has a generation, and every batch carries the generation under
    which it was read. A batch is used only while its stretch lasts. A revocation, a loss, a fence or a seek ends the
    stretch and invalidates its batches, wherever they are.
    """

    __slots__ = ("_due", "_generation", "_paused", "_rng", "_session_timeout", "_states")

    def __init__(self, session_timeout: float, rng: Random) -> None:
        self._session_timeout = session_timeout
        self._rng = rng
        self._states: dict[TopicPartition, State] = {}
        self._generation = 0
        self._paused = False
        self._due = math.inf

    # Queries

    @property
    def generation(self) -> int:
        """The newest generation. Read it before a fetch, and pass it to :meth:`received` with the fetched records."""
        return self._generation

    @property
    def paused(self) -> bool:
        """Whether the group was paused when its rows were last read."""
        return self._paused

    @property
    def partitions(self) -> list[TopicPartition]:
        """Every assigned partition, claimed or not."""
        return sorted(self._states)

    def state(self, partition: TopicPartition) -> State | None:
        """Return the state of a partition; ``None`` if it is not assigned."""
        return self._states.get(partition)

    def reading(self) -> Iterator[tuple[TopicPartition, Reading]]:
        """Iterate over the partitions that can be read, even if the group is paused."""
        for tp, state in self._states.items():
            if type(state) is Reading:
                yield tp, state

    def accepts(self, record: Record, since: int) -> bool:
        """Return whether a record may be used that came from a fetch started at generation ``since``.

        It is not enough that the partition is claimed and the offset is not below the position: if a seek went back
        during the fetch, using a record from before the seek would skip the records in between.
        """
        state = self._states.get(record.source)
        return type(state) is Reading and state.generation <= since and record.offset >= state.position

    def reads_since(self, partition: TopicPartition, since: int) -> bool:
        """Return whether a partition is read without interruption since generation ``since``."""
        state = self._states.get(partition)
        return type(state) is Reading and state.generation <= since

    def received(self, runs: Iterable[RecordColumns], since: int) -> Received:
        """Select the usable records of a fetch that started at generation ``since``.

        If the reading of a partition started anew during the fetch, its records may come from before or after that,
        and cannot be told apart. They are all dropped and read again.
        """
        usable: list[RecordColumns] = []
        again: dict[TopicPartition, Reading] = {}
        for run in runs:
            state = self._states.get(run.source)
            if type(state) is not Reading:
                continue
            if state.generation > since:
                again[run.source] = state
            elif (wanted := run.behind(state.position)) is not None:
                usable.append(wanted)
        return Received(usable, [SeekTo(tp, again[tp].position, again[tp].generation) for tp in sorted(again)])

    def holds(self, batch: Batch) -> bool:
        """Return whether a batch is still valid: same generation, and it starts at the position. Drop it if not."""
        state = self._states.get(batch.span.partition)
        return type(state) is Reading and state.generation == batch.generation and state.position == batch.span.start

    def claims(self, batches: Iterable[Batch]) -> dict[TopicPartition, Claim]:
        """Return the claims for committing these batches; partitions that are not claimed are left out."""
        wanted = (batch.span.partition for batch in batches)
        return {tp: state.claim for tp in wanted if type(state := self._states.get(tp)) is Reading}

    # Events from the group coordinator

    def assigned(self, partitions: Partitions) -> list[Command]:
        """Handle newly assigned partitions. Those that are already assigned keep their state."""
        new = tuple(sorted(tp for tp in set(partitions) if tp not in self._states))
        for tp in new:
            self._states[tp] = Claiming()
        self._reckon()
        return [ClaimPartitions(new)] if new else []

    def revoked(self, partitions: Partitions) -> list[Command]:
        """Handle a revocation. Call it after the batches in flight were committed or discarded."""
        gone = self._remove(partitions)
        held = {tp: state.claim for tp, state in gone.items() if isinstance(state, Reading | Reclaiming)}
        return [*_drop(gone), *([ReleaseClaims(held)] if held else [])]

    def lost(self, partitions: Partitions) -> list[Command]:
        """Handle lost partitions. Another member may own them already, so nothing is committed or released."""
        return _drop(self._remove(partitions))

    # Events from the ledger

    def claimed(self, claims: Claims) -> list[Command]:
        """Handle new claims. Claims of partitions that are no longer assigned are released."""
        return self._held(claims)

    def committed(self, spans: Iterable[Span]) -> None:
        """Advance the positions over committed spans.

        A span that does not start at the position is ignored: the stretch in which it was read has ended.
        """
        for span in spans:
            state = self._states.get(span.partition)
            if type(state) is Reading and state.position == span.start:
                self._states[span.partition] = Reading(state.claim, span.end, state.generation)

    def discarded(self, partitions: Partitions) -> list[Command]:
        """Handle valid batches that the member dropped: read their partitions again from the position."""
        seeks = [
            self._read_from(tp, state.claim, state.position)
            for tp in sorted(partitions)
            if type(state := self._states.get(tp)) is Reading
        ]
        return [*_drop([seek.partition for seek in seeks]), *seeks]

    def moved(self, spans: Iterable[Span]) -> list[Command]:
        """Handle a skip or a loss that this member committed: continue reading behind these spans."""
        seeks = [
            self._read_from(span.partition, state.claim, span.end)
            for span in sorted(spans)
            if type(state := self._states.get(span.partition)) is Reading and state.position == span.start
        ]
        return [*_drop([seek.partition for seek in seeks]), *seeks]

    def fenced(self, partitions: Partitions) -> list[Command]:
        """Handle a commit of these partitions that the ledger refused, or whose outcome is unknown."""
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
        """Handle the result of a :class:`ReclaimPartitions`: the claims held now, and other owners by partition."""
        for tp in sorted(owners):
            state = self._states.get(tp)
            if type(state) is Reclaiming:
                wait = self._session_timeout * (1 + self._rng.random() / 2)
                self._states[tp] = StoodDown(state.claim, now + wait)
        commands = self._held(claims)
        resumed = tuple(command.partition for command in commands if type(command) is SeekTo)
        return [*commands, ResumePartitions(resumed)] if resumed and not self._paused else commands

    def observed(self, group: GroupState) -> list[Command]:
        """Handle the group's rows, which are read about every second so that edits and pauses reach idle topics too.

        The rows may have been read before the last claim, so a row with an older epoch than the claim is ignored.
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

    # Events from the clock

    def tick(self, now: float) -> list[Command]:
        """Return the commands that are due: claims and reclaims without a result yet, and partitions to take back."""
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
        """Claim partitions again whose rows were deleted or whose topics were recreated.

        The claim decides where they begin, or fails if they may not begin again.
        """
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
        """Compute when :meth:`tick` next has something to do."""
        self._due = math.inf
        for state in self._states.values():
            if type(state) is StoodDown:
                self._due = min(self._due, state.until)
            elif type(state) is not Reading:
                self._due = -math.inf
                return


def _drop(partitions: Collection[TopicPartition]) -> list[Command]:
    return [DropBuffers(tuple(sorted(partitions)))] if partitions else []
