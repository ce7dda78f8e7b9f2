"""An observer that logs events as readable lines, with group, topic, partition and offset as fields."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tidegate.core.arguments import argument
from tidegate.core.masks import masked
from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.observe.events import (
    Claimed,
    Committed,
    Conflicted,
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

__all__ = ["FORMAT", "LoggingObserver", "StderrHandler", "log_by_default"]

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_LEVELS: dict[type, int] = {
    Polled: logging.DEBUG,
    Committed: logging.DEBUG,
    LagSeen: logging.DEBUG,
    Conflicted: logging.INFO,
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
_BURST = 5.0  # seconds over which dead letters are counted into one line
_LONGEST = 1000


class StderrHandler(logging.StreamHandler[Any]):
    """Logs to standard error; above the live view, while there is one on ``console``."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self.console: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, literally: brackets are not markup."""
        if self.console is None:
            super().emit(record)
        else:
            self.console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


def log_by_default() -> StderrHandler | None:
    """Log to standard error from level INFO on, unless the program has set up logging; return the new handler."""
    ours = logging.getLogger("tidegate")
    if ours.hasHandlers():
        return None
    handler = StderrHandler()
    ours.addHandler(handler)
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.INFO)
    return handler


class _Line(NamedTuple):
    """The text of a log line without the group, and its partition and offset if it concerns only one."""

    text: str
    partition: TopicPartition | None = None
    offset: int | None = None


class _Burst(NamedTuple):
    """Dead letters of a group that were held back, to be logged in one line."""

    until: float
    letters: list[DeadLettered]

    def line(self) -> _Line:
        """Return the line about all of them."""
        if len(self.letters) == 1:
            return _line(self.letters[0])
        kinds = Counter(_kind(each.error) for each in self.letters)
        first, last = self.letters[0], self.letters[-1]
        text = (
            f"parked {len(self.letters):,} more dead letters, from {first.partition}@{first.offset} to "
            f"{last.partition}@{last.offset}, after {_listed(f'{kind} ({n:,})' for kind, n in kinds.most_common())}"
        )
        return _about(text, {each.partition for each in self.letters}, [first.offset])


