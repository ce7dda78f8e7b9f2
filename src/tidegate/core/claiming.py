"""What a claim does to a position: keep it, start it, restart it, or refuse."""

from __future__ import annotations

from collections.abc import Mapping
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

    ``deployment`` names a deployment that forces its start once: a position that was not yet forced under this name
    goes to its start, later claims under the same name leave it alone. ``restart`` allows a position whose topic was
    recreated, or whose cluster was replaced, to begin again at its start.
    """

    group: str
    owner: str
    identities: Mapping[str, Identity] = field(default_factory=dict)
    deployment: str | None = None
    restart: bool = False

    def is_doubtful(self, row: Position | None) -> bool:
        """Whether a claim may do more to a position than take it as it is."""
        return row is None or self._conflict(row) is not None or self._forces(row)

    def wants_start(self, row: Position | None) -> bool:
        """Whether a partition's start has to be known before it can be claimed."""
        return row is None or self._why_start(row) is not None

    def decide(self, partition: TopicPartition, row: Position | None, starts: Mapping[TopicPartition, int]) -> Change:
        """The change that the claim makes to one position; ``starts`` knows those that want one."""
        identity = self.identities.get(partition.topic, _UNKNOWN)
        if row is None:
            change = Position.start(partition, starts[partition], identity, self.deployment)
            return change.then(change.position.claimed(self.owner))
        why = self._why_start(row)
        deployment = self.deployment or row.deployment
        if why is None:
            filled = row.identity.filled(identity)
            if filled != row.identity or deployment != row.deployment:
                row = row._replace(identity=filled, deployment=deployment)
            return row.claimed(self.owner)
        change = row.edited(starts[partition], why)
        moved = change.position._replace(identity=identity.filled(row.identity), deployment=deployment)
        return change.then(moved.claimed(self.owner))

    def _why_start(self, row: Position) -> str | None:
        conflict = self._conflict(row)
        if conflict and not self.restart:
            raise IdentityChanged(self._conflict_message(row, conflict))
        if conflict:
            return f"the {conflict} is another one now"
        return f"forced by deployment {self.deployment!r}" if self._forces(row) else None

    def _conflict(self, row: Position) -> str | None:
        identity = self.identities.get(row.partition.topic)
        return None if identity is None else row.identity.conflict(identity)

    def _forces(self, row: Position) -> bool:
        return self.deployment is not None and row.deployment != self.deployment

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
