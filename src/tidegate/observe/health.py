"""The health of a process: whether it is alive, whether it is ready, and the positions that it reads."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidegate.core.records import TopicPartition
from tidegate.observe.events import Claimed, Committed, Event, LagSeen, Rebalanced, Skipped, StoreBack, StoreLost

__all__ = ["Health", "ObservedHealth", "ReadPosition"]


class ReadPosition(NamedTuple):
    """Where a partition is read: ``current`` is the next offset to fetch, ``committed`` the last position that this
    process committed."""

    group: str
    topic: str
    partition: int
    current: int
    committed: int


class Health(Protocol):
    """The health of a running process; any thread may call it. Reasons are written for people and have no secrets."""

    def failing(self) -> list[str]:
        """Return why the process no longer works, so that a restart may help; empty if it works."""

    def unready(self) -> list[str]:
        """Return why the process cannot work at present: outages, partitions not claimed yet; empty if it can."""

    def positions(self) -> list[ReadPosition]:
        """Return the position of each partition that this process reads."""


class ObservedHealth:
    """An observer that derives the health of a process from its events, if there is no better source."""

    def __init__(self) -> None:
        self._away: dict[tuple[str, str], str] = {}
        self._positions: dict[tuple[str, TopicPartition], int] = {}

    def __call__(self, event: Event) -> None:
        """Update the outages and positions."""
        match event:
            case StoreLost():
                self._away[event.group, event.what] = event.reason
            case StoreBack():
                self._away.pop((event.group, event.what), None)
            case Claimed():
                for tp, position in zip(event.partitions, event.positions, strict=True):
                    self._positions[event.group, tp] = position
            case Committed():
                for span in event.spans:
                    self._positions[event.group, span.partition] = span.end
            case Skipped() if event.kind == "loss":
                self._positions[event.group, event.span.partition] = event.span.end
            case LagSeen():
                self._positions[event.group, event.partition] = event.position
            case Rebalanced() if event.kind != "assigned":
                for tp in event.partitions:
                    self._positions.pop((event.group, tp), None)

    def failing(self) -> list[str]:
        """Return nothing: events do not show that a process has failed."""
        return []

    def unready(self) -> list[str]:
        """Return the current outages."""
        return [f"group {group!r}: the {what} is away: {reason}" for (group, what), reason in list(self._away.items())]

    def positions(self) -> list[ReadPosition]:
        """Return the committed positions, also as ``current``: events do not show what was fetched since."""
        return [ReadPosition(group, *tp, offset, offset) for (group, tp), offset in sorted(self._positions.items())]
