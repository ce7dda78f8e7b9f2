"""Positions and their transitions. Each transition returns the new row and the journal entries to store with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NamedTuple, cast

from tidegate.core.journal import OPEN_FOR, WRITTEN_LATE, Bucket, Entry, Kind, bucket_begin
from tidegate.core.records import TopicPartition
from tidegate.core.work import Advance, Claim, Move, Work, lasting
from tidegate.errors import IdentityChanged

__all__ = [
    "Change",
    "ClaimRequest",
    "GroupState",
    "Identity",
    "KeptOffset",
    "OpenEntry",
    "Position",
    "Standing",
    "Totals",
    "forced_starts",
    "standing",
    "totals_of",
    "with_rows",
]


class Identity(NamedTuple):
    """The cluster and the incarnation of a topic that an offset belongs to; ``None`` where unknown."""

    cluster_id: str | None = None
    topic_id: str | None = None

    def conflict(self, other: Identity) -> str | None:
        """Return which part is known in both identities and differs; ``None`` if there is none."""
        if self.cluster_id and other.cluster_id and self.cluster_id != other.cluster_id:
            return "cluster"
        if self.topic_id and other.topic_id and self.topic_id != other.topic_id:
            return "topic"
        return None

    def filled(self, other: Identity) -> Identity:
        """Return this identity with its unknown parts taken from ``other``."""
        if other is self or (self.cluster_id and self.topic_id):
            return self
        return Identity(self.cluster_id or other.cluster_id, self.topic_id or other.topic_id)


_UNKNOWN = Identity()


class OpenEntry(NamedTuple):
    """The last journal entry of a position, while advances under the same claim can extend it.

    It stores its own end, epoch and owner, so that verification can compare them with the row.
    """

    seq: int
    start: int
    end: int
    records: int
    epoch: int
    owner: str
    since: datetime | None = None

    def takes(self, step: Advance, row: Position, now: datetime) -> bool:
        """Return whether an advance extends this entry: same claim, no other change since, and within ``OPEN_FOR``."""
        return (
            self.seq == row.seq
            and self.end == row.next_offset
            and self.epoch == step.claim.epoch
            and self.owner == step.claim.owner
            and self.since is not None
            and now - OPEN_FOR < self.since <= now
        )

    def extended(self, step: Advance) -> OpenEntry:
        """Return the entry with another advance added."""
        records = self.records + step.span.records
        return OpenEntry(self.seq, self.start, step.span.end, records, self.epoch, self.owner, self.since)

    def entry(self, row: Position) -> Entry:
        """Return the journal entry. If an older version has changed the row since, it is marked as written late."""
        is_last = self.seq == row.seq
        return Entry(
            row.partition,
            self.seq,
            Kind.ADVANCE,
            self.start,
            self.end,
            self.records,
            self.epoch,
            self.owner,
            row.token if is_last else None,
            None if is_last else WRITTEN_LATE,
            row.updated_at if is_last else self.since,
            self.since,
        )


class Position(NamedTuple):
    """The row of one (group, topic, partition): where reading continues, and who may move it.

    ``deployment`` is the one under which the position was first stored. ``open`` is its last journal entry, while that
    can be extended. ``bucket`` is the current bucket of the coarse history.
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
    open: OpenEntry | None = None
    bucket: Bucket | None = None

    @classmethod
    def start(
        cls,
        partition: TopicPartition,
        offset: int,
        identity: Identity = _UNKNOWN,
        deployment: str | None = None,
        note: str | None = None,
    ) -> Change:
        """Create a position at its start, before the first record is read."""
        new = cls(partition, offset, 0, None, None, 1, identity, deployment)
        return Change(new, (new._entry(Kind.START, offset, note=note),), is_new=True)

    def claimed(self, owner: str) -> Change:
        """Claim the position for ``owner``; this fences the previous owner."""
        closed, bucket, past = self._closed()
        new = Position(
            self.partition,
            self.next_offset,
            self.epoch + 1,
            owner,
            lasting(self.token),
            self.seq + 1,
            self.identity,
            self.deployment,
            bucket=bucket,
        )
        at = self.next_offset
        entry = Entry(self.partition, new.seq, Kind.CLAIM, at, at, 0, new.epoch, owner, None, None)
        return Change(new, (entry,), closed=closed, past=past)

    def released(self) -> Change:
        """Release the position, which then has no owner."""
        return self._journalled(self._replace(owner=None), Kind.RELEASE, owner=self.owner)

    def edited(self, offset: int, note: str | None, identity: Identity | None = None) -> Change:
        """Move the position for an operator; the owner is fenced and has to claim it again. With an ``identity``, the
        offset belongs to that topic from now on."""
        edited = self._replace(
            next_offset=offset,
            epoch=self.epoch + 1,
            owner=None,
            token=None,
            identity=(identity or _UNKNOWN).filled(self.identity),
        )
        return self._journalled(edited, Kind.EDIT, note=note)

    def matches(self, step: Advance) -> bool:
        """Return whether the step may be applied: the comparison of the compare-and-set."""
        return self.next_offset == step.span.start and self.epoch == step.claim.epoch and self.owner == step.claim.owner

    def advanced(self, step: Advance, work: Work, now: datetime) -> Change:
        """Apply the step: the setting of the compare-and-set. An advance extends the open entry or opens a new one;
        ``now`` comes from the store's clock."""
        span, claim = step.span, step.claim
        # The entry stores epoch and owner of the claim, not of the row: if the comparison was wrong, verification finds
        # the difference.
        if work.move is not Move.ADVANCE:
            moved = self._replace(next_offset=span.end, token=work.token)
            change = self._journalled(moved, Kind(work.move), records=span.records, note=work.note)
            (entry,) = change.entries
            return change._replace(entries=(entry._replace(epoch=claim.epoch, owner=claim.owner),))
        if self.open is not None and self.open.takes(step, self, now):
            return Change(self._moved(step, work, self.open.extended(step), self.bucket), (), extends=True)
        closed, bucket, past = self._closed()
        opened = OpenEntry(self.seq + 1, self.next_offset, span.end, span.records, claim.epoch, claim.owner, now)
        return Change(self._moved(step, work, opened, bucket), (), closed=closed, past=past, opens=True)

    def _moved(self, step: Advance, work: Work, entry: OpenEntry, bucket: Bucket | None) -> Position:
        """Return the row after the step. Every commit calls this; the constructor is twice as fast as ``_replace``."""
        return Position(
            self.partition,
            step.span.end,
            self.epoch,
            self.owner,
            work.token,
            entry.seq,
            self.identity,
            self.deployment,
            self.updated_at,
            entry,
            bucket,
        )

    def left(self, work: Work) -> Change:
        """Keep the offset, because ``work`` was cut and does not advance it. The token marks the work as done."""
        return Change(self._replace(token=work.token), ())

    @property
    def was_claimed(self) -> bool:
        """Whether a consumer has ever claimed it; a position that an operator stored in advance was not claimed."""
        return self.owner is not None or self.identity != _UNKNOWN

    def claim(self, group: str) -> Claim:
        """Return the claim of the row's current owner."""
        return Claim(group, self.partition, self.next_offset, self.epoch, cast(str, self.owner))

    def _journalled(
        self, changed: Position, kind: Kind, *, records: int = 0, owner: str | None = None, note: str | None = None
    ) -> Change:
        """Return the changed row and its journal entry, which follows the open entry; that one is closed."""
        closed, bucket, past = self._closed()
        new = changed._replace(seq=self.seq + 1, open=None, bucket=bucket)
        entry = new._entry(kind, self.next_offset, records=records, owner=owner, note=note)
        return Change(new, (entry,), closed=closed, past=past)

    def _closed(self) -> tuple[Entry | None, Bucket | None, Bucket | None]:
        """Return the open entry for the journal, the bucket with its records added, and the previous bucket if a new
        one begins."""
        if self.open is None:
            return None, self.bucket, None
        entry = self.open.entry(self)
        begin, bucket = bucket_begin(entry.at), self.bucket
        if bucket is None or bucket.begin != begin:
            return entry, Bucket(begin, entry.records), bucket
        return entry, Bucket(begin, bucket.records + entry.records), None

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
            self.token if kind in _STEPPED_OVER else None,
            note,
        )


