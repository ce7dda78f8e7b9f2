"""History: what was seen while the dashboard ran, in rings that do not grow."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["GroupHistory", "History", "Point", "Ring"]

FINE = 10 * 60.0  # seconds that are kept as they were seen
COARSE_STEP = 20.0
COARSE = 3 * 3600.0
_FINE_POINTS = 300


class Point(NamedTuple):
    """A value at a time, in seconds since 1970; ``None`` where it was not known."""

    at: float
    value: float | None


class Ring:
    """The last so many points."""

    __slots__ = ("_capacity", "_count", "_times", "_values")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._count = 0
        self._times = array("d")
        self._values = array("d")

    def add(self, at: float, value: float | None) -> None:
        """Add a point, over the oldest one if there is no room."""
        number = math.nan if value is None else float(value)
        if len(self._times) < self._capacity:
            self._times.append(at)
            self._values.append(number)
        else:
            place = self._count % self._capacity
            self._times[place] = at
            self._values[place] = number
        self._count += 1

    def points(self, since: float) -> Iterator[Point]:
        """The points from then on, oldest first."""
        size = len(self._times)
        first = self._count - size
        for number in range(first, self._count):
            place = number % self._capacity
            if self._times[place] >= since:
                value = self._values[place]
                yield Point(self._times[place], None if math.isnan(value) else value)

    @property
    def newest(self) -> float:
        """The time of the newest point, or minus infinity."""
        return self._times[(self._count - 1) % self._capacity] if self._count else -math.inf


class GroupHistory:
    """The lag of one group: as it was seen for some minutes, and in steps for some hours."""

    __slots__ = ("_coarse", "_fine")

    def __init__(self) -> None:
        self._fine = Ring(_FINE_POINTS)
        self._coarse = Ring(int(COARSE / COARSE_STEP))

    def add(self, at: float, lag: int | None) -> None:
        """Note what was seen."""
        self._fine.add(at, lag)
        if at - self._coarse.newest >= COARSE_STEP:
            self._coarse.add(at, lag)

    def lag(self, since: float, now: float) -> list[Point]:
        """What was seen since then."""
        fine = list(self._fine.points(since))
        if now - since <= FINE:
            return fine
        begin = fine[0].at if fine else math.inf
        return [point for point in self._coarse.points(since) if point.at < begin] + fine


class History:
    """The groups' histories. A group that is gone from the ledger is forgotten."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupHistory] = {}

    def add(self, at: float, lags: dict[str, int | None]) -> None:
        """Note the lag of every group that there is."""
        for gone in self._groups.keys() - lags.keys():
            del self._groups[gone]
        for group, lag in lags.items():
            self._groups.setdefault(group, GroupHistory()).add(at, lag)

    def lag(self, group: str, since: float, now: float) -> list[Point]:
        """What was seen of a group's lag since then."""
        known = self._groups.get(group)
        return [] if known is None else known.lag(since, now)
