"""Between the ledger's values and their texts in Redis.

A text is a JSON array in ASCII, so that a client with any settings can read it and numbers keep all their digits.
Scripts compare whole texts and never look for a number in one. What is to be stored is an open text, without its last
item: the script closes it with the time.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from tidegate.core.journal import Entry, Kind
from tidegate.core.letters import Letter, ParkedLetter
from tidegate.core.positions import Identity, Position
from tidegate.core.records import Record, TopicPartition
from tidegate.core.totals import Totals

__all__ = [
    "GroupRow",
    "Text",
    "as_entry",
    "as_group",
    "as_letter",
    "as_position",
    "as_positions",
    "as_totals",
    "entry_text",
    "error_text",
    "field",
    "forced_field",
    "group_text",
    "letter_text",
    "position_text",
    "record_text",
]

Text: TypeAlias = str | bytes
"""What Redis answers: a client decodes it or not."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class GroupRow(NamedTuple):
    """What is stored of a group itself; ``seq`` counts its own journal entries."""

    group: str
    paused: bool = False
    seq: int = 0


def field(partition: TopicPartition | None) -> str:
    """A partition within a key or a hash, or a whole group; no topic contains a colon or is empty."""
    return f"{partition.topic}:{partition.partition}" if partition else ":"


def forced_field(topic: str, deployment: str) -> bytes:
    """A topic and a deployment that has forced its start there, within a hash."""
    return f"{topic}:{deployment}".encode()


def group_text(row: GroupRow, attempt: str) -> str:
    """A group's row, open."""
    return _open(*row, attempt)


def as_group(group: str, text: Text | None) -> GroupRow:
    """A group's row; one that is not stored is not paused."""
    row = json.loads(text) if text else None
    return GroupRow(*row[:3]) if row else GroupRow(group)


def position_text(position: Position, attempt: str) -> str:
    """A position, open. ``attempt`` makes the text unlike that of any other attempt at the same change."""
    p = position
    return _open(*p.partition, p.next_offset, p.epoch, p.owner, p.token, p.seq, *p.identity, p.deployment, attempt)


def as_position(text: Text) -> Position:
    """A position from its text."""
    return _position(json.loads(text))


def as_positions(texts: Text) -> Iterator[Position]:
    """Positions from a JSON array of their texts."""
    return map(_position, json.loads(texts))


def _position(row: list[Any]) -> Position:
    topic, partition, next_offset, epoch, owner, token, seq, cluster_id, topic_id, deployment, _, at = row
    source, identity = TopicPartition(topic, partition), Identity(cluster_id, topic_id)
    return Position(source, next_offset, epoch, owner, token, seq, identity, deployment, _time(at))


def as_totals(row: GroupRow, totals: Sequence[Sequence[Any]]) -> list[Totals]:
    """The totals of a group, one for each topic, as their script gives them."""
    found = [
        Totals(
            row.group,
            row.paused,
            topic if isinstance(topic, str) else topic.decode(),
            partitions,
            owned,
            billions * 10**9 + rest,
            _time(int(at)),
        )
        for topic, partitions, owned, billions, rest, at in totals
    ]
    return sorted(found) or [Totals(row.group, row.paused, None)]


def entry_text(entry: Entry) -> str:
    """A line of the journal, open; its key says whose it is."""
    return _open(*entry[1:-1])


def as_entry(partition: TopicPartition | None, text: Text) -> Entry:
    """A line of the journal."""
    seq, kind, start, end, records, epoch, owner, token, note, at = json.loads(text)
    return Entry(partition, seq, Kind(kind), start, end, records, epoch, owner, token, note, _time(at))


def record_text(record: Record, attempts: int = 1) -> str:
    """A dead letter up to its error, which a script may have to add, open."""
    headers = [(name, _ascii(value)) for name, value in record.headers]
    source = (record.topic, record.partition, record.offset)
    return _open(*source, _ascii(record.key), _ascii(record.value), headers, record.timestamp, attempts)


def letter_text(letter: Letter) -> str:
    """A dead letter, open."""
    return f"{record_text(letter.record, letter.attempts)},{json.dumps(letter.error)}"


def error_text(error: str) -> str:
    """The error of a dead letter by itself."""
    return json.dumps(error)


def as_letter(
    number: int, group: str, text: Text, tries: tuple[Text | None, Text | None] = (None, None)
) -> ParkedLetter:
    """A dead letter; ``tries`` are the replays that failed since, and the error of the last one."""
    topic, partition, offset, key, value, headers, timestamp, attempts, error, at = json.loads(text)
    pairs = tuple((name, _bytes(value)) for name, value in headers)
    record = Record(topic, partition, offset, _bytes(key), _bytes(value), pairs, timestamp)
    more, last = tries
    letter = Letter(record, error if last is None else json.loads(last), attempts + int(more or 0))
    return ParkedLetter(number, group, letter, _time(at))


def _open(*items: object) -> str:
    return json.dumps(items, separators=(",", ":"))[:-1]


def _time(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _ascii(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
