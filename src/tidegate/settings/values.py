"""Values: what a file or a variable says, as the type that a setting has.

No error shows a value: it may be a secret that was written in the wrong place.
"""

from __future__ import annotations

import math
from datetime import date, datetime, time
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from tidegate.core.errors import ConfigurationError
from tidegate.core.start import Earliest, Latest, Start, Timestamp

__all__ = ["converted", "passed_through", "unexpected"]

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
_START = "'earliest', 'latest', a time with its zone (2026-11-01T00:00:00Z), or milliseconds since 1970"
_EXPECTED: dict[Any, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "a table",
    Start: _START,
    tuple[str, ...]: "a string, or an array of strings",
}
_FOUND: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    dict: "a table",
    list: "an array",
    datetime: "a time",
    date: "a date",
    time: "a time of day",
}


def converted(kind: Any, raw: object, place: str, *, from_text: bool) -> Any:
    """``raw`` as a ``kind``. A variable of the environment is text and is read as what is wanted; a file has types."""
    value: object = None
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _choice(kind, raw, place)
    if kind == Start:
        value = _start(raw)
    elif kind == tuple[str, ...]:
        value = _strings(raw, from_text=from_text)
    elif kind is bool:
        value = _boolean(raw) if from_text else raw if isinstance(raw, bool) else None
    elif kind is str:
        value = raw if isinstance(raw, str) else None
    elif isinstance(raw, str) and from_text:
        value = _number(kind, raw)
    elif isinstance(raw, (int, float)) and not isinstance(raw, bool):
        value = raw if isinstance(raw, kind) else float(raw) if kind is float else None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise unexpected(kind, None if from_text else raw, place)
    return value


def passed_through(raw: object, place: str) -> str | int | float | bool:
    """A setting of librdkafka, unchanged."""
    if isinstance(raw, (str, int, float)):
        return raw
    raise ConfigurationError(f"{place}: expected a string, a number, or true or false, not {_FOUND[type(raw)]}")


def unexpected(kind: Any, raw: object, place: str) -> ConfigurationError:
    """The error that says what was expected at ``place``."""
    expected, found = _EXPECTED.get(kind, "a value"), _FOUND.get(type(raw))
    return ConfigurationError(f"{place}: expected {expected}" + (f", not {found}" if found else ""))


def _choice(kind: type[StrEnum], raw: object, place: str) -> StrEnum:
    choices = [choice.value for choice in kind]
    if raw in choices:
        return kind(raw)
    near = get_close_matches(str(raw).lower(), choices, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigurationError(f"{place}: expected one of {', '.join(map(repr, choices))}{hint}")


def _strings(raw: object, *, from_text: bool) -> tuple[str, ...] | None:
    """One string is a list of one; a variable of the environment has commas between them."""
    if isinstance(raw, str):
        return tuple(part.strip() for part in raw.split(",")) if from_text else (raw,)
    return tuple(raw) if isinstance(raw, list) and all(isinstance(each, str) for each in raw) else None


def _boolean(raw: object) -> bool | None:
    text = str(raw).strip().lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _number(kind: Any, text: str) -> object:
    try:
        return kind(text)
    except ValueError:
        return None


def _start(raw: object) -> Start | None:
    if isinstance(raw, str):
        text = raw.strip()
        if text.lower() in {"earliest", "latest"}:
            return Earliest() if text.lower() == "earliest" else Latest()
        try:
            raw = int(text) if text.isdecimal() else datetime.fromisoformat(text)
        except ValueError:
            return None
    if isinstance(raw, datetime):
        return None if raw.tzinfo is None else Timestamp(max(0, round(raw.timestamp() * 1000)))
    is_milliseconds = isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0
    return Timestamp(raw) if is_milliseconds and isinstance(raw, int) else None
