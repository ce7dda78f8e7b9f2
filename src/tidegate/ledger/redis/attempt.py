"""One attempt at changing rows: what the commit script is told."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import NamedTuple

from tidegate.core.errors import ConfigurationError
from tidegate.core.journal import Entry
from tidegate.core.positions import Change, forced_starts
from tidegate.core.records import Record, TopicPartition
from tidegate.ledger.redis.codec import (
    GroupRow,
    Text,
    entry_text,
    field,
    forced_field,
    group_text,
    letter_text,
    position_text,
    record_text,
)
from tidegate.ledger.redis.transaction import RedisTransaction

__all__ = ["Attempt"]

_MOST_ARGUMENTS = 1_000_000  # Redis 6 reads 1,048,576 in one command


class _Row(NamedTuple):
    field: Text
    before: Text
    after: str
    entries: tuple[Entry, ...]


class Attempt:
    """The new texts of rows, each with the text that it replaces, and the lines of the journal about them.

    Every text names the attempt, so that the script knows its own work again if a client sends it twice. ``turn`` is
    the turn that the caller holds, if any; ``letter`` the dead letter that is replayed.
    """

    def __init__(self, group: str, turn: str = "", letter: int | None = None) -> None:
        self.group = group
        self._letter = "" if letter is None else str(letter)
        self.partitions: list[TopicPartition | None] = []
        self._turn = turn
        self.id = secrets.token_hex(8)
        self._rows: list[_Row] = []
        self._forced: set[tuple[str, str]] = set()

    def change(self, change: Change, before: Text | None) -> None:
        """Change a position."""
        self._forced |= forced_starts([change])
        partition = change.position.partition
        self.partitions.append(partition)
        self._rows.append(_Row(field(partition), before or "", position_text(change.position, self.id), change.entries))

    def change_group(self, row: GroupRow, before: Text | None, entry: Entry) -> None:
        """Change the row of the group itself."""
        self.partitions.append(None)
        self._rows.append(_Row(self.group.encode(), before or "", group_text(row, self.id), (entry,)))

    def args(self, tx: RedisTransaction | None = None) -> list[Text | int]:
        """The arguments of the script."""
        args = [*self._row_args(), *(_data_args(tx) if tx else (0, 0, "", ""))]
        if len(args) > _MOST_ARGUMENTS:
            raise ConfigurationError(f"{len(args)} words are too many for one script of Redis; use smaller batches")
        return args

    def _row_args(self) -> Iterator[Text | int]:
        yield from (self._turn, self._letter)
        yield from (self.group.encode(), group_text(GroupRow(self.group), self.id))
        yield len(self._forced)
        yield from (forced_field(*forced) for forced in sorted(self._forced))
        yield len(self._rows)
        for row in self._rows:
            yield from (row.field, row.before, row.after, len(row.entries), *map(entry_text, row.entries))


def _data_args(tx: RedisTransaction) -> Iterator[Text | int]:
    yield len(tx.letters)
    yield from map(letter_text, tx.letters)
    commands = tx.commands
    first = tx.work.steps[0].span
    yield len(commands)
    yield str(tx.work).encode("ascii", "backslashreplace")
    yield record_text(Record(*first.partition, first.start))
    for words, record in commands:
        yield record_text(record) if record else ""
        yield len(words)
        yield from words
