"""The watch: reads the ledger and Kafka every few seconds, once for all open pages."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from tidegate.core.journal import BUCKET, OPEN_FOR, Bucket, Entry, Kind
from tidegate.core.masks import masked
from tidegate.core.records import TopicPartition
from tidegate.errors import TidegateError
from tidegate.kafka.cluster import Survey
from tidegate.ledger.ledger import Ledger
from tidegate.operate.status import GroupStatus, Overview, Summaries
from tidegate.web.chart import Mark
from tidegate.web.history import History, Point

__all__ = ["DashboardWatch", "GroupSeen", "Rounds", "SummariesSeen", "Tail"]


_GRACE = 1.0  # seconds that stop() waits for the current round
_SHARE = 4  # rounds take at most a fourth of the time


class Rounds:
    """Calls ``look`` on a thread of its own: every so many seconds, and at once on request."""

    def __init__(self, name: str, look: Callable[[], None], every: float) -> None:
        self._look = look
        self._every = every
        self._due = threading.Event()
        self._turned = threading.Condition()
        self._begun = 0
        self._done = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further round. Wait only briefly for the current one, which may be waiting for a server."""
        self._stopping = True
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(_GRACE)

    def soon(self) -> None:
        """Start the next round now, or as soon as the current one has ended."""
        self._due.set()

    def wait(self, seconds: float) -> bool:
        """Start a new round and wait for it; return whether it ended within so many seconds."""
        with self._turned:
            wanted = self._begun + 1
            self._due.set()
            return self._turned.wait_for(lambda: self._done >= wanted, seconds)

    def wait_for_first(self, seconds: float) -> bool:
        """Wait until the first round has ended; return whether it did within so many seconds."""
        with self._turned:
            return self._turned.wait_for(lambda: self._done > 0, seconds)

    def _run(self) -> None:
        while not self._stopping:
            with self._turned:
                self._due.clear()
                self._begun += 1
            began = time.monotonic()
            self._look()
            with self._turned:
                self._done = self._begun
                self._turned.notify_all()
            self._due.wait(max(self._every, (time.monotonic() - began) * (_SHARE - 1)))


_STEP = 5  # seconds; a chart's steps are multiples of it
_KEPT = 3 * 3600.0
_MOST_ENTRIES = 20_000
_MOST_MARKED = 5_000
_OVERLAP = 10.0  # seconds by which an entry may become visible later than newer ones
_REMEMBERED = OPEN_FOR.total_seconds() + 3 * _OVERLAP  # seconds during which an entry may still grow
_COARSE = 24 * 3600.0
_COARSE_EVERY = 20.0  # seconds between two reads of the coarse history
_RATE = 60


class _Happened(NamedTuple):
    at: float
    entry: Entry


class _Counted(NamedTuple):
    """The time and the records of an entry when it was last counted; the entry may still grow."""

    at: float
    records: int


