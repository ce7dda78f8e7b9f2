"""Computing: batches between the buffers and the ledger, while a pool works on their records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidegate.app.pool import Computation, Pool
from tidegate.core.batching import Batch, BatchBounds
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Span
from tidegate.core.tries import Tried

__all__ = ["Computing"]


class _Entry(NamedTuple):
    """A batch; ``computation`` is ``None`` if it was taken back, for then it is computed already."""

    batch: Batch
    computation: Computation[Tried] | None
    bytes: int

    @property
    def is_computed(self) -> bool:
        return self.computation is None or self.computation.is_done


class _Queue:
    """The batches of one partition, in their order."""

    __slots__ = ("bytes", "entries", "records")

    def __init__(self) -> None:
        self.entries: deque[_Entry] = deque()
        self.bytes = self.records = 0

    def append(self, batch: Batch, computation: Computation[Tried]) -> None:
        self.entries.append(self._counted(batch, computation))

    def put_back(self, batch: Batch) -> None:
        self.entries.appendleft(self._counted(batch, None))

    def pop(self) -> _Entry:
        entry = self.entries.popleft()
        self.bytes -= entry.bytes
        self.records -= len(entry.batch.records)
        return entry

    def _counted(self, batch: Batch, computation: Computation[Tried] | None) -> _Entry:
        entry = _Entry(batch, computation, sum(record.size for record in batch.records))
        self.bytes += entry.bytes
        self.records += len(batch.records)
        return entry


class Computing:
    """Batches in the order of their partitions: a pool may be done with the second one first, but the first one goes
    first. Batches that were taken back are computed already.
    """

    def __init__(self, pool: Pool[Tried], bounds: BatchBounds, ahead: int) -> None:
        """``bounds``: of a batch that is handed out; ``ahead``: records of one partition that are enough."""
        self._pool = pool
        self._bounds = bounds
        self._ahead = ahead
        self._queues: dict[TopicPartition, _Queue] = {}

    @property
    def bytes(self) -> int:
        """What the records in here take."""
        return sum(queue.bytes for queue in self._queues.values())

    @property
    def partitions(self) -> set[TopicPartition]:
        """Those that have batches in here."""
        return set(self._queues)

    @property
    def full(self) -> set[TopicPartition]:
        """The partitions of which no more is to be added: one that a slow record holds up does not collect results
        for as long as that takes.
        """
        return {tp for tp, queue in self._queues.items() if queue.records >= self._ahead}

    @property
    def has_ready(self) -> bool:
        """Whether there is something to hand out."""
        return any(queue.entries[0].is_computed for queue in self._queues.values())

    def bytes_of(self, partition: TopicPartition) -> int:
        """What the records of one partition take."""
        return self._queues[partition].bytes if partition in self._queues else 0

    def hold(self, held: bool) -> None:
        """Let the pool begin with nothing for now, or go on."""
        self._pool.hold(held)

    def wait(self, seconds: float) -> None:
        """Wait until a batch may be ready, or for so long; raises what stopped the pool."""
        self._pool.wait(seconds)
        self._pool.check()

    def add(self, batches: Iterable[Batch]) -> None:
        """Begin with batches."""
        for batch in batches:
            self._queues.setdefault(batch.span.partition, _Queue()).append(batch, self._pool.submit(batch.records))

    def take_back(self, batch: Batch) -> None:
        """A batch was not committed, and is to be handed out again."""
        self._queues.setdefault(batch.span.partition, _Queue()).put_back(batch)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions."""
        gone = [entry for tp in partitions if tp in self._queues for entry in self._queues.pop(tp).entries]
        if computations := [entry.computation for entry in gone if entry.computation is not None]:
            self._pool.cancel(computations)

    def ready(self) -> list[Batch]:
        """Hand out, for each partition that has some, what is computed: neighbours as one batch."""
        handed_out = []
        for tp, queue in list(self._queues.items()):
            if batches := list(self._computed(queue)):
                handed_out.append(_joined(batches))
            if not queue.entries:
                del self._queues[tp]
        return handed_out

    def close(self) -> None:
        """No more is computed."""
        self._pool.close()

    def _computed(self, queue: _Queue) -> Iterator[Batch]:
        count = size = 0
        while queue.entries and queue.entries[0].is_computed:
            first = queue.entries[0]
            count += len(first.batch.records)
            size += first.bytes
            if count > len(first.batch.records) and (count > self._bounds.count or size > self._bounds.bytes):
                return
            yield _known(queue.pop())


def _known(entry: _Entry) -> Batch:
    """A batch with what the pool has found out about its records."""
    batch, computation, _ = entry
    if computation is None:
        return batch
    results = zip(batch.records, computation.results, strict=True)
    tp = batch.span.partition
    return batch._replace(tries={(tp, record.offset): tried for record, tried in results if tried is not None})


def _joined(batches: list[Batch]) -> Batch:
    first, last = batches[0], batches[-1]
    if first is last:
        return first
    records = tuple(record for batch in batches for record in batch.records)
    span = Span(first.span.partition, first.span.start, last.span.end, len(records))
    tries = {place: tried for batch in batches for place, tried in batch.tries.items()}
    return Batch(first.generation, span, records, tries)
