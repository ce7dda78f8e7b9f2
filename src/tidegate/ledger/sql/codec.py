"""Conversion between the ledger's values and the rows of SQL statements."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tidegate.core.journal import Bucket, Entry, Kind
from tidegate.core.positions import Change, Identity, OpenEntry, Position, Totals
from tidegate.core.records import FailedRecord, LetterHead, Record, StoredLetter, TopicPartition, without
from tidegate.core.work import Advance, Span
from tidegate.errors import LedgerError
from tidegate.ledger.sql.dialect import NOTE_LENGTH

__all__ = [
    "as_entry",
    "as_head",
    "as_letter",
    "as_position",
    "as_totals",
    "bucket_rows",
    "changed_rows",
    "cut_rows",
    "entry_rows",
    "error_text",
    "letter_row",
    "note_text",
    "opened_rows",
    "past_rows",
    "position_rows",
    "step_rows",
]

Row = dict[str, Any]

_OF_A_LETTER = 4096  # bytes of its INSERT besides the record and the error, including up to 255 for the group
_ESCAPED = ("\0", "\n", "\r", "\x1a", '"', "'", "\\")
Time = Callable[[Any], datetime]


def key_rows(partitions: Iterable[TopicPartition]) -> list[Row]:
    """Return partitions as rows of a statement."""
    return [{"topic": topic, "partition_id": partition} for topic, partition in partitions]


def position_rows(changes: Iterable[Change]) -> list[Row]:
    """Return the new positions of changes as rows of a statement."""
    return [
        {
            "topic": row.partition.topic,
            "partition_id": row.partition.partition,
            "next_offset": row.next_offset,
            "epoch": row.epoch,
            "owner": row.owner,
            "commit_token": row.token,
            "seq": row.seq,
            "cluster_id": row.identity.cluster_id,
            "topic_id": row.identity.topic_id,
            "deployment": row.deployment,
        }
        for row, *_ in changes
    ]


def changed_rows(changes: Sequence[Change]) -> list[Row]:
    """Return the new positions and buckets of changes that close their open entries, as rows of a statement."""
    rows = zip(position_rows(changes), changes, strict=True)
    return [{**row, **_bucket(change.position.bucket)} for row, change in rows]


def step_rows(steps: Iterable[Advance]) -> list[Row]:
    """Return the steps of a piece of work as rows of the advance."""
    return [
        {
            "topic": span.partition.topic,
            "partition_id": span.partition.partition,
            "start_offset": span.start,
            "end_offset": span.end,
            "records": span.records,
            "epoch": claim.epoch,
            "owner": claim.owner,
        }
        for claim, span in steps
    ]


def opened_rows(changes: Iterable[Change], steps: Iterable[Advance]) -> list[Row]:
    """Return steps that open a new journal entry, as rows of the advance."""
    rows = zip(step_rows(steps), changes, strict=True)
    return [{**row, "seq": change.position.seq, **_bucket(change.position.bucket)} for row, change in rows]


def cut_rows(planned: Iterable[Advance], ends: Mapping[TopicPartition, Span]) -> list[Row]:
    """Return the spans that are cut, as rows of a statement: the planned end, the new end, and how many records less.

    A partition missing from ``ends`` is cut back to its start.
    """
    return [
        {
            "topic": whole.partition.topic,
            "partition_id": whole.partition.partition,
            "start_offset": whole.end,
            "end_offset": span.end,
            "records": whole.records - span.records,
        }
        for _, whole in planned
        if (span := ends.get(whole.partition, whole._replace(end=whole.start, records=0))) != whole
    ]


def bucket_rows(changes: Iterable[Change]) -> list[Row]:
    """Return the current history buckets of changed positions, as rows of a statement."""
    return [_with_key(change, change.position.bucket) for change in changes]


def past_rows(changes: Iterable[Change]) -> list[Row]:
    """Return the history buckets that the changes complete, as rows of a statement."""
    return [_with_key(change, change.past) for change in changes if change.past is not None]


def _with_key(change: Change, bucket: Bucket | None) -> Row:
    topic, partition = change.position.partition
    return {"topic": topic, "partition_id": partition, **_bucket(bucket)}


def _bucket(bucket: Bucket | None) -> Row:
    begin, records = bucket or (None, None)
    return {"bucket": begin, "bucket_records": records}


def entry_rows(changes: Iterable[Change]) -> list[Row]:
    """Return the journal entries of changes as rows of a statement."""
    return [
        {
            "topic": position.partition.topic,
            "partition_id": position.partition.partition,
            "seq": entry.seq,
            "kind": entry.kind.value,
            "start_offset": entry.start,
            "end_offset": entry.end,
            "records": entry.records,
            "epoch": entry.epoch,
            "owner": entry.owner,
            "commit_token": entry.token,
            "note": note_text(entry.note),
        }
        for position, entries, *_ in changes
        for entry in entries
    ]


def as_position(row: Sequence[Any], time: Time | None = None) -> Position:
    """Convert a row of the positions table; without ``time``, only its first ten columns."""
    topic, partition, next_offset, epoch, owner, token, seq, cluster_id, topic_id, deployment = row[:10]
    source, identity = TopicPartition(topic, partition), Identity(cluster_id, topic_id)
    if time is None:
        return Position(source, next_offset, epoch, owner, token, seq, identity, deployment)
    open_seq, start, end, records, open_epoch, open_owner, since, bucket, bucket_records, updated_at = row[10:20]
    is_open = open_seq is not None
    return Position(
        source,
        next_offset,
        epoch,
        owner,
        token,
        seq,
        identity,
        deployment,
        time(updated_at),
        OpenEntry(open_seq, start, end, records, open_epoch, open_owner, time(since)) if is_open else None,
        None if bucket is None else Bucket(bucket, bucket_records),
    )


def as_totals(row: Sequence[Any], time: Time) -> Totals:
    """Convert a row of the totals query, which returns the sum of the offsets in two halves."""
    group, paused, topic, partitions, owned, high, low, at = row
    if topic is None:
        return Totals(group, bool(paused), None)
    return Totals(group, bool(paused), topic, partitions, owned, (int(high) << 32) + int(low), time(at))


def as_entry(row: Sequence[Any], time: Time) -> Entry:
    """Convert a row of the journal table."""
    topic, partition, seq, kind, start, end, records, epoch, owner, token, note, at, since = row
    source = TopicPartition(topic, partition) if topic else None
    began = None if since is None else time(since)
    try:
        known = Kind(kind)
    except ValueError:
        raise LedgerError(
            f"entry {seq} in the journal of {source or 'a group'} has a kind that is not known here: a newer version "
            "of Tidegate wrote it, or it was changed by other means"
        ) from None
    return Entry(source, seq, known, start, end, records, epoch, owner, token, note, time(at), began)


def letter_row(letter: FailedRecord, room: int | None = None) -> dict[str, Any]:
    """Return a dead letter as the parameters of its INSERT; header values are stored exactly, as base64.

    ``room`` is the maximum size of the statement in bytes. Parts of the record that do not fit are left out, and a
    header says so, because a letter that cannot be stored would block all records after it.
    """
    row = _letter_row(letter)
    if room is not None:
        for part in ("value", "key", "headers"):
            if _written(row) < room:
                break
            letter = without(letter, part)
            row = _letter_row(letter)
    return row


def _written(row: Row) -> int:
    """Return an upper bound of the size of a letter's statement, in bytes."""
    return _OF_A_LETTER + sum(_escaped(value) for value in row.values() if isinstance(value, str | bytes))