class LoggingObserver:
    """An observer that logs each event in one line, to the logger ``tidegate`` or the one given.

    Each log record has the fields ``event``, ``group``, ``topic``, ``partition`` and ``offset``; those that do not
    apply are ``None``. Keys and values of records are never logged. Of a handler's error, only the type is logged,
    since the message may quote them; the dead letter has the full error.

    A burst of dead letters is logged in one line every few seconds: the first letter at once, the others with a later
    event of their group, or by :meth:`flush`.
    """

    def __init__(self, logger: logging.Logger | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = argument("logger", logging.Logger | None, logger) or logging.getLogger("tidegate")
        self._clock: Callable[[], float] = argument("clock", Callable, clock)
        self._away: set[tuple[str, str]] = set()
        self._bursts: dict[str, _Burst] = {}
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Log the event, if the logger is enabled for its level."""
        with self._lock:
            held = isinstance(event, DeadLettered) and self._is_held(event)
            ended = self._ended(self._clock()) if not held and self._bursts else []
        for burst in ended:
            self._log(logging.WARNING, burst.letters[0], burst.line())
        if held:
            return
        level = self._level(event)
        if self._logger.isEnabledFor(level):
            self._log(level, event, _line(event))

    def flush(self) -> None:
        """Log the dead letters that were held back."""
        with self._lock:
            ended = self._ended(None)
        for burst in ended:
            self._log(logging.WARNING, burst.letters[0], burst.line())

    def _is_held(self, event: DeadLettered) -> bool:
        """Return whether a letter is part of a burst, and is logged later with the rest of it."""
        burst = self._bursts.get(event.group)
        if burst is None:
            self._bursts[event.group] = _Burst(self._clock() + _BURST, [])
            return False
        burst.letters.append(event)
        return True

    def _ended(self, now: float | None) -> list[_Burst]:
        """Return and forget the bursts whose time is over and that have letters to log; all of them without ``now``."""
        over = [group for group, burst in self._bursts.items() if now is None or now >= burst.until]
        found = [self._bursts.pop(group) for group in over]
        return [burst for burst in found if burst.letters]

    def _log(self, level: int, event: Event, line: _Line) -> None:
        fields: dict[str, Any] = {
            "event": type(event).__name__,
            "group": event.group,
            "topic": line.partition and line.partition.topic,
            "partition": line.partition and line.partition.partition,
            "offset": line.offset,
        }
        self._logger.log(level, "group %r: %s", event.group, line.text, extra=fields)

    def _level(self, event: Event) -> int:
        """Return the level of an event. An outage and its end are logged once, even if several threads report them;
        the repetitions get DEBUG.
        """
        if isinstance(event, StoreLost):
            if (event.group, event.what) in self._away:
                return logging.DEBUG
            self._away.add((event.group, event.what))
        elif isinstance(event, StoreBack):
            if (event.group, event.what) not in self._away:
                return logging.DEBUG
            self._away.discard((event.group, event.what))
        return _LEVELS[type(event)]


def _line(event: Event) -> _Line:  # noqa: PLR0912 - one for each kind of event
    match event:
        case Polled():
            return _Line(f"polled {event.records} records, {event.bytes} bytes")
        case Committed():
            return _committed(event)
        case Conflicted():
            return _conflicted(event)
        case Claimed():
            places = [f"{tp}@{position}" for tp, position in zip(event.partitions, event.positions, strict=True)]
            return _about(f"claimed {_listed(places)}", event.partitions, event.positions)
        case FencedOff():
            owners = [f"{tp} (owner now: {owner or 'none'})" for tp, owner in sorted(event.owners.items())]
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
            # A topic may never have existed, and the reason says so.
            went_away = "" if event.what == "topic" else f"the {event.what} went away: "
            return _Line(f"{went_away}{_said(event.reason)}; trying again")
        case StoreBack():
            is_there = "there" if event.what == "topic" else "back"
            return _Line(f"the {event.what} is {is_there} after {event.seconds:.1f} s")


def _conflicted(event: Conflicted) -> _Line:
    count = "a conflict" if event.conflicts == 1 else f"{event.conflicts} conflicts"
    where, then = (f" at {_listed(event.spans)}", "less is tried at once") if event.spans else ("", "trying again")
    text = f"{count} with other transactions{where}: {_said(event.reason)}; {then}"
    return _about(text, [span.partition for span in event.spans], [span.start for span in event.spans])


def _committed(event: Committed) -> _Line:
    spans: tuple[Span, ...] = event.spans
    text = f"committed {_listed(spans)}, {sum(span.records for span in spans)} records, in {event.seconds:.3f} s"
    if event.attempts > 1:
        text += f", {event.attempts} attempts"
    if event.conflicts:
        text += f", {event.conflicts} conflicts"
    if event.unknown_outcomes:
        text += f", {event.unknown_outcomes} without an answer"
    if event.already_done:
        text += ", which had been done already"
    return _about(text, [span.partition for span in spans], [span.end for span in spans])


def _about(text: str, partitions: Iterable[TopicPartition], offsets: Iterable[int] = ()) -> _Line:
    """Return a line about partitions; it has the fields of a partition only if there is exactly one."""
    places, at = list(partitions), list(offsets)
    return _Line(text, places[0], at[0] if at else None) if len(places) == 1 else _Line(text)


def _listed(things: Iterable[object]) -> str:
    named = [str(thing) for thing in things]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return ", ".join(named[:_MOST_NAMED]) + more


def _said(text: str) -> str:
    """Return a reason on one line, shortened and with secrets masked."""
    return masked(" ".join(text[:_LONGEST].split()))


def _kind(text: str) -> str:
    """Return the type of an error without its message: ``ValueError`` for ``ValueError: not a number: '12,5'``."""
    return _said(text.partition(":")[0])
