"""Verdicts: how a partition is doing, judged by what was seen of it over a window of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

__all__ = ["Observation", "Rewind", "State", "verdict", "worst"]

SETTLING = 10.0
"""Seconds that the owner of an edited position has to claim it again before it counts as stopped."""

_TOLERANCE = 0.1
_GRAIN = 0.001  # seconds; times come from several clocks and were rounded on their way


class State(StrEnum):
    """How a partition, or a group, is doing."""

    OK = "ok"
    """It has an owner and keeps up."""

    LAGGING = "lagging"
    """Its position moves, and the end of its log moves away from it all the same."""

    STALLED = "stalled"
    """It has an owner and records to read, and its position does not move."""

    STOPPED = "stopped"
    """It has no owner: nobody reads it."""

    REWOUND = "rewound"
    """Its position was moved back by hand, and is not yet where it was before."""

    PAUSED = "paused"
    """Its group was paused."""

    UNKNOWN = "unknown"
    """It has an owner; where its log ends is not known, so nor is whether it keeps up."""


_GRAVEST_FIRST = (
    State.STALLED,
    State.STOPPED,
    State.LAGGING,
    State.PAUSED,
    State.REWOUND,
    State.UNKNOWN,
    State.OK,
)


class Observation(NamedTuple):
    """What was seen of a position at one moment, ``at`` in seconds of any clock.

    ``end`` is where reading ends at present; ``None`` if that is not known. The sums of several partitions may be
    observed as if they were one.
    """

    at: float
    position: int
    end: int | None
    owned: bool

    @property
    def lag(self) -> int | None:
        """How far it is to the end."""
        return None if self.end is None else max(0, self.end - self.position)


class Rewind(NamedTuple):
    """A position that was moved by hand: when, and where it was before."""

    at: float
    before: int


def verdict(
    seen: Sequence[Observation], *, window: float, paused: bool = False, rewinds: Iterable[Rewind] = ()
) -> State:
    """The state after these observations, oldest first, of which the last one is now.

    ``window`` is how long records may wait unread before their partition counts as stalled: where less time was
    observed, it does not. ``rewinds`` are the edits within the window.
    """
    now = seen[-1]
    edits = list(rewinds)
    if paused:
        return State.PAUSED
    settling = any(now.at - edit.at <= SETTLING for edit in edits)
    if not now.owned and not settling:
        return State.STOPPED
    if any(now.position < edit.before for edit in edits):
        return State.REWOUND
    if now.lag is None:
        return State.UNKNOWN
    if _stalled(seen, window):
        return State.STALLED
    if _lagging([each for each in seen if each.end is not None]):
        return State.LAGGING
    return State.OK


def worst(states: Iterable[State]) -> State:
    """The gravest of these states; ok if there are none."""
    return min(states, key=_GRAVEST_FIRST.index, default=State.OK)


def _stalled(seen: Sequence[Observation], window: float) -> bool:
    """Whether there was something to read for a whole window, and an owner, and nothing was read."""
    now = seen[-1]
    if not now.lag:
        return False
    since = now
    for each in reversed(seen):
        if each.position != now.position or not each.owned or each.lag == 0:
            break
        since = each
    # Where the end was not known, there may have been nothing to read.
    known = next(each for each in seen if each.at >= since.at and each.end is not None)
    return now.at - known.at > window - _GRAIN


def _lagging(seen: Sequence[Observation]) -> bool:
    """Whether more was left at the end of the window than at its beginning, by a good part of what was read.

    The least lag of each third counts, so that it does not matter in which moment of a batch one looks.
    """
    third = (len(seen) + 2) // 3
    first, last = seen[:third], seen[-third:]
    moved = last[-1].position - first[0].position
    if len(seen) < 2 or moved <= 0:
        return False
    grown = min(each.lag or 0 for each in last) - min(each.lag or 0 for each in first)
    return grown > moved * _TOLERANCE
