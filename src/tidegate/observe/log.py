"""Events as log lines: readable as they stand, and with group, topic, partition and offset as fields."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from tidegate.core.records import TopicPartition
from tidegate.core.spans import Span
from tidegate.observe.observer import (
    Claimed,
    Committed,
    DeadLettered,
    Event,
    FencedOff,
    LagSeen,
    Paused,
    Polled,
    Rebalanced,
    Retried,
    Skipped,
    StoreBack,
    StoreLost,
)
from tidegate.settings.masking import masked

__all__ = ["LoggingObserver"]

_LEVELS: dict[type, int] = {
    Polled: logging.DEBUG,
    Committed: logging.DEBUG,
    LagSeen: logging.DEBUG,
    Claimed: logging.INFO,
    Rebalanced: logging.INFO,
    Paused: logging.INFO,
    StoreBack: logging.INFO,
    FencedOff: logging.WARNING,
    StoreLost: logging.WARNING,
    Retried: logging.WARNING,
    DeadLettered: logging.WARNING,
    Skipped: logging.ERROR,
}
_MOST_NAMED = 8
_LONGEST = 1000


class _Line(NamedTuple):
    """The text of a log line, without the group, and the one place that it is about, if it is about one."""

    text: str
    partition: TopicPartition | None = None
    offset: int | None = None


class LoggingObserver:
    """Logs each event in one line, to the logger ``tidegate`` or the one given.

    Each log record has the fields ``event``, ``group``, ``topic``, ``partition`` and ``offset``; those that do not
    apply are ``None``. Keys and values of records are never logged, and of the error of a handler only its kind, since
    its message may quote them: the dead letter has the whole of it.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("tidegate")
        self._away: set[tuple[str, str]] = set()

    def __call__(self, event: Event) -> None:
        """Log the event, if its level is logged."""
        level = self._level(event)
        if not self._logger.isEnabledFor(level):
            return
        line = _line(event)
        fields: dict[str, Any] = {
            "event": type(event).__name__,
            "group": event.group,
            "topic": line.partition and line.partition.topic,
            "partition": line.partition and line.partition.partition,
            "offset": line.offset,
        }
        self._logger.log(level, "group %r: %s", event.group, line.text, extra=fields)

    def _level(self, event: Event) -> int:
        """What goes away is worth a warning once, however many threads notice it, and so is its return."""
        if isinstance(event, StoreLost):
            if (event.group, event.what) in self._away:
                return logging.DEBUG
            self._away.add((event.group, event.what))
        elif isinstance(event, StoreBack):
            if (event.group, event.what) not in self._away:
                return logging.DEBUG
            self._away.discard((event.group, event.what))
        return _LEVELS[type(event)]


def _line(event: Event) -> _Line:
    match event:
        case Polled():
            return _Line(f"polled {event.records} records, {event.bytes} bytes")
        case Committed():
            return _committed(event)
        case Claimed():
            places = [f"{tp}@{position}" for tp, position in zip(event.partitions, event.positions, strict=True)]
            return _about(f"claimed {_listed(places)}", event.partitions, event.positions)
        case FencedOff():
            owners = [f"{tp} (owner now: {owner or 'nobody'})" for tp, owner in sorted(event.owners.items())]
            return _about(f"fenced off from {_listed(owners)}: {_said(event.reason)}", list(event.owners))
        case Rebalanced():
            text = f"{event.kind} {_listed(event.partitions) or 'no partitions'} in {event.seconds:.3f} s"
            return _about(text, event.partitions)
        case LagSeen():
            text = f"{event.partition}@{event.position} is {event.end - event.position} records behind the end"
            return _Line(text, event.partition, event.position)
        case Retried():
            times = f"{event.attempts} attempt{'s' if event.attempts > 1 else ''}"
            text = f"{event.partition}@{event.offset} is tried again in {event.seconds:g} s: {times}, {event.error}"
            return _Line(text, event.partition, event.offset)
        case DeadLettered():
            text = f"parked {event.partition}@{event.offset} as a dead letter after {_kind(event.error)}"
            return _Line(text, event.partition, event.offset)
        case Skipped():
            stepped = "lost" if event.kind == "loss" else "stepped over"
            return _Line(f"{stepped} {event.span}: {_kind(event.reason)}", event.span.partition, event.span.start)
        case Paused():
            return _Line("paused by an operator" if event.paused else "resumed by an operator")
        case StoreLost():
            # A topic may never have been there: the reason says so.
            went_away = "" if event.what == "topic" else f"the {event.what} went away: "
            return _Line(f"{went_away}{_said(event.reason)}; trying again")
        case StoreBack():
            is_there = "there" if event.what == "topic" else "back"
            return _Line(f"the {event.what} is {is_there} after {event.seconds:.1f} s")


def _committed(event: Committed) -> _Line:
    spans: tuple[Span, ...] = event.spans
    text = f"committed {_listed(spans)}, {sum(span.records for span in spans)} records, in {event.seconds:.3f} s"
    if event.attempts > 1:
        text += f", {event.attempts} attempts"
    if event.unknown_outcomes:
        text += f", {event.unknown_outcomes} without an answer"
    if event.already_done:
        text += ", which had been done already"
    return _about(text, [span.partition for span in spans], [span.end for span in spans])


def _about(text: str, partitions: Iterable[TopicPartition], offsets: Iterable[int] = ()) -> _Line:
    """A line about several partitions has the fields only if they are one."""
    places, at = list(partitions), list(offsets)
    return _Line(text, places[0], at[0] if at else None) if len(places) == 1 else _Line(text)


def _listed(things: Iterable[object]) -> str:
    named = [str(thing) for thing in things]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return ", ".join(named[:_MOST_NAMED]) + more


def _said(text: str) -> str:
    """A reason, on one line, not endless, and without passwords."""
    return masked(" ".join(text[:_LONGEST].split()))


def _kind(text: str) -> str:
    """What comes before the message of an error: ``ValueError`` of ``ValueError: not a number: '12,5'``."""
    return _said(text.partition(":")[0])
