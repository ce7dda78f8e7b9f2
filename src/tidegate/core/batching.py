"""Batches: records of one partition, collected until there are enough of them or they are old enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.core.errors import ConfigurationError
from tidegate.core.records import Record, TopicPartition
from tidegate.core.spans import Span

__all__ = ["Batch", "BatchBounds", "Batching"]


class Batch(NamedTuple):
    """Records to be committed as one span, and the generation that they were read under.

    There may be none: aborted transactions and compaction leave spans without records, which the position steps over.
    """

    generation: int
    span: Span
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """A batch is handed out when one of these is reached: records, their bytes, or seconds since its first one.

    ``count`` and ``bytes`` also bound the batch from above, except that one record too large for ``bytes`` goes alone.
    """

    count: int = 500
    bytes: int = 1 << 20
    age: float = 0.1

    def __post_init__(self) -> None:
        if self.count < 1 or self.bytes < 1 or self.age < 0:
            raise ConfigurationError(f"a batch needs a count and bytes of at least 1 and no negative age, not {self}")


class _Buffer:
    """What was read of one partition and not handed out: everything in ``[start, end)``."""

    __slots__ = ("bytes", "end", "generation", "records", "since", "start")

    def __init__(self, position: int, generation: int) -> None:
        self.start = self.end = position
        self.generation = generation
        self.records: list[Record] = []
        self.bytes = 0
        self.since = 0.0


class Batching:
    """The buffers of one member, one for each partition that it reads."""

    __slots__ = ("_bounds", "_buffers")

    def __init__(self, bounds: BatchBounds) -> None:
        self._bounds = bounds
        self._buffers: dict[TopicPartition, _Buffer] = {}

    @property
    def bytes(self) -> int:
        """Bytes in all buffers: what fetching is throttled by."""
        return sum(buffer.bytes for buffer in self._buffers.values())

    def start(self, partition: TopicPartition, position: int, generation: int) -> None:
        """Begin a stretch of reading; what an earlier one left is forgotten."""
        self._buffers[partition] = _Buffer(position, generation)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions."""
        for tp in partitions:
            self._buffers.pop(tp, None)

    def add(self, records: Iterable[Record], now: float) -> None:
        """Take records in, in offset order; those seen before, or of partitions not started, are left out."""
        topic, number, buffer = "", -1, None
        for record in records:
            if record.partition != number or record.topic != topic:
                topic, number = record.topic, record.partition
                buffer = self._buffers.get(record.source)
            if buffer is None or record.offset < buffer.end:
                continue
            if buffer.start == buffer.end:
                buffer.since = now
            buffer.records.append(record)
            buffer.bytes += record.size
            buffer.end = record.offset + 1

    def reached(self, partition: TopicPartition, offset: int, now: float) -> None:
        """The source says that it continues at ``offset``: up to there, nothing is left to read."""
        buffer = self._buffers.get(partition)
        if buffer is not None and offset > buffer.end:
            if buffer.start == buffer.end:
                buffer.since = now
            buffer.end = offset

    def ready(self, now: float) -> list[Batch]:
        """Hand out, for each partition that has one, the next batch that is full or old enough."""
        return [
            self._next(tp, buffer)
            for tp, buffer in self._buffers.items()
            if buffer.start < buffer.end
            and (
                now - buffer.since >= self._bounds.age
                or len(buffer.records) >= self._bounds.count
                or buffer.bytes >= self._bounds.bytes
            )
        ]

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
        del records[:count]
        buffer.bytes -= size
        span = Span(partition, buffer.start, end, count)
        buffer.start = end
        return Batch(buffer.generation, span, taken)

    def _fitting(self, buffer: _Buffer) -> tuple[int, int]:
        """How many of the first records fit into one batch, and their bytes."""
        records = buffer.records
        if len(records) <= self._bounds.count and buffer.bytes <= self._bounds.bytes:
            return len(records), buffer.bytes
        size = 0
        for count, record in enumerate(records[: self._bounds.count]):
            if count and size + record.size > self._bounds.bytes:
                return count, size
            size += record.size
        return min(len(records), self._bounds.count), size
