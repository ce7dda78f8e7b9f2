"""What a test sends, as the bytes that Kafka carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from tidegate.kafka.serializers import as_json, by_type

__all__ = ["Headers", "as_bytes", "as_headers", "as_key"]

Headers: TypeAlias = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]


def as_bytes(value: Any) -> bytes | None:
    """Bytes and ``None`` are sent as they are, text as UTF-8, anything else as JSON."""
    return by_type(value) if isinstance(value, bytes | str) else as_json(value)


def as_key(key: str | bytes | None) -> bytes | None:
    """A key as Kafka carries it."""
    return key.encode() if isinstance(key, str) else key


def as_headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as Kafka carries them."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, as_key(value)) for name, value in pairs)
