"""From the client's messages to records."""

from __future__ import annotations

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from tidegate.core.records import Record

__all__ = ["as_record"]


def as_record(message: Message) -> Record:
    """A message without an error."""
    kind, timestamp = message.timestamp()
    headers = message.headers()
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(headers) if headers else (),
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
    )