def _escaped(value: str | bytes) -> int:
    if isinstance(value, bytes):
        return 2 * len(value)  # written as hexadecimal digits
    return len(value.encode()) + sum(map(value.count, _ESCAPED))


def _letter_row(letter: FailedRecord) -> Row:
    record = letter.record
    headers = [[name, None if value is None else base64.b64encode(value).decode()] for name, value in record.headers]
    return {
        "topic": record.topic,
        "partition_id": record.partition,
        "record_offset": record.offset,
        "record_key": record.key,
        "record_value": record.value,
        "record_timestamp": record.timestamp,
        "headers": json.dumps(headers),
        "error": error_text(letter.error),
        "attempts": letter.attempts,
    }


def as_letter(group: str, row: Sequence[Any], time: Time) -> StoredLetter:
    """Convert a row of the dead letters table."""
    number, topic, partition, offset, key, value, timestamp, headers, error, attempts, at = row
    record = Record(topic, partition, offset, _bytes(key), _bytes(value), _headers(headers), timestamp)
    return StoredLetter(number, group, FailedRecord(record, error, attempts), time(at))


def as_head(group: str, row: Sequence[Any], time: Time, most: int) -> LetterHead:
    """Convert a row of the beginnings of dead letters; its error has one character more than ``most`` if it is cut."""
    number, topic, partition, offset, timestamp, attempts, at, error, key, key_size, value, value_size, *rest = row
    headers, headers_size = rest
    return LetterHead(
        number,
        group,
        topic,
        partition,
        offset,
        timestamp,
        attempts,
        time(at),
        error[:most],
        len(error) > most,
        b"" if key_size == 0 else _bytes(key),  # SQLite makes NULL of a part of an empty blob
        key_size,
        b"" if value_size == 0 else _bytes(value),
        value_size,
        None if headers is None else _headers(headers),
        headers_size,
    )


def _headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, None if value is None else base64.b64decode(value)) for name, value in json.loads(text))


def error_text(error: str) -> str:
    """Return an error's text without characters that databases refuse."""
    return _storable(error)


def note_text(note: str | None) -> str | None:
    """Return a note cut to its column's length, without characters that databases refuse."""
    return None if note is None else _storable(note)[:NOTE_LENGTH]


def _storable(words: str) -> str:
    return words.replace("\0", "\ufffd").encode(errors="replace").decode()


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
