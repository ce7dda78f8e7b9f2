"""Policies: where reading starts, delivery guarantees, ordering, and what to do about failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Annotated, Any, NamedTuple, TypeAlias, assert_never

from tidegate.core.arguments import Accepts, Amount, Count, Label, Seconds, convert_arguments, number, span
from tidegate.core.records import Record, TopicPartition, check_deployment
from tidegate.core.text import is_text
from tidegate.core.work import Span
from tidegate.errors import ConfigurationError, LedgerError

__all__ = [
    "Again",
    "Backoff",
    "CommitMode",
    "CommitStrategy",
    "DeadLetter",
    "Decision",
    "Delivery",
    "Earliest",
    "Fail",
    "FailurePolicy",
    "GroupProtocol",
    "Guard",
    "LagGuard",
    "Lane",
    "Latest",
    "LogOffsets",
    "Lose",
    "Ordering",
    "OutOfRange",
    "Park",
    "Recreated",
    "Retry",
    "SessionTimeout",
    "Skip",
    "Start",
    "StartStrategy",
    "StepOver",
    "Stop",
    "Strategy",
    "Timestamp",
    "decide",
    "lane",
    "out_of_range",
]


class Delivery(StrEnum):
    """The delivery guarantee.

    Exactly once commits data and position in one transaction; at least once commits the data first, then the position;
    at most once commits the position first.
    """

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class CommitStrategy(StrEnum):
    """How positions are committed when they are kept in Kafka instead of a ledger."""

    AUTOMATIC = "automatic"
    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"
    PER_PARTITION = "per-partition"


class CommitMode(StrEnum):
    """What a pipeline commits in one transaction: the span of one partition, or the whole micro-batch."""

    PARTITION = "partition"
    BATCH = "batch"


Lane: TypeAlias = tuple[TopicPartition, bytes | int | None]
"""Records of the same lane are handled one after the other.

A lane is a whole partition, all records of one key in a partition, or a single record without a key.
"""


class Ordering(StrEnum):
    """Which records are handled in order: all of a partition, or only those of the same key.

    With ``KEY``, records without a key are handled in any order.
    """

    PARTITION = "partition"
    KEY = "key"


def lane(ordering: Ordering, record: Record) -> Lane:
    """Return the lane of a record."""
    match ordering:
        case Ordering.PARTITION:
            return record.source, None
        case Ordering.KEY:
            return record.source, record.offset if record.key is None else record.key
        case other:
            assert_never(other)


@dataclass(frozen=True, slots=True)
class LagGuard:
    """A limit on lag: a partition more than ``limit`` records behind skips to ``keep`` records before the end of its
    log. The lag is checked every ``every`` seconds.
    """

    limit: Amount
    keep: Amount = 0
    every: Annotated[float, span(above=True)] = 60.0

    def __post_init__(self) -> None:
        convert_arguments(self)
        if self.keep > self.limit:
            raise ConfigurationError(f"keep: expected at most {self.limit}, the limit, not {self.keep}")


def _guard(given: Any) -> LagGuard | None:
    return given if isinstance(given, LagGuard) else None


# A plain number is refused: a lag guard skips records, and a number does not say how many to keep.
Guard: TypeAlias = Annotated[LagGuard, Accepts("a LagGuard, such as LagGuard(limit=100_000, keep=1_000)", _guard)]
"""A lag guard as an argument."""


SessionTimeout: TypeAlias = Annotated[float, span(0.001, 3600)]
"""How long a member may be silent before its partitions go to others. Kafka's unit is the millisecond."""


class GroupProtocol(StrEnum):
    """How the members of a group share its partitions.

    ``RANGE`` and ``ROUND_ROBIN`` rebalance eagerly, ``COOPERATIVE`` incrementally; ``CONSUMER`` is the protocol of
    KIP-848.
    """

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"
    COOPERATIVE = "cooperative-sticky"
    CONSUMER = "consumer"

    @property
    def is_incremental(self) -> bool:
        """Whether a rebalance adds and revokes single partitions instead of all at once."""
        return self in (GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER)


