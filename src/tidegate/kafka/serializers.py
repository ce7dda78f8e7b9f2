"""Serializers: functions that turn keys and values into bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, TypeAlias
from uuid import UUID

from tidegate.core.arguments import Accepts, argument
from tidegate.core.text import is_text

__all__ = ["NotSerializable", "Serializer", "SerializerChoice", "serializer"]


class NotSerializable(TypeError):
    """A built-in serializer cannot convert a value. The message names the type and never quotes the value."""


Serializer: TypeAlias = Callable[[Any], bytes | None]
SerializerChoice: TypeAlias = str | Serializer | None
"""The name of a built-in serializer, a function, or ``None`` to serialize each value by its type."""

_CHOICES = "'bytes', 'str', 'json' or a function that returns bytes"


def serializer(name: str, choice: SerializerChoice) -> Serializer:
    """Return the serializer for ``choice``; an error calls the argument ``name``."""
    found: Serializer = argument(name, _SerializerArgument, by_type if choice is None else choice)
    return found


def _serializer(given: Any) -> Serializer | None:
    if is_text(given):
        return _BY_NAME.get(given)
    return given if callable(given) else None


def by_type(value: Any) -> bytes | None:
    """Keep bytes, encode text as UTF-8 and models, dataclasses, dicts and lists as JSON; ``None`` is a tombstone."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict | list) or _is_model(value):
        return as_json(value)
    raise NotSerializable(
        f"a {type(value).__name__} is neither bytes, text, a dataclass, a model, a mapping nor a list; "
        f"choose a serializer: {_CHOICES}"
    )


def as_bytes(value: Any) -> bytes | None:
    """Accept bytes and ``None`` (a tombstone) only."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise NotSerializable(f"bytes are expected, not {type(value).__name__}")


def as_text(value: Any) -> bytes | None:
    """Encode ``str(value)`` as UTF-8; ``None`` is a tombstone."""
    return None if value is None else str(value).encode()


def as_json(value: Any) -> bytes | None:
    """Encode a value as compact JSON; ``None`` is a tombstone.

    Decimals, times and UUIDs become strings, which listeners read back without loss.
    """
    if value is None:
        return None
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json()
        return text.encode()
    return _encode(value).encode()


def _plain(value: Any) -> Any:
    """Convert a value of a type that JSON lacks to one that it has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, datetime) and (offset := value.utcoffset()) and offset.total_seconds() % 60:
        value = value.astimezone(UTC)  # RFC 3339, and so a listener, knows no seconds in an offset
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return list(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotSerializable(f"JSON cannot represent a {type(value).__name__}")


def _is_model(value: Any) -> bool:
    return (is_dataclass(value) and not isinstance(value, type)) or hasattr(value, "model_dump_json")


_encode = json.JSONEncoder(default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_BY_NAME: dict[str, Serializer] = {"bytes": as_bytes, "str": as_text, "json": as_json}
_SerializerArgument: TypeAlias = Annotated[Any, Accepts(_CHOICES, _serializer, tuple(_BY_NAME))]
