"""Charts: computes the coordinates that a template draws as SVG, so that charts need no script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate.web.history import Point

__all__ = ["Chart", "Mark", "Tick", "line", "nice_top", "spark"]

_WIDTH = 1000.0
_HEIGHT = 100.0
_STEPS = (1, 2, 2.5, 5, 10)
_MARK_WIDTH = 4.0  # percent of the width of a narrow chart
_MARK_LINES = 4
_SPARK_POINTS = 50
_TIME_STEPS = (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800)


@dataclass(frozen=True)
class Tick:
    """A grid line of the chart: its place in percent, and its label."""

    place: float
    label: str


@dataclass(frozen=True)
class Mark:
    """An event in the chart: its time, kind and text, its place in percent, and the line (``level``) it is drawn in."""

    at: float
    kind: str
    text: str
    place: float = 0.0
    level: int = 0


@dataclass(frozen=True)
class Chart:
    """A line over time with marks. It keeps the points, so that they can also be shown as a table."""

    points: tuple[Point, ...]
    path: str
    area: str
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    places: tuple[float, ...]

    @classmethod
    def of(
        cls, points: Sequence[Point], start: float, end: float, marks: Iterable[Mark] = (), gap: float = math.inf
    ) -> Chart:
        """Draw ``points`` between two times.

        The line is interrupted at a point without a value, and where two points are more than ``gap`` seconds apart.
        """
        values = [point.value for point in points if point.value is not None]
        top = nice_top(max(values, default=0.0))
        runs = list(_runs(points, gap))
        return cls(
            points=tuple(points),
            path=" ".join(line(run, start, end, top) for run in runs),
            area=" ".join(_area(run, start, end, top) for run in runs if len(run) > 1),
            rows=tuple(Tick(100 - 100 * part, _short(top * part)) for part in (0.0, 0.5, 1.0)),
            columns=tuple(_columns(start, end)),
            marks=tuple(_placed(marks, start, end)),
            places=tuple(x / _WIDTH * 100 for x, _ in _places(points, start, end, top)),
        )

    @property
    def mark_rows(self) -> int:
        """The number of rows that the marks need."""
        return max((mark.level + 1 for mark in self.marks), default=0)

    def table(self, rows: int = 30) -> list[tuple[str, float | None]]:
        """Return at most ``rows`` evenly chosen points, newest first, for users who cannot see the line."""
        step = max(1, math.ceil(len(self.points) / rows))
        return [(_clock(point.at, seconds=True), point.value) for point in self.points[::-1][::step]]


def spark(points: Sequence[Point]) -> str:
    """Return the SVG path of a small line without axes; empty if fewer than two points have a value.

    If there are more points than such a line can show, adjacent points are replaced by their mean.
    """
    known = [point for point in points if point.value is not None]
    if len(known) < 2:
        return ""
    width = -(-len(known) // _SPARK_POINTS)
    parts = [known[first : first + width] for first in range(0, len(known), width)]
    known = [Point(part[-1].at, sum(point.value or 0.0 for point in part) / len(part)) for part in parts]
    return line(known, known[0].at, known[-1].at, max(1.0, *(point.value or 0.0 for point in known)) * 1.1)


def line(points: Sequence[Point], start: float, end: float, top: float) -> str:
    """Return the SVG path of points, in a view box of 1000 by 100; a single point is drawn as a dot."""
    places = [f"{x:.1f} {y:.1f}" for x, y in _places(points, start, end, top)]
    if len(places) == 1:
        return f"M{places[0]}h0.1"
    return "M" + "L".join(places) if places else ""


def nice_top(value: float) -> float:
    """Return the upper end of an axis: a round number that is at most 0.1 % below the value."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in _STEPS if step * unit >= value * 0.999)


def _runs(points: Sequence[Point], gap: float) -> Iterable[list[Point]]:
    run: list[Point] = []
    for point in points:
        if run and (point.value is None or point.at - run[-1].at > gap):
            yield run
            run = []
        if point.value is not None:
            run.append(point)
    if run:
        yield run


def _places(points: Sequence[Point], start: float, end: float, top: float) -> list[tuple[float, float]]:
    width = max(end - start, 1e-9)
    return [
        (
            _WIDTH * min(1.0, max(0.0, (point.at - start) / width)),
            _HEIGHT * (1 - min(1.0, (point.value or 0.0) / top)),
        )
        for point in points
    ]


def _area(points: Sequence[Point], start: float, end: float, top: float) -> str:
    places = _places(points, start, end, top)
    outline = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return f"M{places[0][0]:.1f} {_HEIGHT:.0f}L{outline}L{places[-1][0]:.1f} {_HEIGHT:.0f}Z"


def _columns(start: float, end: float) -> Iterable[Tick]:
    step = next((step for step in _TIME_STEPS if (end - start) / step <= 6), _TIME_STEPS[-1])
    at = math.ceil(start / step) * step
    while at < end:
        place = 100 * (at - start) / (end - start)
        if 3 <= place <= 97:  # a label at the edge would be cut off
            yield Tick(place, _clock(at, seconds=step < 60))
        at += step


def _placed(marks: Iterable[Mark], start: float, end: float) -> Iterable[Mark]:
    """Place the marks within the chart; marks that would overlap go into different lines."""
    taken: list[float] = []  # the place of the last mark in each line
    for mark in sorted(marks, key=lambda mark: mark.at):
        if not start <= mark.at <= end:
            continue
        place = 100 * (mark.at - start) / (end - start)
        level = next((level for level, last in enumerate(taken) if place - last > _MARK_WIDTH), len(taken))
        if level >= _MARK_LINES:
            level = 0
        if level == len(taken):
            taken.append(place)
        taken[level] = place
        yield Mark(mark.at, mark.kind, mark.text, place, level)


def _clock(at: float, *, seconds: bool) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S" if seconds else "%H:%M")


def _short(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
