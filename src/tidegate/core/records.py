"""Records as Kafka delivers them, the names of groups and topics, and dead letters."""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from tidegate.core.text import is_text
from tidegate.errors import InvalidName

__all__ = [
    "DEPLOYMENT_BYTES",
    "GROUP_BYTES",
    "LEFT_OUT",
    "TOPIC_LENGTH",
    "FailedRecord",
    "LetterErrors",
    "LetterHead",
    "Record",
    "StoredLetter",
    "TopicPartition",
    "check_deployment",
    "check_group",
    "check_topic",
    "left_out",
    "without",
]


class TopicPartition(NamedTuple):
    """One partition of one topic. It sorts by topic, byte for byte, then by number; rows are locked in this order."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class Record(NamedTuple):
    """One record as Kafka delivered it. ``value`` is ``None`` for a tombstone; ``timestamp`` is in milliseconds."""

    topic: str
    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None

    @property
    def source(self) -> TopicPartition:
        """The partition that the record came from."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The bytes of key and value, which count towards the size of a buffer."""
        return len(self.key or b"") + len(self.value or b"")


GROUP_BYTES = 255
DEPLOYMENT_BYTES = 255
TOPIC_LENGTH = 249

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_group(group: str) -> str:
    """Return ``group``, or raise :class:`InvalidName` if a ledger cannot store it byte for byte."""
    if not is_text(group):
        raise InvalidName(f"group: expected the name of a group, not a {type(group).__name__}")
    if not group.strip():
        raise InvalidName("the group name is empty; give the group a name, such as group='billing'")
    return _storable("group name", group, GROUP_BYTES)


def check_deployment(deployment: str) -> str:
    """Return ``deployment``, or raise :class:`InvalidName` if a ledger cannot store it byte for byte."""
    if not deployment:
        raise InvalidName("the deployment has no name; give it one, such as deployment='2026-11-replay'")
    return _storable("deployment", deployment, DEPLOYMENT_BYTES)


def _storable(what: str, name: str, most: int) -> str:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"the {what} {name!a} is not valid Unicode; use text that UTF-8 can encode") from None
    if "\0" in name:
        raise InvalidName(f"the {what} {name!r} contains a NUL character, which databases cannot store; remove it")
    if length > most:
        raise InvalidName(f"the {what} {name[:40]!r}… has {length} bytes; at most {most} can be stored, so shorten it")
    return name


def check_topic(topic: str) -> str:
    """Return ``topic``, or raise :class:`InvalidName` if Kafka does not allow it."""
    if not is_text(topic):
        raise InvalidName(f"topic: expected the name of a topic, not a {type(topic).__name__}")
    if _TOPIC.fullmatch(topic) and topic not in {".", ".."}:
        return topic
    shown = topic if len(topic) <= 60 else topic[:60] + "…"
    raise InvalidName(
        f"{shown!a} is not a Kafka topic name: 1 to {TOPIC_LENGTH} of letters, digits, '.', '_' and '-' are allowed"
    )


LEFT_OUT = "tidegate.left-out"
"""The header of a dead letter that lacks a part of its record. There is one per part, with its name and size."""


class FailedRecord(NamedTuple):
    """A record to park in the transaction that advances over it, with the error and the number of attempts."""

    record: Record
    error: str
    attempts: int = 1


class StoredLetter(NamedTuple):
    """A dead letter as stored in the ledger."""

    id: int
    group: str
    letter: FailedRecord
    at: datetime


class LetterHead(NamedTuple):
    """The beginning of a dead letter, which is small however large the letter is.

    ``key``, ``value`` and ``error`` are cut, and ``headers`` is ``None`` if they are too large to be read.
    ``headers_bytes`` is their size as the ledger stores them.
    """

    id: int
    group: str
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    attempts: int
    at: datetime
    error: str
    is_error_cut: bool
    key: bytes | None
    key_bytes: int | None
    value: bytes | None
    value_bytes: int | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    headers_bytes: int

    @property
    def size(self) -> int:
        """About how many bytes the whole letter has, without its error."""
        return (self.key_bytes or 0) + (self.value_bytes or 0) + self.headers_bytes


class LetterErrors(NamedTuple):
    """How many dead letters of a group have the same error, and the ids of the first and the last of them."""

    error: str
    letters: int
    first: int
    last: int


def without(letter: FailedRecord, part: str) -> FailedRecord:
    """Remove one part of the letter's record (``value``, ``key`` or ``headers``), and add a header that names it."""
    record, kept = letter.record, letter.record.headers
    match part:
        case "value":
            size, record = len(record.value or b""), record._replace(value=None)
        case "key":
            size, record = len(record.key or b""), record._replace(key=None)
        case _:
            kept = tuple(header for header in kept if header[0] == LEFT_OUT)
            size = sum(len(name) + len(value or b"") for name, value in record.headers if name != LEFT_OUT)
    return letter._replace(record=record._replace(headers=(*kept, (LEFT_OUT, f"{part}, {size} bytes".encode()))))


def left_out(record: Record) -> str | None:
    """Return the parts that a dead letter lacks, with their sizes; ``None`` if its record is complete."""
    parts = [(value or b"").decode(errors="replace") for name, value in record.headers if name == LEFT_OUT]
    return "; ".join(parts) or None
