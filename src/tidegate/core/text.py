"""Plain text as an argument, text for terminals, and durations written as text."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from enum import Enum
from typing import TypeGuard

from tidegate.errors import ConfigurationError

__all__ = ["harmless", "is_text", "is_utf8", "seconds_in", "seconds_of"]


def is_text(given: object) -> TypeGuard[str]:
    """Return whether ``given`` is plain text. Enum members are not, even if they are strings: the value of one enum
    would otherwise be accepted where the same word has another meaning.
    """
    return isinstance(given, str) and not isinstance(given, Enum)


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are text in UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def harmless(text: str) -> str:
    """Return text as one line, with all characters escaped that are not printable.

    That covers control characters, which a terminal would interpret, and marks that change the text direction.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("", "s", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}


def seconds_of(duration: str | float) -> float:
    """Convert a duration, a number of seconds or text with a unit, to seconds; raise if it is invalid."""
    seconds = seconds_in(duration)
    if seconds is None:
        raise ConfigurationError(f"{duration!r} is not a duration; write '500ms', '1s' or '2m', or a number of seconds")
    return seconds


def seconds_in(duration: object) -> float | None:
    """Convert a duration to seconds; return ``None`` if it is invalid."""
    seconds: float | None = None
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif is_text(duration):
        found = _WRITTEN.fullmatch(duration.strip())
        if found and found[2].lower() in _SECONDS:
            seconds = float(found[1]) * _SECONDS[found[2].lower()]
    elif isinstance(duration, (int, float)) and not isinstance(duration, (bool, Enum)):
        seconds = _as_float(duration)
    return seconds if seconds is not None and math.isfinite(seconds) and seconds >= 0 else None


def _as_float(number: float) -> float | None:
    try:
        return float(number)
    except OverflowError:  # an integer of hundreds of digits
        return None
