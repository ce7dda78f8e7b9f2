"""Intake: where each partition is read, and what was read and is not committed, within its bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import assert_never

from tidegate.app.computing import Computing
from tidegate.app.spec import ListenerSpec
from tidegate.core.assignment import Assignment, Reading
from tidegate.core.batching import Batch, Batching
from tidegate.core.commands import Command, DropBuffers, PausePartitions, ReadCommand, ResumePartitions, SeekTo
from tidegate.core.records import TopicPartition
from tidegate.kafka.broker import RecordSource
from tidegate.kafka.source import Fetched
from tidegate.observe.observer import Event, Polled
from tidegate.observe.outages import Outages

__all__ = ["Intake"]

_MOST = 10_000  # records that one poll takes


class Intake:
    """Between one source and the batches that are made of its records."""

    def __init__(
        self,
        spec: ListenerSpec,
        source: RecordSource,
        assignment: Assignment,
        tell: Callable[[Event], None],
        outages: Outages,
        *,
        computing: Computing | None = None,
    ) -> None:
        """``computing``: where batches go before they are ready to be committed."""
        self._spec = spec
        self._source = source
        self._assignment = assignment
        self._tell = tell
        self._outages = outages
        self._computing = computing
        self._batching = Batching(spec.batch)
        self._seeks: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._refused: set[TopicPartition] = set()
        self._to_pause: list[TopicPartition] = []
        self._throttled = False
        self._full: set[TopicPartition] = set()  # of a pool: those that have their share of the bytes

    @property
    def bytes(self) -> int:
        """What was read and not handed out."""
        return self._batching.bytes + (0 if self._computing is None else self._computing.bytes)

    @property
    def is_computing(self) -> bool:
        """Whether batches are with the pool."""
        return self._computing is not None and bool(self._computing.partitions)

    @property
    def is_settled(self) -> bool:
        """Whether every partition is read where it should be, and no batch is to be handed out again."""
        return not (self._seeks or self._batching.has_taken_back or self.is_computing)

    def is_at_end(self, partition: TopicPartition, position: int) -> bool:
        """Whether a position is where the log ended when it was last looked at."""
        return partition in self._ends and position >= self._ends[partition]

    def read_to(self, partition: TopicPartition) -> int | None:
        """Up to where a partition was read."""
        return self._batching.end_of(partition)

    # Reading

    def fetch(self, timeout: float) -> list[Command]:
        """Take in what there is to read, and say what to do about records that cannot be used."""
        since = self._assignment.generation
        # Where records wait matters: the client's own queue has no part in Python's collection of garbage.
        most = 1 if self._computing is None and self._batching.is_ahead else _MOST
        fetched = self._source.fetch(most, timeout, self._room)
        now = time.monotonic()
        wanted = [record for record in fetched.records if record.source not in self._seeks] if self._seeks else None
        received = self._assignment.received(fetched.records if wanted is None else wanted, since)
        if received.records:
            before = self._batching.bytes
            self._batching.add(received.records, now)
            self._tell(Polled(self._spec.group, len(received.records), self._batching.bytes - before))
        self._take_ends(fetched, since, now)
        self._refused.update(tp for tp in fetched.out_of_range if tp not in self._seeks)
        for trouble in fetched.troubles:
            self._outages.begin(*trouble)
        if self._to_pause:
            self._source.pause(self._to_pause)
            self._to_pause = []
        return received.commands

    def _take_ends(self, fetched: Fetched, since: int, now: float) -> None:
        for tp, offset in fetched.ends:
            if tp in self._seeks:
                continue
            if self._assignment.reads_since(tp, since):
                self._batching.reached(tp, offset, now)
                self._ends[tp] = offset
            elif isinstance(state := self._assignment.state(tp), Reading):
                self._seeks[tp] = state.position  # of this stretch, or of the one before; the next one is of this

    def settle(self) -> None:
        """Carry seeks out, and fetch no more than the buffers may hold.

        Until its seek is carried out, nothing of a partition is used, for it may be from before.
        """
        for tp, offset in list(self._seeks.items()):
            if self._source.seek(tp, offset):
                del self._seeks[tp]
                self._resume([tp])
        if self._computing is not None:
            self._keep_to_shares(self._computing)
            return
        full = self.bytes > self._spec.buffer_bytes // (2 if self._throttled else 1)
        if full != self._throttled and not self._assignment.paused:
            self._throttled = full
            reading = [tp for tp, _ in self._assignment.reading()]
            if full:
                self._source.pause(reading)
            else:
                self._resume(reading)

    @property
    def _room(self) -> int:
        """Bytes that one fetch may bring."""
        return self._spec.buffer_bytes - self.bytes if self._computing is None else self._share

    @property
    def _share(self) -> int:
        """Bytes of one partition after which nothing more of it is fetched; one fetch can bring as many again."""
        return self._spec.buffer_bytes // (2 * max(1, len(self._assignment.partitions)))

    def _keep_to_shares(self, computing: Computing) -> None:
        """In a pool a slow record holds up its own partition, for as long as it likes; the others have room."""
        if self._assignment.paused:
            return
        share = self._share
        held = {tp: self._batching.bytes_of(tp) + computing.bytes_of(tp) for tp, _ in self._assignment.reading()}
        full = {tp for tp, size in held.items() if size > (share // 2 if tp in self._full else share)}
        before, self._full = self._full, full
        self._source.pause(full - before)
        self._resume(before - full)

    def _resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch from these again, unless there is another reason not to."""
        if not (self._assignment.paused or self._throttled):
            not_yet = self._batching.waiting | self._full
            self._source.resume([tp for tp in partitions if tp not in not_yet])

    # Batches

    def ready(self, now: float) -> list[Batch]:
        """The batches to be committed next; those that do not hold any more are dropped."""
        batches = self._read(now) if self._computing is None else self._computing.ready()
        return [batch for batch in batches if self._assignment.holds(batch)]

    def compute(self, within: float) -> None:
        """If there is a pool, let it work on what was read; wait for something to commit, for so long at most.

        Raises what a handler failed with for good.
        """
        if self._computing is None:
            return
        paused = self._assignment.paused
        self._computing.hold(paused)
        if not paused:
            self._computing.add(self._read(time.monotonic(), without=self._computing.full))
        if self.is_computing:
            self._computing.wait(0 if self._computing.has_ready and not paused else within)

    def _read(self, now: float, without: Collection[TopicPartition] = ()) -> list[Batch]:
        """What the buffers hand out."""
        waiting = self._batching.waiting
        batches = self._batching.ready(now, without)
        if waiting:
            self._resume(waiting - self._batching.waiting)
        return batches

    def take_back(self, batch: Batch) -> None:
        """It was not committed, through no fault of its own."""
        if self._computing is None:
            self._batching.take_back(batch)
        elif self._assignment.holds(batch):
            self._computing.take_back(batch)

    def postpone(self, batch: Batch, until: float) -> None:
        """It is to be tried again then, and its partition waits for it."""
        if self._batching.postpone(batch, until):
            self._source.pause([batch.span.partition])
            self._seeks[batch.span.partition] = batch.span.end

    # What the assignment and the log say

    def obey(self, command: ReadCommand) -> None:
        """Do what the assignment asks for."""
        match command:
            case SeekTo(partition, offset, _):
                self.begin(command)
                self._seeks[partition] = offset
            case DropBuffers(partitions):
                self._batching.drop(partitions)
                self._stop_computing(partitions)
                for tp in partitions:
                    self._seeks.pop(tp, None)
            case PausePartitions(partitions):
                self._source.pause(partitions)
            case ResumePartitions(partitions):
                self._resume(partitions)
            case other:
                assert_never(other)

    def begin(self, at: SeekTo) -> None:
        """A stretch of reading begins, which needs no seek if its partition is just being assigned."""
        self._batching.start(*at)
        self._stop_computing([at.partition])
        self._ends.pop(at.partition, None)

    def _stop_computing(self, partitions: Collection[TopicPartition]) -> None:
        if self._computing is not None:
            self._computing.drop(partitions)
            self._full.difference_update(partitions)

    def close(self) -> None:
        """Nothing more is to be read or computed."""
        if self._computing is not None:
            self._computing.close()

    def pause_when_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch nothing from these, which are being assigned and cannot be paused yet."""
        self._to_pause = list(partitions)

    def read_from(self, partition: TopicPartition, offset: int) -> None:
        """Read on there, in the same stretch."""
        self._seeks[partition] = offset

    def refuse(self, partition: TopicPartition) -> None:
        """The log has nothing where this partition is to be read."""
        self._refused.add(partition)

    def next_refused(self) -> TopicPartition | None:
        """A partition that the log refused. One whose batch waits is left for later: its position is still to move."""
        computing = self._computing.partitions if self._refused and self._computing else set()
        for tp in self._refused - self._batching.waiting - computing if self._refused else ():
            self._refused.discard(tp)
            return tp
        return None
