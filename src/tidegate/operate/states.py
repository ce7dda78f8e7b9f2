"""The states of groups and partitions, derived from observations over a time window, and queries to members."""

from __future__ import annotations

import http.client
import json
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from tidegate.core.journal import Entry, Kind
from tidegate.core.positions import GroupState, Position
from tidegate.core.records import TopicPartition
from tidegate.errors import ConfigurationError
from tidegate.ledger.ledger import Ledger

__all__ = ["Members", "Observation", "Past", "Rewind", "Seen", "State", "ask_members", "past", "verdict", "worst"]


SETTLING = 10.0
"""How many seconds the owner of an edited position has to claim it again before it counts as stopped."""

_TOLERANCE = 0.1
_GRAIN = 0.001  # seconds; times come from several clocks and are rounded


class State(StrEnum):
    """The state of a partition or a group."""

    OK = "ok"
    """It has an owner and keeps up."""

    LAGGING = "lagging"
    """Its position advances, but its lag grows."""

    STALLED = "stalled"
    """It has an owner and unread records, but its position does not advance."""

    STOPPED = "stopped"
    """It has no owner, so its unread records are not read."""

    IDLE = "idle"
    """It has no owner, and nothing is left to read."""

    REWOUND = "rewound"
    """An operator moved its position back, and it has not reached its old position again."""

    PAUSED = "paused"
    """Its group is paused."""

    UNKNOWN = "unknown"
    """It has an owner, but the end of its log is unknown, and therefore its lag."""


_GRAVEST_FIRST = (
    State.STALLED,
    State.STOPPED,
    State.LAGGING,
    State.PAUSED,
    State.REWOUND,
    State.UNKNOWN,
    State.IDLE,
    State.OK,
)


class Observation(NamedTuple):
    """A position and the end of its log at one moment; ``at`` is in seconds of any clock.

    ``end`` is the offset at which reading currently ends; ``None`` if unknown. An observation may also hold the sums
    over several partitions.
    """

    at: float
    position: int
    end: int | None
    owned: bool

    @property
    def lag(self) -> int | None:
        """The number of offsets between position and end; ``None`` if the end is unknown."""
        return None if self.end is None else max(0, self.end - self.position)


class Rewind(NamedTuple):
    """An operator's edit of a position: its time, and the position before it."""

    at: float
    before: int


def verdict(
    seen: Sequence[Observation], *, window: float, paused: bool = False, rewinds: Iterable[Rewind] = ()
) -> State:
    """Return the state after these observations, which come oldest first and end with the current one.

    ``window`` is how long records may stay unread before the partition counts as stalled; it does not if the
    observations cover less time. ``rewinds`` are the edits within the window.
    """
    now = seen[-1]
    edits = list(rewinds)
    if paused:
        return State.PAUSED
    settling = any(now.at - edit.at <= SETTLING for edit in edits)
    if not now.owned and not settling:
        return State.IDLE if now.lag == 0 else State.STOPPED
    if any(now.position < edit.before for edit in edits):
        return State.REWOUND
    if now.lag is None:
        return State.UNKNOWN
    if _stalled(seen, window):
        return State.STALLED
    if _lagging([each for each in seen if each.end is not None]):
        return State.LAGGING
    return State.OK


def worst(states: Iterable[State]) -> State:
    """Return the gravest of these states; ``OK`` if there are none."""
    return min(states, key=_GRAVEST_FIRST.index, default=State.OK)


def _stalled(seen: Sequence[Observation], window: float) -> bool:
    """Return whether, for a whole window, there were unread records and an owner, but the position did not move."""
    now = seen[-1]
    if not now.lag:
        return False
    since = now
    for each in reversed(seen):
        if each.position != now.position or not each.owned or each.lag == 0:
            break
        since = each
    # While the end was unknown, there may have been nothing to read, so count from the first known end.
    known = next(each for each in seen if each.at >= since.at and each.end is not None)
    return now.at - known.at > window - _GRAIN


