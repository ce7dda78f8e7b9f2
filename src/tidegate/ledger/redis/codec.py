"""Conversion between the ledger's values and their texts in Redis.

A text is a JSON array in ASCII, so that a client with any settings can read it and numbers keep all their digits. The
commit script compares whole texts of positions and does not parse offsets. Texts to be stored are "open": they lack
their last item, the time, and the closing bracket, which the script adds.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import msgspec

from tidegate.core.journal import Bucket, Entry, Kind
from tidegate.core.positions import Identity, OpenEntry, Position, Totals
from tidegate.core.records import TOPIC_LENGTH, FailedRecord, LetterHead, Record, StoredLetter, TopicPartition
from tidegate.errors import LedgerError

__all__ = [
    "GroupRow",
    "Text",
    "as_entry",
    "as_group",
    "as_head",
    "as_letter",
    "as_position",
    "as_positions",
    "as_time",
    "as_totals",
    "entry_text",
    "error_text",
    "field",
    "forced_field",
    "group_text",
    "head_sizes",
    "letter_text",
    "microseconds",
    "position_text",
    "record_text",
]

Text: TypeAlias = str | bytes
"""A text in Redis's answer: the client's settings decide whether it is decoded."""

_encode = msgspec.json.Encoder().encode
_encode_to_ascii = json.JSONEncoder(separators=(",", ":")).encode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class GroupRow(NamedTuple):
    """The stored row of a group itself; ``seq`` counts the group's own journal entries."""

    group: str
    paused: bool = False
    seq: int = 0


def field(partition: TopicPartition | None) -> str:
    """Return the name of a partition within a key or hash, or ``:`` for the group; topics are not empty and contain no
    colon."""
    return f"{partition.topic}:{partition.partition}" if partition else ":"


def forced_field(topic: str, deployment: str) -> bytes:
    """Return the hash field for a topic and a deployment that has forced its start there."""
    return f"{topic}:{deployment}".encode()


def group_text(row: GroupRow, attempt: str) -> str:
    """Return the open text of a group's row."""
    return _open(*row, attempt)


P = ParamSpec("P")
T = TypeVar("T")


