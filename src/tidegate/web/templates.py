"""Templates: renders the pages, and formats numbers, times, charts and the payloads of dead letters for them.

A payload can contain anything, so it is shortened and escaped before it is shown.
"""

from __future__ import annotations

import codecs
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from tidegate.web.chart import Chart

__all__ = ["Payload", "prepare", "render"]


_MOST_CHARACTERS = 8_192
_MOST_BYTES = 1_024
_IN_A_ROW = 16
# Unicode categories of characters that could hide or reorder the text around them: controls (Cc), format characters
# such as bidirectional overrides and zero widths (Cf), lone surrogates (Cs), private use (Co), unassigned (Cn), and
# line and paragraph separators (Zl, Zp).
_ESCAPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclass(frozen=True)
class Payload:
    """A key or a value, shortened for display. ``form`` is ``text``, ``hex``, ``empty`` or ``null``."""

    form: str
    shown: str
    size: int
    shown_bytes: int

    @property
    def is_cut(self) -> bool:
        """Whether only a part of it is shown."""
        return self.shown_bytes < self.size

    @classmethod
    def of(cls, value: bytes | None, size: int | None = None) -> Payload:
        """Show bytes as text if they are UTF-8, otherwise as a hex dump; ``size`` is that of the whole, if cut."""
        if value is None:
            return cls("null", "", 0, 0)
        if not value:
            return cls("empty", "", 0, 0)
        whole = len(value) if size is None else size
        text = _decoded(value, is_cut=whole > len(value))
        if text is None:
            head = value[:_MOST_BYTES]
            return cls("hex", _dump(head), whole, len(head))
        head_text = text[:_MOST_CHARACTERS]
        return cls("text", visible(head_text), whole, len(head_text.encode()))


def _decoded(value: bytes, *, is_cut: bool) -> str | None:
    """Decode UTF-8, without the part of a character at the end if it was cut; ``None`` if it is not UTF-8."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(value, final=not is_cut)
    except UnicodeDecodeError:
        return None


def visible(text: str) -> str:
    """Escape control characters in a text, except line feeds and tabs."""
    return "".join(map(_visible, text)) if not (text.isascii() and text.isprintable()) else text


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _ESCAPED:
        return character
    return f"\\u{{{ord(character):x}}}"


def _dump(value: bytes) -> str:
    rows = []
    for start in range(0, len(value), _IN_A_ROW):
        row = value[start : start + _IN_A_ROW]
        numbers = " ".join(f"{byte:02x}" for byte in row)
        text = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        rows.append(f"{start:06x}  {numbers:<{_IN_A_ROW * 3 - 1}}  {text}")
    return "\n".join(rows)


_KILO = 1024
_NOT_KNOWN = "\N{EN DASH}"
_LETTERS = {"advance": "A", "claim": "C", "release": "R", "edit": "E", "skip": "S", "loss": "L", "start": "N"}


def render(template: str, **context: Any) -> str:
    """Render a page or a part of one. All values are escaped for HTML."""
    return _environment().get_template(template).render(now_ms=round(time.time() * 1000), **context)


def prepare() -> None:
    """Compile all templates now, so that the first request does not have to."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}"  # a float does not hold every offset


def _figure(value: float | None) -> str:
    """Format a rate or a measured value with a sensible number of digits."""
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
    if at is None or not 0 <= at < 253_402_300_800_000:  # the year 10000, which datetime cannot represent
        return _NOT_KNOWN if at is None else f"{at} ms"
    return _iso(datetime.fromtimestamp(at / 1000, UTC))


def _second(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _letter(kind: str) -> str:
    return _LETTERS.get(kind, {"pause": "‖", "resume": "▸"}.get(kind, "?"))


def _kinds(chart: Chart) -> list[str]:
    return sorted({mark.kind for mark in chart.marks})


def _about(chart: Chart, unit: str) -> str:
    """Describe a chart in a sentence, for users who cannot see it."""
    known = [point.value for point in chart.points if point.value is not None]
    if not known:
        return "No values."
    marks = f" {len(chart.marks)} marks." if chart.marks else ""
    return (
        f"From {_second(chart.points[0].at)} to {_second(chart.points[-1].at)} UTC: between {_figure(min(known))} and "
        f"{_figure(max(known))} {unit}, {_figure(known[-1])} at the end.{marks}"
    )


def _points(chart: Chart) -> str:
    """Encode the points for the script: each with its place in percent, its time and its value."""
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
