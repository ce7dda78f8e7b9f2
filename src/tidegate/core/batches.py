"""Batches of records: how they are collected per partition, and how much of them goes into one transaction."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from operator import itemgetter
from random import Random
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from tidegate.core.arguments import Accepts, ByteCount, Count, Seconds, convert_arguments, kind_of
from tidegate.core.policies import Backoff, Park, StepOver
from tidegate.core.records import Record, RecordColumns, Records, TopicPartition
from tidegate.core.work import Span

__all__ = [
    "NO_TRIES",
    "TURN",
    "Batch",
    "BatchBounds",
    "Batching",
    "Bounds",
    "Computed",
    "Done",
    "Pacing",
    "Portion",
    "Refused",
    "Tried",
    "Tries",
    "split",
]


class Done(NamedTuple):
    """Outcome: the handler processed the record, and its effects cannot be rolled back, so it does not run again."""


class Computed(NamedTuple):
    """Outcome: a pool has run the handler; the transaction still has to write ``writes``."""

    writes: Any


class Refused(NamedTuple):
    """Outcome: the database refused the COMMIT of a transaction that contained only this record."""

    error: Exception


class Tried(NamedTuple):
    """The history of one record: the number of failed attempts, and its outcome if that is settled.

    A settled outcome is final, and the transaction that commits carries it out. Without this, two bad records in one
    batch would start each other's attempts over whenever one of them waits for a retry.
    """

    failed: int
    settled: Computed | Done | Refused | StepOver | Park | None = None


Tries: TypeAlias = Mapping[tuple[TopicPartition, int], Tried]
"""The histories of records by partition and offset. They are dropped when their batch is dropped or committed."""

NO_TRIES: Tries = MappingProxyType({})


_WAITS = Backoff(0.04, 2.0, 1.0)  # the longest waits after conflicts of a partition
TURN = 0.4
"""How many seconds a transaction may keep others waiting while the members of a group take turns to commit."""


class Batch(NamedTuple):
    """Records of one partition to commit as one span, and the generation under which they were read.

    A batch can be empty: aborted transactions and compaction leave spans without records, and the position has to
    advance over them. ``tries`` has the histories of its records if the batch was handed out before.
    """

    generation: int
    span: Span
    records: Sequence[Record]
    tries: Tries = NO_TRIES

    def cut(self, count: int) -> tuple[Batch, Batch]:
        """Split into the first ``count`` records and the rest; ``count`` is at least 1 and less than their number."""
        end = self.records[count - 1].offset + 1
        span = self.span._replace(end=end, records=count)
        before, _ = _parted(self.tries, end)
        return self._replace(span=span, records=self.records[:count], tries=before), self.behind(end)

    def behind(self, offset: int) -> Batch:
        """Return the rest of the batch from ``offset`` on, which lies within its span."""
        records = self.records[bisect_left(self.records, offset, key=lambda record: record.offset) :]
        span = self.span._replace(start=offset, records=len(records))
        _, after = _parted(self.tries, offset)
        return self._replace(span=span, records=records, tries=after)


def split(batches: Iterable[Batch], count: int) -> tuple[list[Batch], list[Batch]]:
    """Split batches into the first ``count`` records and the rest. Batches without records go with the first."""
    first, rest = list[Batch](), list[Batch]()
    for batch in batches:
        size = len(batch.records)
        if size <= count:
            first.append(batch)
        elif count == 0:
            rest.append(batch)
        else:
            head, tail = batch.cut(count)
            first.append(head)
            rest.append(tail)
        count -= min(size, count)
    return first, rest


def _parted(tries: Tries, offset: int) -> tuple[Tries, Tries]:
    """Split histories into those of records before ``offset`` and those of the others."""
    if not tries:
        return NO_TRIES, NO_TRIES
    before = {place: tried for place, tried in tries.items() if place[1] < offset}
    return before, {place: tried for place, tried in tries.items() if place not in before}


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """When a batch is handed out: at ``count`` records, at ``bytes``, or ``age`` seconds after its first record.

    ``count`` and ``bytes`` are also the maximum of a batch, except that a record larger than ``bytes`` forms a batch
    of its own.
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


Bounds: TypeAlias = Annotated[BatchBounds, Accepts("BatchBounds(…), or a number of records of at least 1", _bounds)]
"""Bounds as an argument; a plain number is taken as ``count``."""