class Tail:
    """The recent journal of a group: its throughput, and events to mark in charts.

    The first read goes back through the journal; later reads take only what is new. Older times are covered by the
    coarse history of the ledger.
    """

    def __init__(self, ledger: Ledger[Any], group: str) -> None:
        self._ledger = ledger
        self._group = group
        self._known_since = math.inf
        self._read_to = -math.inf
        self._recent: dict[tuple[TopicPartition | None, int], _Counted] = {}
        self._records: defaultdict[int, float] = defaultdict(float)
        self._happened: list[_Happened] = []
        self._advanced_to: dict[TopicPartition | None, float] = {}
        self._coarse: list[Bucket] = []
        self._coarse_at = -math.inf
        self._lock = threading.Lock()
        self.is_cut = False

    def read(self, now: float) -> None:
        """Read the entries since the last call, and the coarse history if it is due."""
        with self._lock:
            self._read(now)
            if now - self._coarse_at >= _COARSE_EVERY:
                self._coarse = self._ledger.history(self._group, datetime.fromtimestamp(now - _COARSE - BUCKET, UTC))
                self._coarse_at = now

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
            known = self._recent.get((entry.partition, entry.seq))
            if known is None or known.records < entry.records:
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
        """Return the records per second over the last minute; ``None`` if the journal is not known that far back."""
        if self._known_since > now - _RATE:
            return None
        end = int(now) // _STEP
        return sum(self._records.get(step, 0) for step in range(end - _RATE // _STEP, end)) / _RATE

    def throughput(self, since: float, now: float, step: int) -> list[Point]:
        """Return the records per second in steps of ``step`` seconds, a multiple of five, without the current step.

        For times before the part of the journal that was read, and if a step is as long as a bucket, each point is a
        bucket of the coarse history.
        """
        if step >= BUCKET:
            return self._buckets(since, now)
        first = math.ceil(max(since, self._known_since) / step)
        width = step // _STEP
        fine = [
            Point(
                float((number + 1) * step),
                sum(self._records.get(number * width + part, 0) for part in range(width)) / step,
            )
            for number in range(first, int(now) // step)
        ]
        return [*self._buckets(since, min(self._known_since, now)), *fine]

    def _buckets(self, since: float, until: float) -> list[Point]:
        """Return the complete buckets of the coarse history, from that of ``since`` to that of ``until``."""
        found = {bucket.begin: bucket.records for bucket in self._coarse}
        first = max(int(since) // BUCKET * BUCKET, min(found, default=math.ceil(until)))
        return [
            Point(min(float(begin + BUCKET), until), found.get(begin, 0) / BUCKET)
            for begin in range(first, math.ceil(until), BUCKET)
            if begin + BUCKET <= self._coarse_at
        ]

    def marks(self, since: float, step: float) -> list[Mark]:
        """Return marks for all events except advances; events of the same kind within a step share one mark.

        A start has no mark, because the first claim of its partition has one.
        """
        together: dict[tuple[int, Kind], list[_Happened]] = {}
        for each in self._happened:
            if each.at >= since and each.entry.kind is not Kind.START:
                together.setdefault((int(each.at // step), each.entry.kind), []).append(each)
        return [Mark(events[-1].at, str(kind), _told(kind, events)) for (_, kind), events in together.items()]

    def _take(self, each: _Happened) -> None:
        entry = each.entry
        known = self._recent.get((entry.partition, entry.seq))
        self._recent[entry.partition, entry.seq] = _Counted(each.at, entry.records)
        self._read_to = max(self._read_to, each.at)
        if entry.kind is not Kind.ADVANCE:
            self._happened.append(each)
            return
        begin = each.at if entry.since is None else entry.since.timestamp()
        before = self._advanced_to.get(entry.partition, -math.inf)
        if known is not None or begin - before <= _OVERLAP:  # it continues the previous advance
            begin = min(before, each.at)
        self._spread(begin, each.at, entry.records - (0 if known is None else known.records))
        self._advanced_to[entry.partition] = each.at

    def _spread(self, begin: float, end: float, records: int) -> None:
        """Distribute records evenly over the time in which they were advanced."""
        # No entry is open for longer, unless a clock is wrong.
        begin = max(min(begin, end), end - 2 * OPEN_FOR.total_seconds())
        steps = range(int(begin) // _STEP, int(end) // _STEP + 1)
        for step in steps:
            within = min(end, (step + 1) * _STEP) - max(begin, step * _STEP)
            self._records[step] += records * (within / (end - begin) if end > begin else 1 / len(steps))

    def _drop(self, now: float) -> None:
        """Drop data that is too old to be shown, and entries that can no longer grow."""
        oldest = now - _KEPT
        self._recent = {key: seen for key, seen in self._recent.items() if seen.at >= self._read_to - _REMEMBERED}
        self._records = defaultdict(float, {s: n for s, n in self._records.items() if s * _STEP >= oldest})
        self._happened = [each for each in self._happened if each.at >= oldest][-_MOST_MARKED:]

    def _forget(self) -> None:
        self._recent.clear()
        self._advanced_to.clear()
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


log = logging.getLogger(__name__)

_INTEREST = 20.0  # seconds for which a group is read after a page last requested it
_PATIENCE = 0.7  # seconds that a page waits for Kafka
_PATIENCE_AT_FIRST = 0.3

T = TypeVar("T")


@dataclass(frozen=True)
class SummariesSeen:
    """All groups as last observed; ``trouble`` is why the newest attempt failed."""

    summaries: Summaries
    trouble: str | None = None


@dataclass(frozen=True)
class GroupSeen:
    """One group as last observed, and its recent journal; ``trouble`` is why the newest attempt failed."""

    status: GroupStatus
    tail: Tail
    trouble: str | None = None


class DashboardWatch:
    """Reads the totals of all groups, and the details of groups that a page shows.

    A page does not wait long for Kafka. If Kafka does not answer, the page shows only what the ledger contains.
    """

    def __init__(
        self, ledger: Ledger[Any], survey: Survey | None, members: Collection[str] = (), every: float = 2.0
    ) -> None:
        """Create the watch. ``members`` are addresses of consumers that report how far they have read."""
        self.history = History()
        self._ledger = ledger
        self._members = members
        self._stopping = False
        self._lock = threading.Lock()
        self._at_start: SummariesSeen | None = None
        self._summaries: SummariesSeen | None = None
        self._groups: dict[str, GroupSeen] = {}
        self._asked: dict[str, float] = {}
        self._listeners: set[Callable[[], object]] = set()
        # An Overview may be used by one thread only. There are two threads, so that a single group does not have to
        # wait for the totals of a large ledger.
        self._of_all = Overview(ledger, survey)
        self._of_each = Overview(ledger, survey)
        self._all_rounds = Rounds("tidegate-watch-all", self._look_at_all, every)
        self._group_rounds = Rounds("tidegate-watch-groups", self._look_at_groups, every)

    def start(self) -> None:
        """Start reading. Raises if the ledger cannot be read now; later failures are shown on the pages."""
        self._at_start = SummariesSeen(Overview(self._ledger).groups())
        self._all_rounds.start()
        self._group_rounds.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stopping = True
        self._all_rounds.stop()
        self._group_rounds.stop()

    def look(self) -> None:
        """Read everything now, because something was changed."""
        self._all_rounds.soon()
        self._group_rounds.soon()

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener`` after every round, on a thread of the watch; return a function that ends this."""
        with self._lock:
            self._listeners.add(listener)

        def end() -> None:
            with self._lock:
                self._listeners.discard(listener)

        return end

    def summaries(self) -> SummariesSeen:
        """Return all groups as last observed; before the first round, as the ledger has them, without Kafka."""
        self._all_rounds.wait_for_first(_PATIENCE_AT_FIRST)
        seen = self._summaries or self._at_start
        return seen or SummariesSeen(Overview(self._ledger).groups())

    def group(self, name: str) -> GroupSeen | None:
        """Return a group as last observed, and keep observing it; ``None`` if it was not observed yet."""
        with self._lock:
            self._asked[name] = time.monotonic()
            return self._groups.get(name)

    def group_now(self, name: str) -> GroupSeen:
        """Return a group as it is now, with information from Kafka if Kafka answers quickly."""
        self.group(name)
        seen = self._summaries
        kafka = seen.summaries.kafka if seen else None
        if kafka is None and self._group_rounds.wait(_PATIENCE) and (known := self.group(name)) is not None:
            return known
        known = self.group(name)
        tail = known.tail if known else Tail(self._ledger, name)
        tail.read(time.time())
        status = Overview(self._ledger).group(name)
        return GroupSeen(replace(status, kafka=kafka or status.kafka), tail)

    def _look_at_all(self) -> None:
        found, trouble = self._tried(self._of_all.groups)
        if found is not None:
            self._summaries = SummariesSeen(found)
            self.history.add(found.at.timestamp(), {each.group: each.lag_records for each in found.groups})
        elif self._summaries is not None:
            self._summaries = SummariesSeen(self._summaries.summaries, trouble)
        self._tell()

    def _look_at_groups(self) -> None:
        with self._lock:
            limit = time.monotonic() - _INTEREST
            self._asked = {name: at for name, at in self._asked.items() if at >= limit}
            self._groups = {name: seen for name, seen in self._groups.items() if name in self._asked}
            wanted = list(self._asked)
        for name in wanted:
            self._look_at(name)
        if wanted:
            self._tell()

    def _look_at(self, name: str) -> None:
        known = self._groups.get(name)
        tail = known.tail if known else Tail(self._ledger, name)

        def ask() -> GroupStatus:
            status = self._of_each.group(name, members=self._members)
            tail.read(status.at.timestamp())
            return status

        status, trouble = self._tried(ask)
        with self._lock:
            if status is not None:
                self._groups[name] = GroupSeen(status, tail)
            elif known is not None:
                self._groups[name] = GroupSeen(known.status, tail, trouble)

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _tried(self, ask: Callable[[], T]) -> tuple[T | None, str | None]:
        """Return the result of ``ask`` and ``None``, or ``None`` and its error as text: the next round may succeed."""
        try:
            return ask(), None
        except Exception as error:
            told = masked(" ".join(str(error).split()))
            if not isinstance(error, TidegateError):
                told = f"{type(error).__name__}: {told}"
            if not self._stopping:
                log.warning("the dashboard cannot read the ledger: %s", told)
            return None, told
