"""History: the lag of groups since the dashboard started, in ring buffers of fixed size."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["GroupHistory", "History", "Point", "Ring"]

FINE = 10 * 60.0  # seconds for which every observation is kept
COARSE_STEP = 20.0
COARSE = 3 * 3600.0
_FINE_POINTS = 300
_MOST_GROUPS = 2_000  # with about 14 KB each


class Point(NamedTuple):
    """A value at a time, in seconds since 1970; the value is ``None`` if it was not known."""

    at: float
    value: float | None


class Ring:
    """A ring buffer of the newest ``capacity`` points."""

    __slots__ = ("_capacity", "_count", "_times", "_values")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._count = 0
        self._times = array("d")
        self._values = array("d")

    def add(self, at: float, value: float | None) -> None:
        """Add a point; overwrite the oldest one if the buffer is full."""
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
        """Return the points since that time, oldest first."""
        size = len(self._times)
        first = self._count - size
        for number in range(first, self._count):
            place = number % self._capacity
            if self._times[place] >= since:
                value = self._values[place]
                yield Point(self._times[place], None if math.isnan(value) else value)

    @property
    def newest(self) -> float:
        """The time of the newest point; minus infinity if there is none."""
        return self._times[(self._count - 1) % self._capacity] if self._count else -math.inf


class GroupHistory:
    """The lag of one group: every observation for about ten minutes, and one every 20 seconds for three hours."""

    __slots__ = ("_coarse", "_fine")

    def __init__(self) -> None:
        self._fine = Ring(_FINE_POINTS)
        self._coarse = Ring(int(COARSE / COARSE_STEP))

    def add(self, at: float, lag: int | None) -> None:
        """Add an observation."""
        self._fine.add(at, lag)
        if at - self._coarse.newest >= COARSE_STEP:
            self._coarse.add(at, lag)

    def lag(self, since: float, now: float) -> list[Point]:
        """Return the lag since that time: coarse points first, then all newer observations."""
        fine = list(self._fine.points(since))
        if now - since <= FINE:
            return fine
        begin = fine[0].at if fine else math.inf
        return [point for point in self._coarse.points(since) if point.at < begin] + fine


class History:
    """The histories of all groups, or of the 2,000 that lag most; a group that leaves the ledger is dropped."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupHistory] = {}

    def add(self, at: float, lags: dict[str, int | None]) -> None:
        """Add the lag of every group; drop groups that are not in ``lags``."""
        if len(lags) > _MOST_GROUPS:
            lags = dict(heapq.nlargest(_MOST_GROUPS, lags.items(), key=lambda item: item[1] or 0))
        for gone in self._groups.keys() - lags.keys():
            del self._groups[gone]
        for group, lag in lags.items():
            self._groups.setdefault(group, GroupHistory()).add(at, lag)

    def lag(self, group: str, since: float, now: float) -> list[Point]:
        """Return the lag of a group since that time; empty if the group is not known."""
        known = self._groups.get(group)
        return [] if known is None else known.lag(since, now)
