"""Converts the client's messages to records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from tidegate.core.records import Record, Records

__all__ = ["as_record", "as_records"]


def as_record(message: Message) -> Record:
    """Convert one message, which must not carry an error."""
    return as_records([message])[0]


def as_records(messages: Sequence[Message]) -> Records:
    """Convert messages, none of which may carry an error.

    It reads one field of all messages before the next field: that takes half the time of message by message.
    """
    parts: tuple[Any, ...] = (Message.topic, Message.partition, Message.offset, Message.key, Message.value)
    columns = [list(map(part, messages)) for part in parts]
    return Records.of_columns([*columns, _headers(messages), _times(messages)])


def _headers(messages: Sequence[Message]) -> list[Any]:
    found = list(map(Message.headers, messages))
    return [tuple(each) if each else () for each in found] if any(found) else [()] * len(found)


def _times(messages: Iterable[Message]) -> list[int | None]:
    return [None if kind == TIMESTAMP_NOT_AVAILABLE else time for kind, time in map(Message.timestamp, messages)]
