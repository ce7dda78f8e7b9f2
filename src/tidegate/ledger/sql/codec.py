"""Between the ledger's values and the rows that statements take and give."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from tidegate.core.journal import Entry, Kind
from tidegate.core.letters import Letter, ParkedLetter
from tidegate.core.positions import Change, Identity, Position
from tidegate.core.records import Record, TopicPartition
from tidegate.core.spans import Work
from tidegate.core.totals import Totals
from tidegate.ledger.sql.dialect import NOTE_LENGTH

__all__ = [
    "as_entry",
    "as_letter",
    "as_position",
    "as_totals",
    "entry_rows",
    "error_text",
    "letter_row",
    "note_text",
    "position_rows",
    "step_rows",
]

Row = dict[str, Any]
Time = Callable[[Any], datetime]


def key_rows(partitions: Iterable[TopicPartition]) -> list[Row]:
    """Partitions as rows of a statement."""
    return [{"topic": topic, "partition_id": partition} for topic, partition in partitions]


def position_rows(changes: Iterable[Change]) -> list[Row]:
    """The positions of changes as rows of a statement."""
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


def step_rows(work: Work) -> list[Row]:
    """The steps of a piece of work as rows of the advance."""
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
        for claim, span in work.steps
    ]


def entry_rows(changes: Iterable[Change]) -> list[Row]:
    """The journal entries of changes as rows of a statement."""
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
    """A row of the positions table, with or without its time."""
    topic, partition, next_offset, epoch, owner, token, seq, cluster_id, topic_id, deployment = row[:10]
    return Position(
        TopicPartition(topic, partition),
        next_offset,
        epoch,
        owner,
        token,
        seq,
        Identity(cluster_id, topic_id),
        deployment,
        time(row[10]) if time else None,
    )


def as_totals(row: Sequence[Any], time: Time) -> Totals:
    """A row of the totals, whose sum of offsets comes in two halves."""
    group, paused, topic, partitions, owned, high, low, at = row
    if topic is None:
        return Totals(group, bool(paused), None)
    return Totals(group, bool(paused), topic, partitions, owned, (int(high) << 32) + int(low), time(at))


def as_entry(row: Sequence[Any], time: Time) -> Entry:
    """A row of the journal."""
    topic, partition, seq, kind, start, end, records, epoch, owner, token, note, at = row
    source = TopicPartition(topic, partition) if topic else None
    return Entry(source, seq, Kind(kind), start, end, records, epoch, owner, token, note, time(at))


def letter_row(letter: Letter) -> dict[str, Any]:
    """A dead letter as the parameters of its INSERT; header values are kept exactly, as base64."""
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


def as_letter(group: str, row: Sequence[Any], time: Time) -> ParkedLetter:
    """A row of the dead letters table."""
    number, topic, partition, offset, key, value, timestamp, headers, error, attempts, at = row
    decoded = tuple((name, None if v is None else base64.b64decode(v)) for name, v in json.loads(headers))
    record = Record(topic, partition, offset, _bytes(key), _bytes(value), decoded, timestamp)
    return ParkedLetter(number, group, Letter(record, error, attempts), time(at))


def error_text(error: str) -> str:
    """An error as it can be stored, without what databases refuse."""
    return _storable(error)


def note_text(note: str | None) -> str | None:
    """A note as it can be stored: cut to its column, without what databases refuse."""
    return None if note is None else _storable(note)[:NOTE_LENGTH]


def _storable(words: str) -> str:
    return words.replace("\0", "\ufffd").encode(errors="replace").decode()


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