_STEPPED_OVER = {Kind.SKIP, Kind.LOSS}


class Change(NamedTuple):
    """A position's new row and its journal entries, to be stored in one transaction.

    ``forced_by`` is the deployment that forces the topic's start with this change; its name then counts as used by the
    group. ``closed`` is the entry that was open before; it comes before ``entries``. ``opens`` says that the row has a
    new open entry, ``extends`` that its open entry was extended. ``past`` is a completed bucket of the coarse history.
    """

    position: Position
    entries: tuple[Entry, ...]
    is_new: bool = False
    forced_by: str | None = None
    closed: Entry | None = None
    past: Bucket | None = None
    opens: bool = False
    extends: bool = False

    def then(self, later: Change) -> Change:
        """Combine two changes of one position. The second starts without an open entry, as the first closed it."""
        return self._replace(position=later.position, entries=self.entries + later.entries)


class KeptOffset(NamedTuple):
    """A position kept in Kafka, with the note that was committed with it."""

    offset: int
    note: str = ""


def forced_starts(changes: Iterable[Change]) -> set[tuple[str, str]]:
    """Return the topics whose start these changes force, each with the deployment that forces it."""
    return {(change.position.partition.topic, change.forced_by) for change in changes if change.forced_by is not None}


class GroupState(NamedTuple):
    """A group as stored in the ledger: whether it is paused, and its positions."""

    group: str
    paused: bool
    positions: dict[TopicPartition, Position]

    def missing(self, partitions: set[TopicPartition]) -> set[TopicPartition]:
        """Return those of ``partitions`` that have no stored position."""
        return partitions - self.positions.keys()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The input of a claim, apart from the stored rows.

    ``deployment`` names a deployment that forces its start once: the first claim of a topic under that name moves the
    topic's positions to their start. ``used`` are the topics for which that has happened. ``restart`` allows a position
    to begin again at its start if its topic was recreated or its cluster replaced.
    """

    group: str
    owner: str
    identities: Mapping[str, Identity] = field(default_factory=dict)
    deployment: str | None = None
    restart: bool = False
    used: frozenset[str] = frozenset()

    def is_doubtful(self, partition: TopicPartition, row: Position | None) -> bool:
        """Return whether the claim may have to store or move the position before it takes it."""
        return row is None or self.forces(partition.topic) or self._conflict(row) is not None

    def forces(self, topic: str) -> bool:
        """Return whether the deployment still has to force its start in a topic."""
        return self.deployment is not None and topic not in self.used

    def begins(self, topic: str, rows: Collection[Position]) -> bool:
        """Return whether the group starts a topic: for the first time, under a new deployment, or because the topic was
        recreated. ``rows`` are all its rows for the topic.

        If not, a partition without a row was added to the topic later, and so was one whose row belongs to an earlier
        topic of the same name. Raise :class:`IdentityChanged` if a restart would be needed and is not allowed.
        """
        if any(row.was_claimed and self._conflict(row) is None for row in rows):
            return self.forces(topic)
        for row in rows:
            self._why_restart(row)  # raises if a restart is not allowed
        return True

    def decide(self, partition: TopicPartition, row: Position | None, starts: Mapping[TopicPartition, int]) -> Change:
        """Return the change that the claim makes to one position; ``starts`` has the offsets of those that need one."""
        begun = self.begun(partition, row, starts)
        if begun is not None:
            return begun.then(begun.position.claimed(self.owner))
        assert row is not None  # noqa: S101 - without a row, begun() returns a change
        filled = row.identity.filled(self.identities.get(partition.topic, _UNKNOWN))
        if filled != row.identity:
            row = row._replace(identity=filled)
        return row.claimed(self.owner)

    def begun(
        self, partition: TopicPartition, row: Position | None, starts: Mapping[TopicPartition, int]
    ) -> Change | None:
        """Return the change before the claim, which stores the position or moves it to its start; ``None`` if neither
        is needed."""
        identity = self.identities.get(partition.topic, _UNKNOWN)
        forces = self.forces(partition.topic)
        if row is None:
            change = Position.start(partition, starts[partition], identity, self.deployment)
        else:
            why = self._why_restart(row) or (f"forced by deployment {self.deployment!r}" if forces else None)
            if why is None:
                return None
            change = row.edited(starts[partition], why)
            moved = change.position._replace(identity=identity.filled(row.identity))
            change = change._replace(position=moved)
        return change._replace(forced_by=self.deployment) if forces else change

    def _why_restart(self, row: Position) -> str | None:
        conflict = self._conflict(row)
        if conflict and not self.restart:
            raise IdentityChanged(self._conflict_message(row, conflict))
        return f"the {conflict} is another one now" if conflict else None

    def _conflict(self, row: Position) -> str | None:
        identity = self.identities.get(row.partition.topic)
        return None if identity is None else row.identity.conflict(identity)

    def _conflict_message(self, row: Position, conflict: str) -> str:
        identity = self.identities[row.partition.topic]
        if conflict == "cluster":
            what = f"belongs to cluster {row.identity.cluster_id}, but this is cluster {identity.cluster_id}"
        else:
            what = f"belongs to topic id {row.identity.topic_id}, but the topic was recreated as {identity.topic_id}"
        return (
            f"the position of group {self.group!r} for {row.partition}, offset {row.next_offset}, {what}; its offsets "
            "mean nothing here. Check that this is the right Kafka; to begin again at the start, allow a restart"
        )


class Standing(Enum):
    """Who holds a position after a claim of it was fenced."""

    MINE = "mine"
    FREE = "free"
    TAKEN = "taken"


def standing(row: Position, claim: Claim) -> Standing:
    """Compare a claim with the current row, which the caller reads under its lock.

    ``MINE``: the claim still holds; an earlier attempt of the same owner was committed late. ``FREE``: an operator
    edited the position, or it was released. ``TAKEN``: another owner has it.
    """
    if row.owner == claim.owner and row.epoch == claim.epoch:
        return Standing.MINE
    return Standing.FREE if row.owner is None else Standing.TAKEN


class Totals(NamedTuple):
    """The positions of one group in one topic, added up.

    ``topic`` is ``None`` for a group without positions. ``owned`` counts the partitions that have an owner,
    ``next_offsets`` is the sum of the positions, and ``updated_at`` is the time of the latest change.
    """

    group: str
    paused: bool
    topic: str | None
    partitions: int = 0
    owned: int = 0
    next_offsets: int = 0
    updated_at: datetime | None = None


def totals_of(groups: Iterable[GroupState]) -> list[Totals]:
    """Return the totals of groups, sorted by group and topic."""
    totals = []
    for state in groups:
        topics: defaultdict[str, list[Position]] = defaultdict(list)
        for tp, row in state.positions.items():
            topics[tp.topic].append(row)
        totals += [_total(state, topic, rows) for topic, rows in topics.items()]
        if not topics:
            totals.append(Totals(state.group, state.paused, None))
    return sorted(totals, key=lambda total: (total.group, total.topic or ""))


def _total(state: GroupState, topic: str, rows: list[Position]) -> Totals:
    times: list[datetime] = [row.updated_at for row in rows if row.updated_at is not None]
    return Totals(
        state.group,
        state.paused,
        topic,
        len(rows),
        sum(row.owner is not None for row in rows),
        sum(row.next_offset for row in rows),
        max(times, default=None),
    )


def with_rows(stored: Mapping[int, int], rows: Iterable[Position], begin: int) -> list[Bucket]:
    """Return the coarse history from ``begin`` on, in order: the stored buckets plus what the rows still hold."""
    found = Counter(stored)
    for row in rows:
        if row.bucket is not None:
            found[row.bucket.begin] += row.bucket.records
        if row.open is not None:
            found[bucket_begin(row.open.entry(row).at)] += row.open.records
    return sorted(Bucket(*each) for each in found.items() if each[0] >= begin)
