"""Values: what a file or a variable says, as the type that a setting has.

No error shows a value: it may be a secret that was written in the wrong place.
"""

from __future__ import annotations

from typing import Any

from tidegate.core import arguments
from tidegate.core.errors import ConfigurationError

__all__ = ["converted", "passed_through", "unexpected"]


def converted(kind: Any, raw: object, place: str, *, from_text: bool) -> Any:
    """``raw`` as a ``kind``. In a variable of the environment there are commas between several strings."""
    if from_text and kind == tuple[str, ...] and isinstance(raw, str):
        raw = [part.strip() for part in raw.split(",")]
    return arguments.setting(place, kind, raw)


def passed_through(raw: object, place: str) -> str | int | float | bool:
    """A setting of librdkafka, unchanged."""
    value = arguments.passed_through(raw)
    if value is None:
        raise unexpected("a string, a number, or true or false", raw, place)
    return value


def unexpected(expected: str, raw: object, place: str) -> ConfigurationError:
    """The error that says what was expected at ``place``."""
    return ConfigurationError(f"{place}: expected {expected}, not {arguments.described(raw)}")