def _reads(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Raise :class:`LedgerError` for texts that have another form; the values in them are not quoted."""

    def decorate(read: Callable[P, T]) -> Callable[P, T]:
        @wraps(read)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return read(*args, **kwargs)
            except (ValueError, TypeError, LookupError, OverflowError) as error:
                raise LedgerError(
                    f"{what} in Redis cannot be read ({type(error).__name__}): a newer version of Tidegate wrote it, "
                    "or it was changed by other means"
                ) from None

        return wrapped

    return decorate


@_reads("the row of a group")
def as_group(group: str, text: Text | None) -> GroupRow:
    """Convert the text of a group's row; a group that is not stored is not paused."""
    row = json.loads(text) if text else None
    return GroupRow(*row[:3]) if row else GroupRow(group)


def position_text(position: Position, attempt: str) -> str:
    """Return the open text of a position. ``attempt`` makes it differ from the text of any other attempt.

    The item with the attempt also holds what older versions do not know, because they do not read that item: the open
    journal entry and the bucket of the coarse history. The end, epoch and owner of the open entry are those of the
    position. An entry that has just been opened has no time yet; the time of the position stands for it.
    """
    p, last = position, position.open
    is_open = (last.seq, last.start, last.records, microseconds(last.since)) if last else (None,) * 4
    beside = (attempt, *is_open, *(p.bucket or (None, None)))
    return _open(*p.partition, p.next_offset, p.epoch, p.owner, p.token, p.seq, *p.identity, p.deployment, beside)


@_reads("the row of a position")
def as_position(text: Text) -> Position:
    """Convert the text of a position."""
    return _position(json.loads(text))


@_reads("the row of a position")
def as_positions(texts: Text) -> list[Position]:
    """Convert a JSON array of the texts of positions."""
    return list(map(_position, json.loads(texts)))


def _position(row: list[Any]) -> Position:
    topic, partition, next_offset, epoch, owner, token, seq, cluster_id, topic_id, deployment, beside, at = row
    source, identity = TopicPartition(topic, partition), Identity(cluster_id, topic_id)
    last = bucket = None
    if isinstance(beside, list):  # older versions stored only the attempt
        _, open_seq, start, records, since, begin, advanced = beside
        bucket = None if begin is None else Bucket(begin, advanced)
        if open_seq is not None:
            last = OpenEntry(open_seq, start, next_offset, records, epoch, owner, _time(since or at))
    return Position(source, next_offset, epoch, owner, token, seq, identity, deployment, _time(at), last, bucket)


def as_totals(row: GroupRow, totals: Sequence[Sequence[Any]]) -> list[Totals]:
    """Convert the script's reply for one group to its totals, one for each topic."""
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
    """Return the open text of a journal entry; the journal's key names the partition."""
    return _open(*entry[1:-2], microseconds(entry.since))


@_reads("an entry of the journal")
def as_entry(partition: TopicPartition | None, text: Text) -> Entry:
    """Convert the text of a journal entry."""
    seq, kind, start, end, records, epoch, owner, token, note, *since, at = json.loads(text)
    began = _time(since[0] or at) if since and kind == Kind.ADVANCE else None  # older versions wrote no ``since``
    return Entry(partition, seq, Kind(kind), start, end, records, epoch, owner, token, note, _time(at), began)


def record_text(record: Record, attempts: int = 1) -> str:
    """Return the text of a dead letter up to its error, which a script may have to add."""
    headers = [(name, _ascii(value)) for name, value in record.headers]
    source = (record.topic, record.partition, record.offset)
    return _open(*source, _ascii(record.key), _ascii(record.value), headers, record.timestamp, attempts)


def letter_text(letter: FailedRecord) -> str:
    """Return the open text of a dead letter."""
    return f"{record_text(letter.record, letter.attempts)},{json.dumps(letter.error)}"


def error_text(error: str) -> str:
    """Return the error of a dead letter as JSON."""
    return json.dumps(error)


@_reads("a dead letter")
def as_letter(
    number: int, group: str, text: Text, tries: tuple[Text | None, Text | None] = (None, None)
) -> StoredLetter:
    """Convert a dead letter; ``tries`` are the number of failed replays since it was parked and the last error."""
    topic, partition, offset, key, value, headers, timestamp, attempts, error, at = json.loads(text)
    pairs = tuple((name, _bytes(value)) for name, value in headers)
    record = Record(topic, partition, offset, _bytes(key), _bytes(value), pairs, timestamp)
    more, last = tries
    letter = FailedRecord(record, error if last is None else json.loads(last), attempts + int(more or 0))
    return StoredLetter(number, group, letter, _time(at))


_ESCAPE = 12  # characters that stand for one: a surrogate pair such as \ud83c\udf0a


def head_sizes(most: int) -> tuple[int, int]:
    """Return how long base64 and JSON may be to hold at least ``most`` bytes or characters."""
    return 4 * -(-most // 3), _ESCAPE * (most + 1) + 2


@_reads("a dead letter")
def as_head(group: str, row: Sequence[Any], most: int) -> LetterHead:
    """Convert what the script returns of a dead letter."""
    items: Iterator[Any] = (item if isinstance(item, int) else _text(item) for item in row)
    number, topic, partition, offset, timestamp, attempts, at, error, key, key_size, value, value_size, *rest = items
    headers, headers_size, tries, last = rest
    words = _cut_string(last or error)
    return LetterHead(
        int(number),
        group,
        _cut_string(topic)[:TOPIC_LENGTH],
        int(partition),
        int(offset),
        None if timestamp == "null" else int(timestamp),
        int(attempts) + int(tries or 0),
        _time(int(at)),
        words[:most],
        len(words) > most,
        None if key_size < 0 else b64decode(key)[:most],
        None if key_size < 0 else key_size,
        None if value_size < 0 else b64decode(value)[:most],
        None if value_size < 0 else value_size,
        tuple((name, _bytes(content)) for name, content in json.loads(headers)) if headers else None,
        headers_size,
    )


def _text(item: Text) -> str:
    return item if isinstance(item, str) else item.decode()


def _cut_string(text: str) -> str:
    """Decode a JSON string whose end may be cut off, even within an escape sequence."""
    for end in range(len(text), len(text) - _ESCAPE, -1):
        for closed in (text[:end], text[:end] + '"'):
            try:
                return str(json.loads(closed))
            except ValueError:
                continue
    return ""


def _open(*items: object) -> str:
    try:
        text = _encode(items)  # several times as fast as the other, which characters beyond ASCII need
        if text.isascii():
            return text[:-1].decode()
    except UnicodeEncodeError:  # a lone surrogate
        pass
    return _encode_to_ascii(items)[:-1]


def as_time(text: Text) -> datetime:
    """Convert a time from a script, in microseconds since 1970."""
    return _time(int(text))


def microseconds(time: datetime | None) -> int | None:
    """Convert a time for a script, to microseconds since 1970."""
    return None if time is None else (time - _EPOCH) // _MICROSECOND


def _time(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _ascii(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
