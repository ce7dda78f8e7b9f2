"""The status of groups, from the ledger and Kafka, for both the command line and the web page."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tidegate.core.arguments import argument, span
from tidegate.core.positions import GroupState, Position, Totals
from tidegate.core.records import TopicPartition, is_query
from tidegate.errors import BrokerUnavailable
from tidegate.ledger.ledger import Ledger
from tidegate.operate.states import Observation, Past, Seen, State, ask_members, past, verdict, worst

if TYPE_CHECKING:
    from tidegate.kafka.cluster import LogEnds, Survey

__all__ = ["WINDOW", "Ends", "GroupStatus", "GroupSummary", "Overview", "PartitionStatus", "Summaries", "plain"]

WINDOW = 60.0
"""Seconds over which states are judged, unless a window is passed."""


def plain(value: Any) -> Any:
    """Convert a value for JSON: objects become mappings, times become ISO 8601 in UTC."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    return [plain(each) for each in value]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The status of one partition of a group. Unknown values are ``None``.

    ``committed`` is the position in the ledger; ``current`` is how far its member has read, if the member was asked.
    ``log_begin`` is the first offset of the log, and ``log_end`` the one behind its last record (the high watermark).
    ``stable_end`` is the last stable offset: reading ends there while a transaction is open, and the lag is counted up
    to it. ``lag_seconds`` is the age of the oldest unread record.
    """

    topic: str
    partition: int
    state: State
    committed: int
    current: int | None
    log_begin: int | None
    stable_end: int | None
    log_end: int | None
    lag_records: int | None
    lag_seconds: float | None
    owner: str | None
    epoch: int
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The status of a group and of all its partitions.

    ``lag_records`` is the sum and ``lag_seconds`` the maximum over its partitions. ``unstored`` names the partitions of
    its topics that have no stored position, as ``topic[partition]``. ``kafka`` says why there is no data from Kafka, or
    is ``None``; ``members`` lists the members that did not answer.
    """

    group: str
    state: State
    paused: bool
    at: datetime
    lag_records: int | None
    lag_seconds: float | None
    owners: int
    partitions: tuple[PartitionStatus, ...]
    unstored: tuple[str, ...] = ()
    kafka: str | None = None
    members: tuple[str, ...] = ()
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The status of a group in one line.

    The state is derived from sums over the partitions, so a single stalled partition does not show while the others
    advance; :class:`GroupStatus` checks each partition. ``owned`` counts the partitions that have an owner.
    """

    group: str
    state: State
    paused: bool
    topics: tuple[str, ...]
    partitions: int
    owned: int
    lag_records: int | None
    updated_at: datetime | None
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Summaries:
    """The summaries of all groups in the ledger, by name; ``kafka`` says why there is no data from Kafka, if so."""

    at: datetime
    groups: tuple[GroupSummary, ...]
    kafka: str | None = None


_MOST_READ = 20


class Ends:
    """The sums of the log ends of topics, so that the lag of a group is one subtraction.

    This requires that a group has a position for every partition of its topics. Groups that lack some are read one by
    one, up to a maximum; the lag of the others is unknown.
    """

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        self._ends = ends
        self._sums: defaultdict[str, int] = defaultdict(int)
        self._counts: defaultdict[str, int] = defaultdict(int)
        for tp, end in ends.items():
            self._sums[tp.topic] += end
            self._counts[tp.topic] += 1
        self._left = _MOST_READ

    def of(self, ledger: Ledger[Any], totals: Sequence[Totals]) -> int | None:
        """Return the sum of the log ends over the partitions that have a position; ``None`` if it is unknown."""
        known = [self._counts.get(total.topic or "", 0) - total.partitions for total in totals]
        if not any(known):
            return sum(self._sums[total.topic or ""] for total in totals)
        if min(known) < 0 or self._left == 0:  # a partition is gone or has no leader, or too many groups were read
            return None
        self._left -= 1
        stored = ledger.read(totals[0].group).positions
        if not stored.keys() <= self._ends.keys():
            return None
        return sum(self._ends[tp] for tp in stored)


T = TypeVar("T")


def _checked(survey: object) -> Survey:
    from tidegate.kafka.cluster import Survey  # noqa: PLC0415 - the Kafka client is loaded only if there is a survey

    found: Survey = argument("survey", Survey | None, survey)
    return found


class Overview:
    """Reports the status of groups on any ledger, with or without Kafka, whether or not consumers run.

    It takes the past window from the journal and from the observations of its own earlier calls. Use an overview in one
    thread at a time.
    """

    def __init__(
        self,
        ledger: Ledger[Any],
        survey: Survey | None = None,
        *,
        window: float = WINDOW,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``window`` is the time in seconds over which states are judged. Without a ``survey``, Kafka is not asked."""
        self._ledger: Ledger[Any] = argument("ledger", Ledger, ledger)
        self._survey = None if survey is None else _checked(survey)
        self._window: float = argument("window", Annotated[float, span(above=True)], window)
        self._clock: Callable[[], float] = argument("clock", Callable[[], float], clock)
        self._seen = Seen(self._window)

    def groups(self) -> Summaries:
        """Return a summary of every group. The number of queries does not grow with the number of groups, except for
        the limited number of groups that :class:`Ends` reads one by one.
        """
        now = self._clock()
        totals = self._ledger.totals()
        ends, trouble = self._ask(lambda survey: Ends(survey.stable_ends(_topics(totals))))
        quiet = [total for total in totals if total.owned and self._is_quiet(total, now)]
        then = self._ends_then(quiet, now) if ends is not None and quiet else None
        groups = (list(each) for _, each in groupby(totals, key=lambda total: total.group))
        letters = self._ledger.count_letters()
        found = (self._summary(now, each, ends, then) for each in groups)
        counted = tuple(replace(each, dead_letters=letters.get(each.group, 0)) for each in found)
        return Summaries(_time(now), counted, trouble)

    def group(self, name: str, *, members: Collection[str] = ()) -> GroupStatus:
        """Return the status of a group and its partitions; ``members`` are addresses of members to ask for offsets."""
        now = self._clock()
        state = self._ledger.read(name)
        history = past(self._ledger, state, _time(now), timedelta(seconds=self._window))
        topics = {tp.topic for tp in state.positions if not is_query(tp.topic)}
        since = round(history.since.timestamp() * 1000)
        logs, trouble = self._ask(lambda survey: survey.logs(topics, since))
        logs = logs or {}
        ages = self._ages(now, state, logs)
        asked = ask_members(name, members)
        partitions = tuple(
            PartitionStatus(
                *tp,
                state=self._judged(now, state, row, logs.get(tp), history),
                committed=row.next_offset,
                current=asked.current.get(tp),
                log_begin=logs[tp].begin if tp in logs else None,
                stable_end=logs[tp].stable_end if tp in logs else None,
                log_end=logs[tp].log_end if tp in logs else None,
                lag_records=_lag(row, logs.get(tp)),
                lag_seconds=ages.get(tp),
                owner=row.owner,
                epoch=row.epoch,
                updated_at=row.updated_at,
            )
            for tp, row in sorted(state.positions.items())
        )
        return GroupStatus(
            group=name,
            state=State.PAUSED if state.paused else worst(each.state for each in partitions),
            paused=state.paused,
            at=_time(now),
            lag_records=_known(sum, [each.lag_records for each in partitions]),
            lag_seconds=_known(max, [each.lag_seconds for each in partitions]),
            owners=len({row.owner for row in state.positions.values() if row.owner is not None}),
            partitions=partitions,
            unstored=tuple(str(tp) for tp in sorted(logs.keys() - state.positions.keys())),
            kafka=trouble,
            members=asked.silent,
            dead_letters=self._ledger.count_letters().get(name, 0),
        )

    def _summary(self, now: float, totals: Sequence[Totals], ends: Ends | None, then: Ends | None) -> GroupSummary:
        first = totals[0]
        stored = [total for total in totals if total.topic is not None]
        position = sum(total.next_offsets for total in stored)
        partitions = sum(total.partitions for total in stored)
        owned = sum(total.owned for total in stored)
        end = ends.of(self._ledger, stored) if ends is not None and stored else None
        seen = Observation(now, position, end, owned == partitions)
        before = []
        if (
            then is not None
            and end is not None
            and end > position
            and all(self._is_quiet(each, now) for each in stored)
        ):
            before = [seen._replace(at=now - self._window, end=then.of(self._ledger, stored))]
        known = self._seen.add(first.group, seen, before)
        state = verdict(known, window=self._window, paused=first.paused) if stored or first.paused else State.STOPPED
        return GroupSummary(
            group=first.group,
            state=_of_query(first.topic, state),
            paused=first.paused,
            topics=tuple(str(total.topic) for total in stored),
            partitions=partitions,
            owned=owned,
            lag_records=seen.lag,
            updated_at=max((total.updated_at for total in stored if total.updated_at is not None), default=None),
        )

    def _is_quiet(self, total: Totals, now: float) -> bool:
        """Return whether no position has changed for a whole window."""
        return total.updated_at is not None and total.updated_at.timestamp() <= now - self._window

    def _ends_then(self, totals: Sequence[Totals], now: float) -> Ends | None:
        at = round((now - self._window) * 1000)
        return self._ask(lambda survey: Ends(survey.stable_ends(_topics(totals), at)))[0]

    def _judged(self, now: float, state: GroupState, row: Position, log: LogEnds | None, history: Past) -> State:
        end = None if log is None else log.stable_end
        seen = Observation(now, row.next_offset, end, row.owner is not None)
        before = []
        if (then := history.position(row)) is not None:
            ended = end if log is None or log.at_time is None else min(max(log.at_time, log.begin), log.stable_end)
            before = [Observation(history.since.timestamp(), then[0], ended, then[1])]
        known = self._seen.add((state.group, row.partition), seen, before)
        edits = history.edits.get(row.partition, ())
        found = verdict(known, window=self._window, paused=state.paused, rewinds=edits)
        return _of_query(row.partition.topic, found)

    def _ages(
        self, now: float, state: GroupState, logs: Mapping[TopicPartition, LogEnds]
    ) -> dict[TopicPartition, float]:
        """Return the age of the oldest unread record of each partition for which it is known."""
        lags = {tp: _lag(row, logs.get(tp)) for tp, row in state.positions.items()}
        unread = {tp: max(state.positions[tp].next_offset, logs[tp].begin) for tp, lag in lags.items() if lag}
        times, _ = self._ask(lambda survey: survey.oldest(unread))
        ages = {tp: 0.0 for tp, lag in lags.items() if lag == 0}
        for tp, at in (times or {}).items():
            ages[tp] = 0.0 if at is None else round(max(0.0, now - at / 1000), 3)
        return ages

    def _ask(self, ask: Callable[[Survey], T]) -> tuple[T | None, str | None]:
        """Return the answer of Kafka, or ``None`` and the reason why there is none."""
        if self._survey is None:
            return None, "Kafka was not asked"
        try:
            return ask(self._survey), None
        except BrokerUnavailable as error:
            return None, str(error)


def _topics(totals: Sequence[Totals]) -> set[str]:
    return {total.topic for total in totals if total.topic is not None and not is_query(total.topic)}


def _of_query(topic: str | None, state: State) -> State:
    """Return the state of a query with an owner as ok: it has no log, so that no end of one is unknown."""
    return State.OK if state is State.UNKNOWN and topic is not None and is_query(topic) else state


def _lag(row: Position, log: LogEnds | None) -> int | None:
    return None if log is None else max(0, log.stable_end - row.next_offset)


def _known(total: Callable[[list[Any]], Any], values: Sequence[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return total(known) if known else None


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
