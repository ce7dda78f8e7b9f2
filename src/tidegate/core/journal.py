"""The journal of position changes, and its verification: every skip and every repetition has an entry."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from tidegate.core.records import TopicPartition

__all__ = [
    "BUCKET",
    "HISTORY",
    "OPEN_FOR",
    "WRITTEN_LATE",
    "Break",
    "Bucket",
    "Entry",
    "Kind",
    "Trail",
    "Verification",
    "backwards",
    "bucket_begin",
    "in_time",
]

OPEN_FOR = timedelta(seconds=60)
"""How long advances under one claim extend the same journal entry."""

BUCKET = 600
"""The length of one bucket of the coarse history, in seconds."""

HISTORY = timedelta(days=90)
"""The minimum time for which the coarse history is kept."""

WRITTEN_LATE = "written after the entries behind it, which an older version of Tidegate wrote"
"""The note of an advance that was still open when a member of an older version, without open entries, continued."""


class Kind(StrEnum):
    """The kind of a journal entry. ``pause`` and ``resume`` concern a whole group, the others one position."""

    START = "start"
    CLAIM = "claim"
    RELEASE = "release"
    ADVANCE = "advance"
    SKIP = "skip"
    EDIT = "edit"
    LOSS = "loss"
    PAUSE = "pause"
    RESUME = "resume"


class Entry(NamedTuple):
    """One entry of the journal. ``seq`` numbers the entries of one position without gaps; ``partition`` is ``None``
    if the entry concerns a whole group.

    An advance entry combines all advances of one claim within a minute: ``since`` is the time of the first one, ``at``
    and ``token`` belong to the last one.
    """

    partition: TopicPartition | None
    seq: int
    kind: Kind
    start: int
    end: int
    records: int
    epoch: int
    owner: str | None
    token: str | None
    note: str | None
    at: datetime | None = None
    since: datetime | None = None


class Bucket(NamedTuple):
    """The number of records advanced in ten minutes. ``begin`` is their start, in seconds since 1970."""

    begin: int
    records: int


def bucket_begin(at: datetime | None) -> int:
    """Return the start of the bucket that a time falls into."""
    return 0 if at is None else int(at.timestamp()) // BUCKET * BUCKET


def in_time(entry: Entry) -> tuple[float, TopicPartition, int]:
    """Return the sort key for entries of several partitions: by time, then by partition and ``seq``."""
    at = 0.0 if entry.at is None else entry.at.timestamp()
    return at, entry.partition or TopicPartition("", -1), entry.seq


def backwards(still_open: Iterable[Entry], written: Iterable[Entry]) -> Iterator[Entry]:
    """Merge the open and the written entries of several partitions, newest first.

    ``written`` comes in the order of writing, last written first. That is not the order of time: an advance is written
    when the next entry of its partition begins, which may be long after the advance itself. The next entry thus tells
    when it was written. All entries still to come were written before that, so newer ones can be yielded.
    """
    held = sorted(still_open, key=in_time)
    later = {entry.partition: entry.since or entry.at for entry in held}
    for entry in written:
        at = later.get(entry.partition) or entry.at
        while held and at is not None and held[-1].at is not None and held[-1].at > at:
            yield held.pop()
        insort(held, entry, key=in_time)
        later[entry.partition] = entry.since or entry.at
    yield from reversed(held)


class Break(NamedTuple):
    """The first entry at which the journal of a partition is inconsistent."""

    partition: TopicPartition
    seq: int
    reason: str

    def __str__(self) -> str:
        return f"{self.partition}, journal entry {self.seq}: {self.reason}"


class Verification(NamedTuple):
    """The result of :meth:`~tidegate.ledger.Ledger.verify`: how much was checked, and the breaks that were found."""

    partitions: int
    entries: int
    breaks: tuple[Break, ...]

    @property
    def ok(self) -> bool:
        """Whether the journal explains every position."""
        return not self.breaks


_BY_OWNER = {Kind.ADVANCE, Kind.SKIP, Kind.LOSS}
_NEW_EPOCH = {Kind.CLAIM, Kind.EDIT}
_OWNERLESS = {Kind.START, Kind.RELEASE, Kind.EDIT}


class Trail:
    """The verification of one partition: follow its entries, oldest first, then compare the last with its position.

    Entries and position have to come from one snapshot. Pruning deletes the oldest entries, so the first remaining one
    is taken as correct.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self.count = 0
        self._partition = partition
        self._before: Entry | None = None
        self._break: Break | None = None
        self._ended = False

    def follow(self, entry: Entry) -> None:
        """Check the next entry; do nothing after the first break."""
        if self._break is not None:
            return
        self.count += 1
        before = self._before
        if before is None or (self.count == 2 and before.note == WRITTEN_LATE and entry.seq > before.seq + 1):
            reason = _first_fault(entry)  # entries behind a late one may be pruned before it
        else:
            reason = _fault(before, entry)
        if reason:
            self._break = Break(self._partition, entry.seq, reason)
        self._before = entry

    def end(self, *, next_offset: int, epoch: int, owner: str | None, seq: int) -> None:
        """Compare the last entry with the stored position."""
        self._ended = True
        last = self._before
        if self._break is not None:
            return
        if last is None:
            reason = "the position has no journal at all; not even its last entry, which pruning keeps"
            self._break = Break(self._partition, 0, reason)
            return
        journalled = (last.seq, last.end, last.epoch, None if last.kind in _OWNERLESS else last.owner)
        stored = (seq, next_offset, epoch, owner)
        for what, expected, found in zip(("entry", "offset", "epoch", "owner"), journalled, stored, strict=True):
            if expected != found:
                reason = f"the journal ends at {what} {expected}, but the position is at {found}"
                self._break = Break(self._partition, last.seq, reason)
                return

    @property
    def broken(self) -> Break | None:
        """The first break; ``None`` if the entries lead to the position."""
        if self._ended or self._break is not None:
            return self._break
        seq = 0 if self._before is None else self._before.seq
        return Break(self._partition, seq, "the journal has entries, but the position is gone")


def _first_fault(entry: Entry) -> str | None:
    if entry.seq == 1 and entry.kind is not Kind.START:
        return f"the first entry is '{entry.kind}', not 'start'"
    return None


def _fault(before: Entry, entry: Entry) -> str | None:
    if entry.seq <= before.seq:
        return f"it comes behind entry {before.seq}"
    if entry.seq != before.seq + 1:
        return f"entries {before.seq + 1} to {entry.seq - 1} are missing"
    if entry.start != before.end:
        return f"'{entry.kind}' starts at offset {entry.start}, but the entry before it ended at {before.end}"
    if entry.kind in _BY_OWNER and entry.end <= entry.start:
        return f"'{entry.kind}' goes from offset {entry.start} to {entry.end}"
    if entry.kind not in _BY_OWNER | {Kind.EDIT} and entry.end != entry.start:
        return f"'{entry.kind}' moves the position from {entry.start} to {entry.end}"
    if entry.epoch != before.epoch + (entry.kind in _NEW_EPOCH):
        return f"'{entry.kind}' has epoch {entry.epoch} after epoch {before.epoch}"
    if entry.kind in _BY_OWNER and (before.kind in _OWNERLESS or entry.owner != before.owner):
        owner = None if before.kind in _OWNERLESS else before.owner
        return f"'{entry.kind}' by {entry.owner}, but the owner was {owner}"
    return None
