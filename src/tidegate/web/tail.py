"""The tail of a group's journal: what was committed lately, and what else happened."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from tidegate.core.journal import Entry, Kind
from tidegate.core.records import TopicPartition
from tidegate.ledger.base import Ledger
from tidegate.web.chart import Mark
from tidegate.web.history import Point

__all__ = ["Tail"]

_STEP = 5  # seconds; a chart's steps are multiples of it
_KEPT = 3 * 3600.0
_MOST_ENTRIES = 20_000
_MOST_MARKED = 5_000
_OVERLAP = 10.0  # seconds in which entries may still appear before others that were seen
_RATE = 60


class _Happened(NamedTuple):
    at: float
    entry: Entry


class Tail:
    """Reads a journal backwards, once, and from then on only what is new."""

    def __init__(self, ledger: Ledger[Any], group: str) -> None:
        self._ledger = ledger
        self._group = group
        self._known_since = math.inf
        self._read_to = -math.inf
        self._recent: dict[tuple[TopicPartition | None, int], float] = {}
        self._records: defaultdict[int, int] = defaultdict(int)
        self._happened: list[_Happened] = []
        self._lock = threading.Lock()
        self.is_cut = False

    def read(self, now: float) -> None:
        """Take in what happened since the last time."""
        with self._lock:
            self._read(now)

    def _read(self, now: float) -> None:
        until = max(now - _KEPT, self._read_to - _OVERLAP)
        fresh: list[_Happened] = []
        reached = True
        for count, entry in enumerate(self._ledger.newest(self._group)):
            at = math.inf if entry.at is None else entry.at.timestamp()
            if at < until:
                break
            if count >= _MOST_ENTRIES:
                reached = False
                break
            if (entry.partition, entry.seq) not in self._recent:
                fresh.append(_Happened(at, entry))
        if not reached:
            self._forget()
            self.is_cut = True
            self._known_since = fresh[-1].at if fresh else now
        elif self._known_since == math.inf:
            self._known_since = until
        for each in reversed(fresh):
            self._take(each)
        self._drop(now)

    def rate(self, now: float) -> float | None:
        """Records a second in the last minute; ``None`` if less is known."""
        if self._known_since > now - _RATE:
            return None
        end = int(now) // _STEP
        return sum(self._records.get(step, 0) for step in range(end - _RATE // _STEP, end)) / _RATE

    def throughput(self, since: float, now: float, step: int) -> list[Point]:
        """Records a second in steps of so many seconds, a multiple of five; the step under way is left out."""
        first = math.ceil(max(since, self._known_since) / step)
        width = step // _STEP
        return [
            Point(
                float((number + 1) * step),
                sum(self._records.get(number * width + part, 0) for part in range(width)) / step,
            )
            for number in range(first, int(now) // step)
        ]

    def marks(self, since: float, step: float) -> list[Mark]:
        """What happened besides advances; several of a kind within a step are one mark.

        A start is not marked: the first claim of its partition is.
        """
        together: dict[tuple[int, Kind], list[_Happened]] = {}
        for each in self._happened:
            if each.at >= since and each.entry.kind is not Kind.START:
                together.setdefault((int(each.at // step), each.entry.kind), []).append(each)
        return [Mark(events[-1].at, str(kind), _told(kind, events)) for (_, kind), events in together.items()]

    def _take(self, each: _Happened) -> None:
        entry = each.entry
        self._recent[entry.partition, entry.seq] = each.at
        self._read_to = max(self._read_to, each.at)
        if entry.kind is Kind.ADVANCE:
            self._records[int(each.at) // _STEP] += entry.records
        else:
            self._happened.append(each)

    def _drop(self, now: float) -> None:
        """Forget what is too old to be shown, and which entries cannot come again."""
        oldest = now - _KEPT
        self._recent = {key: at for key, at in self._recent.items() if at >= self._read_to - 2 * _OVERLAP}
        self._records = defaultdict(int, {s: n for s, n in self._records.items() if s * _STEP >= oldest})
        self._happened = [each for each in self._happened if each.at >= oldest][-_MOST_MARKED:]

    def _forget(self) -> None:
        self._recent.clear()
        self._records.clear()
        self._happened.clear()


def _told(kind: Kind, events: list[_Happened]) -> str:
    if len(events) > 1:
        topics = sorted({each.entry.partition.topic for each in events if each.entry.partition})
        return f"{len(events)} times {kind}" + (f" in {', '.join(topics)}" if topics else "")
    entry = events[0].entry
    return " ".join(_parts(entry))


def _parts(entry: Entry) -> Iterable[str]:
    yield str(entry.kind)
    if entry.partition is not None:
        yield f"{entry.partition} at {entry.start:,}" + (f" → {entry.end:,}" if entry.end != entry.start else "")
    if entry.kind in {Kind.CLAIM, Kind.RELEASE} and entry.owner:
        yield f"by {entry.owner}"
    if entry.note:
        yield f"({entry.note})"
