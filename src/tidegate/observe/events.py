"""The events of listeners and pipelines, which logs, metrics and pages all receive, and the observer protocol."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias

from tidegate.core.arguments import Accepts
from tidegate.core.records import Record, TopicPartition
from tidegate.core.work import Span

__all__ = [
    "Claimed",
    "Committed",
    "Conflicted",
    "DeadLettered",
    "Event",
    "FencedOff",
    "LagSeen",
    "Observer",
    "Observers",
    "ObserversArgument",
    "Outages",
    "Paused",
    "Polled",
    "Rebalanced",
    "Retried",
    "Skipped",
    "StoreBack",
    "StoreLost",
]


_log = logging.getLogger("tidegate")


class Polled(NamedTuple):
    """Records were fetched."""

    group: str
    records: int
    bytes: int


class Committed(NamedTuple):
    """A transaction was committed. ``seconds`` is the time of handler and commit together, ``handler_seconds`` that of
    the handler alone, if known; ``conflicts`` counts the attempts that met a conflict with another transaction.
    ``records`` are the records that were read for the spans, where known: not in pipelines. Records behind the end of
    a span were not committed."""

    group: str
    spans: tuple[Span, ...]
    seconds: float
    attempts: int
    unknown_outcomes: int
    already_done: bool
    handler_seconds: float | None = None
    conflicts: int = 0
    records: tuple[Sequence[Record], ...] = ()


class Conflicted(NamedTuple):
    """A batch repeatedly conflicted with other transactions (deadlocks, serialization failures). None of it was
    committed, and a smaller part is tried next. This is not an outage: the store works."""

    group: str
    spans: tuple[Span, ...]
    conflicts: int
    reason: str


class Claimed(NamedTuple):
    """Partitions were claimed; each is read from the position with the same index."""

    group: str
    partitions: tuple[TopicPartition, ...]
    positions: tuple[int, ...]


class FencedOff(NamedTuple):
    """The ledger refused a commit, because the positions were claimed by another owner or edited."""

    group: str
    owners: dict[TopicPartition, str | None]
    reason: str


class Rebalanced(NamedTuple):
    """The partitions assigned to this member changed; ``kind`` is ``assigned``, ``revoked`` or ``lost``."""

    group: str
    kind: str
    partitions: tuple[TopicPartition, ...]
    seconds: float


class LagSeen(NamedTuple):
    """The lag of a partition was measured, from its position to the end of its log."""

    group: str
    partition: TopicPartition
    position: int
    end: int


class Retried(NamedTuple):
    """A record will be retried: attempts so far, seconds until the retry, and the type of the last error."""

    group: str
    partition: TopicPartition
    offset: int
    attempts: int
    seconds: float
    error: str


class DeadLettered(NamedTuple):
    """A record was parked as a dead letter."""

    group: str
    partition: TopicPartition
    offset: int
    error: str


class Skipped(NamedTuple):
    """A position advanced over a span that was not processed; ``kind`` is ``skip`` or ``loss``."""

    group: str
    span: Span
    kind: str
    reason: str


class Paused(NamedTuple):
    """An operator paused or resumed the group."""

    group: str
    paused: bool


class StoreLost(NamedTuple):
    """The ledger, the broker or another dependency became unavailable. Sent once per outage, not for every retry."""

    group: str
    what: str
    reason: str


class StoreBack(NamedTuple):
    """A dependency is available again, after ``seconds``."""

    group: str
    what: str
    seconds: float


Event: TypeAlias = (
    Polled
    | Committed
    | Conflicted
    | Claimed
    | FencedOff
    | Rebalanced
    | LagSeen
    | Retried
    | DeadLettered
    | Skipped
    | Paused
    | StoreLost
    | StoreBack
)


class Observer(Protocol):
    """A function that receives events. It runs on the threads of the listeners, so it has to be fast and not raise."""

    def __call__(self, event: Event) -> None:
        """Handle an event."""


def _observers(given: Any) -> tuple[Observer, ...] | None:
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, type)) else (given,)
    return found if all(callable(each) and not isinstance(each, type) for each in found) else None


ObserversArgument: TypeAlias = Annotated[tuple[Observer, ...], Accepts("functions of an event", _observers)]
"""One observer or several, as an argument."""


class Observers:
    """Several observers as one. If one raises, the error is logged and the others still receive the event."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = list(observers)

    def add(self, observer: Observer) -> None:
        """Add an observer."""
        self._observers.append(observer)

    def remove(self, observer: Observer) -> None:
        """Remove an observer that was added."""
        self._observers = [each for each in self._observers if each is not observer]

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._observers)

    def __call__(self, event: Event) -> None:
        """Pass the event to every observer."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                _log.exception("an observer failed at %s", type(event).__name__)


class Outages:
    """The current outages of one group's dependencies, such as the ledger and the broker."""

    def __init__(self, group: str, tell: Callable[[Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._tell = tell
        self._clock = clock
        self._since: dict[str, float] = {}
        self._read_only: set[str] = set()
        self.reasons: dict[str, str] = {}

    def begin(self, what: str, reason: str, *, of_writes: bool = False) -> None:
        """Note that ``what`` does not answer, or, with ``of_writes``, that it answers but refuses writes."""
        if of_writes:
            self._read_only.add(what)
        if what not in self._since:
            self._since[what] = self._clock()
            self.reasons[what] = reason
            self._tell(StoreLost(self._group, what, reason))

    def end(self, what: str, *, wrote: bool = False) -> None:
        """Note that ``what`` answers again. If it refused writes, only a write (``wrote``) ends the outage."""
        if wrote:
            self._read_only.discard(what)
        elif what in self._read_only:
            return
        since = self._since.pop(what, None)
        self.reasons.pop(what, None)
        if since is not None:
            self._tell(StoreBack(self._group, what, self._clock() - since))

    def __contains__(self, what: str) -> bool:
        return what in self._since
