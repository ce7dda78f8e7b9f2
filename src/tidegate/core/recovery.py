"""Recovery policies: what to do when a position, a topic or a handler fails. Closed choices, evaluated purely."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeAlias, assert_never

from tidegate.core.arguments import Count, Kind, Seconds, convert_arguments, number
from tidegate.core.errors import ConfigurationError, LedgerError
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Span
from tidegate.core.start import LogOffsets
from tidegate.core.texts import is_text

__all__ = [
    "Again",
    "Backoff",
    "DeadLetter",
    "Decision",
    "Fail",
    "FailurePolicy",
    "Lose",
    "OutOfRange",
    "Park",
    "Recreated",
    "Retry",
    "Skip",
    "StepOver",
    "Stop",
    "decide",
    "out_of_range",
]


class Stop(NamedTuple):
    """Stop, with this to say: what happened, and what to do."""

    reason: str


class OutOfRange(StrEnum):
    """What to do with a position that retention has passed."""

    STOP = "stop"
    SKIP = "skip"


class Lose(NamedTuple):
    """Advance over the span and journal it as a loss: its records are gone."""

    span: Span
    note: str


def out_of_range(
    policy: OutOfRange, group: str, partition: TopicPartition, position: int, log: LogOffsets
) -> Lose | Stop | None:
    """What to do about a position that the log refused; ``None`` if it is in range after all.

    A position behind the log's end cannot be skipped from. Either the log was cut off there, and which of its records
    are new since then is not known; or it is another topic's. Any offset that a policy chose could lose or repeat some.
    """
    if position < log.earliest:
        lost = Span(partition, position, log.earliest)
        note = f"retention passed the position: offsets {position} to {log.earliest - 1} are gone"
        match policy:
            case OutOfRange.SKIP:
                return Lose(lost, note)
            case OutOfRange.STOP:
                return Stop(
                    f"group {group!r}, {partition}: {note}, and were not processed. To go on without them, set the "
                    f"policy for positions out of range to 'skip', or move the position to {log.earliest}"
                )
            case other:
                assert_never(other)
    if position > log.latest:
        return Stop(
            f"group {group!r}, {partition}: the position is {position}, but the log ends at {log.latest}: it lost "
            "records that had been processed (an unclean leader election?), or the topic was recreated. Find out which "
            "records are new, and move the position there"
        )
    return None


class Recreated(StrEnum):
    """What to do with a position whose topic was recreated, or whose cluster was replaced."""

    STOP = "stop"
    RESTART = "restart"

    @property
    def restart(self) -> bool:
        """What :meth:`Ledger.claim` takes."""
        match self:
            case Recreated.RESTART:
                return True
            case Recreated.STOP:
                return False
            case other:
                assert_never(other)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times that grow: ``first`` seconds, then ``factor`` times as long each time, up to ``most``."""

    first: Seconds = 0.1
    factor: Annotated[float, number(1)] = 2.0
    most: Seconds = 30.0

    def __post_init__(self) -> None:
        convert_arguments(self)
        if self.first > self.most:
            raise ConfigurationError(f"most: expected at least {self.first:g} s, the first wait, not {self.most:g} s")

    def after(self, attempt: int) -> float:
        """Seconds to wait after the attempt of that number, counted from 1."""
        try:
            return float(min(self.first * self.factor ** (attempt - 1), self.most))
        except OverflowError:
            return self.most


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop the listener; the position stays in front of the record."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Step over the record; observers are told, and the span that covers it is committed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Park the record, in the transaction that steps over it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again up to ``times`` times, and only ``then`` do something else: ``Retry(3, then=DeadLetter())``.

    The wait between two attempts may be of any length: the partition of the record waits, in no transaction.
    """

    times: Count = 3
    backoff: Backoff = Backoff()
    then: FailurePolicy = Fail()

    def __post_init__(self) -> None:
        convert_arguments(self)


def _policy(given: Any) -> Fail | Skip | DeadLetter | Retry | None:
    if isinstance(given, (Fail, Skip, DeadLetter, Retry)):
        return given
    return _POLICIES.get(given) if is_text(given) else None


_POLICIES: dict[str, Fail | Skip | DeadLetter] = {"fail": Fail(), "skip": Skip(), "dead-letter": DeadLetter()}
_EXPECTED = f"one of {', '.join(map(repr, _POLICIES))}, or Fail(), Skip(), DeadLetter() or Retry(…)"

FailurePolicy: TypeAlias = Annotated[Fail | Skip | DeadLetter | Retry, Kind(_EXPECTED, _policy, tuple(_POLICIES))]
"""What becomes of a record whose handling failed; as an argument also a word."""


class Again(NamedTuple):
    """Run the handler on the record again, after so many seconds."""

    after: float


class StepOver(NamedTuple):
    """Go on behind the record; observers are told, with this note."""

    note: str


class Park(NamedTuple):
    """Go on behind the record, which is parked with this error and the number of attempts made."""

    error: str
    attempts: int


Decision: TypeAlias = Again | StepOver | Park | Stop


def decide(policy: FailurePolicy, attempt: int, error: BaseException) -> Decision:
    """What to do after the ``attempt``-th run of a handler, counted from 1, raised ``error``.

    An error of the database says nothing about the record: it is retried where the policy retries, and then stops the
    listener, but never skips or parks a record.
    """
    before = 0
    while isinstance(policy, Retry):
        if attempt <= before + policy.times:
            return Again(policy.backoff.after(attempt - before))
        before += policy.times
        policy = policy.then
    said = f"{type(error).__name__}: {error}"
    stop = Stop(f"the handler failed {attempt} time{'s' if attempt > 1 else ''}, the last time with {said}")
    if isinstance(error, LedgerError):
        return stop
    match policy:
        case Fail():
            return stop
        case Skip():
            return StepOver(f"skipped after {said}")
        case DeadLetter():
            return Park(said, attempt)
        case other:
            assert_never(other)
