"""Masking: what may be shown of texts and settings that hold passwords."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from tidegate.core.start import Earliest, Latest, Timestamp

__all__ = ["Masked", "masked", "shown"]

_BLOT = "***"
_WORDS = "password|passwd|passphrase|secret|token|credential|jaas|oauthbearer.config"
_SECRET_KEY = re.compile(rf"{_WORDS}|key|pem$", re.IGNORECASE)
# In a text, a key by itself is one of a record or a table; those that are secrets have a word before it.
_KEYS = "(?:access|account|api|auth|client|encryption|master|private|shared|signing|ssl)[_.-]?key"
# Names are bounded and begin where words begin: a long word, such as a record that the message of an error quotes, is
# gone through once.
_NAME = rf"[\w.-]{{0,80}}(?:{_WORDS}|{_KEYS})[\w.-]{{0,80}}"
_QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_WORD = re.compile(r"\S+")
_ASSIGNED = re.compile(rf"(?<![\w.-])({_NAME}=)(?:{_QUOTED}|[^&\s]+)", re.IGNORECASE)
_IN_MAPPING = re.compile(rf"""((["']){_NAME}\2\s?:\s?)(?:{_QUOTED}|[^\s,}}]+)""", re.IGNORECASE)


def masked(text: str) -> str:
    """A text with the passwords in its URLs, and what it assigns to a ``password=`` or the like, blotted out."""
    text = _WORD.sub(lambda word: _login_masked(word[0]), text)
    return _IN_MAPPING.sub(rf"\1{_BLOT}", _ASSIGNED.sub(rf"\1{_BLOT}", text))


def _login_masked(address: str) -> str:
    """Up to the last @: a password may hold any character, an @ or a / that nobody escaped as well."""
    scheme, found, rest = address.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{found}{user}:{_BLOT}{at}{place}" if colon else address


class Masked:
    """Base of settings: they print without their secrets."""

    __slots__ = ()

    def shown(self) -> dict[str, Any]:
        """The settings as a mapping of plain values, secrets masked."""
        return {item.name: shown(item.name, getattr(self, item.name)) for item in fields(self)}  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.shown().items())})"


def shown(key: str, value: object) -> Any:
    """What may be shown of the setting ``key``."""
    match value:
        case None | bool() | int() | float() if not _SECRET_KEY.search(key):
            return value
        case Masked():
            return value.shown()
        case Mapping():
            return {name: shown(name, item) for name, item in value.items()}
        case Enum():
            return value.value
        case Earliest() | Latest():
            return type(value).__name__.lower()
        case Timestamp():
            return datetime.fromtimestamp(value.at / 1000, UTC).isoformat()
    if is_dataclass(value):
        return {item.name: shown(item.name, getattr(value, item.name)) for item in fields(value)}
    if _SECRET_KEY.search(key):
        return _BLOT
    if isinstance(value, str):
        return _address(value) if key == "url" else masked(value)
    return f"<{type(value).__name__}>"


def _address(url: str) -> str:
    """The URL of a store; what is none may be anything, so nothing of it is shown."""
    return masked(_login_masked(url)) if "://" in url else _BLOT
