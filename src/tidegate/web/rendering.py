"""Rendering: templates, and how figures are written on a page."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from tidegate.web.chart import Chart
from tidegate.web.payload import visible

__all__ = ["prepare", "render"]

_KILO = 1024
_NOT_KNOWN = "\N{EN DASH}"
_LETTERS = {"advance": "A", "claim": "C", "release": "R", "edit": "E", "skip": "S", "loss": "L", "start": "N"}


def render(template: str, **context: Any) -> str:
    """A page, or a part of one. What is put into it is escaped."""
    return _environment().get_template(template).render(now_ms=round(time.time() * 1000), **context)


def prepare() -> None:
    """Compile all templates, so that the first visitor does not wait for it."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _figure(value: float | None) -> str:
    """A rate or a measured value: with as many digits as mean something."""
    if value is None:
        return _NOT_KNOWN
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return _NOT_KNOWN
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds < 0.05 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def _size(count: int) -> str:
    if count < _KILO:
        return f"{count} bytes"
    return f"{count / _KILO:,.1f} KiB" if count < _KILO**2 else f"{count / _KILO**2:,.1f} MiB"


def _iso(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _strftime(form: str) -> Callable[[datetime | None], str]:
    return lambda at: _NOT_KNOWN if at is None else at.astimezone(UTC).strftime(form)


def _milliseconds(at: int | None) -> str:
    if at is None or not 0 <= at < 253_402_300_800_000:  # the year 10000, where datetime ends
        return _NOT_KNOWN if at is None else f"{at} ms"
    return _iso(datetime.fromtimestamp(at / 1000, UTC))


def _second(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _letter(kind: str) -> str:
    return _LETTERS.get(kind, {"pause": "‖", "resume": "▸"}.get(kind, "?"))


def _kinds(chart: Chart) -> list[str]:
    return sorted({mark.kind for mark in chart.marks})


def _about(chart: Chart, unit: str) -> str:
    """A chart in a sentence, for those who do not see it."""
    known = [point.value for point in chart.points if point.value is not None]
    if not known:
        return "No values."
    marks = f" {len(chart.marks)} marks." if chart.marks else ""
    return (
        f"From {_second(chart.points[0].at)} to {_second(chart.points[-1].at)} UTC: between {_figure(min(known))} and "
        f"{_figure(max(known))} {unit}, {_figure(known[-1])} at the end.{marks}"
    )


def _points(chart: Chart) -> str:
    """The points for a script: the place in percent, the time and the value."""
    return " ".join(
        f"{place:.2f},{_second(point.at)},{_figure(point.value).replace(',', '')}"
        for place, point in zip(chart.places, chart.points, strict=True)
        if point.value is not None
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tidegate.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "about": _about,
        "clock": _strftime("%H:%M:%S"),
        "duration": _duration,
        "figure": _figure,
        "iso": _iso,
        "kinds": _kinds,
        "letter": _letter,
        "milliseconds": _milliseconds,
        "number": _number,
        "points": _points,
        "quoted": lambda text: quote(text, safe=""),
        "second": _second,
        "size": _size,
        "stamp": _strftime("%Y-%m-%d %H:%M:%S"),
        "titled": lambda state: "OK" if state == "ok" else state.capitalize(),
        "visible": visible,
    }
    return environment
