"""What a test sends, as the bytes that Kafka carries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias
from uuid import UUID

from tidegate.core.errors import ConfigurationError

__all__ = ["Headers", "as_bytes", "as_headers", "as_key"]

Headers: TypeAlias = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]


def as_bytes(value: Any) -> bytes | None:
    """Bytes and ``None`` are sent as they are, text as UTF-8, anything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if hasattr(value, "model_dump_json"):  # a pydantic model, which knows best
        return str(value.model_dump_json()).encode()
    return json.dumps(value, default=_plain).encode()


def as_key(key: str | bytes | None) -> bytes | None:
    """A key as Kafka carries it."""
    return key.encode() if isinstance(key, str) else key


def as_headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as Kafka carries them."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, as_key(value)) for name, value in pairs)


def _plain(value: Any) -> Any:
    """What JSON has no word for, in the form that listeners read back."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise ConfigurationError(f"{type(value).__name__} has no JSON; send bytes, text, or what JSON can carry")