def _lagging(seen: Sequence[Observation]) -> bool:
    """Return whether the lag grew over the window by more than a tenth of what was read.

    Compare the smallest lag in the first and in the last third of the observations. Thus it does not matter at which
    moment of a batch they were made.
    """
    third = (len(seen) + 2) // 3
    first, last = seen[:third], seen[-third:]
    moved = last[-1].position - first[0].position
    if len(seen) < 2 or moved <= 0:
        return False
    grown = min(each.lag or 0 for each in last) - min(each.lag or 0 for each in first)
    return grown > moved * _TOLERANCE


_MOST_ENTRIES = 10_000
_MOST_KEYS = 20_000


class Past(NamedTuple):
    """The journal of a time window: its start, the first entry of each position, and the edits in it.

    If a busy group has more entries in the window than are read, the window starts later.
    """

    since: datetime
    first: Mapping[TopicPartition, Entry]
    edits: Mapping[TopicPartition, list[Rewind]]

    def position(self, row: Position) -> tuple[int, bool] | None:
        """Return where a position was at the start of the window and whether it had an owner; ``None`` if unknown."""
        if row.updated_at is not None and row.updated_at <= self.since:
            return row.next_offset, row.owner is not None
        entry = self.first.get(row.partition)
        if entry is None or entry.kind is Kind.START:
            return None
        return self._start(entry), entry.owner is not None and entry.kind is not Kind.CLAIM

    def _start(self, entry: Entry) -> int:
        """Return the position at the start of the window, if ``entry`` is the first in it.

        An entry that combines many advances may have begun before the window; then the position is interpolated.
        """
        if entry.since is None or entry.at is None or not entry.since < self.since < entry.at:
            return entry.start
        return entry.start + int((entry.end - entry.start) * ((self.since - entry.since) / (entry.at - entry.since)))


def past(ledger: Ledger[Any], state: GroupState, now: datetime, window: timedelta) -> Past:
    """Read the journal of the window before ``now``. If no position has changed in it, the journal is not read."""
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
    """The observations of the last window, by key."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._seen: OrderedDict[Hashable, deque[Observation]] = OrderedDict()

    def add(self, key: Hashable, now: Observation, before: Iterable[Observation] = ()) -> list[Observation]:
        """Store an observation, and return all of the window together with ``before``, oldest first."""
        known = self._seen.setdefault(key, deque())
        self._seen.move_to_end(key)
        while known and known[0].at < now.at - self._window:
            known.popleft()
        known.append(now)
        while len(self._seen) > _MOST_KEYS:  # drop the keys that were used least recently
            self._seen.popitem(last=False)
        return sorted([*before, *known], key=lambda each: each.at)


_SECONDS = 2.0
_MOST_BYTES = 16 << 20


class Members(NamedTuple):
    """How far the members of a group have read, and which members did not answer, with the reasons."""

    current: dict[TopicPartition, int]
    silent: tuple[str, ...]


def ask_members(group: str, addresses: Iterable[str]) -> Members:
    """Ask the members at ``host:port`` for ``/positions``. If two read the same partition, the higher offset counts."""
    current: dict[TopicPartition, int] = {}
    silent = []
    for address in addresses:
        host, port = _parsed(address)
        try:
            found = _positions(group, host, port)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            silent.append(f"{address}: {_reason(error)}")
            continue
        for tp, offset in found.items():
            current[tp] = max(offset, current.get(tp, offset))
    return Members(current, tuple(silent))


def _positions(group: str, host: str, port: int) -> dict[TopicPartition, int]:
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        connection.request("GET", "/positions")
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ValueError(f"it answered {response.status}")
        told: dict[str, Any] = json.loads(response.read(_MOST_BYTES))
    finally:
        connection.close()
    return {
        TopicPartition(str(each["topic"]), int(each["partition"])): int(each["current"])
        for each in told["positions"]
        if each["group"] == group and each["current"] is not None
    }


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(
            f"{address!r} is not the address of a member; write host:port, the port of its metrics"
        )
    return host.strip("[]"), int(port)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error) or type(error).__name__).lower()
    return str(error) if isinstance(error, ValueError) and "answered" in str(error) else "it has no /positions"
