"""The journal: what happened to positions, and the proof that nothing was skipped or repeated unsaid."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from tidegate.core.records import TopicPartition

__all__ = ["Break", "Entry", "Kind", "Trail", "Verification", "in_time"]


class Kind(StrEnum):
    """What happened. ``pause`` and ``resume`` concern a whole group, the others one position."""

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
    """One line of the journal. ``seq`` counts what happened to one position, without gaps; ``partition`` is ``None``
    for a whole group."""

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


def in_time(entry: Entry) -> tuple[float, TopicPartition, int]:
    """The order in which entries of several partitions were written: those of one change by partition."""
    at = 0.0 if entry.at is None else entry.at.timestamp()
    return at, entry.partition or TopicPartition("", -1), entry.seq


class Break(NamedTuple):
    """The first place where the journal of a partition does not add up."""

    partition: TopicPartition
    seq: int
    reason: str

    def __str__(self) -> str:
        return f"{self.partition}, journal entry {self.seq}: {self.reason}"


class Verification(NamedTuple):
    """What :meth:`~tidegate.ledger.Ledger.verify` found: how much was proven, and the breaks if there are any."""

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
    """One partition's entries, followed oldest first up to its position as it was stored.

    Pruning takes away the oldest entries: the first one left is taken as given. Entries behind ``seq`` are newer than
    the position, and not looked at.
    """

    def __init__(self, partition: TopicPartition, *, next_offset: int, epoch: int, seq: int) -> None:
        self.count = 0
        self._partition = partition
        self._goal = (("entry", seq), ("offset", next_offset), ("epoch", epoch))
        self._seq = seq
        self._before: Entry | None = None
        self._break: Break | None = None

    def follow(self, entry: Entry) -> None:
        """Take the next entry, unless there was a break before it."""
        if self._break is not None or entry.seq > self._seq:
            return
        self.count += 1
        reason = _first_fault(entry) if self._before is None else _fault(self._before, entry)
        if reason:
            self._break = Break(self._partition, entry.seq, reason)
        self._before = entry

    def end(self) -> Break | None:
        """The first break, if the entries do not lead to the position."""
        last = self._before
        if self._break is not None:
            return self._break
        if last is None:
            return Break(
                self._partition, 0, "the position has no journal at all; not even its last entry, which pruning keeps"
            )
        for (what, stored), journalled in zip(self._goal, (last.seq, last.end, last.epoch), strict=True):
            if journalled != stored:
                reason = f"the journal ends at {what} {journalled}, but the position is at {stored}"
                return Break(self._partition, last.seq, reason)
        return None


def _first_fault(entry: Entry) -> str | None:
    if entry.seq == 1 and entry.kind is not Kind.START:
        return f"the first entry is '{entry.kind}', not 'start'"
    return None


def _fault(before: Entry, entry: Entry) -> str | None:
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
