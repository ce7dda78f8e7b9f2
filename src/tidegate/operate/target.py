"""Targets: where an operator wants a position to go, as it can be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidegate.core.errors import ConfigurationError
from tidegate.core.start import Earliest, Latest, Start, Timestamp
from tidegate.operate.errors import ChangeRefused
from tidegate.settings.values import converted

__all__ = ["By", "Target", "To", "target"]


@dataclass(frozen=True, slots=True)
class To:
    """That offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class By:
    """So many offsets from where the position is: back if negative."""

    count: int


Target: TypeAlias = To | By | Earliest | Latest | Timestamp


def target(text: str) -> Target:
    """A target from a text: ``earliest``, ``latest``, an offset, ``-N`` or ``+N``, or a time with its zone."""
    text = text.strip()
    if text[:1] in {"+", "-"} and text[1:].isdecimal():
        return By(int(text))
    if text.isdecimal():
        return To(int(text))
    try:
        start: Start = converted(Start, text, "", from_text=True)
    except ConfigurationError:
        raise ChangeRefused(
            f"{text!r} is no place in a log; write an offset, -N or +N for so many from where the position is, "
            "earliest, latest, or a time with its zone, such as 2026-11-01T00:00:00Z"
        ) from None
    return start
