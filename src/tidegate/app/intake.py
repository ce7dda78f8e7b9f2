"""Intake: seeks, pauses and buffers of one consumer, which keep uncommitted records within their bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import assert_never

from tidegate.app.pool import PoolQueue
from tidegate.app.spec import ListenerSpec
from tidegate.core.assignment import (
    Assignment,
    Command,
    DropBuffers,
    PausePartitions,
    ReadCommand,
    Reading,
    ResumePartitions,
    SeekTo,
)
from tidegate.core.batches import Batch, Batching, Pacing
from tidegate.core.records import Records, TopicPartition
from tidegate.core.runtime import Runtime
from tidegate.core.work import Span
from tidegate.kafka.broker import RecordSource
from tidegate.kafka.consumer import Fetched
from tidegate.ledger.threads import THREADS
from tidegate.observe.events import Event, Outages, Polled

__all__ = ["Intake"]

_MOST = 10_000  # the largest number of records per poll


class Intake:
    """Reads records from one source and turns them into batches.

    It executes the seeks and pauses of the assignment, and keeps the buffers within ``buffer_bytes``.
    """

    def __init__(
        self,
        spec: ListenerSpec,
        source: RecordSource,
        assignment: Assignment,
        tell: Callable[[Event], None],
        outages: Outages,
        *,
        computing: PoolQueue | None = None,
        runtime: Runtime = THREADS,
    ) -> None:
        """Start with empty buffers. ``computing`` is the pool, if any, that processes batches before their commit."""
        self._spec = spec
        self._source = source
        self._assignment = assignment
        self._tell = tell
        self._outages = outages
        self._computing = computing
        self._clock = runtime.monotonic
        self._batching = Batching(spec.batch)
        self._pacing = Pacing(runtime.random())
        self._seeks: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._refused: set[TopicPartition] = set()
        self._to_pause: list[TopicPartition] = []
        self._throttled = False
        self._full: set[TopicPartition] = set()  # with a pool: partitions that have used their share of the bytes
        self.is_flowing = False
        """Whether the last fetch returned so many records that there are probably more."""

    @property
    def bytes(self) -> int:
        """The bytes of records that were read and not handed out for commit."""
        return self._batching.bytes + (0 if self._computing is None else self._computing.bytes)

    @property
    def is_computing(self) -> bool:
        """Whether the pool holds batches."""
        return self._computing is not None and bool(self._computing.partitions)

    @property
    def is_settled(self) -> bool:
        """Whether no seek is pending, no batch has to be handed out again, and the pool is empty."""
        return not (self._seeks or self._batching.has_taken_back or self.is_computing)

    def is_at_end(self, partition: TopicPartition, position: int) -> bool:
        """Return whether a position has reached the last known end of the partition."""
        return partition in self._ends and position >= self._ends[partition]

    def read_to(self, partition: TopicPartition) -> int | None:
        """Return the offset up to which a partition was read; ``None`` if it is not read."""
        return self._batching.end_of(partition)

    # Reading

    def fetch(self, timeout: float) -> list[Command]:
        """Poll the source and buffer its records; return the commands for partitions that must be read again."""
        since = self._assignment.generation
        # While enough is buffered, leave records in the client's own queue: Python's garbage collector ignores that.
        most = 1 if self._computing is None and self._batching.is_ahead else _MOST
        fetched = self._source.fetch(most, timeout, self._room)
        now = self._clock()
        self.is_flowing = len(fetched.records) >= _MOST // 2
        runs = [run for run in Records.of(fetched.records).runs if run.source not in self._seeks]
        received = self._assignment.received(runs, since)
        if received.runs:
            before = self._batching.bytes
            self._batching.add(received.runs, now)
            count = sum(map(len, received.runs))
            self._tell(Polled(self._spec.group, count, self._batching.bytes - before))
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
                # This end may be from the previous stretch of reading. After a seek, the next end is of this one.
                self._seeks[tp] = state.position

    def settle(self) -> None:
        """Execute pending seeks, and pause or resume partitions to keep the buffers within their bytes.

        While a seek is pending, all records of its partition are ignored: they may be from before the seek.
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
        """The bytes that one fetch may return."""
        return self._spec.buffer_bytes - self.bytes if self._computing is None else self._share

    @property
    def _share(self) -> int:
        """With a pool: the bytes at which a partition is paused. One fetch can add as many again."""
        return self._spec.buffer_bytes // (2 * max(1, len(self._assignment.partitions)))

    def _keep_to_shares(self, computing: PoolQueue) -> None:
        """Pause partitions that have used their share of the bytes, and resume those that have room again.

        With a pool, a slow record blocks its own partition for as long as it takes. Shares leave room for the others.
        """
        if self._assignment.paused:
            return
        share = self._share
        held = {tp: self._batching.bytes_of(tp) + computing.bytes_of(tp) for tp, _ in self._assignment.reading()}
        full = {tp for tp, size in held.items() if size > (share // 2 if tp in self._full else share)}
        before, self._full = self._full, full
        self._source.pause(full - before)
        self._resume(before - full)

    def _resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch from these partitions again, except while another reason to pause remains."""
        if not (self._assignment.paused or self._throttled):
            not_yet = self._batching.waiting | self._full
            self._source.resume([tp for tp in partitions if tp not in not_yet])

    # Batches

    def ready(self, now: float) -> list[Batch]:
        """Return the batches to commit next; drop those whose stretch of reading has ended."""
        batches = self._read(now) if self._computing is None else self._computing.ready()
        held = [batch for batch in batches if self._assignment.holds(batch)]
        if not self._pacing:
            return held
        chosen, left = self._pacing.choose(held, now)
        for batch in left:
            (self._batching if self._computing is None else self._computing).take_back(batch)
        return chosen

    def computed(self, partitions: Collection[TopicPartition]) -> list[Batch]:
        """Return what the pool has computed of partitions that go to another member.

        Of each partition, that is everything before the first record that is not computed.
        """
        batches = [] if self._computing is None else self._computing.ready(partitions)
        return [batch for batch in batches if self._assignment.holds(batch)]

    def compute(self, within: float) -> None:
        """Pass the buffered batches to the pool, if there is one, and wait up to ``within`` seconds for results.

        Raises the error with which a handler ended the pool.
        """
        if self._computing is None:
            return
        paused = self._assignment.paused
        self._computing.hold(paused)
        if not paused:
            self._computing.add(self._read(self._clock(), without=self._computing.full))
        if self.is_computing:
            self._computing.wait(0 if self._computing.has_ready and not paused else within)

    def _read(self, now: float, without: Collection[TopicPartition] = ()) -> list[Batch]:
        """Take the ready batches from the buffers, and resume partitions that were waiting for a retry."""
        waiting = self._batching.waiting
        batches = self._batching.ready(now, without)
        if waiting:
            self._resume(waiting - self._batching.waiting)
        return batches

    def take_back(self, batch: Batch) -> None:
        """Put back a batch that was not committed; it is handed out again, unless its stretch of reading has ended."""
        if self._computing is None:
            self._batching.take_back(batch)
        elif self._assignment.reads_since(batch.span.partition, batch.generation):
            self._computing.take_back(batch)  # not "holds": what is in front of it may still be under way

    def committed(self, spans: Iterable[Span], turn: float = 0.0) -> None:
        """Record committed spans: partitions that were limited to smaller batches get larger ones again.

        They get smaller ones if other members had to wait too long; ``turn`` is for how many seconds they waited.
        """
        self._pacing.committed(spans, turn)

    def conflicted(self, batch: Batch) -> None:
        """Put back a batch after a conflict with other transactions; a smaller part of it is tried after a wait."""
        self.take_back(batch)
        self._pacing.conflicted(batch, self._clock())

    def refused_in_part(self, batch: Batch) -> None:
        """Put back a batch whose COMMIT was refused; smaller parts are tried until the refused record is found."""
        self.take_back(batch)
        self._pacing.refused(batch)

    def postpone(self, batch: Batch, until: float) -> None:
        """Put back a batch that is retried at ``until``; its partition is paused until then."""
        if self._batching.postpone(batch, until):
            self._source.pause([batch.span.partition])
            self._seeks[batch.span.partition] = batch.span.end

    # Commands of the assignment, and offsets that the log refused

    def obey(self, command: ReadCommand) -> None:
        """Execute a command of the assignment."""
        match command:
            case SeekTo(partition, offset, _):
                self.begin(command)
                self._seeks[partition] = offset
            case DropBuffers(partitions):
                self._batching.drop(partitions)
                self._pacing.forget(partitions)
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
        """Begin a new stretch of reading with empty buffers. This does not seek: an assignment includes the offset."""
        self._batching.start(*at)
        self._pacing.forget([at.partition])
        self._stop_computing([at.partition])
        self._ends.pop(at.partition, None)

    def _stop_computing(self, partitions: Collection[TopicPartition]) -> None:
        if self._computing is not None:
            self._computing.drop(partitions)
            self._full.difference_update(partitions)

    def close(self) -> None:
        """Close the pool, if there is one."""
        if self._computing is not None:
            self._computing.close()

    def pause_when_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Pause these partitions after the next fetch. They are being assigned, and cannot be paused before that."""
        self._to_pause = list(partitions)

    def read_from(self, partition: TopicPartition, offset: int) -> None:
        """Seek to an offset, within the same stretch of reading."""
        self._seeks[partition] = offset

    def refuse(self, partition: TopicPartition) -> None:
        """Record that the log does not contain the position of this partition."""
        self._refused.add(partition)

    def next_refused(self) -> TopicPartition | None:
        """Return and forget a partition whose position the log refused.

        A partition whose batch waits for a retry or is in the pool is left for later: its position is still to move.
        """
        computing = self._computing.partitions if self._refused and self._computing else set()
        for tp in sorted(self._refused - self._batching.waiting - computing) if self._refused else ():
            self._refused.discard(tp)
            return tp
        return None
