"""The overview: how groups are doing, from the ledger and from Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Annotated, Any, TypeVar

from tidegate.core.arguments import argument, span
from tidegate.core.errors import BrokerUnavailable
from tidegate.core.positions import GroupState, Position
from tidegate.core.records import TopicPartition
from tidegate.core.totals import Totals
from tidegate.core.verdicts import Observation, State, verdict, worst
from tidegate.kafka.survey import LogEnds, Survey
from tidegate.ledger.base import Ledger
from tidegate.operate.figures import GroupStatus, GroupSummary, PartitionStatus, Summaries
from tidegate.operate.history import Past, Seen, past
from tidegate.operate.members import ask_members
from tidegate.operate.summing import Ends

__all__ = ["Overview"]

T = TypeVar("T")


class Overview:
    """Answers how groups are doing, on any ledger, with Kafka or without, and whether consumers run or not.

    The journal tells it what happened within the window before it was asked first; asked again, it remembers what it
    saw. One overview is used by one thread at a time.
    """

    def __init__(
        self,
        ledger: Ledger[Any],
        survey: Survey | None = None,
        *,
        window: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``window``: seconds that a state is judged over. Without a ``survey`` only the ledger is asked."""
        self._ledger: Ledger[Any] = argument("ledger", Ledger, ledger)
        self._survey: Survey | None = argument("survey", Survey | None, survey)
        self._window: float = argument("window", Annotated[float, span(above=True)], window)
        self._clock: Callable[[], float] = argument("clock", Callable[[], float], clock)
        self._seen = Seen(self._window)

    def groups(self) -> Summaries:
        """Every group in one line: one query to the ledger and few requests to Kafka, however many groups there are."""
        now = self._clock()
        totals = self._ledger.totals()
        ends, trouble = self._ask(lambda survey: Ends(survey.stable_ends(_topics(totals))))
        quiet = [total for total in totals if total.owned and self._is_quiet(total, now)]
        then = self._ends_then(quiet, now) if ends is not None and quiet else None
        groups = (list(each) for _, each in groupby(totals, key=lambda total: total.group))
        return Summaries(_time(now), tuple(self._summary(now, each, ends, then) for each in groups), trouble)

    def group(self, name: str, *, members: Collection[str] = ()) -> GroupStatus:
        """A group with all its partitions; ``members`` are addresses of consumers to ask how far they have read."""
        now = self._clock()
        state = self._ledger.read(name)
        history = past(self._ledger, state, _time(now), timedelta(seconds=self._window))
        topics = {tp.topic for tp in state.positions}
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
        return GroupSummary(
            group=first.group,
            state=verdict(known, window=self._window, paused=first.paused) if stored or first.paused else State.STOPPED,
            paused=first.paused,
            topics=tuple(str(total.topic) for total in stored),
            partitions=partitions,
            owned=owned,
            lag_records=seen.lag,
            updated_at=max((total.updated_at for total in stored if total.updated_at is not None), default=None),
        )

    def _is_quiet(self, total: Totals, now: float) -> bool:
        """Whether nothing has changed for a whole window."""
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
        return verdict(known, window=self._window, paused=state.paused, rewinds=edits)

    def _ages(
        self, now: float, state: GroupState, logs: Mapping[TopicPartition, LogEnds]
    ) -> dict[TopicPartition, float]:
        """The age of the oldest unread record of each partition, as far as it is known."""
        lags = {tp: _lag(row, logs.get(tp)) for tp, row in state.positions.items()}
        unread = {tp: max(state.positions[tp].next_offset, logs[tp].begin) for tp, lag in lags.items() if lag}
        times, _ = self._ask(lambda survey: survey.oldest(unread))
        ages = {tp: 0.0 for tp, lag in lags.items() if lag == 0}
        for tp, at in (times or {}).items():
            ages[tp] = 0.0 if at is None else round(max(0.0, now - at / 1000), 3)
        return ages

    def _ask(self, ask: Callable[[Survey], T]) -> tuple[T | None, str | None]:
        """Kafka's answer, or why there is none."""
        if self._survey is None:
            return None, "Kafka was not asked"
        try:
            return ask(self._survey), None
        except BrokerUnavailable as error:
            return None, str(error)


def _topics(totals: Sequence[Totals]) -> set[str]:
    return {total.topic for total in totals if total.topic is not None}


def _lag(row: Position, log: LogEnds | None) -> int | None:
    return None if log is None else max(0, log.stable_end - row.next_offset)


def _known(total: Callable[[list[Any]], Any], values: Sequence[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return total(known) if known else None


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
