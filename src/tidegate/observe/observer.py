"""What happens, told to whoever wants to know: logs, metrics and pages hear the same."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias

from tidegate.core.arguments import Kind
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Span

__all__ = [
    "Claimed",
    "Committed",
    "DeadLettered",
    "Event",
    "FencedOff",
    "LagSeen",
    "Observer",
    "Observers",
    "ObserversArgument",
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
    """A transaction was committed: its spans, how long handler and commit took together, in seconds, and the handler
    alone, where that is known."""

    group: str
    spans: tuple[Span, ...]
    seconds: float
    attempts: int
    unknown_outcomes: int
    already_done: bool
    handler_seconds: float | None = None


class Claimed(NamedTuple):
    """Partitions were claimed, and are read from these positions."""

    group: str
    partitions: tuple[TopicPartition, ...]
    positions: tuple[int, ...]


class FencedOff(NamedTuple):
    """A commit was refused: someone else moved or claimed the positions."""

    group: str
    owners: dict[TopicPartition, str | None]
    reason: str


class Rebalanced(NamedTuple):
    """The group's assignment changed here: ``kind`` is assigned, revoked or lost."""

    group: str
    kind: str
    partitions: tuple[TopicPartition, ...]
    seconds: float


class LagSeen(NamedTuple):
    """How far behind the end of its log a partition is."""

    group: str
    partition: TopicPartition
    position: int
    end: int


class Retried(NamedTuple):
    """A record is to be tried again: the attempts so far, the seconds until then, and the kind of the last error."""

    group: str
    partition: TopicPartition
    offset: int
    attempts: int
    seconds: float
    error: str


class DeadLettered(NamedTuple):
    """A record was parked."""

    group: str
    partition: TopicPartition
    offset: int
    error: str


class Skipped(NamedTuple):
    """A span was stepped over; ``kind`` is skip or loss."""

    group: str
    span: Span
    kind: str
    reason: str


class Paused(NamedTuple):
    """The group was paused or resumed by an operator."""

    group: str
    paused: bool


class StoreLost(NamedTuple):
    """The ledger or the broker went away. Told once, not for every try."""

    group: str
    what: str
    reason: str


class StoreBack(NamedTuple):
    """What had gone away is back, after so many seconds."""

    group: str
    what: str
    seconds: float


Event: TypeAlias = (
    Polled
    | Committed
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
    """Hears of events, on the threads of the listeners: it has to be quick, and may not raise."""

    def __call__(self, event: Event) -> None:
        """Take note of an event."""


def _observers(given: Any) -> tuple[Observer, ...] | None:
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, type)) else (given,)
    return found if all(callable(each) and not isinstance(each, type) for each in found) else None


ObserversArgument: TypeAlias = Annotated[tuple[Observer, ...], Kind("functions of an event", _observers)]
"""Observers as an argument."""


class Observers:
    """Several observers as one. One that raises is left out of the matter: its error is logged, the others hear on."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = list(observers)

    def add(self, observer: Observer) -> None:
        """Tell another one too."""
        self._observers.append(observer)

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._observers)

    def __call__(self, event: Event) -> None:
        """Tell everybody."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                _log.exception("an observer failed at %s", type(event).__name__)
