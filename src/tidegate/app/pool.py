"""Pool: processes many records at once, in order within each lane, and a queue of the batches in it.

:class:`Lanes` decides which record is next; :class:`Pool` runs a function on threads, and
:class:`~tidegate.app.coroutines.CoroutinePool` awaits coroutines in an event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, takewhile
from typing import Generic, NamedTuple, TypeVar

from tidegate.core.batches import Batch, BatchBounds, Tried
from tidegate.core.policies import Lane, Ordering, lane
from tidegate.core.records import Record, Records, TopicPartition
from tidegate.core.runtime import Runtime, Strand
from tidegate.core.work import Span
from tidegate.ledger.threads import THREADS

__all__ = ["Computation", "Lanes", "Later", "Pool", "PoolQueue", "Task"]


T = TypeVar("T")


class Later(Exception):
    """Raised by a computation to be retried in so many seconds. Its lane waits meanwhile; the threads do not."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:g} s")
        self.seconds = seconds


class Computation(Generic[T]):
    """The results of a sequence of records, in the same order; ``None`` for those that are not computed yet."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.results: list[T | None] = [None] * len(records)
        self.left = len(records)
        self.is_wanted = True

    @property
    def is_done(self) -> bool:
        """Whether all results are computed."""
        return self.left == 0


class Task(NamedTuple, Generic[T]):
    """One record of a computation. ``attempt`` counts from 1."""

    computation: Computation[T]
    place: int
    attempt: int

    @property
    def record(self) -> Record:
        """The record to compute."""
        return self.computation.records[self.place]


class Lanes(ABC, Generic[T]):
    """Records to be computed, many at once, but those of the same lane one after the other.

    A subclass takes the next record by :meth:`_take`, computes it, and reports by :meth:`_put_back`. An error ends all
    of it, and :meth:`check` raises it.
    """

    def __init__(self, ordering: Ordering, runtime: Runtime = THREADS) -> None:
        self.clock = runtime.monotonic
        self._ordering = ordering
        # A lane is in this dictionary while it has work. It is then in exactly one of the next three collections.
        self._lanes: dict[Lane, deque[Task[T]]] = {}
        self._under_way: set[Lane] = set()
        self._waiting: list[tuple[float, int, Lane]] = []  # a heap of: time of the retry, tie-breaker, lane
        self._ready: deque[Lane] = deque()
        self._numbers = count()
        self._changed = runtime.condition()
        self._finished = runtime.signal()
        self._held = self._closed = False
        self._error: BaseException | None = None

    def submit(self, records: Sequence[Record]) -> Computation[T]:
        """Queue records for computing, in each lane after those that were submitted before."""
        computation: Computation[T] = Computation(list(records))
        with self._changed:
            for index, record in enumerate(computation.records):
                where = lane(self._ordering, record)
                tasks = self._lanes.get(where)
                if tasks is None:
                    self._lanes[where] = tasks = deque()
                    self._ready.append(where)
                tasks.append(Task(computation, index, 1))
            self._wake(len(records))
        return computation

    def cancel(self, computations: Collection[Computation[T]]) -> None:
        """Cancel computations: drop records that have not started, and ignore the results of those that are running.

        A lane still waits for its running record, so that two handlers never run at once in one lane.
        """
        with self._changed:
            for computation in computations:
                computation.is_wanted = False
            for where, tasks in list(self._lanes.items()):
                kept = deque(task for task in tasks if task.computation.is_wanted)
                if kept or where in self._under_way:
                    self._lanes[where] = kept
                else:
                    del self._lanes[where]
            self._ready = deque(where for where in self._ready if where in self._lanes)
            waiting, self._waiting = self._waiting, []
            for entry in waiting:
                tasks = self._lanes.get(entry[2], deque())
                if tasks and tasks[0].attempt > 1:  # the record that waits for its retry was not cancelled
                    self._waiting.append(entry)
                elif tasks:
                    self._ready.append(entry[2])
            heapify(self._waiting)
            self._wake()

    def hold(self, held: bool) -> None:
        """Stop starting records, or continue; running ones are not affected."""
        if held != self._held:
            with self._changed:
                self._held = held
                self._wake()

    def wait(self, seconds: float) -> None:
        """Wait until a computation has finished since the last call, for at most so many seconds."""
        if self._finished.wait(seconds):
            self._finished.clear()

    def check(self) -> None:
        """Raise the error that ended the computing, if there is one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Drop records that have not started, and do not wait for those that are running."""
        with self._changed:
            self._closed = True
            self._lanes.clear()
            self._ready.clear()
            self._waiting.clear()
            self._wake()

    @abstractmethod
    def _wake(self, records: int | None = None) -> None:
        """Look for the next records again; at most so many can be taken. The caller holds the lock."""

    def _take(self) -> tuple[Lane, Task[T]] | None:
        """Return the next record and its lane, which is under way from now on. The caller holds the lock."""
        now = self.clock()
        while self._waiting and self._waiting[0][0] <= now:
            self._ready.append(heappop(self._waiting)[2])
        if not self._ready or self._held or self._closed:
            return None
        where = self._ready.popleft()
        self._under_way.add(where)
        return where, self._lanes[where].popleft()

    @property
    def _pause(self) -> float | None:
        """The seconds until the next retry; ``None`` if no record waits for one. The caller holds the lock."""
        return self._waiting[0][0] - self.clock() if self._waiting else None

    def _fail(self, computation: Computation[T], error: BaseException) -> None:
        with self._changed:
            if isinstance(error, Exception) and not computation.is_wanted:
                return  # ignore it: the reason for the cancellation may also have caused this error
            self._error = self._error or error
        self.close()
        self._finished.set()

    def _put_back(self, where: Lane, task: Task[T], wait: float | None) -> None:
        """Make the lane ready for its next record, or put the same record back for a retry after ``wait`` seconds."""
        with self._changed:
            self._under_way.discard(where)
            if self._closed:
                return
            tasks = self._lanes[where]
            if wait is not None and task.computation.is_wanted:
                tasks.appendleft(task._replace(attempt=task.attempt + 1))
                heappush(self._waiting, (self.clock() + wait, next(self._numbers), where))
                self._wake(1)  # an idle thread may be waiting for longer than that
                return
            task.computation.left -= 1
            if task.computation.is_done:
                self._finished.set()
            if tasks:
                self._ready.append(where)
            else:
                del self._lanes[where]


class Pool(Lanes[T]):
    """Runs a function on many records at once, on threads.

    ``compute`` takes the record and the number of the attempt, starting at 1. It returns a result, or raises
    :class:`Later` to be retried. Any other error ends the pool. The threads start with the first records.
    """

    def __init__(
        self,
        workers: int,
        ordering: Ordering,
        compute: Callable[[Record, int], T],
        name: str,
        runtime: Runtime = THREADS,
    ) -> None:
        super().__init__(ordering, runtime)
        self._runtime = runtime
        self._names = [f"{name}-{number}" for number in range(workers)]
        self._compute = compute
        self._threads: list[Strand] = []

    def submit(self, records: Sequence[Record]) -> Computation[T]:
        """Queue records for computing, in each lane after those that were submitted before."""
        computation = super().submit(records)
        if records and not self._threads:
            self._threads = [self._runtime.start(self._work, name) for name in self._names]
        return computation

    def _wake(self, records: int | None = None) -> None:
        if records is None:
            self._changed.notify_all()
        else:
            self._changed.notify(records)

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            where, task = taken
            wait: float | None = None
            try:
                task.computation.results[task.place] = self._compute(task.record, task.attempt)
            except Later as later:
                wait = later.seconds
            except BaseException as error:  # otherwise this thread would end silently, and its lane would stall
                self._fail(task.computation, error)
            self._put_back(where, task, wait)

    def _next(self) -> tuple[Lane, Task[T]] | None:
        with self._changed:
            while not self._closed:
                if (taken := self._take()) is not None:
                    return taken
                self._changed.wait(self._pause)
            return None


_NOW_AND_THEN = 0.2  # seconds after which the computed beginning of a batch is handed out on its own


class _Queued(NamedTuple):
    """A batch in the queue. ``computation`` is ``None`` if the batch was taken back: then it is computed already.

    ``first`` is the index of its first record in the computation. It is above 0 if the beginning of the original batch
    was handed out before.
    """

    batch: Batch
    computation: Computation[Tried] | None
    bytes: int
    first: int = 0

    @property
    def is_computed(self) -> bool:
        return self.computation is None or self.computation.is_done

    @property
    def results(self) -> list[Tried]:
        """The results up to the first record that is not computed."""
        found = () if self.computation is None else self.computation.results[self.first :]
        return [tried for tried in takewhile(lambda tried: tried is not None, found) if tried is not None]


class _Queue:
    """The batches of one partition, in offset order."""

    __slots__ = ("bytes", "entries", "records", "since")

    def __init__(self, now: float) -> None:
        self.entries: deque[_Queued] = deque()
        self.bytes = self.records = 0
        self.since = now  # when a batch was last handed out

    def append(self, batch: Batch, computation: Computation[Tried]) -> None:
        self.entries.append(self._counted(batch, computation))

    def put_back(self, batch: Batch) -> None:
        self.entries.appendleft(self._counted(batch, None))

    def pop_beginning(self) -> Batch | None:
        """Remove and return the computed beginning of the first batch; ``None`` if its first record is not computed."""
        results = self.entries[0].results
        if not results:
            return None
        batch, computation, _, first = self.pop()
        if len(results) == len(batch.records):  # its computation has just finished
            return _with(batch, results)
        head, tail = batch.cut(len(results))
        self.entries.appendleft(self._counted(tail, computation, first + len(results)))
        return _with(head, results)

    def pop(self) -> _Queued:
        entry = self.entries.popleft()
        self.bytes -= entry.bytes
        self.records -= len(entry.batch.records)
        return entry

    def _counted(self, batch: Batch, computation: Computation[Tried] | None, first: int = 0) -> _Queued:
        entry = _Queued(batch, computation, sum(Records.of(batch.records).sizes), first)
        self.bytes += entry.bytes
        self.records += len(batch.records)
        return entry


class PoolQueue:
    """The batches that a pool computes, handed out in offset order within each partition.

    If the pool finishes the second batch of a partition first, that batch waits for the first one. A batch that was
    taken back is handed out again without computing it again.
    """

    def __init__(self, pool: Lanes[Tried], bounds: BatchBounds, ahead: int) -> None:
        """Create an empty queue.

        ``bounds`` limits the batches that are handed out. A partition with ``ahead`` records counts as full.
        """
        self._pool = pool
        self._bounds = bounds
        self._ahead = ahead
        self._queues: dict[TopicPartition, _Queue] = {}

    @property
    def bytes(self) -> int:
        """The bytes of all records in the queue."""
        return sum(queue.bytes for queue in self._queues.values())

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions that have batches in the queue."""
        return set(self._queues)

    @property
    def full(self) -> set[TopicPartition]:
        """The partitions to which no batch should be added.

        This limits how many results pile up in a partition while a slow record blocks it.
        """
        return {tp for tp, queue in self._queues.items() if queue.records >= self._ahead}

    @property
    def has_ready(self) -> bool:
        """Whether a batch can be handed out as a whole."""
        return any(queue.entries[0].is_computed for queue in self._queues.values())

    def bytes_of(self, partition: TopicPartition) -> int:
        """Return the bytes of one partition's records in the queue."""
        return self._queues[partition].bytes if partition in self._queues else 0

    def hold(self, held: bool) -> None:
        """Make the pool stop starting records, or continue."""
        self._pool.hold(held)

    def wait(self, seconds: float) -> None:
        """Wait until a batch may be ready, for at most so many seconds; raises the error that ended the pool."""
        self._pool.wait(seconds)
        self._pool.check()

    def add(self, batches: Iterable[Batch]) -> None:
        """Add batches and start computing them."""
        for batch in batches:
            self._queues.setdefault(batch.span.partition, _Queue(self._pool.clock())).append(
                batch, self._pool.submit(batch.records)
            )

    def take_back(self, batch: Batch) -> None:
        """Put back a batch that was not committed; it is handed out again."""
        self._queues.setdefault(batch.span.partition, _Queue(self._pool.clock())).put_back(batch)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the batches of these partitions, and cancel their computations."""
        gone = [entry for tp in partitions if tp in self._queues for entry in self._queues.pop(tp).entries]
        if computations := [entry.computation for entry in gone if entry.computation is not None]:
            self._pool.cancel(computations)

    def ready(self, partitions: Collection[TopicPartition] | None = None) -> list[Batch]:
        """Hand out the computed batches of each partition, or only of ``partitions``; adjacent ones as a single batch.

        A slow batch is handed out in parts from time to time, so that its beginning is committed. ``partitions`` are
        about to go to another member, so the computed parts of their batches are handed out at once.
        """
        handed_out = []
        for tp, queue in list(self._queues.items()):
            if partitions is not None and tp not in partitions:
                continue
            batches = list(self._computed(queue))
            is_due = partitions is not None or self._pool.clock() - queue.since >= _NOW_AND_THEN
            if is_due and not batches and (beginning := queue.pop_beginning()) is not None:
                batches = [beginning]
            if batches:
                handed_out.append(_joined(batches))
                queue.since = self._pool.clock()
            if not queue.entries:
                del self._queues[tp]
        return handed_out

    def close(self) -> None:
        """Close the pool."""
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


def _known(entry: _Queued) -> Batch:
    """Return the batch with the pool's results."""
    return entry.batch if entry.computation is None else _with(entry.batch, entry.results)


def _with(batch: Batch, results: Sequence[Tried]) -> Batch:
    found = zip(Records.of(batch.records).part("offset"), results, strict=True)
    return batch._replace(tries={(batch.span.partition, offset): tried for offset, tried in found})


def _joined(batches: list[Batch]) -> Batch:
    first, last = batches[0], batches[-1]
    if first is last:
        return first
    records = Records.joined([batch.records for batch in batches])
    span = Span(first.span.partition, first.span.start, last.span.end, len(records))
    tries = {place: tried for batch in batches for place, tried in batch.tries.items()}
    return Batch(first.generation, span, records, tries)