class _Buffer:
    """The records of one partition that were read and not handed out: all in ``[start, end)``.

    If a batch was handed out and taken back, it comes first, and ``tries`` has the histories of its records. If it was
    postponed, ``until`` is when it is due, and ``waiting`` is its size in bytes, which ``bytes`` includes.
    """

    __slots__ = (
        *(
            "bytes",
            "end",
            "generation",
            "records",
            "since",
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
        self.records = Records()
        self.bytes = 0
        self.since = 0.0
        self.hand_out()

    def hand_out(self) -> None:
        """Clear what belongs to a batch that was taken back, because it is handed out again."""
        self.taken_back = False
        self.tries: Tries = NO_TRIES
        self.until: float | None = None
        self.waiting = 0


class Batching:
    """The record buffers of one member, one for each partition that it reads."""

    __slots__ = ("_bounds", "_buffers", "_goes_alone")

    def __init__(self, bounds: BatchBounds) -> None:
        self._bounds = bounds
        self._goes_alone = False  # whether the batch handed out last was a postponed one
        self._buffers: dict[TopicPartition, _Buffer] = {}

    @property
    def bytes(self) -> int:
        """The bytes in all buffers, by which fetching is throttled.

        Postponed batches do not count, nor do batches that are handed out: there is at most one per partition, and
        the other partitions continue to be read.
        """
        return sum(buffer.bytes - buffer.waiting for buffer in self._buffers.values())

    @property
    def is_ahead(self) -> bool:
        """Whether the buffers hold at least two full batches per partition, so that reading more gains nothing yet."""
        buffers = [buffer for buffer in self._buffers.values() if buffer.until is None]
        return bool(buffers) and sum(len(each.records) for each in buffers) >= 2 * self._bounds.count * len(buffers)

    @property
    def waiting(self) -> set[TopicPartition]:
        """The partitions that have a postponed batch."""
        return {tp for tp, buffer in self._buffers.items() if buffer.until is not None}

    @property
    def has_taken_back(self) -> bool:
        """Whether a batch was taken back and has to be handed out again."""
        return any(buffer.taken_back for buffer in self._buffers.values())

    def start(self, partition: TopicPartition, position: int, generation: int) -> None:
        """Start reading a partition at ``position``, with an empty buffer."""
        self._buffers[partition] = _Buffer(position, generation)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the buffers of these partitions."""
        for tp in partitions:
            self._buffers.pop(tp, None)

    def add(self, runs: Iterable[RecordColumns], now: float) -> None:
        """Add records. Ignore those seen before and those of partitions not started."""
        for run in runs:
            buffer = self._buffers.get(run.source)
            fresh = None if buffer is None else run.behind(buffer.end)
            if buffer is None or fresh is None:
                continue
            if buffer.start == buffer.end:
                buffer.since = now
            buffer.records = Records.joined([buffer.records, Records([fresh])])
            buffer.bytes += sum(fresh.sizes)
            buffer.end = fresh.end

    def reached(self, partition: TopicPartition, offset: int, now: float) -> None:
        """Note that the source continues at ``offset``: there are no more records before it."""
        buffer = self._buffers.get(partition)
        if buffer is not None and offset > buffer.end:
            if buffer.start == buffer.end:
                buffer.since = now
            buffer.end = offset

    def end_of(self, partition: TopicPartition) -> int | None:
        """Return the offset up to which a partition was read; ``None`` if it is not being read."""
        return self._buffers[partition].end if partition in self._buffers else None

    def bytes_of(self, partition: TopicPartition) -> int:
        """Return the bytes in the buffer of one partition."""
        return self._buffers[partition].bytes if partition in self._buffers else 0

    def ready(self, now: float, without: Collection[TopicPartition] = ()) -> list[Batch]:
        """Hand out the next batch of each partition whose batch is full or old enough.

        Fresh batches of the partitions in ``without`` are held back.

        A postponed batch is handed out alone, so that nothing else is rolled back if it fails again. Postponed batches
        alternate with the others, so that many of them do not block the rest.
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
        """Put a batch back that was not committed. It is handed out again with the records that follow it."""
        buffer = self._buffer_of(batch)
        if buffer is not None:
            self._restore(buffer, batch)

    def postpone(self, batch: Batch, until: float) -> bool:
        """Put a batch back that was not committed, and hand it out unchanged once ``until`` has come.

        The records read behind it are dropped to free memory during the wait, and have to be read again. Return
        ``False``, and do nothing, if the batch is obsolete because the partition is not read any more or was restarted.
        """
        buffer = self._buffer_of(batch)
        if buffer is None:
            return False
        buffer.records, buffer.bytes, buffer.end, buffer.tries = Records(), 0, batch.span.end, NO_TRIES
        self._restore(buffer, batch)
        buffer.until, buffer.waiting = until, buffer.bytes
        return True

    def _buffer_of(self, batch: Batch) -> _Buffer | None:
        """Return the buffer that a batch came from; ``None`` if that stretch of reading is over."""
        buffer = self._buffers.get(batch.span.partition)
        if buffer is None or buffer.generation != batch.generation:
            return None
        if buffer.start != batch.span.end:
            raise RuntimeError(f"{batch.span} cannot be taken back: what is left begins at {buffer.start}")
        return buffer

    @staticmethod
    def _restore(buffer: _Buffer, batch: Batch) -> None:
        records = Records.of(batch.records)
        buffer.records = Records.joined([records, buffer.records])
        buffer.bytes += sum(records.sizes)
        buffer.start = batch.span.start
        buffer.since = -math.inf  # it was old enough before
        buffer.tries = {**buffer.tries, **batch.tries} if buffer.tries else batch.tries
        buffer.taken_back = True

    def rest(self, partitions: Iterable[TopicPartition]) -> Iterator[Batch]:
        """Hand out everything these partitions have, in batches within the bounds; for draining before a stop."""
        for tp in partitions:
            buffer = self._buffers.get(tp)
            while buffer is not None and buffer.start < buffer.end:
                yield self._next(tp, buffer)

    def _next(self, partition: TopicPartition, buffer: _Buffer) -> Batch:
        count, size = self._fitting(buffer)
        taken, buffer.records = buffer.records[:count], buffer.records[count:]
        # The last batch of the buffer ends where reading ended, which covers trailing offsets without records. Any
        # other batch ends behind its last record.
        end = taken.end if buffer.records else buffer.end
        buffer.bytes -= size
        span = Span(partition, buffer.start, end, count)
        before, after = _parted(buffer.tries, end)
        batch = Batch(buffer.generation, span, taken, before)
        buffer.start = end
        buffer.hand_out()
        buffer.tries = after
        return batch

    def _fitting(self, buffer: _Buffer) -> tuple[int, int]:
        """Return how many of the first records fit into one batch, and their bytes."""
        if len(buffer.records) <= self._bounds.count and buffer.bytes <= self._bounds.bytes:
            return len(buffer.records), buffer.bytes
        sizes = buffer.records[: self._bounds.count].sizes
        fitting = bisect_right(list(accumulate(sizes)), self._bounds.bytes)
        sizes = sizes[: max(fitting, 1)]
        return len(sizes), sum(sizes)


class _Pace:
    """How many records of one partition go into one transaction: ``limit``, down from ``whole`` before any failure.

    ``alone``: the partition gets a transaction of its own. ``conflicts`` counts the conflicts in a row.
    """

    __slots__ = ("after", "alone", "conflicts", "limit", "suspect", "whole")

    def __init__(self, whole: int) -> None:
        self.limit = self.whole = whole
        self.alone = False
        self.conflicts = 0
        self.after = -math.inf  # the earliest time of its next transaction; once chosen, the time of its last one
        self.suspect = 0  # the database refuses some record before this offset; 0 if there is none


class Pacing:
    """Limits for partitions whose batches failed as a whole: they are committed in smaller parts.

    Every failure halves the number of records per transaction, down to one, and gives the partition a transaction of
    its own. Every success doubles the number, until it is back at its first value. All other partitions share
    transactions, which alternate with those of single partitions.
    """

    __slots__ = ("_alone", "_paces", "_rng")

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._alone = False  # whether the last transaction had a single partition
        self._paces: dict[TopicPartition, _Pace] = {}

    def __bool__(self) -> bool:
        return bool(self._paces)

    def limit(self, partition: TopicPartition) -> int | None:
        """Return how many records of a partition go into one transaction; ``None`` if there is no limit."""
        pace = self._paces.get(partition)
        return None if pace is None else pace.limit

    def conflicted(self, batch: Batch, now: float) -> None:
        """Note a conflict with other transactions: next, try half of the batch, after a random wait.

        The wait is random so that conflicting members do not retry at the same time.
        """
        pace = self._halved(batch)
        pace.conflicts += 1
        pace.after = now + self._rng.random() * _WAITS.after(pace.conflicts)

    def refused(self, batch: Batch) -> None:
        """Note that the database refuses some record of a batch: next, try half of it.

        The limit does not grow before that record is found.
        """
        self._halved(batch).suspect = batch.span.end

    def _halved(self, batch: Batch) -> _Pace:
        count = len(batch.records)
        pace = self._paces.setdefault(batch.span.partition, _Pace(count))
        pace.limit, pace.alone = max(1, count // 2), True
        return pace

    def committed(self, spans: Iterable[Span], turn: float = 0.0) -> None:
        """Raise the limits of these partitions after a commit; lower them if the transaction took too long.

        ``turn`` is how many seconds other members waited for their turn; 0 if the group does not take turns. While it
        does, its members do not conflict with each other, so only partitions with a refused record go alone.
        """
        if turn:
            for each in self._paces.values():
                each.alone = each.alone and each.suspect > 0
        spans = list(spans)
        share = sum(span.records for span in spans) / max(len(spans), 1)
        for span in spans:
            pace = self._paces.get(span.partition)
            before = pace.limit if pace is not None else 0
            if turn > TURN:
                pace = self._paces.setdefault(span.partition, _Pace(span.records))
            if pace is None or span.end < pace.suspect:
                continue
            pace.conflicts = pace.suspect = 0
            if turn > TURN:
                pace.limit = max(1, int(span.records * TURN / turn))
                if span.records < share:  # the others took the time; without this, a limit that is small stays small
                    pace.limit = max(pace.limit, min(2 * before, int(share * TURN / turn)))
                continue
            pace.limit *= 2
            if pace.limit >= pace.whole:
                del self._paces[span.partition]

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the limits of partitions that are no longer read or are read anew."""
        for tp in partitions:
            self._paces.pop(tp, None)

    def choose(self, batches: Iterable[Batch], now: float) -> tuple[list[Batch], list[Batch]]:
        """Split ready batches into those that go into the next transaction and those left for later."""
        due, later, together = list[tuple[float, Batch]](), list[Batch](), list[Batch]()
        for batch in batches:
            pace = self._paces.get(batch.span.partition)
            if pace is None or not pace.alone:
                together.append(batch)
            elif pace.after <= now:
                due.append((pace.after, batch))
            else:
                later.append(batch)
        self._alone = bool(due) and not (together and self._alone)
        if self._alone:
            _, first = min(due, key=itemgetter(0))
            self._paces[first.span.partition].after = now
            later += [*together, *(batch for _, batch in due if batch is not first)]
            together = [first]
        else:
            later += [batch for _, batch in due]
        chosen = list[Batch]()
        for batch in together:
            part, rest = split([batch], self.limit(batch.span.partition) or len(batch.records))
            chosen += part
            later += rest
        return chosen, later


_GROWTH: Final = 8
_NOTICED: Final = 0.25  # share of the seconds; a shorter transaction does not predict how long more records take


class Portion:
    """The number of records that fit into one transaction of ``seconds``, estimated from earlier transactions.

    Partitions take turns: those left out of one transaction go first in the next.
    """

    __slots__ = ("_most", "_seconds", "_served", "_turns")

    def __init__(self, seconds: float, first: int | None = None) -> None:
        """``first`` is the number of records of the first portion, before any measurement; ``None`` means all."""
        self._seconds = seconds
        self._most = first
        self._served: dict[TopicPartition, int] = {}
        self._turns = count(1)

    def of(self, batches: Iterable[Batch]) -> tuple[list[Batch], list[Batch]]:
        """Split batches into those for the next transaction, least recently served first, and the rest."""
        in_turn = sorted(batches, key=lambda batch: self._served.get(batch.span.partition, 0))
        return (in_turn, []) if self._most is None else split(in_turn, self._most)

    def took(self, partitions: Iterable[TopicPartition], records: int, seconds: float) -> None:
        """Note a committed transaction: its partitions, its records and the seconds it took."""
        turn = next(self._turns)
        self._served.update((tp, turn) for tp in partitions)
        if not records:
            return
        fits = self._fits(records, seconds)
        if seconds > _NOTICED * self._seconds:
            self._most = fits
        elif self._most is not None:
            self._most = max(self._most, min(fits, _GROWTH * records))

    def was_too_much(self, records: int, seconds: float) -> None:
        """Note that a transaction was not committed because this many records took too long."""
        self._most = max(1, min(records // 2, self._fits(records, seconds)))

    def _fits(self, records: int, seconds: float) -> int:
        return max(1, int(records * self._seconds / max(seconds, 1e-6)))
