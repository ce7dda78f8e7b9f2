"""Plain values: what JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """The value of a field, or of a whole object, for JSON: objects as mappings, times as ISO 8601 in UTC."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    return [plain(each) for each in value]
