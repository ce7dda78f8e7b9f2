"""Durations, as people write them: ``500ms``, ``1s``, ``2 minutes``."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from enum import Enum

from tidegate.core.errors import ConfigurationError
from tidegate.core.texts import is_text

__all__ = ["seconds_in", "seconds_of"]

_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("", "s", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}


def seconds_of(duration: str | float) -> float:
    """The seconds of a duration: a number of them, or a text with a unit."""
    seconds = seconds_in(duration)
    if seconds is None:
        raise ConfigurationError(f"{duration!r} is no duration; write '500ms', '1s' or '2m', or a number of seconds")
    return seconds


def seconds_in(duration: object) -> float | None:
    """The seconds of a duration; ``None`` if it is none."""
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
