"""From the client's messages to records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from tidegate.core.records import Record

__all__ = ["as_record", "as_records"]

_record = partial(tuple.__new__, Record)  # the constructor of a named tuple takes half as long again


def as_record(message: Message) -> Record:
    """A message without an error."""
    return as_records([message])[0]


def as_records(messages: Sequence[Message]) -> list[Record]:
    """Messages without errors: part by part, which takes half the time of one by one."""
    headers = [tuple(found) if found else () for found in map(Message.headers, messages)]
    times = [None if kind == TIMESTAMP_NOT_AVAILABLE else time for kind, time in map(Message.timestamp, messages)]
    places = map(Message.topic, messages), map(Message.partition, messages), map(Message.offset, messages)
    return list(
        map(
            _record, zip(*places, map(Message.key, messages), map(Message.value, messages), headers, times, strict=True)
        )
    )
