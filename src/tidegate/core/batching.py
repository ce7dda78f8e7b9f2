"""Batches: records of one partition, collected until there are enough of them or they are old enough."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, TypeAlias

from tidegate.core.arguments import ByteCount, Count, Kind, Seconds, convert_arguments, kind_of
from tidegate.core.records import Record, TopicPartition
from tidegate.core.spans import Span
from tidegate.core.tries import NO_TRIES, Tries

__all__ = ["Batch", "BatchBounds", "Batching", "Bounds"]


class Batch(NamedTuple):
    """Records to be committed as one span, and the generation that they were read under.

    There may be none: aborted transactions and compaction leave spans without records, which the position steps over.
    ``tries`` is what is known of the records of a batch that was handed out before.
    """

    generation: int
    span: Span
    records: tuple[Record, ...]
    tries: Tries = NO_TRIES


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """A batch is handed out when one of these is reached: records, their bytes, or seconds since its first one.

    ``count`` and ``bytes`` also bound the batch from above, except that one record too large for ``bytes`` goes alone.
    """

    count: Count = 500
    bytes: ByteCount = 1 << 20
    age: Seconds = 0.1

    def __post_init__(self) -> None:
        convert_arguments(self)


def _bounds(given: Any) -> BatchBounds | None:
    if isinstance(given, BatchBounds):
        return given
    count = kind_of(Count).convert(given)
    return None if count is None else BatchBounds(count)


Bounds: TypeAlias = Annotated[BatchBounds, Kind("BatchBounds(…), or a number of records of at least 1", _bounds)]
"""Bounds as an argument: a number alone is their count."""


class _Buffer:
    """What was read of one partition and not handed out: everything in ``[start, end)``.

    A batch that was handed out and taken back is the first in here: ``tries`` is what is known of its records. If it
    waits, it does so ``until`` then, and has so many of the bytes ``waiting``.
    """

    __slots__ = (
        *(
            "bytes",
            "end",
            "generation",
            "records",
            "since",
            "sizes",
            "start",
            "taken_back",
            "tries",
            "until",
            "waiting",
        ),
    )

    def __init__(self, position: int, generation: int) -> None:
        self.start = self.end = position
        self.generation = generation
        self.records: list[Record] = []
        self.sizes: list[int] = []  # the bytes of each
        self.bytes = 0
        self.since = 0.0
        self.hand_out()

    def hand_out(self) -> None:
        """What was taken back, if anything was, is so no more."""
        self.taken_back = False
        self.tries: Tries = NO_TRIES
        self.until: float | None = None
        self.waiting = 0


class Batching:
    """The buffers of one member, one for each partition that it reads."""

    __slots__ = ("_bounds", "_buffers", "_goes_alone")

    def __init__(self, bounds: BatchBounds) -> None:
        self._bounds = bounds
        self._goes_alone = False  # whether what was handed out last was a postponed batch
        self._buffers: dict[TopicPartition, _Buffer] = {}

    @property
    def bytes(self) -> int:
        """Bytes in all buffers: what fetching is throttled by.

        Batches that wait are left out, as are those that are handed out: they are one for each partition at most, and
        other partitions are read on meanwhile.
        """
        return sum(buffer.bytes - buffer.waiting for buffer in self._buffers.values())

    @property
    def is_ahead(self) -> bool:
        """Whether there is more to hand out than the next two batches of every partition: to read on is no use yet."""
        buffers = [buffer for buffer in self._buffers.values() if buffer.until is None]
        return bool(buffers) and sum(len(each.records) for each in buffers) >= 2 * self._bounds.count * len(buffers)

    @property
    def waiting(self) -> set[TopicPartition]:
        """The partitions that have a postponed batch."""
        return {tp for tp, buffer in self._buffers.items() if buffer.until is not None}

    @property
    def has_taken_back(self) -> bool:
        """Whether there is a batch that was handed out before, and is to be handed out again."""
        return any(buffer.taken_back for buffer in self._buffers.values())

    def start(self, partition: TopicPartition, position: int, generation: int) -> None:
        """Begin a stretch of reading; what an earlier one left is forgotten."""
        self._buffers[partition] = _Buffer(position, generation)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions."""
        for tp in partitions:
            self._buffers.pop(tp, None)

    def add(self, records: Iterable[Record], now: float) -> None:
        """Take records in, in offset order; those seen before, or of partitions not started, are left out."""
        # All that is ever read passes through here: parts are taken at once and not by name, lists are looked up once.
        last, buffer = ("", -1), None
        for record in records:
            topic, number, offset, key, value, _, _ = record
            if number != last[1] or topic != last[0]:
                last = topic, number
                buffer = self._buffers.get(TopicPartition(topic, number))
                if buffer is not None:
                    keep, measure = buffer.records.append, buffer.sizes.append
            if buffer is None or offset < buffer.end:
                continue
            if buffer.start == buffer.end:
                buffer.since = now
            size = (len(value) if value else 0) + (len(key) if key else 0)
            keep(record)
            measure(size)
            buffer.bytes += size
            buffer.end = offset + 1

    def reached(self, partition: TopicPartition, offset: int, now: float) -> None:
        """The source says that it continues at ``offset``: up to there, nothing is left to read."""
        buffer = self._buffers.get(partition)
        if buffer is not None and offset > buffer.end:
            if buffer.start == buffer.end:
                buffer.since = now
            buffer.end = offset

    def end_of(self, partition: TopicPartition) -> int | None:
        """Up to where a partition was read; ``None`` if it is not read at all."""
        return self._buffers[partition].end if partition in self._buffers else None

    def bytes_of(self, partition: TopicPartition) -> int:
        """Bytes in the buffer of one partition."""
        return self._buffers[partition].bytes if partition in self._buffers else 0

    def ready(self, now: float, without: Collection[TopicPartition] = ()) -> list[Batch]:
        """Hand out, for each partition that has one, the next batch that is full or old enough.

        Of those in ``without`` nothing is wanted yet.

        A batch that was postponed goes alone: if it fails again, nothing else is rolled back with it. So that many of
        them do not hold the others up, they take turns with them.
        """
        waits = [(buffer.until, tp) for tp, buffer in self._buffers.items() if buffer.until is not None]
        due = [(until, tp) for until, tp in waits if until <= now]
        fresh = [tp for tp, buffer in self._buffers.items() if self._is_ready(buffer, now) and tp not in without]
        self._goes_alone = bool(due) and not (fresh and self._goes_alone)
        chosen = [min(due)[1]] if self._goes_alone else fresh
        return [self._next(tp, self._buffers[tp]) for tp in chosen]

    def _is_ready(self, buffer: _Buffer, now: float) -> bool:
        return (
            buffer.start < buffer.end
            and buffer.until is None
            and (
                now - buffer.since >= self._bounds.age
                or len(buffer.records) >= self._bounds.count
                or buffer.bytes >= self._bounds.bytes
            )
        )

    def take_back(self, batch: Batch) -> None:
        """A batch was not committed: it is handed out again, with what was read behind it."""
        buffer = self._buffer_of(batch)
        if buffer is not None:
            self._restore(buffer, batch)

    def postpone(self, batch: Batch, until: float) -> bool:
        """A batch was not committed, and is handed out again at ``until``, as it was; whether it is still wanted.

        What was read behind it is forgotten, so that waiting costs no room: it has to be read again.
        """
        buffer = self._buffer_of(batch)
        if buffer is None:
            return False
        buffer.records, buffer.sizes, buffer.bytes, buffer.end = [], [], 0, batch.span.end
        self._restore(buffer, batch)
        buffer.until, buffer.waiting = until, buffer.bytes
        return True

    def _buffer_of(self, batch: Batch) -> _Buffer | None:
        """Where a batch came from; ``None`` if that stretch of reading is over."""
        buffer = self._buffers.get(batch.span.partition)
        if buffer is None or buffer.generation != batch.generation:
            return None
        if buffer.start != batch.span.end:
            raise RuntimeError(f"{batch.span} cannot be taken back: what is left begins at {buffer.start}")
        return buffer

    @staticmethod
    def _restore(buffer: _Buffer, batch: Batch) -> None:
        sizes = [record.size for record in batch.records]
        buffer.records[:0] = batch.records
        buffer.sizes[:0] = sizes
        buffer.bytes += sum(sizes)
        buffer.start = batch.span.start
        buffer.since = -math.inf  # it was old enough before
        buffer.tries = batch.tries
        buffer.taken_back = True

    def rest(self, partitions: Iterable[TopicPartition]) -> Iterator[Batch]:
        """Hand out everything that these partitions have, in batches within the bounds: for draining before a stop."""
        for tp in partitions:
            buffer = self._buffers.get(tp)
            while buffer is not None and buffer.start < buffer.end:
                yield self._next(tp, buffer)

    def _next(self, partition: TopicPartition, buffer: _Buffer) -> Batch:
        records = buffer.records
        count, size = self._fitting(buffer)
        taken = tuple(records[:count])
        # Only what was read up to is known to hold nothing more; between two batches that is the record behind which
        # the first one ends.
        end = buffer.end if count == len(records) else taken[-1].offset + 1
        del records[:count], buffer.sizes[:count]
        buffer.bytes -= size
        span = Span(partition, buffer.start, end, count)
        batch = Batch(buffer.generation, span, taken, buffer.tries)
        buffer.start = end
        buffer.hand_out()
        return batch

    def _fitting(self, buffer: _Buffer) -> tuple[int, int]:
        """How many of the first records fit into one batch, and their bytes."""
        if len(buffer.records) <= self._bounds.count and buffer.bytes <= self._bounds.bytes:
            return len(buffer.records), buffer.bytes
        sizes = buffer.sizes[: self._bounds.count]
        fitting = bisect_right(list(accumulate(sizes)), self._bounds.bytes)
        sizes = sizes[: max(fitting, 1)]
        return len(sizes), sum(sizes)
