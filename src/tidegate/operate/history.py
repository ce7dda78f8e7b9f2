"""History: what was seen of positions within the window, live or by the journal's account."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from tidegate.core.journal import Entry, Kind
from tidegate.core.positions import GroupState, Position
from tidegate.core.records import TopicPartition
from tidegate.core.verdicts import Observation, Rewind
from tidegate.ledger.base import Ledger

__all__ = ["Past", "Seen", "past"]

_MOST_ENTRIES = 10_000
_MOST_KEYS = 20_000


class Past(NamedTuple):
    """What the journal says about a window: when it began, where positions were then, and what was edited since.

    A busy group may have more entries in the window than are read; it begins later then.
    """

    since: datetime
    first: Mapping[TopicPartition, Entry]
    edits: Mapping[TopicPartition, list[Rewind]]

    def position(self, row: Position) -> tuple[int, bool] | None:
        """Where a position was when the window began, and whether it had an owner; ``None`` if that is not known."""
        if row.updated_at is not None and row.updated_at <= self.since:
            return row.next_offset, row.owner is not None
        entry = self.first.get(row.partition)
        if entry is None or entry.kind is Kind.START:
            return None
        return entry.start, entry.owner is not None and entry.kind is not Kind.CLAIM


def past(ledger: Ledger[Any], state: GroupState, now: datetime, window: timedelta) -> Past:
    """Ask the journal about the window before ``now``; not at all if nothing has changed in it."""
    since = now - window
    first: dict[TopicPartition, Entry] = {}
    edits: dict[TopicPartition, list[Rewind]] = {}
    if any(row.updated_at is None or row.updated_at > since for row in state.positions.values()):
        count = 0
        for entry in islice(ledger.newest(state.group), _MOST_ENTRIES):
            if entry.at is None or entry.at <= since:
                break
            count += 1
            if entry.partition is None:
                continue
            first[entry.partition] = entry
            if entry.kind is Kind.EDIT:
                edits.setdefault(entry.partition, []).append(Rewind(entry.at.timestamp(), entry.start))
        if count == _MOST_ENTRIES and entry.at is not None:
            since = entry.at
    return Past(since, first, edits)


class Seen:
    """Observations that were made while looking on, for as long as the window is."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._seen: OrderedDict[Hashable, deque[Observation]] = OrderedDict()

    def add(self, key: Hashable, now: Observation, before: Iterable[Observation] = ()) -> list[Observation]:
        """Keep what is seen now, and return all of the window, oldest first, beginning with ``before``."""
        known = self._seen.setdefault(key, deque())
        self._seen.move_to_end(key)
        while known and known[0].at < now.at - self._window:
            known.popleft()
        known.append(now)
        while len(self._seen) > _MOST_KEYS:  # those that were looked at least recently
            self._seen.popitem(last=False)
        return sorted([*before, *known], key=lambda each: each.at)