_END_OF_TIME = 253_402_300_799_999  # the last millisecond of the year 9999


@dataclass(frozen=True, slots=True)
class Earliest:
    """Start at the first record that the log still has."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Start behind the last record of the log."""


def _milliseconds(given: Any) -> int | None:
    """Convert a time with a time zone, also as text, to milliseconds since 1970; return ``None`` if it is invalid."""
    if is_text(given):
        text = given.strip()
        try:
            given = int(text) if text.isdecimal() else datetime.fromisoformat(text)
        except ValueError:
            return None
    if isinstance(given, datetime):
        return None if given.tzinfo is None else max(0, round(given.timestamp() * 1000))
    is_number = isinstance(given, int) and not isinstance(given, (bool, Enum))
    return given if is_number and 0 <= given <= _END_OF_TIME else None


_TIME = "a time with its zone (2026-11-01T00:00:00Z), or milliseconds since 1970"


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Start at the first record whose timestamp is ``at`` or later; behind the last record if there is none.

    ``at`` is in milliseconds since 1970, and may be passed as a ``datetime`` with a time zone or as text.
    """

    at: Annotated[int, Accepts(_TIME, _milliseconds)]

    def __post_init__(self) -> None:
        convert_arguments(self)


def _start(given: Any) -> Earliest | Latest | Timestamp | None:
    if isinstance(given, (Earliest, Latest, Timestamp)):
        return given
    if is_text(given) and (word := given.strip().lower()) in _WORDS:
        return _WORDS[word]
    at = _milliseconds(given)
    return None if at is None else Timestamp(at)


_WORDS: dict[str, Earliest | Latest] = {"earliest": Earliest(), "latest": Latest()}
_EXPECTED = f"'earliest', 'latest', {_TIME}"

Start: TypeAlias = Annotated[Earliest | Latest | Timestamp, Accepts(_EXPECTED, _start, tuple(_WORDS))]
"""Where to start reading. As an argument, it may also be a word or a time."""


class LogOffsets(NamedTuple):
    """Offsets of one partition's log: of its first record, of the next record to be written, and of the first record
    at or after the wanted timestamp (``None`` if there is none, or if no timestamp was asked for)."""

    earliest: int
    latest: int
    at_timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class StartStrategy:
    """Where to start partitions that have no stored position.

    With a ``deployment``, all other partitions are moved to the start as well, once per deployment name. The ledger
    remembers every name that a group has used, so that neither a restart nor a rebalance nor a return to an older name
    forces the start again.
    """

    start: Start = Earliest()
    deployment: Label | None = None

    def __post_init__(self) -> None:
        convert_arguments(self)
        if self.deployment is not None:
            check_deployment(self.deployment)

    def offsets(
        self,
        partitions: Iterable[TopicPartition],
        logs: Mapping[TopicPartition, LogOffsets],
    ) -> dict[TopicPartition, int]:
        """Return the ``start_at`` offsets for :meth:`Ledger.claim`; partitions without a log are left out."""
        return {tp: self._offset(logs[tp]) for tp in sorted(partitions) if tp in logs}

    def _offset(self, log: LogOffsets) -> int:
        match self.start:
            case Earliest():
                return log.earliest
            case Latest():
                return log.latest
            case Timestamp():
                return log.latest if log.at_timestamp is None else max(log.at_timestamp, log.earliest)
            case other:
                assert_never(other)


def _strategy(given: Any) -> StartStrategy | None:
    if isinstance(given, StartStrategy):
        return given
    start = _start(given)
    return None if start is None else StartStrategy(start)


Strategy: TypeAlias = Annotated[StartStrategy, Accepts(f"{_EXPECTED}, or a StartStrategy", _strategy, tuple(_WORDS))]
"""A start strategy as an argument; a plain start means a strategy without a deployment."""


class Stop(NamedTuple):
    """Decision: stop. ``reason`` says what happened and what to do."""

    reason: str


class OutOfRange(StrEnum):
    """What to do if retention has deleted the records at a position."""

    STOP = "stop"
    SKIP = "skip"


class Lose(NamedTuple):
    """Decision: advance over a span whose records are gone, and journal it as a loss."""

    span: Span
    note: str


def out_of_range(
    policy: OutOfRange, group: str, partition: TopicPartition, position: int, log: LogOffsets
) -> Lose | Stop | None:
    """Decide what to do about a position that Kafka reports as out of range; return ``None`` if it is in range.

    A position beyond the end of the log always stops. Either the log was truncated, and it is unknown which of its
    records are new, or the topic was recreated. Any offset chosen automatically could lose or repeat records.
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
    """What to do with a position if its topic was recreated or its cluster replaced."""

    STOP = "stop"
    RESTART = "restart"

    @property
    def restart(self) -> bool:
        """The ``restart`` argument of :meth:`Ledger.claim`."""
        match self:
            case Recreated.RESTART:
                return True
            case Recreated.STOP:
                return False
            case other:
                assert_never(other)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing waits between attempts: ``first`` seconds, then ``factor`` times longer each time, up to ``most``."""

    first: Seconds = 0.1
    factor: Annotated[float, number(1)] = 2.0
    most: Seconds = 30.0

    def __post_init__(self) -> None:
        convert_arguments(self)
        if self.first > self.most:
            raise ConfigurationError(f"most: expected at least {self.first:g} s, the first wait, not {self.most:g} s")

    def after(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt; attempts count from 1."""
        try:
            return float(min(self.first * self.factor ** (attempt - 1), self.most))
        except OverflowError:
            return self.most


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop the listener. The position stays before the record."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Skip the record: notify observers, and commit the span that contains it."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Park the record as a dead letter, in the transaction that advances over it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry up to ``times`` times, then apply the policy ``then``: ``Retry(3, then=DeadLetter())``.

    The wait between two attempts may have any length: the record's partition waits, and no transaction is open.
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
_EXPECTED_POLICY = f"one of {', '.join(map(repr, _POLICIES))}, or Fail(), Skip(), DeadLetter() or Retry(…)"

