"""Masking of passwords and other secrets in texts and settings that are shown to people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from tidegate.core.policies import Earliest, Latest, Timestamp

__all__ = ["Masked", "has_secret", "masked", "shown"]


_BLOT = "***"
_WORDS = "password|passwd|pwd|passphrase|secret|token|credential|jaas|oauthbearer.(?:config|extensions)|auth.user.info"
# A misspelt name, such as sasl.passwrd, has a password as its value all the same.
_SECRET_KEY = re.compile(rf"{_WORDS}|pass?w|psw|secr|key|pem$", re.IGNORECASE)
# In a text, "key" alone usually means the key of a record or a table; a secret key has one of these words before it.
_KEYS = "(?:access|account|api|auth|client|encryption|master|private|shared|signing|ssl)[_.-]?key"
# The length of names is bounded, and they start at the start of a word. Otherwise the search would take quadratic time
# in a long word, such as a record that an error message quotes.
_NAME = rf"[\w.-]{{0,80}}(?:{_WORDS}|{_KEYS})[\w.-]{{0,80}}"
_QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_WORD = re.compile(r"\S+")
# A colon may also end a clause: in "no password: set one", two plain words follow it. A commit token is no secret.
_ASSIGNS = r"(?:\s{0,4}=>?|\s{0,4}:(?!\s{0,4}[A-Za-z]+,?\s+[A-Za-z]))\s{0,4}"
_ASSIGNED = re.compile(rf"(?<![\w.-])(?!(?:\w\.)?commit_token)({_NAME}{_ASSIGNS})(?:{_QUOTED}|[^&\s]+)", re.IGNORECASE)
_BEARER = re.compile(r"(?<![\w.-])((?:authorization\s{0,4}[:=]\s{0,4}(?:\w+\s{1,4})?)|bearer\s{1,4})\S+", re.IGNORECASE)
_PEM = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL)
_IN_MAPPING = re.compile(rf"""((["']){_NAME}\2\s?:\s?)(?:{_QUOTED}|[^\s,}}]+)""", re.IGNORECASE)


def masked(text: str) -> str:
    """Return the text with its secrets masked: passwords in URLs, bearer tokens, private keys, and values that follow
    ``password=``, ``password:`` and the like."""
    text = _PEM.sub(rf"\1{_BLOT}\2", text)
    text = _BEARER.sub(rf"\1{_BLOT}", _WORD.sub(lambda word: _login_masked(word[0]), text))
    return _IN_MAPPING.sub(rf"\1{_BLOT}", _ASSIGNED.sub(rf"\1{_BLOT}", text))


def has_secret(address: str) -> bool:
    """Return whether the address of a store contains a password, even one with spaces in it."""
    return masked(_login_masked(address)) != address


def _login_masked(address: str) -> str:
    """Mask the password of a URL, up to the last @: a password may contain an unescaped @ or /."""
    scheme, found, rest = address.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{found}{user}:{_BLOT}{at}{place}" if colon else address


class Masked:
    """Base class of settings dataclasses, whose ``repr`` masks secrets."""

    __slots__ = ()

    def shown(self) -> dict[str, Any]:
        """Return the settings as a mapping of plain values, with secrets masked."""
        return {item.name: shown(item.name, getattr(self, item.name)) for item in fields(self)}  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.shown().items())})"


def shown(key: str, value: object) -> Any:
    """Return the value of the setting ``key`` with secrets masked."""
    match value:
        case None:  # a secret that is not set is none
            return None
        case bool() | int() | float() if not _SECRET_KEY.search(key):
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
    """Mask the URL of a store. A text that is not a URL is hidden completely, since it may be a secret."""
    return masked(_login_masked(url)) if "://" in url else _BLOT
