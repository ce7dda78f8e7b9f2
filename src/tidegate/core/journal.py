"""The journal: what happened to positions, and the proof that nothing was skipped or repeated unsaid."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from tidegate.core.records import TopicPartition

__all__ = ["Break", "Entry", "Kind", "Verification", "verify_partition"]


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


def verify_partition(
    partition: TopicPartition, entries: Iterable[Entry], *, next_offset: int, epoch: int, seq: int
) -> tuple[int, Break | None]:
    """Follow one partition's entries, oldest first, to the position as it is stored.

    Returns how many entries were followed, and the first break. Pruning takes away the oldest entries: the first one
    left is then taken as given.
    """
    count = 0
    before: Entry | None = None
    for entry in entries:
        count += 1
        reason = _first_fault(entry) if before is None else _fault(before, entry)
        if reason:
            return count, Break(partition, entry.seq, reason)
        before = entry
    if before is None:
        return 0, Break(
            partition, 0, "the position has no journal at all; not even its last entry, which pruning keeps"
        )
    for what, journalled, stored in (
        ("entry", before.seq, seq),
        ("offset", before.end, next_offset),
        ("epoch", before.epoch, epoch),
    ):
        if journalled != stored:
            return count, Break(
                partition, before.seq, f"the journal ends at {what} {journalled}, but the position is at {stored}"
            )
    return count, None


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