FailurePolicy: TypeAlias = Annotated[
    Fail | Skip | DeadLetter | Retry, Accepts(_EXPECTED_POLICY, _policy, tuple(_POLICIES))
]
"""What to do with a record whose handler failed. As an argument, it may also be a word."""


class Again(NamedTuple):
    """Decision: run the handler on the record again after ``after`` seconds."""

    after: float


class StepOver(NamedTuple):
    """Decision: skip the record, and notify observers with this note."""

    note: str


class Park(NamedTuple):
    """Decision: park the record with this error and the number of attempts, and continue behind it."""

    error: str
    attempts: int


Decision: TypeAlias = Again | StepOver | Park | Stop


def decide(policy: FailurePolicy, attempt: int, error: BaseException) -> Decision:
    """Decide what to do after attempt number ``attempt`` of a handler, counted from 1, raised ``error``.

    A :class:`LedgerError` says nothing about the record. It is retried if the policy retries, and then stops the
    listener; it never skips or parks the record.
    """
    before = 0
    while isinstance(policy, Retry):
        if attempt <= before + policy.times:
            return Again(policy.backoff.after(attempt - before))
        before += policy.times
        policy = policy.then
    failure = f"{type(error).__name__}: {error}"
    stop = Stop(f"the handler failed {attempt} time{'s' if attempt > 1 else ''}, the last time with {failure}")
    if isinstance(error, LedgerError):
        return stop
    match policy:
        case Fail():
            return stop
        case Skip():
            return StepOver(f"skipped after {failure}")
        case DeadLetter():
            return Park(failure, attempt)
        case other:
            assert_never(other)
