"""Records as lines of output."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

from tidegate.core.records import Record

__all__ = ["as_json", "as_text", "members"]


def as_text(record: Record, *, with_key: bool) -> bytes:
    """The value, and the key in front of it if that is wanted; what is not there is empty."""
    value = record.value or b""
    return (record.key or b"") + b"\t" + value + b"\n" if with_key else value + b"\n"


def as_json(record: Record) -> bytes:
    """Everything that a record has, in one line."""
    return json.dumps(members(record), ensure_ascii=False).encode() + b"\n"


def members(record: Record) -> dict[str, Any]:
    """Everything that a record has, for JSON. What is no text is base64, in a member whose name says so."""
    at = record.timestamp
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat(),
        **_bytes("key", record.key),
        **_bytes("value", record.value),
        "headers": [{"name": name, **_bytes("value", content)} for name, content in record.headers],
    }


def _bytes(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
