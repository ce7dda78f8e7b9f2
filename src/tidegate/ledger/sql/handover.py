"""Claims or releases of many rows at once, when the same happens to each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegate.core.journal import Kind
from tidegate.core.positions import Change, Position
from tidegate.core.records import TopicPartition

__all__ = ["Handover"]


class Handover(NamedTuple):
    """Rows that change hands, and nothing else: then the store needs to be told their keys only.

    A claim bumps the epoch, which clears the token; a release leaves both alone.
    """

    kind: Kind
    owner: str | None
    by: str | None

    @classmethod
    def of(cls, changes: list[Change], rows: Mapping[TopicPartition, Position]) -> Handover | None:
        """What the changes of these rows have in common, if that is all that they do."""
        if not changes:
            return None
        entry = changes[0].entries[0]
        common = cls(entry.kind, changes[0].position.owner, entry.owner)
        if entry.kind not in (Kind.CLAIM, Kind.RELEASE):
            return None
        return common if all(common._is(change, rows[change.position.partition]) for change in changes) else None

    def _is(self, change: Change, row: Position) -> bool:
        position, entries, *_ = change
        return (
            len(entries) == 1
            and self == (entries[0].kind, position.owner, entries[0].owner)
            and position.identity == row.identity
            and position.deployment == row.deployment
        )

    def parameters(self, group: str) -> dict[str, Any]:
        """What its statements are run with, beside the keys."""
        epochs = int(self.kind is Kind.CLAIM)
        return {"group": group, "kind": self.kind.value, "owner": self.owner, "by": self.by, "epochs": epochs}
