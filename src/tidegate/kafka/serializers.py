"""Serializers: keys and values as bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, TypeAlias
from uuid import UUID

from tidegate.core.arguments import Kind, argument
from tidegate.core.texts import is_text

__all__ = ["NotSerializable", "Serializer", "SerializerChoice", "serializer"]


class NotSerializable(TypeError):
    """What a built-in serializer has no bytes for; its message quotes no value."""


Serializer: TypeAlias = Callable[[Any], bytes | None]
SerializerChoice: TypeAlias = str | Serializer | None
"""The name of a built-in one; a function of one's own; or ``None``: what the type of each value suggests."""

_CHOICES = "'bytes', 'str', 'json' or a function that returns bytes"


def serializer(name: str, choice: SerializerChoice) -> Serializer:
    """The serializer that is meant by the argument ``name``."""
    found: Serializer = argument(name, _SerializerArgument, by_type if choice is None else choice)
    return found


def _serializer(given: Any) -> Serializer | None:
    if is_text(given):
        return _BY_NAME.get(given)
    return given if callable(given) else None


def by_type(value: Any) -> bytes | None:
    """Bytes as they are, text as UTF-8, ``None`` as a tombstone; models, dataclasses, mappings and lists as JSON."""
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
    """Bytes, and nothing else."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise NotSerializable(f"bytes are expected, not {type(value).__name__}")


def as_text(value: Any) -> bytes | None:
    """Text as UTF-8; of other things what ``str`` makes of them."""
    return None if value is None else str(value).encode()


def as_json(value: Any) -> bytes | None:
    """JSON, compact; ``None`` is a tombstone. Decimals, times and UUIDs are strings, which listeners read exactly."""
    if value is None:
        return None
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json()
        return text.encode()
    return _encode(value).encode()


def _plain(value: Any) -> Any:
    """What JSON has no word for, as something that it has one for."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
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
    raise NotSerializable(f"JSON has no word for a {type(value).__name__}")


def _is_model(value: Any) -> bool:
    return (is_dataclass(value) and not isinstance(value, type)) or hasattr(value, "model_dump_json")


_encode = json.JSONEncoder(default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_BY_NAME: dict[str, Serializer] = {"bytes": as_bytes, "str": as_text, "json": as_json}
_SerializerArgument: TypeAlias = Annotated[Any, Kind(_CHOICES, _serializer, tuple(_BY_NAME))]
