"""Durations, as people write them: ``500ms``, ``1s``, ``2 minutes``."""

from __future__ import annotations

import math
import re

from tidegate.core.errors import ConfigurationError

__all__ = ["seconds_of"]

_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("", "s", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}


def seconds_of(duration: str | float) -> float:
    """The seconds of a duration: a number of them, or a text with a unit."""
    seconds: float | None = None
    if isinstance(duration, str):
        found = _WRITTEN.fullmatch(duration.strip())
        if found and found[2].lower() in _SECONDS:
            seconds = float(found[1]) * _SECONDS[found[2].lower()]
    elif not isinstance(duration, bool):
        seconds = float(duration)
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        raise ConfigurationError(f"{duration!r} is no duration; write '500ms', '1s' or '2m', or a number of seconds")
    return seconds
