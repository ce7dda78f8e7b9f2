"""Health: whether a process lives, whether it is ready, and where it reads."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidegate.core.records import TopicPartition
from tidegate.observe.observer import Claimed, Committed, Event, LagSeen, Rebalanced, Skipped, StoreBack, StoreLost

__all__ = ["Health", "ObservedHealth", "ReadPosition"]


class ReadPosition(NamedTuple):
    """Where a partition is read: ``current`` is the next offset to fetch, ``committed`` the position as it was last
    committed here."""

    group: str
    topic: str
    partition: int
    current: int
    committed: int


class Health(Protocol):
    """What is asked of a running process, from any thread; reasons are for people, without secrets."""

    def failing(self) -> list[str]:
        """Why it does not do its work any more, so that to start it anew may help; nothing if it does."""

    def unready(self) -> list[str]:
        """Why it cannot do its work at present: what is away, what is not claimed yet; nothing if it can."""

    def positions(self) -> list[ReadPosition]:
        """Where each partition is that is read here."""


class ObservedHealth:
    """An observer that knows from events how a process does: for those that have nothing better to tell."""

    def __init__(self) -> None:
        self._away: dict[tuple[str, str], str] = {}
        self._positions: dict[tuple[str, TopicPartition], int] = {}

    def __call__(self, event: Event) -> None:
        """Take note of what went away and came back, and of positions."""
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
        """Whoever tells events is alive as far as they can tell."""
        return []

    def unready(self) -> list[str]:
        """See :meth:`Health.unready`."""
        return [f"group {group!r}: the {what} is away: {reason}" for (group, what), reason in list(self._away.items())]

    def positions(self) -> list[ReadPosition]:
        """See :meth:`Health.positions`; what was fetched and not committed is not known here."""
        return [ReadPosition(group, *tp, offset, offset) for (group, tp), offset in sorted(self._positions.items())]
