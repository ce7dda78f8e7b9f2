"""Vitals: what one member tells of itself, for those who ask on other threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidegate.core.assignment import Assignment, Claiming, Reclaiming
from tidegate.core.records import TopicPartition
from tidegate.observe.health import ReadPosition

__all__ = ["Pulse", "Vitals"]

_EVERY = 0.2  # seconds between two snapshots


@dataclass(frozen=True)
class Vitals:
    """A member at one moment."""

    group: str
    positions: tuple[ReadPosition, ...] = ()
    unclaimed: tuple[TopicPartition, ...] = ()
    away: Mapping[str, str] = field(default_factory=dict)


class Pulse:
    """Beats on the thread of the member, which alone may look at its state; others see the last snapshot."""

    def __init__(self, group: str, assignment: Assignment, read_to: Callable[[TopicPartition], int | None]) -> None:
        """``read_to``: up to where a partition was read, which may be further than what is committed."""
        self._assignment = assignment
        self._read_to = read_to
        self._at = self._next = time.monotonic()
        self.vitals = Vitals(group)

    @property
    def age(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._at

    def beat(self, away: Mapping[str, str]) -> None:
        """The member is still going round."""
        self._at = now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY
            self.vitals = self._snapshot(away)

    def _snapshot(self, away: Mapping[str, str]) -> Vitals:
        group, assignment = self.vitals.group, self._assignment
        positions = tuple(
            ReadPosition(group, *tp, max(self._read_to(tp) or 0, state.position), state.position)
            for tp, state in sorted(assignment.reading())
        )
        unclaimed = tuple(
            tp for tp in assignment.partitions if isinstance(assignment.state(tp), (Claiming, Reclaiming))
        )
        return Vitals(group, positions, unclaimed, dict(away))
