"""A position, and everything that may happen to it: each transition gives the new row and its line in the journal."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, cast

from tidegate.core.journal import Entry, Kind
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Step, Work

__all__ = ["Change", "GroupState", "Identity", "KeptOffset", "Position", "forced_starts"]


class Identity(NamedTuple):
    """Which cluster and which incarnation of a topic an offset belongs to; ``None`` where it is not known."""

    cluster_id: str | None = None
    topic_id: str | None = None

    def conflict(self, other: Identity) -> str | None:
        """Say which part of two known identities differs, or ``None``."""
        if self.cluster_id and other.cluster_id and self.cluster_id != other.cluster_id:
            return "cluster"
        if self.topic_id and other.topic_id and self.topic_id != other.topic_id:
            return "topic"
        return None

    def filled(self, other: Identity) -> Identity:
        """What is known from here, and from ``other`` where nothing is known here."""
        if other is self or (self.cluster_id and self.topic_id):
            return self
        return Identity(self.cluster_id or other.cluster_id, self.topic_id or other.topic_id)


_UNKNOWN = Identity()


class Position(NamedTuple):
    """The row of one (group, topic, partition): where reading continues, and who may move it.

    ``deployment`` is the one under which the position was first stored.
    """

    partition: TopicPartition
    next_offset: int
    epoch: int
    owner: str | None
    token: str | None
    seq: int
    identity: Identity = _UNKNOWN
    deployment: str | None = None
    updated_at: datetime | None = None

    @classmethod
    def start(
        cls,
        partition: TopicPartition,
        offset: int,
        identity: Identity = _UNKNOWN,
        deployment: str | None = None,
        note: str | None = None,
    ) -> Change:
        """Store a starting position, before the first record is read."""
        new = cls(partition, offset, 0, None, None, 1, identity, deployment)
        return Change(new, (new._entry(Kind.START, offset, note=note),), is_new=True)

    def claimed(self, owner: str) -> Change:
        """Take the position for ``owner``: whoever held it is fenced from here on."""
        new = Position(
            self.partition,
            self.next_offset,
            self.epoch + 1,
            owner,
            None,
            self.seq + 1,
            self.identity,
            self.deployment,
        )
        at = self.next_offset
        return Change(new, (Entry(self.partition, new.seq, Kind.CLAIM, at, at, 0, new.epoch, owner, None, None),))

    def released(self) -> Change:
        """Give the position back."""
        new = self._replace(owner=None, seq=self.seq + 1)
        return Change(new, (new._entry(Kind.RELEASE, self.next_offset, owner=self.owner),))

    def edited(self, offset: int, note: str | None, identity: Identity | None = None) -> Change:
        """Move the position by an operator's hand: the owner is fenced and has to claim again. With an ``identity``, it
        is an offset of that topic from here on."""
        new = self._replace(
            next_offset=offset,
            epoch=self.epoch + 1,
            owner=None,
            token=None,
            seq=self.seq + 1,
            identity=(identity or _UNKNOWN).filled(self.identity),
        )
        return Change(new, (new._entry(Kind.EDIT, self.next_offset, note=note),))

    def matches(self, step: Step) -> bool:
        """The comparison of the compare-and-set."""
        return self.next_offset == step.span.start and self.epoch == step.claim.epoch and self.owner == step.claim.owner

    def advanced(self, step: Step, work: Work) -> Change:
        """The setting of the compare-and-set."""
        new = self._replace(next_offset=step.span.end, token=work.token, seq=self.seq + 1)
        # The journal is told who did it, not who should have: that makes it a witness of the comparison.
        entry = new._entry(Kind(work.move), self.next_offset, records=step.span.records, note=work.note)
        return Change(new, (entry._replace(epoch=step.claim.epoch, owner=step.claim.owner),))

    @property
    def was_claimed(self) -> bool:
        """Whether a consumer has ever taken it; one that an operator stored ahead was not."""
        return self.owner is not None or self.identity != _UNKNOWN

    def claim(self, group: str) -> Claim:
        """The claim that the row's present owner holds."""
        return Claim(group, self.partition, self.next_offset, self.epoch, cast(str, self.owner))

    def _entry(
        self, kind: Kind, start: int, *, records: int = 0, owner: str | None = None, note: str | None = None
    ) -> Entry:
        return Entry(
            self.partition,
            self.seq,
            kind,
            start,
            self.next_offset,
            records,
            self.epoch,
            owner or self.owner,
            self.token if kind in _MOVED_BY_OWNER else None,
            note,
        )


_MOVED_BY_OWNER = {Kind.ADVANCE, Kind.SKIP, Kind.LOSS}


class Change(NamedTuple):
    """A position's new row and the journal's lines about it, to be stored together."""

    position: Position
    entries: tuple[Entry, ...]
    is_new: bool = False
    forced_by: str | None = None
    """The deployment that forces the topic's start with this change: the group has used its name from here on."""

    def then(self, later: Change) -> Change:
        """Two changes of one position as one."""
        return Change(later.position, self.entries + later.entries, self.is_new, self.forced_by)


class KeptOffset(NamedTuple):
    """A position that is kept in Kafka, with the note that was committed beside it."""

    offset: int
    note: str = ""


def forced_starts(changes: Iterable[Change]) -> set[tuple[str, str]]:
    """The topics whose starts are forced by changes, each with the deployment that does so."""
    return {(change.position.partition.topic, change.forced_by) for change in changes if change.forced_by is not None}


class GroupState(NamedTuple):
    """A group as the ledger has it: whether it is paused, and its stored positions."""

    group: str
    paused: bool
    positions: dict[TopicPartition, Position]

    def missing(self, partitions: set[TopicPartition]) -> set[TopicPartition]:
        """Those of ``partitions`` that have no stored position."""
        return partitions - self.positions.keys()
