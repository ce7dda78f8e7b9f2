"""Targets: where an operator wants a position to go, as it can be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from tidegate.core.arguments import Amount, Kind, argument, convert_arguments
from tidegate.core.errors import ConfigurationError
from tidegate.core.start import Earliest, Latest, Start, Timestamp
from tidegate.core.texts import is_text
from tidegate.operate.errors import ChangeRefused

__all__ = ["By", "Target", "TargetArgument", "To", "target"]


@dataclass(frozen=True, slots=True)
class To:
    """That offset."""

    offset: Amount

    def __post_init__(self) -> None:
        convert_arguments(self)


@dataclass(frozen=True, slots=True)
class By:
    """So many offsets from where the position is: back if negative."""

    count: int

    def __post_init__(self) -> None:
        convert_arguments(self)


Target: TypeAlias = To | By | Earliest | Latest | Timestamp


def target(text: str) -> Target:
    """A target from a text: ``earliest``, ``latest``, an offset, ``-N`` or ``+N``, or a time with its zone."""
    text = argument("target", str, text).strip()
    if text[:1] in {"+", "-"} and text[1:].isdecimal():
        return By(int(text))
    if text.isdecimal():
        return To(int(text))
    try:
        start: Start = argument("target", Start, text)
    except ConfigurationError:
        raise ChangeRefused(
            f"{text!r} is no place in a log; write an offset, -N or +N for so many from where the position is, "
            "earliest, latest, or a time with its zone, such as 2026-11-01T00:00:00Z"
        ) from None
    return start


def _target(given: Any) -> Target | None:
    if isinstance(given, (To, By, Earliest, Latest, Timestamp)):
        return given
    return target(given) if is_text(given) else None


TargetArgument: TypeAlias = Annotated[
    Target, Kind("a Target, or the text of one, such as 'earliest' or '-100'", _target)
]
"""A target as an argument."""
