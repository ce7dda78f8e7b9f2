"""What a claim does to a position: keep it, start it, restart it, or refuse."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidegate.core.errors import IdentityChanged
from tidegate.core.positions import Change, Identity, Position
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim

__all__ = ["ClaimRequest", "Standing", "standing"]

_UNKNOWN = Identity()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Everything that decides a claim, apart from the stored rows.

    ``deployment`` names a deployment that forces its start once: the first claim of a topic under that name moves the
    topic's positions to their start; ``used`` are the topics in which that has happened. ``restart`` allows a position
    whose topic was recreated, or whose cluster was replaced, to begin again at its start.
    """

    group: str
    owner: str
    identities: Mapping[str, Identity] = field(default_factory=dict)
    deployment: str | None = None
    restart: bool = False
    used: frozenset[str] = frozenset()

    def is_doubtful(self, partition: TopicPartition, row: Position | None) -> bool:
        """Whether a claim may do more to a position than take it as it is."""
        return row is None or self.forces(partition.topic) or self._conflict(row) is not None

    def forces(self, topic: str) -> bool:
        """Whether the deployment still has to force its start in a topic."""
        return self.deployment is not None and topic not in self.used

    def begins(self, topic: str, rows: Collection[Position]) -> bool:
        """Whether the group begins with a topic, ``rows`` being all that it has there: for the first time, under a new
        deployment, or because it is another topic now. Otherwise a partition without a row was added later, and so was
        one whose row belongs to a former topic of that name.
        """
        if any(row.was_claimed and self._conflict(row) is None for row in rows):
            return self.forces(topic)
        for row in rows:
            self._why_restart(row)  # which raises if that is not allowed
        return True

    def decide(self, partition: TopicPartition, row: Position | None, starts: Mapping[TopicPartition, int]) -> Change:
        """The change that the claim makes to one position; ``starts`` knows those that want one."""
        begun = self.begun(partition, row, starts)
        if begun is not None:
            return begun.then(begun.position.claimed(self.owner))
        assert row is not None  # noqa: S101 - or it would have begun
        filled = row.identity.filled(self.identities.get(partition.topic, _UNKNOWN))
        if filled != row.identity:
            row = row._replace(identity=filled)
        return row.claimed(self.owner)

    def begun(
        self, partition: TopicPartition, row: Position | None, starts: Mapping[TopicPartition, int]
    ) -> Change | None:
        """What happens to a position before it is taken: it is stored, or moved to its start; ``None``: nothing."""
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
    """Where a claim stands after it was fenced."""

    MINE = "mine"
    FREE = "free"
    TAKEN = "taken"


def standing(row: Position, claim: Claim) -> Standing:
    """Judge a claim by the row as it is now, read under its lock.

    Still mine: an earlier attempt of mine landed late. Free: an operator's edit or a release. Taken: another owner.
    """
    if row.owner == claim.owner and row.epoch == claim.epoch:
        return Standing.MINE
    return Standing.FREE if row.owner is None else Standing.TAKEN
